"""The CloudFormation template: cfn-lint finds nothing in it, and it holds what the calls would make."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cfnlint.api import ManualArgs, lint

from hyperpod.core.account import Wanted
from hyperpod.errors import ConfigError
from hyperpod.provisioning.template import render_template

WANTED = Wanted("main", "us-west-2", "111122223333", "us-west-2a")
VARIANTS = {
    "usual": WANTED,
    "endpoints": replace(WANTED, has_nat=False, file_system_gib=0),
    "taken": replace(WANTED, take={"vpc": "vpc-0123456789abcdef0", "private-subnet": "subnet-0123456789abcdef0"}),
    "ec2": replace(WANTED, providers=frozenset({"ec2"})),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_cfn_lint_has_nothing_to_say(variant: str) -> None:
    # W3010: the zone is the user's choice on purpose: nodes and file system must be in one.
    settings = ManualArgs(regions=["us-west-2"], ignore_checks=["W3010"])

    assert [str(match) for match in lint(render_template(VARIANTS[variant]), config=settings)] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_everything_that_can_carry_a_tag_does(variant: str) -> None:
    resources = json.loads(render_template(VARIANTS[variant]))["Resources"]

    without = {entry["Type"] for entry in resources.values() if not entry["Properties"].get("Tags")}
    # CloudFormation knows no tags for these.
    assert without <= {
        "AWS::EC2::Route", "AWS::EC2::SecurityGroupEgress", "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::SubnetRouteTableAssociation", "AWS::EC2::VPCGatewayAttachment", "AWS::IAM::InstanceProfile",
        "AWS::S3::BucketPolicy",
    }  # fmt: skip


def test_data_outlives_the_stack() -> None:
    resources = json.loads(render_template(WANTED))["Resources"]

    assert {resources[name]["DeletionPolicy"] for name in ("Bucket", "FileSystem")} == {"Retain"}


def test_a_taken_network_is_not_in_the_template() -> None:
    resources = json.loads(render_template(VARIANTS["taken"]))["Resources"]

    assert not {"Vpc", "PrivateSubnet", "Nat"} & set(resources)
    assert resources["SecurityGroup"]["Properties"]["VpcId"] == "vpc-0123456789abcdef0"


def test_a_stack_is_not_taken_apart_by_unprepare() -> None:
    assert "hyperpod:prepared" not in render_template(WANTED)


def test_what_is_there_already_does_not_belong_into_a_template() -> None:
    with pytest.raises(ConfigError, match="bucket"):
        render_template(replace(WANTED, take={"bucket": "mine"}))
