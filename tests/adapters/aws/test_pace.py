"""Calls are held back before they overdraw EC2's buckets, and only then."""

from __future__ import annotations

import pytest

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.pace import BUCKETS, Pace, bucket_of, machines_in


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


def test_a_very_large_group_waits_for_the_tokens_of_its_machines() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    waits = []
    for _ in range(7):
        wait = pace.wait_s("ec2", "RunInstances", machines_in("RunInstances", {"MinCount": 200, "MaxCount": 200}))
        waits.append(wait)
        now[0] += max(wait, 1.0)

    assert waits[:5] == [0.0] * 5
    # 200 machines are 100 s of refill; beyond the first thousand nothing is asked for that would be refused.
    assert sum(waits[5:]) == pytest.approx(195.0, abs=10.0)
    assert machines_in("StopInstances", {"InstanceIds": ["i-1", "i-2"]}) == 2
    assert machines_in("DescribeInstances", {"InstanceIds": ["i-1"]}) == 0


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
