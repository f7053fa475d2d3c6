"""EC2's instances as they are: one description each, who is in which slot, and what their status checks say. Pure.

Owns the translation of EC2's words into ours. Every function takes what a describe call returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from hyperpod.adapters.aws import tags
from hyperpod.adapters.aws.folder import Entry
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.errors import HyperpodError
from hyperpod.ports.provider import BirthStatus, Instance

LIVE: Final = frozenset({"pending", "running", "stopping", "stopped"})
DEAD: Final = frozenset({"shutting-down", "terminated"})
_STATES: Final[Mapping[str, InstanceStatus]] = {
    "pending": InstanceStatus.PENDING,
    "running": InstanceStatus.RUNNING,
    "stopping": InstanceStatus.STOPPED,
    "stopped": InstanceStatus.STOPPED,
    "shutting-down": InstanceStatus.GONE,
    "terminated": InstanceStatus.GONE,
}
_EVENT_ACTIONS: Final[Mapping[str, Action]] = {
    # A reboot of ours does what this one would do. Every other event is about the hardware below the machine, which
    # only another machine leaves.
    "instance-reboot": Action.REBOOT,
    "system-reboot": Action.REPLACE,
    "system-maintenance": Action.REPLACE,
    "instance-retirement": Action.REPLACE,
    "instance-stop": Action.REPLACE,
}
_OVER: Final = ("[Completed]", "[Canceled]")
_INTERRUPTED: Final = ("marked-for-termination", "marked-for-stop")


@dataclass(frozen=True)
class Machine:
    """An instance of EC2 that carries our tags.

    ``node`` is its slot, empty when its tags name none; ``state`` is EC2's word.
    """

    id: str
    node: str
    group: str
    state: str
    address: str
    launched_at: datetime
    instance_type: str = ""
    role: Role = Role.WORKER
    is_spot: bool = False
    cluster: str = ""
    token: str = ""
    state_reason: str = ""
    zone: str = ""
    public_address: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Whether it runs, or can run again."""
        return self.state in LIVE


def parse_machine(data: Mapping[str, Any]) -> Machine:
    """Read one entry of DescribeInstances or RunInstances."""
    own = tags.tag_map(data.get("Tags"))
    try:
        role = Role(own.get(tags.ROLE, "worker"))
    except ValueError:
        role = Role.WORKER
    return Machine(
        id=str(data["InstanceId"]),
        node=tags.node_of(own, int(data.get("AmiLaunchIndex", 0))),
        group=own.get(tags.GROUP, ""),
        state=str(data.get("State", {}).get("Name", "")),
        address=str(data.get("PrivateIpAddress") or ""),
        launched_at=data.get("LaunchTime") or datetime.fromtimestamp(0, UTC),
        instance_type=str(data.get("InstanceType", "")),
        role=role,
        is_spot=data.get("InstanceLifecycle") == "spot",
        cluster=own.get(tags.CLUSTER, ""),
        token=own.get(tags.TOKEN, ""),
        state_reason=str(data.get("StateReason", {}).get("Message") or ""),
        zone=str(data.get("Placement", {}).get("AvailabilityZone") or ""),
        public_address=str(data.get("PublicIpAddress") or ""),
        tags=own,
    )


def parse_machines(entries: Iterable[Mapping[str, Any]]) -> tuple[list[Machine], list[str]]:
    """Read many entries; one that cannot be read is reported and does not hide the others."""
    machines, strange = [], []
    for data in entries:
        try:
            machines.append(parse_machine(data))
        except (KeyError, ValueError, TypeError, AttributeError, HyperpodError) as error:
            strange.append(f"{data.get('InstanceId', 'an instance without an id')}: {type(error).__name__}: {error}")
    return machines, strange


def holders(machines: Iterable[Machine]) -> dict[str, Machine]:
    """Return the rightful machine of every slot: of several live ones the oldest, whoever looks."""
    found: dict[str, Machine] = {}
    for machine in sorted(machines, key=lambda m: (m.launched_at, m.id)):
        if machine.is_live and machine.node:
            found.setdefault(machine.node, machine)
    return found


def births_of(entries: Iterable[Entry]) -> dict[str, BirthStatus]:
    """Return how far each machine's scripts are, by the newest record of each; equal times: the better news."""
    order = {BirthStatus.RUNNING: 0, BirthStatus.FAILED: 1, BirthStatus.OK: 2}
    newest: dict[str, tuple[datetime, int, BirthStatus]] = {}
    for entry in entries:
        identity, _, word = entry.name.rpartition("/")[2].rpartition(".")
        try:
            status = BirthStatus(word)
        except ValueError:
            continue
        found = (entry.written_at, order.get(status, 0), status)
        if identity not in newest or found[:2] > newest[identity][:2]:
            newest[identity] = found
    return {identity: found[2] for identity, found in newest.items()}


def instance_of(machine: Machine, birth: BirthStatus | None, *, is_holder: bool = True) -> Instance:
    """Return a machine in the port's words.

    Args:
        birth: What its scripts say; None when nobody can know.
        is_holder: Another machine is the rightful one of its slot otherwise, and it is shown without a slot.
    """
    status = _STATES.get(machine.state, InstanceStatus.UNKNOWN)
    if status is InstanceStatus.RUNNING and birth is not None and birth is not BirthStatus.OK:
        status = InstanceStatus.FAILED if birth is BirthStatus.FAILED else InstanceStatus.PENDING
    labels = {**machine.tags, "state": machine.state, "zone": machine.zone, "instance-type": machine.instance_type}
    if machine.public_address:
        labels["public-address"] = machine.public_address
    if machine.state_reason:
        labels["state-reason"] = machine.state_reason
    if not is_holder:
        labels["duplicate-of"] = machine.node
    return Instance(
        id=machine.id,
        node=machine.node if is_holder else "",
        group=machine.group,
        role=machine.role,
        address=machine.address,
        status=status,
        created_at=machine.launched_at.astimezone(UTC),
        labels=labels,
    )


def findings_of_status(data: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return what one entry of DescribeInstanceStatus says about a machine.

    A failed check of the host asks for another machine; a failed one of the system on it first for a reboot. What is
    scheduled is a WARN with a deadline: new work is kept away, jobs may end until shortly before.
    """
    identity = str(data.get("InstanceId", ""))
    found = []
    for key, code, action in (
        ("SystemStatus", "SystemCheckFailed", Action.REPLACE),
        ("InstanceStatus", "InstanceCheckFailed", Action.REBOOT),
        ("AttachedEbsStatus", "VolumeCheckFailed", Action.REPLACE),
    ):
        part = data.get(key) or {}
        if part.get("Status") == "impaired":
            since = next((d["ImpairedSince"] for d in part.get("Details", ()) if d.get("ImpairedSince")), None)
            found.append(
                Finding(
                    check="ec2_status",
                    code=code,
                    severity=Severity.FATAL,
                    message=f"EC2's {_words(key)} check of {identity} fails",
                    action=action,
                    since=since,
                    instance_id=identity,
                    is_hard=key != "InstanceStatus",
                    evidence=str(part)[:300],
                )
            )
    for event in data.get("Events") or ():
        text = str(event.get("Description") or "")
        if text.startswith(_OVER):
            continue
        code = str(event.get("Code") or "")
        begins = event.get("NotBefore")
        begins = begins.astimezone(UTC) if isinstance(begins, datetime) else None
        when = f" from {begins:%Y-%m-%d %H:%M} UTC" if begins else ""
        found.append(
            Finding(
                check="ec2_event",
                code="".join(word.capitalize() for word in code.split("-")) or "ScheduledEvent",
                severity=Severity.WARN,
                message=f"EC2 has scheduled {code.replace('-', ' ')} for {identity}{when}: {text}",
                action=_EVENT_ACTIONS.get(code, Action.NONE),
                instance_id=identity,
                device=str(event.get("InstanceEventId") or ""),
                is_hard=True,
                # Without a time nothing says how long jobs may go on.
                deadline=begins if code in _EVENT_ACTIONS else None,
            )
        )
    return tuple(found)


def findings_of_spot(data: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return what one entry of DescribeSpotInstanceRequests says: an interruption two minutes ahead."""
    status = data.get("Status") or {}
    identity = str(data.get("InstanceId") or "")
    if not identity or status.get("Code") not in _INTERRUPTED:
        return ()
    return (
        Finding(
            check="ec2_spot",
            code="SpotInterruption",
            severity=Severity.FATAL,
            message=f"EC2 takes the spot instance {identity} back: {status.get('Message') or status['Code']}",
            action=Action.REPLACE,
            since=status.get("UpdateTime"),
            instance_id=identity,
            is_hard=True,
        ),
    )


def _words(key: str) -> str:
    return {"SystemStatus": "system", "InstanceStatus": "instance", "AttachedEbsStatus": "volume"}[key]
