"""Cluster placement groups: the machines of a group with EFA are put near each other."""

from __future__ import annotations

from hyperpod.adapters.aws import tags
from hyperpod.adapters.aws.client import Aws
from hyperpod.errors import AlreadyExists


def ensure_placement_group(aws: Aws, cluster: str, group: str) -> str:
    """Make the placement group of an instance group if it is not there, and return its name."""
    name = f"hyperpod.{cluster}.{group}"
    own = {tags.CLUSTER: cluster, tags.GROUP: group, tags.NAME: name}
    try:
        aws.call(
            "ec2",
            "CreatePlacementGroup",
            what=f"placement group {name}",
            repeat=True,
            GroupName=name,
            Strategy="cluster",
            TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags.tag_list(own)}],
        )
    except AlreadyExists:
        return name
    return name


def placement_groups(aws: Aws, cluster: str) -> list[str]:
    """Return the names of a cluster's placement groups."""
    answer = aws.call("ec2", "DescribePlacementGroups", Filters=tags.tag_filters(cluster=cluster))
    return sorted(
        str(g["GroupName"]) for g in answer.get("PlacementGroups", ()) if g.get("State") not in ("deleting", "deleted")
    )
