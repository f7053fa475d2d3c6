"""Calls are held back before they overdraw EC2's buckets, and only then."""

from __future__ import annotations

import pytest

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.pace import BUCKETS, Pace, bucket_of


@pytest.mark.parametrize(
    ("operation", "bucket"),
    [
        ("RunInstances", "RunInstances"), ("DescribeInstances", "reads"), ("GetConsoleOutput", "reads"),
        ("CreateTags", "changes"), ("CreateLaunchTemplate", "changes"), ("StopInstances", "StopInstances"),
    ],
)  # fmt: skip
def test_every_operation_has_a_bucket(operation: str, bucket: str) -> None:
    assert bucket_of(operation) == bucket


def test_a_full_bucket_lets_a_burst_through_and_then_one_call_for_each_refill() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    size, refill = BUCKETS["changes"]
    burst = [pace.wait_s("ec2", "CreateTags") for _ in range(int(size))]
    after = [pace.wait_s("ec2", "CreateTags") for _ in range(3)]

    assert set(burst) == {0.0}
    assert after == [pytest.approx(n / refill) for n in (1, 2, 3)]
    assert pace.wait_s("ec2", "DescribeInstances") == 0.0
    now[0] = 60.0
    assert pace.wait_s("ec2", "CreateTags") == 0.0


def test_other_services_are_not_held_back() -> None:
    pace = Pace(lambda: 0.0)

    assert {pace.wait_s("s3", "PutObject") for _ in range(5000)} == {0.0}


def test_a_client_waits_as_long_as_its_pace_says(waits: list[float], aws: Aws, stubbed: object) -> None:
    aws.pace = Pace(lambda: 0.0)
    stubber = stubbed("ec2")  # type: ignore[operator]
    for _ in range(7):
        stubber.add_response("run_instances", {"Instances": []})
    for _ in range(7):
        aws.call("ec2", "RunInstances", MinCount=1, MaxCount=1)

    assert waits == [pytest.approx(0.5), pytest.approx(1.0)]
