"""Everything the controller touches, as ports in one value; wired in ``__main__``, faked in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from hyperpod.controller.exclusions import Exclusions
from hyperpod.controller.ledger import Ledger
from hyperpod.controller.memory import Inbox, Memory
from hyperpod.controller.repeats import Repeats
from hyperpod.core.finding import Finding
from hyperpod.core.node import Role
from hyperpod.core.policy import RepairPolicy, ResumePolicy
from hyperpod.core.snapshot import Snapshot
from hyperpod.ports.checkpoints import Checkpoints
from hyperpod.ports.clock import Clock
from hyperpod.ports.provider import Instance
from hyperpod.ports.slurm import Slurm
from hyperpod.ports.store import Store


class Machines(Protocol):
    """The part of a provider that repairs need, seen from the head node."""

    def observe(self, cluster: str) -> tuple[Instance, ...]: ...

    def power_off(self, instance_id: str) -> None: ...

    def reboot(self, instance_id: str) -> None: ...

    def replace(self, node: str, instance_id: str, token: str) -> Instance: ...


class StopsSpares(Protocol):
    """A provider whose machines may be stopped while nobody needs them, and keep their disks. Optional."""

    def park(self, instance_id: str) -> None: ...

    def power_on(self, instance_id: str) -> None: ...


class TellsFindings(Protocol):
    """A provider that knows more of its machines than their power: checks of its own, and what it has announced.

    Optional. The local provider has nothing to tell that the agents do not see.
    """

    def findings(self) -> Mapping[str, tuple[Finding, ...]]:
        """Return by node what is wrong now; a machine that is well is not named. May take seconds."""
        ...


class Agents(Protocol):
    """Messages to agents. Losing one is no harm: decisions never rely on them."""

    def send(self, node: str, message: Mapping[str, Any]) -> bool:
        """Send to one node's agent; False when it is not connected."""
        ...


class Jobs(Protocol):
    """Work that may take seconds and must not hold up a tick. One at a time for each key."""

    def submit(self, key: str, work: Callable[[], None]) -> bool:
        """Run ``work`` beside the tick; False when one with this key runs already."""
        ...


@dataclass(frozen=True)
class NodeSlot:
    """A node that the configuration names."""

    name: str
    group: str
    role: Role
    address: str
    partition: str = ""


@dataclass
class World:
    """The controller's surroundings.

    ``probe`` asks for a second opinion on an address (True: somebody works there). ``save_partition`` writes a
    partition's members into slurm.conf, so that a restart of slurmctld finds them again. ``save_address`` does the same
    for a node's address; None where addresses are the provider's own affair.
    """

    cluster: str
    slots: Callable[[], Sequence[NodeSlot]]
    slurm: Slurm
    machines: Machines
    store: Store
    clock: Clock
    agents: Agents
    jobs: Jobs
    checkpoints: Checkpoints
    probe: Callable[[str], bool]
    save_partition: Callable[[str, Sequence[str]], None]
    repair_policy: RepairPolicy
    resume_policy: ResumePolicy
    memory: Memory
    save_address: Callable[[str, str], None] | None = None
    inbox: Inbox = field(default_factory=Inbox)
    last_snapshot: Snapshot | None = None
    last_notes: tuple[Any, ...] = ()
    instances: tuple[Instance, ...] | None = None
    instances_at: datetime | None = None
    are_partitions_saved: bool = False
    notes_shown: dict[tuple[str, str, int | None], datetime] = field(default_factory=dict)
    ledger: Ledger = field(init=False)

    exclusions: Exclusions = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.store)
        self.exclusions = Exclusions(self.store)

    repeats: Repeats = field(default_factory=Repeats)
