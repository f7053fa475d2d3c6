"""The journal as a port: what was intended, done and seen, kept over restarts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from hyperpod.core.job import JobRecord
from hyperpod.core.node import Repair
from hyperpod.core.offenders import Exposure, Fault
from hyperpod.core.suspicion import Mark


@dataclass(frozen=True)
class Event:
    """Something that happened, for people and for the history. ``event_id`` grows by time."""

    event_id: int
    at: datetime
    kind: str
    message: str
    node: str = ""
    job_id: int | None = None
    uid: int | None = None
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Intent:
    """An action written down before it is done. ``key`` makes it happen once."""

    key: str
    kind: str
    target: str
    intended_at: datetime
    is_done: bool = False
    done_at: datetime | None = None
    error: str = ""


class Store(Protocol):
    """The controller's memory. Every write is durable when the method returns."""

    def intend(self, key: str, kind: str, target: str, now: datetime) -> Intent:
        """Write an intent down, or return the one that has this key already."""
        ...

    def finish(self, key: str, now: datetime, error: str = "") -> None:
        """Mark an intent done, or failed with its error (which lets it be tried again)."""
        ...

    def unfinished(self) -> Sequence[Intent]:
        """Return intents that were begun and not finished, oldest first."""
        ...

    def put_job(self, record: JobRecord) -> None: ...

    def job(self, job_id: int) -> JobRecord | None: ...

    def jobs(self) -> Sequence[JobRecord]: ...

    def put_repair(self, repair: Repair) -> None: ...

    def drop_repair(self, node: str) -> None: ...

    def repairs(self) -> Sequence[Repair]: ...

    def add_event(
        self,
        kind: str,
        message: str,
        now: datetime,
        *,
        node: str = "",
        job_id: int | None = None,
        uid: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Event: ...

    def events(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        job_id: int | None = None,
        node: str = "",
        seen_by: int | None = None,
        own_jobs: Collection[int] = (),
    ) -> Sequence[Event]:
        """Return events, oldest first. With ``seen_by`` (a uid) none about other users' jobs; ``own_jobs`` are the
        jobs of that user, for events that were written without a uid."""
        ...

    def event_counts(self) -> Mapping[str, int]:
        """Return how many events of each kind there have been, pruned ones included."""
        ...

    def put_fault(self, fault: Fault) -> None:
        """Keep a fault of a machine; the same one twice is kept once."""
        ...

    def faults(self) -> Sequence[Fault]:
        """Return all faults kept, oldest first."""
        ...

    def put_marks(self, job_id: int, attempt: int, marks: Sequence[Mark]) -> None:
        """Keep what an attempt has left on machines, in the place of what was kept of it before."""
        ...

    def marks(self) -> Sequence[Mark]:
        """Return all marks kept, oldest first."""
        ...

    def put_exposures(self, exposures: Sequence[Exposure]) -> None:
        """Keep from when to when machines have been seen, by machine."""
        ...

    def exposures(self) -> Sequence[Exposure]:
        """Return how long each machine has been seen, by its id."""
        ...

    def forget_machines(self, before: datetime) -> None:
        """Drop faults, marks and exposures that ended before a moment."""
        ...

    def set_value(self, key: str, value: str) -> None:
        """Keep a small named value (breaker reset, saved spare assignment)."""
        ...

    def value(self, key: str) -> str | None: ...
