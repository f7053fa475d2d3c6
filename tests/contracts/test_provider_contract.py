"""One suite for every provider of machines.

The local one runs on a podman in memory, EC2 on an account in memory, HyperPod on the server that holds every request
and answer against the model. What an API cannot do is left out there, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from moto import mock_aws

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.ec2 import Ec2Provider
from hyperpod.adapters.aws.folder import ClusterFolder, default_prefix
from hyperpod.adapters.aws.instance_types import InstanceType
from hyperpod.adapters.aws.launch_template import GroupSettings
from hyperpod.adapters.aws.sagemaker import SageMaker
from hyperpod.adapters.aws.sagemaker_provider import SageMakerProvider
from hyperpod.core.names import parse_instance_id
from hyperpod.errors import NotFound
from hyperpod.ports.provider import BirthStatus, Instance, InstanceStatus, NodeLaunch, Provider, Role
from tests.adapters.test_local_provider import Clock, make_provider
from tests.aws_server.server import ContractServer
from tests.aws_server.specs import request as create_request
from tests.aws_server.specs import spec_of
from tests.fakes.aws import AccountAws, dummy_environment, make_site
from tests.fakes.podman import FakePodman
from tests.fakes.process import FakeProcesses

NODES = ("head-1", "worker-1", "worker-2")
UNKNOWN = "i-00000000000000abc"


NO_SWITCH = "HyperPod has no switch for a machine's power"
NO_SLOTS = "HyperPod makes what is missing by itself; it knows no slot without a machine"
NO_MEMORY = "HyperPod forgets a machine that is gone; only its log stays in CloudWatch"


def launches(nodes: tuple[str, ...] = NODES, slots: Mapping[str, str] | None = None) -> list[NodeLaunch]:
    return [
        NodeLaunch(
            cluster="demo",
            node=(slots or {}).get(node, node),
            group=node.rpartition("-")[0],
            role=Role.HEAD if node.startswith("head") else Role.WORKER,
            files={"node.env": f"HP_NODE={node}\n"},
        )
        for node in nodes
    ]


@dataclass
class Subject:
    """A provider, how a cluster is made with it, how a machine vanishes behind its back, and how its births end.

    ``slots`` gives the provider's own name for each of ``NODES``; ``cannot`` why a test makes no sense for it.
    ``is_replaced_at_once``: the answer to a replacement is the new machine, not the old one as long as it stays.
    """

    provider: Provider
    prepare: Callable[[], None]
    bear: Callable[[], None]
    vanish: Callable[[str], None]
    slots: Callable[[], dict[str, str]] = lambda: {node: node for node in NODES}
    cannot: Mapping[str, str] = field(default_factory=dict)
    is_replaced_at_once: bool = True

    def ready(self) -> dict[str, Instance]:
        """Make the cluster, or what is missing of it, and have its machines born."""
        self.prepare()
        self.provider.launch(launches(slots=self.slots()))
        self.bear()
        return self.seen()

    def seen(self) -> dict[str, Instance]:
        names = {slot: node for node, slot in self.slots().items()}
        there = [i for i in self.provider.observe("demo") if i.status is not InstanceStatus.GONE]
        return {names[i.node]: i for i in there}

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        """Replace a machine, let its birth end, and return the one that is there then."""
        answer = self.provider.replace(self.slots()[node], instance_id, token)
        self.bear()
        now = self.seen()[node]
        assert answer.id == now.id or not self.is_replaced_at_once
        return now


def local_subject(home: Path) -> Subject:
    podman = FakePodman()
    provider = make_provider(home, podman)

    def vanish(node: str) -> None:
        podman.containers.pop(podman.node(node).id)

    def prepare() -> None:
        provider.prepare("demo", NODES)

    return Subject(provider, prepare, lambda: None, vanish)


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


def sagemaker_subject(folder: Path) -> Subject:
    server = ContractServer()
    api = SageMaker(Aws(region="us-west-2", session=server.session(), sleep=lambda _: None))
    names: dict[str, str] = {}

    def prepare() -> None:
        if api.find("demo") is None:
            data = create_request("demo", workers=2)
            data["InstanceGroups"][0]["InstanceGroupName"] = "head"
            api.create(spec_of(folder, data))
            for node in server.state.clusters["demo"].nodes:
                number = sum(1 for known in names if known.startswith(f"{node.group}-")) + 1
                names[f"{node.group}-{number}"] = str(node.summary()["PrivateDnsHostname"]).partition(".")[0]

    def bear() -> None:
        while not api.describe("demo").is_settled or any(n.status != "Running" for n in api.nodes("demo")):
            pass

    def vanish(node: str) -> None:
        nodes = server.state.clusters["demo"].nodes
        nodes[:] = [n for n in nodes if not str(n.summary()["PrivateDnsHostname"]).startswith(f"{names[node]}.")]

    cannot = {
        "test_power_goes_off_and_on_and_the_machine_keeps_its_identity": NO_SWITCH,
        "test_launch_starts_a_machine_that_is_off": NO_SWITCH,
        "test_a_reboot_starts_a_machine_that_is_off": NO_SWITCH,
        "test_a_machine_that_was_fenced_can_be_replaced": NO_SWITCH,
        "test_a_machine_that_vanished_is_missed_and_can_be_replaced": NO_SLOTS,
        "test_what_vanished_is_launched_again": NO_SLOTS,
        "test_the_record_of_a_birth_outlives_the_machine": NO_MEMORY,
        "test_an_unknown_machine_is_not_found[sagemaker-power_off]": NO_MEMORY,
    }
    provider = SageMakerProvider(api, "demo", FakeProcesses())
    return Subject(provider, prepare, bear, vanish, lambda: dict(names), cannot, is_replaced_at_once=False)


@pytest.fixture(params=["local", "ec2", "sagemaker"])
def subject(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    if request.param == "local":
        yield local_subject(tmp_path)
        return
    dummy_environment(monkeypatch)
    if request.param == "ec2":
        with mock_aws():
            yield ec2_subject()
        return
    made = sagemaker_subject(tmp_path)
    for name in (request.node.name, request.node.name.partition("[")[0]):
        if name in made.cannot:
            pytest.skip(made.cannot[name])
    yield made


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
    asked, slots = ("worker-2", "head-1", "worker-1"), subject.slots()

    answer = subject.provider.launch(launches(asked, slots))

    assert [instance.node for instance in answer] == [slots[node] for node in asked]
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
    subject.bear()

    assert subject.seen()["worker-1"].id == before.id
    assert subject.seen()["worker-1"].status is InstanceStatus.RUNNING


def test_a_reboot_starts_a_machine_that_is_off(subject: Subject) -> None:
    before = subject.ready()["worker-1"]

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

    fresh = subject.replace("worker-1", before["worker-1"].id, "token")

    assert fresh.id != before["worker-1"].id
    old = before["worker-1"]
    assert (fresh.node, fresh.group, fresh.address) == (old.node, "worker", old.address)
    assert parse_instance_id(fresh.id)
    others = {node: i.id for node, i in subject.seen().items() if node != "worker-1"}
    assert others == {node: i.id for node, i in before.items() if node != "worker-1"}


def test_the_same_replacement_again_answers_with_the_machine_that_is_there(subject: Subject) -> None:
    old = subject.ready()["worker-1"].id
    slot = subject.slots()["worker-1"]
    # Asked again while it is under way: one replacement.
    answers = {subject.provider.replace(slot, old, "token").id for _ in range(2)}
    fresh = subject.replace("worker-1", old, "token").id

    assert fresh != old
    assert answers <= ({fresh} if subject.is_replaced_at_once else {old, fresh})
    assert subject.provider.replace(slot, old, "token").id == fresh
    assert subject.provider.replace(slot, old, "other").id == fresh
    assert subject.seen()["worker-1"].id == fresh
    assert subject.replace("worker-1", fresh, "next").id != fresh


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
