"""A cluster on EC2 from end to end: real calls to an account of moto's, and real machines behind its instances.

The machines boot by their user data, fetch everything from S3 with their role's rights, and die as EC2 says. Nothing
of hyperpod knows that this is a test.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bodies.bridge import Bridge
from tests.bodies.cluster import BodyCluster, account
from tests.bodies.site import furnish, write_spec
from tests.e2e.lab import assert_no_overlap

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600, func_only=True)]
NAME = "e2e-aws"


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    """An account with machines; at its end no container and no network is left."""
    with account(NAME) as bridge:
        yield bridge
    left = [
        subprocess.run(["podman", *argv], capture_output=True, text=True, check=True).stdout
        for argv in (["ps", "--all", "--format", "{{.Names}}"], ["network", "ls", "--format", "{{.Name}}"])
    ]
    assert not [line for text in left for line in text.split() if NAME in line]
    assert bridge.problems == []


@pytest.fixture(scope="module")
def cluster(bridge: Bridge, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BodyCluster]:
    """A head node, two workers and a spare, usable from the moment when create-cluster returns; then deleted."""
    cluster = BodyCluster(NAME, bridge)
    spec = write_spec(furnish(bridge), NAME, tmp_path_factory.mktemp("spec"))
    cluster.create(spec, timeout_s=900)
    states = cluster.head("sinfo", "--all", "--noheader", "--Node", "--format=%N %P %T").split("\n")
    assert sorted(line for line in states if line) == [
        "worker-1 dev* idle",
        "worker-2 dev* idle",
        "worker-3 hyperpod-spare idle",
    ]
    cluster.wait("the controller to answer", cluster.is_settled)
    cluster.install()
    yield cluster
    cluster.delete()
    assert cluster.remains() == {}


@pytest.fixture
def lab(cluster: BodyCluster) -> BodyCluster:
    cluster.clean_up()
    cluster.begin()
    return cluster


def test_job_goes_on_when_an_instance_is_terminated_behind_our_back(lab: BodyCluster, bridge: Bridge) -> None:
    job = lab.submit("--nodes=2")
    lab.wait_running(job, step=10, ranks=2)
    victim = lab.job_nodes(job.id)[1]
    address = lab.machines(victim, "running")[0]["PrivateIpAddress"]
    bridge.account.calls.clear()

    old = lab.terminate(victim)
    lab.wait_running(job, attempt=2, ranks=2)
    shown = lab.finish(job)

    assert [a["cause"] for a in shown["attempts"]] == ["NodeDead", "Completed"]
    assert victim not in shown["attempts"][1]["nodes"]
    trace = lab.trace(job)
    assert_no_overlap(trace)
    starts = {x.step for x in trace if x.kind == "start" and x.attempt == 2}
    reached = max(x.step for x in trace if x.attempt == 1 and x.rank == 0)
    assert len(starts) == 1
    assert reached - 2 <= starts.pop() <= reached
    # The controller has launched a successor itself, with the rights that its machine's role gave it.
    lab.wait_replaced(victim, old, 400)
    head = bridge.bodies[str(lab.machines("head-1", "running")[0]["InstanceId"])].identity
    assert [key for name, key in bridge.account.calls if name == "RunInstances"] == [head.access_key]
    fresh = lab.machines(victim, "running")[0]
    assert fresh["PrivateIpAddress"] == address
    assert lab.on_node(victim, "hostname").strip() == victim
    assert lab.nodes()[victim]["state"] == "spare"
    assert len(lab.events("NodeReplaced")) == 1


def test_machine_that_hangs_loses_its_power_by_ec2_before_its_job_starts_elsewhere(lab: BodyCluster) -> None:
    job = lab.submit("--nodes=2")
    lab.wait_running(job, step=4, ranks=2)
    victim = lab.job_nodes(job.id)[1]
    old = lab.instance(victim)

    subprocess.run(["podman", "pause", lab.container(victim)], check=True, capture_output=True)
    lab.wait_running(job, attempt=2, ranks=2)
    lab.finish(job)

    assert_no_overlap(lab.trace(job))
    assert "StopInstances" in [name for name, _ in lab.bridge.account.calls]
    lab.wait_replaced(victim, old, 400)


def test_rebooted_machine_comes_back_as_itself(lab: BodyCluster) -> None:
    old = lab.instance("worker-1")
    before = lab.on_node("worker-1", "cat", "/run/hyperpod/boot_id")

    lab.hyperpod("reboot-node", "worker-1", "--cluster", lab.name, "--provider", "ec2", "--yes")

    lab.wait("another boot", lambda: lab.on_node("worker-1", "cat", "/run/hyperpod/boot_id", check=False) != before)
    lab.wait("every node to work again", lab.is_settled, 120)
    assert lab.instance("worker-1") == old
    assert lab.on_node("worker-1", "hostname").strip() == "worker-1"


def test_grown_group_takes_work_when_the_command_returns(lab: BodyCluster) -> None:
    lab.hyperpod(
        "update-cluster", "--cluster", lab.name, "--provider", "ec2", "--group", "worker", "--count", "4", "--yes"
    )

    lab.wait("three nodes and the spare", lambda: len(lab.nodes()) == 4 and lab.is_settled(), 60)
    job = lab.submit("--nodes=3", steps=3)
    lab.wait_state(job, "COMPLETED")


def test_nothing_on_a_machine_reaches_a_metadata_service_that_is_not_the_bridges(lab: BodyCluster) -> None:
    began = time.monotonic()
    for user in ("root", "ubuntu"):
        asked = lab.on_node(
            "worker-1", "curl", "-sS", "--max-time", "5", "http://169.254.169.254/latest/", user=user, check=False
        )
        assert asked == ""
    assert time.monotonic() - began < 8
    assert lab.bridge.metadata.refused == 0


def test_the_users_own_script_from_s3_has_run_on_every_machine(lab: BodyCluster) -> None:
    assert all(lab.on_node(node, "ls", "/opt/on_create_ran") for node in ("head-1", "worker-1", "worker-2"))
    assert Path(lab.fsx, "checkpoints").is_dir()
