from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hyperpod.core.rehearsal import (
    Expected,
    Outcome,
    PlannedFault,
    Seen,
    choose_node,
    is_settled,
    judge,
    parse_plan,
)
from hyperpod.errors import ConfigError

AT = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
PLANS = sorted((Path(__file__).parents[2] / "configs" / "rehearsals").glob("*.yaml"))


def after(seconds: float) -> str:
    return (AT + timedelta(seconds=seconds)).isoformat()


def event(kind: str, seconds: float, node: str = "worker-2") -> dict[str, Any]:
    return {"kind": kind, "at": after(seconds), "node": node, "message": "", "job_id": None}


def attempt(number: int, cause: str | None = None, **more: Any) -> dict[str, Any]:
    return {"number": number, "cause": cause, "first_task_at": None, "resume_step": -1, **more}


GOOD = Seen(
    AT,
    "worker-2",
    (
        event("RepairBegan", 3.5),
        event("NodeFencing", 3.6),
        event("NodeReplacing", 4.0),
        event("SpareUsed", 4.1, "worker-4"),
    ),
    (attempt(1, "NodeDead"), attempt(2, first_task_at=after(6.0), resume_step=35)),
    reached=40,
)


def test_a_replaced_node_whose_job_came_back_is_as_expected() -> None:
    assert judge(PlannedFault("power-off"), GOOD) == Outcome("power-off", "worker-2", 3.5, "node", "Replace", 6.0, 5)


@pytest.mark.parametrize(
    ("expected", "seen", "problem"),
    [
        (Expected(verdict="application"), GOOD, "the verdict is node, expected is application"),
        (Expected(action="Reboot"), GOOD, "the action is Replace, expected is Reboot"),
        (Expected(detected_s=3), GOOD, "it was noticed after 3.5 s, at most 3 s are allowed"),
        (Expected(resumed_s=5), GOOD, "the job ran again after 6.0 s, at most 5 s are allowed"),
        (Expected(), Seen(AT, "worker-2", (), (attempt(1),)), "it was not noticed"),
        (Expected(), Seen(AT, "worker-2", (), (attempt(1, "NodeDead"),)), "the job did not run again"),
        (
            Expected(),
            Seen(AT, "worker-2", (*GOOD.events, event("NodeDrained", 9, "worker-1")), GOOD.attempts),
            "worker-1 was repaired, too, and nothing was wrong with it",
        ),
    ],
)
def test_what_is_not_as_expected_is_said(expected: Expected, seen: Seen, problem: str) -> None:
    assert problem in judge(PlannedFault("power-off", expected=expected), seen).problems


QUIET = PlannedFault("kernel-line", settle_s=6.0, expected=Expected("none", "None"))


def test_a_look_alike_after_which_nothing_happens_is_as_expected() -> None:
    assert judge(QUIET, Seen(AT, "worker-2", (), (attempt(1),))).passed


@pytest.mark.parametrize(
    "seen",
    [
        Seen(AT, "worker-2", (event("NodeDrained", 1),), (attempt(1),)),
        Seen(AT, "worker-2", (), (attempt(1, "NodeUnhealthy"), attempt(2, first_task_at=after(5)))),
        Seen(AT, "worker-2", (event("NodeReplacing", 1, "worker-1"),), (attempt(1),)),
    ],
)
def test_a_look_alike_after_which_something_happens_is_a_failure(seen: Seen) -> None:
    assert not judge(QUIET, seen).passed


def test_only_events_and_attempts_after_the_fault_count() -> None:
    seen = Seen(AT, "worker-2", (), (attempt(1, "NodeDead"), attempt(2)), attempt_before=2)
    outcome = judge(QUIET, seen)
    assert (outcome.verdict, outcome.passed) == ("none", True)


def test_a_quiet_fault_is_watched_for_its_whole_time() -> None:
    seen = Seen(AT, "worker-2", (), (attempt(1),))
    assert not is_settled(QUIET, seen, AT + timedelta(seconds=5), is_job_running=True)
    assert is_settled(QUIET, seen, AT + timedelta(seconds=6), is_job_running=True)


def test_a_fault_is_settled_when_the_job_runs_and_the_action_was_seen() -> None:
    planned = PlannedFault("power-off")
    now = AT + timedelta(seconds=7)
    assert is_settled(planned, GOOD, now, is_job_running=True)
    assert not is_settled(planned, GOOD, now, is_job_running=False)
    assert not is_settled(planned, Seen(AT, "worker-2", GOOD.events[:2], GOOD.attempts), now, is_job_running=True)


def test_a_repair_that_ended_with_another_action_is_not_waited_for() -> None:
    rebooted = (event("NodeDrained", 1), event("NodeRebooting", 2), event("NodeHealthy", 6))
    seen = Seen(AT, "worker-2", rebooted, GOOD.attempts)
    planned = PlannedFault("kernel-line")
    assert is_settled(planned, seen, AT + timedelta(seconds=7), is_job_running=True)
    assert judge(planned, seen).problems == ("the action is Reboot, expected is Replace",)


NODES = [
    {"node": "worker-1", "state": "in use", "jobs": [7]},
    {"node": "worker-2", "state": "in use", "jobs": [7, 8]},
    {"node": "worker-3", "state": "idle", "jobs": []},
    {"node": "worker-4", "state": "spare", "jobs": []},
    {"node": "worker-5", "state": "replacing", "jobs": [7]},
]


@pytest.mark.parametrize(
    ("on", "draw", "node"),
    [
        ("job", 0.0, "worker-1"),
        ("job", 0.99, "worker-2"),
        ("idle", 0.5, "worker-3"),
        ("spare", 0.5, "worker-4"),
        ("any", 0.99, "worker-4"),
        ("worker-3", 0.7, "worker-3"),
    ],
)
def test_the_node_is_chosen_among_those_that_are_well(on: str, draw: float, node: str) -> None:
    assert choose_node(on, NODES, 7, draw) == node


@pytest.mark.parametrize("on", ["worker-5", "worker-9", "jobs"])
def test_a_node_that_is_not_there_is_told(on: str) -> None:
    with pytest.raises(ConfigError, match="no worker is"):
        choose_node(on, NODES, 7, 0.5)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_plan_that_we_ship_can_be_read(path: Path) -> None:
    plan = parse_plan(yaml.safe_load(path.read_text()), path.name)
    assert plan.name == path.stem
    assert plan.faults


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "p: must be a mapping"),
        ({}, "Faults: must be a list"),
        ({"Faults": []}, "Faults: must be a list"),
        ({"Fault": []}, "Fault is not known"),
        ({"Faults": [{}]}, "Faults[0]: Fault is missing"),
        ({"Faults": [{"Fault": "power-off", True: "job"}]}, "Faults[0]: True is not known"),
        ({"Faults": [{"Fault": "power-off", "After": [5, 2]}]}, "After: must be seconds"),
        ({"Faults": [{"Fault": "power-off", "After": "soon"}]}, "After: must be seconds"),
        ({"Faults": [{"Fault": "power-off", "For": -1}]}, "For: must be a number"),
        ({"Faults": [{"Fault": "power-off", "Expect": {"Verdict": "user"}}]}, "must be one of node, application, none"),
        ({"Faults": [{"Fault": "power-off", "Expect": {"Action": "replace"}}]}, "must be one of None, Drain, Reboot"),
        ({"Seed": True, "Faults": [{"Fault": "x"}]}, "Seed: must be a number"),
        ({"Job": {"Nodes": 0}, "Faults": [{"Fault": "x"}]}, "Job: Nodes: must be a number from 1"),
    ],
)
def test_a_plan_that_is_none_is_refused_with_the_place(data: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_plan(data, "p")
    assert text in error.value.message
