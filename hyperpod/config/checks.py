"""What makes no sense together in a spec, found before anything is made.

Owns the rules which the service's model does not hold: the exclusions that the API finds late, and those of local
clusters. Works on the request as written, mistakes included, so that all of them are shown at once.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hyperpod.config.lifecycle import local_source, script_problem
from hyperpod.config.problem import Path as DataPath
from hyperpod.config.problem import Problem, closest
from hyperpod.config.roles import Roles, has_slurm_config
from hyperpod.core.node import Role
from hyperpod.core.spec import HyperpodBlock, Provider, group_conflicts, host_name_is_too_long

_FSX_KINDS: Final = ("FsxLustreConfig", "FsxOpenZfsConfig")
_NETWORK_OVERHEAD: Final = 3
"""Addresses of a subnet that no node can have: the network's, the gateway's and the broadcast's."""


@dataclass(frozen=True)
class Draft:
    """An instance group as far as it can be understood; ``index`` is its place in the file."""

    index: int
    name: str
    count: int
    role: Role
    partition: str | None
    spares: int


def draft_groups(groups: Sequence[Any], roles: Roles, spares: Mapping[str, int]) -> list[Draft]:
    """Return the groups that are complete enough to be compared with each other."""
    drafts = []
    names = [group.get("InstanceGroupName") for group in groups if isinstance(group, Mapping)]
    for index, group in enumerate(groups):
        role_of = roles.by_index.get(index)
        if not isinstance(group, Mapping) or role_of is None:
            continue
        name, count = group.get("InstanceGroupName"), group.get("InstanceCount")
        if isinstance(name, str) and isinstance(count, int) and not isinstance(count, bool):
            own_spares = spares.get(name, 0) if names.count(name) == 1 else 0
            drafts.append(Draft(index, name, count, role_of.role, role_of.partition, own_spares))
    return drafts


def check_groups(groups: Sequence[Any], drafts: Sequence[Draft], roles: Roles) -> Iterator[Problem]:
    """Yield what makes no sense among the groups; nothing is called missing while mistakes hide some of them."""
    everything = roles.is_complete and len(drafts) == len(groups) > 0
    for conflict in group_conflicts(drafts):
        if conflict.group is None:
            if everything:
                yield Problem(("InstanceGroups",), conflict.message)
            continue
        index = drafts[conflict.group].index
        if conflict.key == "Spares":
            yield Problem(("Hyperpod", "Spares", drafts[conflict.group].name), conflict.message)
        else:
            has_key = conflict.key and conflict.key in groups[index]
            yield Problem(("InstanceGroups", index, *([conflict.key] if has_key else [])), conflict.message)


def check_block(block: HyperpodBlock, drafts: Sequence[Draft], groups: Sequence[Any]) -> Iterator[Problem]:
    """Yield what the ``Hyperpod:`` block says about groups and partitions that are not there."""
    names = [str(g.get("InstanceGroupName")) for g in groups if isinstance(g, Mapping)]
    for name in block.spares:
        if name not in names:
            near = closest(name, names)
            tail = f"did you mean {near}?" if near else f"groups are {', '.join(names)}"
            yield Problem(("Hyperpod", "Spares", name), f"no instance group {name}; {tail}")
    for name in block.health.groups:
        if name not in names:
            near = closest(name, names)
            tail = f"did you mean {near}?" if near else f"groups are {', '.join(names)}"
            yield Problem(("Hyperpod", "Health", "Groups", name), f"no instance group {name}; {tail}")
    partitions = sorted({draft.partition for draft in drafts if draft.partition})
    wanted = block.slurm.default_partition
    if wanted is not None and partitions and wanted not in partitions and len(drafts) == len(groups):
        text = f"no worker group is in partition {wanted}; partitions are {', '.join(partitions)}"
        yield Problem(("Hyperpod", "Slurm", "DefaultPartition"), text)


def check_request(request: Mapping[str, Any], provider: Provider | None, has_parameters: bool) -> Iterator[Problem]:
    """Yield the mutual exclusions in a CreateCluster request that the API would find late, or not at all.

    ``provider`` is None when a mistake hides it.
    """
    for key, why in (
        ("RestrictedInstanceGroups", "is not supported; use InstanceGroups"),
        ("AutoScaling", "works with EKS only; this is a Slurm cluster"),
    ):
        if request.get(key) is not None:
            yield Problem((key,), why)
    if "InstanceGroups" not in request:
        yield Problem(("InstanceGroups",), "is required but missing")
    orchestrator = _mapping(request.get("Orchestrator"))
    if orchestrator.get("Eks") is not None:
        yield Problem(
            ("Orchestrator", "Eks"), "EKS clusters are not supported; use 'Slurm: {}' or take Orchestrator out"
        )
    groups = _list(request.get("InstanceGroups"))
    continuous = request.get("NodeProvisioningMode") == "Continuous"
    if continuous:
        yield from _check_continuous(request, groups, has_parameters)
    for index, group in enumerate(groups):
        if isinstance(group, Mapping):
            place = ("InstanceGroups", index)
            yield from _check_lifecycle(group, place)
            yield from _check_instance(group, place, provider, continuous)
            yield from _check_storage(group, place, request)


def _check_continuous(request: Mapping[str, Any], groups: Sequence[Any], has_parameters: bool) -> Iterator[Problem]:
    place = ("NodeProvisioningMode",)
    strategy = _mapping(_mapping(request.get("Orchestrator")).get("Slurm")).get("SlurmConfigStrategy")
    if strategy is not None:
        where = ("Orchestrator", "Slurm", "SlurmConfigStrategy")
        yield Problem(where, "excludes NodeProvisioningMode Continuous; take one of the two out")
    if has_parameters:
        yield Problem(
            place, "Continuous excludes provisioning_parameters.json; give roles in SlurmConfig and remove the file"
        )
    elif not any(has_slurm_config(group) for group in groups):
        yield Problem(place, "Continuous needs SlurmConfig in every instance group")


def _check_lifecycle(group: Mapping[str, Any], place: DataPath) -> Iterator[Problem]:
    lifecycle = group.get("LifeCycleConfig")
    if not isinstance(lifecycle, Mapping):
        return
    place = (*place, "LifeCycleConfig")
    scripts = [key for key in ("OnCreate", "OnInitComplete") if lifecycle.get(key)]
    source = lifecycle.get("SourceS3Uri")
    if len(scripts) == 2:
        yield Problem((*place, "OnInitComplete"), "OnCreate and OnInitComplete exclude each other; give one")
    for key in scripts:
        if not source:
            yield Problem((*place, key), f"{key} needs SourceS3Uri, the folder with the script")
    if source and not scripts and not any(closest(str(key), ("OnCreate", "OnInitComplete")) for key in lifecycle):
        yield Problem(
            (*place, "SourceS3Uri"), "SourceS3Uri without OnCreate or OnInitComplete runs nothing; name a script"
        )


def _check_instance(
    group: Mapping[str, Any], place: DataPath, provider: Provider | None, continuous: bool
) -> Iterator[Problem]:
    needs_type = provider in (Provider.EC2, Provider.SAGEMAKER)
    has_type, has_needs = group.get("InstanceType") is not None, group.get("InstanceRequirements") is not None
    if has_type and has_needs:
        where = (*place, "InstanceRequirements")
        yield Problem(where, "InstanceType and InstanceRequirements exclude each other; give one")
    elif not has_type and not has_needs and needs_type and not _misspells_type(group):
        yield Problem((*place, "InstanceType"), "InstanceType is required, such as ml.c5.xlarge")
    capacity = _mapping(group.get("CapacityRequirements"))
    if "Spot" in capacity and "OnDemand" in capacity:
        yield Problem((*place, "CapacityRequirements"), "Spot and OnDemand exclude each other; give one")
    if "Spot" in capacity and group.get("TrainingPlanArn") is not None:
        yield Problem((*place, "TrainingPlanArn"), "TrainingPlanArn and CapacityRequirements Spot exclude each other")
    if group.get("KubernetesConfig") is not None:
        yield Problem((*place, "KubernetesConfig"), "works with EKS only; this is a Slurm cluster")
    least, count = group.get("MinInstanceCount"), group.get("InstanceCount")
    if least is not None and not continuous:
        yield Problem((*place, "MinInstanceCount"), "MinInstanceCount needs NodeProvisioningMode: Continuous")
    if isinstance(least, int) and isinstance(count, int) and least > count:
        yield Problem((*place, "MinInstanceCount"), f"MinInstanceCount {least} is above InstanceCount {count}")


def _misspells_type(group: Mapping[str, Any]) -> bool:
    """Say whether a key of the group is a misspelt InstanceType, which is reported as such."""
    others = [str(key) for key in group if key not in ("InstanceCount", "InstanceGroupName", "InstanceStorageConfigs")]
    return any(closest(key, ("InstanceType", "ExecutionRole", "ThreadsPerCore")) == "InstanceType" for key in others)


def _check_storage(group: Mapping[str, Any], place: DataPath, request: Mapping[str, Any]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, entry in enumerate(_list(group.get("InstanceStorageConfigs"))):
        for kind in _FSX_KINDS:
            if kind not in _mapping(entry):
                continue
            where = (*place, "InstanceStorageConfigs", index, kind)
            if kind in seen:
                yield Problem(where, f"second {kind} in this group; only one of a kind is allowed")
            seen.add(kind)
    if seen and request.get("VpcConfig") is None and group.get("OverrideVpcConfig") is None:
        yield Problem(
            (*place, "InstanceStorageConfigs"), "FSx file systems need VpcConfig, or OverrideVpcConfig in the group"
        )


def check_local(
    request: Mapping[str, Any], block: HyperpodBlock, drafts: Sequence[Draft], base: Path
) -> Iterator[Problem]:
    """Yield what a cluster on this machine cannot have; looks at the folders and scripts named in the spec."""
    seen: set[DataPath] = set()
    for index, group in enumerate(_list(request.get("InstanceGroups"))):
        if isinstance(group, Mapping):
            for problem in _check_local_scripts(group, ("InstanceGroups", index), block, base):
                if problem.path not in seen:
                    yield problem
                seen.add(problem.path)
    for draft in drafts:
        if host_name_is_too_long(draft):
            text = f"node names such as {draft.name[:12]}…-{draft.count} would be longer than a host name may be (63)"
            yield Problem(("InstanceGroups", draft.index, "InstanceGroupName"), text)
    if block.local.subnet is not None:
        nodes = sum(draft.count for draft in drafts)
        room = ipaddress.IPv4Network(block.local.subnet).num_addresses - _NETWORK_OVERHEAD
        if nodes > room:
            text = f"{block.local.subnet} has room for {room} nodes, the spec has {nodes}; give a larger network"
            yield Problem(("Hyperpod", "Local", "Subnet"), text)
    if block.shared_storage is not None:
        yield from _check_shared_storage(block.shared_storage, base)


def _check_local_scripts(
    group: Mapping[str, Any], place: DataPath, block: HyperpodBlock, base: Path
) -> Iterator[Problem]:
    lifecycle = _mapping(group.get("LifeCycleConfig"))
    source = lifecycle.get("SourceS3Uri")
    if not isinstance(source, str) or not source:
        return
    where: DataPath = (*place, "LifeCycleConfig", "SourceS3Uri")
    if source.startswith(("s3://", "https://")) and block.local.lifecycle_scripts:
        source, where = block.local.lifecycle_scripts, ("Hyperpod", "Local", "LifecycleScripts")
    folder = local_source(source, base)
    if isinstance(folder, str):
        yield Problem(where, folder)
        return
    for key in ("OnCreate", "OnInitComplete"):
        name = lifecycle.get(key)
        if isinstance(name, str) and name:
            problem = script_problem(folder, name)
            if problem is not None:
                yield Problem((*place, "LifeCycleConfig", key), problem)


def _check_shared_storage(text: str, base: Path) -> Iterator[Problem]:
    place = ("Hyperpod", "SharedStorage")
    folder = (base / Path(text).expanduser()).resolve()
    if set(str(folder)) & set(":,\n"):
        yield Problem(place, f"{folder} cannot be mounted: ':', ',' and line breaks have a meaning in a mount")
    elif len(folder.parts) < 3 and (folder == Path("/") or folder.name in _SYSTEM_FOLDERS):
        yield Problem(place, f"{folder} belongs to this machine's system; give a folder of its own")
    elif not folder.is_dir():
        yield Problem(place, f"folder {folder} does not exist; make it first: mkdir -p {folder}")


_SYSTEM_FOLDERS: Final = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var"}
)


def notes_about(request: Mapping[str, Any], provider: Provider, repairs: bool) -> Iterator[Problem]:
    """Yield what is allowed but seldom meant."""
    if provider is Provider.LOCAL:
        return
    for index, group in enumerate(_list(request.get("InstanceGroups"))):
        source = _mapping(_mapping(group).get("LifeCycleConfig")).get("SourceS3Uri")
        if isinstance(source, str) and source.startswith("s3://") and not source.startswith("s3://sagemaker-"):
            where = ("InstanceGroups", index, "LifeCycleConfig", "SourceS3Uri")
            yield Problem(
                where, "the managed policy reads only buckets named sagemaker-...; others need rights of their own"
            )
    if provider is Provider.SAGEMAKER and repairs and request.get("NodeRecovery") == "None":
        yield Problem(
            ("NodeRecovery",), "None makes the service ignore Action:Replace and Action:Reboot; repairs need Automatic"
        )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
