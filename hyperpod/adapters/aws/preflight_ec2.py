"""What is looked at besides, before a cluster is made of our own instances: image, profiles, reservations, quotas.

Owns the checks of provider ``ec2``; they are ``preflight``'s in form, and run after those.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from hyperpod.adapters.aws import tags
from hyperpod.adapters.aws.images import find_image
from hyperpod.adapters.aws.preflight import (
    Check,
    Preflight,
    Result,
    Verdict,
    denied_reads,
    ec2_type,
    trusts,
    types_of,
)
from hyperpod.core.node import Role
from hyperpod.errors import ConfigError, NotFound

_SERVICE: Final = "ec2.amazonaws.com"
_FAMILY: Final = re.compile(r"([a-z]+)(\d*)")
_QUOTA: Final = re.compile(r"(?:Running On-Demand|All) (.+?) (?:instances|Spot Instance Requests)")


def check_image(p: Preflight) -> Iterator[Result]:
    """The image is there, and for machines like those."""
    name = p.spec.hyperpod.ec2.image
    for architecture in sorted({_architecture(p, kind) for group in p.groups for kind in types_of(group)[:1]}):
        try:
            image = find_image(p.aws, name, architecture)
        except ConfigError as error:
            fix = error.hint or "name an image for this architecture in Hyperpod.Ec2.Image"
            yield Result("image", Verdict.FAIL, error.message, fix)
        else:
            yield Result("image", Verdict.PASS, f"{name}: {image.id} ({architecture})")


def check_instance_profiles(p: Preflight) -> Iterator[Result]:
    """The instance profiles are there, have a role that EC2 may take, and the role may read the scripts."""
    block = p.spec.hyperpod.ec2
    roles = {group.role for group in p.spec.instance_groups}
    names = {block.head_profile} if Role.HEAD in roles else set()
    names |= {block.node_profile} if roles - {Role.HEAD} else set()
    for name in sorted(names):
        what = f"instance profile {name}"
        try:
            found = p.aws.call("iam", "GetInstanceProfile", what=what, InstanceProfileName=name)["InstanceProfile"]
        except NotFound:
            fix = "hyperpod prepare --for ec2 makes it; or name yours in Hyperpod.Ec2.NodeProfile and HeadProfile"
            yield Result("instance_profiles", Verdict.FAIL, f"{what} does not exist", fix)
            continue
        if not found.get("Roles"):
            fix = "hyperpod prepare --for ec2 gives it one, or iam add-role-to-instance-profile"
            yield Result("instance_profiles", Verdict.FAIL, f"{what} has no role", fix)
            continue
        role: Mapping[str, Any] = found["Roles"][0]
        document = role.get("AssumeRolePolicyDocument") or {}
        if isinstance(document, str):
            document = json.loads(unquote(document))
        if not trusts(document, _SERVICE):
            fix = f"allow sts:AssumeRole to {_SERVICE} in the role's trust policy"
            yield Result("instance_profiles", Verdict.FAIL, f"{what}: its role does not trust {_SERVICE}", fix)
            continue
        yield from _reads(p, what, str(role["Arn"]))


def _reads(p: Preflight, what: str, role: str) -> Iterator[Result]:
    denied = {source: rights for source in p.sources if (rights := denied_reads(p, role, source))}
    for source, rights in denied.items():
        text = f"{what}: its role may not read {source}"
        yield Result("instance_profiles", Verdict.FAIL, text, f"allow {' and '.join(rights)}")
    if not denied:
        yield Result("instance_profiles", Verdict.PASS, f"{what}: EC2 takes its role, which reads the scripts")


def check_reservations(p: Preflight) -> Iterator[Result]:
    """Capacity reservations and blocks that are named are active, and have these machines in this zone."""
    by_name = {str(group["InstanceGroupName"]): group for group in p.groups}
    for name, identity in p.spec.hyperpod.ec2.reservations.items():
        where = f"{name}: reservation {identity}"
        answer = p.aws.call(
            "ec2", "DescribeCapacityReservations", what=where, CapacityReservationIds=[identity]
        )["CapacityReservations"]  # fmt: skip
        if not answer:
            raise NotFound(f"{where} is not there", hint="is it of this region and account?")
        found: Mapping[str, Any] = answer[0]
        group = by_name[name]
        kind, zones = ec2_type(types_of(group)[0]), p.zones_of(group)
        state, free = str(found.get("State")), int(found.get("AvailableInstanceCount", 0))
        if state != "active":
            begins = (
                f" until {found['StartDate']}" if state in ("scheduled", "pending") and "StartDate" in found else ""
            )
            yield Result(
                "reservations", Verdict.FAIL, f"{where} is {state}{begins}", "wait for it, or name another one"
            )
        elif found.get("InstanceType") != kind:
            text = f"{where} is for {found.get('InstanceType')}, the group is {kind}"
            yield Result("reservations", Verdict.FAIL, text, "name one for this type, or change InstanceType")
        elif zones and found.get("AvailabilityZone") not in zones:
            text = f"{where} is in {found.get('AvailabilityZone')}, the group's subnet is in {', '.join(zones)}"
            yield Result("reservations", Verdict.FAIL, text, "use a subnet in the reservation's zone")
        elif free < int(group["InstanceCount"]) and not _is_there(p):
            text = f"{where} has {free} instances free, {group['InstanceCount']} are wanted"
            yield Result("reservations", Verdict.FAIL, text, "lower InstanceCount, or enlarge the reservation")
        else:
            yield Result("reservations", Verdict.PASS, f"{where}: active, {free} free")


def check_vcpu_quotas(p: Preflight) -> Iterator[Result]:
    """The account may run so many processors of these families; what is reserved counts already."""
    wanted: Counter[tuple[str, bool]] = Counter()
    for group in p.groups:
        if str(group["InstanceGroupName"]) not in p.spec.hyperpod.ec2.reservations:
            kind = ec2_type(types_of(group)[0])
            vcpus = int((p.types.get(kind, {}).get("VCpuInfo") or {}).get("DefaultVCpus", 0))
            wanted[kind.partition(".")[0], "Spot" in (group.get("CapacityRequirements") or {})] += vcpus * int(
                group["InstanceCount"]
            )
    if not wanted:
        return
    quotas = {
        str(quota["QuotaName"]): float(quota["Value"])
        for quota in p.aws.pages("service-quotas", "ListServiceQuotas", "Quotas", ServiceCode="ec2", MaxResults=100)
    }
    needed: Counter[str] = Counter()
    for (family, is_spot), count in sorted(wanted.items()):
        name = next((name for name in sorted(quotas) if _is_about(name, family, is_spot)), "")
        if name:
            needed[name] += count
        else:
            way = "spot requests" if is_spot else "on-demand instances"
            text = f"Service Quotas lists none for {way} of {family}"
            yield Result("vcpu_quotas", Verdict.UNKNOWN, text, "look in the console: Service Quotas, Amazon EC2")
    for name, count in sorted(needed.items()):
        if quotas[name] < count and not _is_there(p):
            fix = f"ask for {count} or more in Service Quotas (Amazon EC2: {name}), or use fewer"
            yield Result("vcpu_quotas", Verdict.FAIL, f"{name}: {quotas[name]:g} vCPUs, {count} are wanted", fix)
        else:
            yield Result("vcpu_quotas", Verdict.PASS, f"{name}: {quotas[name]:g} vCPUs for {count}")


EC2_CHECKS: Final[tuple[Check, ...]] = (check_image, check_instance_profiles, check_reservations, check_vcpu_quotas)


def _is_about(quota: str, family: str, is_spot: bool) -> bool:
    """Say whether a quota is about a family: ``p5``, in "Running On-Demand P instances"."""
    match = _QUOTA.fullmatch(quota)
    if match is None or quota.startswith("All ") is not is_spot:
        return False
    letters = _FAMILY.match(family)
    names = {family, *([letters[1], letters[1] + letters[2]] if letters else ())}
    listed = re.search(r"\((.+)\)", match[1])
    words = re.split(r",\s*|\s+and\s+|\s+", listed[1] if listed else match[1])
    # Standard families are single letters with or without more of them: c5n and m5 are C and M.
    return any(word.lower() in names for word in words)


def _is_there(p: Preflight) -> bool:
    """Say whether the cluster has machines already, which are in what is used."""
    filters = [
        {"Name": f"tag:{tags.CLUSTER}", "Values": [p.spec.cluster_name]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
    ]
    return bool(p.aws.call("ec2", "DescribeInstances", Filters=filters).get("Reservations"))


def _architecture(p: Preflight, kind: str) -> str:
    supported = (p.types.get(ec2_type(kind), {}).get("ProcessorInfo") or {}).get("SupportedArchitectures") or ["x86_64"]
    return "x86_64" if "x86_64" in supported else str(supported[0])
