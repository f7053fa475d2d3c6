"""Valid clusters to start from, as text and as data, and the types of the fixtures that load them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hyperpod.config.load import Loaded

LoadText = Callable[..., Loaded]
Mistakes = Callable[..., list[str]]

LOCAL = """\
ClusterName: demo
InstanceGroups:
  - InstanceGroupName: head
    InstanceCount: 1
    SlurmConfig: {NodeType: Controller}
  - InstanceGroupName: worker
    InstanceCount: 4
    SlurmConfig: {NodeType: Compute, PartitionNames: [dev]}
Hyperpod:
  Provider: local
  Spares: 1
"""

ROLE = "arn:aws:iam::111122223333:role/HyperPod"


def aws_group(name: str, node_type: str | None, **more: Any) -> dict[str, Any]:
    """Return an instance group as AWS takes it; ``node_type`` None leaves its role to the other file."""
    group: dict[str, Any] = {
        "InstanceGroupName": name,
        "InstanceType": "ml.c5.xlarge",
        "InstanceCount": 1,
        "ExecutionRole": ROLE,
    }
    if node_type is not None:
        group["SlurmConfig"] = {"NodeType": node_type}
        if node_type == "Compute":
            group["SlurmConfig"]["PartitionNames"] = ["dev"]
    return group | more


def aws_request(**more: Any) -> dict[str, Any]:
    """Return a request with a controller and a worker group that carry their roles."""
    groups = [aws_group("head", "Controller"), aws_group("worker", "Compute", InstanceCount=2)]
    return {"ClusterName": "demo", "InstanceGroups": groups} | more
