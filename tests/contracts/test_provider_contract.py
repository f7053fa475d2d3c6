"""One suite for every provider of machines: the local one on a podman in memory, EC2 on an account in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from moto import mock_aws

from hyperpod.adapters.aws.ec2 import Ec2Provider
from hyperpod.adapters.aws.folder import ClusterFolder, default_prefix
from hyperpod.adapters.aws.instance_types import InstanceType
from hyperpod.adapters.aws.launch_template import GroupSettings
from hyperpod.core.names import parse_instance_id
from hyperpod.errors import NotFound
from hyperpod.ports.provider import BirthStatus, Instance, InstanceStatus, NodeLaunch, Provider, Role
from tests.adapters.test_local_provider import Clock, make_provider
from tests.fakes.aws import AccountAws, dummy_environment, make_site
from tests.fakes.podman import FakePodman

NODES = ("head-1", "worker-1", "worker-2")
UNKNOWN = "i-00000000000000abc"


def launches(nodes: tuple[str, ...] = NODES) -> list[NodeLaunch]:
    return [
        NodeLaunch(
            cluster="demo",
            node=node,
            group=node.rpartition("-")[0],
            role=Role.HEAD if node.startswith("head") else Role.WORKER,
            files={"node.env": f"HP_NODE={node}\n"},
        )
        for node in nodes
    ]


@dataclass
class Subject:
    """A provider, how a cluster is made with it, how a machine vanishes behind its back, and how its births end."""

    provider: Provider
    prepare: Callable[[], None]
    bear: Callable[[], None]
    vanish: Callable[[str], None]

    def ready(self) -> dict[str, Instance]:
        """Make the cluster, or what is missing of it, and have its machines born."""
        self.prepare()
        self.provider.launch(launches())
        self.bear()
        return self.seen()

    def seen(self) -> dict[str, Instance]:
        return {i.node: i for i in self.provider.observe("demo") if i.status is not InstanceStatus.GONE}


def local_subject(home: Path) -> Subject:
    podman = FakePodman()
    provider = make_provider(home, podman)

    def vanish(node: str) -> None:
        podman.containers.pop(podman.node(node).id)

    return Subject(provider, lambda: provider.prepare("demo", NODES) and None, lambda: None, vanish)


def ec2_subject() -> Subject:
    aws, clock = AccountAws(), Clock()
    site = make_site(aws)
    shape = InstanceType("m5.large", vcpus=2, cores=1, memory_mib=8192)
    settings = GroupSettings(
        shape, "ami-12c6146b", site.subnet, (site.security_group,), site.profile, root_volume_gib=50
    )
    folder = ClusterFolder(aws, site.bucket, default_prefix("demo"))
    groups = {"head": settings, "worker": settings}
    provider = Ec2Provider(aws, "demo", folder, groups, sleep=clock.sleep, monotonic=clock.monotonic)

    def bear() -> None:
        provider.configure(launches())
        for instance in provider.observe("demo"):
            folder.write_json(f"births/{instance.id}.ok", {"status": "ok"})

    def vanish(node: str) -> None:
        identity = next(i.id for i in provider.observe("demo") if i.node == node)
        aws.client("ec2").terminate_instances(InstanceIds=[identity])

    return Subject(provider, lambda: None, bear, vanish)


@pytest.fixture(params=["local", "ec2"])
def subject(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    if request.param == "local":
        yield local_subject(tmp_path)
        return
    dummy_environment(monkeypatch)
    with mock_aws():
        yield ec2_subject()


def test_every_node_gets_a_machine_with_identity_address_and_role(subject: Subject) -> None:
    seen = subject.ready()

    assert set(seen) == set(NODES)
    assert all(parse_instance_id(instance.id) for instance in seen.values())
    assert len({instance.address for instance in seen.values()}) == 3
    assert {node: instance.role for node, instance in seen.items()}["head-1"] is Role.HEAD
    assert {instance.group for instance in seen.values()} == {"head", "worker"}
    assert {instance.status for instance in seen.values()} == {InstanceStatus.RUNNING}
    assert all(instance.created_at.tzinfo is not None for instance in seen.values())


def test_launch_answers_in_the_order_of_the_question(subject: Subject) -> None:
    subject.prepare()
    asked = ("worker-2", "head-1", "worker-1")

    assert [instance.node for instance in subject.provider.launch(launches(asked))] == list(asked)
    assert subject.provider.launch([]) == []


def test_launching_again_changes_nothing(subject: Subject) -> None:
    first = subject.ready()

    assert {n: i.id for n, i in subject.ready().items()} == {n: i.id for n, i in first.items()}


def test_a_cluster_without_machines_is_empty(subject: Subject) -> None:
    assert subject.provider.observe("demo") == ()


def test_power_goes_off_and_on_and_the_machine_keeps_its_identity(subject: Subject) -> None:
    before = subject.ready()["worker-1"]

    subject.provider.power_off(before.id)
    assert subject.seen()["worker-1"].status is InstanceStatus.STOPPED
    subject.provider.power_off(before.id)
    subject.provider.power_on(before.id)
    subject.provider.power_on(before.id)
    subject.bear()

    after = subject.seen()["worker-1"]
    assert (after.id, after.address, after.status) == (before.id, before.address, InstanceStatus.RUNNING)


def test_a_reboot_keeps_the_machine(subject: Subject) -> None:
    before = subject.ready()["worker-1"]

    subject.provider.reboot(before.id)
    subject.provider.power_off(before.id)
    subject.provider.reboot(before.id)
    subject.bear()

    assert subject.seen()["worker-1"].id == before.id
    assert subject.seen()["worker-1"].status is InstanceStatus.RUNNING


def test_launch_starts_a_machine_that_is_off(subject: Subject) -> None:
    before = subject.ready()["worker-1"]
    subject.provider.power_off(before.id)

    assert subject.ready()["worker-1"].id == before.id
    assert subject.seen()["worker-1"].status is InstanceStatus.RUNNING


def test_a_replacement_takes_over_name_and_address(subject: Subject) -> None:
    before = subject.ready()

    fresh = subject.provider.replace("worker-1", before["worker-1"].id, "token")

    assert fresh.id != before["worker-1"].id
    assert (fresh.node, fresh.group, fresh.address) == ("worker-1", "worker", before["worker-1"].address)
    assert parse_instance_id(fresh.id)
    others = {node: i.id for node, i in subject.seen().items() if node != "worker-1"}
    assert others == {node: i.id for node, i in before.items() if node != "worker-1"}


def test_the_same_replacement_again_answers_with_the_machine_that_is_there(subject: Subject) -> None:
    old = subject.ready()["worker-1"].id
    fresh = subject.provider.replace("worker-1", old, "token").id

    assert subject.provider.replace("worker-1", old, "token").id == fresh
    assert subject.provider.replace("worker-1", old, "other").id == fresh
    assert subject.seen()["worker-1"].id == fresh
    assert subject.provider.replace("worker-1", fresh, "next").id != fresh


def test_a_machine_that_was_fenced_can_be_replaced(subject: Subject) -> None:
    old = subject.ready()["worker-1"].id
    subject.provider.power_off(old)

    assert subject.provider.replace("worker-1", old, "token").id != old


def test_a_machine_that_vanished_is_missed_and_can_be_replaced(subject: Subject) -> None:
    old = subject.ready()["worker-2"].id
    subject.vanish("worker-2")
    assert set(subject.seen()) == {"head-1", "worker-1"}

    assert subject.provider.replace("worker-2", old, "token").node == "worker-2"
    assert set(subject.seen()) == set(NODES)


def test_what_vanished_is_launched_again(subject: Subject) -> None:
    before = subject.ready()
    subject.vanish("worker-2")

    after = subject.ready()

    assert {node for node in NODES if after[node].id != before[node].id} == {"worker-2"}


def test_termination_is_for_good_and_may_be_repeated(subject: Subject) -> None:
    old = subject.ready()["worker-2"].id

    subject.provider.terminate(old)
    subject.provider.terminate(old)

    assert set(subject.seen()) == {"head-1", "worker-1"}


def test_the_record_of_a_birth_outlives_the_machine(subject: Subject) -> None:
    old = subject.ready()["worker-2"].id
    subject.provider.terminate(old)

    assert subject.provider.birth(old).status is BirthStatus.OK


@pytest.mark.parametrize("action", ["power_off", "power_on", "reboot", "connect"])
def test_an_unknown_machine_is_not_found(subject: Subject, action: str) -> None:
    subject.ready()

    with pytest.raises(NotFound):
        getattr(subject.provider, action)(UNKNOWN)


def test_an_unknown_slot_is_not_found(subject: Subject) -> None:
    old = subject.ready()["worker-2"].id

    with pytest.raises(NotFound):
        subject.provider.replace("worker-9", old, "token")
