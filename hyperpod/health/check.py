"""What a health check is: a probe of one thing with its own rhythm, deadline and damping.

Owns the words that checks and the runner share. A check reads through ports and returns findings; it neither
logs, nor waits, nor remembers whether it has said something before: that is the runner's part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from hyperpod.core.finding import Action, Finding, Severity, Whose
from hyperpod.core.node import Role
from hyperpod.ports.host import Credentials, Host
from hyperpod.ports.metadata import Metadata

EVERYWHERE = frozenset(Role)
WORKERS = frozenset({Role.WORKER})


@dataclass(frozen=True)
class Damping:
    """A soft finding opens when it was seen in ``needed`` of the last ``of`` runs; it closes after ``needed``
    runs in a row without it. A hard finding opens at once."""

    needed: int = 2
    of: int = 3


TWO_OF_THREE = Damping(2, 3)
"""What holds for a check that has no reason for another."""


@dataclass(frozen=True)
class Facts:
    """What the agent knows when a check starts.

    Attributes:
        now: Start of the run, aware UTC.
        uptime_s: Age of this boot.
        node: Own node name.
        role: What the machine is for.
        address: Own address as the cluster knows it; empty when not configured.
        shared_mounts: Folders that every node shares.
        expected_cpus: Slurm's figure for this node; None where Slurm has none.
        expected_memory_mib: Slurm's RealMemory; None where Slurm has none.
        clock_offset_s: The head node's clock minus ours; None while the controller has not answered yet.
    """

    now: datetime
    uptime_s: float
    node: str
    role: Role = Role.WORKER
    address: str = ""
    shared_mounts: tuple[str, ...] = ()
    expected_cpus: int | None = None
    expected_memory_mib: int | None = None
    clock_offset_s: float | None = None


@dataclass(frozen=True)
class Ports:
    """What a check may use."""

    host: Host
    munge: Credentials
    facts: Facts
    metadata: Metadata | None = None
    """The cloud's word about this machine; None where there is none to ask."""


@dataclass(frozen=True)
class Result:
    """What one run of a check found.

    ``findings`` holds everything that is wrong now (nothing: healthy). ``not_ready`` is a sentence when nothing
    is reported yet but the node must not take its first job: a service that is still starting.
    """

    findings: tuple[Finding, ...] = ()
    not_ready: str = ""

    @property
    def why_not_ready(self) -> str:
        """The first reason to keep work away from a node that has just booted; empty when there is none."""
        if self.not_ready:
            return self.not_ready
        bad = (f.message for f in self.findings if f.severity in (Severity.FATAL, Severity.UNKNOWN))
        return next(bad, "")


class Check(Protocol):
    """One health check. Instances are made by the registry with their settings."""

    @property
    def name(self) -> str:
        """Stable id, the ``check`` of its findings and its key in the configuration."""
        ...

    @property
    def interval_s(self) -> float: ...

    @property
    def deadline_s(self) -> float:
        """A run that takes longer is itself a finding."""
        ...

    @property
    def damping(self) -> Damping: ...

    @property
    def is_quick(self) -> bool:
        """Belongs to the checks that run when a job has failed: together at most two seconds."""
        ...

    @property
    def is_basic(self) -> bool:
        """Must have passed once since the boot before the node takes work."""
        ...

    @property
    def roles(self) -> frozenset[Role]: ...

    def run(self, ports: Ports) -> Result: ...


def warn(check: str, code: str, message: str, *, device: str = "", whose: Whose = Whose.NODE) -> Finding:
    """Build a finding that a person should look at."""
    return Finding(check, code, Severity.WARN, message, device=device, whose=whose)


def fatal(
    check: str,
    code: str,
    message: str,
    *,
    action: Action = Action.DRAIN,
    device: str = "",
    whose: Whose = Whose.NODE,
    is_hard: bool = False,
) -> Finding:
    """Build a finding that takes the node out of service once it is open."""
    return Finding(check, code, Severity.FATAL, message, action, device=device, whose=whose, is_hard=is_hard)


def unknown(check: str, code: str, message: str, *, device: str = "") -> Finding:
    """Build a finding that says that the check could not tell."""
    return Finding(check, code, Severity.UNKNOWN, message, device=device)


@dataclass(frozen=True)
class Settings:
    """Settings that every check has, beside its own.

    Attributes:
        is_disabled: The check does not run.
        observe_only: Its findings are reported as WARN with what they would have asked for.
        values: The check's own settings, by the names of its fields.
    """

    is_disabled: bool = False
    observe_only: bool = False
    values: Mapping[str, object] = field(default_factory=dict)
