"""The commands about clusters and nodes with provider ec2, against an account in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws
from surroundings import Fakes

from hyperpod.adapters.aws import session
from hyperpod.adapters.aws.ec2 import find_provider
from tests.fakes.aws import AccountAws, dummy_environment, make_site
from tools.aws_calls import calls_by_topic

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
    assert aws.asked <= set(calls_by_topic()["Provider ec2"]), "the page with the rights names every call"


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


def with_public_address(account: AccountAws, fakes: Fakes, node: str) -> str:
    """Give a node an address of the internet's and return it."""
    instance = next(i for i in find_provider(account, "demo").observe("demo") if i.node == node)
    ec2 = account.client("ec2")
    allocation = ec2.allocate_address(Domain="vpc")
    ec2.associate_address(InstanceId=instance.id, AllocationId=allocation["AllocationId"])
    return str(allocation["PublicIp"])


def test_a_node_is_reached_by_its_address_with_the_clusters_keys(
    fakes: Fakes, spec: Path, account: AccountAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.run("create-cluster", str(spec))
    monkeypatch.setattr(session, "has_plugin", lambda: False)

    result = fakes.run("ssh", "demo", "worker-1", *EC2, "--", "hostname")

    assert (result.code, fakes.logins.done) == (7, [("attach", "worker-1", "root", "hostname"), ("close",)])
    (target,) = fakes.logins.targets
    provider = find_provider(account, "demo")
    keys = provider.folder.read_json("keys.json")
    assert keys is not None
    assert target.address == next(i.address for i in provider.observe("demo") if i.node == "worker-1")
    assert target.host_key == " ".join(keys["hosts"]["worker-1"]["public"].split()[:2])
    assert target.key_texts == (keys["admin"]["private"],)
    assert keys["admin"]["private"] not in repr(target)


def test_the_head_node_is_reached_by_the_first_way_that_leads_there(
    fakes: Fakes, spec: Path, account: AccountAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.run("create-cluster", str(spec))
    public = with_public_address(account, fakes, "head-1")
    monkeypatch.setattr(session, "has_plugin", lambda: True)

    def ways(*words: str) -> list[str]:
        fakes.logins.targets.clear()
        fakes.run(*words, *EC2, "--", "true")
        return ["proxy" if t.proxy else f"by {t.jump.address}" if t.jump else t.address for t in fakes.logins.targets]

    instances = find_provider(account, "demo").observe("demo")
    private = {i.node: i.address for i in instances}
    assert ways("run", "demo") == [public]
    fakes.logins.away = {public}
    assert ways("ssh") == [public, private["head-1"]]
    fakes.logins.away = {public, private["head-1"]}
    assert ways("ssh") == [public, private["head-1"], "proxy"]
    assert fakes.logins.targets[-1].proxy[:3] == ("aws", "ssm", "start-session")
    assert ways("ssh", "worker-1") == [f"by {public}"]
    assert ways("ssh", "worker-1", "--direct") == [private["worker-1"]]


def test_an_own_key_replaces_the_clusters_and_the_user_is_the_images(fakes: Fakes, spec: Path, tmp_path: Path) -> None:
    fakes.run("create-cluster", str(spec))
    fakes.run("ssh", "demo", *EC2, "--key", str(tmp_path / "mine"), "--", "true")
    target = fakes.logins.targets[0]
    assert (target.user, target.key_files, target.key_texts) == ("ubuntu", (tmp_path / "mine",), ())
    assert (target.use_agent, target.through_root) == (True, False)


def test_who_may_not_read_the_keys_uses_the_own_ones(
    fakes: Fakes, spec: Path, account: AccountAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.run("create-cluster", str(spec))
    own = account._maybe_fail

    def refuse_keys(operation: str, when: str) -> None:
        if operation == "GetObject" and account.calls[-1][1]["Key"].endswith("keys.json"):
            account.fail_next("GetObject", "AccessDenied")
        own(operation, when)

    monkeypatch.setattr(account, "_maybe_fail", refuse_keys)
    assert fakes.run("ssh", "demo", *EC2, "--", "true").code == 7
    assert (fakes.logins.targets[0].key_texts, fakes.logins.targets[0].through_root) == ((), False)


def test_plain_ssh_reaches_ec2_nodes_with_keys_that_the_cluster_knows(
    fakes: Fakes, spec: Path, account: AccountAws, tmp_path: Path
) -> None:
    fakes.run("create-cluster", str(spec))
    home = tmp_path / "person" / ".ssh"

    private = fakes.run("ssh-config", *EC2)

    assert private.code == 0, private.err
    assert "Host demo-head-1 demo\n" in private.out
    assert private.out.count("ProxyCommand aws ssm start-session --target i-") == 3
    assert "StrictHostKeyChecking yes" in private.out
    assert (home / "hyperpod-demo.known_hosts").read_text().startswith("demo-head-1 ssh-ed25519 AAAA")
    assert (home / "hyperpod-demo.key").stat().st_mode & 0o777 == 0o600
    assert f"IdentityFile {home}/hyperpod-demo.key" in private.out
    assert "wrote" not in fakes.run("ssh-config", *EC2).err

    public = with_public_address(account, fakes, "head-1")
    hosts = {host["hosts"][0]: host for host in fakes.run("ssh-config", *EC2, "-o", "json").json}
    assert hosts["demo-head-1"]["HostName"] == public
    assert hosts["demo-worker-1"]["ProxyJump"] == "demo"
    assert "ProxyCommand" not in hosts["demo-worker-1"]
    direct = fakes.run("ssh-config", *EC2, "--direct").out
    assert "Proxy" not in direct


def test_the_birth_record_is_there_when_the_machine_is_gone(fakes: Fakes, spec: Path, account: AccountAws) -> None:
    fakes.run("create-cluster", str(spec))
    provider = find_provider(account, "demo")
    gone = next(i.id for i in provider.observe("demo") if i.node == "worker-2")
    provider.folder.write(f"births/{gone}.log", "one\ntwo\n")
    account.call("ec2", "TerminateInstances", InstanceIds=[gone])

    for name in ("worker-2", gone):
        result = fakes.run("logs", "demo", name, *EC2, "-n", "1")
        assert (result.code, result.out) == (0, "two\n"), result.err
        assert f"{gone} is gone, and its journal with it" in result.err
    assert fakes.run("logs", "demo", "worker-9", *EC2).code == 3
    assert fakes.run("logs", "demo", *EC2, "--unit", "slurmctld").code == 7
    assert fakes.logins.done[0][:4] == ("attach", "head-1", "root", "journalctl")


def test_an_unknown_cluster_names_where_it_was_looked_for(fakes: Fakes, account: AccountAws) -> None:
    result = fakes.run("list-nodes", "--cluster", "nope", *EC2)

    assert result.code == 3
    assert "account 123456789012" in result.err
