"""Plans: what is to be done, as data, with a sentence saying why.

An action is a frozen value. ``key`` names the one effect it stands for, so that the journal can make it happen
once; actions that may be repeated without harm have an empty key. ``target`` groups actions: when one fails, the
later ones of the same target are left for the next tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from hyperpod.core.job import JobRecord, JobStatus
from hyperpod.core.node import Repair


@dataclass(frozen=True)
class Action:
    """Something to do. ``reason`` is the sentence shown to people and kept in the history."""

    reason: str

    @property
    def key(self) -> str:
        """Identity in the journal; empty for actions that are harmless to repeat."""
        return ""

    @property
    def target(self) -> str:
        """The object that the action changes."""
        return ""

    @property
    def is_destructive(self) -> bool:
        """True when a mistake would cost somebody work or a machine."""
        return False


@dataclass(frozen=True)
class NodeAction(Action):
    """An action on one node."""

    node: str

    @property
    def target(self) -> str:
        return f"node:{self.node}"


@dataclass(frozen=True)
class ProbeNode(NodeAction):
    """Ask for a second opinion on a silent node."""


@dataclass(frozen=True)
class SaveRepair(NodeAction):
    """Write the repair's new status down before acting on it."""

    repair: Repair


@dataclass(frozen=True)
class EndRepair(NodeAction):
    """The repair is over and forgotten, but for the history."""


@dataclass(frozen=True)
class FenceInstance(NodeAction):
    """Power a machine off so that it surely runs nothing any more.

    Without a key: it is asked for again as long as the provider sees the machine run, and is harmless to repeat.
    """

    instance_id: str

    @property
    def is_destructive(self) -> bool:
        return True


@dataclass(frozen=True)
class MarkDown(NodeAction):
    """Tell the workload manager that the node is dead; its jobs are requeued."""

    instance_id: str

    @property
    def is_destructive(self) -> bool:
        return True


@dataclass(frozen=True)
class DrainNode(NodeAction):
    """Keep new work away."""


@dataclass(frozen=True)
class UndrainNode(NodeAction):
    """Allow work again."""


@dataclass(frozen=True)
class AnswerReason(NodeAction):
    """Answer a person in the node's reason; the node stays as drained as it is."""


@dataclass(frozen=True)
class RebootInstance(NodeAction):
    """Reboot the machine, once for each repair (``repair_since``): it may need another one later in its life."""

    instance_id: str
    repair_since: datetime

    @property
    def key(self) -> str:
        return f"reboot:{self.instance_id}:{self.repair_since.isoformat()}"

    @property
    def is_destructive(self) -> bool:
        return True


@dataclass(frozen=True)
class ReplaceInstance(NodeAction):
    """Give the slot another machine."""

    instance_id: str
    attempt: int

    @property
    def key(self) -> str:
        return f"replace:{self.node}:{self.instance_id}:{self.attempt}"

    @property
    def is_destructive(self) -> bool:
        return True


@dataclass(frozen=True)
class UseSpare(NodeAction):
    """Bring a spare into the users' partition."""

    partition: str


@dataclass(frozen=True)
class ParkSpare(NodeAction):
    """Take an idle node out of the users' partition and keep it as a spare."""

    partition: str


@dataclass(frozen=True)
class MoveAddress(NodeAction):
    """Tell everybody that the node's machine has another address."""

    address: str

    @property
    def target(self) -> str:
        # Apart from the node's repair: neither may hold up the other.
        return f"address:{self.node}"


@dataclass(frozen=True)
class StopSpare(NodeAction):
    """Stop the machine of a spare that nobody needs; asked for again as long as it runs."""

    instance_id: str


@dataclass(frozen=True)
class StartSpare(NodeAction):
    """Start the machine of a stopped spare; asked for again until it runs."""

    instance_id: str


@dataclass(frozen=True)
class JobAction(Action):
    """An action on one job."""

    job_id: int

    @property
    def target(self) -> str:
        return f"job:{self.job_id}"


@dataclass(frozen=True)
class SaveJob(JobAction):
    """Write the job's record down."""

    record: JobRecord


@dataclass(frozen=True)
class RequeueJob(JobAction):
    """Put a running or ended job back in its queue. ``seen`` is the status in which that was decided."""

    restart_count: int
    seen: JobStatus = JobStatus.RUNNING

    @property
    def key(self) -> str:
        return f"requeue:{self.job_id}:{self.restart_count}"

    @property
    def is_destructive(self) -> bool:
        return True


@dataclass(frozen=True)
class ForbidRequeue(JobAction):
    """The last attempt runs: Slurm must not start another one by itself when a node dies."""


@dataclass(frozen=True)
class ExpediteJob(JobAction):
    """Start a requeued job as soon as it can: begin now, head of the queue, not on these nodes."""

    excluded: tuple[str, ...]
    start_now: bool
    set_excluded: bool
    top_priority: bool


@dataclass(frozen=True)
class ReleaseJob(JobAction):
    """Release a job that Slurm held because its launch failed."""

    @property
    def key(self) -> str:
        return f"release:{self.job_id}"


@dataclass(frozen=True)
class KillStep(JobAction):
    """End what is left of a step after one of its tasks failed."""

    restart_count: int
    step_id: int

    @property
    def key(self) -> str:
        return f"kill-step:{self.job_id}:{self.restart_count}:{self.step_id}"

    @property
    def is_destructive(self) -> bool:
        return True


@dataclass(frozen=True)
class EndLeftovers(JobAction):
    """End what an attempt that is over has left on its living nodes, so that the next one can start.

    A surviving slurmstepd tries for many seconds to report to a node that is gone; until it gives up the job stays
    COMPLETING. Only processes that were started before the attempt's end are touched: ``ended_s`` ago.
    """

    nodes: tuple[str, ...]
    ended_s: float

    @property
    def is_destructive(self) -> bool:
        return True


@dataclass(frozen=True)
class ScanCheckpoints(JobAction):
    """Find out the newest complete checkpoint of an attempt that has ended."""

    attempt: int


@dataclass(frozen=True)
class Note:
    """Something that a person may want to know: what was not done, and why."""

    code: str
    message: str
    node: str = ""
    job_id: int | None = None


@dataclass(frozen=True)
class Plan:
    """What to do now, what was refused, and when to look again at the latest."""

    actions: tuple[Action, ...] = ()
    notes: tuple[Note, ...] = ()
    wake_after: timedelta = timedelta(seconds=5)


def merge(plans: Iterable[Plan]) -> Plan:
    """Put plans together in their order; the earliest wake-up counts."""
    listed = list(plans)
    return Plan(
        actions=tuple(a for plan in listed for a in plan.actions),
        notes=tuple(n for plan in listed for n in plan.notes),
        wake_after=min((plan.wake_after for plan in listed), default=timedelta(seconds=5)),
    )
