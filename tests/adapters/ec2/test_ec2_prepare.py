"""Preparing an account in memory: complete, repeatable after a kill at any call, and taken back without loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from moto.backends import get_backend
from moto.iam.models import AWSManagedPolicy

from hyperpod.adapters.aws.policies import CLUSTER_INSTANCE, SSM_CORE
from hyperpod.adapters.aws.prepare import Preparation, zones
from hyperpod.core.account import Do, Wanted, all_parts, parts_of, plan_prepare
from hyperpod.errors import ConfigError, NotFound, ProviderError
from hyperpod.provisioning.prepare import prepare, unprepare
from tests.adapters.test_local_provider import Clock
from tests.fakes.aws import REGION, AccountAws, make_site

WANTED = Wanted("main", REGION, "123456789012", f"{REGION}a")
WRITES = ("Create", "Put", "Modify", "Attach", "Authorize", "Add", "Associate", "Allocate", "Replace", "Delete")


@pytest.fixture(autouse=True)
def _policies_of_aws(aws: AccountAws) -> None:
    """The two policies of AWS that are used; to load all of them takes longer than the tests."""
    policies = get_backend("iam")["123456789012"]["aws"].managed_policies
    for arn in (CLUSTER_INSTANCE, SSM_CORE):
        now = "2025-01-01T00:00:00+00:00"
        document = {"Version": "2012-10-17", "Statement": []}
        data = {
            "Path": "/", "DefaultVersionId": "v1", "CreateDate": now, "UpdateDate": now, "Document": document,
        }  # fmt: skip
        policies[arn] = AWSManagedPolicy.from_data(arn.rpartition("/")[2], "123456789012", REGION, data)


@pytest.fixture
def account(aws: AccountAws) -> Preparation:
    clock = Clock()
    return Preparation(aws, sleep=clock.sleep, monotonic=clock.monotonic)


def writes(aws: AccountAws) -> list[str]:
    return [operation for operation in aws.operations() if operation.startswith(WRITES)]


def test_an_empty_account_gets_all_that_a_cluster_needs(account: Preparation, aws: AccountAws) -> None:
    ids = prepare(account, WANTED)

    assert set(ids) == {part.key for part in parts_of(WANTED)}
    steps = plan_prepare(WANTED, account.find(WANTED, parts_of(WANTED)))
    assert {step.part.key: step.do for step in steps if step.do is not Do.KEEP} == {}


def test_preparing_again_changes_nothing(account: Preparation, aws: AccountAws) -> None:
    first = prepare(account, WANTED)
    aws.calls.clear()

    assert prepare(account, WANTED) == first
    assert writes(aws) == []


def test_nodes_may_reach_each_other_as_efa_needs_it(account: Preparation, aws: AccountAws) -> None:
    identity = prepare(account, WANTED)["security-group"]

    group = aws.client("ec2").describe_security_groups(GroupIds=[identity])["SecurityGroups"][0]
    for key in ("IpPermissions", "IpPermissionsEgress"):
        own = [rule for rule in group[key] if any(p["GroupId"] == identity for p in rule["UserIdGroupPairs"])]
        assert [rule["IpProtocol"] for rule in own] == ["-1"]


def test_the_private_subnet_has_its_ways_out(account: Preparation, aws: AccountAws) -> None:
    ids = prepare(account, WANTED)
    ec2 = aws.client("ec2")

    table = ec2.describe_route_tables(RouteTableIds=[ids["private-routes"]])["RouteTables"][0]
    assert ids["nat"] in {route.get("NatGatewayId") for route in table["Routes"]}
    assert [a["SubnetId"] for a in table["Associations"]] == [ids["private-subnet"]]
    endpoint = ec2.describe_vpc_endpoints(VpcEndpointIds=[ids["s3-endpoint"]])["VpcEndpoints"][0]
    assert endpoint["RouteTableIds"] == [ids["private-routes"]]


def test_the_bucket_is_closed_and_encrypted(account: Preparation, aws: AccountAws) -> None:
    name = prepare(account, WANTED)["bucket"]
    s3 = aws.client("s3")

    block = s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    assert set(block.values()) == {True}
    assert "SecureTransport" in s3.get_bucket_policy(Bucket=name)["Policy"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "operation",
    [
        "CreateVpc", "CreateSubnet", "CreateInternetGateway", "AttachInternetGateway", "AllocateAddress", "CreateRoute",
        "CreateNatGateway", "AssociateRouteTable", "CreateVpcEndpoint", "CreateSecurityGroup", "PutRolePolicy",
        "AuthorizeSecurityGroupEgress", "CreateBucket", "PutBucketTagging", "CreateRole", "CreateInstanceProfile",
        "AddRoleToInstanceProfile", "CreateFileSystem",
    ],
)  # fmt: skip
def test_killed_at_any_call_the_same_command_goes_on(
    account: Preparation, aws: AccountAws, operation: str, when: str
) -> None:
    aws.kill_next(operation, when=when)
    with pytest.raises(KeyboardInterrupt):
        prepare(account, WANTED)

    prepare(account, WANTED)

    ec2 = aws.client("ec2")
    assert len(ec2.describe_nat_gateways()["NatGateways"]) == 1
    assert len(ec2.describe_addresses()["Addresses"]) == 1
    assert len(aws.client("fsx").describe_file_systems()["FileSystems"]) == 1
    steps = plan_prepare(WANTED, account.find(WANTED, parts_of(WANTED)))
    assert [step.part.key for step in steps if step.do is not Do.KEEP] == []


def test_what_somebody_broke_is_mended(account: Preparation, aws: AccountAws) -> None:
    ids = prepare(account, WANTED)
    aws.client("s3").delete_public_access_block(Bucket=ids["bucket"])
    aws.client("iam").delete_role_policy(RoleName=ids["node-role"], PolicyName="hyperpod")

    steps = plan_prepare(WANTED, account.find(WANTED, parts_of(WANTED)))
    assert {step.part.key for step in steps if step.do is Do.FIX} == {"bucket", "node-role"}

    prepare(account, WANTED)
    assert not any(s.changes for s in plan_prepare(WANTED, account.find(WANTED, parts_of(WANTED))))


def test_a_missing_right_is_named_and_the_next_run_goes_on(account: Preparation, aws: AccountAws) -> None:
    aws.fail_next("CreateNatGateway", "UnauthorizedOperation")

    with pytest.raises(ProviderError, match="ec2:CreateNatGateway"):
        prepare(account, WANTED)
    assert "nat" in prepare(account, WANTED)


def test_two_preparations_do_not_meet(account: Preparation, aws: AccountAws) -> None:
    first = prepare(account, WANTED)
    second = prepare(account, replace(WANTED, name="other", cidr="10.2.0.0/16"))

    assert not set(first.values()) & set(second.values())


def test_a_network_is_taken_over_by_id(account: Preparation, aws: AccountAws) -> None:
    site = make_site(aws)
    taking = replace(WANTED, take={"vpc": site.vpc, "private-subnet": site.subnet, "bucket": site.bucket})

    ids = prepare(account, taking)

    assert (ids["vpc"], ids["private-subnet"], ids["bucket"]) == (site.vpc, site.subnet, site.bucket)
    removed = unprepare(account, taking, delete_data=[ids["file-system"]])
    assert removed.failed == ()
    ec2 = aws.client("ec2")
    assert ec2.describe_subnets(SubnetIds=[site.subnet])["Subnets"]
    aws.client("s3").head_bucket(Bucket=site.bucket)


def test_a_taken_thing_that_is_not_there_is_said(account: Preparation) -> None:
    taking = replace(WANTED, take={"vpc": "vpc-0123456789abcdef0", "private-subnet": "subnet-0123456789abcdef0"})

    with pytest.raises(ConfigError, match="is not there"):
        prepare(account, taking)


def test_a_role_of_the_same_name_is_not_taken_over(account: Preparation, aws: AccountAws) -> None:
    aws.client("iam").create_role(RoleName="hyperpod-main-node", AssumeRolePolicyDocument="{}")

    with pytest.raises(ProviderError, match="not made by this preparation"):
        prepare(account, WANTED)
    assert "node-role" not in account.find(WANTED, all_parts(WANTED))


def test_an_instance_profile_of_the_same_name_is_neither_used_nor_removed(
    account: Preparation, aws: AccountAws
) -> None:
    aws.client("iam").create_instance_profile(InstanceProfileName="hyperpod-main-node")

    with pytest.raises(ProviderError, match="not made by this preparation"):
        prepare(account, WANTED)
    unprepare(account, WANTED)
    assert aws.client("iam").get_instance_profile(InstanceProfileName="hyperpod-main-node")


def test_all_that_is_made_carries_the_tag(account: Preparation, aws: AccountAws) -> None:
    """Whatever the account lists after a preparation, beyond what it had before."""

    def untagged() -> set[str]:
        ec2, iam = aws.client("ec2"), aws.client("iam")
        listed: list[tuple[Any, str]] = [
            (ec2.describe_vpcs()["Vpcs"], "VpcId"),
            (ec2.describe_subnets()["Subnets"], "SubnetId"),
            (ec2.describe_route_tables()["RouteTables"], "RouteTableId"),
            (ec2.describe_internet_gateways()["InternetGateways"], "InternetGatewayId"),
            (ec2.describe_nat_gateways()["NatGateways"], "NatGatewayId"),
            (ec2.describe_addresses()["Addresses"], "AllocationId"),
            (ec2.describe_security_groups()["SecurityGroups"], "GroupId"),
            (ec2.describe_vpc_endpoints()["VpcEndpoints"], "VpcEndpointId"),
            (aws.client("fsx").describe_file_systems()["FileSystems"], "FileSystemId"),
            ([iam.get_role(RoleName=r["RoleName"])["Role"] for r in iam.list_roles()["Roles"]], "RoleName"),
            (iam.list_instance_profiles()["InstanceProfiles"], "InstanceProfileName"),
        ]
        for bucket in aws.client("s3").list_buckets()["Buckets"]:
            tagging = aws.client("s3").get_bucket_tagging(Bucket=bucket["Name"])["TagSet"]
            listed.append(([{"Name": bucket["Name"], "Tags": tagging}], "Name"))
        return {
            str(item[name])
            for items, name in listed
            for item in items
            if "hyperpod:prepared" not in {tag["Key"] for tag in item.get("Tags", ())}
        }

    before = untagged()
    ids = prepare(account, WANTED)

    made = untagged() - before
    ec2 = aws.client("ec2")
    # With a VPC come a main route table and a default group, which nobody asked for and which go with it.
    vpc = [{"Name": "vpc-id", "Values": [ids["vpc"]]}]
    main = [{"Name": "association.main", "Values": ["true"]}, *vpc]
    own = {t["RouteTableId"] for t in ec2.describe_route_tables(Filters=main)["RouteTables"]}
    named = [{"Name": "group-name", "Values": ["default"]}, *vpc]
    own |= {g["GroupId"] for g in ec2.describe_security_groups(Filters=named)["SecurityGroups"]}
    assert made <= own


def test_a_gateway_that_failed_is_not_waited_for(account: Preparation, aws: AccountAws) -> None:
    failed: dict[str, Any] = {
        "NatGatewayId": "nat-0123456789abcdef0", "State": "failed", "FailureMessage": "Elastic IP is associated",
        "Tags": [{"Key": "hyperpod:prepared", "Value": "main"}, {"Key": "hyperpod:part", "Value": "nat"}],
    }  # fmt: skip
    aws.answers["DescribeNatGateways"] = [{"NatGateways": []}, {"NatGateways": [failed]}]

    with pytest.raises(ProviderError, match="is failed: Elastic IP is associated"):
        prepare(account, WANTED)


def test_everything_goes_again_in_the_right_order(account: Preparation, aws: AccountAws) -> None:
    ids = prepare(account, WANTED)

    removed = unprepare(account, WANTED, delete_data=[ids["file-system"]])

    assert removed.failed == ()
    assert removed.left == ()
    assert account.find(WANTED, all_parts(WANTED)) == {}
    assert unprepare(account, WANTED).removed == ()


def test_data_is_left_with_the_network_that_it_stands_in(account: Preparation, aws: AccountAws) -> None:
    ids = prepare(account, WANTED)
    # moto takes every call for one without TLS.
    aws.client("s3").delete_bucket_policy(Bucket=ids["bucket"])
    aws.client("s3").put_object(Bucket=ids["bucket"], Key="lifecycle-scripts/on_create.sh", Body=b"#!/bin/bash")

    removed = unprepare(account, WANTED)

    assert any(ids["bucket"] in line for line in removed.left)
    assert any(ids["file-system"] in line for line in removed.left)
    assert set(account.find(WANTED, all_parts(WANTED))) == {
        "bucket", "file-system", "vpc", "private-subnet", "security-group",
    }  # fmt: skip

    again = unprepare(account, WANTED, delete_data=[ids["bucket"], ids["file-system"]])
    assert again.failed == ()
    assert account.find(WANTED, all_parts(WANTED)) == {}


def test_what_cannot_be_removed_does_not_stop_the_rest(account: Preparation, aws: AccountAws) -> None:
    ids = prepare(account, WANTED)
    aws.fail_next("DeleteSecurityGroup", "DependencyViolation", message="resource sg has a dependent object")

    removed = unprepare(account, WANTED, delete_data=[ids["file-system"]])

    assert any("security group" in line for line in removed.failed)
    assert "node-role" not in account.find(WANTED, all_parts(WANTED))
    assert unprepare(account, WANTED).failed == ()


def test_without_nat_endpoints_are_made_and_removed(account: Preparation, aws: AccountAws) -> None:
    wanted = replace(WANTED, has_nat=False, file_system_gib=0)
    ids = prepare(account, wanted)
    assert {"ssm-endpoint", "ec2-endpoint"} <= set(ids)
    assert aws.client("ec2").describe_nat_gateways()["NatGateways"] == []

    assert unprepare(account, wanted).failed == ()


def test_a_slow_file_system_is_waited_for(account: Preparation, aws: AccountAws) -> None:
    young: dict[str, Any] = {"FileSystems": [{"FileSystemId": "fs-1", "Lifecycle": "CREATING", "Tags": []}]}
    young["FileSystems"][0]["Tags"] = [{"Key": "hyperpod:prepared", "Value": "main"}]
    old: dict[str, Any] = {"FileSystems": [{**young["FileSystems"][0], "Lifecycle": "AVAILABLE"}]}
    aws.answers["DescribeFileSystems"] = [young, young, young, old]

    assert prepare(account, WANTED)["file-system"] == "fs-1"
    assert aws.operations().count("DescribeFileSystems") >= 4


def test_only_zones_with_the_type_are_offered(aws: AccountAws) -> None:
    assert zones(aws)
    with pytest.raises(ConfigError, match=r"q9\.huge"):
        zones(aws, ["ml.q9.huge"])


def test_something_that_is_gone_is_removed_already(account: Preparation, aws: AccountAws) -> None:
    with pytest.raises(KeyError):
        account.remove("vpc", WANTED, {})
    account.remove("private-subnet", WANTED, {"private-subnet": "subnet-0123456789abcdef0"})
    with pytest.raises(NotFound):
        account.settle("private-routes", WANTED, {"private-routes": "rtb-0123456789abcdef0"})
