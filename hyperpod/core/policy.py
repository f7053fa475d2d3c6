"""Policies: the limits that decisions obey, as plain frozen values.

The daemons read them from JSON (they do not load the specification's validator); the names are those of the
specification in snake_case, durations in seconds with the suffix ``_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

from hyperpod.core.majority import Limits

P = TypeVar("P", "RepairPolicy", "ResumePolicy")


class Mode(StrEnum):
    """What a health check may do: drain the node, only report what it would have done, or not run."""

    ACT = "act"
    OBSERVE = "observe"
    OFF = "off"


JUDGED_BY_CONTROLLER = frozenset({"group", "slurm", "ec2_status", "ec2_event", "ec2_spot", "deep"})
"""Checks whose findings are made on the head node: there their mode is looked at, too."""

_DEFAULT = "default"


@dataclass(frozen=True)
class RepairPolicy:
    """When and how much the controller may repair.

    Attributes:
        enabled: False: observe and report only.
        action: ``Replace`` or ``Reboot`` for dead nodes and for findings that name no action.
        reboot_first: Try a reboot once before replacing, unless the finding says hardware.
        max_unhealthy_percentage: Above this share of workers out of service at once, nothing more is repaired.
        max_parallel_repaired: Repairs under way at once (machines being rebooted, replaced or checked).
        breaker_nodes, breaker_window_s: This many nodes with one cause within the window open the breaker.
        replace_attempts: Tries of a replacement before the node is held for a person.
        heartbeat_interval_s, heartbeat_misses: Silence of their product makes a node suspect.
        lease_s: An agent that lost the controller and its peers this long kills its job's processes.
        replace_timeout_s: A new machine that is not ready by then counts as a failed try.
        first_contact_grace_s: After the controller's start, agents get this long to report.
        spare_count: Spares to keep ready, by group.
        replace_offenders: Replace machines that fail significantly more often than others; False only names them.
        reboot_window_s: A reboot for the same cause on the same machine within this time was no cure: it is replaced.
        check_modes: Modes by check, by group; ``default`` is that of checks that are not named. What is missing: act.
        group_limits: When a difference from the group counts, by group; a group that is not named: the defaults.
        are_spares_stopped: Spares that nobody needs are stopped, and started when they are needed.
    """

    enabled: bool = True
    action: str = "Replace"
    reboot_first: bool = False
    max_unhealthy_percentage: int = 50
    max_parallel_repaired: int = 2
    breaker_nodes: int = 3
    breaker_window_s: float = 3600.0
    replace_attempts: int = 3
    heartbeat_interval_s: float = 1.0
    heartbeat_misses: int = 3
    lease_s: float = 10.0
    replace_timeout_s: float = 900.0
    first_contact_grace_s: float = 10.0
    spare_count: Mapping[str, int] | None = None
    replace_offenders: bool = False
    reboot_window_s: float = 86_400.0
    check_modes: Mapping[str, Mapping[str, Mode]] | None = None
    group_limits: Mapping[str, Limits] | None = None
    are_spares_stopped: bool = False

    @cached_property
    def silence(self) -> timedelta:
        """Silence after which a node needs a second opinion."""
        return timedelta(seconds=self.heartbeat_interval_s * self.heartbeat_misses)

    def mode_of(self, group: str, check: str) -> Mode:
        """Return what a check may do on the nodes of a group."""
        return mode_in((self.check_modes or {}).get(group, {}), check)


@dataclass(frozen=True)
class ResumePolicy:
    """When a job is started again.

    Attributes:
        default: True arms every batch job that does not refuse it.
        max_attempts: Attempts in all for jobs that name no number.
        checkpoint_dir: Template with ``{user}``, ``{job_name}``, ``{job_id}``.
        on_time_limit: ``stop`` or ``resume``.
        step_kill_grace_s: After a task's failure the rest of its step gets this long before it is killed.
        same_failure_limit: This many equal failures in a row without a new checkpoint end the job.
        evidence_before_s: Findings that began up to this long before a failure count as its cause.
        first_task_timeout_s: RUNNING without a started task for this long is a failed launch.
    """

    default: bool = False
    max_attempts: int = 10
    checkpoint_dir: str = "/fsx/checkpoints/{user}/{job_name}-{job_id}"
    on_time_limit: str = "stop"
    step_kill_grace_s: float = 0.3
    same_failure_limit: int = 2
    evidence_before_s: float = 600.0
    first_task_timeout_s: float = 120.0


def _from(cls: type[P], data: Mapping[str, Any]) -> P:
    known = {f.name for f in fields(cls)}
    return cls(**{key: value for key, value in data.items() if key in known})


def modes_of(health: Mapping[str, Any]) -> dict[str, Mode]:
    """Return the modes that a group's policy of the checks names (``core.settings.plain_checks``), by check."""
    return {str(name): Mode(own["mode"]) for name, own in health.items() if isinstance(own, Mapping) and "mode" in own}


def mode_in(modes: Mapping[str, Mode], check: str) -> Mode:
    """Return the mode of one check among ``modes_of``: its own, the default one, or act."""
    return modes.get(check, modes.get(_DEFAULT, Mode.ACT))


def policies_from(data: Mapping[str, Any]) -> tuple[RepairPolicy, ResumePolicy]:
    """Build both policies from the daemons' JSON (``spec_policies``).

    Keys that other readers own are ignored, missing ones take their defaults. The heartbeat's figures and the
    lease stand under ``resume`` in the specification; repairs need them too.
    """
    repair = dict(data.get("repair", {}))
    resume = dict(data.get("resume", {}))
    for key in ("lease_s", "heartbeat_interval_s", "heartbeat_misses"):
        if key in resume:
            repair.setdefault(key, resume[key])
    repair["spare_count"] = {g["name"]: int(g.get("spares") or 0) for g in data.get("groups", ())}
    modes = {str(g["name"]): modes_of(g.get("health") or {}) for g in data.get("groups", ())}
    repair["check_modes"] = {name: own for name, own in modes.items() if set(own.values()) - {Mode.ACT}} or None
    limits = {
        str(g["name"]): Limits.from_dict((g.get("health") or {}).get("group") or {}) for g in data.get("groups", ())
    }
    repair["group_limits"] = {name: own for name, own in limits.items() if own != Limits()} or None
    return _from(RepairPolicy, repair), _from(ResumePolicy, resume)
