"""What a health check is: a probe of one thing with its own rhythm, deadline and damping.

Owns the words that checks and the runner share. A check reads through ports and returns findings; it neither
logs, nor waits, nor remembers whether it has said something before: that is the runner's part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Protocol

from hyperpod.core.finding import Action, Finding, Severity, Whose
from hyperpod.core.node import Role
from hyperpod.core.policy import Mode
from hyperpod.ports.devices import Devices, NoDevices
from hyperpod.ports.gpu import Gpus, NoGpus
from hyperpod.ports.host import Credentials, Host
from hyperpod.ports.metadata import Metadata
from hyperpod.ports.stream import NoStreams, Streams

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

AT_ONCE = Damping(1, 1)
"""For a check that itself counts over time."""

THREE_OF_THREE = Damping(3, 3)
"""For what comes and goes by itself: a short peak is not worth a drain."""


@dataclass(frozen=True)
class About:
    """What people are told about a check: ``hyperpod checks describe`` and the reference page are made from it.

    Attributes:
        title: One line, without a full stop.
        reads: Where it looks.
        means: What a finding says about the machine, and what looks alike but is not one.
        does: What is done about it and why.
        codes: Every code that it can report, with one sentence each.
        source: Where the rule is from.
    """

    title: str
    reads: str
    means: str
    does: str
    codes: Mapping[str, str]
    source: str


def setting(default: Any, why: str) -> Any:
    """Declare a setting of a check: its default, with what it means, its unit, and why this default."""
    return field(default=default, metadata={"why": why})


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
        expected: What a machine of this instance type has, by the names in ``Result.inventory`` (``gpus``, ``efa``,
            ``neuron_devices``, ...); what is not in it is not known, and the group's majority decides elsewhere.
        sysfs: Where the kernel's device tree is mounted, without a slash at the end.
        jobs: Slurm's jobs that have processes or are known on this node now; None while that is not known.
        is_held: slurmd waits, until the controller has closed the node to jobs, because a deep check comes first; or
            it has just been let go.
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
    expected: Mapping[str, float] = field(default_factory=dict)
    sysfs: str = "/sys"
    jobs: frozenset[int] | None = None
    is_held: bool = False


@dataclass(frozen=True)
class Ports:
    """What a check may use."""

    host: Host
    munge: Credentials
    facts: Facts
    gpus: Gpus = field(default_factory=NoGpus)
    streams: Streams = field(default_factory=NoStreams)
    devices: Devices = field(default_factory=NoDevices)
    metadata: Metadata | None = None
    """The cloud's word about this machine; None where there is none to ask."""


@dataclass(frozen=True)
class Result:
    """What one run of a check found.

    ``findings`` holds everything that is wrong now (nothing: healthy). ``not_ready`` is a sentence when nothing
    is reported yet but the node must not take its first job: a service that is still starting. ``inventory`` is what
    was counted, in words that can be compared between the machines of a group (``gpus``: ``8``).
    """

    findings: tuple[Finding, ...] = ()
    not_ready: str = ""
    inventory: Mapping[str, str] = field(default_factory=dict)

    @property
    def why_not_ready(self) -> str:
        """The first reason to keep work away from a node that has just booted; empty when there is none."""
        if self.not_ready:
            return self.not_ready
        bad = (f.message for f in self.findings if f.severity in (Severity.FATAL, Severity.UNKNOWN))
        return next(bad, "")


class Check(Protocol):
    """One health check. Instances are made by the registry with their settings.

    The attributes ``is_job_start`` and ``is_job_end`` (absent: False) make it run when a job's first task comes to
    this node, and when its last one has left. One that follows a log has a method ``clear(code, device)``, by which a
    person ends what it keeps; it is called from another thread than ``run``.
    """

    about: ClassVar[About]

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


def stages(check: Check) -> tuple[str, ...]:
    """Return, in words, when a check runs beside its rhythm."""
    named = {
        "before the first job": check.is_basic,
        "job start": bool(getattr(check, "is_job_start", False)),
        "job end": bool(getattr(check, "is_job_end", False)),
        "quick": check.is_quick,
    }
    return tuple(stage for stage, is_one in named.items() if is_one)


def warn(
    check: str, code: str, message: str, *, device: str = "", whose: Whose = Whose.NODE, peer: str = ""
) -> Finding:
    """Build a finding that a person should look at; ``peer`` is who is accused instead of this node."""
    return Finding(check, code, Severity.WARN, message, device=device, whose=whose, peer=peer)


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
    """The policy of one check in force on a node.

    Attributes:
        mode: Whether its findings count; observed ones are WARN and say what they would have asked for.
        overrides: Severity by code, for sites that know better.
        values: The check's own settings, by the names of its fields.
    """

    mode: Mode = Mode.ACT
    overrides: Mapping[str, Severity] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
