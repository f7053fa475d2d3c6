"""Machines that came back with another address: Slurm, its file and the nodes' names follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.slurm.conf_file import save_node_address, with_node_address
from hyperpod.core.addresses import decide_addresses
from hyperpod.core.node import InstanceStatus
from hyperpod.errors import SlurmError
from tests.core.worlds import node, snapshot
from tests.daemons.cluster import Cluster

CONF = """ClusterName=demo
NodeName=worker-1 NodeAddr=10.0.0.1 Port=6818 CPUs=2
NodeName=worker-11 NodeAddr=10.0.0.11 Port=6818
PartitionName=train Nodes=worker-1,worker-11
"""


class Moving(Cluster):
    """A cluster whose provider gives every new machine a new address, and whose files follow."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}
        super().__init__()

    def _new_world(self) -> Any:
        world = super()._new_world()
        world.save_address = lambda name, address: self.written.update({name: address})
        return world

    def _is_reachable(self, address: str) -> bool:
        name = next((n for n, m in self.machines.machines.items() if m.instance.address == address), "")
        return bool(name) and name not in self.cut and self.machines.is_ready(name)


def test_slurm_its_file_and_every_node_learn_the_address_of_a_replacement() -> None:
    lab = Moving()
    lab.written.clear()
    lab.agents.sent.clear()
    before = lab.kinds().count("NodeMoved")
    lab.machines.fail("worker-1")
    lab.run_until(lambda: lab.machines.made["worker-1"] == 2)
    lab.run_until(lab.is_well)

    address = lab.machines.machines["worker-1"].instance.address
    assert lab.node("worker-1").address == address
    assert lab.written == {"worker-1": address}
    told = [n for n, message in lab.agents.sent if message.get("type") == "fetch_files"]
    assert set(told) >= {"worker-2", "worker-3", "worker-4"}
    assert lab.kinds().count("NodeMoved") == before + 1


@pytest.mark.parametrize("is_after", [False, True])
def test_a_controller_that_died_in_between_tells_the_address_all_the_same(is_after: bool) -> None:
    lab = Moving()
    lab.machines.fail("worker-1")
    lab.run_until(lambda: lab.machines.made["worker-1"] == 2)
    lab.restart()
    if is_after:
        lab.run(1)
        lab.restart()
    lab.run_until(lab.is_well)

    assert lab.node("worker-1").address == lab.machines.machines["worker-1"].instance.address


def test_a_file_that_cannot_be_written_holds_slurm_back_and_is_tried_again() -> None:
    lab = Moving()
    full = [True]

    def save(name: str, address: str) -> None:
        if full[0]:
            raise SlurmError("cannot write /etc/slurm/slurm.conf: No space left on device")
        lab.written[name] = address

    lab.world.save_address = save
    old = lab.node("worker-1").address
    lab.machines.fail("worker-1")
    lab.run_until(lambda: lab.machines.made["worker-1"] == 2)
    lab.run(10)
    assert lab.node("worker-1").address == old
    full[0] = False
    lab.run_until(lambda: lab.node("worker-1").address != old)


@pytest.mark.parametrize(
    ("provider", "slurm", "status", "expected"),
    [
        ("10.0.0.9", "10.0.0.1", InstanceStatus.RUNNING, ["10.0.0.9"]),
        ("10.0.0.9", "10.0.0.1", InstanceStatus.PENDING, ["10.0.0.9"]),
        ("10.0.0.1", "10.0.0.1", InstanceStatus.RUNNING, []),
        ("10.0.0.9", "ip-10-0-0-1", InstanceStatus.RUNNING, []),
        ("", "10.0.0.1", InstanceStatus.RUNNING, []),
        ("10.0.0.9", "", InstanceStatus.RUNNING, []),
        ("10.0.0.9", "10.0.0.1", InstanceStatus.STOPPED, []),
        ("10.0.0.9", "10.0.0.1", InstanceStatus.UNKNOWN, []),
    ],
)
def test_only_a_living_machine_at_another_address_moves(
    provider: str, slurm: str, status: InstanceStatus, expected: list[str]
) -> None:
    world = snapshot(node(1, address=provider, slurm_address=slurm, instance_status=status))

    assert [a.address for a in decide_addresses(world)] == expected
    assert decide_addresses(replace(world, missing=("provider",))) == ()


def test_one_line_of_slurm_conf_changes_and_the_last_good_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF)
    path.chmod(0o640)

    save_node_address(str(path), "worker-1", "10.0.0.99")

    assert path.read_text() == CONF.replace("NodeAddr=10.0.0.1 ", "NodeAddr=10.0.0.99 ")
    assert (tmp_path / "slurm.conf.last-good").read_text() == CONF
    assert path.stat().st_mode & 0o777 == 0o640
    before = path.stat().st_mtime_ns
    save_node_address(str(path), "worker-1", "10.0.0.99")
    assert path.stat().st_mtime_ns == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["slurm.conf", "slurm.conf.last-good"]


def test_a_node_without_a_line_of_its_own_is_left_alone() -> None:
    assert with_node_address("NodeName=worker-[1-4] CPUs=2\n", "worker-1", "10.0.0.9") == (
        "NodeName=worker-[1-4] CPUs=2\n"
    )
