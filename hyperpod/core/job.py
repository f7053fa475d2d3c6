"""Jobs and their attempts.

Owns the job view (what the workload manager says now) and the job record (what we remember of it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from hyperpod.core.verdict import Verdict


class JobStatus(StrEnum):
    """State of a job as the workload manager says it."""

    PENDING = "pending"
    CONFIGURING = "configuring"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"
    DEADLINE = "deadline"
    BOOT_FAIL = "boot_fail"
    UNKNOWN = "unknown"

    @property
    def is_over(self) -> bool:
        """True when the attempt has ended, whatever the way."""
        return self not in _NOT_OVER


_NOT_OVER = frozenset(
    {JobStatus.PENDING, JobStatus.CONFIGURING, JobStatus.RUNNING, JobStatus.SUSPENDED, JobStatus.UNKNOWN}
)


class ExitCause(StrEnum):
    """Why an attempt ended."""

    COMPLETED = "Completed"
    NODE_DEAD = "NodeDead"
    NODE_UNHEALTHY = "NodeUnhealthy"
    APPLICATION = "ApplicationFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    TIME_LIMIT = "TimeLimit"
    USER_CANCELLED = "UserCancelled"
    PREEMPTED = "Preempted"
    LAUNCH_FAILED = "LaunchFailed"
    GONE = "JobGone"
    OTHER = "Other"

    @property
    def is_applications(self) -> bool:
        """True when the program itself is the likely cause; such failures need progress to go on."""
        return self in (ExitCause.APPLICATION, ExitCause.OUT_OF_MEMORY)


@dataclass(frozen=True)
class JobView:
    """One job at one moment.

    ``job_id`` is the id of the array task or het component itself; times are aware UTC or None.
    ``exit_code`` and ``exit_signal`` are those of the batch script. ``pending_reason`` is Slurm's word
    (``Resources``, ``BeginTime``, …). ``excluded`` and ``required`` are expanded node names.
    """

    job_id: int
    user: str = ""
    uid: int = -1
    name: str = ""
    partition: str = ""
    status: JobStatus = JobStatus.UNKNOWN
    is_completing: bool = False
    is_batch: bool = True
    is_held: bool = False
    is_requeue_allowed: bool = True
    pending_reason: str = ""
    pending_message: str = ""
    exit_code: int = 0
    exit_signal: int = 0
    restart_count: int = 0
    nodes: tuple[str, ...] = ()
    node_count: int = 1
    batch_host: str = ""
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    begin_at: datetime | None = None
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    priority: int = 0
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    dependency: str = ""
    output: str = ""


@dataclass(frozen=True)
class TaskExit:
    """One task's end, as the plugin saw it. ``time`` is epoch seconds on the node's clock."""

    job_id: int
    restart_count: int
    step_id: int
    rank: int
    node: str
    time: float
    exit_code: int | None = None
    signal: int | None = None

    @property
    def is_failure(self) -> bool:
        """True unless the task ended with status 0."""
        return bool(self.exit_code) or bool(self.signal)

    @property
    def sentence(self) -> str:
        """How it ended, for people."""
        how = f"was killed by signal {self.signal}" if self.signal else f"exited with status {self.exit_code}"
        who = "the batch script" if self.step_id == BATCH_STEP else f"rank {self.rank} of step {self.step_id}"
        return f"{who} on {self.node} {how}"


BATCH_STEP = -5
"""Step id of the batch script in the plugin's reports."""

EXTERN_STEP = -4
"""Step id of the step that only holds the job's place on a node; Slurm kills it at the end of every job."""

INTERACTIVE_STEP = -6
"""Step id of salloc's interactive shell."""


@dataclass(frozen=True)
class Attempt:
    """One run of a job, from 1.

    ``resume_step`` is the step of the checkpoint it was given (-1: none), ``last_step`` the newest complete
    checkpoint's step when it ended (None: not known). ``signature`` compares failures with each other.
    ``decided_cause`` and ``message`` say why we requeued it while it ran: what its tasks say when they are ended
    by that is no news. ``attribution`` says who ended it, with the evidence.
    """

    number: int
    restart_count: int
    started_at: datetime | None = None
    nodes: tuple[str, ...] = ()
    instance_ids: tuple[str, ...] = ()
    first_task_at: datetime | None = None
    ended_at: datetime | None = None
    cause: ExitCause | None = None
    message: str = ""
    signature: str = ""
    resume_from: str = ""
    resume_step: int = -1
    last_step: int | None = None
    failure_seen_at: datetime | None = None
    decided_at: datetime | None = None
    decided_cause: ExitCause | None = None
    attribution: Verdict | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        out: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if isinstance(value, datetime):
                value = value.isoformat()
            elif isinstance(value, StrEnum):
                value = value.value
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Verdict):
                value = value.to_dict()
            out[name] = value
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attempt:
        """Build an attempt from ``to_dict``'s output."""
        values = dict(data)
        for name in ("started_at", "first_task_at", "ended_at", "failure_seen_at", "decided_at"):
            values[name] = datetime.fromisoformat(values[name]) if values.get(name) else None
        for name in ("cause", "decided_cause"):
            values[name] = ExitCause(values[name]) if values.get(name) else None
        values["nodes"] = tuple(values.get("nodes", ()))
        values["instance_ids"] = tuple(values.get("instance_ids", ()))
        told = values.get("attribution")
        values["attribution"] = Verdict.from_dict(told) if told else None
        return cls(**values)


@dataclass(frozen=True)
class JobRecord:
    """What we remember of a job over its attempts; kept in the journal.

    Attributes:
        max_attempts: Most attempts in all; None means the cluster's default.
        armed_by: ``job`` (sbatch, salloc or the default) or ``step`` (``srun --auto-resume``); empty: not armed.
        users_excluded: Nodes that the user excluded at submission; never taken out again.
        avoid: Machines (instance ids) that this job must not get again, with the node they were.
        verdict: Final reason code when we will not restart it any more; empty while we would.
    """

    job_id: int
    user: str = ""
    uid: int = -1
    name: str = ""
    armed_by: str = ""
    max_attempts: int | None = None
    checkpoint_dir: str = ""
    users_excluded: tuple[str, ...] = ()
    avoid: Mapping[str, str] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    verdict: str = ""
    verdict_message: str = ""
    released_once: bool = False

    @property
    def is_armed(self) -> bool:
        """True when the user or the cluster's default asked for resumption."""
        return bool(self.armed_by)

    @property
    def current(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    def with_attempt(self, attempt: Attempt) -> JobRecord:
        """Return the record with this attempt added, or replaced when its number exists."""
        others = tuple(a for a in self.attempts if a.number != attempt.number)
        return replace(self, attempts=tuple(sorted((*others, attempt), key=lambda a: a.number)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **self.__dict__,
            "users_excluded": list(self.users_excluded),
            "avoid": dict(self.avoid),
            "attempts": [a.to_dict() for a in self.attempts],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JobRecord:
        """Build a record from ``to_dict``'s output."""
        values = dict(data)
        values["users_excluded"] = tuple(values.get("users_excluded", ()))
        values["attempts"] = tuple(Attempt.from_dict(a) for a in values.get("attempts", ()))
        return cls(**values)
