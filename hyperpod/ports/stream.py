"""Programs that go on and print a line a period, as a port: what a check reads of them without ever waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Told:
    """What a program has printed since it was asked for last.

    Attributes:
        lines: Whole lines, oldest first; only the newest few are kept.
        age_s: Seconds since its last line; None when it has printed none in its life.
        problem: Why there is no program now: how it ended, or why it could not be started. Empty while it runs.
        lost: Lines that were dropped because nobody asked for them.
    """

    lines: tuple[str, ...] = ()
    age_s: float | None = None
    problem: str = ""
    lost: int = 0


class Streams(Protocol):
    """Programs that run beside us. Each is started when it is asked for, and again, later each time, when it ends."""

    def read(self, argv: Sequence[str]) -> Told:
        """Return what the program with these arguments has printed since the last call. Never blocks."""
        ...


class NoStreams:
    """Where no program may be started."""

    def read(self, argv: Sequence[str]) -> Told:
        """See ``Streams``."""
        return Told(problem="no program may be started here")
