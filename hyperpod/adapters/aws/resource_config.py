"""What a HyperPod node knows of its cluster: resource_config.json and provisioning_parameters.json, read.

Standard library only: the daemons on the nodes use it. Slurm's names of the nodes are made from their addresses, as the
service does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hyperpod.core.node import Role
from hyperpod.errors import ConfigError, NotFound

DEFAULT_PATH: Final = "/opt/ml/config/resource_config.json"


@dataclass(frozen=True)
class Member:
    """One instance of the cluster. ``name`` is Slurm's."""

    name: str
    group: str
    role: Role
    instance_id: str
    address: str
    instance_type: str
    partition: str = ""


@dataclass(frozen=True)
class Membership:
    """The cluster as its own file tells it."""

    cluster: str
    arn: str
    members: tuple[Member, ...]

    @property
    def region(self) -> str:
        parts = self.arn.split(":")
        return parts[3] if len(parts) > 3 else ""

    @property
    def head(self) -> Member:
        """The head node.

        Raises:
            ConfigError: No instance is one.
        """
        found = next((member for member in self.members if member.role is Role.HEAD), None)
        if found is None:
            raise ConfigError(
                f"no instance of cluster {self.cluster} is its head node",
                hint="SlurmConfig.PrimaryControllerIp in resource_config.json or controller_group in "
                "provisioning_parameters.json must name it",
            )
        return found

    def find(self, addresses: Iterable[str]) -> Member:
        """Return the member that has one of these addresses.

        Raises:
            NotFound: None has.
        """
        own = set(addresses)
        for member in self.members:
            if member.address in own:
                return member
        raise NotFound(f"none of this machine's addresses ({', '.join(sorted(own))}) is in cluster {self.cluster}")


def read_membership(path: Path, parameters: Path | None = None) -> Membership:
    """Read the files of this node.

    Raises:
        ConfigError: They cannot be read, or have another form.
    """
    data = _read(path)
    named = _read(parameters) if parameters is not None and parameters.is_file() else {}
    try:
        return _membership(data, named)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a resource_config.json: {type(error).__name__}: {error}") from error


def slurm_name(address: str) -> str:
    """Return what HyperPod's Slurm calls the machine with an address: ``ip-10-1-2-3``."""
    return "ip-" + address.replace(".", "-")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold one JSON object")
    return data


def _membership(data: Mapping[str, Any], parameters: Mapping[str, Any]) -> Membership:
    slurm: Mapping[str, Any] = data.get("SlurmConfig") or {}
    heads = {slurm.get("PrimaryControllerIp"), *(slurm.get("SecondaryControllerIps") or ())} - {None, ""}
    partitions = {w["instance_group_name"]: w["partition_name"] for w in parameters.get("worker_groups") or ()}
    members = []
    for group in data["InstanceGroups"]:
        own: Mapping[str, Any] = group.get("SlurmConfig") or {}
        for instance in group.get("Instances") or ():
            address = str(instance.get("CustomerIpAddress") or "")
            if not address:
                continue
            members.append(
                Member(
                    name=slurm_name(address),
                    group=str(group["Name"]),
                    role=_role(str(group["Name"]), own, address, heads, parameters),
                    instance_id=str(instance.get("InstanceId") or ""),
                    address=address,
                    instance_type=str(group.get("InstanceType") or ""),
                    partition=str(partitions.get(group["Name"]) or next(iter(own.get("PartitionNames") or ()), "")),
                )
            )
    cluster: Mapping[str, Any] = data["ClusterConfig"]
    return Membership(str(cluster["ClusterName"]), str(cluster.get("ClusterArn") or ""), tuple(members))


def _role(group: str, slurm: Mapping[str, Any], address: str, heads: set[Any], parameters: Mapping[str, Any]) -> Role:
    if slurm.get("NodeType"):
        return {"Controller": Role.HEAD, "Login": Role.LOGIN}.get(str(slurm["NodeType"]), Role.WORKER)
    if address in heads or group == parameters.get("controller_group"):
        return Role.HEAD
    return Role.LOGIN if group == parameters.get("login_group") else Role.WORKER
