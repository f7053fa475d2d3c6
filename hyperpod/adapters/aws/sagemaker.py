"""The SageMaker HyperPod API: one method for each thing that is asked of it.

Owns the calls, their limits, and what an unclear outcome means. Decides nothing about clusters; waiting is in
``sagemaker_wait``. Every method may be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.sagemaker_requests import batches, count_request, create_request, list_limit
from hyperpod.adapters.aws.sagemaker_views import Cluster, Node, cluster_of, node_of
from hyperpod.core.spec import ClusterSpec
from hyperpod.errors import AlreadyExists, ConfigError, InvalidState, NotFound, ProviderUnavailable

_PAGE: Final = 100
_LOG_GROUP: Final = "/aws/sagemaker/Clusters/{name}/{id}"
_STREAMS: Final = {
    "lifecycle": "LifecycleConfig/{group}/{instance}",
    "health": "SagemakerHealthMonitoringAgent/{group}/{instance}",
}
_MOST_EVENTS: Final = 10_000
_CREATE_TRIES: Final = 3
_IN_PROGRESS: Final = frozenset({"InstanceIdInUse", "NodeIdInUse"})
_GONE: Final = frozenset({"InstanceIdNotFound", "NodeIdNotFound"})


@dataclass(frozen=True)
class NodeResult:
    """What became of one node of a batch. ``code`` and ``message`` are the service's, empty when it was done."""

    node: str
    is_done: bool
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class ClusterEvent:
    """Something that the service did to a cluster, a group or an instance."""

    at: datetime
    level: str
    resource: str
    group: str
    instance_id: str
    text: str


@dataclass(frozen=True)
class SageMaker:
    """HyperPod clusters of one account and region."""

    aws: Aws

    # --- look

    def clusters(self) -> list[Cluster]:
        """Return all clusters, without their groups, by name."""
        summaries = self.aws.pages("sagemaker", "ListClusters", "ClusterSummaries", MaxResults=_PAGE)
        return sorted((cluster_of(summary) for summary in summaries), key=lambda cluster: cluster.name)

    def describe(self, name: str) -> Cluster:
        """Return one cluster.

        Raises:
            NotFound: There is none of this name; the message says where it was looked for.
        """
        answer = self.aws.call("sagemaker", "DescribeCluster", what=f"cluster {name}", ClusterName=name)
        return cluster_of(answer)

    def find(self, name: str) -> Cluster | None:
        """Return one cluster, or None."""
        try:
            return self.describe(name)
        except NotFound:
            return None

    def nodes(self, name: str) -> tuple[Node, ...]:
        """Return all nodes of a cluster, by group and name; a page of 100 at a time."""
        summaries = self.aws.pages(
            "sagemaker",
            "ListClusterNodes",
            "ClusterNodeSummaries",
            what=f"cluster {name}",
            ClusterName=name,
            MaxResults=_PAGE,
        )
        return tuple(sorted((node_of(summary) for summary in summaries), key=_order))

    def node(self, name: str, instance_id: str) -> Mapping[str, Any]:
        """Return everything that the service tells of one node."""
        answer = self.aws.call(
            "sagemaker",
            "DescribeClusterNode",
            what=f"node {instance_id} of cluster {name}",
            ClusterName=name,
            NodeId=instance_id,
        )
        details: Mapping[str, Any] = answer["NodeDetails"]
        return details

    def events(self, name: str, limit: int = 100) -> list[ClusterEvent]:
        """Return the newest events of a cluster, oldest first.

        Raises:
            InvalidState: The service keeps none for this sort of cluster.
        """
        found: list[ClusterEvent] = []
        try:
            for event in self.aws.pages(
                "sagemaker",
                "ListClusterEvents",
                "Events",
                what=f"events of cluster {name}",
                ClusterName=name,
                SortOrder="Descending",
                MaxResults=min(limit, _PAGE),
            ):
                found.append(_event_of(event))
                if len(found) >= limit:
                    break
        except ConfigError as error:
            raise InvalidState(
                f"list events of cluster {name}",
                "not kept by the service",
                hint="only clusters with NodeProvisioningMode: Continuous have events",
            ) from error
        return found[::-1]

    def log_tail(self, cluster: Cluster, group: str, instance_id: str, lines: int = 20) -> tuple[str, ...]:
        """Return the last lines that a lifecycle script wrote; nothing if there is no log (yet)."""
        try:
            answer = self.aws.call(
                "logs",
                "GetLogEvents",
                what=f"lifecycle log of {instance_id}",
                logGroupName=log_group(cluster),
                logStreamName=log_stream(group, instance_id),
                limit=lines,
                startFromHead=False,
            )
        except NotFound:
            return ()
        texts = [line for event in answer.get("events", ()) for line in str(event["message"]).splitlines()]
        return tuple(texts[-lines:])

    def log_lines(
        self,
        cluster: Cluster,
        node: Node,
        kind: str,
        *,
        since: datetime | None = None,
        lines: int = 1000,
        token: str = "",
    ) -> tuple[tuple[str, ...], str]:
        """Return what a node wrote to CloudWatch, and the token by which the next call gets what comes after.

        Args:
            kind: ``lifecycle`` (its script) or ``health`` (HyperPod's own agent).
            since: Only what is newer.
            lines: At most so many, the newest, where there is no ``token``.
            token: Of the call before; what came since then is returned.
        """
        texts: list[str] = []
        more: dict[str, Any] = {"startTime": int(since.timestamp() * 1000)} if since else {}
        while True:
            more |= {"nextToken": token} if token else {}
            try:
                answer = self.aws.call(
                    "logs",
                    "GetLogEvents",
                    what=f"{kind} log of {node.instance_id}",
                    logGroupName=log_group(cluster),
                    logStreamName=log_stream(node.group, node.instance_id, kind),
                    startFromHead=bool(token),
                    limit=min(lines, _MOST_EVENTS),
                    **more,
                )
            except NotFound:
                return (), token
            events = answer.get("events", ())
            texts += [line for event in events for line in str(event["message"]).splitlines()]
            after = str(answer.get("nextForwardToken") or token)
            # The service gives back the same token at the end.
            if not token or after == token or not events:
                return tuple(texts if token else texts[-lines:]), after
            token = after

    # --- change

    def create(self, spec: ClusterSpec) -> str:
        """Ask for a cluster and return its ARN.

        The name makes it happen once: when the outcome of a try is not known, it is looked for before the next.

        Raises:
            AlreadyExists: Somebody has a cluster of this name.
        """
        request = create_request(spec)
        name = spec.cluster_name
        is_unclear = False
        for attempt in range(_CREATE_TRIES):
            try:
                answer = self.aws.call("sagemaker", "CreateCluster", what=f"cluster {name}", **request)
                return str(answer["ClusterArn"])
            except AlreadyExists as error:
                found = self.find(name) if is_unclear else None
                if found is None:
                    raise AlreadyExists(
                        f"a cluster {name} exists already",
                        hint=f"hyperpod describe-cluster {name} --provider sagemaker",
                    ) from error
                return found.arn
            except ProviderUnavailable:
                is_unclear = True
                found = self.find(name)
                if found is not None:
                    return found.arn
                if attempt == _CREATE_TRIES - 1:
                    raise
                self.aws.sleep(1.0 + attempt)
        raise AssertionError("unreachable")

    def update(self, request: Mapping[str, Any]) -> str:
        """Ask for a change; see ``sagemaker_requests.update_request``.

        Raises:
            InvalidState: The cluster is being changed already.
        """
        what = f"cluster {request['ClusterName']}"
        return str(self.aws.call("sagemaker", "UpdateCluster", what=what, **request)["ClusterArn"])

    def set_counts(self, name: str, counts: Mapping[str, int]) -> tuple[str, ...]:
        """Change the size of groups and return the changes; sizes that are so already are left.

        Raises:
            NotFound: There is no such group.
        """
        cluster = self.describe(name)
        known = [group.name for group in cluster.groups]
        for group in counts:
            if group not in known:
                raise NotFound(f"cluster {name} has no instance group {group}", hint=f"groups are {', '.join(known)}")
        update = count_request(cluster.details, counts)
        if update.request:
            self.update(update.request)
        return update.changes

    def delete_groups(self, name: str, groups: Sequence[str]) -> None:
        """Delete groups with all their instances."""
        self.update({"ClusterName": name, "InstanceGroupsToDelete": list(groups)})

    def delete(self, name: str) -> bool:
        """Delete a cluster; False when there is none, which is as good."""
        try:
            self.aws.call("sagemaker", "DeleteCluster", what=f"cluster {name}", ClusterName=name, repeat=True)
        except NotFound:
            return False
        return True

    def replace_nodes(self, name: str, instance_ids: Sequence[str]) -> list[NodeResult]:
        """Give nodes other machines; one that is being replaced already is done."""
        return self._batch("BatchReplaceClusterNodes", name, instance_ids, _IN_PROGRESS)

    def reboot_nodes(self, name: str, instance_ids: Sequence[str]) -> list[NodeResult]:
        """Restart nodes; their scripts don't run again."""
        return self._batch("BatchRebootClusterNodes", name, instance_ids, frozenset())

    def delete_nodes(self, name: str, instance_ids: Sequence[str]) -> list[NodeResult]:
        """Remove nodes and make their groups smaller; one that is gone is done."""
        return self._batch("BatchDeleteClusterNodes", name, instance_ids, _GONE)

    def _batch(
        self, operation: str, name: str, instance_ids: Sequence[str], as_good: frozenset[str]
    ) -> list[NodeResult]:
        results: dict[str, NodeResult] = {}
        for batch in batches(instance_ids, list_limit(operation, "NodeIds")):
            answer = self.aws.call("sagemaker", operation, what=f"cluster {name}", ClusterName=name, NodeIds=batch)
            for node in answer.get("Successful", ()):
                results[node] = NodeResult(node, True)
            for failed in answer.get("Failed", ()):
                code = str(failed.get("ErrorCode") or failed.get("Code"))
                results[failed["NodeId"]] = NodeResult(
                    failed["NodeId"], code in as_good, code, str(failed.get("Message", ""))
                )
            for node in batch:
                results.setdefault(node, NodeResult(node, False, "Unknown", "the service said nothing about it"))
        return [results[node] for node in dict.fromkeys(instance_ids)]

    def update_software(self, name: str, groups: Sequence[str] = ()) -> None:
        """Bring the nodes to the newest image; the lifecycle scripts run again, root volumes are lost."""
        request: dict[str, Any] = {"ClusterName": name}
        if groups:
            request["InstanceGroups"] = [{"InstanceGroupName": group} for group in groups]
        self.aws.call("sagemaker", "UpdateClusterSoftware", what=f"cluster {name}", **request)

    def start_health_check(self, name: str, groups: Mapping[str, Sequence[str]], checks: Sequence[str]) -> None:
        """Begin deep health checks on groups, or on some instances of them."""
        configurations = [
            {
                "InstanceGroupName": group,
                "DeepHealthChecks": list(checks),
                **({"InstanceIds": list(instances)} if instances else {}),
            }
            for group, instances in groups.items()
        ]
        self.aws.call(
            "sagemaker",
            "StartClusterHealthCheck",
            what=f"cluster {name}",
            ClusterName=name,
            DeepHealthCheckConfigurations=configurations,
        )


def log_group(cluster: Cluster) -> str:
    """Return the CloudWatch log group of a cluster."""
    return _LOG_GROUP.format(name=cluster.name, id=cluster.id)


def log_stream(group: str, instance_id: str, kind: str = "lifecycle") -> str:
    """Return the log stream of an instance's lifecycle script, or of HyperPod's ``health`` agent on it."""
    return _STREAMS[kind].format(group=group, instance=instance_id)


def session_target(cluster: Cluster, node: Node) -> str:
    """Return what Session Manager calls a node."""
    return f"sagemaker-cluster:{cluster.id}_{node.group}-{node.instance_id}"


def pick_node(nodes: Sequence[Node], cluster: str, text: str) -> Node:
    """Return the node that a person means, by any of its names.

    Raises:
        NotFound: It is none; the hint lists some.
    """
    found = next((node for node in nodes if node.is_called(text)), None)
    # ``<group>-<n>``: the n-th of a group, for who knows the cluster by its specification.
    match = re.fullmatch(r"(?P<group>.+)-(?P<index>[1-9]\d*)", text)
    if found is None and match:
        same = [node for node in nodes if node.group == match["group"]]
        index = int(match["index"])
        found = same[index - 1] if index <= len(same) else None
    if found is None:
        shown = ", ".join(node.name for node in nodes[:8]) or "none"
        more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
        raise NotFound(f"cluster {cluster} has no node {text}", hint=f"its nodes are: {shown}{more}")
    return found


def _order(node: Node) -> tuple[str, tuple[int, ...], str]:
    numbers = tuple(int(part) for part in re.findall(r"\d+", node.name)) if node.host else ()
    return node.group, numbers, node.instance_id


def _event_of(event: Mapping[str, Any]) -> ClusterEvent:
    return ClusterEvent(
        at=event["EventTime"],
        level=str(event.get("EventLevel", "")),
        resource=str(event.get("ResourceType", "")),
        group=str(event.get("InstanceGroupName", "")),
        instance_id=str(event.get("InstanceId", "")),
        text=" ".join(str(event.get("Description", "")).split()),
    )


def iter_failed(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes that the service calls failed."""
    return (node for node in nodes if node.status == "Failure")
