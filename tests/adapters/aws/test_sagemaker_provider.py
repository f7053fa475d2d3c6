"""A HyperPod cluster as a provider of machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from hyperpod import errors
from hyperpod.adapters.aws import session
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.sagemaker import SageMaker
from hyperpod.adapters.aws.sagemaker_provider import SageMakerProvider
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.ports.process import Completed
from hyperpod.ports.provider import BirthStatus, Instance, NodeLaunch
from tests.aws_server.server import ContractServer
from tests.aws_server.specs import request, spec_of
from tests.fakes.process import FakeProcesses

Provide = Callable[..., SageMakerProvider]


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def provide(served: Aws, server: ContractServer, tmp_path: Path, processes: FakeProcesses) -> Provide:
    """Return a provider of a running cluster ``ml``."""

    def make(data: dict[str, Any] | None = None) -> SageMakerProvider:
        api = SageMaker(served)
        server.state.looks_to_run = 1
        api.create(spec_of(tmp_path, data or request()))
        api.describe("ml")
        return SageMakerProvider(api, "ml", processes)

    return make


def workers(provider: SageMakerProvider) -> list[Instance]:
    return [instance for instance in provider.observe("ml") if instance.role is Role.WORKER]


def test_machines_are_seen_with_role_and_slurms_name(provide: Provide) -> None:
    head, *rest = provide().observe("ml")
    assert (head.role, head.group, head.status) == (Role.HEAD, "controller", InstanceStatus.RUNNING)
    assert head.node == "ip-" + head.address.replace(".", "-")
    assert [instance.role for instance in rest] == [Role.WORKER, Role.WORKER]


def test_a_cluster_that_is_not_there_has_no_machines(served: Aws, processes: FakeProcesses) -> None:
    assert SageMakerProvider(SageMaker(served), "x", processes).observe("x") == ()


def test_an_answer_that_does_not_come_is_an_error_and_no_empty_list(provide: Provide, server: ContractServer) -> None:
    provider = provide()
    server.plan("ListClusterNodes", "InternalFailure", status=500, times=99)
    with pytest.raises(errors.ProviderUnavailable):
        provider.observe("ml")


@mock_aws
def test_roles_come_from_the_legacy_file_beside_the_scripts(provide: Provide, tmp_path: Path) -> None:
    data = request()
    for group, name in zip(data["InstanceGroups"], ("boss", "many"), strict=True):
        del group["SlurmConfig"]
        group["InstanceGroupName"] = name
    parameters = {"controller_group": "boss", "worker_groups": [{"instance_group_name": "many", "partition_name": "d"}]}
    (tmp_path / "provisioning_parameters.json").write_text(json.dumps(parameters))
    s3 = boto3.client("s3", region_name="us-west-2")
    where = {"LocationConstraint": "us-west-2"}
    s3.create_bucket(Bucket="sagemaker-scripts", CreateBucketConfiguration=where)  # type: ignore[arg-type]
    s3.put_object(
        Bucket="sagemaker-scripts", Key="lifecycle/provisioning_parameters.json", Body=json.dumps(parameters).encode()
    )
    roles = {instance.group: instance.role for instance in provide(data).observe("ml")}
    assert roles == {"boss": Role.HEAD, "many": Role.WORKER}


def test_replacing_twice_replaces_once(provide: Provide, server: ContractServer) -> None:
    provider = provide()
    server.state.looks_to_run = 5
    old = workers(provider)[0]
    assert provider.replace(old.node, old.id, "t").id == old.id
    assert provider.replace(old.node, old.id, "t").status is InstanceStatus.PENDING
    for _ in range(5):
        provider.observe("ml")
    fresh = next(instance for instance in provider.observe("ml") if instance.node == old.node)
    assert fresh.id != old.id
    before = len(server.made("BatchReplaceClusterNodes"))
    assert provider.replace(old.node, old.id, "t").id == fresh.id
    assert len(server.made("BatchReplaceClusterNodes")) == before


def test_the_head_node_is_not_replaced(provide: Provide) -> None:
    provider = provide()
    head = provider.observe("ml")[0]
    with pytest.raises(errors.InvalidState, match="InvalidInstanceStatus"):
        provider.replace(head.node, head.id, "t")


def test_a_machine_is_rebooted_and_removed_and_gone_is_gone(provide: Provide, server: ContractServer) -> None:
    provider = provide()
    first, second = workers(provider)
    provider.reboot(first.id)
    provider.terminate(second.id)
    provider.terminate(second.id)
    assert [instance.id for instance in workers(provider)] == [first.id]


def test_there_is_no_power_switch(provide: Provide) -> None:
    provider = provide()
    worker = workers(provider)[0]
    with pytest.raises(errors.ProviderError, match="cannot power"):
        provider.power_off(worker.id)
    provider.power_off("i-0000000000000dead")
    provider.power_on(worker.id)
    with pytest.raises(errors.NotFound):
        provider.power_on("i-0000000000000dead")


def test_launching_what_is_there_is_done_and_the_rest_is_the_services_work(provide: Provide) -> None:
    provider = provide()
    worker = workers(provider)[0]
    launch = NodeLaunch("ml", worker.node, "worker", Role.WORKER)
    assert [instance.id for instance in provider.launch([launch])] == [worker.id]
    with pytest.raises(errors.InvalidState):
        provider.launch([NodeLaunch("ml", "ip-9-9-9-9", "worker", Role.WORKER)])


def test_a_birth_tells_script_and_log(provide: Provide, server: ContractServer) -> None:
    provider = provide()
    birth = provider.birth(workers(provider)[0].id)
    assert (birth.status, birth.script) == (BirthStatus.OK, "on_create.sh")
    assert birth.log_path.startswith("/aws/sagemaker/Clusters/ml/")
    assert provider.birth("i-0000000000000dead").status is BirthStatus.PENDING


def test_commands_run_through_session_manager(
    provide: Provide, processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "check_plugin", lambda: None)
    provider = provide()
    head = provider.observe("ml")[0]
    banner = "\r\nStarting session with SessionId: me-1\r\n"
    processes.on("aws", reply=f"{banner}PARTITION AVAIL\r\ndev up\r\n\r\nhyperpod-status:0\r\n\r\nExiting session\r\n")
    done = provider.connect(head.id).run(["sinfo", "-h"], timeout_s=10)
    assert done == Completed("PARTITION AVAIL\ndev up\n", "", 0)
    argv = processes.calls[-1]
    cluster = provider.api.describe("ml")
    assert argv[:5] == [
        "aws",
        "ssm",
        "start-session",
        "--target",
        f"sagemaker-cluster:{cluster.id}_controller-{head.id}",
    ]
    assert "sinfo -h 2>&1" in json.loads(argv[-1])["command"][0]
    processes.on("aws", reply="no such command\n\nhyperpod-status:127\n")
    with pytest.raises(errors.CommandError, match="no such command"):
        provider.connect(head.id).run(["x"], timeout_s=10)
    processes.on("aws", reply="Cannot perform start session: EOF\n")
    with pytest.raises(errors.CommandError, match="EOF"):
        provider.connect(head.id).run(["x"], timeout_s=10)


def test_a_missing_plugin_is_one_line() -> None:
    with pytest.raises(errors.UsageError, match="session-manager-plugin is not installed") as caught:
        session.check_plugin(lambda name: None if name == session.PLUGIN else name)
    assert caught.value.hint.startswith("https://docs.aws.amazon.com/")


def test_a_shell_of_another_user(aws: Aws) -> None:
    assert session.shell_argv("t", aws)[-2:] == ["--region", "us-west-2"]
    assert "su --login ubuntu" in session.shell_argv("t", aws, user="ubuntu")[-1]
    assert "runuser -u ubuntu -- id" in session.shell_argv("t", aws, ["id"], user="ubuntu")[-1]
