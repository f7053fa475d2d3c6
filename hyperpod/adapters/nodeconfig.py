"""The files that every node of a cluster sees: names, addresses, and HyperPod's resource description. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hyperpod.ports.provider import NodeLaunch, Role

MOST_PEERS = 24
"""Peers that an agent is told of. It asks three at a time whether it is cut off; eight rounds of them are plenty, and
the files of a thousand nodes would hold a million peers otherwise."""

T = TypeVar("T")


def peers_of(members: Sequence[T], own: int, is_worker: Callable[[T], bool]) -> list[T]:
    """Return the members that one of them is told of: all others of a small cluster, else the next workers in order.

    Args:
        own: Its place in ``members``.
    """
    others = [*members[own + 1 :], *members[:own]]
    if len(others) <= MOST_PEERS:
        return [*members[:own], *members[own + 1 :]]
    return list(itertools.islice(filter(is_worker, others), MOST_PEERS))


def render_hosts(addresses: Mapping[str, str]) -> str:
    """Return /etc/hosts with every node name of the cluster, also those with no machine in them now."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{address} {node}" for node, address in addresses.items()]
    return "\n".join(lines) + "\n"


def render_known_hosts(addresses: Mapping[str, str], public_keys: Mapping[str, str]) -> str:
    """Return ssh's known_hosts: host keys belong to node names and survive a replacement."""
    return "".join(
        f"{node},{addresses[node]} {' '.join(key.split()[:2])}\n"
        for node, key in public_keys.items()
        if node in addresses
    )


def resource_config(
    cluster: str,
    launches: Sequence[NodeLaunch],
    addresses: Mapping[str, str],
    instance_ids: Mapping[str, str],
    *,
    arn: str = "",
) -> dict[str, Any]:
    """Return HyperPod's resource_config.json for these nodes, group by group in their order.

    Args:
        arn: The cluster's name in the provider's own form; by default one that says that it is on this machine.
    """
    groups: dict[str, dict[str, Any]] = {}
    for launch in launches:
        group = groups.setdefault(
            launch.group, {"Name": launch.group, "InstanceType": launch.instance_type, "Instances": []}
        )
        if launch.node in instance_ids:
            group["Instances"].append(
                {
                    "InstanceName": launch.node,
                    "AgentIpAddress": addresses[launch.node],
                    "CustomerIpAddress": addresses[launch.node],
                    "InstanceId": instance_ids[launch.node],
                }
            )
    heads = [addresses[launch.node] for launch in launches if launch.role is Role.HEAD and launch.node in addresses]
    return {
        "ClusterConfig": {
            "ClusterName": cluster,
            "ClusterArn": arn or f"arn:aws:sagemaker:local:000000000000:cluster/{cluster}",
        },
        "ClusterType": "Slurm",
        "InstanceGroups": list(groups.values()),
        "SlurmConfig": {"PrimaryControllerIp": heads[0] if heads else "", "SecondaryControllerIps": heads[1:]},
    }
