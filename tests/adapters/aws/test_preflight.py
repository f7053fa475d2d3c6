"""Preflight: a failing check at each place is found, names its fix, and decides the verdict of all."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from hyperpod import errors
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.preflight import CHECKS, Preflight, Result, Verdict, name_of, partition_of, run_checks
from tests.aws_server.specs import request, spec_of

SUBNET, GROUP, FILES = "subnet-0123456789abcdef0", "sg-0123456789abcdef0", "fs-0123456789abcdef0"
DNS = f"{FILES}.fsx.us-west-2.amazonaws.com"
ITSELF = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": GROUP}]}]
TRUST = {
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}]
}
SCRIPT = b"#!/bin/bash\n"


class Account(Aws):
    """An account where all is well; a test breaks one answer. Answers are plain, by call."""

    def __init__(self) -> None:
        super().__init__(region="us-west-2")
        self.asked: list[str] = []
        self.objects: dict[str, bytes] = {"lifecycle/on_create.sh": SCRIPT}
        self.answers: dict[str, Any] = {
            "sts.GetCallerIdentity": {"Account": "111122223333"},
            "sagemaker.DescribeCluster": errors.NotFound("no"),
            "ec2.DescribeSubnets": {
                "Subnets": [
                    {"SubnetId": SUBNET, "VpcId": "vpc-1", "AvailabilityZone": "us-west-2a",
                     "AvailableIpAddressCount": 100}
                ]
            },
            "ec2.DescribeSecurityGroups": {
                "SecurityGroups": [
                    {"GroupId": GROUP, "VpcId": "vpc-1", "IpPermissions": ITSELF, "IpPermissionsEgress": ITSELF}
                ]
            },
            "ec2.DescribeInstanceTypes": {
                "InstanceTypes": [
                    {"InstanceType": "m5.xlarge", "NetworkInfo": {"EfaSupported": False}},
                    {"InstanceType": "g5.8xlarge",
                     "NetworkInfo": {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 4}}},
                ]
            },
            "ec2.DescribeInstanceTypeOfferings": [
                {"InstanceType": kind, "Location": "us-west-2a"} for kind in ("m5.xlarge", "g5.8xlarge")
            ],
            "service-quotas.ListServiceQuotas": [
                {"QuotaName": f"{kind} for cluster usage", "Value": 8.0} for kind in ("ml.m5.xlarge", "ml.g5.8xlarge")
            ],
            "iam.GetRole": {"Role": {"AssumeRolePolicyDocument": TRUST}},
            "iam.SimulatePrincipalPolicy": {"EvaluationResults": [{"EvalDecision": "allowed"}]},
            "sagemaker.DescribeTrainingPlan": {
                "Status": "Active", "TotalInstanceCount": 4, "TargetResources": ["hyperpod-cluster"],
            },
            "ec2.DescribeImages": {"Images": [{"State": "available"}]},
            "fsx.DescribeFileSystems": {
                "FileSystems": [
                    {"VpcId": "vpc-1", "SubnetIds": [SUBNET], "NetworkInterfaceIds": ["eni-1"],
                     "LustreConfiguration": {"MountName": "abcdefgh"}}
                ]
            },
            "ec2.DescribeNetworkInterfaces": {"NetworkInterfaces": [{"Groups": [{"GroupId": GROUP}]}]},
        }  # fmt: skip

    @property
    def region_name(self) -> str:
        return "us-west-2"

    def call(self, service: str, operation: str, **params: Any) -> Any:
        self.asked.append(f"{service}.{operation}")
        if operation == "GetObject":
            if params["Key"] not in self.objects:
                raise errors.NotFound(params["Key"])
            return {"Body": io.BytesIO(self.objects[params["Key"]])}
        answer = self.answers[f"{service}.{operation}"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pages(self, service: str, operation: str, key: str, **params: Any) -> Iterator[Any]:
        if operation == "ListObjectsV2":
            return iter([{"Key": name} for name in self.objects if name.startswith(params["Prefix"])])
        return iter(self.call(service, operation, **params))


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.fixture
def look(account: Account, tmp_path: Path) -> Callable[..., list[Result]]:
    """Look at the account for ``request()``, changed by keys of the worker group."""

    def run(data: dict[str, Any] | None = None, **worker: Any) -> list[Result]:
        data = data or request()
        data["InstanceGroups"][1] |= worker
        return list(run_checks(Preflight(spec_of(tmp_path, data), account)))

    return run


def not_passed(results: Sequence[Result]) -> list[tuple[str, Verdict]]:
    return [(result.check, result.verdict) for result in results if result.verdict is not Verdict.PASS]


FSX = {"InstanceStorageConfigs": [{"FsxLustreConfig": {"DnsName": DNS, "MountName": "abcdefgh"}}]}
PLAN = {"TrainingPlanArn": "arn:aws:sagemaker:us-west-2:111122223333:training-plan/plan"}
IMAGE = {"ImageId": "ami-0123456789abcdef0"}


def test_a_good_account_passes_everything(look: Callable[..., list[Result]]) -> None:
    results = look(**FSX, **PLAN, **IMAGE)
    assert not_passed(results) == []
    assert {result.check for result in results} == {name_of(check) for check in CHECKS} - {"parameters"}


def _break(call: str, answer: Any) -> Callable[[Account], None]:
    return lambda account: account.answers.__setitem__(call, answer)


def _objects(**objects: bytes) -> Callable[[Account], None]:
    return lambda account: setattr(account, "objects", {f"lifecycle/{k}.sh": v for k, v in objects.items()})


def _no_rule(direction: str) -> Callable[[Account], None]:
    def change(account: Account) -> None:
        account.answers["ec2.DescribeSecurityGroups"]["SecurityGroups"][0][direction] = []

    return change


def _subnet(**more: Any) -> Callable[[Account], None]:
    return lambda account: account.answers["ec2.DescribeSubnets"]["Subnets"][0].update(more)


def _files(**more: Any) -> Callable[[Account], None]:
    return lambda account: account.answers["fsx.DescribeFileSystems"]["FileSystems"][0].update(more)


CASES: list[tuple[str, Callable[[Account], None], dict[str, Any], str, str]] = [
    ("cluster_name", _break("sagemaker.DescribeCluster", {"ClusterStatus": "Failed"}), {}, "Failed", "delete-cluster"),
    ("subnets", _subnet(AvailableIpAddressCount=8), {}, "8 addresses free, 9 needed", "larger subnet"),
    ("subnets", _subnet(VpcId="vpc-2"), {}, "not in the VPC", "vpc-2"),
    ("subnets", _break("ec2.DescribeSubnets", errors.NotFound("no subnet", hint="look")), {}, "no subnet", "look"),
    ("security_groups", _no_rule("IpPermissions"), {}, "no ingress", "add ingress"),
    ("security_groups", _no_rule("IpPermissionsEgress"), {}, "no egress", "add egress"),
    ("instance_types", _break("ec2.DescribeInstanceTypeOfferings", []), {}, "has no ml.g5.8xlarge", "another region"),
    (
        "instance_types",
        _break("ec2.DescribeInstanceTypeOfferings", [
            {"InstanceType": kind, "Location": "us-west-2c"} for kind in ("m5.xlarge", "g5.8xlarge")
        ]),
        {}, "us-west-2a has no ml.g5.8xlarge", "a subnet in us-west-2c",
    ),
    (
        "quotas",
        _break("service-quotas.ListServiceQuotas", [
            {"QuotaName": "ml.m5.xlarge for cluster usage", "Value": 1.0},
            {"QuotaName": "ml.g5.8xlarge for cluster usage", "Value": 1.0},
        ]),
        {}, "1, 2 are wanted", "Service Quotas",
    ),
    ("training_plans", _break("sagemaker.DescribeTrainingPlan", {"Status": "Expired"}), PLAN, "Expired", "active"),
    (
        "training_plans",
        _break("sagemaker.DescribeTrainingPlan", {"Status": "Active", "TargetResources": ["training-job"]}),
        PLAN, "not for clusters", "hyperpod-cluster",
    ),
    (
        "training_plans",
        _break("sagemaker.DescribeTrainingPlan", {
            "Status": "Active", "TargetResources": ["hyperpod-cluster"], "TotalInstanceCount": 1,
        }),
        PLAN, "has 1 instances, 2 are wanted", "InstanceCount",
    ),
    ("images", _break("ec2.DescribeImages", errors.NotFound("no")), IMAGE, "is not there", "one region"),
    ("images", _break("ec2.DescribeImages", {"Images": [{"State": "failed"}]}), IMAGE, "is failed", "one region"),
    ("file_systems", _files(LustreConfiguration={"MountName": "other"}), FSX, "mount name", "write other"),
    ("file_systems", _files(VpcId="vpc-9"), FSX, "is in vpc-9", "the nodes' VPC"),
    ("file_systems", _break("fsx.DescribeFileSystems", errors.NotFound("gone", hint="h")), FSX, "gone", "h"),
    (
        "file_systems",
        _break("ec2.DescribeNetworkInterfaces", {"NetworkInterfaces": [{"Groups": [{"GroupId": "sg-9"}]}]}),
        FSX, "", "",
    ),
    ("scripts", _objects(), {}, "has no files", "scripts sync"),
    ("scripts", _objects(other=SCRIPT), {}, "has no on_create.sh", "name one of: other.sh"),
    ("scripts", _objects(on_create=b"#!/bin/bash\r\n"), {}, "Windows line ends", "--fix"),
    ("scripts", _objects(on_create=b"echo\n"), {}, "does not begin with #!", "--fix"),
    ("role_trust", _break("iam.GetRole", {"Role": {}}), {}, "does not trust", "AssumeRole"),
    ("role_trust", _break("iam.GetRole", errors.NotFound("no")), {}, "does not exist", "ExecutionRole"),
    (
        "role_reads_scripts",
        _break("iam.SimulatePrincipalPolicy", {"EvaluationResults": [{"EvalDecision": "implicitDeny"}]}),
        {}, "may not read", "allow s3:GetObject",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "break_it", "worker", "words", "fix"), CASES)
def test_a_fault_fails_its_check_and_names_the_fix(
    look: Callable[..., list[Result]],
    account: Account,
    check: str,
    break_it: Callable[[Account], None],
    worker: dict[str, Any],
    words: str,
    fix: str,
) -> None:
    break_it(account)
    if check == "file_systems" and not words:
        _strangers_for_fsx(account)
        words, fix = "does not let the nodes in on port 988", "TCP 988"
    failed = [result for result in look(**worker) if result.verdict is Verdict.FAIL]
    assert {result.check for result in failed} >= {check}
    text = " | ".join(result.text for result in failed if result.check == check)
    assert words in text
    assert fix in " | ".join(result.fix for result in failed if result.check == check)
    assert all(result.fix for result in failed)


def _strangers_for_fsx(account: Account) -> None:
    """The file system's own security group lets nobody in but ssh."""
    own = account.answers["ec2.DescribeSecurityGroups"]

    real = account.call

    def call(service: str, operation: str, **params: Any) -> Any:
        if operation == "DescribeSecurityGroups" and params["GroupIds"] == ["sg-9"]:
            ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "UserIdGroupPairs": [{"GroupId": GROUP}]}
            return {"SecurityGroups": [{"GroupId": "sg-9", "VpcId": "vpc-1", "IpPermissions": [ssh]}]}
        return own if operation == "DescribeSecurityGroups" else real(service, operation, **params)

    account.call = call  # type: ignore[method-assign]


def test_an_efa_free_cluster_needs_no_egress_rule(look: Callable[..., list[Result]], account: Account) -> None:
    _no_rule("IpPermissionsEgress")(account)
    for kind in account.answers["ec2.DescribeInstanceTypes"]["InstanceTypes"]:
        kind["NetworkInfo"] = {"EfaSupported": False}
    assert not_passed(look()) == []


def test_arns_are_those_of_the_regions_partition() -> None:
    regions = ("us-west-2", "cn-north-1", "us-gov-west-1", "ap-southeast-2")
    assert [partition_of(region) for region in regions] == ["aws", "aws-cn", "aws-us-gov", "aws"]


def test_two_zones_are_one_too_many(look: Callable[..., list[Result]], account: Account) -> None:
    other = "subnet-0123456789abcdef1"
    account.answers["ec2.DescribeSubnets"]["Subnets"].append(
        {"SubnetId": other, "VpcId": "vpc-1", "AvailabilityZone": "us-west-2b", "AvailableIpAddressCount": 99}
    )
    for kind in ("m5.xlarge", "g5.8xlarge"):
        account.answers["ec2.DescribeInstanceTypeOfferings"].append({"InstanceType": kind, "Location": "us-west-2b"})
    results = look(OverrideVpcConfig={"SecurityGroupIds": [GROUP], "Subnets": [other]})
    assert not_passed(results) == [("subnets", Verdict.FAIL)]


def test_without_credentials_nothing_else_is_asked(look: Callable[..., list[Result]], account: Account) -> None:
    account.answers["sts.GetCallerIdentity"] = errors.AccessDenied("expired", hint="log in")
    results = look()
    assert results[0] == Result("credentials", Verdict.FAIL, "expired", "log in")
    assert {result.verdict for result in results[1:]} == {Verdict.UNKNOWN}
    assert account.asked == ["sts.GetCallerIdentity"]


@pytest.mark.parametrize("call", sorted(Account().answers.keys() - {"sts.GetCallerIdentity"}))
def test_what_may_not_be_looked_at_is_unknown_and_names_the_right(
    look: Callable[..., list[Result]], account: Account, call: str
) -> None:
    account.answers[call] = errors.AccessDenied(f"no right to do {call}", hint="allow it")
    results = look(**FSX, **PLAN, **IMAGE)
    left = not_passed(results)
    assert left
    assert {verdict for _, verdict in left} == {Verdict.UNKNOWN}
    assert any(call in result.text for result in results)


def test_a_quota_that_is_not_listed_is_unknown(look: Callable[..., list[Result]], account: Account) -> None:
    account.answers["service-quotas.ListServiceQuotas"] = []
    assert set(not_passed(look())) == {("quotas", Verdict.UNKNOWN)}


PARAMETERS = {
    "controller_group": "controller",
    "worker_groups": [{"instance_group_name": "worker", "partition_name": "d"}],
}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (PARAMETERS, ""),
        (PARAMETERS | {"controller_group": "boss"}, "unknown groups: boss; groups without a role: controller"),
        (PARAMETERS | {"version": "2"}, "differs from the one beside"),
        ("{", "is not valid"),
        (None, "and the groups have no SlurmConfig"),
    ],
)
def test_the_parameters_file_must_name_the_groups(
    look: Callable[..., list[Result]], account: Account, tmp_path: Path, content: Any, words: str
) -> None:
    data = request()
    for group in data["InstanceGroups"]:
        del group["SlurmConfig"]
    (tmp_path / "provisioning_parameters.json").write_text(json.dumps(PARAMETERS))
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        account.objects["lifecycle/provisioning_parameters.json"] = text.encode()
    results = look(data)
    assert not_passed(results) == ([("parameters", Verdict.FAIL)] if words else [])
    assert any(words in result.text for result in results if result.check == "parameters")


@mock_aws
def test_moto_understands_the_questions(tmp_path: Path) -> None:
    ec2 = boto3.client("ec2", region_name="us-west-2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/20", AvailabilityZone="us-west-2b")["Subnet"]
    group = ec2.create_security_group(VpcId=vpc, GroupName="nodes", Description="nodes")["GroupId"]
    itself: list[Any] = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
    boto3.client("iam").create_role(RoleName="Worker", AssumeRolePolicyDocument=json.dumps(TRUST))
    s3 = boto3.client("s3", region_name="us-east-1")
    s3.create_bucket(Bucket="sagemaker-scripts")
    s3.put_object(Bucket="sagemaker-scripts", Key="lifecycle/on_create.sh", Body=SCRIPT)
    data = request(VpcConfig={"SecurityGroupIds": [group], "Subnets": [subnet["SubnetId"]]})
    checks = [check for check in CHECKS if name_of(check) not in ("role_reads_scripts", "quotas")]
    aws = Aws(region="us-west-2", sleep=lambda _: None)
    results = list(run_checks(Preflight(spec_of(tmp_path, data), aws), checks))
    assert [result.text for result in results if result.verdict is not Verdict.PASS] == []
    assert {result.check for result in results} >= {
        "subnets",
        "security_groups",
        "instance_types",
        "scripts",
        "role_trust",
    }
