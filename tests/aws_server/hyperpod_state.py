"""HyperPod clusters that live in memory and change as time passes: what moto does not have.

Time passes at every DescribeCluster. Faults are planted by tests: scripts that fail, machines that never come, calls
that are throttled or denied.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

ACCOUNT = "111122223333"
_BORN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_DETAIL_KEYS = (
    "InstanceGroupName", "InstanceType", "LifeCycleConfig", "ExecutionRole", "ThreadsPerCore",
    "InstanceStorageConfigs", "OnStartDeepHealthChecks", "TrainingPlanArn", "OverrideVpcConfig",
    "ScheduledUpdateConfig", "SlurmConfig", "CapacityRequirements", "NetworkInterface",
)  # fmt: skip
SCRIPT_FAILED = (
    "Lifecycle scripts did not run successfully. Ensure the scripts exist in provided S3 path, are accessible, "
    "and run without errors. Please see CloudWatch logs for lifecycle script execution details."
)


class ServiceError(Exception):
    """What the service refuses with."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


@dataclass
class FakeNode:
    """An instance; ``looks`` is how many more looks it takes to be running."""

    instance_id: str
    group: str
    number: int
    kind: str
    looks: int
    status: str = "Pending"
    message: str = ""
    next_id: str = ""

    def summary(self) -> dict[str, Any]:
        address = f"10-1-{self.number // 250}-{self.number % 250 + 4}"
        return {
            "InstanceGroupName": self.group,
            "InstanceId": self.instance_id,
            "InstanceType": self.kind,
            "LaunchTime": _BORN,
            "InstanceStatus": {"Status": self.status, "Message": self.message},
            "PrivateDnsHostname": f"ip-{address}.us-west-2.compute.internal",
        }


@dataclass
class FakeCluster:
    """A cluster and its nodes."""

    name: str
    arn: str
    request: dict[str, Any]
    status: str = "Creating"
    failure: str = ""
    nodes: list[FakeNode] = field(default_factory=list)
    targets: dict[str, int] = field(default_factory=dict)

    @property
    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.request["InstanceGroups"]
        return groups


@dataclass
class HyperPodState:
    """All clusters. ``looks_to_run``: how many looks a new instance is Pending."""

    region: str = "us-west-2"
    looks_to_run: int = 2
    failing_groups: set[str] = field(default_factory=set)
    missing_groups: set[str] = field(default_factory=set)
    clusters: dict[str, FakeCluster] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    health_checks: list[dict[str, Any]] = field(default_factory=list)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # --- operations; each gets a checked request and returns an answer

    def CreateCluster(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["ClusterName"]
        if name in self.clusters:
            raise ServiceError("ResourceInUse", f"Cluster with name {name} already exists.")
        number = next(self._ids)
        arn = f"arn:aws:sagemaker:{self.region}:{ACCOUNT}:cluster/{number:012x}"
        cluster = FakeCluster(name, arn, request)
        self.clusters[name] = cluster
        for group in cluster.groups:
            self._resize(cluster, group["InstanceGroupName"], group["InstanceCount"])
        return {"ClusterArn": arn}

    def DescribeCluster(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        self._pass_time(cluster)
        answer: dict[str, Any] = {
            "ClusterArn": cluster.arn,
            "ClusterName": cluster.name,
            "ClusterStatus": cluster.status,
            "CreationTime": _BORN,
            "InstanceGroups": [self._details(cluster, group) for group in cluster.groups],
        }
        answer |= {k: v for k, v in cluster.request.items() if k in ("VpcConfig", "NodeRecovery", "Orchestrator")}
        if "NodeProvisioningMode" in cluster.request:
            answer["NodeProvisioningMode"] = cluster.request["NodeProvisioningMode"]
        if cluster.failure:
            answer["FailureMessage"] = cluster.failure
        return answer

    def ListClusters(self, request: dict[str, Any]) -> dict[str, Any]:
        rows = [
            {"ClusterArn": c.arn, "ClusterName": c.name, "CreationTime": _BORN, "ClusterStatus": c.status}
            for c in self.clusters.values()
        ]
        return _page(rows, "ClusterSummaries", request)

    def ListClusterNodes(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        return _page([node.summary() for node in cluster.nodes], "ClusterNodeSummaries", request)

    def DescribeClusterNode(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        node = self._node(cluster, request["NodeId"])
        if node is None:
            raise ServiceError("ResourceNotFound", f"Node {request['NodeId']} not found")
        return {"NodeDetails": node.summary()}

    def UpdateCluster(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._settled(request)
        names = [group["InstanceGroupName"] for group in cluster.groups]
        for group in request.get("InstanceGroups", ()):
            name = group["InstanceGroupName"]
            if name in names:
                old = cluster.groups[names.index(name)]
                if old.get("InstanceType") != group.get("InstanceType"):
                    raise ServiceError("ValidationException", f"InstanceType of {name} cannot be changed")
                cluster.groups[names.index(name)] = group
            else:
                cluster.groups.append(group)
            self._resize(cluster, name, group["InstanceCount"])
        for name in request.get("InstanceGroupsToDelete", ()):
            if name not in names:
                raise ServiceError("ValidationException", f"Instance group {name} does not exist")
            cluster.request["InstanceGroups"] = [g for g in cluster.groups if g["InstanceGroupName"] != name]
            cluster.nodes = [node for node in cluster.nodes if node.group != name]
            cluster.targets.pop(name)
        if "NodeRecovery" in request:
            cluster.request["NodeRecovery"] = request["NodeRecovery"]
        return {"ClusterArn": cluster.arn}

    def DeleteCluster(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        cluster.status = "Deleting"
        return {"ClusterArn": cluster.arn}

    def UpdateClusterSoftware(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._settled(request)
        wanted = {g["InstanceGroupName"] for g in request.get("InstanceGroups", ())} or set(cluster.targets)
        for node in cluster.nodes:
            if node.group in wanted:
                node.status, node.looks = "SystemUpdating", self.looks_to_run
        cluster.status = "SystemUpdating"
        return {"ClusterArn": cluster.arn}

    def StartClusterHealthCheck(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        for part in request["DeepHealthCheckConfigurations"]:
            if part["InstanceGroupName"] not in cluster.targets:
                raise ServiceError("ValidationException", f"group {part['InstanceGroupName']} is unknown")
        self.health_checks.append(request)
        return {"ClusterArn": cluster.arn}

    def ListClusterEvents(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        if cluster.request.get("NodeProvisioningMode") != "Continuous":
            raise ServiceError("ValidationException", "Events are only supported for clusters with Continuous mode.")
        return _page(self.events[::-1], "Events", request)

    def BatchReplaceClusterNodes(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        done, failed = [], []
        for node_id in request["NodeIds"]:
            node = self._node(cluster, node_id)
            if node is None:
                failed.append(_failed(node_id, "InstanceIdNotFound", "no such instance"))
            elif node.next_id:
                failed.append(_failed(node_id, "InstanceIdInUse", "is being replaced"))
            elif node.status not in ("Running", "Failure"):
                failed.append(_failed(node_id, "InvalidInstanceStatus", f"is {node.status}"))
            elif self._node_type(cluster, node.group) == "Controller":
                failed.append(_failed(node_id, "InvalidInstanceStatus", "controller nodes cannot be replaced"))
            else:
                node.status, node.looks, node.next_id = "Pending", self.looks_to_run, self._new_id()
                done.append(node_id)
        return _batch(done, {"Failed": failed})

    def BatchRebootClusterNodes(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        done, failed = [], []
        for node_id in request["NodeIds"]:
            node = self._node(cluster, node_id)
            if node is None:
                failed.append(_failed(node_id, "InstanceIdNotFound", "no such instance"))
            else:
                node.status, node.looks = "Pending", 1
                done.append(node_id)
        return _batch(done, {"Failed": failed})

    def BatchDeleteClusterNodes(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(request)
        done, failed = [], []
        for node_id in request["NodeIds"]:
            node = self._node(cluster, node_id)
            if node is None:
                failed.append({"NodeId": node_id, "Code": "NodeIdNotFound", "Message": "no such instance"})
            elif self._node_type(cluster, node.group) == "Controller":
                failed.append({"NodeId": node_id, "Code": "InvalidNodeStatus", "Message": "controller node"})
            else:
                cluster.nodes.remove(node)
                cluster.targets[node.group] -= 1
                done.append(node_id)
        return _batch(done, {"Failed": failed} if failed else {})

    # --- the world

    def _pass_time(self, cluster: FakeCluster) -> None:
        if cluster.status == "Deleting":
            if not cluster.nodes:
                del self.clusters[cluster.name]
                raise ServiceError("ResourceNotFound", f"Cluster with name {cluster.name} does not exist.")
            cluster.nodes.clear()
            return
        for node in cluster.nodes:
            if node.status in ("Running", "Failure") or node.group in self.missing_groups:
                continue
            node.looks -= 1
            if node.looks > 0:
                continue
            node.instance_id, node.next_id = node.next_id or node.instance_id, ""
            node.status = "Running"
            if node.group in self.failing_groups:
                node.status, node.message = "Failure", SCRIPT_FAILED
                if cluster.status == "Creating" and cluster.request.get("NodeProvisioningMode") != "Continuous":
                    cluster.status = "Failed"
                    cluster.failure = (
                        f"Instance {node.instance_id} failed to provision with the following error: {SCRIPT_FAILED}"
                    )
        if all(node.status == "Running" for node in cluster.nodes) and cluster.status != "Failed":
            cluster.status = "InService"

    def _resize(self, cluster: FakeCluster, group: str, count: int) -> None:
        own = [node for node in cluster.nodes if node.group == group]
        kind = next(g for g in cluster.groups if g["InstanceGroupName"] == group).get("InstanceType", "ml.c5.large")
        for node in own[count:]:
            cluster.nodes.remove(node)
        for _ in range(count - len(own)):
            number = next(self._ids)
            node = FakeNode(f"i-{number:017x}", group, number, kind, self.looks_to_run)
            cluster.nodes.append(node)
        cluster.targets[group] = count

    def _details(self, cluster: FakeCluster, group: Mapping[str, Any]) -> dict[str, Any]:
        name = group["InstanceGroupName"]
        details = {key: group[key] for key in _DETAIL_KEYS if key in group}
        running = [n for n in cluster.nodes if n.group == name and n.status not in ("Pending", "Failure")]
        is_settled = len(running) == cluster.targets[name]
        return details | {
            "CurrentCount": len(running),
            "TargetCount": cluster.targets[name],
            "Status": "InService" if is_settled else "Creating",
        }

    def _cluster(self, request: Mapping[str, Any]) -> FakeCluster:
        asked = str(request["ClusterName"])
        for cluster in self.clusters.values():
            if asked in (cluster.name, cluster.arn):
                return cluster
        raise ServiceError("ResourceNotFound", f"Cluster with name {asked} does not exist.")

    def _settled(self, request: Mapping[str, Any]) -> FakeCluster:
        cluster = self._cluster(request)
        if cluster.status != "InService":
            raise ServiceError("ConflictException", f"Cluster {cluster.name} is in {cluster.status} status")
        return cluster

    def _node(self, cluster: FakeCluster, instance_id: str) -> FakeNode | None:
        return next((node for node in cluster.nodes if node.instance_id == instance_id), None)

    def _node_type(self, cluster: FakeCluster, group: str) -> str:
        found = next(g for g in cluster.groups if g["InstanceGroupName"] == group)
        return str(found.get("SlurmConfig", {}).get("NodeType", ""))

    def _new_id(self) -> str:
        return f"i-{next(self._ids):017x}"


def _failed(node_id: str, code: str, message: str) -> dict[str, str]:
    return {"NodeId": node_id, "ErrorCode": code, "Message": message}


def _batch(done: list[str], rest: dict[str, Any]) -> dict[str, Any]:
    # The model wants at least one entry where there is a list.
    return ({"Successful": done} if done else {}) | rest


def _page(rows: list[dict[str, Any]], key: str, request: Mapping[str, Any]) -> dict[str, Any]:
    start, size = int(request.get("NextToken", "0")), int(request.get("MaxResults", 10))
    answer: dict[str, Any] = {key: rows[start : start + size]}
    if start + size < len(rows):
        answer["NextToken"] = str(start + size)
    return answer
