"""A journal in memory, with the rules of the real one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hyperpod.core.job import JobRecord
from hyperpod.core.node import Repair
from hyperpod.core.offenders import Exposure, Fault
from hyperpod.core.suspicion import Mark
from hyperpod.errors import StoreError
from hyperpod.ports.store import Event, Intent


class MemoryStore:
    """Implements ``ports.store.Store``. ``next_error`` is raised by the next write and then forgotten."""

    def __init__(self) -> None:
        self.next_error: Exception | None = None
        self._intents: dict[str, Intent] = {}
        self._attempts: dict[str, int] = {}
        self._jobs: dict[int, JobRecord] = {}
        self._repairs: dict[str, Repair] = {}
        self._events: list[Event] = []
        self._values: dict[str, str] = {}
        self._faults: dict[tuple[str, str, datetime], Fault] = {}
        self._marks: dict[tuple[int, int, str], Mark] = {}
        self._exposures: dict[str, Exposure] = {}

    def intend(self, key: str, kind: str, target: str, now: datetime) -> Intent:
        self._may_fail()
        before = self._intents.get(key)
        if before is None:
            self._intents[key], self._attempts[key] = Intent(key, kind, target, now), 1
        elif not before.is_done and before.done_at is not None:
            self._intents[key] = replace(before, intended_at=now, done_at=None, error="")
            self._attempts[key] += 1
        return self._intents[key]

    def finish(self, key: str, now: datetime, error: str = "") -> None:
        self._may_fail()
        if key not in self._intents:
            raise StoreError(f"nothing was intended under the key {key}")
        self._intents[key] = replace(self._intents[key], is_done=not error, done_at=now, error=error)

    def unfinished(self) -> Sequence[Intent]:
        return sorted((i for i in self._intents.values() if i.done_at is None), key=lambda i: i.intended_at)

    def attempts(self, key: str) -> int:
        return self._attempts.get(key, 0)

    def put_job(self, record: JobRecord) -> None:
        self._may_fail()
        # Through plain values, so that a record which the real journal could not keep fails here too.
        self._jobs[record.job_id] = JobRecord.from_dict(record.to_dict())

    def job(self, job_id: int) -> JobRecord | None:
        return self._jobs.get(job_id)

    def jobs(self) -> Sequence[JobRecord]:
        return [self._jobs[job_id] for job_id in sorted(self._jobs)]

    def put_repair(self, repair: Repair) -> None:
        self._may_fail()
        self._repairs[repair.node] = Repair.from_dict(repair.to_dict())

    def drop_repair(self, node: str) -> None:
        self._may_fail()
        self._repairs.pop(node, None)

    def repairs(self) -> Sequence[Repair]:
        return [self._repairs[node] for node in sorted(self._repairs)]

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
    ) -> Event:
        self._may_fail()
        event = Event(len(self._events) + 1, now, kind, message, node, job_id, uid, data)
        self._events.append(event)
        return event

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
        found = (
            event
            for event in self._events
            if event.event_id > after and job_id in (None, event.job_id) and node in ("", event.node)
            if seen_by is None
            or event.job_id is None
            or event.uid == seen_by
            or (event.uid is None and event.job_id in own_jobs)
        )
        events = list(found)
        return events[:limit] if after else events[len(events) - min(limit, len(events)) :]

    def event_counts(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for event in self._events:
            counts[event.kind] = counts.get(event.kind, 0) + 1
        return counts

    def last_event_id(self) -> int:
        return len(self._events)

    def put_fault(self, fault: Fault) -> None:
        self._may_fail()
        self._faults.setdefault((fault.identity, fault.cause, fault.at), fault)

    def faults(self) -> Sequence[Fault]:
        return sorted(self._faults.values(), key=lambda f: (f.at, f.identity, f.cause))

    def put_marks(self, job_id: int, attempt: int, marks: Sequence[Mark]) -> None:
        self._may_fail()
        self._marks = {key: m for key, m in self._marks.items() if key[:2] != (job_id, attempt)}
        self._marks |= {(job_id, attempt, m.machine): m for m in marks}

    def marks(self) -> Sequence[Mark]:
        return sorted(self._marks.values(), key=lambda m: (m.at, m.job_id, m.attempt, m.machine))

    def put_exposures(self, exposures: Sequence[Exposure]) -> None:
        self._may_fail()
        self._exposures |= {e.machine: e for e in exposures}

    def exposures(self) -> Sequence[Exposure]:
        return [self._exposures[machine] for machine in sorted(self._exposures)]

    def forget_machines(self, before: datetime) -> None:
        self._may_fail()
        self._faults = {key: f for key, f in self._faults.items() if f.at >= before}
        self._marks = {key: m for key, m in self._marks.items() if m.at >= before}
        self._exposures = {key: e for key, e in self._exposures.items() if e.last_at >= before}

    def set_value(self, key: str, value: str) -> None:
        self._may_fail()
        self._values[key] = value

    def value(self, key: str) -> str | None:
        return self._values.get(key)

    def close(self) -> None:
        """Nothing to close."""

    def _may_fail(self) -> None:
        error, self.next_error = self.next_error, None
        if error is not None:
            raise error
