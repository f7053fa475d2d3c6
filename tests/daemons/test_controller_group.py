"""Nodes that differ from their group, from the checks' counts on the agent to the drain by the controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_agent_mind import Stage, make_settings

from hyperpod.core.majority import Limits
from hyperpod.core.messages import Heartbeat
from hyperpod.core.policy import Mode, policies_from
from hyperpod.health.check import Result, unknown
from hyperpod.health.runner import Runner
from tests.daemons.cluster import Cluster

FOUR = {"gpus": "4"}


def counts(lab: Cluster, **inventories: dict[str, str]) -> None:
    """Have the agents tell what they have counted with each heartbeat; worker_1 names worker-1, others have four."""
    named = {name.replace("_", "-"): value for name, value in inventories.items()}
    lab.agents.inventories = {node: named.get(node, FOUR) for node in lab.machines.machines}


def group_findings(lab: Cluster) -> dict[str, list[str]]:
    snapshot = lab.world.last_snapshot
    assert snapshot is not None
    return {n.name: [f"{f.code} {f.severity.name}" for f in n.findings] for n in snapshot.nodes if n.findings}


def test_a_node_that_has_lost_a_gpu_is_drained_after_two_minutes() -> None:
    lab = Cluster()
    counts(lab, worker_2={"gpus": "3"})
    lab.run(115)
    assert group_findings(lab) == {}
    lab.run(10)
    assert group_findings(lab) == {"worker-2": ["FewerThanGroup FATAL"]}
    assert lab.node("worker-2").is_drained
    assert "group/FewerThanGroup" in lab.node("worker-2").reason


def test_a_new_boot_counts_anew() -> None:
    lab = Cluster()
    counts(lab, worker_2={"gpus": "3"})
    lab.run(115)
    lab.machines.machines["worker-2"].boot += 1
    lab.run(100)
    assert group_findings(lab) == {}


@pytest.mark.parametrize(
    ("mode", "expected"), [("observe", {"worker-2": ["FewerThanGroup WARN"]}), ("off", {}), ("act", None)]
)
def test_the_mode_of_the_group_holds(mode: str, expected: dict[str, list[str]] | None) -> None:
    lab = Cluster(repair={"check_modes": {"worker": {"group": Mode(mode)}}})
    counts(lab, worker_2={"gpus": "3"})
    lab.run(125)
    assert group_findings(lab) == (expected if expected is not None else {"worker-2": ["FewerThanGroup FATAL"]})
    assert lab.node("worker-2").is_drained == (mode == "act")
    assert ("WouldHaveDrained" in lab.kinds()) == (mode == "observe")


def test_the_limits_of_the_specification_hold() -> None:
    health = {"group": {"mode": "act", "settle_s": 10.0}}
    policy, _ = policies_from({"groups": [{"name": "worker", "health": health}, {"name": "other"}]})
    assert policy.group_limits == {"worker": Limits(settle_s=10.0)}
    lab = Cluster(repair={"group_limits": policy.group_limits})
    counts(lab, worker_2={"gpus": "3"})
    lab.run(15)
    assert group_findings(lab) == {"worker-2": ["FewerThanGroup FATAL"]}


def test_heartbeats_without_counts_change_nothing() -> None:
    lab = Cluster()
    counts(lab, worker_2={"gpus": "3"})
    lab.run(2)
    lab.agents.inventories = {}
    lab.run(123)
    assert group_findings(lab) == {"worker-2": ["FewerThanGroup FATAL"]}


def test_the_groups_are_compared_only_when_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperpod.controller import observe

    calls = []
    real = observe.judge_groups
    monkeypatch.setattr(observe, "judge_groups", lambda *a: calls.append(1) or real(*a))  # type: ignore[func-returns-value]
    lab = Cluster()
    lab.run(60)
    assert len(calls) <= 3


# --- the message ----------------------------------------------------------------------------------------------------


def test_a_heartbeat_carries_counts_only_when_it_has_some() -> None:
    beat = Heartbeat("w", "i", "b", 1, 1.0, True)
    assert "inventory" not in beat.to_dict()
    told = Heartbeat("w", "i", "b", 1, 1.0, True, inventory=FOUR)
    assert Heartbeat.from_dict(told.to_dict()) == told


@pytest.mark.parametrize("bad", [[], "x", 3])
def test_counts_that_are_no_object_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="inventory"):
        Heartbeat.from_dict({**Heartbeat("w", "i", "b", 1, 1.0, True).to_dict(), "inventory": bad})


# --- the agent ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path, make_settings())
    made.tick()
    made.connect()
    return made


def passes(stage: Stage, seconds: int) -> None:
    """Let time pass with a controller that answers."""
    for _ in range(seconds):
        stage.tick(1.0)
        stage.acknowledge()


def finish_all(stage: Stage, **inventory: str) -> None:
    passes(stage, 61)
    for name in ("munge", "cpu_count", "plugin"):
        stage.finish(name, Result(inventory=inventory if name == "cpu_count" else {}))


def told(stage: Stage) -> list[Any]:
    return [beat.inventory for beat in stage.beats()]


def test_counts_are_told_once_when_all_checks_have_run_and_again_when_they_change(stage: Stage) -> None:
    assert set(told(stage)) == {None}
    finish_all(stage, cpus="4")
    passes(stage, 3)
    assert [i for i in told(stage) if i] == [{"cpus": "4"}]
    finish_all(stage, cpus="3")
    passes(stage, 3)
    assert [i for i in told(stage) if i] == [{"cpus": "3"}]


def test_a_new_connection_is_told_everything_again(stage: Stage) -> None:
    finish_all(stage, cpus="4")
    passes(stage, 2)
    told(stage)
    stage.lose()
    stage.connect()
    assert told(stage) == [{"cpus": "4"}]


def test_a_check_that_could_not_tell_takes_nothing_back() -> None:
    from test_agent_residents import JobCheck

    runner = Runner([JobCheck("gpus")])  # type: ignore[list-item]
    from tests.fakes.clock import FakeClock

    at = FakeClock().now()
    for result in (Result(inventory=FOUR), Result((unknown("gpus", "Blind", "?"),)), RuntimeError("x")):
        ((_, run_id),) = runner.force(["gpus"], 0.0)
        runner.finished("gpus", run_id, result, 0.0, at)
        assert runner.inventory() == FOUR
