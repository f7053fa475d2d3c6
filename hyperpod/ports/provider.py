"""The provider of machines, as a port: launch, end, reboot, replace, look at, and reach instances.

State lives with the provider (labels, tags, the service). Every call is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from hyperpod.core.node import InstanceStatus, Role
from hyperpod.ports.process import Completed

__all__ = [
    "Birth",
    "BirthStatus",
    "Connection",
    "Instance",
    "InstanceStatus",
    "NodeLaunch",
    "Provider",
    "Role",
]


@dataclass(frozen=True)
class Instance:
    """A machine as the provider describes it.

    Attributes:
        id: The machine's identity, ``i-`` and 17 hexadecimal digits; a replaced machine has another.
        node: Slurm node name (slot) it serves.
        group: Instance group.
        role: What it is for.
        address: IPv4 address; empty while it has none.
        status: What the provider says of it.
        created_at: When it was made (UTC).
        labels: The provider's labels or tags, for people and for later questions.
    """

    id: str
    node: str
    group: str
    role: Role
    address: str
    status: InstanceStatus
    created_at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeLaunch:
    """All a provider needs to make the machine for one slot, now or as a later replacement.

    Attributes:
        cluster: Cluster name.
        node: Node name (slot).
        group: Instance group.
        role: What it is for.
        instance_type: As in the spec; only shown.
        files: Node configuration, by relative name. Read by the lifecycle scripts.
        lifecycle_source: Folder with the group's own scripts; empty for none.
        image: Which node image: ``base`` or ``torch``.
        image_reference: The very image, once it is known; a replacement boots the same programs as its cluster.
        shared_storage: Folder to serve as ``/fsx``; empty for the cluster's own.
    """

    cluster: str
    node: str
    group: str
    role: Role
    instance_type: str = "local"
    files: Mapping[str, str] = field(default_factory=dict)
    lifecycle_source: str = ""
    image: str = "base"
    image_reference: str = ""
    shared_storage: str = ""


class BirthStatus(StrEnum):
    """How far the lifecycle scripts of a new machine have come."""

    PENDING = "pending"
    RUNNING = "running"
    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True)
class Birth:
    """The record of an instance's lifecycle scripts; outlives the instance."""

    instance_id: str
    status: BirthStatus
    script: str = ""
    exit_code: int | None = None
    attempt: int = 0
    message: str = ""
    tail: tuple[str, ...] = ()
    log_path: str = ""
    timings_ms: Mapping[str, int] = field(default_factory=dict)


class Connection(Protocol):
    """A way to run commands on an instance as root."""

    def run(self, argv: Sequence[str], *, timeout_s: float, input: str | None = None, check: bool = True) -> Completed:
        """Run a command there; errors as ``ProcessRunner.run``."""
        ...

    def shell_argv(self, argv: Sequence[str] = (), *, user: str = "root", interactive: bool = True) -> list[str]:
        """Return the local command which opens a shell, or runs ``argv``, on the caller's terminal."""
        ...


class Provider(Protocol):
    """Makes and ends machines. Errors are ``ProviderError`` and its kin, with ``retry_after`` when they may pass."""

    def launch(self, specs: Sequence[NodeLaunch]) -> list[Instance]:
        """Make the machines that are missing, in parallel; return those of all ``specs``, in their order."""
        ...

    def terminate(self, instance_id: str) -> None:
        """End a machine for good. One that is gone already is done."""
        ...

    def reboot(self, instance_id: str) -> None:
        """Restart a machine in an orderly way, or by force when it does not obey; it keeps its disks."""
        ...

    def power_off(self, instance_id: str) -> None:
        """Cut a machine's power. Returns only when it surely no longer runs: this is the fence."""
        ...

    def power_on(self, instance_id: str) -> None:
        """Start a machine that was powered off."""
        ...

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        """End the machine in a slot and make a new one in its place.

        Repeating the call with the same ``token``, or with an ``instance_id`` that has left the slot already,
        changes nothing and returns the machine which is there now. Readiness is observed separately.
        """
        ...

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        """Return every machine of a cluster, by slot. An empty answer means that there is none."""
        ...

    def connect(self, instance_id: str) -> Connection: ...

    def birth(self, instance_id: str) -> Birth:
        """Return how the machine's lifecycle scripts went, also when the machine is gone."""
        ...
