"""Preflight for clusters of our own instances: a failing check at each place is found and names its fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_preflight import TRUST, Account

from hyperpod import errors
from hyperpod.adapters.aws.preflight import CHECKS, Preflight, Result, Verdict, name_of, run_checks
from hyperpod.adapters.aws.preflight_ec2 import EC2_CHECKS
from tests.aws_server.specs import request, spec_of

ONDEMAND, SPOT = "Running On-Demand G and VT instances", "All G and VT Spot Instance Requests"
STANDARD = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
EC2_TRUST = {"Statement": [{**TRUST["Statement"][0], "Principal": {"Service": "ec2.amazonaws.com"}}]}
RESERVATION = {
    "State": "active", "InstanceType": "g5.8xlarge", "AvailabilityZone": "us-west-2a", "AvailableInstanceCount": 2,
}  # fmt: skip


def _role(trust: Any) -> dict[str, Any]:
    role = {"Arn": "arn:aws:iam::111122223333:role/node", "AssumeRolePolicyDocument": trust}
    return {"InstanceProfile": {"Roles": [role]}}


@pytest.fixture
def account() -> Account:
    account = Account()
    for kind, vcpus in zip(account.answers["ec2.DescribeInstanceTypes"]["InstanceTypes"], (4, 32), strict=True):
        kind["VCpuInfo"] = {"DefaultVCpus": vcpus}
    account.answers |= {
        "ssm.GetParameter": {"Parameter": {"Value": "ami-0123456789abcdef0"}},
        "ec2.DescribeImages": {"Images": [{"State": "available", "Architecture": "x86_64"}]},
        "iam.GetInstanceProfile": _role(EC2_TRUST),
        "ec2.DescribeCapacityReservations": {"CapacityReservations": [RESERVATION]},
        "ec2.DescribeInstances": {"Reservations": []},
        "service-quotas.ListServiceQuotas": [
            {"QuotaName": STANDARD, "Value": 4.0}, {"QuotaName": ONDEMAND, "Value": 64.0},
            {"QuotaName": SPOT, "Value": 0.0}, {"QuotaName": "Running On-Demand P instances", "Value": 0.0},
        ],
    }  # fmt: skip
    return account


@pytest.fixture
def look(account: Account, tmp_path: Path) -> Callable[..., list[Result]]:
    def run(worker: dict[str, Any] | None = None, **block: Any) -> list[Result]:
        data = request(Hyperpod={"Provider": "ec2", "Ec2": block})
        data["InstanceGroups"][1] |= worker or {}
        return list(run_checks(Preflight(spec_of(tmp_path, data), account), (*CHECKS, *EC2_CHECKS)))

    return run


RESERVED = {"Reservations": {"worker": "cr-0123456789abcdef0"}}


def _set(call: str, answer: Any) -> Callable[[Account], None]:
    return lambda account: account.answers.__setitem__(call, answer)


def _reservation(**more: Any) -> Callable[[Account], None]:
    return _set("ec2.DescribeCapacityReservations", {"CapacityReservations": [RESERVATION | more]})


def test_a_good_account_passes_everything(look: Callable[..., list[Result]], account: Account) -> None:
    results = look()
    assert [result for result in results if result.verdict is not Verdict.PASS] == []
    assert {name_of(check) for check in EC2_CHECKS} - {result.check for result in results} == {"reservations"}
    assert "iam.GetRole" not in account.asked, "execution roles are HyperPod's"
    assert {result.verdict for result in look(**RESERVED) if result.check == "reservations"} == {Verdict.PASS}


CASES: list[tuple[str, Callable[[Account], None], dict[str, Any], str, str]] = [
    ("image", _set("ssm.GetParameter", errors.NotFound("no")), {}, "no SSM parameter", "Image: ami-"),
    ("image", _set("ec2.DescribeImages", {"Images": []}), {}, "there is no image", "differ by region"),
    (
        "image",
        _set("ec2.DescribeImages", {"Images": [{"Architecture": "arm64"}]}),
        {}, "is for arm64", "Hyperpod.Ec2.Image",
    ),
    ("instance_profiles", _set("iam.GetInstanceProfile", errors.NotFound("no")), {}, "not exist", "hyperpod prepare"),
    ("instance_profiles", _set("iam.GetInstanceProfile", {"InstanceProfile": {}}), {}, "has no role", "prepare"),
    ("instance_profiles", _set("iam.GetInstanceProfile", _role(TRUST)), {}, "does not trust", "sts:AssumeRole"),
    (
        "instance_profiles",
        _set("iam.SimulatePrincipalPolicy", {"EvaluationResults": [{"EvalDecision": "implicitDeny"}]}),
        {}, "may not read", "allow s3:GetObject",
    ),
    ("reservations", _set("ec2.DescribeCapacityReservations", {"CapacityReservations": []}), RESERVED,
     "is not there", "this region"),
    ("reservations", _reservation(State="expired"), RESERVED, "is expired", "another one"),
    ("reservations", _reservation(State="scheduled", StartDate="May"), RESERVED, "scheduled until May", "wait for it"),
    ("reservations", _reservation(InstanceType="p5.48xlarge"), RESERVED, "is for p5.48xlarge", "this type"),
    ("reservations", _reservation(AvailabilityZone="us-west-2c"), RESERVED, "is in us-west-2c", "subnet in the"),
    ("reservations", _reservation(AvailableInstanceCount=1), RESERVED, "has 1 instances free, 2", "InstanceCount"),
    (
        "vcpu_quotas",
        _set("service-quotas.ListServiceQuotas", [{"QuotaName": n, "Value": 32.0} for n in (ONDEMAND, STANDARD)]),
        {}, "32 vCPUs, 64 are wanted", "ask for 64",
    ),
    ("vcpu_quotas", lambda account: None, {"worker": {"CapacityRequirements": {"Spot": {}}}},
     f"{SPOT}: 0 vCPUs", "ask for 64"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "break_it", "more", "words", "fix"), CASES)
def test_a_fault_fails_its_check_and_names_the_fix(
    look: Callable[..., list[Result]],
    account: Account,
    check: str,
    break_it: Callable[[Account], None],
    more: dict[str, Any],
    words: str,
    fix: str,
) -> None:
    break_it(account)
    failed = [result for result in look(**more) if result.verdict is Verdict.FAIL]
    assert {result.check for result in failed} == {check}
    assert words in " | ".join(result.text for result in failed)
    assert fix in " | ".join(result.fix for result in failed)


def test_a_family_without_a_quota_is_unknown(look: Callable[..., list[Result]], account: Account) -> None:
    account.answers["service-quotas.ListServiceQuotas"] = [{"QuotaName": STANDARD, "Value": 100.0}]
    left = [result for result in look() if result.verdict is not Verdict.PASS]
    assert [(result.check, result.verdict) for result in left] == [("vcpu_quotas", Verdict.UNKNOWN)]


def test_machines_that_are_there_do_not_count_against_their_own_quota(
    look: Callable[..., list[Result]], account: Account
) -> None:
    account.answers["ec2.DescribeInstances"] = {"Reservations": [{}]}
    _reservation(AvailableInstanceCount=0)(account)
    account.answers["service-quotas.ListServiceQuotas"] = [{"QuotaName": STANDARD, "Value": 1.0}]
    assert [result for result in look(**RESERVED) if result.verdict is not Verdict.PASS] == []


@pytest.mark.parametrize(
    ("family", "quota"),
    [
        ("p5en", "Running On-Demand P instances"), ("g6e", "Running On-Demand G and VT instances"),
        ("trn2", "Running On-Demand Trn instances"), ("inf2", "Running On-Demand Inf instances"),
        ("c5n", STANDARD), ("m7i", STANDARD), ("p4d", "All P4, P3 and P2 Spot Instance Requests"),
        ("p5", "All P5 Spot Instance Requests"),
        ("m5", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    ],
)  # fmt: skip
def test_a_quota_is_found_by_the_types_family(family: str, quota: str) -> None:
    from hyperpod.adapters.aws.preflight_ec2 import _is_about

    is_spot = quota.startswith("All")
    assert _is_about(quota, family, is_spot)
    assert not _is_about(quota, family, not is_spot)
    assert not _is_about(quota, "x2idn", is_spot)
