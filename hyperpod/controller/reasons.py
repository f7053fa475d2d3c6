"""Turns the reason that Slurm itself gave for a node into a finding.

Owns what has to be remembered for that: when a reason was first seen, and in which boot. A reason of an earlier boot
of the machine says nothing about this one, although Slurm keeps it until the node is opened again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.node import DrainOwner, owner_of_reason
from hyperpod.health.parse_slurm_reason import parse_slurm_reason
from hyperpod.ports.slurm import NodeState

CHECK = "slurm"
BETWEEN_LOOKS = timedelta(seconds=60)
"""Two looks at a count are this far apart: slurmd may have started before the driver of its accelerators."""


@dataclass(frozen=True)
class SeenReason:
    """A reason, and since when it is known."""

    reason: str
    reason_at: datetime | None
    instance_id: str
    boot_id: str
    first_at: datetime


def see_reason(
    before: SeenReason | None, state: NodeState | None, instance_id: str, boot_id: str, now: datetime
) -> SeenReason | None:
    """Return what is to be remembered of a node's reason; None when Slurm gives none of its own."""
    if state is None or not (state.is_drained or state.is_fail or state.reason):
        return None
    if owner_of_reason(state.reason, state.reason_by) is not DrainOwner.SLURM or not state.reason:
        return None
    if before is not None and (before.reason, before.reason_at) == (state.reason, state.reason_at):
        # After a restart of the controller the reason may be known before the agent has said which boot this is.
        return before if before.boot_id else replace(before, instance_id=instance_id, boot_id=boot_id)
    return SeenReason(state.reason, state.reason_at, instance_id, boot_id, now)


def finding_of(seen: SeenReason | None, state: NodeState | None, boot_id: str, now: datetime) -> Finding | None:
    """Return the finding that a reason of Slurm's stands for; None when it is void, or means nothing to us.

    Args:
        seen: What ``see_reason`` returned.
        state: The node as slurmctld knows it.
        boot_id: The boot that the node's agent is in now.
    """
    if seen is None or state is None:
        return None
    meaning = parse_slurm_reason(seen.reason)
    is_of_earlier_boot = bool(boot_id and seen.boot_id and boot_id != seen.boot_id) or (
        seen.reason_at is not None and state.boot_at is not None and seen.reason_at < state.boot_at
    )
    if meaning is None or is_of_earlier_boot:
        return None
    severity, action = meaning.severity, meaning.action
    if severity is Severity.FATAL and meaning.times > 1 and now - seen.first_at < BETWEEN_LOOKS:
        severity, action = Severity.WARN, Action.NONE
    return Finding(
        CHECK,
        meaning.code,
        severity,
        meaning.message,
        action,
        since=seen.reason_at or seen.first_at,
        boot_id=boot_id,
        instance_id=seen.instance_id,
        whose=meaning.whose,
        evidence=seen.reason[:200],
    )
