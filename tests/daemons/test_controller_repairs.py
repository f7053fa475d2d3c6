"""Repairs through whole ticks of the controller, to the node that takes work again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hyperpod.errors import NoCapacity
from hyperpod.ports.provider import Instance
from tests.daemons.cluster import Cluster


def test_a_dead_node_is_replaced_and_its_job_trains_on_elsewhere() -> None:
    lab = Cluster()
    job = lab.submit()
    dead = lab.view(job).nodes[0]
    lab.machines.fail(dead)
    took = lab.run_until(lambda: lab.view(job).restart_count == 1 and lab.view(job).status.value == "running")
    assert took < 15
    lab.run_until(lab.is_well)
    assert lab.machines.made[dead] == 2


@pytest.mark.parametrize("is_restarted", [False, True], ids=["one controller", "restarted between the tries"])
def test_a_provider_without_machines_is_asked_ever_less_often_also_after_a_restart(is_restarted: bool) -> None:
    lab = Cluster()
    real, tried = lab.machines.replace, []

    def refuse(node: str, instance_id: str, token: str) -> Instance:
        tried.append(lab.clock.now())
        raise NoCapacity("EC2 has no capacity now")

    lab.machines.replace = refuse  # type: ignore[method-assign]
    lab.machines.fail("worker-1")
    for _ in range(200):
        lab.run(2)
        if is_restarted and tried:
            lab.restart()
    pauses = [(after - before).total_seconds() for before, after in pairwise(tried)]
    assert len(pauses) == 7
    assert pauses == pytest.approx([2, 4, 8, 16, 32, 64, 128], abs=3)
    told = [line for line in lab.history() if line.startswith("MachineActionFailed")]
    assert told == ["MachineActionFailed worker-1: EC2 has no capacity now, refused once, next try in 2 s"]
    lab.run(1)
    (note,) = [n for n in lab.world.last_notes if n.code == "Replacing"]
    assert "refused 8 times, next try in" in note.message
    assert "EC2 has no capacity now" in note.message
    lab.machines.replace = real  # type: ignore[method-assign]
    lab.run_until(lambda: lab.machines.made["worker-1"] == 2, seconds=300)
    lab.run_until(lab.is_well)
