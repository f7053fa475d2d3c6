"""A cluster on EC2 from its specification: made, grown, shrunk, mended and deleted, in an account in memory."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from hyperpod.adapters.aws.ec2 import Ec2Provider
from hyperpod.adapters.aws.images import find_image, parameter_of
from hyperpod.adapters.aws.launch_template import Market, describe_versions, find_templates
from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.config.load import load_spec
from hyperpod.core.policy import policies_from
from hyperpod.core.spec import ClusterSpec, spec_policies, with_counts
from hyperpod.errors import ConfigError, InvalidState, NoCapacity, NotFound
from hyperpod.ports.provider import InstanceStatus
from hyperpod.provisioning.ec2_cluster import (
    Ec2Result,
    cluster_folder,
    create_cluster,
    delete_cluster,
    figures_of,
    group_settings,
    hardware_of,
    observe_nodes,
    open_provider,
    send_software,
    stored_spec,
)
from tests.adapters.test_local_provider import Clock
from tests.fakes.aws import AccountAws, Site, decode_user_data, dummy_environment, make_site

AMI = "ami-12c6146b"
ROLE = "arn:aws:iam::123456789012:role/hyperpod-main-node"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AccountAws]:
    dummy_environment(monkeypatch)
    with mock_aws():
        yield AccountAws()


@pytest.fixture
def site(aws: AccountAws) -> Site:
    return make_site(aws)


def make_spec(site: Site, tmp_path: Path, **worker: Any) -> ClusterSpec:
    scripts = {"SourceS3Uri": f"s3://{site.bucket}/lifecycle-scripts/", "OnCreate": "on_create.sh"}
    group = {"ExecutionRole": ROLE, "LifeCycleConfig": scripts}
    request = {
        "ClusterName": "demo",
        "InstanceGroups": [
            {"InstanceGroupName": "head", "InstanceType": "ml.m5.xlarge", "InstanceCount": 1,
             "SlurmConfig": {"NodeType": "Controller"}, **group},
            {"InstanceGroupName": "worker", "InstanceType": "ml.c5n.18xlarge", "InstanceCount": 3,
             "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["train"]}, **group, **worker},
        ],
        "VpcConfig": {"SecurityGroupIds": [site.security_group], "Subnets": [site.subnet]},
        "Hyperpod": {"Provider": "ec2", "Spares": 1, "Ec2": {"Image": AMI, "NodeProfile": "nodes"}},
    }  # fmt: skip
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(request))
    return load_spec(path, validate=validate_create_cluster).spec


class Lab:
    """A cluster under test: machines are born as soon as they are told who they are, unless ``births`` says how."""

    def __init__(self, aws: AccountAws, spec: ClusterSpec) -> None:
        self.aws, self.spec = aws, spec
        self.clock = Clock()
        self.births: list[str] = []
        self.provider = self.open(spec)

    def open(self, spec: ClusterSpec) -> Ec2Provider:
        return open_provider(self.aws, spec, software="abc", sleep=self.clock.sleep, monotonic=self.clock.monotonic)

    def bear(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        folder = self.provider.folder
        for entry in list(folder.entries("instances/")):
            identity = entry.name.removeprefix("instances/").removesuffix(".json")
            if not list(folder.entries(f"births/{identity}.")):
                status = self.births.pop(0) if self.births else "ok"
                folder.write_json(f"births/{identity}.{status}", {"status": status, "exit_code": 9, "tail": ["boom"]})

    def create(self, spec: ClusterSpec | None = None, **options: Any) -> Ec2Result:
        spec = spec or self.spec
        self.provider = self.open(spec)
        options = {"monotonic": self.clock.monotonic, "sleep": self.bear, **options}
        return create_cluster(spec, self.provider, **options)

    def node_file(self, node: str, name: str) -> str:
        data = self.provider.folder.read_json(f"nodes/{node}.json")
        assert data is not None
        return base64.b64decode(data["files"][name]).decode()


@pytest.fixture
def lab(aws: AccountAws, site: Site, tmp_path: Path) -> Lab:
    return Lab(aws, make_spec(site, tmp_path))


def test_a_cluster_comes_up_and_every_node_knows_the_others(lab: Lab) -> None:
    result = lab.create()

    assert [i.node for i in result.instances] == ["head-1", "worker-1", "worker-2", "worker-3"]
    assert {i.status for i in result.instances} == {InstanceStatus.RUNNING}
    assert result.failures == {}
    conf = lab.node_file("head-1", "slurm.conf")
    for instance in result.instances[1:]:
        assert f"NodeName={instance.node} NodeAddr={instance.address}" in conf
    assert "0.0.0.0" not in conf
    agent = json.loads(lab.node_file("worker-2", "agent.json"))
    assert agent["head_address"] == result.instances[0].address
    assert agent["kmsg_path"] == "/dev/kmsg"


def test_slurm_counts_what_the_instance_type_has(lab: Lab) -> None:
    lab.create()

    assert "CPUs=72 " in lab.node_file("head-1", "slurm.conf")
    figures = figures_of(lab.provider.groups, lab.spec)["ml.c5n.18xlarge"]
    assert figures.memory_mb == 196608 - 196608 // 16


def test_agents_know_what_their_machine_should_have(lab: Lab) -> None:
    lab.create()

    assert json.loads(lab.node_file("worker-1", "agent.json"))["expected"] == {"efa": 1}
    shape = replace(lab.provider.groups["worker"].shape, name="p5.48xlarge", gpus=8, accelerators=0)
    groups = {name: replace(group, shape=shape) for name, group in lab.provider.groups.items()}
    assert hardware_of(groups, lab.spec)["ml.c5n.18xlarge"] == {"gpus": 8, "nvme_disks": 8, "efa": 1}
    assert (
        "gpus"
        not in hardware_of(
            {name: replace(group, shape=replace(shape, name="g4ad.xlarge")) for name, group in groups.items()}, lab.spec
        )["ml.c5n.18xlarge"]
    )


def test_the_controller_is_told_where_the_folder_is(lab: Lab) -> None:
    lab.create()

    config = json.loads(lab.node_file("head-1", "controller.json"))
    assert config["provider"] == {
        "kind": "ec2", "cluster": "demo", "region": "us-west-2", "bucket": "sagemaker-test", "prefix": "hyperpod/demo",
    }  # fmt: skip


def test_making_it_again_changes_nothing(lab: Lab) -> None:
    first = lab.create()
    lab.aws.calls.clear()

    again = lab.create()

    assert again.plan.is_empty
    assert [i.id for i in again.instances] == [i.id for i in first.instances]
    assert "RunInstances" not in lab.aws.operations()


@pytest.mark.parametrize("operation", ["RunInstances", "PutObject", "CreateLaunchTemplate"])
def test_interrupted_anywhere_the_same_command_goes_on(lab: Lab, operation: str) -> None:
    lab.aws.kill_next(operation, when="after")
    with pytest.raises(KeyboardInterrupt):
        lab.create()

    result = lab.create()

    assert len(result.instances) == 4
    assert {i.status for i in result.instances} == {InstanceStatus.RUNNING}


def test_without_capacity_the_same_command_goes_on_later(lab: Lab) -> None:
    lab.aws.fail_next("RunInstances", "InsufficientInstanceCapacity")
    with pytest.raises(NoCapacity):
        lab.create()

    assert len(lab.create().instances) == 4


def test_it_grows_and_the_old_nodes_stay(lab: Lab) -> None:
    before = {i.node: i.id for i in lab.create().instances}
    lab.aws.answers |= {
        "SendCommand": [{"Command": {"CommandId": "0" * 36}}],
        "GetCommandInvocation": [{"Status": "Success"}],
    }

    after = {i.node: i.id for i in lab.create(with_counts(lab.spec, {"worker": 5})).instances}

    assert set(after) - set(before) == {"worker-4", "worker-5"}
    assert all(after[node] == before[node] for node in before)
    told = [p["Parameters"]["commands"][0] for operation, p in lab.aws.calls if operation == "SendCommand"]
    assert len(told) == 4
    assert "apply_slurm_conf.sh" in told[-1], "the head node takes over the new slurm.conf last"


def test_it_shrinks_only_by_idle_nodes(lab: Lab) -> None:
    lab.create()
    invocation = {"Status": "Success", "StandardOutputContent": "worker-3\n"}
    lab.aws.answers |= {"SendCommand": [{"Command": {"CommandId": "0" * 36}}], "GetCommandInvocation": [invocation]}
    smaller = with_counts(lab.spec, {"worker": 2})

    busy = lab.create(smaller)
    assert [refusal.node for refusal in busy.plan.refused] == ["worker-3"]
    assert "worker-3" in lab.node_file("head-1", "slurm.conf"), "its job runs on"

    lab.aws.answers["GetCommandInvocation"] = [{"Status": "Success"}]
    assert [i.node for i in lab.create(smaller).instances if i.status is not InstanceStatus.GONE] == [
        "head-1", "worker-1", "worker-2",
    ]  # fmt: skip
    assert "worker-3" not in lab.provider.addresses()


def test_when_nobody_can_say_who_is_busy_nobody_is_removed(lab: Lab) -> None:
    lab.create()
    lab.aws.fail_next("SendCommand", "InvalidInstanceId")

    seen = observe_nodes(lab.provider, with_counts(lab.spec, {"worker": 2}))

    assert {node.name for node in seen if node.is_busy} == {"worker-3"}


def test_a_failed_script_gets_one_other_machine(lab: Lab) -> None:
    lab.births = ["failed"]

    result = lab.create()

    assert result.failures == {}
    assert len(result.instances) == 4


def test_a_script_that_always_fails_is_reported_with_its_last_lines(lab: Lab) -> None:
    lab.births = ["failed"] * 9

    result = lab.create()

    assert result.failures is not None
    assert {birth.tail for birth in result.failures.values()} == {("boom",)}


def test_a_machine_that_is_never_born_ends_the_wait(lab: Lab) -> None:
    with pytest.raises(InvalidState, match="worker-1"):
        lab.create(sleep=lab.clock.sleep, timeout_s=60.0)


def test_it_is_deleted_with_everything(lab: Lab) -> None:
    lab.create()
    lab.aws.answers["DescribePlacementGroups"] = [{"PlacementGroups": [{"GroupName": "hyperpod.demo.worker"}]}]

    report = delete_cluster("demo", lab.aws, lab.provider.folder, sleep=lab.clock.sleep, monotonic=lab.clock.monotonic)

    assert report.left == []
    assert "placement group hyperpod.demo.worker" in report.removed
    with pytest.raises(NotFound):
        stored_spec(lab.provider.folder)


def test_the_specification_is_kept_with_the_cluster(lab: Lab) -> None:
    lab.create()

    assert stored_spec(lab.provider.folder) == lab.spec


def test_templates_are_what_the_specification_says(lab: Lab, aws: AccountAws) -> None:
    lab.create()

    template = find_templates(aws, "demo", "worker")[0]["LaunchTemplateId"]
    data = describe_versions(aws, template, ["$Default"])[0]["LaunchTemplateData"]
    assert data["InstanceType"] == "c5n.18xlarge"
    assert data["NetworkInterfaces"][0]["InterfaceType"] == "efa"
    assert data["Placement"]["GroupName"] == "hyperpod.demo.worker"
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert "HP_SOFTWARE=abc" in decode_user_data(data)


def test_spot_and_volumes_come_from_the_request(aws: AccountAws, site: Site, tmp_path: Path) -> None:
    storage = [{"EbsVolumeConfig": {"VolumeSizeInGB": 500}}]
    spec = make_spec(site, tmp_path, CapacityRequirements={"Spot": {}}, InstanceStorageConfigs=storage)

    settings = group_settings(aws, spec, cluster_folder(aws, spec), "abc")

    assert settings["worker"].market is Market.SPOT
    assert settings["worker"].root_volume_gib == 600
    assert settings["head"].market is Market.ON_DEMAND


def test_a_specification_without_a_network_is_refused(aws: AccountAws, site: Site, tmp_path: Path) -> None:
    spec = make_spec(site, tmp_path).model_copy(update={"vpc": None})

    with pytest.raises(ConfigError, match="VpcConfig"):
        open_provider(aws, spec)


def test_software_is_sent_once(aws: AccountAws, site: Site, tmp_path: Path) -> None:
    root = tmp_path / "source"
    for name in ("hyperpod/a.py", "hyperpod/__pycache__/a.pyc", "lifecycle_scripts/on_create.sh", "spank_plugin/x.c"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    folder = cluster_folder(aws, make_spec(site, tmp_path))
    binding = tmp_path / "site" / "pynvml.py"
    binding.parent.mkdir()
    binding.write_text("binding")

    name = send_software(folder, root, lambda: binding)
    sent = {entry.name for entry in folder.entries("software/")}
    aws.calls.clear()

    assert send_software(folder, root, lambda: binding) == name
    assert "PutObject" not in aws.operations()
    assert sent == {f"software/{name}.tar.gz"}
    with tarfile.open(fileobj=io.BytesIO(folder.read(f"software/{name}.tar.gz") or b"")) as archive:
        assert {entry.name: oct(entry.mode) for entry in archive} == {
            "lib/hyperpod/a.py": "0o644", "lifecycle_scripts/on_create.sh": "0o755", "src/spank_plugin/x.c": "0o644",
            "lib/pynvml.py": "0o644",
        }  # fmt: skip
    assert send_software(folder, root, lambda: None) != name
    (root / "hyperpod" / "a.py").write_text("changed")
    assert send_software(folder, root, lambda: binding) != name


def test_an_image_is_found_by_id_or_by_a_public_parameter(aws: AccountAws) -> None:
    aws.answers["GetParameter"] = [{"Parameter": {"Value": AMI}}]

    assert find_image(aws, AMI).id == AMI
    assert find_image(aws, "debian").root_device.startswith("/dev/")
    assert parameter_of("debian", "arm64").endswith("/arm64")
    assert parameter_of("/mine/ami", "x86_64") == "/mine/ami"
    with pytest.raises(ConfigError, match="arm64"):
        find_image(aws, AMI, "arm64")


@pytest.mark.parametrize("name", ["ami-00000000000000000", "/no/such/parameter"])
def test_an_image_that_is_not_there_is_named(aws: AccountAws, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        find_image(aws, name)


def test_a_cluster_whose_spare_sleeps_is_as_the_specification_says(lab: Lab) -> None:
    lab.create()
    spare = next(i for i in lab.provider.observe("demo") if i.node == "worker-3")
    lab.provider.park(spare.id)

    result = lab.create()

    assert result.plan.lines() == ()
    assert next(i for i in result.instances if i.node == "worker-3").status is InstanceStatus.STOPPED


@pytest.mark.parametrize(("word", "expected"), [("running", False), ("stopped", True)])
def test_the_controller_is_told_whether_spares_are_stopped(lab: Lab, word: str, expected: bool) -> None:
    block = lab.spec.hyperpod.model_copy(update={"ec2": lab.spec.hyperpod.ec2.model_copy(update={"spares": word})})
    spec = lab.spec.model_copy(update={"hyperpod": block})

    assert policies_from(spec_policies(spec))[0].are_spares_stopped is expected
