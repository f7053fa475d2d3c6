"""What agents have told, between two ticks and over them.

Owns the latest word of every node and the reports about running attempts. The network's threads put messages into
the inbox; only the tick takes them out, so nothing else needs a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from hyperpod.controller.reasons import SeenReason
from hyperpod.core.backoff import delay_after
from hyperpod.core.finding import Finding, Severity
from hyperpod.core.job import TaskExit
from hyperpod.core.majority import Judged
from hyperpod.core.messages import Heartbeat
from hyperpod.core.notices import Notices
from hyperpod.core.snapshot import JobFacts

CLOSED_KEPT = timedelta(minutes=15)
"""How long a finding that has closed is remembered: attribution looks ten minutes back, and its own takes five."""

CLOSED_MOST = 50

OFFSET_FORGETS = 0.05
"""Share by which a better measurement of a clock's offset is given up with each heartbeat: clocks drift."""

SHUTDOWN_TAKES_AT_MOST = timedelta(seconds=120)
"""systemd ends what does not stop by itself after 90 s."""


@dataclass(frozen=True)
class Report:
    """One message for the tick: what it is, when it came, and its content.

    ``on_taken`` is called when the tick has taken it in, journal included: only then may its sender forget it.
    """

    kind: str
    at: datetime
    data: Mapping[str, Any]
    on_taken: Callable[[], None] | None = None


class Inbox:
    """A queue with a bell: the tick sleeps on it until somebody rings or its time has come."""

    def __init__(self, limit: int = 100_000) -> None:
        self._condition = threading.Condition()
        self._reports: list[Report] = []
        self._is_rung = False
        self._limit = limit

    def put(self, report: Report, *, wake: bool = True) -> bool:
        """Add a report; False when the queue is full and the sender should try again."""
        with self._condition:
            if len(self._reports) >= self._limit:
                return False
            self._reports.append(report)
            if wake:
                self._is_rung = True
                self._condition.notify()
            return True

    def ring(self) -> None:
        """Wake the tick."""
        with self._condition:
            self._is_rung = True
            self._condition.notify()

    def wait(self, timeout_s: float) -> None:
        """Sleep until the bell rings, at most ``timeout_s``."""
        with self._condition:
            if not self._is_rung:
                self._condition.wait(timeout_s)
            self._is_rung = False

    def take(self) -> list[Report]:
        """Return and forget all reports, oldest first."""
        with self._condition:
            reports, self._reports = self._reports, []
            return reports


@dataclass(frozen=True)
class NodeWord:
    """The latest word of one node's agent, and of those asked about the node."""

    heartbeat_at: datetime | None = None
    instance_id: str = ""
    boot_id: str = ""
    sequence: int = 0
    is_ready: bool = False
    not_ready_because: str = ""
    findings: tuple[Finding, ...] = ()
    closed: tuple[tuple[datetime, Finding], ...] = ()
    inventory: Mapping[str, str] = field(default_factory=dict)
    inventory_since: Mapping[str, datetime] = field(default_factory=dict)
    clock_offset_s: float = 0.0
    wants: tuple[str, ...] = ()
    owes_deep: bool = False
    is_reachable: bool | None = None
    reachable_at: datetime | None = None
    said_goodbye_at: datetime | None = None


def _closed(word: NodeWord, beat: Heartbeat, at: datetime) -> tuple[tuple[datetime, Finding], ...]:
    """Return the findings that have closed lately, with those that this heartbeat does not name any more."""
    open_now = {f.key for f in beat.findings}
    left = [(when, f) for when, f in word.closed if at - when <= CLOSED_KEPT and f.key not in open_now]
    left += [(at, f) for f in word.findings if f.key not in open_now]
    return tuple(left[-CLOSED_MOST:])


def _offset(before: float | None, measured: float) -> float:
    """Return how far a node's clock is ahead. Time on the way only makes it look less: the largest is the truest."""
    if before is None or measured >= before:
        return measured
    return before + (measured - before) * OFFSET_FORGETS


@dataclass(frozen=True)
class WrongClock:
    """How far a machine's clock is ahead, and when its messages were refused for that."""

    COUNTS_AFTER: ClassVar = timedelta(seconds=5)
    """One old message may have been held up on its way."""
    GONE_AFTER: ClassVar = timedelta(seconds=30)

    ahead_s: float
    first_at: datetime
    last_at: datetime

    def finding(self, now: datetime) -> Finding | None:
        """Return what is to be shown of it; None when it is over or not yet sure."""
        if now - self.last_at > self.GONE_AFTER or self.last_at - self.first_at < self.COUNTS_AFTER:
            return None
        direction = "ahead of" if self.ahead_s > 0 else "behind"
        text = f"its messages are refused: its clock is {abs(self.ahead_s):.0f} s {direction} the head node's"
        return Finding("munge", "ClockOffset", Severity.WARN, text, since=self.first_at)


@dataclass
class Memory:
    """Everything told by agents that the next snapshot needs."""

    started_at: datetime
    nodes: dict[str, NodeWord] = field(default_factory=dict)
    facts: dict[int, JobFacts] = field(default_factory=dict)
    known_exits: dict[int, set[TaskExit]] = field(default_factory=dict)
    refusals: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    clocks: dict[str, WrongClock] = field(default_factory=dict)
    """By address: machines whose messages are refused because of their time."""
    env_given: dict[int, list[tuple[datetime, int]]] = field(default_factory=dict)
    """When the environment of each of a job's newest attempts was given, with the attempt's restart count."""
    reasons: dict[str, SeenReason] = field(default_factory=dict)
    """Reasons that Slurm itself has given, by node."""
    inventories: int = 0
    """Grows whenever a node has counted something new."""
    majority: tuple[tuple[Any, ...], Judged] | None = None
    """The last comparison of the groups, with what it was made of."""
    observed: frozenset[tuple[str, ...]] | None = None
    """Open findings of checks that are only observed, see ``controller.observed``; None until the journal was read."""
    notices: Notices = field(default_factory=Notices)
    """What the provider said last of its machines."""
    are_notices_known: bool = False
    ask_notices_at: datetime | None = None
    """When the provider is asked again; None: at once."""
    notices_failed: int = 0
    cleared_notices: set[tuple[str, str, tuple[str, str, str]]] = field(default_factory=set)
    """Findings of the provider that a person has cleared: node, machine, finding."""
    slots: dict[str, datetime | None] | None = None
    """Slots of the last look, with when they were added; None for those of the first look, and before it."""

    def sees_clock(self, address: str, ahead_s: float, at: datetime) -> None:
        """Take in that a message of this address was refused because of its time."""
        before = self.clocks.get(address)
        goes_on = before is not None and at - before.last_at <= WrongClock.GONE_AFTER
        self.clocks[address] = WrongClock(ahead_s, before.first_at if before is not None and goes_on else at, at)

    def sees_slots(self, names: Collection[str], at: datetime) -> None:
        """Take in which slots there are; what is known of one that is gone is forgotten: its name may come again."""
        before = self.slots
        self.slots = {name: at if before is not None else None for name in names}
        for name in before or ():
            if name in self.slots:
                self.slots[name] = (before or {})[name]
            else:
                self.nodes.pop(name, None)
                self.reasons.pop(name, None)

    def heard(self, beat: Heartbeat, at: datetime) -> bool:
        """Take a heartbeat in; say whether it tells something new (beyond being alive).

        One that is older than what this boot's agent has said already is ignored.
        """
        before = self.nodes.get(beat.node, NodeWord())
        is_same_boot = before.boot_id == beat.boot_id and before.instance_id == beat.instance_id
        # An agent that counts from the beginning again has been restarted; any other lower number is a late beat.
        if is_same_boot and 5 < beat.sequence < before.sequence:
            return False
        inventory, since = self._counted(before if is_same_boot else NodeWord(), beat, at)
        self.nodes[beat.node] = replace(
            before,
            heartbeat_at=at,
            instance_id=beat.instance_id,
            boot_id=beat.boot_id,
            sequence=beat.sequence,
            is_ready=beat.is_ready,
            not_ready_because=beat.not_ready_because,
            findings=beat.findings,
            wants=beat.wants,
            owes_deep=beat.owes_deep,
            closed=_closed(before, beat, at) if before.instance_id == beat.instance_id else (),
            clock_offset_s=_offset(before.clock_offset_s if is_same_boot else None, beat.sent_at - at.timestamp()),
            inventory=inventory,
            inventory_since=since,
            said_goodbye_at=before.said_goodbye_at if is_same_boot and not self._stayed(before, at) else None,
        )
        return (
            not is_same_boot
            or before.is_ready != beat.is_ready
            or before.wants != beat.wants
            or before.owes_deep != beat.owes_deep
            or {f.key: f.severity for f in before.findings} != {f.key: f.severity for f in beat.findings}
        )

    def _counted(
        self, before: NodeWord, beat: Heartbeat, at: datetime
    ) -> tuple[Mapping[str, str], Mapping[str, datetime]]:
        """Return what the node has counted, and since when each value holds."""
        if before is not self.nodes.get(beat.node) or beat.inventory is not None:
            # Another boot or machine makes what was counted before void.
            self.inventories += 1
        if beat.inventory is None:
            return before.inventory, before.inventory_since
        since = {
            key: before.inventory_since.get(key, at) if before.inventory.get(key) == value else at
            for key, value in beat.inventory.items()
        }
        return beat.inventory, since

    @staticmethod
    def _stayed(word: NodeWord, at: datetime) -> bool:
        """Say whether a machine that announced its shutdown is still heard so much later that it was called off."""
        return word.said_goodbye_at is not None and at - word.said_goodbye_at > SHUTDOWN_TAKES_AT_MOST

    def probed(self, node: str, is_reachable: bool, at: datetime) -> None:
        """Take a second opinion in."""
        before = self.nodes.get(node, NodeWord())
        self.nodes[node] = replace(before, is_reachable=is_reachable, reachable_at=at)

    def said_goodbye(self, node: str, at: datetime) -> None:
        """An orderly shutdown has begun on the node."""
        self.nodes[node] = replace(self.nodes.get(node, NodeWord()), said_goodbye_at=at)

    def job_facts(self, job_id: int) -> JobFacts:
        """Return what is known of a job's present attempt."""
        return self.facts.get(job_id, JobFacts())

    def gave_env(self, job_id: int, restart_count: int, at: datetime) -> None:
        """An attempt was given its environment; told again, the first time counts."""
        given = self.env_given.setdefault(job_id, [])
        if all(count != restart_count for _, count in given):
            given.append((at, restart_count))
            del given[:-4]

    def attempt_at(self, job_id: int, at: datetime | None) -> int:
        """Return the restart count of the attempt that ran at a moment; of the newest without one."""
        given = self.env_given.get(job_id, [])
        return max((count for begun, count in given if at is None or begun <= at), default=0)

    def task_started(self, job_id: int, restart_count: int, at: datetime) -> bool:
        """Take in that a task of an attempt has been started; say whether it is the attempt's first."""
        facts = self.job_facts(job_id)
        if restart_count in facts.first_tasks:
            return False
        self.facts[job_id] = replace(facts, first_tasks={**facts.first_tasks, restart_count: at})
        return True

    def task_ended(self, task: TaskExit, offset_s: float = 0.0) -> bool:
        """Take a task's end in; say whether it was new (the same report may come twice).

        ``offset_s`` is how much the node's clock is ahead of ours.
        """
        known = self.known_exits.setdefault(task.job_id, set())
        if task in known:
            return False
        known.add(task)
        # On the clock of this machine, so that exits of different nodes can be ordered.
        raw, task = task, replace(task, time=task.time - offset_s)
        facts = self.job_facts(task.job_id)
        # Only the newest attempts matter; a job of many short steps must not grow without end.
        kept = [e for e in facts.exits if e.restart_count >= task.restart_count - 1][-2000:]
        self.facts[task.job_id] = replace(facts, exits=(*kept, task))
        if len(known) > 5000:
            # Of the oldest a second report would be taken for a new one, which does no harm: it changes no order.
            self.known_exits[task.job_id] = {raw}
        return True

    def step_killed(self, job_id: int, restart_count: int, step_id: int) -> None:
        """Remember that we ended a step."""
        facts = self.job_facts(job_id)
        self.facts[job_id] = replace(facts, killed_steps=facts.killed_steps | {(restart_count, step_id)})

    def resumes(self, job_id: int, restart_count: int, path: str, step: int) -> None:
        """Take in which checkpoint an attempt was given; the attempt itself may not have been seen yet."""
        facts = self.job_facts(job_id)
        if restart_count not in facts.resumes:
            self.facts[job_id] = replace(facts, resumes={**facts.resumes, restart_count: (path, step)})

    def refused(
        self,
        key: str,
        at: datetime,
        *,
        first: timedelta = timedelta(seconds=1),
        most: timedelta = timedelta(minutes=1),
    ) -> None:
        """An action was refused: the next try waits, longer each time."""
        count = self.refusals.get(key, (0, at))[0] + 1
        delay = delay_after(count, first=first, most=most)
        self.refusals[key] = (count, at + delay)

    def must_wait(self, key: str, now: datetime) -> bool:
        """Say whether an action was refused so recently that it is not tried again yet."""
        refusal = self.refusals.get(key)
        return refusal is not None and now < refusal[1]

    def scanned(self, job_id: int, attempt: int, step: int | None) -> None:
        """Take in the result of a checkpoint scan after an attempt's end."""
        self.facts[job_id] = replace(self.job_facts(job_id), scanned_attempt=attempt, scan_step=step)

    def forget_job(self, job_id: int) -> None:
        """The job is over."""
        self.facts.pop(job_id, None)
        self.env_given.pop(job_id, None)
        self.known_exits.pop(job_id, None)
