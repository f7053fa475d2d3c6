"""The EC2 provider against an account in memory: idempotent, resumable after a kill at any call, all or nothing."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.aws import tags
from hyperpod.adapters.aws.ec2 import Ec2Provider, clusters, on_head_node
from hyperpod.adapters.aws.folder import ClusterFolder, default_prefix
from hyperpod.adapters.aws.instance_types import InstanceType
from hyperpod.adapters.aws.launch_template import GroupSettings, find_templates
from hyperpod.adapters.aws.machines import Machine, holders
from hyperpod.controller.__main__ import machines_of
from hyperpod.errors import (
    ConfigError,
    InvalidState,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    Throttled,
)
from hyperpod.ports.provider import BirthStatus, Instance, InstanceStatus, NodeLaunch, Role
from tests.adapters.test_local_provider import Clock
from tests.fakes.aws import AccountAws, Site

NODES = ("head-1", "worker-1", "worker-2", "worker-3")
SMALL = InstanceType("m5.large", vcpus=2, cores=1, memory_mib=8192)


def launches(nodes: tuple[str, ...] = NODES, cluster: str = "demo") -> list[NodeLaunch]:
    return [
        NodeLaunch(
            cluster=cluster,
            node=node,
            group=node.rpartition("-")[0],
            role=Role.HEAD if node.startswith("head") else Role.WORKER,
            instance_type="ml.m5.large",
            files={"node.env": f"HP_NODE={node}\n"},
        )
        for node in nodes
    ]


def make_provider(aws: AccountAws, site: Site, cluster: str = "demo", **options: Any) -> Ec2Provider:
    clock = Clock()
    settings = GroupSettings(
        SMALL, "ami-12c6146b", site.subnet, (site.security_group,), site.profile, root_volume_gib=50
    )
    folder = ClusterFolder(aws, site.bucket, default_prefix(cluster))
    options = {"sleep": clock.sleep, "monotonic": clock.monotonic, **options}
    return Ec2Provider(aws, cluster, folder, {"head": settings, "worker": settings}, **options)


@pytest.fixture
def provider(aws: AccountAws, site: Site) -> Ec2Provider:
    return make_provider(aws, site)


def ready(provider: Ec2Provider) -> dict[str, str]:
    """Make a cluster whose machines are born, and return its instance ids by node."""
    ids = {instance.node: instance.id for instance in provider.launch(launches())}
    provider.configure(launches())
    for identity in ids.values():
        be_born(provider, identity)
    return ids


def be_born(provider: Ec2Provider, identity: str, status: str = "ok") -> None:
    """Write the record that a machine writes at the end of its scripts."""
    record = {"status": status, "script": "on_create.sh", "exit_code": 0 if status == "ok" else 9, "tail": ["boom"]}
    provider.folder.write_json(f"births/{identity}.{status}", record)


def by_node(provider: Ec2Provider) -> dict[str, Instance]:
    return {instance.node: instance for instance in provider.observe("demo")}


def state_of(aws: AccountAws, identity: str) -> str:
    found = aws.client("ec2").describe_instances(InstanceIds=[identity])
    return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])


def live(aws: AccountAws) -> list[str]:
    found = aws.client("ec2").describe_instances()
    instances = [i for r in found["Reservations"] for i in r["Instances"]]
    return [i["InstanceId"] for i in instances if i["State"]["Name"] in ("pending", "running", "stopped")]


def test_launch_makes_one_machine_for_each_node_in_the_subnet(provider: Ec2Provider, aws: AccountAws) -> None:
    instances = provider.launch(launches())

    assert [i.node for i in instances] == list(NODES)
    assert len({i.address for i in instances}) == 4
    assert all(i.address.startswith("10.1.") for i in instances)
    assert [i.role for i in instances] == [Role.HEAD, Role.WORKER, Role.WORKER, Role.WORKER]
    assert aws.operations().count("RunInstances") == 2


def test_every_machine_carries_its_cluster_group_and_slot(provider: Ec2Provider, aws: AccountAws) -> None:
    provider.launch(launches())

    found = aws.client("ec2").describe_instances(Filters=tags.tag_filters(cluster="demo", group="worker"))
    machines = [i for r in found["Reservations"] for i in r["Instances"]]
    assert len(machines) == 3
    assert {tags.tag_map(m["Tags"])[tags.NODE] for m in machines} == {"worker-1", "worker-2", "worker-3"}
    assert {m["MetadataOptions"]["HttpTokens"] for m in machines} <= {"required", "optional"}


def test_a_group_is_asked_for_in_one_call_all_or_nothing(provider: Ec2Provider, aws: AccountAws) -> None:
    provider.launch(launches())

    worker = next(p for operation, p in aws.calls if operation == "RunInstances" and p["MinCount"] == 3)
    assert worker["MaxCount"] == 3
    assert len(worker["ClientToken"]) == 64


def test_launching_again_changes_nothing(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    aws.calls.clear()

    assert ready(provider) == ids
    assert "RunInstances" not in aws.operations()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "operation", ["DescribeInstances", "CreateLaunchTemplate", "RunInstances", "CreateTags", "PutObject", "GetObject"]
)
def test_killed_at_any_call_the_same_launch_ends_the_same(
    provider: Ec2Provider, aws: AccountAws, operation: str, when: str
) -> None:
    aws.kill_next(operation, when=when)
    with pytest.raises(KeyboardInterrupt):
        ready(provider)

    ids = ready(provider)

    assert sorted(ids) == sorted(NODES)
    assert sorted(live(aws)) == sorted(ids.values())
    assert {i.status for i in provider.observe("demo")} == {InstanceStatus.RUNNING}


def test_a_lost_answer_is_asked_for_again_with_the_same_token(provider: Ec2Provider, aws: AccountAws) -> None:
    aws.fail_next("RunInstances", "InternalError", when="before")

    provider.launch(launches(("worker-1",)))

    runs = [p["ClientToken"] for operation, p in aws.calls if operation == "RunInstances"]
    assert len(runs) == 2
    assert len(set(runs)) == 1


def test_a_new_launch_after_an_end_has_another_token(provider: Ec2Provider, aws: AccountAws) -> None:
    first = provider.launch(launches(("worker-1",)))[0]
    provider.terminate(first.id)

    second = provider.launch(launches(("worker-1",)))[0]

    assert second.id != first.id
    runs = [p["ClientToken"] for operation, p in aws.calls if operation == "RunInstances"]
    assert len(set(runs)) == 2


@pytest.mark.parametrize(
    "code",
    ["InsufficientInstanceCapacity", "InsufficientReservedInstanceCapacity", "Unsupported", "SpotMaxPriceTooLow"],
)
def test_no_capacity_says_when_to_try_again_and_what_else_there_is(
    provider: Ec2Provider, aws: AccountAws, code: str
) -> None:
    aws.fail_next("RunInstances", code)

    with pytest.raises(NoCapacity) as caught:
        provider.launch(launches(("worker-1", "worker-2")))

    assert caught.value.retry_after is not None
    assert "us-west-2a" in caught.value.hint
    assert live(aws) == []


def test_a_group_too_large_for_one_call_stays_all_or_nothing(
    provider: Ec2Provider, aws: AccountAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperpod.adapters.aws.ec2.LAUNCH_AT_ONCE", 2)
    real = aws._maybe_fail
    runs = 0

    def fail_second(operation: str, when: str) -> None:
        nonlocal runs
        if operation == "RunInstances" and when == "before":
            runs += 1
            if runs == 2:
                aws.fail_next("RunInstances", "InsufficientInstanceCapacity")
        real(operation, when)

    monkeypatch.setattr(aws, "_maybe_fail", fail_second)
    with pytest.raises(NoCapacity):
        provider.launch(launches(("worker-1", "worker-2", "worker-3")))
    assert live(aws) == []

    assert [i.node for i in provider.launch(launches(("worker-1", "worker-2", "worker-3")))] == [
        "worker-1", "worker-2", "worker-3",
    ]  # fmt: skip


def test_one_group_without_capacity_does_not_stop_the_others(provider: Ec2Provider, aws: AccountAws) -> None:
    aws.fail_next("RunInstances", "InsufficientInstanceCapacity")

    with pytest.raises(NoCapacity):
        provider.launch(launches())

    assert set(by_node(provider)) == {"worker-1", "worker-2", "worker-3"}


def test_a_quota_is_no_lack_of_capacity(provider: Ec2Provider, aws: AccountAws) -> None:
    aws.fail_next("RunInstances", "VcpuLimitExceeded", message="You have requested more vCPU capacity than allowed")

    with pytest.raises(ProviderError, match="quota") as caught:
        provider.launch(launches(("worker-1",)))
    assert not isinstance(caught.value, NoCapacity)


def test_throttling_for_minutes_ends_with_try_again(provider: Ec2Provider, aws: AccountAws) -> None:
    for _ in range(3):
        aws.fail_next("RunInstances", "RequestLimitExceeded")

    with pytest.raises(Throttled) as caught:
        provider.launch(launches(("worker-1",)))
    assert caught.value.exit_code == 75


def test_only_what_is_missing_is_made(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    aws.client("ec2").terminate_instances(InstanceIds=[ids["worker-2"]])

    after = {i.node: i.id for i in provider.launch(launches())}

    assert {n for n in NODES if after[n] != ids[n]} == {"worker-2"}


def test_a_machine_that_is_off_is_started_and_not_replaced(provider: Ec2Provider) -> None:
    ids = ready(provider)
    provider.power_off(ids["worker-2"])
    assert by_node(provider)["worker-2"].status is InstanceStatus.STOPPED

    assert {i.node: i.id for i in provider.launch(launches())} == ids
    assert by_node(provider)["worker-2"].status is InstanceStatus.PENDING, "its scripts run again before it counts"


def test_a_machine_runs_only_when_its_scripts_say_so(provider: Ec2Provider) -> None:
    identity = provider.launch(launches(("worker-1",)))[0].id
    provider.configure(launches(("worker-1",)))
    assert by_node(provider)["worker-1"].status is InstanceStatus.PENDING

    be_born(provider, identity, "failed")
    assert by_node(provider)["worker-1"].status is InstanceStatus.FAILED
    birth = provider.birth(identity)
    assert (birth.status, birth.exit_code, birth.tail) == (BirthStatus.FAILED, 9, ("boom",))


def test_a_damaged_record_of_a_birth_harms_nobody(provider: Ec2Provider) -> None:
    ids = ready(provider)
    provider.folder.write(f"births/{ids['worker-1']}.ok", "{not json")

    assert "damaged" in provider.birth(ids["worker-1"]).message
    assert len(provider.observe("demo")) == 4


def test_one_strange_instance_never_stops_the_pass(
    provider: Ec2Provider, aws: AccountAws, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ready(provider)
    real = aws.pages

    def with_a_strange_one(service: str, operation: str, key: str, **params: Any) -> Any:
        if operation == "DescribeInstances":
            yield {"Instances": [{"InstanceId": "i-odd", "State": "not a mapping"}]}
        yield from real(service, operation, key, **params)

    monkeypatch.setattr(aws, "pages", with_a_strange_one)

    # import-linter switches loggers off that are there before it runs.
    monkeypatch.setattr(logging.getLogger("hyperpod.adapters.aws.ec2"), "disabled", False)
    with caplog.at_level("WARNING", logger="hyperpod.adapters.aws.ec2"):
        assert len(provider.observe("demo")) == 4
    assert "i-odd" in caplog.text


def test_all_pages_are_read(provider: Ec2Provider, aws: AccountAws, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(provider)
    pages: list[int] = []
    real = aws._once

    def small_pages(method: Any, client: Any, service: str, operation: str, what: str, params: Any) -> dict[str, Any]:
        if operation == "DescribeInstances" and "InstanceIds" not in params:
            params = {**params, "MaxResults": 1}
            pages.append(1)
        return real(method, client, service, operation, what, params)

    monkeypatch.setattr(aws, "_once", small_pages)

    assert len(provider.observe("demo")) == 4
    assert len(pages) == 2


def test_the_new_machine_takes_over_name_and_address(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    before = by_node(provider)["worker-2"]

    fresh = provider.replace("worker-2", ids["worker-2"], "t1")

    assert fresh.id != ids["worker-2"]
    assert (fresh.node, fresh.address) == ("worker-2", before.address)
    assert state_of(aws, ids["worker-2"]) == "terminated"
    told = provider.folder.read_json(f"instances/{fresh.id}.json")
    assert told is not None
    assert told["node"] == "worker-2"
    public = provider.folder.read_json("public.json")
    assert public is not None
    assert fresh.id in public["files"]["resource_config.json"]
    assert ids["worker-2"] not in public["files"]["resource_config.json"]


def test_replacing_again_by_token_or_by_the_old_id_changes_nothing(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    fresh = provider.replace("worker-2", ids["worker-2"], "t1")

    assert provider.replace("worker-2", ids["worker-2"], "t1").id == fresh.id
    assert provider.replace("worker-2", ids["worker-2"], "another token").id == fresh.id
    assert provider.replace("worker-2", fresh.id, "t1").id == fresh.id
    assert len(live(aws)) == 4
    assert provider.replace("worker-2", fresh.id, "t2").id != fresh.id


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "operation", ["DescribeInstances", "TerminateInstances", "DescribeLaunchTemplates", "RunInstances", "PutObject"]
)
def test_killed_at_any_call_the_same_replacement_makes_one_machine(
    provider: Ec2Provider, aws: AccountAws, operation: str, when: str
) -> None:
    ids = ready(provider)
    aws.kill_next(operation, when=when)
    with pytest.raises(KeyboardInterrupt):
        provider.replace("worker-2", ids["worker-2"], "t1")

    fresh = provider.replace("worker-2", ids["worker-2"], "t1")

    assert len(live(aws)) == 4
    assert fresh.id not in ids.values()
    assert provider.folder.read_json(f"instances/{fresh.id}.json") is not None


def test_a_slot_whose_machine_has_vanished_gets_another(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    before = by_node(provider)["worker-1"].address
    aws.client("ec2").terminate_instances(InstanceIds=[ids["worker-1"]])
    assert "worker-1" not in by_node(provider)

    assert provider.replace("worker-1", ids["worker-1"], "t").address == before
    assert provider.replace("worker-1", "", "t").address == before


def test_without_capacity_the_slot_stays_and_the_same_call_goes_on_later(
    provider: Ec2Provider, aws: AccountAws
) -> None:
    ids = ready(provider)
    aws.fail_next("RunInstances", "InsufficientInstanceCapacity")
    with pytest.raises(NoCapacity):
        provider.replace("worker-2", ids["worker-2"], "t1")

    assert provider.replace("worker-2", ids["worker-2"], "t1").node == "worker-2"


def test_an_address_that_is_not_free_yet_is_waited_for(
    provider: Ec2Provider, aws: AccountAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ready(provider)
    address = by_node(provider)["worker-2"].address
    owner = {"TagSet": [{"Key": tags.CLUSTER, "Value": "demo"}], "Attachment": {"InstanceId": ids["worker-2"]}}
    aws.answers["DescribeNetworkInterfaces"] = [{"NetworkInterfaces": [owner]}]
    aws.fail_next("RunInstances", "InvalidIPAddress.InUse", message=f"Address {address} is in use")

    with pytest.raises(ProviderUnavailable, match="not free yet"):
        provider.replace("worker-2", ids["worker-2"], "t1")

    assert provider.replace("worker-2", ids["worker-2"], "t1").address == address


def test_an_address_that_somebody_else_took_is_given_up(provider: Ec2Provider, aws: AccountAws, site: Site) -> None:
    ids = ready(provider)
    address = by_node(provider)["worker-2"].address
    provider.terminate(ids["worker-2"])
    foreign = {"DeviceIndex": 0, "SubnetId": site.subnet, "PrivateIpAddress": address}
    aws.client("ec2").run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, NetworkInterfaces=[foreign])
    aws.fail_next("RunInstances", "InvalidIPAddress.InUse", message=f"Address {address} is in use")

    fresh = provider.replace("worker-2", ids["worker-2"], "t1")

    assert fresh.address != address
    assert provider.addresses()["worker-2"] == fresh.address
    public = provider.folder.read_json("public.json")
    assert public is not None
    assert f"{fresh.address} worker-2" in public["files"]["hosts"]


def test_of_two_machines_in_one_slot_the_older_is_rightful(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    own = {tags.CLUSTER: "demo", tags.GROUP: "worker", tags.NODE: "worker-1"}
    extra = aws.client("ec2").run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags.tag_list(own)}],
    )["Instances"][0]["InstanceId"]  # fmt: skip

    shown = provider.observe("demo")

    both = [i for i in shown if i.id in (extra, ids["worker-1"])]
    assert sorted(i.node for i in both) == ["", "worker-1"]
    assert [i.labels["duplicate-of"] for i in both if not i.node] == ["worker-1"]
    first = Machine("i-2", "worker-1", "worker", "running", "", datetime(2025, 1, 1, tzinfo=UTC))
    second = replace(first, id="i-1", launched_at=datetime(2025, 1, 2, tzinfo=UTC))
    assert holders([second, first])["worker-1"] is first
    assert holders([replace(first, state="terminated"), second])["worker-1"] is second


def test_power_off_returns_only_when_the_machine_has_stopped(
    provider: Ec2Provider, aws: AccountAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ready(provider)
    stubborn = {"Reservations": [{"Instances": [{"InstanceId": ids["worker-1"], "State": {"Name": "stopping"}}]}]}
    answers = [stubborn] * 3
    real = aws._answer

    def slow(client: Any, operation: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if operation == "DescribeInstances" and params.get("Filters", [{}])[0].get("Name") == "instance-id" and answers:
            return answers.pop()
        return real(client, operation, params)

    monkeypatch.setattr(aws, "_answer", slow)

    provider.power_off(ids["worker-1"])

    assert answers == []
    assert state_of(aws, ids["worker-1"]) == "stopped"
    stop = next(p for operation, p in aws.calls if operation == "StopInstances")
    assert stop["Force"] is True


def test_a_stop_works_with_a_library_that_knows_less(
    aws: AccountAws, provider: Ec2Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ready(provider)
    monkeypatch.setattr(aws, "knows", lambda *_: False)

    provider.power_off(ids["worker-1"])

    stop = next(p for operation, p in aws.calls if operation == "StopInstances")
    assert (stop["Force"], "SkipOsShutdown" in stop) == (True, False)


def test_a_call_without_an_answer_ends_before_the_watchdog_of_the_controller(aws: AccountAws) -> None:
    head = on_head_node({"cluster": "demo", "region": "us-west-2", "bucket": "b", "prefix": "p"})
    config = head.aws.client("ec2").meta.config
    unit = Path(__file__).parents[3] / "lifecycle_scripts/units/hyperpod-controller.service"
    limit_s = float(unit.read_text().partition("WatchdogSec=")[2].split()[0])

    assert (config.connect_timeout + config.read_timeout) * head.aws.max_tries < limit_s


def test_on_the_head_node_a_slow_stop_is_no_stop_yet(
    aws: AccountAws, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider(aws, site, fence_s=4.0)
    ids = ready(provider)
    monkeypatch.setattr(provider, "_states", lambda ids: dict.fromkeys(ids, "stopping"))

    with pytest.raises(ProviderUnavailable, match="stopping") as caught:
        provider.power_off(ids["worker-1"])
    assert caught.value.retry_after is not None


def test_a_machine_that_cannot_be_stopped_is_ended(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    aws.fail_next("StopInstances", "UnsupportedOperation", message="You can't stop the Spot Instance")

    provider.power_off(ids["worker-1"])

    assert state_of(aws, ids["worker-1"]) == "terminated"


def test_a_foreign_instance_is_never_touched(provider: Ec2Provider, aws: AccountAws, site: Site) -> None:
    ready(provider)
    other = make_provider(aws, site, "other")
    theirs = other.launch(launches(("worker-1",), "other"))[0].id
    plain = aws.client("ec2").run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"][0][
        "InstanceId"
    ]

    for identity in (theirs, plain):
        for action in (provider.terminate, provider.power_off, provider.reboot, provider.power_on):
            with pytest.raises(NotFound):
                action(identity)
        assert state_of(aws, identity) == "running"
    provider.delete()
    assert state_of(aws, theirs) == "running"
    assert state_of(aws, plain) == "running"


def test_an_instance_that_ec2_has_forgotten_has_surely_ended(
    aws: AccountAws, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = datetime.now(UTC) + timedelta(hours=2)
    provider = make_provider(aws, site, now=lambda: later)
    ids = ready(provider)
    aws.fail_next("DescribeInstances", "InvalidInstanceID.NotFound")
    provider.power_off(ids["worker-1"])
    aws.fail_next("DescribeInstances", "InvalidInstanceID.NotFound")
    provider.terminate(ids["worker-1"])

    young = make_provider(aws, site)
    aws.fail_next("DescribeInstances", "InvalidInstanceID.NotFound")
    with pytest.raises(ProviderUnavailable, match="does not know"):
        young.power_off(ids["worker-1"])
    aws.fail_next("DescribeInstances", "InvalidInstanceID.NotFound")
    with pytest.raises(NotFound):
        young.power_off("i-00000000000000abc")


def test_a_reboot_forgets_the_record_of_the_last_boot(provider: Ec2Provider) -> None:
    ids = ready(provider)

    provider.reboot(ids["worker-1"])

    assert by_node(provider)["worker-1"].status is InstanceStatus.PENDING
    provider.power_off(ids["worker-2"])
    provider.reboot(ids["worker-2"])
    assert by_node(provider)["worker-2"].status is InstanceStatus.PENDING


def test_a_parked_spare_is_stopped_and_wakes_up(provider: Ec2Provider) -> None:
    ids = ready(provider)

    provider.park(ids["worker-3"])
    assert by_node(provider)["worker-3"].status is InstanceStatus.STOPPED
    assert by_node(provider)["worker-3"].labels["asleep"] == "yes"
    # Whoever makes the cluster again leaves it asleep; one that merely is off is started.
    provider.power_off(ids["worker-2"])
    provider.launch(launches())
    assert by_node(provider)["worker-3"].status is InstanceStatus.STOPPED
    assert by_node(provider)["worker-2"].status is InstanceStatus.PENDING

    provider.power_on(ids["worker-3"])
    assert "asleep" not in by_node(provider)["worker-3"].labels
    be_born(provider, ids["worker-3"])
    assert by_node(provider)["worker-3"].status is InstanceStatus.RUNNING


def test_a_machine_that_has_ended_cannot_be_rebooted(provider: Ec2Provider) -> None:
    ids = ready(provider)
    provider.terminate(ids["worker-1"])

    with pytest.raises(InvalidState):
        provider.reboot(ids["worker-1"])


def test_keys_are_made_once_and_never_shown(provider: Ec2Provider) -> None:
    ready(provider)
    first = provider.folder.read_json("nodes/worker-1.json")

    provider.configure(launches())

    assert provider.folder.read_json("nodes/worker-1.json") == first
    assert first is not None
    assert set(first["files"]) == {
        "node.env", "munge.key", "ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "authorized_keys",
    }  # fmt: skip
    public = json.dumps(provider.folder.read_json("public.json"))
    assert "PRIVATE" not in public
    assert first["files"]["munge.key"] not in public


def test_what_holds_a_key_is_encrypted_by_kms(provider: Ec2Provider, aws: AccountAws) -> None:
    ready(provider)

    written = {p["Key"].rpartition("demo/")[2]: p["ServerSideEncryption"] for o, p in aws.calls if o == "PutObject"}
    assert {written["keys.json"], written["nodes/worker-1.json"]} == {"aws:kms"}
    assert "" not in written.values()


def test_deleting_leaves_nothing_and_the_head_node_goes_first(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    aws.calls.clear()

    report = provider.delete()

    ended = [p["InstanceIds"] for operation, p in aws.calls if operation == "TerminateInstances"]
    assert ended[0] == [ids["head-1"]]
    assert live(aws) == []
    assert find_templates(aws, "demo") == []
    assert list(provider.folder.entries()) == []
    assert report.left == []
    assert provider.delete().removed == []


def test_deleting_says_what_it_could_not_and_goes_on(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    ec2 = aws.client("ec2")
    ec2.modify_instance_attribute(InstanceId=ids["worker-2"], DisableApiTermination={"Value": True})

    report = provider.delete()

    assert live(aws) == [ids["worker-2"]]
    assert any(ids["worker-2"] in line for line in report.left)


def test_a_head_node_that_stays_has_nothing_to_replace_others_with(provider: Ec2Provider, aws: AccountAws) -> None:
    ids = ready(provider)
    aws.client("ec2").modify_instance_attribute(InstanceId=ids["head-1"], DisableApiTermination={"Value": True})

    provider.delete()

    assert [t["LaunchTemplateName"] for t in find_templates(aws, "demo")] == ["hyperpod.demo.head"]
    with pytest.raises(NotFound, match="launch template"):
        provider.replace("worker-1", ids["worker-1"], "repair")


@pytest.mark.parametrize("operation", ["TerminateInstances", "DeleteObjects", "DeleteLaunchTemplate"])
def test_what_was_not_deleted_is_found_by_the_next_try(provider: Ec2Provider, aws: AccountAws, operation: str) -> None:
    ready(provider)
    for _ in range(5):
        aws.fail_next(operation, "UnauthorizedOperation")

    assert provider.delete().left != []
    assert "demo" in clusters(aws), "without its templates no command would find it again"
    aws.end_failures()
    assert provider.delete().left == []
    assert live(aws) == []
    assert clusters(aws) == {}


def test_a_volume_that_outlives_its_machine_is_named(provider: Ec2Provider, aws: AccountAws) -> None:
    ready(provider)
    volume = aws.client("ec2").create_volume(
        AvailabilityZone="us-west-2a", Size=1,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags.tag_list({tags.CLUSTER: "demo"})}],
    )["VolumeId"]  # fmt: skip

    assert any(volume in line for line in provider.delete().left)


def test_another_cluster_is_refused(provider: Ec2Provider) -> None:
    with pytest.raises(ConfigError, match="demo"):
        provider.observe("other")
    with pytest.raises(ConfigError):
        provider.launch(launches(("worker-1",), "other"))


def test_an_unknown_node_is_not_invented(provider: Ec2Provider) -> None:
    ready(provider)

    with pytest.raises(NotFound, match="worker-9"):
        provider.replace("worker-9", "i-00000000000000abc", "t")


def test_the_controller_gets_the_provider_that_its_configuration_names() -> None:
    config = {"kind": "ec2", "cluster": "demo", "region": "us-west-2", "bucket": "b", "prefix": "hyperpod/demo"}

    machines = machines_of(config)

    assert isinstance(machines, Ec2Provider)
    assert machines.folder.uri == "s3://b/hyperpod/demo/"
    with pytest.raises(ConfigError, match="bucket"):
        machines_of({**config, "bucket": ""})
