"""One HyperPod cluster as a provider of machines: what the port means there, and what has no meaning.

Owns the roles of groups, which the API tells only for some clusters. Machines are made by the service, never one by
one; it has no switch for a machine's power, so whoever needs a fence must take replacement as one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from hyperpod.adapters.aws.sagemaker import NodeResult, SageMaker, log_group, log_stream, session_target
from hyperpod.adapters.aws.sagemaker_views import Cluster, Group, Node, instance_of
from hyperpod.adapters.aws.session import SessionConnection
from hyperpod.config.roles import PARAMETERS_FILE
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.errors import HyperpodError, InvalidState, NotFound, ProviderError
from hyperpod.ports.process import ProcessRunner
from hyperpod.ports.provider import Birth, BirthStatus, Instance, NodeLaunch


@dataclass
class SageMakerProvider:
    """Implements ``ports.provider.Provider`` for one cluster.

    Attributes:
        api: The account.
        cluster_name: The cluster that instance ids belong to.
        processes: Runs the session-manager-plugin.
    """

    api: SageMaker
    cluster_name: str
    processes: ProcessRunner
    _roles: dict[str, Role] = field(default_factory=dict)

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        """Return every machine, by group and name; nothing for a cluster that does not exist."""
        found = self.api.find(cluster)
        if found is None:
            return ()
        roles = self.roles(found)
        return tuple(instance_of(node, roles.get(node.group, Role.WORKER)) for node in self.api.nodes(cluster))

    def roles(self, cluster: Cluster) -> Mapping[str, Role]:
        """Return the role of each group: by SlurmConfig, else by the legacy file in S3, else by the groups' names."""
        unknown = [group for group in cluster.groups if group.role is None and group.name not in self._roles]
        self._roles |= {group.name: group.role for group in cluster.groups if group.role is not None}
        if unknown:
            parameters = self._parameters(unknown)
            self._roles |= {group.name: _role_by(group, parameters) for group in unknown}
        return self._roles

    def _parameters(self, groups: Sequence[Group]) -> Mapping[str, Any]:
        """Read provisioning_parameters.json where the scripts lie; without the right to do so there is none."""
        for source in {str((g.details.get("LifeCycleConfig") or {}).get("SourceS3Uri", "")) for g in groups} - {""}:
            parts = urlsplit(source)
            key = f"{parts.path.strip('/')}/{PARAMETERS_FILE}".lstrip("/")
            try:
                answer = self.api.aws.call("s3", "GetObject", what=source, Bucket=parts.netloc, Key=key)
                data = json.loads(answer["Body"].read())
            except (HyperpodError, ValueError):
                continue
            if isinstance(data, dict):
                return data
        return {}

    def launch(self, specs: Sequence[NodeLaunch]) -> list[Instance]:
        """Return the machines that are there; the service makes those that are missing by itself.

        Raises:
            InvalidState: Some slots have none yet.
        """
        there = {instance.node: instance for instance in self.observe(self.cluster_name)}
        missing = [spec.node for spec in specs if spec.node not in there]
        if missing:
            raise InvalidState(
                f"launch {', '.join(missing)}",
                "the service's own work",
                hint=f"hyperpod update-cluster --cluster {self.cluster_name} --group GROUP --count N",
            )
        return [there[spec.node] for spec in specs]

    def terminate(self, instance_id: str) -> None:
        """Remove a machine and make its group smaller. One that is gone is done."""
        self._only(self.api.delete_nodes(self.cluster_name, [instance_id]), "remove")

    def reboot(self, instance_id: str) -> None:
        """Restart a machine."""
        self._only(self.api.reboot_nodes(self.cluster_name, [instance_id]), "reboot")

    def power_off(self, instance_id: str) -> None:
        """Refuse: HyperPod cannot cut a machine's power.

        Raises:
            ProviderError: Always, unless the machine is gone.
        """
        if any(i.id == instance_id and i.status is not InstanceStatus.GONE for i in self.observe(self.cluster_name)):
            raise ProviderError(
                f"HyperPod cannot power {instance_id} off", hint="replacing the node ends everything that runs on it"
            )

    def power_on(self, instance_id: str) -> None:
        """Do nothing for a machine that runs, as all of them do.

        Raises:
            NotFound: It is gone.
        """
        self._instance(instance_id)

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        """Ask for another machine in a slot; returns the one that is there now, the old one as long as it stays.

        Raises:
            NotFound: The cluster has no such slot. The machine named is then somebody else's, and left alone.
        """
        now = next((i for i in self.observe(self.cluster_name) if i.node == node), None)
        if now is None:
            raise NotFound(
                f"cluster {self.cluster_name} has no node {node}", hint="hyperpod list-nodes shows those there are"
            )
        if now.id != instance_id:
            return now
        self._only(self.api.replace_nodes(self.cluster_name, [instance_id]), "replace")
        instances = self.observe(self.cluster_name)
        found = next((i for i in instances if i.node == node or i.id == instance_id), None)
        if found is None:
            raise NotFound(f"node {node} of cluster {self.cluster_name} is gone while it is replaced")
        return found

    def connect(self, instance_id: str) -> SessionConnection:
        """Return the way to a machine through Session Manager.

        Raises:
            NotFound: It is not in the cluster.
        """
        cluster = self.api.describe(self.cluster_name)
        node = self._node(instance_id)
        return SessionConnection(session_target(cluster, node), self.api.aws, self.processes)

    def birth(self, instance_id: str) -> Birth:
        """Return how a machine's lifecycle script went: the service's word, and the end of its log."""
        cluster = self.api.describe(self.cluster_name)
        try:
            node = self._node(instance_id)
        except NotFound:
            return Birth(instance_id, BirthStatus.PENDING, message="not in the cluster")
        status = {
            InstanceStatus.RUNNING: BirthStatus.OK,
            InstanceStatus.FAILED: BirthStatus.FAILED,
        }.get(node.state, BirthStatus.RUNNING)
        tail = () if status is BirthStatus.OK else self.api.log_tail(cluster, node.group, instance_id)
        group = cluster.group(node.group)
        lifecycle: Mapping[str, Any] = (group.details.get("LifeCycleConfig") or {}) if group else {}
        return Birth(
            instance_id,
            status,
            script=str(lifecycle.get("OnCreate") or lifecycle.get("OnInitComplete") or ""),
            message=node.message,
            tail=tail,
            log_path=f"{log_group(cluster)} {log_stream(node.group, instance_id)}",
        )

    def _instance(self, instance_id: str) -> Instance:
        found = next((i for i in self.observe(self.cluster_name) if i.id == instance_id), None)
        if found is None:
            raise NotFound(f"cluster {self.cluster_name} has no instance {instance_id}")
        return found

    def _node(self, instance_id: str) -> Node:
        found = next((n for n in self.api.nodes(self.cluster_name) if n.instance_id == instance_id), None)
        if found is None:
            raise NotFound(f"cluster {self.cluster_name} has no instance {instance_id}")
        return found

    def _only(self, results: Sequence[NodeResult], verb: str) -> None:
        for result in results:
            if not result.is_done:
                raise refusal(result, verb)


def refusal(result: NodeResult, verb: str) -> HyperpodError:
    """Return the error that says why a node of a batch was not done."""
    text = f"{result.code}: {result.message}".rstrip(": ")
    if result.code.endswith("NotFound"):
        return NotFound(f"cannot {verb} {result.node}: {text}", hint="hyperpod list-nodes shows those there are")
    if result.code in ("InvalidInstanceStatus", "InvalidNodeStatus", "InstanceIdInUse", "NodeIdInUse"):
        return InvalidState(
            f"{verb} {result.node}", f"not in a state for it ({text})", hint="controllers cannot be replaced or removed"
        )
    return ProviderError(f"cannot {verb} {result.node}: {text}")


def _role_by(group: Group, parameters: Mapping[str, Any]) -> Role:
    if parameters:
        named = {parameters.get("controller_group"): Role.HEAD, parameters.get("login_group"): Role.LOGIN}
        return named.get(group.name, Role.WORKER)
    name = group.name.lower()
    if group.target == 1 and ("controller" in name or "head" in name):
        return Role.HEAD
    return Role.LOGIN if "login" in name else Role.WORKER
