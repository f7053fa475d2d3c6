"""Rehearsals: faults on a schedule, and what a healthy cluster has to make of each. Only computes.

Owns the plan's form, the choice of nodes (from a seed, so that a rehearsal can be repeated), and the judgement of what
was seen. Breaking nodes and watching them is ``cli.rehearse``'s part.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from hyperpod.errors import ConfigError

TARGETS: Final = ("job", "idle", "spare", "any")
"""Which node is broken: one that the rehearsal's job runs on, an idle one, a spare, or any worker. Or a node's name."""

VERDICTS: Final = ("node", "application", "none")
ACTIONS: Final = ("None", "Drain", "Reboot", "Replace")

_NODE_CAUSES: Final = frozenset({"NodeDead", "NodeUnhealthy", "LaunchFailed"})

_ACTION_OF: Final = {
    "NodeDrained": "Drain",
    "NodeDraining": "Drain",
    "NodeFencing": "Drain",
    "NodeFenced": "Drain",
    "NodeDown": "Drain",
    "NodeRebooting": "Reboot",
    "NodeReplacing": "Replace",
    "NodeReplaced": "Replace",
}
"""What the controller's events about a node say that is done to it."""

_SIGNS: Final = frozenset({*_ACTION_OF, "RepairBegan", "FailureSeen", "AttemptEnded"})
"""Events which show that something was noticed."""


@dataclass(frozen=True)
class Expected:
    """What has to follow a fault.

    Attributes:
        verdict: Whom the job's end is laid to: ``node``, ``application``, or ``none`` where no job may end.
        action: The strongest thing that is done to the broken node.
        detected_s, resumed_s: Seconds after the fault within which it is noticed, and the job runs again.
    """

    verdict: str = "node"
    action: str = "Replace"
    detected_s: float = 10.0
    resumed_s: float = 60.0


@dataclass(frozen=True)
class PlannedFault:
    """One fault of a plan.

    Attributes:
        fault, argument: As for ``hyperpod inject``; ``{job}`` in the argument becomes the job's id.
        on: One of ``TARGETS``, or a node's name.
        after_s: Earliest and latest moment, in seconds after the job is in its stride again.
        for_s: How long until it is undone; None: it stays until the node is repaired.
        settle_s: How long to watch for an action where none is expected.
        expected: What has to follow.
    """

    fault: str
    argument: str = ""
    on: str = "job"
    after_s: tuple[float, float] = (2.0, 5.0)
    for_s: float | None = None
    settle_s: float = 10.0
    expected: Expected = Expected()


@dataclass(frozen=True)
class Plan:
    """A rehearsal: one job that must survive, and faults one after the other.

    ``prepare`` is done to every worker beforehand and undone at the end, such as giving it test GPUs.
    """

    name: str
    faults: tuple[PlannedFault, ...]
    prepare: tuple[PlannedFault, ...] = ()
    seed: int = 1
    job_nodes: int = 2
    step_s: float = 0.2
    save_every: int = 5
    limit_s: float = 600.0


def parse_plan(data: object, source: str) -> Plan:
    """Read a plan.

    Args:
        data: The file's content: a mapping with ``Name``, ``Faults`` and, if wanted, ``Seed``, ``Job``, ``Limit``,
            ``Prepare``.
        source: The file's name, for messages.
    Raises:
        ConfigError: naming what is wrong, where, and what is allowed.
    """
    top = _mapping(data, source, {"Name", "Seed", "Job", "Limit", "Prepare", "Faults"})
    job = _mapping(top.get("Job", {}), f"{source}: Job", {"Nodes", "StepSeconds", "SaveEvery"})
    faults = top.get("Faults")
    if not isinstance(faults, list) or not faults:
        raise ConfigError(f"{source}: Faults: must be a list of at least one fault")
    prepare = top.get("Prepare", [])
    if not isinstance(prepare, list):
        raise ConfigError(f"{source}: Prepare: must be a list of faults")
    return Plan(
        prepare=tuple(_preparation(item, f"{source}: Prepare[{index}]") for index, item in enumerate(prepare)),
        name=_text(top, "Name", source, default="rehearsal"),
        faults=tuple(_fault(item, f"{source}: Faults[{index}]") for index, item in enumerate(faults)),
        seed=int(_number(top, "Seed", source, 1, 0, 2**31)),
        job_nodes=int(_number(job, "Nodes", f"{source}: Job", 2, 1, 1000)),
        step_s=_number(job, "StepSeconds", f"{source}: Job", 0.2, 0.01, 60),
        save_every=int(_number(job, "SaveEvery", f"{source}: Job", 5, 1, 100_000)),
        limit_s=_number(top, "Limit", source, 600, 1, 7 * 86400),
    )


def _preparation(item: object, where: str) -> PlannedFault:
    data = _mapping(item, where, {"Fault", "Argument"})
    return PlannedFault(_text(data, "Fault", where), _text(data, "Argument", where, default=""))


def _fault(item: object, where: str) -> PlannedFault:
    data = _mapping(item, where, {"Fault", "Argument", "Node", "After", "For", "Settle", "Expect"})
    expect = _mapping(
        data.get("Expect", {}), f"{where}: Expect", {"Verdict", "Action", "DetectedWithin", "ResumedWithin"}
    )
    if "Fault" not in data:
        raise ConfigError(f"{where}: Fault is missing", hint="hyperpod inject --list shows the faults")
    after = data.get("After", [2, 5])
    if not isinstance(after, list):
        after = [after, after]
    if len(after) != 2 or not all(_is_number(x) and 0 <= x <= 86400 for x in after) or after[0] > after[1]:
        raise ConfigError(f"{where}: After: must be seconds, or [EARLIEST, LATEST]")
    place = f"{where}: Expect"
    return PlannedFault(
        fault=_text(data, "Fault", where),
        argument=_text(data, "Argument", where, default=""),
        on=_text(data, "Node", where, default="job"),
        after_s=(float(after[0]), float(after[1])),
        for_s=None if data.get("For") is None else _number(data, "For", where, 0, 0, 86400),
        settle_s=_number(data, "Settle", where, 10, 0, 86400),
        expected=Expected(
            verdict=_one_of(expect, "Verdict", place, "node", VERDICTS),
            action=_one_of(expect, "Action", place, "Replace", ACTIONS),
            detected_s=_number(expect, "DetectedWithin", place, 10, 0, 86400),
            resumed_s=_number(expect, "ResumedWithin", place, 60, 0, 86400),
        ),
    )


def _mapping(data: object, where: str, allowed: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: must be a mapping with {', '.join(sorted(allowed))}")
    for key in data:
        if key not in allowed:
            close = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {close[0]}?" if close else f"allowed are: {', '.join(sorted(allowed))}"
            raise ConfigError(f"{where}: {key} is not known", hint=hint)
    return data


def _text(data: Mapping[str, Any], key: str, where: str, *, default: str | None = None) -> str:
    value = data.get(key, default)
    if not isinstance(value, str | int | float) or isinstance(value, bool) or (default is None and not str(value)):
        raise ConfigError(f"{where}: {key}: must be a text")
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(data: Mapping[str, Any], key: str, where: str, default: float, low: float, high: float) -> float:
    value = data.get(key, default)
    if not _is_number(value) or not low <= value <= high:
        raise ConfigError(f"{where}: {key}: must be a number from {low:g} to {high:g}, got {value!r}")
    return float(value)


def _one_of(data: Mapping[str, Any], key: str, where: str, default: str, allowed: Sequence[str]) -> str:
    value = data.get(key, default)
    if value not in allowed:
        raise ConfigError(f"{where}: {key}: must be one of {', '.join(allowed)}, got {value!r}")
    return str(value)


# --- choosing ---------------------------------------------------------------------------------------------------


def choose_node(on: str, nodes: Sequence[Mapping[str, Any]], job_id: int, draw: float) -> str:
    """Return the node to break.

    Args:
        on: As ``PlannedFault.on``.
        nodes: The controller's answer to ``nodes``.
        job_id: The rehearsal's job.
        draw: A number from 0 to 1 (exclusive) from the plan's random numbers.
    Raises:
        ConfigError: if there is no such node now.
    """
    well = [n for n in nodes if n["state"] in ("in use", "idle", "spare")]
    kinds = {
        "job": [n["node"] for n in well if job_id in n["jobs"]],
        "idle": [n["node"] for n in well if n["state"] == "idle"],
        "spare": [n["node"] for n in well if n["state"] == "spare"],
        "any": [n["node"] for n in well],
    }
    names = kinds.get(on, [n["node"] for n in well if n["node"] == on])
    if not names:
        raise ConfigError(f"no worker is {on!r} now", hint=f"Node may be {', '.join(TARGETS)}, or a worker's name")
    return str(sorted(names)[int(draw * len(names))])


# --- judging ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What was seen after a fault.

    Attributes:
        at: When it was caused (aware UTC).
        node: The broken node.
        events: The controller's events since then, oldest first.
        attempts: The job's attempts, as ``hyperpod job show`` gives them.
        attempt_before: Number of the attempt that ran at the fault.
        reached: The last step that the attempt got to, by the job's own account.
        finding_at: When a finding about the node was opened; None while there is none.
    """

    at: datetime
    node: str
    events: Sequence[Mapping[str, Any]] = ()
    attempts: Sequence[Mapping[str, Any]] = ()
    attempt_before: int = 1
    finding_at: datetime | None = None
    reached: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How one fault went. ``problems`` is empty when all was as expected; ``was_tried``: it was caused at all."""

    fault: str
    node: str
    detected_s: float | None = None
    verdict: str = "none"
    action: str = "None"
    resumed_s: float | None = None
    lost_steps: int | None = None
    false_actions: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=())
    was_tried: bool = True

    @property
    def passed(self) -> bool:
        """True when all was as expected."""
        return not self.problems


def judge(planned: PlannedFault, seen: Seen) -> Outcome:
    """Compare what was seen with what was expected."""
    expected = planned.expected
    ended = next((a for a in seen.attempts if a["number"] == seen.attempt_before and a.get("cause")), None)
    later = next((a for a in seen.attempts if a["number"] > seen.attempt_before), None)
    verdict = "none" if ended is None else _verdict(str(ended["cause"]))
    done = [_ACTION_OF[e["kind"]] for e in seen.events if e["kind"] in _ACTION_OF and e["node"] == seen.node]
    action = max(("None", *done), key=ACTIONS.index)
    resumed_s = _after(seen.at, later.get("first_task_at")) if later is not None else None
    lost = None
    if ended is not None and later is not None and seen.reached is not None:
        lost = max(0, seen.reached - max(0, int(later.get("resume_step", -1))))
    outcome = Outcome(
        fault=planned.fault,
        node=seen.node,
        detected_s=_detected(seen),
        verdict=verdict,
        action=action,
        resumed_s=resumed_s,
        lost_steps=lost,
        false_actions=tuple(sorted({str(e["node"]) for e in seen.events if _is_false(e, seen.node)})),
    )
    return Outcome(**{**outcome.__dict__, "problems": tuple(_problems(expected, outcome))})


def _verdict(cause: str) -> str:
    return "node" if cause in _NODE_CAUSES else "application"


def _detected(seen: Seen) -> float | None:
    times = [
        datetime.fromisoformat(str(e["at"]))
        for e in seen.events
        if e["kind"] in _SIGNS and (e["node"] in ("", None, seen.node))
    ]
    if seen.finding_at is not None:
        times.append(seen.finding_at)
    return max(0.0, (min(times) - seen.at).total_seconds()) if times else None


def _is_false(event: Mapping[str, Any], node: str) -> bool:
    return event["kind"] in _ACTION_OF and bool(event["node"]) and event["node"] != node


def _after(at: datetime, text: object) -> float | None:
    return max(0.0, (datetime.fromisoformat(str(text)) - at).total_seconds()) if text else None


def _problems(expected: Expected, outcome: Outcome) -> list[str]:
    problems = []
    is_quiet = expected.verdict == "none" and expected.action == "None"
    if outcome.verdict != expected.verdict:
        problems.append(f"the verdict is {outcome.verdict}, expected is {expected.verdict}")
    if outcome.action != expected.action:
        problems.append(f"the action is {outcome.action}, expected is {expected.action}")
    if not is_quiet:
        if outcome.detected_s is None:
            problems.append("it was not noticed")
        elif outcome.detected_s > expected.detected_s:
            problems.append(
                f"it was noticed after {outcome.detected_s:.1f} s, at most {expected.detected_s:g} s are allowed"
            )
    if expected.verdict != "none":
        if outcome.resumed_s is None:
            problems.append("the job did not run again")
        elif outcome.resumed_s > expected.resumed_s:
            problems.append(
                f"the job ran again after {outcome.resumed_s:.1f} s, at most {expected.resumed_s:g} s are allowed"
            )
    problems += [f"{node} was repaired, too, and nothing was wrong with it" for node in outcome.false_actions]
    return problems


def is_settled(planned: PlannedFault, seen: Seen, now: datetime, *, is_job_running: bool) -> bool:
    """Say whether nothing more has to be waited for.

    The job runs again, and the expected action was seen, or the node's repair has ended with another one.
    """
    expected = planned.expected
    waited_s = (now - seen.at).total_seconds()
    if expected.verdict == "none" and expected.action == "None":
        return waited_s >= planned.settle_s
    outcome = judge(planned, seen)
    has_resumed = expected.verdict == "none" or outcome.resumed_s is not None
    is_repaired = any(e["kind"] == "NodeHealthy" and e["node"] == seen.node for e in seen.events)
    return has_resumed and is_job_running and (outcome.action == expected.action or is_repaired)
