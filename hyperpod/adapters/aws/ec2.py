"""The EC2 provider: machines of one cluster, made from launch templates and found again by their tags.

Owns launches, ends and replacements. What differs between nodes is in the cluster's folder in S3. Nothing is kept
here: two programs may work on the same cluster, and each call may be killed anywhere and made again.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from hyperpod.adapters.aws import tags
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.cluster_keys import ensure_keys
from hyperpod.adapters.aws.commands import SsmConnection
from hyperpod.adapters.aws.folder import CLUSTER, PUBLIC, ClusterFolder, Entry
from hyperpod.adapters.aws.launch_template import (
    GroupSettings,
    describe_versions,
    ensure_template,
    find_templates,
    template_data,
    template_name,
)
from hyperpod.adapters.aws.machines import (
    Machine,
    births_of,
    findings_of_spot,
    findings_of_status,
    holders,
    instance_of,
    parse_machine,
    parse_machines,
)
from hyperpod.adapters.aws.placement import placement_groups
from hyperpod.adapters.nodeconfig import render_hosts, render_known_hosts, resource_config
from hyperpod.core.finding import Finding
from hyperpod.core.names import split_node_name
from hyperpod.core.node import Role
from hyperpod.errors import (
    AlreadyExists,
    ConfigError,
    HyperpodError,
    InvalidState,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    UnexpectedOutput,
)
from hyperpod.ports.provider import Birth, BirthStatus, Instance, NodeLaunch

logger = logging.getLogger(__name__)

ASLEEP: Final = "asleep"
"""Label of a machine that is stopped on purpose, as a spare."""
LAUNCH_AT_ONCE: Final = 200
"""Machines of one RunInstances. EC2 asks for some hundred at most; the bucket of launches holds 1,000."""
_NAMED_UP_TO: Final = 40
"""Machines of one launch that get a tag of their own with their name: one call for each, and EC2's bucket holds 50."""
_JUST_MADE: Final = timedelta(minutes=2)
"""So long EC2 may not know a new instance when it is asked about it."""
_POLL_S: Final = 2.0
_IDS_PER_CALL: Final = 100
_FENCE_S: Final = 4.0
"""How long a tick of the controller may be held up."""
_HEAD_TRIES: Final = 2
_HEAD_CONNECT_S: Final = 3.0
_HEAD_READ_S: Final = 8.0
"""For the controller's calls: one that gets no answer at all must end before the watchdog of its unit does."""


@dataclass
class DeleteReport:
    """What a deletion did: ``removed`` and ``left`` name resources, ``left`` with the reason."""

    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Ec2Provider:
    """Machines of one cluster. Implements ``ports.provider.Provider``, and ``Machines`` for the controller.

    Args:
        aws: The account and region.
        cluster: The cluster.
        folder: Its folder in S3.
        groups: How the machines of each group are made; only ``launch`` needs it. A replacement uses the group's
            launch template as it is.
        wait_s: How long a machine's end is waited for.
        fence_s: The same for ``power_off``. On the head node, where a tick must not be held up, it is short: the call
            fails with a delay and is made again. Default: as ``wait_s``.
        sleep, monotonic, now: The clock.
    """

    def __init__(
        self,
        aws: Aws,
        cluster: str,
        folder: ClusterFolder,
        groups: Mapping[str, GroupSettings] | None = None,
        *,
        wait_s: float = 600.0,
        fence_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.aws = aws
        self.cluster = cluster
        self.folder = folder
        self.groups = dict(groups or {})
        self._wait_s = wait_s
        self._fence_s = wait_s if fence_s is None else fence_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._now = now

    # --- the port

    def launch(self, specs: Sequence[NodeLaunch]) -> list[Instance]:
        """Make or start the machines that are missing; see ``ports.provider.Provider.launch``.

        Each group is all or nothing: when EC2 cannot give the whole of what a group lacks, none of it stays. A group
        that fails does not stop the others. Machines wait for ``configure`` before they do anything.

        Raises:
            NoCapacity: with what else there is; trying again later is what ``retry_after`` says.
            ConfigError: ``specs`` are of several clusters, or of an unknown group.
        """
        if not specs:
            return []
        self._check_cluster({spec.cluster for spec in specs})
        machines = self._machines()
        present = holders(machines)
        missing: dict[str, list[NodeLaunch]] = {}
        stopped = []
        for spec in specs:
            machine = present.get(spec.node)
            if machine is None:
                missing.setdefault(spec.group, []).append(spec)
            elif machine.state in ("stopping", "stopped"):
                stopped.append(machine)
        asleep = self._asleep() if stopped else frozenset()
        stopped = [machine for machine in stopped if machine.id not in asleep]
        failures: list[HyperpodError] = []
        for group, wanted in missing.items():
            seen = [machine.id for machine in machines if machine.group == group]
            try:
                for machine in self._launch_group(group, wanted, seen):
                    present[machine.node] = machine
            except HyperpodError as error:
                failures.append(error)
        for machine in stopped:
            try:
                self._start(machine)
            except HyperpodError as error:
                failures.append(error)
        self._remember_slots(specs, present)
        if failures:
            raise failures[0]
        births = self._births()
        return [
            instance_of(present[spec.node], births.get(present[spec.node].id, BirthStatus.PENDING)) for spec in specs
        ]

    def configure(self, specs: Sequence[NodeLaunch]) -> None:
        """Write the nodes' files and keys, and tell machines which node they are. They read it at every boot."""
        keys = ensure_keys(self.folder, [spec.node for spec in specs])
        bundles = {}
        for spec in specs:
            files = {name: _encoded(text.encode()) for name, text in spec.files.items()}
            files |= {name: _encoded(data) for name, data in keys.node_files(spec.node).items()}
            bundles[f"nodes/{spec.node}.json"] = {"files": files, "lifecycle_source": spec.lifecycle_source}
        self.folder.write_all(bundles, is_secret=True)
        present = holders(self._machines())
        self._remember_slots(specs, present)
        self._publish(present, {node: key for node, key in keys.host_public_keys.items()})

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        """Return every machine of the cluster, by group and slot.

        A machine that dies but has no successor yet is shown as gone. One too many in a slot is shown without a node.
        """
        self._check_cluster({cluster})
        machines = self._machines()
        births = self._births()
        present = holders(machines)
        asleep = self._asleep() if any(m.state in ("stopping", "stopped") for m in machines) else frozenset()
        shown = []
        for machine in machines:
            is_holder = present.get(machine.node) is machine
            if machine.state == "shutting-down" and machine.node not in present:
                is_holder = True
            elif not machine.is_live:
                continue
            instance = instance_of(machine, births.get(machine.id, BirthStatus.PENDING), is_holder=is_holder)
            if machine.id in asleep:
                instance = dataclasses.replace(instance, labels={**instance.labels, ASLEEP: "yes"})
            shown.append(instance)
        return tuple(sorted(shown, key=_slot_order))

    def terminate(self, instance_id: str) -> None:
        """End a machine for good; does not wait for its end."""
        try:
            self._require(instance_id)
        except NotFound:
            if self._was_ours(instance_id):
                return
            raise
        self._terminate([instance_id])

    def power_off(self, instance_id: str) -> None:
        """Stop a machine by force, or end it where it cannot be stopped; returns when EC2 says that it has stopped.

        Raises:
            NotFound: There never was such a machine.
            ProviderUnavailable: It has not stopped yet; call again.
        """
        try:
            machine = self._require(instance_id)
        except NotFound:
            if self._was_ours(instance_id):
                return
            raise
        if machine.state in ("stopped", "terminated"):
            return
        if machine.state in ("pending", "running", "stopping"):
            self._stop(machine)
        self._await({instance_id}, {"stopped", "terminated"}, "stop", self._fence_s)

    def power_on(self, instance_id: str) -> None:
        """Start a machine that was powered off; a running one is left alone."""
        self._start(self._require(instance_id))

    def reboot(self, instance_id: str) -> None:
        """Restart a machine. EC2 cuts its power by itself when it does not obey within some minutes."""
        machine = self._require(instance_id)
        if machine.state in ("stopping", "stopped"):
            self._start(machine)
            return
        if not machine.is_live:
            raise InvalidState(f"reboot {instance_id}", machine.state, hint="hyperpod replace-node gives another one")
        self._forget_birth(instance_id)
        self.aws.call("ec2", "RebootInstances", what=f"instance {instance_id}", repeat=True, InstanceIds=[instance_id])

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        """End a slot's machine and make another with the same name and address; see the port.

        Raises:
            NoCapacity: The old machine is gone and EC2 has no new one; the same call later goes on.
            ProviderUnavailable: The old machine has not ended yet; call again.
        """
        group, _ = split_node_name(node)
        machines = self._machines()
        machine = holders(machines).get(node)
        if machine is not None and machine.id != instance_id:
            return self._taken_over(machine)
        if machine is not None and token and machine.token == token:
            return self._taken_over(machine)
        slot = self._slot(node)
        if machine is None and slot is None:
            raise NotFound(f"cluster {self.cluster} has no node {node}", hint="hyperpod list-nodes shows them")
        dying = {m.id for m in machines if m.node == node and (m.is_live or m.state == "shutting-down")}
        if dying:
            self._terminate(sorted(dying))
            self._await(dying, {"terminated"}, "end")
        address = str((slot or {}).get("address") or (machine.address if machine else ""))
        fresh = self._launch_successor(node, str(group), instance_id, token, address, slot or {})
        if fresh.address != address:
            self._change_address(node, fresh.address)
        logger.info("replaced cluster=%s node=%s old=%s new=%s", self.cluster, node, instance_id, fresh.id)
        return self._taken_over(fresh)

    def connect(self, instance_id: str) -> SsmConnection:
        """Return a connection by Systems Manager; whether the machine answers shows at the first command."""
        return SsmConnection(self.aws, self._require(instance_id).id, sleep=self._sleep, monotonic=self._monotonic)

    def birth(self, instance_id: str) -> Birth:
        """Return the record that a machine's lifecycle scripts left in the folder."""
        status = self._births(instance_id).get(instance_id, BirthStatus.PENDING)
        log = f"{self.folder.uri}births/{instance_id}.log"
        if status is BirthStatus.PENDING:
            return Birth(instance_id, status, log_path=log)
        try:
            data = self.folder.read_json(f"births/{instance_id}.{status.value}") or {}
            return Birth(
                instance_id=instance_id,
                status=status,
                script=str(data.get("script", "")),
                exit_code=data.get("exit_code"),
                attempt=int(data.get("attempt", 0)),
                message=str(data.get("message", "")),
                tail=tuple(str(line) for line in data.get("tail", ()) if line),
                log_path=log,
                timings_ms={str(name): int(ms) for name, ms in data.get("timings_ms", {}).items()},
            )
        except (UnexpectedOutput, ValueError, TypeError, AttributeError) as error:
            return Birth(instance_id, status, message=f"its record is damaged: {error}", log_path=log)

    # --- beyond the port

    def addresses(self) -> dict[str, str]:
        """Return the address of every node name that has or had a machine."""
        slots = (self.folder.read_json(CLUSTER) or {}).get("slots", {})
        return {node: str(slot["address"]) for node, slot in slots.items() if slot.get("address")}

    def findings(self) -> dict[str, tuple[Finding, ...]]:
        """Return by node what EC2 knows to be wrong: failed status checks, scheduled events, spot interruptions."""
        present = holders(self._machines())
        by_id = {machine.id: node for node, machine in present.items() if machine.state in ("pending", "running")}
        found: dict[str, list[Finding]] = {}
        filters = [{"Name": f"{kind}.status", "Values": ["impaired"]} for kind in ("system-status", "instance-status")]
        scheduled = [
            {"Name": "event.code", "Values": ["instance-reboot", "system-reboot", "system-maintenance"]},
            {"Name": "event.code", "Values": ["instance-retirement", "instance-stop"]},
        ]
        seen: set[str] = set()
        for wanted in (*filters, *scheduled):
            for data in self.aws.pages(
                "ec2", "DescribeInstanceStatus", "InstanceStatuses", Filters=[wanted], IncludeAllInstances=False
            ):
                identity = str(data.get("InstanceId"))
                if identity in by_id and identity not in seen:
                    seen.add(identity)
                    found.setdefault(by_id[identity], []).extend(findings_of_status(data))
        if any(machine.is_spot for machine in present.values()):
            marked = [{"Name": "status-code", "Values": ["marked-for-termination", "marked-for-stop"]}]
            for data in self.aws.pages("ec2", "DescribeSpotInstanceRequests", "SpotInstanceRequests", Filters=marked):
                node = by_id.get(str(data.get("InstanceId")))
                if node is not None:
                    found.setdefault(node, []).extend(findings_of_spot(data))
        return {node: tuple(entries) for node, entries in sorted(found.items())}

    def park(self, instance_id: str) -> None:
        """Stop a spare in an orderly way so that it costs only its disk; ``power_on`` wakes it.

        EC2 keeps no capacity for a stopped machine: it may not start again.
        """
        machine = self._require(instance_id)
        if machine.is_spot:
            raise InvalidState(f"park {instance_id}", "a spot instance, which cannot be stopped")
        if machine.state in ("pending", "running"):
            # Written first: whoever makes the cluster again must not start what was stopped on purpose.
            self.folder.write_json(f"asleep/{instance_id}.json", {"node": machine.node})
            self.aws.call(
                "ec2", "StopInstances", what=f"instance {instance_id}", repeat=True, InstanceIds=[instance_id]
            )

    def forget_node(self, node: str) -> None:
        """Remove what is left of a node name after its machine was terminated by a scale-down."""

        def change(data: dict[str, Any]) -> dict[str, Any]:
            data.get("slots", {}).pop(node, None)
            return data

        self.folder.update_json(CLUSTER, change)
        self.folder.delete([f"nodes/{node}.json"])

    def delete(self, *, keep_folder: bool = False) -> DeleteReport:
        """Remove everything that carries the cluster's tag, in order, and say what could not be removed.

        Machines first, then what only they used, and last what the cluster is found by. Network, bucket and file
        systems were not made for one cluster and stay. Safe to repeat.
        """
        report = DeleteReport()
        machines = [m for m in self._machines() if m.state != "terminated"]
        # The head node first, and surely: its controller would replace the others.
        self._end_all([machine for machine in machines if machine.role is Role.HEAD], report)
        self._end_all([machine for machine in machines if machine.role is not Role.HEAD], report)
        # A head node that could not be ended must not replace the others: it needs their templates. One template stays
        # to the end, since by it the cluster is found, and so does the folder, in which the machines' keys are.
        heads = {machine.group for machine in machines if machine.role is Role.HEAD}
        templates = sorted(find_templates(self.aws, self.cluster), key=lambda t: _group_of(t) in heads)
        for template in templates[:-1]:
            self._delete_template(template, report)
        try:
            groups = placement_groups(self.aws, self.cluster)
        except HyperpodError as error:
            groups = []
            report.left.append(f"placement groups of cluster {self.cluster}: {error.message}")
        for name in groups:
            remove = partial(self.aws.call, "ec2", "DeletePlacementGroup", repeat=True, GroupName=name)
            _attempt(report, f"placement group {name}", remove)
        if not report.left and not keep_folder:
            try:
                names = [entry.name for entry in self.folder.entries()]
                left = self.folder.delete(names)
                report.left += left
                if len(names) > len(left):
                    report.removed.append(f"{len(names) - len(left)} objects in {self.folder.uri}")
            except HyperpodError as error:
                report.left.append(f"{self.folder.uri}: {error.message}")
        if not report.left:
            for template in templates[-1:]:
                self._delete_template(template, report)
        elif templates:
            name = templates[-1]["LaunchTemplateName"]
            report.left.append(f"launch template {name}: kept until the rest is gone, so that this command finds it")
        report.left += self._still_there()
        return report

    def _delete_template(self, template: Mapping[str, Any], report: DeleteReport) -> None:
        identity = str(template["LaunchTemplateId"])
        remove = partial(self.aws.call, "ec2", "DeleteLaunchTemplate", repeat=True, LaunchTemplateId=identity)
        _attempt(report, f"launch template {template['LaunchTemplateName']}", remove)

    # --- launching

    def _launch_group(self, group: str, wanted: Sequence[NodeLaunch], seen: Collection[str]) -> list[Machine]:
        settings = self.groups.get(group)
        if settings is None:
            raise ConfigError(f"no settings for instance group {group} of cluster {self.cluster}")
        data = template_data(settings, self.cluster, group)
        folder = f"{self.folder.bucket}/{self.folder.prefix}"
        template = ensure_template(self.aws, self.cluster, group, data, folder=folder)
        roles = {spec.node: spec.role for spec in wanted}
        made: list[Machine] = []
        try:
            for nodes in tags.batches(list(roles), LAUNCH_AT_ONCE):
                own = {
                    tags.SLOTS: tags.slots_text(nodes),
                    tags.ROLE: roles[nodes[0]].value,
                    tags.NAME: f"{self.cluster}/{group}",
                }
                token = _client_token(self.cluster, group, *nodes, "|", *sorted(seen), json.dumps(data, sort_keys=True))
                made += self._run(template, data, own, len(nodes), token, f"{len(nodes)} x {settings.shape.name}")
        except HyperpodError as error:
            if made:
                # All or nothing: half a group cannot train and costs as much.
                with contextlib.suppress(HyperpodError):
                    self._terminate([machine.id for machine in made])
            if isinstance(error, NoCapacity):
                raise self._no_capacity(error, group, data) from error
            raise
        self._name(made)
        return made

    def _run(
        self, template: str, data: Mapping[str, Any], own: Mapping[str, str], count: int, token: str, what: str
    ) -> list[Machine]:
        # Given again beside the template, since a fixed address can only be set here.
        interfaces = [dict(interface) for interface in data.get("NetworkInterfaces", ())]
        group = str(next(t["Value"] for t in data["TagSpecifications"][0]["Tags"] if t["Key"] == tags.GROUP))
        base = tags.tag_map(data["TagSpecifications"][0]["Tags"])
        answer = self.aws.call(
            "ec2",
            "RunInstances",
            what=f"{what} for group {group} of cluster {self.cluster}",
            # The token makes a repetition harmless.
            repeat=True,
            LaunchTemplate={"LaunchTemplateId": template, "Version": "$Default"},
            MinCount=count,
            MaxCount=count,
            ClientToken=token,
            NetworkInterfaces=interfaces,
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": tags.tag_list({**base, **own})},
                {"ResourceType": "volume", "Tags": tags.tag_list({**base, tags.NAME: own[tags.NAME]})},
                {"ResourceType": "network-interface", "Tags": tags.tag_list({**base, tags.NAME: own[tags.NAME]})},
            ],
        )
        machines, strange = parse_machines(answer.get("Instances", ()))
        for text in strange:
            logger.warning("an instance is not understood: %s", text)
        return machines

    def _launch_successor(
        self, node: str, group: str, instance_id: str, token: str, address: str, slot: Mapping[str, Any]
    ) -> Machine:
        templates = find_templates(self.aws, self.cluster, group)
        if not templates:
            raise NotFound(
                f"group {group} of cluster {self.cluster} has no launch template {template_name(self.cluster, group)}",
                hint="hyperpod create-cluster with the cluster's specification makes it again",
            )
        template = str(templates[0]["LaunchTemplateId"])
        data = describe_versions(self.aws, template, ["$Default"])[0]["LaunchTemplateData"]
        own = {
            tags.NODE: node,
            tags.TOKEN: token,
            tags.ROLE: str(slot.get("role") or Role.WORKER.value),
            tags.NAME: f"{self.cluster}/{node}",
        }
        try:
            if address:
                try:
                    return self._run_at(address, template, data, own, node, instance_id, token)
                except AlreadyExists as error:
                    other = self._behind(node, address, instance_id, error)
                    if other is not None:
                        return other
            return self._run_at("", template, data, own, node, instance_id, token)
        except NoCapacity as error:
            raise self._no_capacity(error, group, data) from error

    def _run_at(
        self,
        address: str,
        template: str,
        data: Mapping[str, Any],
        own: Mapping[str, str],
        node: str,
        instance_id: str,
        token: str,
    ) -> Machine:
        interfaces = [dict(interface) for interface in data.get("NetworkInterfaces", ())]
        if address and interfaces:
            interfaces[0]["PrivateIpAddress"] = address
        client_token = _client_token(self.cluster, node, instance_id, token, address, json.dumps(data, sort_keys=True))
        made = self._run(
            template, {**data, "NetworkInterfaces": interfaces}, own, 1, client_token, str(data.get("InstanceType"))
        )
        if not made:
            raise ProviderUnavailable(f"EC2 named no instance for {node}", hint="try again")
        return made[0]

    def _behind(self, node: str, address: str, instance_id: str, error: AlreadyExists) -> Machine | None:
        """Return the machine in the slot if one has its address already; None when the address is somebody else's.

        Raises:
            ProviderUnavailable: It still belongs to the machine that just ended.
        """
        other = holders(self._machines()).get(node)
        if other is not None and other.id != instance_id:
            return other
        filters = [{"Name": "addresses.private-ip-address", "Values": [address]}]
        for interface in self.aws.pages(
            "ec2", "DescribeNetworkInterfaces", "NetworkInterfaces", what=f"address {address}", Filters=filters
        ):
            owner = tags.tag_map(interface.get("TagSet")).get(tags.CLUSTER)
            attached = str(interface.get("Attachment", {}).get("InstanceId") or "")
            if attached == instance_id or (owner == self.cluster and not attached):
                break
            if attached or owner != self.cluster:
                logger.warning("address taken node=%s address=%s by=%s", node, address, attached or interface)
                return None
        raise ProviderUnavailable(f"{node}'s address {address} is not free yet", hint="try again") from error

    def _name(self, machines: Sequence[Machine]) -> None:
        """Show node names in the console. Nothing relies on it: the slot is known from the launch."""
        if len(machines) > _NAMED_UP_TO:
            return
        for machine in machines:
            with contextlib.suppress(ProviderError):
                named = {tags.NODE: machine.node, tags.NAME: f"{self.cluster}/{machine.node}"}
                self.aws.call("ec2", "CreateTags", repeat=True, Resources=[machine.id], Tags=tags.tag_list(named))

    def _no_capacity(self, error: NoCapacity, group: str, data: Mapping[str, Any]) -> NoCapacity:
        kind = str(data.get("InstanceType", ""))
        hint = f"other zones with {kind}: {', '.join(self._zones_with(kind)) or 'none'}; or another instance type"
        if data.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
            hint += ", or on demand instead of spot"
        if not data.get("CapacityReservationSpecification"):
            hint += ", or a capacity reservation"
        fresh = NoCapacity(f"{error.message} (group {group})", hint=hint)
        fresh.retry_after = error.retry_after
        return fresh

    def _zones_with(self, instance_type: str) -> list[str]:
        try:
            offers = self.aws.pages(
                "ec2",
                "DescribeInstanceTypeOfferings",
                "InstanceTypeOfferings",
                LocationType="availability-zone",
                Filters=[{"Name": "instance-type", "Values": [instance_type]}],
            )
            return sorted(str(offer["Location"]) for offer in offers)
        except HyperpodError:
            return []

    # --- ending and waiting

    def _stop(self, machine: Machine) -> None:
        if machine.is_spot:
            self._terminate([machine.id])
            return
        faster: dict[str, Any] = (
            {"SkipOsShutdown": True} if self.aws.knows("ec2", "StopInstances", "SkipOsShutdown") else {}
        )
        try:
            # Also when it is stopping already: by force it stops although its system does not answer.
            self.aws.call(
                "ec2",
                "StopInstances",
                what=f"instance {machine.id}",
                repeat=True,
                InstanceIds=[machine.id],
                Force=True,
                **faster,
            )
        except (InvalidState, ProviderError, ConfigError) as error:
            if _code(error) == "UnsupportedOperation" or machine.state == "pending":
                # It cannot be stopped: a machine without a fence would be worse than none.
                self._terminate([machine.id])
            elif machine.state != "stopping":
                raise

    def _terminate(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _IDS_PER_CALL):
            part = list(ids[start : start + _IDS_PER_CALL])
            try:
                self.aws.call("ec2", "TerminateInstances", what=", ".join(part[:3]), repeat=True, InstanceIds=part)
            except NotFound:
                # One unknown id refuses them all.
                if len(part) > 1:
                    for one in part:
                        self._terminate([one])

    def _start(self, machine: Machine) -> None:
        if machine.state in ("pending", "running"):
            return
        if machine.state == "stopping":
            self._await({machine.id}, {"stopped"}, "stop")
        self._forget_birth(machine.id)
        self.folder.delete([f"asleep/{machine.id}.json"])
        self.aws.call("ec2", "StartInstances", what=f"instance {machine.id}", repeat=True, InstanceIds=[machine.id])

    def _await(self, ids: Collection[str], states: Collection[str], what: str, wait_s: float | None = None) -> None:
        """Wait until EC2 says of every instance that it is in one of the states; one that is forgotten has ended."""
        wait_s = self._wait_s if wait_s is None else wait_s
        deadline = self._monotonic() + wait_s
        left = set(ids)
        while True:
            now = self._states(sorted(left))
            left = {identity for identity in left if identity in now and now[identity] not in states}
            if not left:
                return
            if self._monotonic() >= deadline:
                shown = ", ".join(f"{identity} is {now[identity]}" for identity in sorted(left)[:3])
                raise ProviderUnavailable(f"EC2 has not let {what} after {wait_s:g} s: {shown}", hint="try again")
            self._sleep(min(_POLL_S, max(deadline - self._monotonic(), 0.05)))

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(ids), _IDS_PER_CALL):
            filters = [{"Name": "instance-id", "Values": list(ids[start : start + _IDS_PER_CALL])}]
            for reservation in self.aws.pages("ec2", "DescribeInstances", "Reservations", Filters=filters):
                for data in reservation.get("Instances", ()):
                    found[str(data["InstanceId"])] = str(data["State"]["Name"])
        return found

    def _end_all(self, machines: Sequence[Machine], report: DeleteReport) -> None:
        ended = []
        for start in range(0, len(machines), _IDS_PER_CALL):
            part = [machine.id for machine in machines[start : start + _IDS_PER_CALL]]
            try:
                self._terminate(part)
                ended += part
            except HyperpodError:
                # One protected machine refuses its whole batch: the others must go all the same.
                for identity in part:
                    if _attempt(report, f"instance {identity}", partial(self._terminate, [identity]), is_silent=True):
                        ended.append(identity)
        try:
            self._await(ended, {"terminated"}, "end")
        except HyperpodError as error:
            report.left.append(f"instances: {error.message}")
            return
        report.removed += [f"instance {identity}" for identity in ended]

    def _still_there(self) -> list[str]:
        """Return what outlived its machine, such as a volume that was told to, and is found by the cluster's tag."""
        filters = tags.tag_filters(cluster=self.cluster)
        left = []
        for operation, key, identity, kind in (
            ("DescribeVolumes", "Volumes", "VolumeId", "volume"),
            ("DescribeNetworkInterfaces", "NetworkInterfaces", "NetworkInterfaceId", "network interface"),
        ):
            try:
                found = [item for item in self.aws.pages("ec2", operation, key, Filters=filters)]
            except HyperpodError as error:
                left.append(f"{kind}s with the tag {tags.CLUSTER}={self.cluster}: {error.message}")
                continue
            left += [
                f"{kind} {item[identity]}: it outlived its machine and still costs"
                for item in found
                if item.get("State", item.get("Status")) not in ("deleting", "deleted")
            ]
        return left

    # --- looking

    def _machines(self) -> list[Machine]:
        filters = tags.tag_filters(cluster=self.cluster)
        entries = [
            data
            for reservation in self.aws.pages(
                "ec2", "DescribeInstances", "Reservations", what=f"cluster {self.cluster}", Filters=filters
            )
            for data in reservation.get("Instances", ())
        ]
        machines, strange = parse_machines(entries)
        for text in strange:
            logger.warning("an instance is not understood and left out: %s", text)
        return machines

    def _require(self, instance_id: str) -> Machine:
        answer = self.aws.call("ec2", "DescribeInstances", what=f"instance {instance_id}", InstanceIds=[instance_id])
        for reservation in answer.get("Reservations", ()):
            for data in reservation.get("Instances", ()):
                machine = parse_machine(data)
                if machine.cluster != self.cluster:
                    break
                return machine
        raise NotFound(
            f"no instance {instance_id} in cluster {self.cluster}",
            hint="hyperpod list-nodes shows them; other instances of the account are never touched",
        )

    def _was_ours(self, instance_id: str) -> bool:
        """Say whether an instance that EC2 does not know was a machine of this cluster.

        Raises:
            ProviderUnavailable: It is so new that EC2 may not know it yet.
        """
        for entry in self.folder.entries(f"instances/{instance_id}.json"):
            if self._now() - entry.written_at < _JUST_MADE:
                raise ProviderUnavailable(f"EC2 does not know {instance_id} yet", hint="try again")
            return True
        return False

    def _births(self, instance_id: str = "") -> dict[str, BirthStatus]:
        return births_of(self.folder.entries(f"births/{instance_id}"))

    def _asleep(self) -> frozenset[str]:
        """Return the machines that are stopped on purpose, as spares."""
        names = (entry.name for entry in self.folder.entries("asleep/"))
        return frozenset(name.removeprefix("asleep/").removesuffix(".json") for name in names)

    def _forget_birth(self, instance_id: str) -> None:
        """The record of the last boot must not be taken for that of the next."""
        names = [entry.name for entry in self.folder.entries(f"births/{instance_id}.")]
        self.folder.delete([name for name in names if not name.endswith(".log")])

    # --- slots

    def _slot(self, node: str) -> dict[str, Any] | None:
        found = (self.folder.read_json(CLUSTER) or {}).get("slots", {}).get(node)
        return dict(found) if isinstance(found, dict) else None

    def _remember_slots(self, specs: Sequence[NodeLaunch], present: Mapping[str, Machine]) -> None:
        def change(data: dict[str, Any]) -> dict[str, Any]:
            slots = data.setdefault("slots", {})
            for spec in specs:
                plain = {key: value for key, value in dataclasses.asdict(spec).items() if key != "files"}
                address = slots.get(spec.node, {}).get("address", "")
                if spec.node in present:
                    address = present[spec.node].address or address
                slots[spec.node] = {**plain, "role": spec.role.value, "address": address}
            return data

        self.folder.update_json(CLUSTER, change)

    def _change_address(self, node: str, address: str) -> None:
        def change(data: dict[str, Any]) -> dict[str, Any]:
            data.setdefault("slots", {}).setdefault(node, {})["address"] = address
            return data

        self.folder.update_json(CLUSTER, change)

    def _taken_over(self, machine: Machine) -> Instance:
        """Make sure that a machine is told which node it is; the same however often it is done."""
        if self.folder.read(f"instances/{machine.id}.json") is None:
            self._publish({**holders(self._machines()), machine.node: machine}, None)
        return instance_of(machine, self._births(machine.id).get(machine.id, BirthStatus.PENDING))

    def _publish(self, present: Mapping[str, Machine], host_keys: Mapping[str, str] | None) -> None:
        """Write what all nodes may read; then let the machines that wait begin."""
        data = self.folder.read_json(CLUSTER) or {}
        slots = data.get("slots", {})
        addresses = {node: str(slot["address"]) for node, slot in slots.items() if slot.get("address")}
        launches = [_launch_of(slot) for slot in slots.values() if slot.get("node")]

        def change(before: dict[str, Any]) -> dict[str, Any]:
            keys = dict(host_keys) if host_keys is not None else dict(before.get("host_keys", {}))
            ids = {node: machine.id for node, machine in present.items() if node in addresses}
            arn = f"arn:aws:sagemaker:{self.aws.region_name}:000000000000:cluster/{self.cluster}"
            config = resource_config(self.cluster, launches, addresses, ids, arn=arn)
            return {
                "host_keys": keys,
                "files": {
                    "hosts": render_hosts(addresses),
                    "known_hosts": render_known_hosts(addresses, keys),
                    "resource_config.json": json.dumps(config, indent=1) + "\n",
                },
            }

        self.folder.update_json(PUBLIC, change)
        told = {entry.name: entry for entry in self._told()}
        self.folder.write_all(
            {
                name: {"node": node, "group": machine.group, "address": machine.address, "instance_id": machine.id}
                for node, machine in present.items()
                if (name := f"instances/{machine.id}.json") not in told and node in slots
            }
        )

    def _told(self) -> list[Entry]:
        return list(self.folder.entries("instances/"))

    def _check_cluster(self, names: Collection[str]) -> None:
        if set(names) != {self.cluster}:
            raise ConfigError(f"this is about cluster {self.cluster}, not {', '.join(sorted(names))}")


def clusters(aws: Aws) -> dict[str, str]:
    """Return the clusters of the account and region by their launch templates: name to bucket and prefix."""
    filters = [{"Name": "tag-key", "Values": [tags.CLUSTER]}]
    found: dict[str, str] = {}
    for template in aws.pages("ec2", "DescribeLaunchTemplates", "LaunchTemplates", Filters=filters):
        own = tags.tag_map(template.get("Tags"))
        if own.get(tags.CLUSTER):
            found[own[tags.CLUSTER]] = own.get(tags.FOLDER, "")
    return dict(sorted(found.items()))


def find_provider(aws: Aws, cluster: str, **options: Any) -> Ec2Provider:
    """Return the provider of a cluster that is there, found by its tags.

    Raises:
        NotFound: There is none of this name in the account and region.
    """
    bucket, _, prefix = clusters(aws).get(cluster, "").partition("/")
    if not prefix:
        raise NotFound(
            f"no cluster {cluster} on EC2 in account {aws.account()}, {aws.region_name}",
            hint="hyperpod list-clusters --provider ec2",
        )
    return Ec2Provider(aws, cluster, ClusterFolder(aws, bucket, prefix), **options)


def on_head_node(config: Mapping[str, Any]) -> Ec2Provider:
    """Return the provider as the controller uses it, with the rights of its machine's own role.

    Args:
        config: ``cluster``, ``region``, ``bucket`` and ``prefix``, as ``controller.json`` has them.
    Raises:
        ConfigError: One is missing.
    """
    for key in ("cluster", "region", "bucket", "prefix"):
        if not config.get(key):
            raise ConfigError(f"controller.json: provider.{key} is missing; a provider of kind ec2 needs it")
    # A call is made in a tick, and a tick that is held up for too long looks like a controller that hangs.
    aws = Aws(
        region=str(config["region"]),
        max_tries=_HEAD_TRIES,
        connect_timeout_s=_HEAD_CONNECT_S,
        read_timeout_s=_HEAD_READ_S,
    )
    folder = ClusterFolder(aws, str(config["bucket"]), str(config["prefix"]))
    return Ec2Provider(aws, str(config["cluster"]), folder, fence_s=_FENCE_S)


def _group_of(template: Mapping[str, Any]) -> str:
    return tags.tag_map(template.get("Tags")).get(tags.GROUP, "")


def _launch_of(slot: Mapping[str, Any]) -> NodeLaunch:
    known = {f.name for f in dataclasses.fields(NodeLaunch)}
    return NodeLaunch(**{**{k: v for k, v in slot.items() if k in known}, "role": Role(slot["role"])})


def _slot_order(instance: Instance) -> tuple[int, str, int, str]:
    order = {Role.HEAD: 0, Role.LOGIN: 1, Role.WORKER: 2}[instance.role]
    index = int(instance.node.rpartition("-")[2]) if instance.node else 0
    return (order, instance.group, index, instance.id)


def _client_token(*parts: str) -> str:
    """Return the token of a launch: the same wish on the same ground gives the same machines."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:64]


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _code(error: BaseException) -> str:
    return str(getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", ""))


def _attempt(report: DeleteReport, name: str, work: Callable[[], object], *, is_silent: bool = False) -> bool:
    """Do one removal; its failure is reported and does not stop the others."""
    try:
        work()
    except NotFound:
        return True
    except HyperpodError as error:
        report.left.append(f"{name}: {error.message}")
        return False
    if not is_silent:
        report.removed.append(name)
    return True
