"""HyperPod's answers as typed values, and its words for states as ours.

Pure. Reads only what the service wrote; a field that it left out is empty here, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from hyperpod.core.node import InstanceStatus, Role
from hyperpod.errors import UnexpectedOutput
from hyperpod.ports.provider import Instance

_NODE_TYPES: Final = {"Controller": Role.HEAD, "Login": Role.LOGIN, "Compute": Role.WORKER}
_STATUSES: Final = {
    "Running": InstanceStatus.RUNNING,
    "DeepHealthCheckInProgress": InstanceStatus.RUNNING,
    "AttachInProgress": InstanceStatus.RUNNING,
    "DetachInProgress": InstanceStatus.RUNNING,
    "Pending": InstanceStatus.PENDING,
    "SystemUpdating": InstanceStatus.PENDING,
    "Failure": InstanceStatus.FAILED,
    "ShuttingDown": InstanceStatus.GONE,
    "NotFound": InstanceStatus.GONE,
}
_BUSY: Final = frozenset({"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"})
_HOST: Final = re.compile(r"ip-(\d+)-(\d+)-(\d+)-(\d+)(?:\..*)?")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Group:
    """An instance group as the service has it; ``role`` is None where only the legacy parameters file says it."""

    name: str
    instance_type: str
    current: int
    target: int
    status: str
    role: Role | None
    partition: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """True when as many instances are there as are wanted."""
        return self.current == self.target


@dataclass(frozen=True)
class Cluster:
    """A cluster as the service describes it. ``id`` is the last part of its ARN."""

    name: str
    arn: str
    status: str
    failure: str
    created_at: datetime
    groups: tuple[Group, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.arn.rpartition("/")[2]

    @property
    def is_busy(self) -> bool:
        """True while the service works on it; it refuses changes then."""
        return self.status in _BUSY

    @property
    def is_continuous(self) -> bool:
        return self.details.get("NodeProvisioningMode") == "Continuous"

    @property
    def is_settled(self) -> bool:
        """True when it is in service with all instances: the status alone stays InService while it scales."""
        return self.status == "InService" and all(group.is_settled for group in self.groups)

    def group(self, name: str) -> Group | None:
        return next((group for group in self.groups if group.name == name), None)


@dataclass(frozen=True)
class Node:
    """An instance in a cluster. ``name`` is what Slurm calls it, once it has an address."""

    instance_id: str
    group: str
    status: str
    message: str
    instance_type: str
    launched_at: datetime
    host: str = ""
    logical_id: str = ""

    @property
    def name(self) -> str:
        """Slurm's name, ``ip-10-1-2-3``; before it has one ``<group>-<instance id>``."""
        return self.host.partition(".")[0] or f"{self.group}-{self.instance_id}"

    @property
    def address(self) -> str:
        """The IPv4 address, which its host name tells; empty before it has one."""
        match = _HOST.fullmatch(self.host)
        return ".".join(match.groups()) if match else ""

    @property
    def state(self) -> InstanceStatus:
        return _STATUSES.get(self.status, InstanceStatus.UNKNOWN)

    def is_called(self, text: str) -> bool:
        """Say whether a person means this node: by Slurm's name, instance id, logical id, address or target name."""
        known = {self.name, self.instance_id, self.logical_id, self.address, self.host}
        return text in known | {f"{self.group}-{self.instance_id}"} - {""}


def cluster_of(answer: Mapping[str, Any]) -> Cluster:
    """Read the answer of DescribeCluster, or a summary of ListClusters.

    Raises:
        UnexpectedOutput: if it is neither.
    """
    try:
        return Cluster(
            name=str(answer["ClusterName"]),
            arn=str(answer["ClusterArn"]),
            status=str(answer["ClusterStatus"]),
            failure=" ".join(str(answer.get("FailureMessage") or "").split()),
            created_at=_time(answer.get("CreationTime")),
            groups=tuple(_group_of(group) for group in answer.get("InstanceGroups", ())),
            details={key: value for key, value in answer.items() if key != "ResponseMetadata"},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedOutput("sagemaker DescribeCluster", str(answer)) from error


def _group_of(group: Mapping[str, Any]) -> Group:
    slurm: Mapping[str, Any] = group.get("SlurmConfig") or {}
    needs: Mapping[str, Any] = group.get("InstanceRequirements") or {}
    types = needs.get("DesiredInstanceTypes") or needs.get("CurrentInstanceTypes") or ()
    return Group(
        name=str(group["InstanceGroupName"]),
        instance_type=str(group.get("InstanceType") or ",".join(types)),
        current=int(group.get("CurrentCount", 0)),
        target=int(group.get("TargetCount", 0)),
        status=str(group.get("Status", "")),
        role=_NODE_TYPES.get(str(slurm.get("NodeType"))),
        partition=",".join(slurm.get("PartitionNames") or ()),
        details=group,
    )


def node_of(summary: Mapping[str, Any]) -> Node:
    """Read one entry of ListClusterNodes, or the details of DescribeClusterNode.

    Raises:
        UnexpectedOutput: if it is neither.
    """
    try:
        status: Mapping[str, Any] = summary["InstanceStatus"]
        return Node(
            instance_id=str(summary.get("InstanceId") or ""),
            group=str(summary["InstanceGroupName"]),
            status=str(status["Status"]),
            message=" ".join(str(status.get("Message") or "").split()),
            instance_type=str(summary.get("InstanceType", "")),
            launched_at=_time(summary.get("LaunchTime")),
            host=str(summary.get("PrivateDnsHostname") or ""),
            logical_id=str(summary.get("NodeLogicalId") or ""),
        )
    except (KeyError, TypeError) as error:
        raise UnexpectedOutput("sagemaker ListClusterNodes", str(summary)) from error


def instance_of(node: Node, role: Role) -> Instance:
    """Return a node as the port describes machines."""
    labels = {"status": node.status, "type": node.instance_type}
    if node.message:
        labels["message"] = node.message
    if node.logical_id:
        labels["logical_id"] = node.logical_id
    return Instance(
        id=node.instance_id,
        node=node.name,
        group=node.group,
        role=role,
        address=node.address,
        status=node.state,
        created_at=node.launched_at,
        labels=labels,
    )


def _time(value: object) -> datetime:
    return value.astimezone(UTC) if isinstance(value, datetime) else EPOCH
