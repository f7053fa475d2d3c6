"""What a cluster should be: instance groups with their roles, and the policies that hold for them.

Owns the typed, frozen form of a specification and the rules that bind its parts together. Reads no file:
``hyperpod.config`` does, and gives each mistake its line. The daemons get these policies as plain data from
``spec_policies``; they never import this module (pydantic costs them memory and start-up time).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from pydantic import Field, model_validator

from hyperpod.core.names import MAX_NAME_LENGTH, NodeName, is_name, node_name
from hyperpod.core.node import Role
from hyperpod.core.settings import Frozen, HyperpodBlock, Provider, SpareState, plain_checks, plain_settings
from hyperpod.errors import ConfigError

__all__ = [
    "DEFAULT_LOCAL_TYPE",
    "SPARE_PARTITION",
    "ClusterSpec",
    "Conflict",
    "HyperpodBlock",
    "InstanceGroup",
    "Lifecycle",
    "Provider",
    "Role",
    "Vpc",
    "group_conflicts",
    "host_name_is_too_long",
    "spec_policies",
    "with_counts",
]

DEFAULT_LOCAL_TYPE: Final = "local.node"
SPARE_PARTITION: Final = "hyperpod-spare"


class Lifecycle(Frozen):
    """The scripts that make a new instance a member of the cluster (``LifeCycleConfig``)."""

    source: str | None = Field(None, description="s3:// prefix; for local clusters an absolute folder.")
    on_create: str | None = Field(None, description="Script that does the whole set-up; a path below source.")
    on_init_complete: str | None = Field(None, description="Script that runs after the image's own set-up.")


class InstanceGroup(Frozen):
    """A named set of equal instances."""

    name: str
    instance_type: str = DEFAULT_LOCAL_TYPE
    count: int = Field(ge=0)
    min_count: int | None = None
    role: Role
    partition: str | None = Field(None, description="Slurm partition of a worker group; None for head and login.")
    spares: int = Field(0, ge=0, description="How many of ``count`` wait in the spare partition.")
    execution_role: str | None = None
    lifecycle: Lifecycle = Lifecycle()
    threads_per_core: int | None = None
    deep_checks: tuple[str, ...] = Field((), description="OnStartDeepHealthChecks: done before the first job.")

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        """Names of all slots, ``<group>-1`` to ``<group>-<count>``."""
        return tuple(node_name(self.name, index) for index in range(1, self.count + 1))


class Vpc(Frozen):
    """Where instances are connected (``VpcConfig``)."""

    security_group_ids: tuple[str, ...]
    subnets: tuple[str, ...]


class ClusterSpec(Frozen):
    """A whole cluster as it should be."""

    cluster_name: str
    instance_groups: tuple[InstanceGroup, ...]
    vpc: Vpc | None = None
    orchestrator: str = "slurm"
    node_recovery: str = Field("Automatic", description="NodeRecovery of the service: Automatic or None.")
    tags: Mapping[str, str] = Field(default_factory=dict)
    hyperpod: HyperpodBlock = Field(default_factory=lambda: HyperpodBlock())
    provisioning_parameters: Mapping[str, Any] | None = Field(
        None, description="Content of provisioning_parameters.json, for the scripts on the nodes."
    )
    aws_request: Mapping[str, Any] = Field(
        default_factory=dict, description="The CreateCluster request as written, for providers on AWS."
    )

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        conflicts = group_conflicts(self.instance_groups)
        if conflicts:
            raise ValueError("; ".join(conflict.message for conflict in conflicts))
        return self

    @property
    def provider(self) -> Provider:
        """Who makes the instances."""
        return self.hyperpod.provider

    @property
    def head(self) -> InstanceGroup:
        """The group of the head node."""
        return self.groups(Role.HEAD)[0]

    @property
    def workers(self) -> tuple[InstanceGroup, ...]:
        """The worker groups, in the order of the file."""
        return self.groups(Role.WORKER)

    @property
    def default_partition(self) -> str:
        """The partition of jobs that name none."""
        return self.hyperpod.slurm.default_partition or next(g.partition for g in self.workers if g.partition)

    def groups(self, role: Role) -> tuple[InstanceGroup, ...]:
        """Return the groups with this role, in the order of the file."""
        return tuple(group for group in self.instance_groups if group.role is role)

    def group(self, name: str) -> InstanceGroup:
        """Return the group of this name.

        Raises:
            ConfigError: naming the groups there are.
        """
        for group in self.instance_groups:
            if group.name == name:
                return group
        names = ", ".join(group.name for group in self.instance_groups)
        raise ConfigError(f"cluster {self.cluster_name} has no instance group {name!r}; it has {names}")

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain data for a JSON file; ``from_json`` reads it back unchanged."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClusterSpec:
        """Return the spec that ``to_json`` wrote.

        Raises:
            ConfigError: if the data has another form.
        """
        try:
            return cls.model_validate(data)
        except ValueError as error:
            raise ConfigError(f"not a stored cluster specification: {_first_line(error)}") from error


class GroupLike(Protocol):
    """As much of an instance group as the rules between groups need."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def partition(self) -> str | None: ...
    @property
    def spares(self) -> int: ...


@dataclass(frozen=True)
class Conflict:
    """Parts of a spec that make no sense together; ``group`` is the index of the group to blame, None for all."""

    group: int | None
    key: str
    message: str


def group_conflicts(groups: Sequence[GroupLike]) -> tuple[Conflict, ...]:
    """Return what makes no sense among these groups: heads, workers, spares, names, partitions.

    Pure; in the order of the groups, then what concerns all. Each message is complete without its place.
    """
    found: list[Conflict] = []
    names: dict[str, str] = {}
    head: str | None = None
    for index, group in enumerate(groups):
        earlier = names.setdefault(group.name.lower(), group.name)
        if any(other.name.lower() == group.name.lower() for other in groups[:index]):
            same = (
                "is already the name of another group"
                if earlier == group.name
                else f"differs from {earlier} only in case"
            )
            found.append(Conflict(index, "InstanceGroupName", f"{group.name} {same}; every group needs its own"))
        if group.role is Role.HEAD:
            if head is not None:
                found.append(
                    Conflict(index, "", f"second head node group {group.name}; {head} is one, and only one is allowed")
                )
            elif group.count != 1:
                found.append(
                    Conflict(
                        index,
                        "InstanceCount",
                        f"the head node group {group.name} needs InstanceCount 1, got {group.count}",
                    )
                )
            head = head or group.name
        found += _partition_conflicts(index, group) + _spare_conflicts(index, group)
    if head is None:
        found.append(Conflict(None, "", "no head node group; exactly one group needs that role"))
    if not any(group.role is Role.WORKER and group.count > 0 for group in groups):
        found.append(Conflict(None, "", "no workers; at least one worker group needs InstanceCount 1 or more"))
    return tuple(found)


def _partition_conflicts(index: int, group: GroupLike) -> list[Conflict]:
    if group.role is not Role.WORKER:
        if group.partition is None:
            return []
        text = f"{group.role} group {group.name} cannot be in a partition, got {group.partition}; only workers can"
    elif group.partition is None:
        text = f"worker group {group.name} needs the name of a partition"
    elif group.partition.lower() == "default" or group.partition == SPARE_PARTITION:
        text = f"partition name {group.partition} is reserved; choose another"
    else:
        return []
    return [Conflict(index, "SlurmConfig", text)]


def _spare_conflicts(index: int, group: GroupLike) -> list[Conflict]:
    if group.spares == 0 or group.count < 0:
        return []
    if group.role is not Role.WORKER:
        text = f"{group.role} group {group.name} cannot have spares; only worker groups can"
    elif group.spares >= group.count:
        text = (
            f"group {group.name} has {group.count} instances, so at most {max(group.count - 1, 0)} can be spares, "
            f"got {group.spares}; at least one must work"
        )
    else:
        return []
    return [Conflict(index, "Spares", text)]


def with_counts(spec: ClusterSpec, counts: Mapping[str, int]) -> ClusterSpec:
    """Return the spec with other instance counts (group name to count), spares unchanged.

    Raises:
        ConfigError: if a group is unknown or the result makes no sense.
    """
    for name in counts:
        spec.group(name)
    groups = tuple(
        group.model_copy(update={"count": counts.get(group.name, group.count)}) for group in spec.instance_groups
    )
    conflicts = group_conflicts(groups)
    if conflicts:
        raise ConfigError("\n".join(conflict.message for conflict in conflicts))
    request = dict(spec.aws_request)
    request["InstanceGroups"] = [
        {**raw, "InstanceCount": counts.get(raw.get("InstanceGroupName", ""), raw.get("InstanceCount"))}
        for raw in request.get("InstanceGroups", ())
    ]
    return spec.model_copy(update={"instance_groups": groups, "aws_request": request})


def spec_policies(spec: ClusterSpec) -> dict[str, Any]:
    """Return what the daemons need of a spec as plain, JSON-able data.

    Keys are snake_case; durations are seconds as float in keys that end in ``_s``. ``core.policy.policies_from``
    reads it without pydantic.
    """
    block = spec.hyperpod
    return {
        "cluster_name": spec.cluster_name,
        "provider": spec.provider.value,
        "groups": [
            {
                "name": group.name,
                "role": group.role.value,
                "count": group.count,
                "spares": group.spares,
                "partition": group.partition,
                "instance_type": group.instance_type,
                "health": plain_checks(block.health, group.name),
            }
            for group in spec.instance_groups
        ],
        "slurm": plain_settings(block.slurm) | {"default_partition": spec.default_partition},
        "health": plain_checks(block.health),
        "deep": {
            "seconds": block.health.deep.part.total_seconds(),
            "disk_mb": block.health.deep.disk_mb,
            "transfer_mb": block.health.deep.transfer_mb,
            "tolerance": block.health.deep.tolerance,
            "dcgm_level": block.health.deep.dcgm_level,
        },
        "repair": plain_settings(block.repair)
        | {"are_spares_stopped": spec.provider is Provider.EC2 and block.ec2.spares == SpareState.STOPPED},
        "resume": plain_settings(block.resume),
    }


def host_name_is_too_long(group: GroupLike) -> bool:
    """Say whether the last node of the group would have a name that no host may have."""
    return is_name(group.name) and len(f"{group.name}-{group.count}") > MAX_NAME_LENGTH


def _first_line(error: ValueError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[1:3]) if len(lines) > 1 else str(error)
