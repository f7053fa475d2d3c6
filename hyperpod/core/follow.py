"""Follows a batch job from outside: its state, its attempts, and what it has written since the last look.

Pure. Owns the reading of ``scontrol show job`` for this purpose and the rule of when a job is over; asks nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FINAL: Final = frozenset(
    {
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
        "OUT_OF_MEMORY",
    }
)  # fmt: skip
OVERLAP: Final = 512
"""Bytes read again at every look: if they differ, the file was begun anew."""
_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z/:&]+)=")


@dataclass(frozen=True)
class JobLook:
    """What Slurm says of a job. An array or a job of several parts counts as one: over when all of it is."""

    state: str
    reason: str
    nodes: str
    restarts: int
    exit_code: int
    signal: int
    output: str
    is_array: bool

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def status(self) -> int:
        """The exit status of a program that ran the job: its own; 128 and the signal; 1 for any other bad end."""
        if self.state == "COMPLETED":
            return 0
        return self.exit_code or (128 + self.signal if self.signal else 1)


def parse_job(text: str) -> JobLook | None:
    """Read ``scontrol --oneliner show job``; None when it tells of no job."""
    records = [fields for line in text.splitlines() if "JobId" in (fields := _fields(line))]
    if not records:
        return None
    # The parts that are not over decide, then those that ended worst.
    order = sorted(records, key=lambda one: (one.get("JobState") in FINAL, one.get("JobState") == "COMPLETED"))
    first, main = order[0], records[0]
    code, _, signal = first.get("ExitCode", "0:0").partition(":")
    return JobLook(
        state=first.get("JobState", ""),
        reason=first.get("Reason", ""),
        nodes=first.get("NodeList", ""),
        restarts=_number(first.get("Restarts", "")),
        exit_code=_number(code),
        signal=_number(signal),
        output=main.get("StdOut", ""),
        is_array=any("ArrayTaskId" in one for one in records),
    )


def _fields(line: str) -> Mapping[str, str]:
    """Return the ``Name=value`` pairs of a line; values may hold spaces."""
    marks = list(_FIELD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    return {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=False)}


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def is_settled(shown: Mapping[str, Any] | None) -> bool:
    """Say whether the controller is done with a job that Slurm calls over; an armed one may begin again.

    Args:
        shown: What ``hyperpod job show`` answers; None when nobody knows.
    """
    return not shown or not shown.get("armed_by") or bool(shown.get("verdict"))


@dataclass
class Reader:
    """Puts a growing file together from looks at it. ``offset`` bytes of it have been seen."""

    offset: int = 0
    _tail: bytes = b""

    @property
    def start(self) -> int:
        """Where the next look should begin."""
        return self.offset - len(self._tail)

    def take(self, data: bytes) -> bytes:
        """Return what is new in ``data``, read from ``start`` on; a file that was begun anew is wholly new.

        Returns nothing for the look that finds out: what it read is not the file's beginning.
        """
        if not data.startswith(self._tail):
            self.offset, self._tail = 0, b""
            return b""
        fresh = data[len(self._tail) :]
        self.offset += len(fresh)
        self._tail = data[-OVERLAP:]
        return fresh
