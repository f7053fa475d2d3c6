"""Nodes as the controller sees them, and the state table of their repair.

Owns the node view, the owner of a drain and the repair record. Slurm's own words are translated in
``adapters/slurm``; here a node is available or not, drained or not, by somebody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from hyperpod.core.backoff import after_refusal
from hyperpod.core.finding import Action, Finding
from hyperpod.errors import InvalidState

REASON_PREFIX = "hyperpod:"


class Role(StrEnum):
    """What a machine is for."""

    HEAD = "head"
    LOGIN = "login"
    WORKER = "worker"


class InstanceStatus(StrEnum):
    """What the provider says of a machine. UNKNOWN: it did not say."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    GONE = "gone"
    UNKNOWN = "unknown"


class Availability(StrEnum):
    """What the workload manager says of a node. UNKNOWN: it did not say, or does not know the node."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


class DrainOwner(StrEnum):
    """Who took a node out of service."""

    NOBODY = "nobody"
    OURS = "ours"
    SLURM = "slurm"
    PERSON = "person"


class RepairStatus(StrEnum):
    """Where the repair of a node stands; ``HEALTHY`` means no repair is under way."""

    HEALTHY = "healthy"
    DRAINING = "draining"
    FENCING = "fencing"
    REBOOTING = "rebooting"
    REPLACING = "replacing"
    CHECKING = "checking"
    HELD = "held"
    ASLEEP = "asleep"
    WAKING = "waking"


ALLOWED: Mapping[RepairStatus, frozenset[RepairStatus]] = {
    RepairStatus.HEALTHY: frozenset(
        {RepairStatus.DRAINING, RepairStatus.FENCING, RepairStatus.CHECKING, RepairStatus.ASLEEP}
    ),
    RepairStatus.DRAINING: frozenset(
        {RepairStatus.FENCING, RepairStatus.REBOOTING, RepairStatus.REPLACING, RepairStatus.HEALTHY}
    ),
    RepairStatus.FENCING: frozenset({RepairStatus.REPLACING, RepairStatus.REBOOTING, RepairStatus.CHECKING}),
    RepairStatus.REBOOTING: frozenset({RepairStatus.CHECKING, RepairStatus.REPLACING}),
    RepairStatus.REPLACING: frozenset({RepairStatus.CHECKING, RepairStatus.REPLACING, RepairStatus.HELD}),
    RepairStatus.CHECKING: frozenset(
        {RepairStatus.HEALTHY, RepairStatus.DRAINING, RepairStatus.FENCING, RepairStatus.REPLACING, RepairStatus.HELD}
    ),
    RepairStatus.HELD: frozenset(
        {RepairStatus.HEALTHY, RepairStatus.REPLACING, RepairStatus.REBOOTING, RepairStatus.CHECKING}
    ),
    RepairStatus.ASLEEP: frozenset({RepairStatus.WAKING, RepairStatus.CHECKING, RepairStatus.REPLACING}),
    RepairStatus.WAKING: frozenset({RepairStatus.CHECKING, RepairStatus.REPLACING, RepairStatus.ASLEEP}),
}


@dataclass(frozen=True)
class Repair:
    """The repair of one node, kept in the journal.

    Attributes:
        node: Node name (slot).
        status: Where it stands.
        cause: Stable ``check/code`` that began it; equal causes on many nodes open the breaker.
        message: Why, for people.
        action: REBOOT or REPLACE (or DRAIN: only keep work away).
        instance_id: The machine found bad; a different machine in the slot means it has been replaced.
        since: When the repair began.
        changed_at: When ``status`` was last changed; phase deadlines count from here.
        attempt: Tries of the present action, from 1.
        last_error: Provider's or script's last message.
        was_rebooted: A reboot has been tried for this cause already.
        boot_id: The boot in which it began; another boot means that a reboot has happened.
        refusals: How often in a row the provider has refused what the present status asks of it.
        next_try_at: It is not asked again before; None: at once.
    """

    node: str
    status: RepairStatus
    cause: str
    message: str
    action: Action
    instance_id: str
    since: datetime
    changed_at: datetime
    attempt: int = 1
    last_error: str = ""
    was_rebooted: bool = False
    boot_id: str = ""
    refusals: int = 0
    next_try_at: datetime | None = None

    def moved(self, status: RepairStatus, now: datetime, **changes: Any) -> Repair:
        """Return the repair in another status.

        Raises:
            InvalidState: if the table does not allow the move.
        """
        if status is not self.status and status not in ALLOWED[self.status]:
            raise InvalidState(f"move the repair of {self.node} to {status.value}", self.status.value)
        return replace(self, **{"status": status, "changed_at": now, "refusals": 0, "next_try_at": None, **changes})

    def refused(self, error: str, at: datetime) -> Repair:
        """Return the repair after the provider has refused: the next try comes later each time."""
        count = self.refusals + 1
        return replace(self, last_error=error, refusals=count, next_try_at=at + after_refusal(count))

    def taken(self) -> Repair:
        """Return the repair after the provider has done what it was asked for."""
        return replace(self, last_error="", refusals=0, next_try_at=None) if self.refusals else self

    def must_wait(self, now: datetime) -> bool:
        """Say whether the provider has refused so recently that it is not asked again yet."""
        return self.next_try_at is not None and now < self.next_try_at

    def waits(self, now: datetime) -> str:
        """Say when the provider is asked again, for people; empty when it has not refused."""
        if not self.refusals:
            return ""
        left = max((self.next_try_at - now).total_seconds(), 0.0) if self.next_try_at is not None else 0.0
        times = "once" if self.refusals == 1 else f"{self.refusals} times"
        return f", refused {times}, next try in {left:.0f} s"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **self.__dict__,
            "status": self.status.value,
            "action": self.action.value,
            "since": self.since.isoformat(),
            "changed_at": self.changed_at.isoformat(),
            "next_try_at": self.next_try_at.isoformat() if self.next_try_at else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Repair:
        """Build a repair from ``to_dict``'s output."""
        return cls(
            node=str(data["node"]),
            status=RepairStatus(data["status"]),
            cause=str(data["cause"]),
            message=str(data["message"]),
            action=Action(data["action"]),
            instance_id=str(data["instance_id"]),
            since=datetime.fromisoformat(data["since"]),
            changed_at=datetime.fromisoformat(data["changed_at"]),
            attempt=int(data["attempt"]),
            last_error=str(data["last_error"]),
            was_rebooted=bool(data["was_rebooted"]),
            boot_id=str(data.get("boot_id", "")),
            refusals=int(data.get("refusals") or 0),
            next_try_at=datetime.fromisoformat(data["next_try_at"]) if data.get("next_try_at") else None,
        )


@dataclass(frozen=True)
class NodeView:
    """One node at one moment, from every source that spoke.

    Attributes:
        name: Node name.
        group: Instance group.
        role: Only workers are repaired by replacement and carry jobs.
        partition: Users' partition that the node belongs to when it is in use.
        in_partition: It is there now (False: it waits as a spare, or is new).
        in_spares: It is in the hidden partition of the spares; in both when a move was cut short.
        availability: The workload manager's word.
        is_drained: Takes no new work (drain or fail flag).
        is_completing: A job is still being cleaned up on it.
        is_responding: slurmctld hears from its slurmd.
        reason: Text set with the drain or down state.
        reason_by: User name that set it.
        jobs: Ids of jobs that have it allocated now.
        instance_id: Machine in the slot, by the provider, or by the agent when the provider is silent.
        instance_status: The provider's word.
        address, slurm_address: Where its machine is, by the provider and by the workload manager; empty: not told.
        created_at: When its machine was made; a newborn is given time before its silence counts.
        added_at: When the slot was added while the controller ran; None: it was there at its start.
        heartbeat_at: When the agent's last heartbeat arrived; None: never in this controller's life.
        said_goodbye: An orderly shutdown has begun on it.
        agent_instance_id: The machine that the agent says it is.
        boot_id: The boot that the agent says it is in.
        is_ready: The agent has passed its basic checks since its boot, with the plugin loaded.
        owes_deep: Deep checks of it must end before this boot's first job, whether they can begin yet or not.
        waits_for_deep: It has passed its basic checks, and waits for those.
        is_reachable: Second opinion (slurmd's port, ssh, provider): True, False, or None when not asked.
        reachable_at: When that opinion was formed.
        findings: Open findings of this machine and boot.
        closed: Findings of it that have closed within the last quarter of an hour.
        repair: Repair under way, or None.
    """

    name: str
    group: str
    role: Role = Role.WORKER
    partition: str = ""
    in_partition: bool = True
    in_spares: bool = False
    availability: Availability = Availability.UNKNOWN
    is_drained: bool = False
    is_completing: bool = False
    is_responding: bool = True
    reason: str = ""
    reason_by: str = ""
    jobs: tuple[int, ...] = ()
    instance_id: str = ""
    instance_status: InstanceStatus = InstanceStatus.UNKNOWN
    address: str = ""
    slurm_address: str = ""
    created_at: datetime | None = None
    added_at: datetime | None = None
    heartbeat_at: datetime | None = None
    said_goodbye: bool = False
    agent_instance_id: str = ""
    boot_id: str = ""
    is_ready: bool = False
    owes_deep: bool = False
    waits_for_deep: bool = False
    is_reachable: bool | None = None
    reachable_at: datetime | None = None
    findings: tuple[Finding, ...] = ()
    closed: tuple[Finding, ...] = ()
    repair: Repair | None = field(default=None)

    @property
    def drain_owner(self) -> DrainOwner:
        """Who took the node out of service, by the reason's text and its author."""
        if not self.is_drained and self.availability is not Availability.DOWN:
            return DrainOwner.NOBODY
        return owner_of_reason(self.reason, self.reason_by)


# Texts that slurmctld and slurmd set by themselves (Slurm 24.11, src/slurmctld and src/slurmd).
_SLURM_REASONS = (
    "not responding",
    "node unexpectedly rebooted",
    "kill task failed",
    "prolog error",
    "epilog error",
    "batch job complete failure",
    "slurmdspooldir is full",
    "low realmemory",
    "low cpus",
    "low socket",
    "low tmpdisk",
    "gres/",
    "duplicate jobid",
    "launch failure",
    "invalid",
    "reboot asap",
    "slurmd ",
    "none",
)


def owner_of_reason(reason: str, author: str) -> DrainOwner:
    """Say who set a drain reason: ours by prefix, Slurm's by its known texts, else a person's.

    When in doubt it is a person's, because a person's drain is never lifted.
    """
    text = reason.strip().lower()
    if text.startswith(REASON_PREFIX):
        return DrainOwner.OURS
    if author in ("", "slurm", "root") and (not text or text.startswith(_SLURM_REASONS)):
        return DrainOwner.SLURM
    return DrainOwner.PERSON


# Drains by which Slurm says that a node could not start or take care of a job.
_REFUSALS = ("batch job complete failure", "slurmdspooldir is full", "launch failure", "prolog error")


def refuses_launches(node: NodeView) -> bool:
    """Say whether Slurm itself has drained a node because it could not launch a job there."""
    is_slurms = node.is_drained and node.drain_owner is DrainOwner.SLURM
    return is_slurms and node.reason.strip().lower().startswith(_REFUSALS)


def drain_reason(cause: str, message: str, whose: str, instance_id: str, boot_id: str) -> str:
    """Build the reason text of our drains: prefix, cause, sentence, whose fault, machine, boot.

    Slurm itself adds who and when. At most 200 characters, no line breaks or quotes.
    """
    cause = cause[:60]
    clean = re.sub(r"[^\x20-\x7e]|[\"'|]", " ", message).strip()
    tail = f" [{whose}] ({instance_id or 'no instance'}, boot {boot_id[:8] or 'unknown'})"
    return f"{REASON_PREFIX}{cause} {clean[: 200 - len(tail) - len(cause) - len(REASON_PREFIX) - 1]}{tail}"


def reason_machine(reason: str) -> str:
    """Return the instance id named in one of our reasons, or an empty string."""
    match = re.search(r"\((i-[0-9a-f]{17}), boot ", reason)
    return match.group(1) if match else ""


_ADMIN = re.compile(r"^(Action:(?:Replace|Reboot))(?:\s*:\s*Not responding)?$")


def parse_admin_action(reason: str) -> Action | None:
    """Understand an administrator's ``Action:Replace`` or ``Action:Reboot`` in a node's reason.

    Exact and case-sensitive, as SageMaker HyperPod reads it; Slurm may append " : Not responding".
    Returns None when the reason is not one of them.
    """
    match = _ADMIN.match(reason)
    return None if match is None else Action(match.group(1).removeprefix("Action:"))


def nearest_admin_action(reason: str) -> str:
    """Return the ``Action:`` text that a near miss probably meant, or an empty string.

    ``action:replace``, ``Replace`` and a blank at the end are near misses; ordinary reasons are not.
    """
    if parse_admin_action(reason) is not None:
        return ""
    word = re.sub(r"[\s:_-]+", "", reason).lower().removeprefix("action")
    return {"replace": "Action:Replace", "reboot": "Action:Reboot"}.get(word, "")
