"""The page about calls to AWS says what the code does."""

from __future__ import annotations

import json
import re

import pytest

from hyperpod.adapters.aws.calls import BESIDES, WHY
from hyperpod.adapters.aws.errors import right_of
from tools.aws_calls import (
    TOPICS,
    calls_by_topic,
    calls_in,
    operations,
    policy,
    render_aws_calls,
    rights_of,
)
from tools.cluster import ROOT

CALLS = calls_by_topic()


def test_the_page_is_what_the_code_does() -> None:
    assert (ROOT / "docs" / "reference" / "aws-calls.md").read_text() == render_aws_calls(), "make docs writes it anew"


def test_every_call_is_an_operation_of_its_service() -> None:
    for call in {call for calls in CALLS.values() for call in calls}:
        service, operation = call.split(".")
        assert operation in operations(service), call


@pytest.mark.parametrize("topic", TOPICS)
def test_every_call_has_a_reason(topic: str) -> None:
    assert [call for call in CALLS[topic] if call not in WHY] == []


def test_no_reason_is_left_of_a_call_that_is_gone() -> None:
    assert WHY.keys() - {call for calls in CALLS.values() for call in calls} == set()
    assert BESIDES.keys() <= TOPICS.keys()


def test_the_policy_of_a_topic_has_all_its_rights() -> None:
    for topic, calls in CALLS.items():
        text = json.dumps(policy(topic, calls))
        assert all(f'"{right}"' in text for right in rights_of(calls))
    assert "iam:PassRole" in json.dumps(policy("Provider sagemaker", CALLS["Provider sagemaker"]))


def test_rights_have_the_form_of_iam() -> None:
    for calls in CALLS.values():
        for right in rights_of(calls):
            assert re.fullmatch(r"[a-z0-9-]+:[A-Z][A-Za-z]+", right), right
    assert right_of("s3", "ListObjectsV2") == "s3:ListBucket"


def test_calls_are_found_in_a_source() -> None:
    text = """
aws.call("sts", "GetCallerIdentity")
for op in ("StopInstances", "Nonsense"):
    aws.call("ec2", op)
call = aws.call
call("s3", "PutBucketPolicy", Bucket="b")
later = partial(call, "iam", "PutRolePolicy", RoleName="r")
"""
    assert set(calls_in(text)) == {
        ("sts", "GetCallerIdentity"),
        ("ec2", "StopInstances"),
        ("s3", "PutBucketPolicy"),
        ("iam", "PutRolePolicy"),
    }


def test_what_is_tagged_as_it_is_made_needs_the_right_to_tag() -> None:
    actions = json.dumps(policy("hyperpod prepare", CALLS["hyperpod prepare"]))

    assert all(
        f'"{right}"' in actions
        for right in (
            "ec2:CreateTags",
            "iam:TagRole",
            "iam:TagInstanceProfile",
            "fsx:TagResource",
            "s3:PutBucketPolicy",
        )
    )
