"""The ledger of machines: their faults, what failed jobs have left on them, and how long they have been seen.

Owns which of it is written when. Reads the journal once, at the first look; after that memory and journal go together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hyperpod.core.attribution import is_nodes_own_fault
from hyperpod.core.job import JobRecord
from hyperpod.core.liveness import DEAD_CAUSE
from hyperpod.core.node import NodeView
from hyperpod.core.offenders import (
    WINDOW,
    Exposure,
    Fault,
    Offender,
    find_offenders,
    identity_of,
    is_same_fault,
    significant,
)
from hyperpod.core.suspicion import Mark, marks_of, suspicion_by_machine
from hyperpod.ports.store import Store

FLUSH_EVERY = timedelta(minutes=10)
"""How often the time in which machines were seen is written down: a lost piece of it changes no verdict."""

RECKON_EVERY = timedelta(minutes=1)


class Ledger:
    """What is remembered of machines. Used by the tick only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_read = False
        self._faults: list[Fault] = []
        self._marks: dict[tuple[int, int], tuple[Mark, ...]] = {}
        self._exposures: dict[str, Exposure] = {}
        self._open: dict[tuple[str, str, str], Fault] = {}
        self._flushed_at: datetime | None = None
        self._reckoned_at: datetime | None = None
        self._found: tuple[Offender, ...] = ()
        self._suspicion: Mapping[str, Mapping[int, float]] = {}

    def _read(self) -> None:
        if self._is_read:
            return
        self._faults = list(self._store.faults())
        for mark in self._store.marks():
            key = (mark.job_id, mark.attempt)
            self._marks[key] = (*self._marks.get(key, ()), mark)
        self._exposures = {e.machine: e for e in self._store.exposures()}
        self._is_read = True

    def look(self, nodes: Sequence[NodeView], now: datetime) -> None:
        """Take in what is seen: new faults, and that machines are there."""
        self._read()
        is_new = False
        for node in nodes:
            machine = node.instance_id
            if machine and node.heartbeat_at is not None:
                before = self._exposures.get(machine)
                is_new = is_new or before is None
                first = before.first_at if before else now
                self._exposures[machine] = Exposure(machine, node.name, first, now)
            if node.findings or node.repair is not None:
                self._take_faults(node, now)
        if is_new or self._flushed_at is None or now - self._flushed_at >= FLUSH_EVERY:
            self._flush(now)

    def _take_faults(self, node: NodeView, now: datetime) -> None:
        for f in node.findings:
            machine = f.instance_id or node.instance_id
            if machine and is_nodes_own_fault(f):
                at = f.since or now
                self._take(Fault(identity_of(f.device, machine), machine, node.name, f"{f.check}/{f.code}", at), now)
        repair = node.repair
        if repair is not None and repair.cause == DEAD_CAUSE and repair.instance_id:
            machine = repair.instance_id
            self._take(Fault(machine, machine, node.name, repair.cause, repair.since), now)

    def _take(self, fault: Fault, now: datetime) -> None:
        key = (fault.identity, fault.cause, fault.machine)
        seen = self._open.get(key)
        if seen is not None and (seen.at == fault.at or fault.at == now):
            return
        self._open[key] = fault
        if any(is_same_fault(known, fault) for known in self._faults):
            return
        self._store.put_fault(fault)
        self._faults.append(fault)
        self._reckoned_at = None

    def _flush(self, now: datetime) -> None:
        self._store.put_exposures(list(self._exposures.values()))
        self._store.forget_machines(now - WINDOW)
        since = now - WINDOW
        self._faults = [f for f in self._faults if f.at >= since]
        self._marks = {key: marks for key, marks in self._marks.items() if any(m.at >= since for m in marks)}
        self._exposures = {m: e for m, e in self._exposures.items() if e.last_at >= since}
        known = {(f.identity, f.cause, f.machine) for f in self._faults}
        self._open = {key: f for key, f in self._open.items() if key in known}
        self._flushed_at = now

    def save_marks(self, before: JobRecord | None, record: JobRecord, now: datetime) -> None:
        """Write down what the attempts of a job have left on machines, where their verdicts have changed."""
        self._read()
        old = {a.number: a.attribution for a in before.attempts} if before else {}
        for attempt in record.attempts:
            key = (record.job_id, attempt.number)
            if attempt.attribution is None or attempt.attribution == old.get(attempt.number):
                continue
            marks = marks_of(record.job_id, attempt, now)
            if marks != self._marks.get(key, ()):
                self._store.put_marks(record.job_id, attempt.number, marks)
                self._marks[key] = marks
                self._reckoned_at = None

    def suspicion(self, now: datetime) -> Mapping[str, Mapping[int, float]]:
        """Return what is left of all marks, by machine and job."""
        self._reckon(now)
        return self._suspicion

    def offenders(self, nodes: Sequence[NodeView], now: datetime) -> Mapping[str, Offender]:
        """Return the machines in service that fail too often, by instance id."""
        self._reckon(now)
        return significant(self._found, {n.name: n.instance_id for n in nodes}) if self._found else {}

    def account(self, now: datetime) -> tuple[Offender, ...]:
        """Return every machine that had a fault, the likeliest offender first."""
        self._reckon(now)
        return self._found

    def exposures(self) -> Sequence[Exposure]:
        """Return how long each machine has been seen."""
        self._read()
        return list(self._exposures.values())

    def _reckon(self, now: datetime) -> None:
        self._read()
        if self._reckoned_at is not None and now - self._reckoned_at < RECKON_EVERY:
            return
        self._found = find_offenders(self._faults, self._exposures.values(), now)
        self._suspicion = suspicion_by_machine((m for marks in self._marks.values() for m in marks), now)
        self._reckoned_at = now
