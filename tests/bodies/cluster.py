"""A cluster on EC2 with bodies, driven as ``tools.cluster`` and ``tests.e2e.lab`` drive a local one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hyperpod.adapters.process import Processes
from tests.bodies.bridge import Bridge
from tests.bodies.image import BodyImages
from tests.e2e.lab import Lab
from tools.cluster import Failed

CLUSTER_TAG = "hyperpod:cluster"


def image_home() -> Path:
    """Return where half-built images are kept: with the local provider's."""
    import os

    return Path(os.environ.get("HYPERPOD_HOME") or "/var/lib/hyperpod")


@contextmanager
def account(name: str, kind: str = "base", progress: Any = lambda _what, _share: None) -> Iterator[Bridge]:
    """Run an account whose machines have bodies; builds their image when it is missing."""
    image = BodyImages(Processes(), image_home()).ensure(kind, progress)
    with (
        tempfile.TemporaryDirectory(prefix=f"hyperpod-{name}-", ignore_cleanup_errors=True) as folder,
        Bridge(name, image, Path(folder) / "account") as bridge,
    ):
        yield bridge


class BodyCluster(Lab):
    """A cluster on EC2; its machines are the bridge's bodies."""

    def __init__(self, name: str, bridge: Bridge) -> None:
        super().__init__(name, bridge.environment())
        self._env.pop("AWS_PROFILE", None)
        self.bridge = bridge
        self.fsx = bridge.home / "fsx"

    def machines(self, node: str = "", *states: str) -> list[Mapping[str, Any]]:
        """Return the instances of the cluster, or of one node name, oldest first."""
        filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [self.name]}]
        if node:
            filters.append({"Name": "tag:hyperpod:node", "Values": [node]})
        if states:
            filters.append({"Name": "instance-state-name", "Values": list(states)})
        found = self.bridge.client("ec2").describe_instances(Filters=filters)["Reservations"]
        return sorted((i for r in found for i in r["Instances"]), key=lambda i: i["LaunchTime"])

    def container(self, node: str) -> str:
        """Return the body that is the node now."""
        running = self.machines(node, "running")
        body = self.bridge.bodies.get(str(running[-1]["InstanceId"])) if running else None
        if body is None:
            raise Failed(f"no body for {node}")
        return body.container

    def terminate(self, node: str) -> str:
        """End the node's machine as somebody in the console would, and return its id."""
        identity = str(self.machines(node, "running")[-1]["InstanceId"])
        self.bridge.client("ec2").terminate_instances(InstanceIds=[identity])
        self._containers.pop(node, None)
        return identity

    def remains(self) -> dict[str, list[str]]:
        """Return what is left of the cluster in the account, by kind."""
        ec2 = self.bridge.client("ec2")
        filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [self.name]}]
        live = ("pending", "running", "stopping", "stopped", "shutting-down")
        found = {
            "instances": [str(i["InstanceId"]) for i in self.machines("", *live)],
            "templates": [
                str(t["LaunchTemplateName"]) for t in ec2.describe_launch_templates(Filters=filters)["LaunchTemplates"]
            ],
            "placement groups": [
                str(g["GroupName"]) for g in ec2.describe_placement_groups(Filters=filters)["PlacementGroups"]
            ],
            "volumes": [str(v["VolumeId"]) for v in ec2.describe_volumes(Filters=filters)["Volumes"]],
            "interfaces": [
                str(n["NetworkInterfaceId"])
                for n in ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
            ],
            "bodies": list(self.bridge.bodies),
        }
        return {kind: names for kind, names in found.items() if names}

    def delete(self) -> None:
        """Delete the cluster and all that carries its tag."""
        self.hyperpod("delete-cluster", self.name, "--provider", "ec2", "--yes", timeout_s=120)
