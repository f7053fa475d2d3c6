"""The commands about clusters and nodes with provider ec2, against an account in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws
from surroundings import Fakes

from hyperpod.adapters.aws.ec2 import find_provider
from tests.fakes.aws import AccountAws, dummy_environment, make_site

ROLE = "arn:aws:iam::123456789012:role/hyperpod-main-node"
EC2 = ("--provider", "ec2")


@pytest.fixture
def account(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccountAws]:
    """An account in which every machine is born as soon as somebody waits."""
    dummy_environment(monkeypatch)
    with mock_aws():
        aws = AccountAws()
        real = fakes.place.sleep

        def bear(seconds: float) -> None:
            real(seconds)
            folder = find_provider(aws, "demo").folder
            for entry in list(folder.entries("instances/")):
                identity = entry.name.removeprefix("instances/").removesuffix(".json")
                folder.write_json(f"births/{identity}.ok", {"status": "ok"})

        fakes.place.sleep = bear
        fakes.place.make_aws = lambda region, profile: aws
        yield aws


@pytest.fixture
def spec(account: AccountAws, tmp_path: Path) -> Path:
    site = make_site(account)
    group = {
        "InstanceType": "ml.m5.xlarge", "ExecutionRole": ROLE,
        "LifeCycleConfig": {"SourceS3Uri": f"s3://{site.bucket}/lifecycle-scripts/", "OnCreate": "on_create.sh"},
    }  # fmt: skip
    compute = {"NodeType": "Compute", "PartitionNames": ["train"]}
    request = {
        "ClusterName": "demo",
        "InstanceGroups": [
            {"InstanceGroupName": "head", "InstanceCount": 1, "SlurmConfig": {"NodeType": "Controller"}, **group},
            {"InstanceGroupName": "worker", "InstanceCount": 2, "SlurmConfig": compute, **group},
        ],
        "VpcConfig": {"SecurityGroupIds": [site.security_group], "Subnets": [site.subnet]},
        "Hyperpod": {"Provider": "ec2", "Ec2": {"Image": "ami-12c6146b"}},
    }
    path = tmp_path / "ec2.json"
    path.write_text(json.dumps(request))
    return path


@pytest.fixture(autouse=True)
def _no_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod.provisioning.ec2_cluster.send_software", lambda folder: "abc")


def test_a_cluster_is_made_shown_and_deleted(fakes: Fakes, spec: Path, account: AccountAws) -> None:
    planned = fakes.run("create-cluster", str(spec), "--dry-run")
    assert planned.code == 0, planned.err
    assert "+ create head-1" in planned.out
    assert "RunInstances" not in account.operations()

    made = fakes.run("create-cluster", str(spec))
    assert made.code == 0, made.err
    assert "cluster demo: 3 nodes" in made.out
    assert fakes.run("create-cluster", str(spec), "--dry-run").err.endswith("nothing to do\n")

    nodes = fakes.run("list-nodes", *EC2, "-o", "json").json
    assert [(n["node"], n["state"]) for n in nodes] == [
        ("head-1", "running"), ("worker-1", "running"), ("worker-2", "running"),
    ]  # fmt: skip
    assert "demo" in fakes.run("list-clusters", *EC2).out
    assert "worker-2" in fakes.run("describe-cluster", *EC2).out

    gone = fakes.run("delete-cluster", "demo", *EC2, "--yes")
    assert gone.code == 0, gone.err
    assert fakes.run("list-clusters", *EC2, "-o", "json").json == []
    assert "nothing to delete" in fakes.run("delete-cluster", "demo", *EC2, "--yes").err


def test_a_node_is_replaced_and_rebooted_by_name(fakes: Fakes, spec: Path) -> None:
    fakes.run("create-cluster", str(spec))
    before = {n["node"]: n["instance_id"] for n in fakes.run("list-nodes", *EC2, "-o", "json").json}

    replaced = fakes.run("replace-node", "worker-2", *EC2, "--yes")
    assert replaced.code == 0, replaced.err
    after = {n["node"]: n["instance_id"] for n in fakes.run("list-nodes", *EC2, "-o", "json").json}
    assert {node for node in after if after[node] != before[node]} == {"worker-2"}

    assert fakes.run("reboot-node", "worker-1", *EC2, "--yes").code == 0
    assert fakes.run("replace-node", "worker-9", *EC2, "--yes").code == 3


def test_no_capacity_ends_with_75_and_what_else_there_is(fakes: Fakes, spec: Path, account: AccountAws) -> None:
    account.fail_next("RunInstances", "InsufficientInstanceCapacity")

    result = fakes.run("create-cluster", str(spec))

    assert result.code == 75
    assert "hint: other zones with m5.xlarge" in result.err
    assert fakes.run("create-cluster", str(spec)).code == 0


def test_a_group_is_resized(fakes: Fakes, spec: Path, account: AccountAws) -> None:
    fakes.run("create-cluster", str(spec))
    account.answers |= {
        "SendCommand": [{"Command": {"CommandId": "0" * 36}}],
        "GetCommandInvocation": [{"Status": "Success"}],
    }

    grown = fakes.run("update-cluster", "--cluster", "demo", "--group", "worker", "--count", "3", *EC2)

    assert grown.code == 0, grown.err
    assert "cluster demo: 4 nodes" in grown.out


def test_a_shell_is_opened_by_session_manager(fakes: Fakes, spec: Path) -> None:
    fakes.run("create-cluster", str(spec))

    fakes.run("ssh", "head-1", *EC2)

    assert fakes.terminal[-1][:3] == ["aws", "ssm", "start-session"]
    config = fakes.run("ssh-config", *EC2).out
    assert "Host demo-head-1 demo\n" in config
    assert "ProxyCommand aws ssm start-session --target i-" in config


def test_an_unknown_cluster_names_where_it_was_looked_for(fakes: Fakes, account: AccountAws) -> None:
    result = fakes.run("list-nodes", "--cluster", "nope", *EC2)

    assert result.code == 3
    assert "account 123456789012" in result.err
