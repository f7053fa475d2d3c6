"""Fences that fail, and slots that got another machine while one was being fenced."""

from __future__ import annotations

import itertools
import logging
from datetime import UTC, datetime, timedelta

import pytest

from hyperpod.controller.repeats import PAUSE, Repeats
from hyperpod.core.job import JobStatus
from hyperpod.core.node import RepairStatus
from hyperpod.core.repair import decide_repair
from hyperpod.errors import ProviderUnavailable
from tests.core.worlds import POLICY, ago, in_repair, job, machine, names, nodes, snapshot
from tests.daemons.cluster import Cluster

AT = datetime(2025, 6, 1, tzinfo=UTC)


def unfenceable(lab: Cluster) -> tuple[int, str, list[datetime]]:
    """A job whose first node is silent and cannot be powered off; returns the times of the tries."""
    job = lab.submit()
    lost = lab.view(job).nodes[0]
    tries: list[datetime] = []

    def refuse(instance_id: str) -> None:
        tries.append(lab.clock.now())
        raise ProviderUnavailable(f"{instance_id} has not stopped yet")

    lab.machines.power_off = refuse  # type: ignore[method-assign]
    lab.agents.mute.add(lost)
    lab.cut.add(lost)
    lab.run_until(lambda: bool(tries), seconds=20)
    return job, lost, tries


def test_a_fence_that_fails_is_tried_again_ever_more_slowly_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    lab = Cluster()
    job, _, tries = unfenceable(lab)
    caplog.set_level(logging.WARNING)
    lab.run(600)

    pauses = [(b - a).total_seconds() for a, b in itertools.pairwise(tries)]
    assert pauses[0] <= 1.5
    assert 5 <= pauses[-1] <= 10.5
    assert len(tries) < 80
    said = [r for r in caplog.records if "action failed" in r.getMessage()]
    assert len(said) <= 1
    assert lab.store.repairs()[0].last_error.endswith("has not stopped yet")
    # It may still write: its job starts nowhere else.
    assert lab.view(job).restart_count == 0


def test_a_fence_that_goes_on_failing_is_said_again_after_a_quarter_of_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = Cluster()
    unfenceable(lab)
    caplog.set_level(logging.WARNING)
    caplog.clear()
    lab.run(PAUSE.total_seconds() + 30)

    said = [r.getMessage() for r in caplog.records if "action failed" in r.getMessage()]
    assert len(said) == 1
    assert "repeats=" in said[0]


def test_other_nodes_are_repaired_while_one_cannot_be_fenced() -> None:
    lab = Cluster(workers=6, spares=1)
    _, lost, _ = unfenceable(lab)
    original = type(lab.machines).power_off

    def power_off(instance_id: str) -> None:
        if lab.machines._find(instance_id) == lost:
            raise ProviderUnavailable(f"{instance_id} has not stopped yet")
        original(lab.machines, instance_id)

    lab.machines.power_off = power_off  # type: ignore[method-assign]
    other = next(n for n in lab.machines.machines if n != lost and not lab.slurm._nodes[n].state.is_drained)
    lab.machines.fail(other)
    lab.run_until(lambda: lab.machines.made[other] == 2)

    assert lab.machines.made[lost] == 1


def test_a_job_is_told_when_its_dead_node_got_another_machine_before_it_was_fenced() -> None:
    lab = Cluster()
    job, lost, _ = unfenceable(lab)
    old = lab.machines.machines[lost].instance.id
    # Somebody else, such as the provider's own repair, gives the slot another machine; Slurm is told nothing.
    lab.machines.on_power = lambda node, is_on: None
    lab.machines.replace(lost, old, "by somebody else")
    lab.agents.mute.discard(lost)
    lab.cut.discard(lost)
    lab.run_until(lambda: lab.view(job).restart_count == 1 and lab.view(job).status is JobStatus.RUNNING)

    assert [call[1] for call in lab.slurm.commands("set_down")] == [lost]
    lab.run_until(lab.is_well)
    assert lab.machines.made[lost] == 2


@pytest.mark.parametrize(
    ("started_s", "expected"),
    [(300, ["MarkDown", "SaveRepair"]), (10, ["DrainNode", "SaveRepair"])],
    ids=["a job of the old machine is told", "work that the newcomer has got already is not killed"],
)
def test_what_becomes_of_the_work_on_a_slot_with_another_machine(started_s: float, expected: list[str]) -> None:
    view = {"instance_id": machine(9), "agent_instance_id": "", "created_at": ago(60), "jobs": (7,)}
    fresh = in_repair(1, RepairStatus.FENCING, {**view, "is_drained": False}, cause="node/NodeDead")
    running = job(7, started_at=ago(started_s))

    plan = decide_repair(snapshot(*nodes(4, fresh), jobs=(running,)), POLICY)

    assert names(plan) == expected


def test_repetitions_are_counted_and_news_of_another_object_is_written_at_once() -> None:
    repeats = Repeats()
    log = logging.getLogger("hyperpod.test")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        for second in range(5):
            repeats.warning(log, "a", AT + timedelta(seconds=second), "a fails error=%s", "x")
        repeats.warning(log, "b", AT, "b fails")
        repeats.warning(log, "a", AT + PAUSE, "a fails error=%s", "y")
        repeats.ended("a")
        repeats.warning(log, "a", AT + PAUSE, "a fails error=%s", "z")
    finally:
        log.removeHandler(handler)

    assert lines == ["a fails error=x", "b fails", "a fails error=y repeats=4", "a fails error=z"]
