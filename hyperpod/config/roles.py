"""Which group is head, login or worker: from ``SlurmConfig`` in the spec, or from provisioning_parameters.json.

Owns the meaning of that second file, as HyperPod users have it beside their lifecycle scripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hyperpod.config.document import Document
from hyperpod.config.problem import Path, Problem, closest, shown
from hyperpod.core.node import Role

PARAMETERS_FILE: Final = "provisioning_parameters.json"
_TEXT_KEYS: Final = (
    "version",
    "workload_manager",
    "controller_group",
    "login_group",
    "fsx_dns_name",
    "fsx_mountname",
    "fsx_openzfs_dns_name",
)
_KEYS: Final = (*_TEXT_KEYS, "worker_groups", "slurm_configurations")
_ROLE_KEYS: Final = ("controller_group", "login_group", "worker_groups")
_WORKER_KEYS: Final = ("instance_group_name", "partition_name")
_PARTITION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_NODE_TYPES: Final = {"Controller": Role.HEAD, "Login": Role.LOGIN, "Compute": Role.WORKER}


_NO_ROLES: Final = (
    "no group has a role; give each 'SlurmConfig: {NodeType: Controller}' (or Login, or Compute with PartitionNames), "
    f"or lay a {PARAMETERS_FILE} with controller_group and worker_groups beside the file"
)


@dataclass
class RoleOf:
    """Role and partition of a group."""

    role: Role
    partition: str | None = None


@dataclass
class Roles:
    """The roles by index of group; ``is_complete`` is False when mistakes hide some."""

    by_index: dict[int, RoleOf] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    parameter_problems: list[Problem] = field(default_factory=list)
    is_complete: bool = True


def has_slurm_config(group: object) -> bool:
    """Say whether a group of the request carries its role itself."""
    return isinstance(group, Mapping) and group.get("SlurmConfig") is not None


def find_roles(groups: Sequence[Any], parameters: Document | None) -> Roles:
    """Return the role of every group, and what is wrong with how they are given.

    Args:
        groups: ``InstanceGroups`` as written, possibly with mistakes.
        parameters: provisioning_parameters.json, if there is one.
    """
    with_config = [index for index, group in enumerate(groups) if has_slurm_config(group)]
    roles = Roles(parameter_problems=_check_parameters(parameters.data) if parameters is not None else [])
    if parameters is not None and all(parameters.data.get(key) is None for key in _ROLE_KEYS):
        parameters = None  # it has file systems and settings of the user's scripts, but no roles
    if with_config and parameters is not None:
        text = f"roles are given here and in {parameters.source} too; take them out of one of the two"
        roles.problems.append(Problem(("InstanceGroups", with_config[0], "SlurmConfig"), text))
        roles.is_complete = False
    elif with_config:
        _from_slurm_config(groups, roles)
    elif parameters is not None:
        _from_parameters(groups, parameters, roles)
    elif groups:
        roles.problems.append(Problem(("InstanceGroups",), _NO_ROLES))
        roles.is_complete = False
    return roles


def _from_slurm_config(groups: Sequence[Any], roles: Roles) -> None:
    for index, group in enumerate(groups):
        if not isinstance(group, Mapping):
            roles.is_complete = False
            continue
        config = group.get("SlurmConfig")
        place: Path = ("InstanceGroups", index)
        if config is None:
            roles.problems.append(
                Problem(place, "has no SlurmConfig while other groups have one; give every group its NodeType")
            )
        role = _NODE_TYPES.get(str(config.get("NodeType"))) if isinstance(config, Mapping) else None
        if role is None or not isinstance(config, Mapping):
            roles.is_complete = False
            continue
        partitions = config.get("PartitionNames")
        first = partitions[0] if isinstance(partitions, list) and partitions else None
        roles.by_index[index] = RoleOf(role, first if isinstance(first, str) else None)


def _from_parameters(groups: Sequence[Any], parameters: Document, roles: Roles) -> None:
    named: list[tuple[Path, str, RoleOf]] = []
    data = parameters.data
    for key, role in (("controller_group", Role.HEAD), ("login_group", Role.LOGIN)):
        if isinstance(data.get(key), str) and data[key]:
            named.append(((key,), data[key], RoleOf(role)))
    workers = _listed(data.get("worker_groups"))
    for index, worker in enumerate(workers):
        if not isinstance(worker, Mapping):
            continue
        name, partition = worker.get("instance_group_name"), worker.get("partition_name")
        if isinstance(name, str) and isinstance(partition, str) and partition:
            named.append((("worker_groups", index, "instance_group_name"), name, RoleOf(Role.WORKER, partition)))
    existing = [_name(group) for group in groups if _name(group)]
    by_name: dict[str, RoleOf] = {}
    for place, name, role_of in named:
        if name in by_name:
            text = f"group {name} already has the role {by_name[name].role}; name it once"
            roles.parameter_problems.append(Problem(place, text))
        elif name not in existing:
            near = closest(name, existing)
            tail = f"did you mean {near}?" if near else f"groups are {', '.join(existing)}"
            roles.parameter_problems.append(Problem(place, f"{name} is no instance group of the spec; {tail}"))
            roles.is_complete = False
        else:
            by_name[name] = role_of
    strangers = [name for _, name, _ in named if name not in existing]
    spoilt = [str(worker.get("instance_group_name")) for worker in workers if isinstance(worker, Mapping)]
    for index, group in enumerate(groups):
        name = _name(group)
        if name in by_name:
            roles.by_index[index] = by_name[name]
            continue
        roles.is_complete = False
        if name and name not in spoilt and not any(closest(stranger, [name]) for stranger in strangers):
            text = f"group {name} has no role in {parameters.source}; name it there in worker_groups or login_group"
            roles.problems.append(Problem(("InstanceGroups", index, "InstanceGroupName"), text))


def _name(group: object) -> str:
    name = group.get("InstanceGroupName") if isinstance(group, Mapping) else None
    return name if isinstance(name, str) else ""


def _check_parameters(data: Mapping[str, Any]) -> list[Problem]:
    problems = [p for key in data if (p := _misspelt((str(key),), _KEYS))]
    for key in _TEXT_KEYS:
        if data.get(key) is not None and not isinstance(data[key], str):
            problems.append(Problem((key,), f"must be text, got {shown(data[key])}"))
    if data.get("workload_manager") not in (None, "slurm"):
        problems.append(Problem(("workload_manager",), f"must be slurm, got {shown(data['workload_manager'])}"))
    if len(_listed(data.get("slurm_configurations"))) > 1:
        problems.append(
            Problem(("slurm_configurations",), "several head nodes are not supported; give one controller_group")
        )
    workers = data.get("worker_groups")
    if workers is not None and not isinstance(workers, list):
        problems.append(Problem(("worker_groups",), f"must be a list, got {shown(workers)}"))
    for index, worker in enumerate(_listed(workers)):
        problems += _check_worker(worker, ("worker_groups", index))
    return problems


def _check_worker(worker: Any, place: Path) -> list[Problem]:
    if not isinstance(worker, Mapping):
        return [Problem(place, f"must be a mapping with instance_group_name, got {shown(worker)}")]
    problems = [p for key in worker if (p := _misspelt((*place, str(key)), _WORKER_KEYS))]
    misspelt = {closest(str(problem.path[-1]), _WORKER_KEYS) for problem in problems}
    for key in _WORKER_KEYS:
        value = worker.get(key)
        if value is None and key not in misspelt:
            problems.append(Problem((*place, key), "is required but missing"))
        elif value is not None and not (isinstance(value, str) and value):
            problems.append(Problem((*place, key), f"must be text, got {shown(value)}"))
    partition = worker.get("partition_name")
    if isinstance(partition, str) and partition and not _PARTITION.fullmatch(partition):
        text = f"{shown(partition)}: allowed are letters, digits, '-' and '_', at most 63"
        problems.append(Problem((*place, "partition_name"), text))
    return problems


def _misspelt(path: Path, known: Sequence[str]) -> Problem | None:
    """Return a problem for a key near a known one; others may be there for the user's own scripts."""
    key = str(path[-1])
    near = closest(key, known)
    if key in known or near is None or abs(len(near) - len(key)) > 2:
        return None
    return Problem(path, f"unknown key; did you mean {near}?")


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
