"""Soft eviction: which nodes a job's next attempt is kept from, at no cost if the suspicion is wrong. Only computes.

Owns the choice for one next attempt. Nothing is drained for it, no other job is kept away, and it gives way as soon as
the job could not start otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod.core.attribution import SUSPICION_COUNTS
from hyperpod.core.job import Attempt, JobRecord, JobView
from hyperpod.core.liveness import fatal_findings
from hyperpod.core.node import Availability, NodeView
from hyperpod.core.snapshot import Snapshot
from hyperpod.core.suspicion import suspicion_of
from hyperpod.core.verdict import Kind


@dataclass(frozen=True)
class SoftEviction:
    """What the next attempt avoids.

    ``nodes`` are left out now; ``wanted`` accused ones that could not be left out for lack of room, the worst first.
    """

    nodes: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


NOTHING = SoftEviction()


def soft_eviction(record: JobRecord, view: JobView, snapshot: Snapshot, hard: tuple[str, ...]) -> SoftEviction:
    """Choose the nodes that the next attempt of a job is kept from, as far as idle nodes allow.

    Pure. Nodes that something points at come first, the worst first; when the whole last set can be left out, it is:
    the same failure on another set then convicts the program. ``hard`` are nodes that are excluded anyway.
    """
    attempt = record.current
    if attempt is None or attempt.ended_at is None or attempt.attribution is None:
        return NOTHING
    verdict = attempt.attribution
    if verdict.kind is Kind.APPLICATION:
        return NOTHING
    mine = _still_there(attempt, snapshot)
    out = {*hard, *view.required}
    room = {
        n.name
        for n in snapshot.nodes
        if n.partition == view.partition and n.name not in out and _is_free(n, view.job_id, attempt)
    }
    accused = {name: score for name, score in verdict.suspects.items() if name in mine}
    accused |= {name: 1.0 for name in verdict.nodes if name in mine}
    for name in room - mine:
        # Others' failures have made it suspect: not worth a try for a job that has just failed.
        total = suspicion_of(snapshot.suspicion, snapshot.by_name[name].instance_id)
        if total >= SUSPICION_COUNTS:
            accused[name] = total
    for name in accused.keys() & mine:
        accused[name] += suspicion_of(snapshot.suspicion, snapshot.by_name[name].instance_id, except_job=record.job_id)
    ranked = sorted((n for n in accused if n not in out), key=lambda n: (-accused[n], n))
    left = len(room)
    chosen: list[str] = []
    for name in ranked:
        left_then = left - (1 if name in room else 0)
        if left_then < view.node_count:
            continue
        chosen.append(name)
        left = left_then
    is_open = verdict.kind is Kind.UNKNOWN and attempt.cause is not None and attempt.cause.is_applications
    rest = [n for n in sorted(mine) if is_open and n not in chosen and n not in out]
    if not set(rest) & set(ranked) and left - sum(1 for n in rest if n in room) >= view.node_count:
        chosen += rest
    return SoftEviction(tuple(sorted(chosen)), tuple(n for n in ranked if n not in chosen))


def spare_for(wanted: tuple[str, ...], view: JobView, snapshot: Snapshot) -> NodeView | None:
    """Return the least suspect spare that may stand in for a node which a job should be kept from; None without one."""
    if not wanted:
        return None
    groups = {snapshot.by_name[n].group for n in wanted if n in snapshot.by_name}
    spares = [
        n
        for n in snapshot.nodes
        if n.group in groups and n.partition == view.partition and not n.in_partition and _works(n) and not n.jobs
    ]
    return min(spares, key=lambda n: (suspicion_of(snapshot.suspicion, n.instance_id), n.name), default=None)


def _still_there(attempt: Attempt, snapshot: Snapshot) -> set[str]:
    """Return the nodes of an attempt whose machines are still the same."""
    return {
        name
        for name, machine in zip(attempt.nodes, attempt.instance_ids, strict=False)
        if machine and name in snapshot.by_name and snapshot.by_name[name].instance_id == machine
    }


def _works(node: NodeView) -> bool:
    is_up = node.availability is Availability.UP and not node.is_drained and node.is_responding
    return is_up and node.is_ready and node.repair is None and not fatal_findings(node)


def _is_free(node: NodeView, job_id: int, attempt: Attempt) -> bool:
    """Say whether a job that waits could have the node at once; its own last ones are about to be free."""
    if not _works(node) or not node.in_partition:
        return False
    if any(other != job_id for other in node.jobs):
        return False
    return not node.is_completing or node.name in attempt.nodes
