"""The rights of machines: no more than is needed, and the page of the documentation shows them as they are."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

import pytest
from test_ec2_provider import make_provider, ready

from hyperpod.adapters.aws.errors import right_of
from hyperpod.adapters.aws.policies import all_policies, head_policy, node_policy
from tests.fakes.aws import AccountAws, Site
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


def allows(policy: dict[str, Any], right: str, resource: str) -> bool:
    """Say whether a policy allows an action on a resource; conditions are taken as met."""
    allowed = False
    for statement in policy["Statement"]:
        listed = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        about = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        if any(fnmatchcase(right, one) for one in listed) and any(fnmatchcase(resource, one) for one in about):
            if statement["Effect"] == "Deny":
                return False
            allowed = True
    return allowed


def needs(account: AccountAws) -> set[tuple[str, str]]:
    """Return each right that the calls made need, with the resource where S3 knows one."""
    found = set()
    for service, operation, params in account.told:
        name = f"arn:aws:s3:::{params.get('Bucket')}"
        keys = [params["Key"]] if "Key" in params else [o["Key"] for o in params.get("Delete", {}).get("Objects", ())]
        resources = [f"{name}/{key}" for key in keys] or ([name] if service == "s3" else ["*"])
        found |= {(right_of(service, operation), resource) for resource in resources}
    return found


def test_a_head_node_may_do_all_that_its_controller_does(aws: AccountAws, site: Site) -> None:
    provider = make_provider(aws, site)
    ids = ready(provider)
    aws.told.clear()

    provider.observe("demo")
    provider.findings()
    provider.addresses()
    provider.reboot(ids["worker-1"])
    provider.birth(ids["worker-1"])
    provider.park(ids["worker-3"])
    provider.observe("demo")
    provider.power_on(ids["worker-3"])
    provider.power_off(ids["worker-2"])
    provider.replace("worker-2", ids["worker-2"], "token")

    policy = head_policy(site.bucket, "123456789012", ("node", "head"))
    denied = {need for need in needs(aws) if need[0] != "ec2:RunInstances" and not _head_allows(policy, *need)}
    assert denied == set()
    assert {"ec2:StopInstances", "ec2:StartInstances", "ec2:TerminateInstances", "s3:PutObject", "s3:DeleteObject"} <= {
        right for right, _ in needs(aws)
    }


def _head_allows(policy: dict[str, Any], right: str, resource: str) -> bool:
    if not right.startswith("ec2:"):
        return allows(policy, right, resource)
    # Machines are named by their ids, which a pattern of the account's covers.
    return any(allows(policy, right, one) for one in ("*", "arn:aws:ec2:*:123456789012:instance/i-0"))
