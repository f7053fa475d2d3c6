"""HyperPod's machines as its own head node sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperpod import errors
from hyperpod.adapters.aws.node_setup import main, state_save_location
from hyperpod.adapters.aws.on_node import OnNodeMachines
from hyperpod.adapters.aws.resource_config import read_membership
from hyperpod.core.node import Role, parse_admin_action
from tests.fakes.process import FakeProcesses

DATA: dict[str, Any] = {
    "ClusterConfig": {"ClusterName": "ml", "ClusterArn": "arn:aws:sagemaker:us-west-2:1:cluster/abcdefghijkl"},
    "InstanceGroups": [
        {"Name": "a", "InstanceType": "ml.m5.xlarge",
         "Instances": [{"CustomerIpAddress": "10.1.0.4", "InstanceId": "i-00000000000000001"}]},
        {"Name": "b", "InstanceType": "ml.g5.8xlarge",
         "Instances": [{"CustomerIpAddress": "10.1.0.5", "InstanceId": "i-00000000000000002"},
                       {"CustomerIpAddress": "10.1.0.6", "InstanceId": "i-00000000000000003"}]},
    ],
    "SlurmConfig": {"PrimaryControllerIp": "10.1.0.4"},
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "resource_config.json"
    made.write_text(json.dumps(DATA))
    return made


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def machines(path: Path, processes: FakeProcesses) -> OnNodeMachines:
    return OnNodeMachines(processes, path)


def test_machines_are_those_of_the_services_file(machines: OnNodeMachines) -> None:
    head, *workers = machines.observe("ml")
    assert (head.node, head.role, head.id) == ("ip-10-1-0-4", Role.HEAD, "i-00000000000000001")
    assert [(w.role, w.group, w.address) for w in workers] == [
        (Role.WORKER, "b", "10.1.0.5"), (Role.WORKER, "b", "10.1.0.6"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"InstanceGroups": 3}'])
def test_a_file_that_cannot_be_read_is_no_empty_cluster(machines: OnNodeMachines, path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(errors.ProviderUnavailable):
        machines.observe("ml")
    path.unlink()
    with pytest.raises(errors.ProviderUnavailable):
        machines.observe("ml")


def test_a_replacement_is_asked_for_to_the_letter_and_once(machines: OnNodeMachines, processes: FakeProcesses) -> None:
    for _ in range(3):
        with pytest.raises(errors.ProviderUnavailable, match="still there"):
            machines.replace("ip-10-1-0-5", "i-00000000000000002", "key")
    assert processes.calls == [["scontrol", "update", "nodename=ip-10-1-0-5", "state=fail", "reason=Action:Replace"]]
    assert parse_admin_action(processes.calls[0][-1].partition("=")[2]) is not None


def test_a_machine_that_has_left_its_slot_is_not_replaced_again(
    machines: OnNodeMachines, processes: FakeProcesses
) -> None:
    assert machines.replace("ip-10-1-0-5", "i-0000000000000dead", "key").id == "i-00000000000000002"
    assert processes.calls == []
    with pytest.raises(errors.NotFound):
        machines.replace("ip-10-9-9-9", "i-0000000000000dead", "key")


def test_a_slurm_that_is_away_is_asked_again(machines: OnNodeMachines, processes: FakeProcesses) -> None:
    processes.on("scontrol", reply=[errors.CommandError(["scontrol"], 1, "Unable to contact slurm controller")])
    with pytest.raises(errors.ProviderUnavailable):
        machines.reboot("i-00000000000000002")
    processes.on("scontrol", reply="")
    machines.reboot("i-00000000000000002")
    assert processes.calls[-1][-1] == "reason=Action:Reboot"
    with pytest.raises(errors.NotFound):
        machines.reboot("i-0000000000000dead")


@pytest.mark.parametrize(
    "refusal",
    [
        errors.AccessDenied("no right to do sagemaker:BatchReplaceClusterNodes"),
        errors.ConfigError("this boto3 does not know sagemaker BatchReplaceClusterNodes"),
    ],
)
def test_the_api_is_asked_first_and_left_alone_when_it_cannot_be_used(
    path: Path, processes: FakeProcesses, refusal: errors.HyperpodError
) -> None:
    asked: list[tuple[str, str]] = []
    denied = [False]

    def ask(verb: str, instance_id: str) -> None:
        asked.append((verb, instance_id))
        if denied[0]:
            raise refusal

    machines = OnNodeMachines(processes, path, ask_api=ask)
    with pytest.raises(errors.ProviderUnavailable):
        machines.replace("ip-10-1-0-5", "i-00000000000000002", "k1")
    assert (asked, processes.calls) == ([("replace", "i-00000000000000002")], [])
    denied[0] = True
    with pytest.raises(errors.ProviderUnavailable):
        machines.replace("ip-10-1-0-6", "i-00000000000000003", "k2")
    assert processes.calls[-1][2] == "nodename=ip-10-1-0-6"
    machines.reboot("i-00000000000000002")
    assert len(asked) == 2  # refused once, not asked again


def test_a_fence_holds_only_when_the_machine_has_left_the_cluster(
    machines: OnNodeMachines, processes: FakeProcesses, path: Path
) -> None:
    for _ in range(3):
        with pytest.raises(errors.ProviderUnavailable, match="still in the cluster"):
            machines.power_off("i-00000000000000002")
    assert [call[-1] for call in processes.calls] == ["reason=Action:Replace"]
    path.write_text(path.read_text().replace("i-00000000000000002", "i-00000000000000009"))
    machines.power_off("i-00000000000000002")


def test_the_api_is_never_waited_for_by_a_fence(path: Path, processes: FakeProcesses) -> None:
    def ask(verb: str, instance_id: str) -> None:
        raise AssertionError("the tick would wait")

    with pytest.raises(errors.ProviderUnavailable):
        OnNodeMachines(processes, path, ask_api=ask).power_off("i-00000000000000002")


def test_roles_may_come_from_the_parameters_file(path: Path, tmp_path: Path) -> None:
    path.write_text(json.dumps({key: value for key, value in DATA.items() if key != "SlurmConfig"}))
    parameters = tmp_path / "provisioning_parameters.json"
    parameters.write_text(json.dumps({"controller_group": "b", "login_group": "a"}))
    assert {m.group: m.role for m in read_membership(path, parameters).members} == {"a": Role.LOGIN, "b": Role.HEAD}
    with pytest.raises(errors.ConfigError, match="head node"):
        _ = read_membership(path).head


def test_the_state_folder_is_read_from_slurm_conf() -> None:
    assert state_save_location("#StateSaveLocation=/x\nstatesavelocation = /y # z\n") == "/y"
    assert state_save_location("") == "/var/spool/slurmctld"


def test_a_machine_of_another_cluster_is_told(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--resource-config", str(path), "--out", str(tmp_path / "etc")]
    assert main([*argv, "--address", "10.9.9.9"]) == 3
    assert "error: none of this machine's addresses" in capsys.readouterr().err
    assert main([*argv, "--address", "10.1.0.5"]) == 0
    assert "HP_ROLE=worker" in capsys.readouterr().out
    path.write_text("{")
    assert main([*argv, "--address", "10.1.0.5"]) == 2
