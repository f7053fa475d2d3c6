"""Finds clusters, their head nodes and their instances by name, and says what there is when a name is wrong.

Owns the choice of "the" cluster and the messages about a missing one. Changes nothing. Knows of a provider only what
its protocol says, so that it is as true for clusters elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hyperpod.core.names import parse_cluster_name, parse_node_name
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.errors import ConnectionLost, InvalidState, NotFound, UsageError
from hyperpod.ports.provider import Instance


class Machines(Protocol):
    """The part of a provider that finding needs."""

    def observe(self, cluster: str) -> tuple[Instance, ...]: ...


def choose_cluster(known: Sequence[str], asked: str | None, where: str) -> str:
    """Return the cluster that is meant: the one asked for, or the only one.

    Args:
        known: Names of all clusters, half-made ones too.
        asked: What ``--cluster`` or ``HYPERPOD_CLUSTER`` says; None or empty for nothing.
        where: The machine or account that was asked, for messages.
    Raises:
        NotFound: There is none, or none of this name; the message lists those that exist.
        UsageError: There are several and none was named, or the name cannot be one.
    """
    listed = ", ".join(known) or "none"
    if asked:
        name = parse_cluster_name(asked)
        if name not in known:
            raise NotFound(
                f"no cluster {name} on {where}; there are: {listed}", hint="hyperpod list-clusters shows them"
            )
        return name
    if not known:
        raise NotFound(f"no cluster on {where}", hint="hyperpod create-cluster SPEC makes one")
    if len(known) > 1:
        raise UsageError(
            f"which cluster? There are {len(known)} on {where}: {listed}",
            hint=f"add --cluster NAME, or set HYPERPOD_CLUSTER={known[0]}",
        )
    return known[0]


def find_instance(machines: Machines, cluster: str, node: str) -> Instance:
    """Return the machine that serves a node name now.

    Raises:
        UsageError: ``node`` is not a node name.
        NotFound: The cluster has no such node; the hint lists its nodes.
    """
    name = parse_node_name(node)
    instances = machines.observe(cluster)
    found = next((instance for instance in instances if instance.node == name), None)
    if found is None:
        known = ", ".join(instance.node for instance in instances) or "none"
        raise NotFound(f"cluster {cluster} has no node {name}", hint=f"its nodes are: {known}")
    return found


def find_head(machines: Machines, cluster: str) -> Instance:
    """Return the running head node of a cluster.

    Raises:
        InvalidState: The cluster is half-made: it has no head node.
        ConnectionLost: The head node is there and does not run.
    """
    instances = machines.observe(cluster)
    head = next((instance for instance in instances if instance.role is Role.HEAD), None)
    if head is None:
        raise InvalidState(
            f"ask cluster {cluster}",
            "half-made, without a head node",
            hint=f"hyperpod create-cluster SPEC goes on with it; hyperpod delete-cluster {cluster} removes it",
        )
    if head.status in (InstanceStatus.STOPPED, InstanceStatus.GONE):
        raise ConnectionLost(
            f"the head node {head.node} of cluster {cluster} is {head.status.value}",
            hint=f"hyperpod reboot-node {head.node} --cluster {cluster} --force starts it; nothing on it is lost",
        )
    return head
