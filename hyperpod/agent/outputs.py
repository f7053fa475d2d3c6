"""What the end of a failed job's output says of the machine: the Neuron runtime's statuses. Remembers, reads nothing.

Users write there, so nothing of it takes a node out of work (``core.attribution``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hyperpod.core.finding import Finding
from hyperpod.health.parse_neuron import output_findings

KEPT_S = 600.0
"""Findings stay this long: the judgement over the attempt comes within minutes."""

_MOST_JOBS = 16


@dataclass(frozen=True)
class Output:
    """Whose output to read, and as whom."""

    job_id: int
    uid: int
    path: str


def parse_output(data: object) -> Output | None:
    """Read what the controller says of a job's output; None when it says nothing that can be read."""
    if not isinstance(data, Mapping):
        return None
    job_id, uid, path = (data.get(key) for key in ("job_id", "uid", "path"))
    if type(job_id) is not int or type(uid) is not int or uid < 0:
        return None
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        return None
    return Output(job_id, uid, path)


class JobOutputs:
    """Findings from the output of jobs.

    Args:
        boot_id, instance_id: Stamped on findings.
    """

    def __init__(self, boot_id: str, instance_id: str) -> None:
        self._stamp: dict[str, Any] = {"boot_id": boot_id, "instance_id": instance_id}
        self._jobs: dict[int, tuple[float, tuple[Finding, ...]]] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every one that is not forgotten."""
        return tuple(finding for _, found in self._jobs.values() for finding in found)

    def took(self, job_id: int, text: str, now: float, at: datetime) -> bool:
        """Take in the end of a job's output; return whether it says something."""
        found = tuple(replace(f, since=at, **self._stamp) for f in output_findings(text, job_id))
        self._jobs.pop(job_id, None)
        if found:
            self._jobs[job_id] = (now, found)
        while len(self._jobs) > _MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return bool(found)

    def forget(self, now: float) -> bool:
        """End what is old; return whether there was something."""
        old = [job_id for job_id, (then, _) in self._jobs.items() if now - then > KEPT_S]
        for job_id in old:
            del self._jobs[job_id]
        return bool(old)
