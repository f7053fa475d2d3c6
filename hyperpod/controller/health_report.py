"""What checks have done, or would have done, over a time: made of the journal's events and jobs. Pure.

For a check that is only observed the question is whether to let it act. Two facts help: how many of the nodes that it
named had a job end badly soon after, and how many were repaired for another reason (both speak for the check). For one
that acts: how many of its drains a person took back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hyperpod.controller.observe import REPAIR_BEGAN
from hyperpod.controller.observed import WOULD_HAVE_DRAINED
from hyperpod.core.job import ExitCause, JobRecord
from hyperpod.core.policy import Mode
from hyperpod.ports.store import Event

FINDING_CLEARED = "FindingCleared"
NODE_UNDRAINED = "NodeUndrained"

WINDOW_BEFORE = timedelta(minutes=10)
WINDOW_AFTER = timedelta(hours=24)
"""A job's end, or a repair, this near to a finding counts as being about the same trouble."""

_KINDS = frozenset({WOULD_HAVE_DRAINED, REPAIR_BEGAN, FINDING_CLEARED, NODE_UNDRAINED})
_NOT_BAD = frozenset({ExitCause.COMPLETED, ExitCause.USER_CANCELLED, ExitCause.PREEMPTED, ExitCause.TIME_LIMIT})


@dataclass
class _Row:
    times: list[tuple[datetime, str]] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)
    jobs_failed: set[str] = field(default_factory=set)
    repaired: set[str] = field(default_factory=set)
    taken_back: int = 0


def health_report(events: Sequence[Event], records: Iterable[JobRecord], since: datetime) -> list[dict[str, Any]]:
    """Return one row for each check, code and mode, the most frequent first.

    Args:
        events: Oldest first; those before ``since`` are left out.
        records: All jobs that are known.
        since: Beginning of the time that is looked at.
    """
    by_node: dict[str, list[Event]] = {}
    for event in events:
        if event.at >= since and event.kind in _KINDS:
            by_node.setdefault(event.node, []).append(event)
    ends = _bad_ends(records)
    rows: dict[tuple[str, str, Mode], _Row] = {}
    for node, own in by_node.items():
        for index, event in enumerate(own):
            named = _named(event)
            if named is None:
                continue
            check, code, mode, action = named
            cause = f"{check}/{code}"
            row = rows.setdefault((check, code, mode), _Row())
            row.times.append((event.at, node))
            row.actions[action] += 1
            if any(_is_near(at, event.at) for at in ends.get(node, ())):
                row.jobs_failed.add(node)
            if any(e.kind == REPAIR_BEGAN and _cause(e) != cause and _is_near(e.at, event.at) for e in own):
                row.repaired.add(node)
            if mode is Mode.ACT and _is_taken_back(own[index + 1 :], cause):
                row.taken_back += 1
    found = [_plain(key, row) for key, row in rows.items()]
    return sorted(found, key=lambda r: (-r["count"], r["check"], r["code"]))


def _bad_ends(records: Iterable[JobRecord]) -> dict[str, list[datetime]]:
    """Return when attempts ended badly, by node."""
    ends: dict[str, list[datetime]] = {}
    for record in records:
        for attempt in record.attempts:
            if attempt.ended_at is not None and attempt.cause is not None and attempt.cause not in _NOT_BAD:
                for node in attempt.nodes:
                    ends.setdefault(node, []).append(attempt.ended_at)
    return ends


def _cause(event: Event) -> str:
    return str((event.data or {}).get("cause", ""))


def _named(event: Event) -> tuple[str, str, Mode, str] | None:
    """Return check, code, mode and action of an event that counts; a person's order and a dead node are no check's."""
    data = event.data or {}
    if event.kind == WOULD_HAVE_DRAINED:
        return str(data.get("check", "")), str(data.get("code", "")), Mode.OBSERVE, str(data.get("would", ""))
    check, _, code = _cause(event).partition("/")
    if event.kind != REPAIR_BEGAN or check in ("admin", "node"):
        return None
    return check, code, Mode.ACT, str(data.get("action", "Drain"))


def _is_near(at: datetime, finding_at: datetime) -> bool:
    return finding_at - WINDOW_BEFORE <= at <= finding_at + WINDOW_AFTER


def _is_taken_back(later: Sequence[Event], cause: str) -> bool:
    """Say whether a person ended a repair: cleared its finding, or undrained the node before another one began."""
    for event in later:
        if event.kind == REPAIR_BEGAN:
            return False
        if event.kind == FINDING_CLEARED and _cause(event) == cause:
            return True
        if event.kind == NODE_UNDRAINED and (event.data or {}).get("by") == "person":
            return True
    return False


def _plain(key: tuple[str, str, Mode], row: _Row) -> dict[str, Any]:
    check, code, mode = key
    nodes = Counter(node for _, node in row.times)
    times = sorted(at for at, _ in row.times)
    return {
        "check": check,
        "code": code,
        "mode": mode.value,
        "count": len(row.times),
        "nodes": dict(sorted(nodes.items())),
        "action": row.actions.most_common(1)[0][0],
        "first": times[0].isoformat(),
        "last": times[-1].isoformat(),
        "nodes_with_failed_jobs": sorted(row.jobs_failed),
        "nodes_repaired_otherwise": sorted(row.repaired),
        "taken_back": row.taken_back if mode is Mode.ACT else None,
    }
