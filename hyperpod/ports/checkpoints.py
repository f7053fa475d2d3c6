"""Looking for checkpoints, as a port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Scan:
    """The outcome of looking for checkpoints. ``step`` is -1 when there is none, None when it could not be told."""

    path: str
    step: int | None
    set_aside: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Checkpoints(Protocol):
    """Looks into a job's checkpoint directory, as the job's user, within a deadline."""

    def scan(self, directory: str, user: str, *, set_aside: bool) -> Scan:
        """Return the newest complete checkpoint; never raises. ``set_aside`` also renames half-written ones."""
        ...
