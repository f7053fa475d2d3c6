"""Which jobs are on this node now, from the plugin's reports and from a look at the processes now and then. Pure.

The plugin tells when a step begins and ends. That a job has ended is not told: between two steps of a script a node may
have none of its steps. So when the last known step has ended the processes are looked at once, a moment later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

GRACE_S = 2.0
"""slurmstepd tidies up after a step's end, and a script's next step often follows at once."""

LOOK_GAP_S = 5.0
"""Looks at the processes are at least this far apart, however many short jobs there are."""


@dataclass
class _Resident:
    restart_count: int
    heard_at: float
    steps: set[int] = field(default_factory=set)


class Residents:
    """Keeps the jobs of this node.

    ``looks_at`` is when the processes should be looked at next; None while nothing asks for it.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, _Resident] = {}
        self._is_known = False
        self._looked_at: float | None = None
        self.looks_at: float | None = None

    @property
    def jobs(self) -> frozenset[int] | None:
        """The jobs that are here; None until the processes have been looked at once."""
        return frozenset(self._jobs) if self._is_known else None

    def step_began(self, job_id: int, restart_count: int, step_id: int, now: float) -> bool:
        """A step of a job has begun; return whether it is the first sign of this attempt here."""
        known = self._jobs.get(job_id)
        is_new = known is None or (known.restart_count >= 0 and known.restart_count < restart_count)
        if is_new or known is None:
            known = self._jobs[job_id] = _Resident(restart_count, now)
        known.restart_count = max(known.restart_count, restart_count)
        known.steps.add(step_id)
        known.heard_at = now
        return is_new

    def step_ended(self, job_id: int, step_id: int, now: float) -> None:
        """A step of a job has ended here."""
        known = self._jobs.get(job_id)
        if known is None:
            return
        known.steps.discard(step_id)
        known.heard_at = now
        if not known.steps:
            soon = max(now + GRACE_S, (self._looked_at or now - LOOK_GAP_S) + LOOK_GAP_S)
            self.looks_at = soon if self.looks_at is None else min(self.looks_at, soon)

    def looks(self, now: float) -> None:
        """The processes are being looked at now."""
        self._looked_at, self.looks_at = now, None

    def saw(self, jobs: Collection[int], asked_at: float) -> tuple[int, ...]:
        """Take in which jobs have a slurmstepd; return those that have ended since.

        Args:
            jobs: What was seen.
            asked_at: When the look began; what was heard later is newer.
        """
        ended = tuple(sorted(j for j, known in self._jobs.items() if j not in jobs and known.heard_at < asked_at))
        for job_id in ended:
            del self._jobs[job_id]
        for job_id in jobs:
            # Its attempt is not known: it was here before the agent, or without our plugin.
            self._jobs.setdefault(job_id, _Resident(-1, asked_at))
        self._is_known = True
        return ended
