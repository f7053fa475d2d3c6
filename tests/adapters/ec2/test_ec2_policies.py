"""The rights of machines: no more than is needed, and the page of the documentation shows them as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hyperpod.adapters.aws.policies import all_policies, head_policy, node_policy
from tools.iam import PAGE, render_iam

POLICIES = all_policies("bucket", "111122223333", "main")


def actions(policy: dict[str, Any], effect: str = "Allow") -> set[str]:
    found: set[str] = set()
    for statement in policy["Statement"]:
        if statement["Effect"] == effect:
            found |= {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
    return found


def test_the_page_shows_the_policies_as_they_are() -> None:
    assert PAGE.read_text() == render_iam(), "run: python3 -m tools.iam"


@pytest.mark.parametrize("title", [title for title in POLICIES if "bucket" not in title])
def test_nobody_may_do_everything(title: str) -> None:
    assert not any("*" in action for action in actions(POLICIES[title]))


@pytest.mark.parametrize("title", POLICIES)
def test_a_role_policy_fits_into_iam(title: str) -> None:
    assert len(json.dumps(POLICIES[title], separators=(",", ":"))) < 10240


def test_no_node_reads_the_keys_of_the_whole_cluster() -> None:
    for policy in (node_policy("bucket"), head_policy("bucket", "1", ("a",))):
        denied = [s for s in policy["Statement"] if s["Effect"] == "Deny"]
        assert [s["Resource"] for s in denied] == [["arn:aws:s3:::bucket/hyperpod/*/keys.json"]]


def test_a_worker_may_not_touch_machines() -> None:
    assert not any(action.startswith("ec2:") for action in actions(node_policy("bucket")))


def test_a_head_node_touches_only_machines_with_the_tag_of_a_cluster() -> None:
    for statement in head_policy("bucket", "1", ("a",))["Statement"]:
        listed = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        if any(action.startswith(("ec2:Terminate", "ec2:Stop", "ec2:Reboot")) for action in listed):
            assert statement["Condition"] == {"Null": {"aws:ResourceTag/hyperpod:cluster": "false"}}
