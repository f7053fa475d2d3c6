"""What the account holds before a cluster is made in it: network, bucket with lifecycle scripts, profiles, an image."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bodies.bridge import REGION, Bridge
from tests.bodies.metadata import ACCOUNT

BUCKET: Final = "sagemaker-bodies"
PROFILES: Final = ("hyperpod-main-head", "hyperpod-main-node")
INSTANCE_TYPE: Final = "ml.m5.large"
ON_CREATE: Final = """\
#!/bin/bash
# The user's own script; its words and its place on the node are HyperPod's.
set -euo pipefail
python3 -m json.tool "$SAGEMAKER_RESOURCE_CONFIG_PATH" >/dev/null
echo "on_create ran on $(hostname) in $PWD"
touch /opt/on_create_ran
"""


@dataclass(frozen=True)
class Site:
    """Ids of what is there before a cluster."""

    subnet: str
    security_group: str
    image: str


def furnish(bridge: Bridge) -> Site:
    """Make in the bridge's account what ``hyperpod prepare`` would have made; its network is that of the bodies."""
    ec2, s3, iam = bridge.client("ec2"), bridge.client("s3"), bridge.client("iam")
    cidr = str(bridge.subnet)
    vpc = ec2.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=cidr)["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_object(Bucket=BUCKET, Key="lifecycle-scripts/on_create.sh", Body=ON_CREATE.encode())
    for name in PROFILES:
        trust = {"Version": "2012-10-17", "Statement": []}
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    images = ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"]
    return Site(subnet, group, next(str(i["ImageId"]) for i in images if i.get("RootDeviceName")))


def write_spec(site: Site, name: str, folder: Path, *, workers: int = 3, spares: int = 1, **block: Any) -> Path:
    """Write the specification of a cluster in that account and return its path."""
    scripts = {"SourceS3Uri": f"s3://{BUCKET}/lifecycle-scripts/", "OnCreate": "on_create.sh"}
    group = {
        "InstanceType": INSTANCE_TYPE,
        "ExecutionRole": f"arn:aws:iam::{ACCOUNT}:role/{PROFILES[1]}",
        "LifeCycleConfig": scripts,
    }
    request = {
        "ClusterName": name,
        "InstanceGroups": [
            {"InstanceGroupName": "head", "InstanceCount": 1, "SlurmConfig": {"NodeType": "Controller"}, **group},
            {"InstanceGroupName": "worker", "InstanceCount": workers,
             "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["dev"]}, **group},
        ],
        "VpcConfig": {"SecurityGroupIds": [site.security_group], "Subnets": [site.subnet]},
        "Hyperpod": {"Provider": "ec2", "Spares": spares, "Ec2": {"Image": site.image}, **block},
    }  # fmt: skip
    path = folder / f"{name}.json"
    path.write_text(json.dumps(request, indent=1))
    return path
