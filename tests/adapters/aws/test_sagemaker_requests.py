"""Updates of HyperPod clusters: what differs, what cannot be changed, and what the request holds."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.sagemaker import SageMaker
from hyperpod.adapters.aws.sagemaker_requests import batches, group_request, list_limit, update_request
from hyperpod.errors import InvalidState
from tests.aws_server.server import ContractServer
from tests.aws_server.shapes import complaints, operation
from tests.aws_server.specs import request, spec_of


@pytest.fixture
def there(served: Aws, tmp_path: Path, server: ContractServer) -> dict[str, Any]:
    """How the service describes a cluster made from ``request()``."""
    api = SageMaker(served)
    api.create(spec_of(tmp_path, request()))
    return dict(api.describe("ml").details)


def change(there: dict[str, Any], folder: Path, data: dict[str, Any]) -> Any:
    update = update_request(spec_of(folder, data), there)
    model = operation("UpdateCluster")
    if update.request:
        assert model is not None
        assert complaints(update.request, model.input_shape) == []
    return update


def test_the_same_file_changes_nothing(there: dict[str, Any], tmp_path: Path) -> None:
    assert change(there, tmp_path, request()).request == {}


def test_counts_scripts_and_recovery_are_changed(there: dict[str, Any], tmp_path: Path) -> None:
    data = request(workers=7, NodeRecovery="None")
    data["InstanceGroups"][1]["LifeCycleConfig"] = {"SourceS3Uri": "s3://sagemaker-x/y", "OnCreate": "on_create.sh"}
    update = change(there, tmp_path, data)
    assert update.changes == (
        "~ worker.InstanceCount: 2 -> 7",
        "~ worker.LifeCycleConfig.SourceS3Uri: s3://sagemaker-scripts/lifecycle -> s3://sagemaker-x/y",
        "~ NodeRecovery: Automatic -> None",
    )
    assert [group["InstanceGroupName"] for group in update.request["InstanceGroups"]] == ["worker"]


def test_groups_come_and_go(there: dict[str, Any], tmp_path: Path) -> None:
    data = request()
    data["InstanceGroups"][1]["InstanceGroupName"] = "gpu"
    update = change(there, tmp_path, data)
    assert update.gone == ("worker",)
    assert update.request["InstanceGroupsToDelete"] == ["worker"]
    assert update.changes == ("+ gpu: 2 x ml.g5.8xlarge", "- worker: 0 instances")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"InstanceType": "ml.g5.xlarge"}, "InstanceType of group worker"),
    ],
)
def test_what_is_fixed_is_refused_with_the_way_out(
    there: dict[str, Any], tmp_path: Path, what: dict[str, Any], words: str
) -> None:
    data = request()
    data["InstanceGroups"][1] |= what
    with pytest.raises(InvalidState, match=words) as caught:
        change(there, tmp_path, data)
    assert "another name" in caught.value.hint


def test_another_network_is_refused(there: dict[str, Any], tmp_path: Path) -> None:
    data = request()
    data["VpcConfig"]["Subnets"] = ["subnet-0123456789abcdef1"]
    with pytest.raises(InvalidState, match="VpcConfig"):
        change(there, tmp_path, data)


def test_what_the_service_has_filled_in_is_no_difference(there: dict[str, Any], tmp_path: Path) -> None:
    described = copy.deepcopy(there)
    described["InstanceGroups"][1] |= {"ThreadsPerCore": 2, "InstanceStorageConfigs": []}
    data = request()
    del data["InstanceGroups"][1]["ThreadsPerCore"]
    assert change(described, tmp_path, data).request == {}


def test_a_described_group_becomes_a_request_that_the_model_takes() -> None:
    details = {
        "InstanceGroupName": "worker", "CurrentCount": 2, "TargetCount": 3, "MinCount": 3,
        "InstanceRequirements": {"CurrentInstanceTypes": ["ml.g5.xlarge"], "DesiredInstanceTypes": ["ml.g6.xlarge"]},
        "ExecutionRole": "arn:aws:iam::111122223333:role/Worker", "Status": "InService",
        "AutoPatchConfig": {"PatchingStrategy": "WhenIdle", "DesiredPatchSchedule": {}},
        "KubernetesConfig": {"CurrentLabels": {}}, "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["dev"]},
    }  # fmt: skip
    group = group_request(details, 1)
    model = operation("UpdateCluster")
    assert model is not None
    assert complaints({"ClusterName": "x", "InstanceGroups": [group]}, model.input_shape) == []
    assert (group["InstanceCount"], group["MinInstanceCount"]) == (1, 1)
    assert group["InstanceRequirements"] == {"InstanceTypes": ["ml.g6.xlarge"]}


def test_batches_keep_order_and_drop_repetitions() -> None:
    assert list(batches(["a", "b", "a", "c"], 2)) == [["a", "b"], ["c"]]
    assert (list_limit("BatchReplaceClusterNodes", "NodeIds"), list_limit("BatchDeleteClusterNodes", "NodeIds")) == (
        25, 99,
    )  # fmt: skip
