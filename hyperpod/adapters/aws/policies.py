"""The rights of nodes, in full. Pure.

Owns every policy that ``prepare`` writes, and the page of the documentation that shows them. A policy names the bucket
and the tag that it is about; ``*`` stands only where the service knows no resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hyperpod.adapters.aws import tags

SSM_CORE: Final = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
CLUSTER_INSTANCE: Final = "arn:aws:iam::aws:policy/AmazonSageMakerClusterInstanceRolePolicy"


def trust(service: str) -> dict[str, Any]:
    """Return who may take a role."""
    return _policy(_allow("sts:AssumeRole", None, Principal={"Service": f"{service}.amazonaws.com"}))


def node_policy(bucket: str) -> dict[str, Any]:
    """Return what every EC2 node may do: read its scripts and its own cluster's public part, write its birth.

    The object with all keys of a cluster is denied, whatever else is allowed.
    """
    return _policy(
        *_read_scripts(bucket),
        _allow(
            ["s3:GetObject"],
            [
                _objects(bucket, f"hyperpod/*/{name}")
                for name in ("software/*", "instances/*", "nodes/*", "public.json")
            ],
        ),
        _allow(["s3:PutObject"], [_objects(bucket, "hyperpod/*/births/*")]),
        _deny_keys(bucket),
    )


def head_policy(bucket: str, account: str, roles: tuple[str, ...]) -> dict[str, Any]:
    """Return what an EC2 head node may do besides: repair the machines that carry the tag of a cluster.

    Args:
        roles: Names of the roles that it may give to a new machine.
    """
    tagged = {"Null": {f"aws:ResourceTag/{tags.CLUSTER}": "false"}}
    making = {"Null": {f"aws:RequestTag/{tags.CLUSTER}": "false"}}
    made = [f"arn:aws:ec2:*:{account}:{kind}/*" for kind in ("instance", "volume", "network-interface")]
    used = ["image", "subnet", "security-group", "key-pair", "launch-template", "placement-group"]
    return _policy(
        *node_policy(bucket)["Statement"][:-1],
        _allow(
            [
                "ec2:DescribeInstances",
                "ec2:DescribeInstanceStatus",
                "ec2:DescribeInstanceTypeOfferings",
                "ec2:DescribeLaunchTemplates",
                "ec2:DescribeLaunchTemplateVersions",
                "ec2:DescribeNetworkInterfaces",
                "ec2:DescribeSpotInstanceRequests",
            ],
            "*",
        ),
        _allow(
            ["ec2:TerminateInstances", "ec2:StopInstances", "ec2:StartInstances", "ec2:RebootInstances"],
            f"arn:aws:ec2:*:{account}:instance/*",
            Condition=tagged,
        ),
        _allow(["ec2:RunInstances"], made, Condition=making),
        _allow(
            ["ec2:RunInstances"],
            [
                *(f"arn:aws:ec2:*:{account if kind != 'image' else ''}:{kind}/*" for kind in used),
                f"arn:aws:ec2:*:{account}:capacity-reservation/*",
            ],
        ),
        _allow(["ec2:CreateTags"], made, Condition={"StringEquals": {"ec2:CreateAction": "RunInstances"}}),
        _allow(
            ["iam:PassRole"],
            [f"arn:aws:iam::{account}:role/{role}" for role in roles],
            Condition={"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        _allow(
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
            [
                _objects(bucket, f"hyperpod/*/{name}")
                for name in ("cluster.json", "public.json", "instances/*", "births/*", "asleep/*")
            ],
        ),
        _deny_keys(bucket),
    )


def execution_policy(bucket: str, account: str) -> dict[str, Any]:
    """Return what HyperPod's nodes may do besides AWS's own policy for them: read scripts, join the VPC."""
    return _policy(
        *_read_scripts(bucket),
        _allow(
            [
                "ec2:DescribeDhcpOptions",
                "ec2:DescribeNetworkInterfaces",
                "ec2:DescribeSecurityGroups",
                "ec2:DescribeSubnets",
                "ec2:DescribeVpcs",
            ],
            "*",
        ),
        _allow(
            [
                "ec2:CreateNetworkInterface",
                "ec2:CreateNetworkInterfacePermission",
                "ec2:DeleteNetworkInterface",
                "ec2:DeleteNetworkInterfacePermission",
                "ec2:DetachNetworkInterface",
            ],
            "*",
        ),
        _allow(["ec2:CreateTags"], f"arn:aws:ec2:*:{account}:network-interface/*"),
    )


def bucket_policy(bucket: str) -> dict[str, Any]:
    """Return the bucket's own policy: nothing travels unencrypted."""
    statement = _allow(
        "s3:*",
        [f"arn:aws:s3:::{bucket}", _objects(bucket, "*")],
        Principal="*",
        Condition={"Bool": {"aws:SecureTransport": "false"}},
    )
    return _policy({**statement, "Effect": "Deny"})


def all_policies(bucket: str, account: str, name: str) -> Mapping[str, dict[str, Any]]:
    """Return every policy by the title it has in the documentation."""
    roles = (f"hyperpod-{name}-node", f"hyperpod-{name}-head")
    return {
        "EC2 nodes (hyperpod-NAME-node)": node_policy(bucket),
        "EC2 head nodes (hyperpod-NAME-head)": head_policy(bucket, account, roles),
        "HyperPod nodes (hyperpod-NAME-execution)": execution_policy(bucket, account),
        "The bucket itself": bucket_policy(bucket),
    }


def _read_scripts(bucket: str) -> list[dict[str, Any]]:
    return [
        _allow(["s3:ListBucket"], f"arn:aws:s3:::{bucket}"),
        _allow(["s3:GetObject"], [_objects(bucket, "lifecycle-scripts/*")]),
    ]


def _deny_keys(bucket: str) -> dict[str, Any]:
    return {**_allow("s3:*", [_objects(bucket, "hyperpod/*/keys.json")]), "Effect": "Deny"}


def _objects(bucket: str, below: str) -> str:
    return f"arn:aws:s3:::{bucket}/{below}"


def _allow(action: str | list[str], resource: str | list[str] | None, **more: Any) -> dict[str, Any]:
    statement: dict[str, Any] = {"Effect": "Allow", "Action": action}
    if resource is not None:
        statement["Resource"] = resource
    return {**statement, **more}


def _policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}
