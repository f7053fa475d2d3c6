"""What checks are told about their node, made of the agent's configuration and the moment."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from hyperpod.agent.settings import AgentSettings
from hyperpod.health.check import Facts


def facts_from(
    settings: AgentSettings,
    at: datetime,
    uptime_s: float,
    *,
    clock_offset_s: float | None = None,
    jobs: Iterable[int] | None = None,
    is_held: bool = False,
) -> Facts:
    """Return the facts of one run of a check."""
    return Facts(
        now=at,
        uptime_s=uptime_s,
        node=settings.node,
        role=settings.role,
        address=settings.address,
        shared_mounts=settings.shared_mounts,
        expected_cpus=settings.expected_cpus,
        expected_memory_mib=settings.expected_memory_mib,
        clock_offset_s=clock_offset_s,
        expected=settings.expected,
        sysfs=settings.sysfs_path.rstrip("/") or "/sys",
        jobs=None if jobs is None else frozenset(jobs),
        is_held=is_held,
    )
