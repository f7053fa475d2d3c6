"""The same preparation as a CloudFormation template, for those who make nothing by calls. Pure.

Owns the translation of ``core.account``'s parts. Bucket and file system are kept when the stack is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from hyperpod.adapters.aws import policies
from hyperpod.adapters.aws.prepare import role_name
from hyperpod.core.account import BUCKET, ENDPOINTS, FILE_SYSTEM, SECURITY_GROUP, SUBNET, VPC, Wanted, parts_of
from hyperpod.errors import ConfigError

_NAMES: Final[Mapping[str, str]] = {
    VPC: "Vpc",
    SUBNET: "PrivateSubnet",
    SECURITY_GROUP: "SecurityGroup",
    BUCKET: "Bucket",
    FILE_SYSTEM: "FileSystem",
}
_ANYWHERE: Final = "0.0.0.0/0"


def render_template(wanted: Wanted) -> str:
    """Return the template as JSON, which CloudFormation takes as well as YAML.

    Raises:
        ConfigError: A file system or bucket is to be taken over: then it does not belong into a template.
    """
    taken = sorted(set(wanted.take) - {VPC, SUBNET})
    if taken:
        raise ConfigError(f"a template does not take over a {taken[0]}", hint="leave that option out")
    resources: dict[str, Any] = {}
    keys = {part.key for part in parts_of(wanted)}
    if SUBNET not in wanted.take:
        resources |= _network(wanted)
        if not wanted.has_nat:
            resources |= _endpoints(wanted)
    resources |= _security_group(wanted)
    resources |= _bucket(wanted)
    if "sagemaker" in wanted.providers:
        resources["ExecutionRole"] = _role(wanted, "execution-role", "sagemaker", policies.CLUSTER_INSTANCE)
    if "ec2" in wanted.providers:
        for kind in ("node", "head"):
            title = kind.capitalize()
            resources[f"{title}Role"] = _role(wanted, f"{kind}-role", "ec2", policies.SSM_CORE)
            resources[f"{title}Profile"] = {
                "Type": "AWS::IAM::InstanceProfile",
                "Properties": {
                    "InstanceProfileName": role_name(wanted.name, f"{kind}-role"),
                    "Roles": [_ref(f"{title}Role")],
                },
            }
    if FILE_SYSTEM in keys:
        resources["FileSystem"] = {
            "Type": "AWS::FSx::FileSystem",
            "DeletionPolicy": "Retain",
            "UpdateReplacePolicy": "Retain",
            "Properties": {
                "FileSystemType": "LUSTRE",
                "StorageCapacity": wanted.file_system_gib,
                "StorageType": "SSD",
                "SubnetIds": [_subnet(wanted)],
                "SecurityGroupIds": [_ref("SecurityGroup")],
                "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
                "Tags": _tags(wanted, FILE_SYSTEM),
            },
        }
    outputs = {name: {"Value": _ref(name)} for name in _NAMES.values() if name in resources}
    return json.dumps(
        {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": f"What hyperpod clusters need in an account ({wanted.name})",
            "Resources": resources,
            "Outputs": outputs,
        },
        indent=2,
    )


def _network(wanted: Wanted) -> dict[str, Any]:
    resources: dict[str, Any] = {
        "Vpc": _of(wanted, "AWS::EC2::VPC", VPC, CidrBlock=wanted.cidr, EnableDnsSupport=True, EnableDnsHostnames=True),
        "PrivateSubnet": _of(
            wanted,
            "AWS::EC2::Subnet",
            SUBNET,
            VpcId=_ref("Vpc"),
            CidrBlock=wanted.private_cidr,
            AvailabilityZone=wanted.zone,
        ),
        "PrivateRoutes": _of(wanted, "AWS::EC2::RouteTable", "private-routes", VpcId=_ref("Vpc")),
        "PrivateSubnetRoutes": _association("PrivateSubnet", "PrivateRoutes"),
        "S3Endpoint": _of(
            wanted,
            "AWS::EC2::VPCEndpoint",
            "s3-endpoint",
            VpcEndpointType="Gateway",
            VpcId=_ref("Vpc"),
            ServiceName={"Fn::Sub": "com.amazonaws.${AWS::Region}.s3"},
            RouteTableIds=[_ref("PrivateRoutes")],
        ),
    }
    if wanted.has_nat:
        resources |= {
            "InternetGateway": _of(wanted, "AWS::EC2::InternetGateway", "internet-gateway"),
            "InternetGatewayAttachment": {
                "Type": "AWS::EC2::VPCGatewayAttachment",
                "Properties": {"VpcId": _ref("Vpc"), "InternetGatewayId": _ref("InternetGateway")},
            },
            "PublicSubnet": _of(
                wanted,
                "AWS::EC2::Subnet",
                "public-subnet",
                VpcId=_ref("Vpc"),
                CidrBlock=wanted.public_cidr,
                AvailabilityZone=wanted.zone,
            ),
            "PublicRoutes": _of(wanted, "AWS::EC2::RouteTable", "public-routes", VpcId=_ref("Vpc")),
            "PublicSubnetRoutes": _association("PublicSubnet", "PublicRoutes"),
            "PublicWayOut": {
                "Type": "AWS::EC2::Route",
                "DependsOn": "InternetGatewayAttachment",
                "Properties": {
                    "RouteTableId": _ref("PublicRoutes"),
                    "DestinationCidrBlock": _ANYWHERE,
                    "GatewayId": _ref("InternetGateway"),
                },
            },
            "NatAddress": {
                **_of(wanted, "AWS::EC2::EIP", "nat-address", Domain="vpc"),
                "DependsOn": "InternetGatewayAttachment",
            },
            "Nat": _of(
                wanted,
                "AWS::EC2::NatGateway",
                "nat",
                SubnetId=_ref("PublicSubnet"),
                AllocationId={"Fn::GetAtt": ["NatAddress", "AllocationId"]},
            ),
            "PrivateWayOut": {
                "Type": "AWS::EC2::Route",
                "Properties": {
                    "RouteTableId": _ref("PrivateRoutes"),
                    "DestinationCidrBlock": _ANYWHERE,
                    "NatGatewayId": _ref("Nat"),
                },
            },
        }
    return resources


def _endpoints(wanted: Wanted) -> dict[str, Any]:
    return {
        f"Endpoint{service.capitalize()}": _of(
            wanted,
            "AWS::EC2::VPCEndpoint",
            f"{service}-endpoint",
            VpcEndpointType="Interface",
            VpcId=_ref("Vpc"),
            ServiceName={"Fn::Sub": f"com.amazonaws.${{AWS::Region}}.{service}"},
            SubnetIds=[_ref("PrivateSubnet")],
            SecurityGroupIds=[_ref("SecurityGroup")],
            PrivateDnsEnabled=True,
        )
        for service in ENDPOINTS
    }


def _security_group(wanted: Wanted) -> dict[str, Any]:
    group = {"Fn::GetAtt": ["SecurityGroup", "GroupId"]}
    return {
        "SecurityGroup": _of(
            wanted,
            "AWS::EC2::SecurityGroup",
            SECURITY_GROUP,
            GroupDescription="nodes of hyperpod clusters",
            VpcId=wanted.take.get(VPC) or _ref("Vpc"),
            SecurityGroupEgress=[{"IpProtocol": "-1", "CidrIp": _ANYWHERE}],
        ),
        # EFA passes only what a rule names by the group itself.
        "SecurityGroupFromItself": {
            "Type": "AWS::EC2::SecurityGroupIngress",
            "Properties": {"GroupId": group, "IpProtocol": "-1", "SourceSecurityGroupId": group},
        },
        "SecurityGroupToItself": {
            "Type": "AWS::EC2::SecurityGroupEgress",
            "Properties": {"GroupId": group, "IpProtocol": "-1", "DestinationSecurityGroupId": group},
        },
    }


def _bucket(wanted: Wanted) -> dict[str, Any]:
    block = dict.fromkeys(("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True)
    encryption = {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    return {
        "Bucket": {
            "Type": "AWS::S3::Bucket",
            "DeletionPolicy": "Retain",
            "UpdateReplacePolicy": "Retain",
            "Properties": {
                "BucketName": wanted.bucket_name,
                "PublicAccessBlockConfiguration": block,
                "BucketEncryption": {"ServerSideEncryptionConfiguration": [encryption]},
                "Tags": _tags(wanted, BUCKET),
            },
        },
        "BucketPolicy": {
            "Type": "AWS::S3::BucketPolicy",
            "Properties": {"Bucket": _ref("Bucket"), "PolicyDocument": policies.bucket_policy(wanted.bucket_name)},
        },
    }


def _role(wanted: Wanted, key: str, service: str, managed: str) -> dict[str, Any]:
    from hyperpod.adapters.aws.prepare import role_policy

    return _of(
        wanted,
        "AWS::IAM::Role",
        key,
        RoleName=role_name(wanted.name, key),
        AssumeRolePolicyDocument=policies.trust(service),
        ManagedPolicyArns=[managed],
        Policies=[{"PolicyName": "hyperpod", "PolicyDocument": role_policy(key, wanted)}],
    )


def _of(wanted: Wanted, kind: str, key: str, **properties: Any) -> dict[str, Any]:
    return {"Type": kind, "Properties": {**properties, "Tags": _tags(wanted, key)}}


def _tags(wanted: Wanted, key: str) -> list[dict[str, str]]:
    # Not the tag of a preparation by calls: unprepare must not take a stack apart.
    return [{"Key": "Name", "Value": f"hyperpod-{wanted.name}-{key}"}, {"Key": "hyperpod:part", "Value": key}]


def _association(subnet: str, table: str) -> dict[str, Any]:
    return {
        "Type": "AWS::EC2::SubnetRouteTableAssociation",
        "Properties": {"SubnetId": _ref(subnet), "RouteTableId": _ref(table)},
    }


def _subnet(wanted: Wanted) -> Any:
    return wanted.take.get(SUBNET) or _ref("PrivateSubnet")


def _ref(name: str) -> dict[str, str]:
    return {"Ref": name}
