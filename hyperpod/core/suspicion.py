"""Suspicion: what failures leave on machines, adding up over attempts and jobs and fading over 28 days. Only computes.

Owns how it fades and adds up. Kept by physical machine (instance id), so that a replaced one begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from hyperpod.core.job import Attempt
from hyperpod.core.verdict import Kind

MEMORY = timedelta(days=28)
"""After this long nothing is left of a suspicion, or of a fault."""


@dataclass(frozen=True)
class Mark:
    """One failure that points at a machine: which job's, how strongly (0 to 1), and when."""

    machine: str
    node: str
    job_id: int
    attempt: int
    weight: float
    at: datetime


def marks_of(job_id: int, attempt: Attempt, now: datetime) -> tuple[Mark, ...]:
    """Return what an attempt leaves on its machines: nothing where the application or a plain fact explains it."""
    verdict = attempt.attribution
    if verdict is None or verdict.kind is Kind.APPLICATION:
        return ()
    machines = dict(zip(attempt.nodes, attempt.instance_ids, strict=False))
    at = attempt.ended_at or now
    return tuple(
        Mark(machines[name], name, job_id, attempt.number, round(weight, 3), at)
        for name, weight in sorted(verdict.suspects.items())
        if machines.get(name) and weight > 0
    )


def suspicion_by_machine(marks: Iterable[Mark], now: datetime) -> Mapping[str, Mapping[int, float]]:
    """Add marks up by machine and job; each fades in a straight line to nothing after ``MEMORY``."""
    found: dict[str, dict[int, float]] = {}
    for mark in marks:
        age = now - mark.at
        left = mark.weight * (1.0 - max(age, timedelta(0)) / MEMORY)
        if left > 0:
            jobs = found.setdefault(mark.machine, {})
            jobs[mark.job_id] = jobs.get(mark.job_id, 0.0) + left
    return found


def suspicion_of(
    by_machine: Mapping[str, Mapping[int, float]], machine: str, *, except_job: int | None = None
) -> float:
    """Return the suspicion on a machine. ``except_job`` leaves one job out, which is no witness beside itself."""
    jobs = by_machine.get(machine)
    if not jobs:
        return 0.0
    return sum(weight for job_id, weight in sorted(jobs.items()) if job_id != except_job)
