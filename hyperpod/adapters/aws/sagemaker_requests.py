"""The requests to HyperPod, made from a specification and from what is there.

Pure. Which keys an operation takes is read from botocore's model, never written down here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

import botocore.model
from botocore.loaders import Loader

from hyperpod.adapters.aws.model import API_VERSION
from hyperpod.core.spec import ClusterSpec
from hyperpod.errors import InvalidState

T = TypeVar("T")

TAG: Final = "hyperpod:cluster"
_MOST_TAGS: Final = 50
_DELETE_AT_ONCE: Final = 99
"""The service's guide allows fewer at once than its model."""
_FIXED: Final = ("InstanceType", "InstanceRequirements")
_DEFAULTS: Final[Mapping[str, Any]] = {"ThreadsPerCore": 1, "InstanceStorageConfigs": [], "OnStartDeepHealthChecks": []}
_NOT_COMPARED: Final = ("InstanceGroupName", "InstanceCount", "MinInstanceCount", "AutoPatchConfig", "KubernetesConfig")


@dataclass(frozen=True)
class Update:
    """How a cluster becomes what a specification says.

    Attributes:
        request: For UpdateCluster; empty when nothing is to be done.
        changes: The same for people, one a line.
        gone: Groups that are deleted with all their instances.
    """

    request: Mapping[str, Any]
    changes: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


@cache
def _model() -> botocore.model.ServiceModel:
    return botocore.model.ServiceModel(Loader().load_service_model("sagemaker", "service-2", API_VERSION))


def input_keys(operation: str) -> tuple[str, ...]:
    """Return the keys that an operation takes."""
    return tuple(_model().operation_model(operation).input_shape.members)


def list_limit(operation: str, key: str) -> int:
    """Return how many entries a list in a request may have."""
    limit = int(_model().operation_model(operation).input_shape.members[key].metadata["max"])
    return min(limit, _DELETE_AT_ONCE) if operation == "BatchDeleteClusterNodes" else limit


@cache
def _group_keys() -> tuple[str, ...]:
    return tuple(_model().shape_for("ClusterInstanceGroupSpecification").members)


def create_request(spec: ClusterSpec) -> dict[str, Any]:
    """Return what CreateCluster is asked: the file's own words, without our block, and with our tag."""
    request = {key: value for key, value in spec.aws_request.items() if key in input_keys("CreateCluster")}
    tags = list(request.get("Tags") or ())
    if len(tags) < _MOST_TAGS and not any(tag.get("Key") == TAG for tag in tags):
        request["Tags"] = [*tags, {"Key": TAG, "Value": spec.cluster_name}]
    return request


def group_request(details: Mapping[str, Any], count: int | None = None) -> dict[str, Any]:
    """Return a group in the form of a request, from how DescribeCluster tells it."""
    group = {key: details[key] for key in _group_keys() if details.get(key) not in (None, [], {}, "")}
    group["InstanceCount"] = details.get("TargetCount", 0) if count is None else count
    if details.get("MinCount") is not None:
        group["MinInstanceCount"] = min(int(details["MinCount"]), int(group["InstanceCount"]))
    needs = details.get("InstanceRequirements") or {}
    types = needs.get("DesiredInstanceTypes") or needs.get("CurrentInstanceTypes")
    if types:
        group["InstanceRequirements"] = {"InstanceTypes": list(types)}
    patching = group.get("AutoPatchConfig")
    if patching:
        known = _model().shape_for("ClusterAutoPatchConfig").members
        group["AutoPatchConfig"] = {key: value for key, value in patching.items() if key in known}
    # Told in another form than it is asked for; leaving it out leaves it as it is.
    group.pop("KubernetesConfig", None)
    return group


def count_request(details: Mapping[str, Any], counts: Mapping[str, int]) -> Update:
    """Return the change of some groups' sizes; the other groups are not mentioned, which leaves them alone."""
    groups = {group["InstanceGroupName"]: group for group in details.get("InstanceGroups", ())}
    wanted, changes = [], []
    for name, count in counts.items():
        before = int(groups[name].get("TargetCount", 0))
        if count != before:
            wanted.append(group_request(groups[name], count))
            changes.append(f"~ {name}.InstanceCount: {before} -> {count}")
    if not wanted:
        return Update({})
    return Update({"ClusterName": details["ClusterName"], "InstanceGroups": wanted}, tuple(changes))


def update_request(spec: ClusterSpec, details: Mapping[str, Any]) -> Update:
    """Return the change from what is there to what the specification says.

    Raises:
        InvalidState: It differs in something that cannot be changed while a cluster lives.
    """
    there = {group["InstanceGroupName"]: group for group in details.get("InstanceGroups", ())}
    request: dict[str, Any] = {}
    changes: list[str] = []
    groups: list[Mapping[str, Any]] = []
    for group in spec.aws_request.get("InstanceGroups", ()):
        name = group["InstanceGroupName"]
        if name not in there:
            groups.append(group)
            changes.append(f"+ {name}: {group['InstanceCount']} x {_type_of(group)}")
            continue
        differing = _differences(group, group_request(there[name]), name)
        fixed = [key for key, _ in differing if key in _FIXED or key == "SlurmConfig.NodeType"]
        if fixed:
            raise InvalidState(
                f"change {', '.join(fixed)} of group {name}",
                "fixed while the group lives",
                hint="give the group another name: the new one is made and the old one deleted",
            )
        if differing:
            groups.append(group)
            changes += [line for _, line in differing]
    gone = tuple(name for name in there if not any(g.name == name for g in spec.instance_groups))
    changes += [f"- {name}: {there[name].get('CurrentCount', 0)} instances" for name in gone]
    if _vpc(spec.aws_request) not in ({}, _vpc(details)):
        raise InvalidState(
            "change VpcConfig", "fixed while the cluster lives", hint="groups can have OverrideVpcConfig"
        )
    if groups:
        request["InstanceGroups"] = groups
    if gone:
        request["InstanceGroupsToDelete"] = list(gone)
    recovery = spec.aws_request.get("NodeRecovery")
    if recovery and recovery != details.get("NodeRecovery", "Automatic"):
        request["NodeRecovery"] = recovery
        changes.append(f"~ NodeRecovery: {details.get('NodeRecovery', 'Automatic')} -> {recovery}")
    if not request:
        return Update({})
    # The service needs at least the groups that stay; one that is as it was changes nothing.
    request = {"ClusterName": spec.cluster_name, **request}
    return Update(request, tuple(changes), gone)


def _differences(wanted: Mapping[str, Any], there: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    found = []
    for key in _group_keys():
        if key in _NOT_COMPARED and key != "InstanceCount":
            continue
        before, after = there.get(key, _DEFAULTS.get(key)), wanted.get(key, _DEFAULTS.get(key))
        if key in _DEFAULTS and key not in wanted:
            continue  # left to the service, which has decided
        if after is None or before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            inner = [k for k in sorted({*before, *after}) if k in after and before.get(k) != after[k]]
            found += [(f"{key}.{k}", f"~ {name}.{key}.{k}: {_text(before.get(k))} -> {_text(after[k])}") for k in inner]
        else:
            found.append((key, f"~ {name}.{key}: {_text(before)} -> {_text(after)}"))
    return found


def _vpc(request: Mapping[str, Any]) -> dict[str, Any]:
    vpc = request.get("VpcConfig") or {}
    return {key: sorted(value) for key, value in vpc.items()}


def _type_of(group: Mapping[str, Any]) -> str:
    needs = group.get("InstanceRequirements") or {}
    return str(group.get("InstanceType") or ",".join(needs.get("InstanceTypes", ())))


def _text(value: Any) -> str:
    if value in (None, [], {}):
        return "none"
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, dict | list) else str(value)


def batches(items: Sequence[T] | Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most ``size``, in their order, each item once."""
    todo = list(dict.fromkeys(items))
    for start in range(0, len(todo), size):
        yield todo[start : start + size]
