"""Looks at an account before a cluster is made in it: each check is one thing that has bitten people.

Owns the list of checks and their order. A check is a function that yields results; it changes nothing. What cannot be
found out is UNKNOWN and never counts as passed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from hyperpod.adapters.aws.client import Aws
from hyperpod.config.roles import PARAMETERS_FILE
from hyperpod.core.spec import ClusterSpec, Provider
from hyperpod.errors import HyperpodError, NotFound

FSX_PORT: Final = 988
_NAMED_BUCKET: Final = re.compile(r"sagemaker-.+")
_FILE_SYSTEM: Final = re.compile(r"fs-[0-9a-f]{8,17}")
_READ_RIGHTS: Final = ("s3:GetObject", "s3:ListBucket")
_SHOWN: Final = 5


class Verdict(StrEnum):
    """How a check ended. UNKNOWN: it could not be told."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Result:
    """One line of a preflight. ``fix`` says what to do when it is not passed."""

    check: str
    verdict: Verdict
    text: str
    fix: str = ""


@dataclass
class Preflight:
    """A specification and the account that it is for; what several checks ask is asked once."""

    spec: ClusterSpec
    aws: Aws

    @property
    def groups(self) -> Sequence[Mapping[str, Any]]:
        """The groups as written."""
        groups: Sequence[Mapping[str, Any]] = self.spec.aws_request.get("InstanceGroups", ())
        return groups

    @property
    def vpc(self) -> Mapping[str, Any]:
        return self.spec.aws_request.get("VpcConfig") or {}

    def network_of(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the subnets and security groups of a group."""
        return group.get("OverrideVpcConfig") or self.vpc

    def subnets_of(self, group: Mapping[str, Any]) -> list[str]:
        return list(self.network_of(group).get("Subnets") or ())

    @cached_property
    def subnets(self) -> Mapping[str, Mapping[str, Any]]:
        """All subnets of the specification, by id."""
        ids = sorted({subnet for group in self.groups for subnet in self.subnets_of(group)})
        if not ids:
            return {}
        found = self.aws.call("ec2", "DescribeSubnets", what=", ".join(ids), SubnetIds=ids)["Subnets"]
        return {subnet["SubnetId"]: subnet for subnet in found}

    @cached_property
    def security_groups(self) -> Mapping[str, Mapping[str, Any]]:
        """All security groups of the specification, by id."""
        ids = sorted({sg for group in self.groups for sg in self.network_of(group).get("SecurityGroupIds") or ()})
        if not ids:
            return {}
        found = self.aws.call("ec2", "DescribeSecurityGroups", what=", ".join(ids), GroupIds=ids)["SecurityGroups"]
        return {group["GroupId"]: group for group in found}

    @cached_property
    def types(self) -> Mapping[str, Mapping[str, Any]]:
        """What EC2 says of the instance types, by EC2's name."""
        names = sorted({ec2_type(kind) for group in self.groups for kind in types_of(group)})
        found = self.aws.call("ec2", "DescribeInstanceTypes", what=", ".join(names), InstanceTypes=names)
        return {kind["InstanceType"]: kind for kind in found["InstanceTypes"]}

    def interfaces(self, kind: str) -> int:
        """Return how many addresses an instance of a type takes: one for each EFA interface, at least one."""
        network = self.types.get(ec2_type(kind), {}).get("NetworkInfo", {})
        return max(1, int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 1)))

    def has_efa(self, kind: str) -> bool:
        return bool(self.types.get(ec2_type(kind), {}).get("NetworkInfo", {}).get("EfaSupported"))

    def zones_of(self, group: Mapping[str, Any]) -> list[str]:
        """Return the zones of a group's subnets."""
        return sorted({str(self.subnets[s]["AvailabilityZone"]) for s in self.subnets_of(group) if s in self.subnets})

    @cached_property
    def sources(self) -> Mapping[str, list[Mapping[str, Any]]]:
        """The places of lifecycle scripts, each with the groups that use it."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for group in self.groups:
            source = str((group.get("LifeCycleConfig") or {}).get("SourceS3Uri") or "")
            if source:
                found.setdefault(source, []).append(group)
        return found


Check = Callable[[Preflight], Iterator[Result]]


def run_checks(preflight: Preflight, checks: Sequence[Check] | None = None) -> Iterator[Result]:
    """Yield the results of all checks, in their order. Without credentials the rest is not asked."""
    checks = CHECKS if checks is None else checks
    is_in = True
    for check in checks:
        name = name_of(check)
        if not is_in:
            yield Result(name, Verdict.UNKNOWN, "not checked without credentials", "log in first")
            continue
        try:
            results = list(check(preflight))
        except NotFound as error:
            yield Result(name, Verdict.FAIL, error.message, error.hint)
        except HyperpodError as error:
            is_in = check is not check_credentials
            yield Result(name, Verdict.UNKNOWN if is_in else Verdict.FAIL, error.message, error.hint)
        else:
            yield from results


def name_of(check: Check) -> str:
    """Return a check's name, as in the results."""
    return check.__name__.removeprefix("check_")


# --- account ----------------------------------------------------------------------------------------------------


def check_credentials(p: Preflight) -> Iterator[Result]:
    """Credentials are good, and the region is known."""
    answer = p.aws.call("sts", "GetCallerIdentity")
    yield Result("credentials", Verdict.PASS, f"account {answer['Account']}, region {p.aws.region_name}")


def check_cluster_name(p: Preflight) -> Iterator[Result]:
    """The name is free, or the cluster is there and would be changed."""
    if p.spec.provider is not Provider.SAGEMAKER:
        return
    name = p.spec.cluster_name
    try:
        answer = p.aws.call("sagemaker", "DescribeCluster", what=f"cluster {name}", ClusterName=name)
    except NotFound:
        yield Result("cluster_name", Verdict.PASS, f"{name} is free")
        return
    status = str(answer["ClusterStatus"])
    if status in ("Failed", "Deleting"):
        fix = f"hyperpod delete-cluster {name} --provider sagemaker, or wait until it is gone; or choose another name"
        yield Result("cluster_name", Verdict.FAIL, f"cluster {name} is there and {status}", fix)
    else:
        yield Result("cluster_name", Verdict.PASS, f"cluster {name} is there ({status}); it would be changed")


def check_quotas(p: Preflight) -> Iterator[Result]:
    """The account may have so many instances "for cluster usage"."""
    if p.spec.provider is not Provider.SAGEMAKER:
        return
    wanted: Counter[str] = Counter()
    for group in p.groups:
        for kind in types_of(group)[:1]:
            if not group.get("TrainingPlanArn"):
                wanted[kind] += int(group["InstanceCount"])
    quotas = {
        str(quota["QuotaName"]): float(quota["Value"])
        for quota in p.aws.pages(
            "service-quotas", "ListServiceQuotas", "Quotas", ServiceCode="sagemaker", MaxResults=100
        )
    }
    for kind, count in sorted(wanted.items()):
        name = f"{kind} for cluster usage"
        limit = quotas.get(name)
        if limit is None:
            text = f"Service Quotas does not list {name!r}"
            yield Result("quotas", Verdict.UNKNOWN, text, "look in the console: Service Quotas, Amazon SageMaker")
        elif limit < count:
            fix = f"ask for {count} or more in Service Quotas (Amazon SageMaker: {name}), or use fewer"
            yield Result("quotas", Verdict.FAIL, f"{name}: {limit:g}, {count} are wanted", fix)
        else:
            yield Result("quotas", Verdict.PASS, f"{name}: {limit:g} for {count}")


def check_instance_types(p: Preflight) -> Iterator[Result]:
    """The zone has the instance types."""
    names = sorted({ec2_type(kind) for group in p.groups for kind in types_of(group)})
    offered: dict[str, set[str]] = {name: set() for name in names}
    for entry in p.aws.pages(
        "ec2",
        "DescribeInstanceTypeOfferings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": names}],
    ):
        offered[entry["InstanceType"]].add(entry["Location"])
    for group in p.groups:
        zones = p.zones_of(group)
        for kind in types_of(group):
            there = offered[ec2_type(kind)]
            missing = [zone for zone in zones if zone not in there]
            name = group["InstanceGroupName"]
            if not there:
                fix = "choose another type, or another region"
                yield Result("instance_types", Verdict.FAIL, f"{name}: {p.aws.region_name} has no {kind}", fix)
            elif missing:
                fix = f"use a subnet in {' or '.join(sorted(there))}"
                yield Result("instance_types", Verdict.FAIL, f"{name}: {', '.join(missing)} has no {kind}", fix)
            else:
                yield Result("instance_types", Verdict.PASS, f"{name}: {kind} in {', '.join(zones) or 'the region'}")


def check_training_plans(p: Preflight) -> Iterator[Result]:
    """Training plans that are named are there, for clusters, active, and large enough."""
    for group in p.groups:
        arn = group.get("TrainingPlanArn")
        if not arn:
            continue
        name = str(arn).rpartition("/")[2]
        plan = p.aws.call("sagemaker", "DescribeTrainingPlan", what=f"training plan {name}", TrainingPlanName=name)
        status, total = str(plan.get("Status")), int(plan.get("TotalInstanceCount", 0))
        where = f"{group['InstanceGroupName']}: training plan {name}"
        if status not in ("Active", "Scheduled"):
            yield Result("training_plans", Verdict.FAIL, f"{where} is {status}", "name one that is active or scheduled")
        elif "hyperpod-cluster" not in plan.get("TargetResources", ()):
            yield Result("training_plans", Verdict.FAIL, f"{where} is not for clusters", "buy one for hyperpod-cluster")
        elif total < int(group["InstanceCount"]):
            text = f"{where} has {total} instances, {group['InstanceCount']} are wanted"
            yield Result("training_plans", Verdict.FAIL, text, "lower InstanceCount, or extend the plan")
        else:
            yield Result("training_plans", Verdict.PASS, f"{where}: {status}, {total} instances")


def check_images(p: Preflight) -> Iterator[Result]:
    """Images that are named are there and available."""
    named = {
        str(g["ImageId"]): str(g["InstanceGroupName"]) for g in p.groups if g.get("ImageId", "default") != "default"
    }
    for image, group in named.items():
        try:
            found = p.aws.call("ec2", "DescribeImages", what=f"image {image}", ImageIds=[image])["Images"]
        except NotFound:
            found = []
        fix = f"images belong to one region ({p.aws.region_name}) and must be shared with this account"
        if not found:
            yield Result("images", Verdict.FAIL, f"{group}: image {image} is not there", fix)
        elif found[0].get("State") != "available":
            yield Result("images", Verdict.FAIL, f"{group}: image {image} is {found[0].get('State')}", fix)
        else:
            yield Result("images", Verdict.PASS, f"{group}: image {image}")


# --- network ----------------------------------------------------------------------------------------------------


def check_subnets(p: Preflight) -> Iterator[Result]:
    """Subnets and security groups belong together, and there are addresses for all interfaces of all instances."""
    if not p.subnets:
        yield Result("subnets", Verdict.PASS, "no VpcConfig: the service's own network")
        return
    needed: Counter[str] = Counter()
    for group in p.groups:
        names = p.subnets_of(group)
        vpcs = {p.subnets[s]["VpcId"] for s in names if s in p.subnets}
        groups = p.network_of(group).get("SecurityGroupIds") or ()
        strange = [sg for sg in groups if sg in p.security_groups and p.security_groups[sg]["VpcId"] not in vpcs]
        if strange:
            text = f"{group['InstanceGroupName']}: {', '.join(strange)} is not in the VPC of its subnets"
            yield Result("subnets", Verdict.FAIL, text, f"name security groups of {', '.join(sorted(vpcs))}")
        kind = types_of(group)[0]
        # The service spreads a group over its subnets; it must fit into them together.
        share = -(-int(group["InstanceCount"]) * p.interfaces(kind) // max(1, len(names)))
        for subnet in names:
            needed[subnet] += share
    for subnet, count in sorted(needed.items()):
        free = int(p.subnets[subnet]["AvailableIpAddressCount"])
        zone = p.subnets[subnet]["AvailabilityZone"]
        if free < count:
            fix = "use a larger subnet (a /16 for large EFA clusters), or fewer instances"
            yield Result("subnets", Verdict.FAIL, f"{subnet}: {free} addresses free, {count} needed", fix)
        else:
            yield Result("subnets", Verdict.PASS, f"{subnet} ({zone}): {free} addresses free, {count} needed")
    zones = sorted({zone for group in p.groups for zone in p.zones_of(group)})
    if len(zones) > 1:
        text = f"the groups are in {len(zones)} zones: {', '.join(zones)}"
        yield Result(
            "subnets", Verdict.FAIL, text, "put all subnets into one zone: traffic between zones is slow and paid"
        )


def check_security_groups(p: Preflight) -> Iterator[Result]:
    """Nodes reach each other; where there is EFA, by rules that name the group itself, in both directions."""
    seen: set[tuple[tuple[str, ...], bool]] = set()
    for group in p.groups:
        ids = tuple(p.network_of(group).get("SecurityGroupIds") or ())
        has_efa = any(p.has_efa(kind) for kind in types_of(group))
        if not ids or (ids, has_efa) in seen:
            continue
        seen.add((ids, has_efa))
        rules = [p.security_groups[sg] for sg in ids if sg in p.security_groups]
        ingress = any(_allows_itself(sg, "IpPermissions") for sg in rules)
        egress = any(_allows_itself(sg, "IpPermissionsEgress") for sg in rules)
        name = ", ".join(ids)
        missing = [text for text, there in (("ingress", ingress), ("egress", egress)) if not there]
        if has_efa and missing:
            text = f"{name}: no {' and no '.join(missing)} rule for all traffic with the group itself, which EFA needs"
            fix = f"add {' and '.join(missing)}: all traffic, with {ids[0]} itself"
            yield Result("security_groups", Verdict.FAIL, text, fix)
        elif not ingress:
            text = f"{name}: no ingress rule lets the nodes reach each other (Slurm, munge, ssh)"
            yield Result("security_groups", Verdict.FAIL, text, f"add ingress: all traffic, source {ids[0]} itself")
        else:
            yield Result(
                "security_groups", Verdict.PASS, f"{name}: nodes reach each other{' (EFA)' if has_efa else ''}"
            )


def check_file_systems(p: Preflight) -> Iterator[Result]:
    """FSx file systems are there, in the nodes' zone and VPC, with the right mount name, and reachable."""
    for dns, mount, user in _file_systems(p):
        match = _FILE_SYSTEM.match(dns)
        if match is None:
            text = f"{user}: {dns} is not the DNS name of an FSx file system"
            yield Result(
                "file_systems", Verdict.FAIL, text, "it looks like fs-0123456789abcdef0.fsx.REGION.amazonaws.com"
            )
            continue
        name = match[0]
        found = p.aws.call("fsx", "DescribeFileSystems", what=f"file system {name}", FileSystemIds=[name])[
            "FileSystems"
        ]
        system: Mapping[str, Any] = found[0]
        own = str((system.get("LustreConfiguration") or {}).get("MountName", ""))
        if mount and own and mount != own:
            yield Result("file_systems", Verdict.FAIL, f"{user}: the mount name of {name} is {own}, not {mount}",
                         f"write {own}")  # fmt: skip
            continue
        yield from _file_system_network(p, name, system, user)


def _file_system_network(p: Preflight, name: str, system: Mapping[str, Any], user: str) -> Iterator[Result]:
    vpcs = {subnet["VpcId"] for subnet in p.subnets.values()}
    if vpcs and system.get("VpcId") not in vpcs:
        text = f"{user}: {name} is in {system.get('VpcId')}, the nodes are in {', '.join(sorted(vpcs))}"
        yield Result("file_systems", Verdict.FAIL, text, "use a file system in the nodes' VPC")
        return
    ids = list(system.get("SubnetIds", ()))
    theirs = p.aws.call("ec2", "DescribeSubnets", what=", ".join(ids), SubnetIds=ids)["Subnets"] if ids else []
    there = {subnet["AvailabilityZone"] for subnet in theirs}
    zones = {zone for group in p.groups for zone in p.zones_of(group)}
    if zones and there and not zones & there:
        text = f"{user}: {name} is in {', '.join(sorted(there))}, the nodes are in {', '.join(sorted(zones))}"
        yield Result("file_systems", Verdict.FAIL, text, "use a subnet in the file system's zone")
        return
    interfaces = list(system.get("NetworkInterfaceIds", ()))[:1]
    if interfaces and p.security_groups:
        described = p.aws.call(
            "ec2", "DescribeNetworkInterfaces", what=f"network of {name}", NetworkInterfaceIds=interfaces
        )["NetworkInterfaces"]
        ids = [str(g["GroupId"]) for interface in described for g in interface.get("Groups", ())]
        rules = p.aws.call("ec2", "DescribeSecurityGroups", what=", ".join(ids), GroupIds=ids)["SecurityGroups"]
        if not any(_lets_in(rule, set(p.security_groups), FSX_PORT) for rule in rules):
            first = sorted(p.security_groups)[0]
            text = f"{user}: {name} does not let the nodes in on port {FSX_PORT} (security group {', '.join(ids)})"
            fix = f"add ingress to {ids[0] if ids else 'its group'}: TCP {FSX_PORT} and 1018-1023 from {first}"
            yield Result("file_systems", Verdict.FAIL, text, fix)
            return
    yield Result(
        "file_systems", Verdict.PASS, f"{user}: {name} is reachable in {', '.join(sorted(there)) or 'its VPC'}"
    )


def _file_systems(p: Preflight) -> Iterator[tuple[str, str, str]]:
    """Yield DNS name, mount name and who says so."""
    parameters = p.spec.provisioning_parameters or {}
    found: dict[tuple[str, str], str] = {}
    if parameters.get("fsx_dns_name"):
        found[str(parameters["fsx_dns_name"]), str(parameters.get("fsx_mountname") or "")] = PARAMETERS_FILE
    for group in p.groups:
        for storage in group.get("InstanceStorageConfigs") or ():
            for kind in ("FsxLustreConfig", "FsxOpenZfsConfig"):
                config = storage.get(kind)
                if config:
                    key = (str(config["DnsName"]), str(config.get("MountName") or ""))
                    found.setdefault(key, str(group["InstanceGroupName"]))
    for (dns, mount), user in found.items():
        yield dns, mount, user


# --- scripts and roles ------------------------------------------------------------------------------------------


def check_scripts(p: Preflight) -> Iterator[Result]:
    """Lifecycle scripts are where the file says, and would start."""
    for source, groups in p.sources.items():
        bucket, key = split_source(source)
        entries = p.aws.pages(
            "s3", "ListObjectsV2", "Contents", what=source, token="ContinuationToken",
            token_from="NextContinuationToken", Bucket=bucket, Prefix=key,
        )  # fmt: skip
        names = {str(entry["Key"]).removeprefix(key) for entry in entries}
        if not names:
            fix = f"hyperpod scripts sync lifecycle_scripts {source}"
            yield Result("scripts", Verdict.FAIL, f"{source} has no files", fix)
            continue
        wanted = {
            str(n) for g in groups for k, n in g["LifeCycleConfig"].items() if k in ("OnCreate", "OnInitComplete")
        }
        for name in sorted(wanted):
            if name not in names:
                shown = ", ".join(sorted(n for n in names if n.endswith(".sh"))[:_SHOWN]) or "no shell scripts"
                fix = f"send it (hyperpod scripts sync DIR {source}), or name one of: {shown}"
                yield Result("scripts", Verdict.FAIL, f"{source} has no {name}", fix)
                continue
            answer = p.aws.call("s3", "GetObject", what=f"{source} {name}", Bucket=bucket, Key=f"{key}{name}")
            content: bytes = answer["Body"].read()
            if not content.startswith(b"#!") or b"\r\n" in content:
                what = "has Windows line ends" if b"\r\n" in content else "does not begin with #!"
                fix = f"hyperpod scripts sync DIR {source} --fix"
                yield Result("scripts", Verdict.FAIL, f"{name} in {source} {what}, and would not start", fix)
            else:
                yield Result("scripts", Verdict.PASS, f"{name} in {source}")
        if p.spec.provider is Provider.SAGEMAKER and not _NAMED_BUCKET.fullmatch(bucket):
            text = f"bucket {bucket} is not named sagemaker-..., which AWS's managed policy wants"
            fix = "rename it, or give the execution role rights of its own for it (role_reads_scripts tells)"
            yield Result("scripts", Verdict.UNKNOWN, text, fix)


def check_parameters(p: Preflight) -> Iterator[Result]:
    """The parameters file beside the scripts names the groups of the specification."""
    if any(group.get("SlurmConfig") for group in p.groups):
        return
    known = {str(group["InstanceGroupName"]) for group in p.groups}
    for source in p.sources:
        bucket, key = split_source(source)
        fix = f"hyperpod scripts sync sends it: put it into the folder that goes to {source}"
        try:
            answer = p.aws.call(
                "s3", "GetObject", what=f"{source} {PARAMETERS_FILE}", Bucket=bucket, Key=f"{key}{PARAMETERS_FILE}"
            )
        except NotFound:
            text = f"{source} has no {PARAMETERS_FILE}, and the groups have no SlurmConfig"
            yield Result("parameters", Verdict.FAIL, text, fix)
            continue
        try:
            data = json.loads(answer["Body"].read())
            named = {data.get("controller_group"), data.get("login_group")} - {None, ""}
            named |= {worker.get("instance_group_name") for worker in data.get("worker_groups", ())}
        except (ValueError, AttributeError, TypeError) as error:
            yield Result("parameters", Verdict.FAIL, f"{PARAMETERS_FILE} in {source} is not valid: {error}", fix)
            continue
        if named != known:
            strange = ", ".join(sorted(map(str, named - known))) or "none"
            lost = ", ".join(sorted(known - named)) or "none"
            text = f"{PARAMETERS_FILE} in {source}: unknown groups: {strange}; groups without a role: {lost}"
            yield Result("parameters", Verdict.FAIL, text, "the names must be those of the specification")
        elif p.spec.provisioning_parameters not in (None, data):
            text = f"{PARAMETERS_FILE} in {source} differs from the one beside the specification"
            yield Result("parameters", Verdict.FAIL, text, fix)
        else:
            yield Result("parameters", Verdict.PASS, f"{PARAMETERS_FILE} in {source} names the groups")


def check_role_trust(p: Preflight) -> Iterator[Result]:
    """The service may take the execution roles."""
    if p.spec.provider is Provider.EC2:
        return  # its machines have instance profiles
    service = "sagemaker.amazonaws.com"
    for role in _roles(p):
        name = role.rpartition("/")[2]
        try:
            answer = p.aws.call("iam", "GetRole", what=f"role {name}", RoleName=name)
        except NotFound:
            fix = "create it, or correct ExecutionRole; hyperpod prepare makes one"
            yield Result("role_trust", Verdict.FAIL, f"role {name} does not exist", fix)
            continue
        document = answer["Role"].get("AssumeRolePolicyDocument") or {}
        if isinstance(document, str):
            document = json.loads(unquote(document))
        if trusts(document, service):
            yield Result("role_trust", Verdict.PASS, f"role {name} trusts {service}")
        else:
            fix = f"allow sts:AssumeRole to {service} in the role's trust policy"
            yield Result("role_trust", Verdict.FAIL, f"role {name} does not trust {service}", fix)


def check_role_reads_scripts(p: Preflight) -> Iterator[Result]:
    """The execution roles may read the scripts."""
    if p.spec.provider is Provider.EC2:
        return  # its machines have instance profiles
    for source, groups in p.sources.items():
        for role in sorted({str(group["ExecutionRole"]) for group in groups if group.get("ExecutionRole")}):
            denied = denied_reads(p, role, source)
            name = role.rpartition("/")[2]
            if denied:
                text = f"role {name} may not read {source}"
                yield Result("role_reads_scripts", Verdict.FAIL, text, f"allow {' and '.join(denied)}")
            else:
                yield Result("role_reads_scripts", Verdict.PASS, f"role {name} reads {source}")


def denied_reads(p: Preflight, role: str, source: str) -> list[str]:
    """Return the rights that a role lacks to read scripts, each with what it is about."""
    bucket, key = split_source(source)
    arn = f"arn:{partition_of(p.aws.region_name)}:s3:::{bucket}"
    denied = []
    for action, resource in zip(_READ_RIGHTS, (f"{arn}/{key}*", arn), strict=True):
        answer = p.aws.call(
            "iam", "SimulatePrincipalPolicy", what=f"role {role}", repeat=True, PolicySourceArn=role,
            ActionNames=[action], ResourceArns=[resource],
        )  # fmt: skip
        if any(r.get("EvalDecision") != "allowed" for r in answer.get("EvaluationResults", ())):
            denied.append(f"{action} on {resource}")
    return denied


CHECKS: Final[tuple[Check, ...]] = (
    check_credentials,
    check_cluster_name,
    check_subnets,
    check_security_groups,
    check_instance_types,
    check_quotas,
    check_training_plans,
    check_images,
    check_file_systems,
    check_scripts,
    check_parameters,
    check_role_trust,
    check_role_reads_scripts,
)


# --- small things -----------------------------------------------------------------------------------------------


def ec2_type(kind: str) -> str:
    """``ml.g5.8xlarge`` is EC2's ``g5.8xlarge``."""
    return kind.removeprefix("ml.")


def types_of(group: Mapping[str, Any]) -> list[str]:
    """Return the instance types that a group may have, the wanted one first."""
    if group.get("InstanceType"):
        return [str(group["InstanceType"])]
    return [str(kind) for kind in (group.get("InstanceRequirements") or {}).get("InstanceTypes", ())]


def split_source(source: str) -> tuple[str, str]:
    """Return bucket and key prefix of a SourceS3Uri; the prefix ends with ``/`` or is empty."""
    parts = urlsplit(source)
    key = parts.path.strip("/")
    return parts.netloc, f"{key}/" if key else ""


def partition_of(region: str) -> str:
    """Return the partition that a region belongs to, as it stands in ARNs."""
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(region.rpartition("-")[0].rpartition("-")[0], "aws")


def _roles(p: Preflight) -> list[str]:
    return sorted({str(group["ExecutionRole"]) for group in p.groups if group.get("ExecutionRole")})


def _allows_itself(group: Mapping[str, Any], direction: str) -> bool:
    return any(
        str(rule.get("IpProtocol")) == "-1"
        and any(pair.get("GroupId") == group["GroupId"] for pair in rule.get("UserIdGroupPairs", ()))
        for rule in group.get(direction, ())
    )


def _lets_in(group: Mapping[str, Any], sources: set[str], port: int) -> bool:
    for rule in group.get("IpPermissions", ()):
        is_all = str(rule.get("IpProtocol")) == "-1"
        low, high = int(rule.get("FromPort", 0) or 0), int(rule.get("ToPort", 65535) or 65535)
        fits = is_all or (str(rule.get("IpProtocol")) == "tcp" and low <= port <= high)
        # Ranges of addresses are taken as meant for the nodes.
        if fits and (
            rule.get("IpRanges") or any(x.get("GroupId") in sources for x in rule.get("UserIdGroupPairs", ()))
        ):
            return True
    return False


def trusts(document: Mapping[str, Any], service: str) -> bool:
    """Say whether a trust policy lets a service take the role."""
    statements = document.get("Statement") or []
    for statement in [statements] if isinstance(statements, dict) else statements:
        principal = statement.get("Principal") or {}
        services = principal.get("Service", []) if isinstance(principal, dict) else [service]
        actions = statement.get("Action", [])
        has_service = service in ([services] if isinstance(services, str) else services)
        has_action = {"sts:AssumeRole", "sts:*", "*"} & set([actions] if isinstance(actions, str) else actions)
        if statement.get("Effect") == "Allow" and has_service and has_action:
            return True
    return False
