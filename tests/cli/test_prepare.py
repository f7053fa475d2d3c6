"""The commands prepare and unprepare, against an account in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws
from surroundings import Fakes

from tests.fakes.aws import AccountAws, dummy_environment
from tools.aws_calls import calls_by_topic

EC2 = ("--for", "ec2", "--file-system-gib", "0")


@pytest.fixture
def account(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccountAws]:
    dummy_environment(monkeypatch)
    with mock_aws():
        aws = AccountAws()
        for operation, answer in (("AttachRolePolicy", {}), ("DetachRolePolicy", {})):
            aws.answers[operation] = [answer]
        arns = [{"PolicyArn": "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"}]
        aws.answers["ListAttachedRolePolicies"] = [{"AttachedPolicies": arns}]
        fakes.place.make_aws = lambda region, profile: aws
        yield aws


def test_a_plan_is_a_table_with_what_it_costs(fakes: Fakes, account: AccountAws) -> None:
    result = fakes.run("prepare", "--dry-run")

    assert result.code == 0
    assert "make" in result.out
    assert "NAT gateway" in result.out
    assert "by the hour" in result.out
    assert "CreateVpc" not in account.operations()


def test_nothing_is_made_when_nobody_confirms(fakes: Fakes, account: AccountAws) -> None:
    result = fakes.run("prepare", *EC2)

    assert result.code == 2
    assert "hint: --yes" in result.err
    assert "CreateVpc" not in account.operations()


def test_an_account_is_prepared_and_taken_back(fakes: Fakes, account: AccountAws) -> None:
    made = fakes.run("prepare", *EC2, "--yes")
    assert made.code == 0, made.err
    assert "Subnets: [subnet-" in made.out

    again = fakes.run("prepare", *EC2, "--output", "json")
    assert again.code == 0, "nothing to do needs no confirmation"
    assert again.json["ids"]["vpc"].startswith("vpc-")

    gone = fakes.run("unprepare", "--yes")
    assert gone.code == 0, gone.err
    assert account.asked <= set(calls_by_topic()["hyperpod prepare"]), "the page with the rights names every call"
    assert "removed VPC vpc-" in gone.out
    assert "nothing named main" in fakes.run("unprepare", "--yes").err


def test_what_nodes_need_to_mount_the_file_system_is_told(fakes: Fakes, account: AccountAws) -> None:
    made = fakes.run("prepare", "--for", "ec2", "--yes")
    assert made.code == 0, made.err
    assert '"fsx_dns_name": "fs-' in made.out

    again = fakes.run("prepare", "--for", "ec2", "-o", "json").json
    assert again["provisioning_parameters"]["fsx_dns_name"].startswith(again["ids"]["file-system"])
    assert again["provisioning_parameters"]["fsx_mountname"]


def test_a_plan_for_programs(fakes: Fakes, account: AccountAws) -> None:
    plan = fakes.run("prepare", *EC2, "--dry-run", "-o", "json").json

    assert {step["do"] for step in plan} == {"make"}
    assert "file-system" not in {step["part"] for step in plan}


def test_a_template_is_written_and_nothing_made(fakes: Fakes, account: AccountAws, tmp_path: Path) -> None:
    path = tmp_path / "stack.json"

    result = fakes.run("prepare", "--template", str(path))

    assert result.code == 0
    assert "aws cloudformation deploy" in result.err
    assert json.loads(path.read_text())["Resources"]["Vpc"]
    assert "CreateVpc" not in account.operations()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--cidr", "8.8.8.0/24"), 2, "private"),
        (("--vpc", "vpc-1"), 2, "--subnet"),
        (("--zone", "us-west-2a", "--instance-type", "ml.q9.huge"), 2, "q9.huge"),
        (("--file-system-gib", "7"), 2, "no size"),
        (("--for", "azure"), 2, "ec2 and sagemaker"),
    ],
)
def test_a_wrong_wish_ends_before_anything_is_made(
    fakes: Fakes, account: AccountAws, arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = fakes.run("prepare", *arguments, "--yes")

    assert result.code == code
    assert text in result.err
    assert "CreateVpc" not in account.operations()


def test_what_could_not_be_removed_ends_with_1(fakes: Fakes, account: AccountAws) -> None:
    fakes.run("prepare", *EC2, "--yes")
    account.fail_next("DeleteBucket", "AccessDenied", message="no")

    result = fakes.run("unprepare", "--yes")

    assert result.code == 1
    assert "s3:DeleteBucket" in result.err
    assert fakes.run("unprepare", "--yes").code == 0


def test_expired_credentials_are_one_clear_line(fakes: Fakes, account: AccountAws) -> None:
    account.fail_next("GetCallerIdentity", "ExpiredToken")

    result = fakes.run("prepare", "--dry-run")

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: the AWS credentials have expired")
