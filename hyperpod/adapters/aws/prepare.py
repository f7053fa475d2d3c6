"""Making, finding and removing what a cluster needs in an account: network, bucket, roles, file system.

Owns the calls. Each thing is tagged by the very call that makes it, and found again by that tag, or by its name where
the service has no better way. ``settle`` sets everything that belongs to a thing and is not part of its making; it
reads first, so that a second run changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hyperpod.adapters.aws import policies, tags
from hyperpod.adapters.aws.client import Aws
from hyperpod.core.account import Found, Part, Wanted
from hyperpod.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigError,
    InvalidState,
    NotFound,
    ProviderError,
    ProviderUnavailable,
)

TAG_NAME: Final = "hyperpod:prepared"
_POLL_S: Final = 5.0
_EVERYWHERE: Final = "0.0.0.0/0"
_INLINE: Final = "hyperpod"
_GONE: Final = frozenset({"deleted", "deleting", "DELETING"})
_BROKEN: Final = frozenset({"failed", "misconfigured", "misconfigured_unavailable", "rejected", "expired"})
"""States that no waiting ends."""

# part: describe operation, key of the answer, key of the id, resource type of the tags
_EC2: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "vpc": ("DescribeVpcs", "Vpcs", "VpcId", "vpc"),
    "internet-gateway": ("DescribeInternetGateways", "InternetGateways", "InternetGatewayId", "internet-gateway"),
    "public-subnet": ("DescribeSubnets", "Subnets", "SubnetId", "subnet"),
    "private-subnet": ("DescribeSubnets", "Subnets", "SubnetId", "subnet"),
    "public-routes": ("DescribeRouteTables", "RouteTables", "RouteTableId", "route-table"),
    "private-routes": ("DescribeRouteTables", "RouteTables", "RouteTableId", "route-table"),
    "nat-address": ("DescribeAddresses", "Addresses", "AllocationId", "elastic-ip"),
    "nat": ("DescribeNatGateways", "NatGateways", "NatGatewayId", "natgateway"),
    "security-group": ("DescribeSecurityGroups", "SecurityGroups", "GroupId", "security-group"),
    "endpoint": ("DescribeVpcEndpoints", "VpcEndpoints", "VpcEndpointId", "vpc-endpoint"),
}
_ROLES: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    # part: end of its name, who may take it, policies of AWS
    "execution-role": ("execution", "sagemaker", (policies.CLUSTER_INSTANCE,)),
    "node-role": ("node", "ec2", (policies.SSM_CORE,)),
    "head-role": ("head", "ec2", (policies.SSM_CORE,)),
}
_PROFILES: Final[Mapping[str, str]] = {"node-profile": "node-role", "head-profile": "head-role"}


class Preparation:
    """An account as ``provisioning.prepare.Account`` says.

    Args:
        aws: The account and region.
        wait_s: How long a NAT gateway or a file system is waited for.
        sleep, monotonic: The clock.
    """

    def __init__(
        self,
        aws: Aws,
        *,
        wait_s: float = 1800.0,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.aws = aws
        self._wait_s = wait_s
        self._sleep = sleep
        self._monotonic = monotonic

    # --- the port

    def find(self, wanted: Wanted, parts: Sequence[Part]) -> dict[str, Found]:
        """Return what is there, by part; see ``provisioning.prepare.Account``."""
        found = {part.key: item for part in parts if (item := self._look(part.key, wanted)) is not None}
        ids = {key: item[0] for key, item in found.items()}
        answer = {}
        for key, (identity, state, raw) in found.items():
            faults = () if key in wanted.take and key != "security-group" else self._faults(key, wanted, ids)
            answer[key] = Found(identity, _is_ready(state), tuple(faults), self._data(key, identity, raw))
        return answer

    def make(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> str:
        """Make a part and return its id."""
        if key in _ROLES:
            return self._make_role(key, wanted)
        if key in _PROFILES:
            return self._make_profile(key, wanted)
        if key == "bucket":
            return self._make_bucket(wanted)
        if key == "file-system":
            return self._make_file_system(wanted, ids)
        return self._make_ec2(key, wanted, ids)

    def settle(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> None:
        """Mend every fault of a part and wait until it can be used."""
        if key in ("nat", "file-system") or key.endswith("-endpoint"):
            self._await(key, wanted)
        for _fault, mend in self._details(key, wanted, ids):
            mend()

    def remove(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> None:
        """Remove a part with all that ``settle`` gave to it."""
        try:
            self._remove(key, ids[key], wanted, ids)
        except NotFound:
            return
        if key in ("nat", "file-system") or key.endswith("-endpoint"):
            self._await_gone(key, wanted)

    def mount(self, identity: str) -> tuple[str, str]:
        """Return DNS name and mount name of a file system, as nodes need them."""
        found = self.aws.call("fsx", "DescribeFileSystems", what=identity, FileSystemIds=[identity])["FileSystems"][0]
        dns = str(found.get("DNSName") or f"{identity}.fsx.{self.aws.region_name}.amazonaws.com")
        return dns, str((found.get("LustreConfiguration") or {}).get("MountName") or "fsx")

    # --- looking

    def _look(self, key: str, wanted: Wanted) -> tuple[str, str, dict[str, Any]] | None:
        """Return id, state and description of a part; None when it is not there."""
        taken = wanted.take.get(key)
        try:
            if key in _ROLES:
                name = role_name(wanted.name, key)
                role = self.aws.call("iam", "GetRole", what=f"role {name}", RoleName=name)["Role"]
                return (name, "", role) if tags.tag_map(role.get("Tags")).get(TAG_NAME) == wanted.name else None
            if key in _PROFILES:
                name = role_name(wanted.name, _PROFILES[key])
                call = self.aws.call(
                    "iam", "GetInstanceProfile", what=f"instance profile {name}", InstanceProfileName=name
                )
                profile = call["InstanceProfile"]
                is_ours = tags.tag_map(profile.get("Tags")).get(TAG_NAME) == wanted.name
                return (name, "", profile) if is_ours else None
            if key == "bucket":
                return self._look_bucket(wanted, taken)
            if key == "file-system":
                return self._look_file_system(wanted, taken)
            return self._look_ec2(key, wanted, taken)
        except NotFound:
            return None

    def _look_ec2(self, key: str, wanted: Wanted, taken: str | None) -> tuple[str, str, dict[str, Any]] | None:
        operation, entries, identity, _ = _EC2[_kind(key)]
        if taken:
            plural = {"VpcId": "VpcIds", "SubnetId": "SubnetIds", "GroupId": "GroupIds"}[identity]
            named: dict[str, Any] = {plural: [taken]}
            found = self.aws.call("ec2", operation, what=taken, **named).get(entries, [])
        else:
            filters = [
                {"Name": f"tag:{TAG_NAME}", "Values": [wanted.name]},
                {"Name": f"tag:{tags.PART}", "Values": [key]},
            ]
            argument = "Filter" if operation == "DescribeNatGateways" else "Filters"
            more: dict[str, Any] = {argument: filters}
            if operation == "DescribeAddresses":
                found = self.aws.call("ec2", operation, **more).get(entries, [])
            else:
                found = list(self.aws.pages("ec2", operation, entries, **more))
            # Looked at again here: a filter that a service does not know must not make others' things ours.
            found = [item for item in found if _is_ours(item, wanted.name, key)]
        usable = [item for item in found if _state(item) not in _GONE]
        if not usable:
            return None
        item = min(usable, key=lambda item: str(item[identity]))
        return str(item[identity]), _state(item), dict(item)

    def _look_bucket(self, wanted: Wanted, taken: str | None) -> tuple[str, str, dict[str, Any]] | None:
        name = wanted.bucket_name
        try:
            self.aws.call("s3", "HeadBucket", what=f"bucket {name}", Bucket=name)
            if taken:
                return name, "", {}
            found = self.aws.call("s3", "GetBucketTagging", what=f"bucket {name}", Bucket=name).get("TagSet")
        except NotFound:
            return None
        except AccessDenied as error:
            raise ConfigError(
                f"bucket {name} belongs to another account, or may not be read", hint="--bucket NAME takes another one"
            ) from error
        except ProviderError as error:
            # Killed between the making of the bucket and its tags: its name is ours alone.
            if "NoSuchTagSet" not in f"{error.message} {error.__cause__}":
                raise
            found = None
        own = tags.tag_map(found).get(TAG_NAME)
        if found and own != wanted.name:
            raise ConfigError(
                f"bucket {name} is there and was not made by this preparation", hint=f"--bucket {name} takes it over"
            )
        return name, "", {"tagged": bool(found)}

    def _look_file_system(self, wanted: Wanted, taken: str | None) -> tuple[str, str, dict[str, Any]] | None:
        more: dict[str, Any] = {"FileSystemIds": [taken]} if taken else {}
        for item in self.aws.pages("fsx", "DescribeFileSystems", "FileSystems", **more):
            own = tags.tag_map(item.get("Tags")).get(TAG_NAME)
            if (taken or own == wanted.name) and item.get("Lifecycle") not in _GONE:
                return str(item["FileSystemId"]), str(item.get("Lifecycle") or ""), dict(item)
        return None

    def _data(self, key: str, identity: str, raw: Mapping[str, Any]) -> str:
        if key == "file-system":
            return f"{raw.get('StorageCapacity', '?')} GiB of files, as far as anybody can know"
        if key == "bucket":
            entries = self.aws.call("s3", "ListObjectsV2", what=f"bucket {identity}", Bucket=identity, MaxKeys=1)
            return "objects" if entries.get("KeyCount") or entries.get("Contents") else ""
        return ""

    # --- what belongs to each part: (fault, how to mend it)

    def _faults(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> list[str]:
        return [fault for fault, _mend in self._details(key, wanted, ids)]

    def _details(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield what a part lacks and the call that brings it; nothing when all is well."""
        identity = ids.get(key, "")
        if key == "vpc":
            yield from self._vpc_details(identity)
        elif key == "internet-gateway" and "vpc" in ids:
            item = self._item("internet-gateway", identity)
            if not any(a.get("VpcId") == ids["vpc"] for a in item.get("Attachments", ())):
                yield (
                    "not attached",
                    self._later("AttachInternetGateway", InternetGatewayId=identity, VpcId=ids["vpc"]),
                )
        elif key == "public-routes":
            yield from self._route_details(identity, ids.get("public-subnet"), GatewayId=ids.get("internet-gateway"))
        elif key == "private-routes":
            nat = ids.get("nat") if wanted.has_nat else None
            yield from self._route_details(identity, ids.get("private-subnet"), NatGatewayId=nat)
        elif key == "s3-endpoint" and "private-routes" in ids:
            item = self._item("endpoint", identity)
            if ids["private-routes"] not in item.get("RouteTableIds", ()):
                yield (
                    "not in the route table",
                    self._later("ModifyVpcEndpoint", VpcEndpointId=identity, AddRouteTableIds=[ids["private-routes"]]),
                )
        elif key == "security-group":
            yield from self._group_details(identity)
        elif key == "bucket":
            yield from self._bucket_details(identity, wanted)
        elif key in _ROLES:
            yield from self._role_details(key, identity, wanted)
        elif key in _PROFILES:
            profile = self.aws.call("iam", "GetInstanceProfile", InstanceProfileName=identity)["InstanceProfile"]
            role = role_name(wanted.name, _PROFILES[key])
            if not any(r.get("RoleName") == role for r in profile.get("Roles", ())):
                yield (
                    "without its role",
                    lambda: self.aws.call(
                        "iam", "AddRoleToInstanceProfile", repeat=True, InstanceProfileName=identity, RoleName=role
                    ),
                )

    def _vpc_details(self, identity: str) -> Iterator[tuple[str, Callable[[], object]]]:
        for attribute, key in (("enableDnsSupport", "EnableDnsSupport"), ("enableDnsHostnames", "EnableDnsHostnames")):
            answer = self.aws.call("ec2", "DescribeVpcAttribute", VpcId=identity, Attribute=attribute)
            if not answer.get(key, {}).get("Value"):
                more: dict[str, Any] = {key: {"Value": True}}
                yield f"{attribute} is off", self._later("ModifyVpcAttribute", VpcId=identity, **more)

    def _route_details(
        self, identity: str, subnet: str | None, **way: str | None
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        item = self._item("public-routes", identity)
        target = {name: value for name, value in way.items() if value}
        name = next(iter(way))
        there = [r for r in item.get("Routes", ()) if r.get("DestinationCidrBlock") == _EVERYWHERE]
        if target and not any(route.get(name) == target[name] for route in there):
            operation = "ReplaceRoute" if there else "CreateRoute"
            yield (
                "no route out",
                self._later(operation, RouteTableId=identity, DestinationCidrBlock=_EVERYWHERE, **target),
            )
        if subnet and not any(a.get("SubnetId") == subnet for a in item.get("Associations", ())):
            yield "not the subnet's", self._later("AssociateRouteTable", RouteTableId=identity, SubnetId=subnet)

    def _group_details(self, identity: str) -> Iterator[tuple[str, Callable[[], object]]]:
        # EFA passes only what a rule names by the group itself: an open egress rule by address is not enough.
        group = self._item("security-group", identity)
        own = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": identity}]}]
        for key, operation, text in (
            ("IpPermissions", "AuthorizeSecurityGroupIngress", "nodes cannot be reached by each other"),
            ("IpPermissionsEgress", "AuthorizeSecurityGroupEgress", "nodes cannot reach each other"),
        ):
            if not any(
                rule.get("IpProtocol") == "-1"
                and any(pair.get("GroupId") == identity for pair in rule.get("UserIdGroupPairs", ()))
                for rule in group.get(key, ())
            ):
                yield f"{text} (no rule for itself)", self._later(operation, GroupId=identity, IpPermissions=own)

    def _bucket_details(self, name: str, wanted: Wanted) -> Iterator[tuple[str, Callable[[], object]]]:
        call = self.aws.call

        def ask(operation: str, key: str) -> Any:
            try:
                return call("s3", operation, what=f"bucket {name}", Bucket=name).get(key)
            except (NotFound, ProviderError):
                return None

        if "bucket" not in wanted.take and tags.tag_map(ask("GetBucketTagging", "TagSet")).get(TAG_NAME) is None:
            tag_set = {"TagSet": tags.tag_list(_own_tags(wanted.name, "bucket"))}
            yield "not tagged", lambda: call("s3", "PutBucketTagging", repeat=True, Bucket=name, Tagging=tag_set)
        block = dict.fromkeys(
            ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
        )
        if ask("GetPublicAccessBlock", "PublicAccessBlockConfiguration") != block:
            yield (
                "public access is not blocked",
                lambda: call(
                    "s3",
                    "PutPublicAccessBlock",
                    repeat=True,
                    Bucket=name,
                    PublicAccessBlockConfiguration=block,
                ),
            )
        if ask("GetBucketEncryption", "ServerSideEncryptionConfiguration") is None:
            rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
            yield (
                "not encrypted",
                lambda: call(
                    "s3",
                    "PutBucketEncryption",
                    repeat=True,
                    Bucket=name,
                    ServerSideEncryptionConfiguration={"Rules": [rule]},
                ),
            )
        policy = policies.bucket_policy(name)
        if _as_policy(ask("GetBucketPolicy", "Policy")) != policy:
            text = json.dumps(policy)
            yield (
                "unencrypted transport is not denied",
                lambda: call("s3", "PutBucketPolicy", repeat=True, Bucket=name, Policy=text),
            )

    def _role_details(self, key: str, name: str, wanted: Wanted) -> Iterator[tuple[str, Callable[[], object]]]:
        call = self.aws.call
        attached = {
            policy["PolicyArn"]
            for policy in self.aws.pages(
                "iam",
                "ListAttachedRolePolicies",
                "AttachedPolicies",
                token="Marker",
                RoleName=name,
            )
        }
        for arn in _ROLES[key][2]:
            if arn not in attached:
                yield (
                    f"without {arn.rpartition('/')[2]}",
                    partial(call, "iam", "AttachRolePolicy", repeat=True, RoleName=name, PolicyArn=arn),
                )
        policy = role_policy(key, wanted)
        try:
            now = call("iam", "GetRolePolicy", RoleName=name, PolicyName=_INLINE).get("PolicyDocument")
        except NotFound:
            now = None
        if _as_policy(now) != policy:
            text = json.dumps(policy)
            yield (
                "its rights are not those that hyperpod gives",
                lambda: call(
                    "iam",
                    "PutRolePolicy",
                    repeat=True,
                    RoleName=name,
                    PolicyName=_INLINE,
                    PolicyDocument=text,
                ),
            )

    # --- making

    def _make_ec2(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> str:
        specs = [
            {"ResourceType": _EC2[_kind(key)][3], "Tags": tags.tag_list(_own_tags(wanted.name, key))},
        ]
        vpc = ids.get("vpc", "")
        if key == "vpc":
            answer = self._do("CreateVpc", CidrBlock=wanted.cidr, TagSpecifications=specs)
            return str(answer["Vpc"]["VpcId"])
        if key == "internet-gateway":
            answer = self._do("CreateInternetGateway", TagSpecifications=specs)
            return str(answer["InternetGateway"]["InternetGatewayId"])
        if key in ("public-subnet", "private-subnet"):
            cidr = wanted.public_cidr if key == "public-subnet" else wanted.private_cidr
            answer = self._do(
                "CreateSubnet", VpcId=vpc, CidrBlock=cidr, AvailabilityZone=wanted.zone, TagSpecifications=specs
            )
            return str(answer["Subnet"]["SubnetId"])
        if key in ("public-routes", "private-routes"):
            return str(self._do("CreateRouteTable", VpcId=vpc, TagSpecifications=specs)["RouteTable"]["RouteTableId"])
        if key == "nat-address":
            return str(self._do("AllocateAddress", Domain="vpc", TagSpecifications=specs)["AllocationId"])
        if key == "nat":
            answer = self._do(
                "CreateNatGateway",
                SubnetId=ids["public-subnet"],
                AllocationId=ids["nat-address"],
                ClientToken=f"hyperpod-{wanted.name}-{ids['nat-address']}",
                TagSpecifications=specs,
            )
            return str(answer["NatGateway"]["NatGatewayId"])
        if key == "security-group":
            answer = self._do(
                "CreateSecurityGroup",
                GroupName=f"hyperpod-{wanted.name}",
                Description="nodes of hyperpod clusters",
                VpcId=vpc,
                TagSpecifications=specs,
            )
            return str(answer["GroupId"])
        service = f"com.amazonaws.{wanted.region}.{key.removesuffix('-endpoint')}"
        kind: dict[str, Any] = {"VpcEndpointType": "Gateway", "RouteTableIds": [ids.get("private-routes", "")]}
        if key != "s3-endpoint":
            kind = {
                "VpcEndpointType": "Interface",
                "SubnetIds": [ids["private-subnet"]],
                "SecurityGroupIds": [ids["security-group"]],
                "PrivateDnsEnabled": True,
            }
        answer = self._do(
            "CreateVpcEndpoint",
            VpcId=vpc,
            ServiceName=service,
            ClientToken=f"hyperpod-{wanted.name}-{key}-{vpc}",
            TagSpecifications=specs,
            **kind,
        )
        return str(answer["VpcEndpoint"]["VpcEndpointId"])

    def _make_role(self, key: str, wanted: Wanted) -> str:
        name = role_name(wanted.name, key)
        try:
            self.aws.call(
                "iam",
                "CreateRole",
                what=f"role {name}",
                RoleName=name,
                AssumeRolePolicyDocument=json.dumps(policies.trust(_ROLES[key][1])),
                Description="made by hyperpod prepare",
                Tags=tags.tag_list(_own_tags(wanted.name, key)),
            )
        except AlreadyExists as error:
            raise AlreadyExists(
                f"role {name} is there and was not made by this preparation",
                hint="another --name, or delete that role",
            ) from error
        return name

    def _make_profile(self, key: str, wanted: Wanted) -> str:
        name = role_name(wanted.name, _PROFILES[key])
        try:
            self.aws.call(
                "iam",
                "CreateInstanceProfile",
                what=f"instance profile {name}",
                InstanceProfileName=name,
                Tags=tags.tag_list(_own_tags(wanted.name, key)),
            )
        except AlreadyExists as error:
            raise AlreadyExists(
                f"instance profile {name} is there and was not made by this preparation",
                hint="another --name, or delete that instance profile",
            ) from error
        return name

    def _make_bucket(self, wanted: Wanted) -> str:
        name = wanted.bucket_name
        more: dict[str, Any] = {}
        if wanted.region != "us-east-1":
            # The service refuses its oldest region as a constraint.
            more = {"CreateBucketConfiguration": {"LocationConstraint": wanted.region}}
        self.aws.call("s3", "CreateBucket", what=f"bucket {name}", Bucket=name, **more)
        return str(name)

    def _make_file_system(self, wanted: Wanted, ids: Mapping[str, str]) -> str:
        answer = self.aws.call(
            "fsx",
            "CreateFileSystem",
            what="the file system",
            repeat=True,
            ClientRequestToken=f"hyperpod-{wanted.name}-{ids['private-subnet']}"[:63],
            FileSystemType="LUSTRE",
            StorageCapacity=wanted.file_system_gib,
            StorageType="SSD",
            SubnetIds=[ids["private-subnet"]],
            SecurityGroupIds=[ids["security-group"]],
            LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
            Tags=tags.tag_list(_own_tags(wanted.name, "file-system")),
        )
        return str(answer["FileSystem"]["FileSystemId"])

    # --- removing

    def _remove(self, key: str, identity: str, wanted: Wanted, ids: Mapping[str, str]) -> None:
        if key in _ROLES:
            self._remove_role(identity)
        elif key in _PROFILES:
            self._remove_profile(identity)
        elif key == "bucket":
            self._remove_bucket(identity)
        elif key == "file-system":
            self.aws.call("fsx", "DeleteFileSystem", what=identity, repeat=True, FileSystemId=identity)
        elif key == "internet-gateway":
            for attachment in self._item(key, identity).get("Attachments", ()):
                self._do("DetachInternetGateway", InternetGatewayId=identity, VpcId=attachment["VpcId"])
            self._do("DeleteInternetGateway", InternetGatewayId=identity)
        elif key in ("public-routes", "private-routes"):
            for association in self._item(key, identity).get("Associations", ()):
                if not association.get("Main"):
                    self._do("DisassociateRouteTable", AssociationId=association["RouteTableAssociationId"])
            self._do("DeleteRouteTable", RouteTableId=identity)
        elif key.endswith("-endpoint"):
            self._do("DeleteVpcEndpoints", VpcEndpointIds=[identity])
        elif key == "nat-address":
            self._do("ReleaseAddress", AllocationId=identity)
        elif key == "nat":
            self._do("DeleteNatGateway", NatGatewayId=identity)
        elif key == "security-group":
            self._do("DeleteSecurityGroup", GroupId=identity)
        elif key in ("public-subnet", "private-subnet"):
            self._do("DeleteSubnet", SubnetId=identity)
        elif key == "vpc":
            self._do("DeleteVpc", VpcId=identity)

    def _remove_role(self, name: str) -> None:
        for policy in list(
            self.aws.pages("iam", "ListAttachedRolePolicies", "AttachedPolicies", token="Marker", RoleName=name)
        ):
            self.aws.call("iam", "DetachRolePolicy", repeat=True, RoleName=name, PolicyArn=policy["PolicyArn"])
        for inline in list(self.aws.pages("iam", "ListRolePolicies", "PolicyNames", token="Marker", RoleName=name)):
            self.aws.call("iam", "DeleteRolePolicy", repeat=True, RoleName=name, PolicyName=inline)
        self.aws.call("iam", "DeleteRole", what=f"role {name}", repeat=True, RoleName=name)

    def _remove_profile(self, name: str) -> None:
        profile = self.aws.call("iam", "GetInstanceProfile", InstanceProfileName=name)["InstanceProfile"]
        for role in profile.get("Roles", ()):
            self.aws.call(
                "iam",
                "RemoveRoleFromInstanceProfile",
                repeat=True,
                InstanceProfileName=name,
                RoleName=role["RoleName"],
            )
        self.aws.call("iam", "DeleteInstanceProfile", repeat=True, InstanceProfileName=name)

    def _remove_bucket(self, name: str) -> None:
        while True:
            page = self.aws.call("s3", "ListObjectVersions", what=f"bucket {name}", Bucket=name)
            entries = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            if not entries:
                break
            doomed = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
            answer = self.aws.call(
                "s3", "DeleteObjects", repeat=True, Bucket=name, Delete={"Objects": doomed, "Quiet": True}
            )
            if answer.get("Errors"):
                first = answer["Errors"][0]
                raise ProviderError(f"bucket {name}: {first.get('Key')}: {first.get('Message')}")
        self.aws.call("s3", "DeleteBucket", what=f"bucket {name}", repeat=True, Bucket=name)

    # --- waiting and calling

    def _await(self, key: str, wanted: Wanted) -> None:
        def is_done() -> str:
            item = self._look(key, wanted)
            if item is None:
                return "it is not there yet"
            if item[1].lower() in _BROKEN:
                raise ProviderError(
                    f"{key}: {item[0]} is {item[1]}{_why(item[2])}", hint="delete it, then run the same command again"
                )
            return "" if _is_ready(item[1]) else f"it is {item[1]}"

        self._poll(key, is_done)

    def _await_gone(self, key: str, wanted: Wanted) -> None:
        def is_done() -> str:
            if key == "file-system":
                found = self.aws.pages("fsx", "DescribeFileSystems", "FileSystems")
                mine = [i for i in found if tags.tag_map(i.get("Tags")).get(TAG_NAME) == wanted.name]
                return f"{mine[0]['FileSystemId']} is {mine[0].get('Lifecycle')}" if mine else ""
            operation, entries, identity, _ = _EC2[_kind(key)]
            filters = [
                {"Name": f"tag:{TAG_NAME}", "Values": [wanted.name]},
                {"Name": f"tag:{tags.PART}", "Values": [key]},
            ]
            more: dict[str, Any] = {"Filter" if key == "nat" else "Filters": filters}
            listed = [i for i in self.aws.pages("ec2", operation, entries, **more) if _is_ours(i, wanted.name, key)]
            left = [i for i in listed if _state(i).lower() != "deleted"]
            return f"{left[0][identity]} is {_state(left[0])}" if left else ""

        self._poll(key, is_done)

    def _poll(self, key: str, is_done: Callable[[], str]) -> None:
        deadline = self._monotonic() + self._wait_s
        while True:
            missing = is_done()
            if not missing:
                return
            if self._monotonic() >= deadline:
                raise ProviderUnavailable(f"{key}: {missing}", hint="run the same command again: it goes on from here")
            self._sleep(_POLL_S)

    def _item(self, key: str, identity: str) -> dict[str, Any]:
        operation, entries, name, _ = _EC2[_kind(key)]
        named: dict[str, Any] = {f"{name}s": [identity]}
        found = self.aws.call("ec2", operation, what=identity, **named).get(entries, [])
        if not found:
            raise NotFound(f"no {key} {identity}")
        return dict(found[0])

    def _do(self, operation: str, **params: Any) -> dict[str, Any]:
        """Make a change; one that cannot be repeated safely is not: the next run finds what was made by its tag."""
        repeat = operation.startswith(("Delete", "Detach", "Disassociate", "Release")) or "ClientToken" in params
        return self.aws.call("ec2", operation, repeat=repeat, **params)

    def _later(self, operation: str, **params: Any) -> Callable[[], object]:
        def mend() -> None:
            try:
                self.aws.call("ec2", operation, repeat=True, **params)
            except (AlreadyExists, InvalidState) as error:
                # Somebody was quicker.
                if "Duplicate" not in str(error.__cause__) and "AlreadyAssociated" not in str(error.__cause__):
                    raise

        return mend


def role_name(name: str, key: str) -> str:
    """Return the name of a role, and of the instance profile that goes with it."""
    return f"hyperpod-{name}-{_ROLES[key][0]}"


def role_policy(key: str, wanted: Wanted) -> dict[str, Any]:
    """Return the rights of a role."""
    bucket = wanted.bucket_name
    if key == "node-role":
        return policies.node_policy(bucket)
    if key == "head-role":
        roles = (role_name(wanted.name, "node-role"), role_name(wanted.name, "head-role"))
        return policies.head_policy(bucket, wanted.account, roles)
    return policies.execution_policy(bucket, wanted.account)


def zones(aws: Aws, instance_types: Collection[str] = ()) -> list[str]:
    """Return the zones of the region; those that have all these instance types when some are named.

    Raises:
        ConfigError: No zone has them all.
    """
    found = sorted(
        str(zone["ZoneName"])
        for zone in aws.call("ec2", "DescribeAvailabilityZones").get("AvailabilityZones", ())
        if zone.get("ZoneType", "availability-zone") == "availability-zone" and zone.get("State") == "available"
    )
    for name in instance_types:
        offers = aws.pages(
            "ec2",
            "DescribeInstanceTypeOfferings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [name.removeprefix("ml.")]}],
        )
        offered = {str(offer["Location"]) for offer in offers}
        found = [zone for zone in found if zone in offered]
        if not found:
            raise ConfigError(f"no zone of {aws.region_name} has {name}", hint="another region, or another type")
    return found


def zone_of_subnet(aws: Aws, subnet: str) -> str:
    """Return the zone that a subnet is in."""
    found = aws.call("ec2", "DescribeSubnets", what=f"subnet {subnet}", SubnetIds=[subnet])["Subnets"]
    return str(found[0]["AvailabilityZone"])


def _own_tags(name: str, key: str) -> dict[str, str]:
    return {TAG_NAME: name, tags.PART: key, tags.NAME: f"hyperpod-{name}-{key}"}


def _is_ours(item: Mapping[str, Any], name: str, key: str) -> bool:
    own = tags.tag_map(item.get("Tags"))
    return own.get(TAG_NAME) == name and own.get(tags.PART) == key


def _kind(key: str) -> str:
    return "endpoint" if key.endswith("-endpoint") else key


def _state(item: Mapping[str, Any]) -> str:
    state = item.get("State", "")
    return str(state) if isinstance(state, str) else ""


def _why(item: Mapping[str, Any]) -> str:
    """Return what the service says about a failure: NAT gateways and file systems have two ways to say it."""
    text = str(item.get("FailureMessage") or (item.get("FailureDetails") or {}).get("Message") or "")
    return f": {text}" if text else ""


def _is_ready(state: str) -> bool:
    return state.lower() in ("", "available", "in-use")


def _as_policy(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
