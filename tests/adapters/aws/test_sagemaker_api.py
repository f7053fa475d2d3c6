"""HyperPod's API against the contract server: requests that its model accepts, answers read, faults told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hyperpod import errors
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.sagemaker import SageMaker, pick_node, session_target
from hyperpod.core.node import InstanceStatus, Role
from tests.aws_server.server import ContractServer
from tests.aws_server.specs import request, spec_of


@pytest.fixture
def api(served: Aws) -> SageMaker:
    return SageMaker(served)


@pytest.fixture
def running(api: SageMaker, server: ContractServer, tmp_path: Path) -> SageMaker:
    """A cluster ``ml`` with its nodes running."""
    server.state.looks_to_run = 1
    api.create(spec_of(tmp_path, request(workers=3)))
    api.describe("ml")
    server.calls.clear()
    return api


def test_a_cluster_is_made_from_the_files_own_request(api: SageMaker, server: ContractServer, tmp_path: Path) -> None:
    data = request() | {"Hyperpod": {"Provider": "sagemaker"}}
    arn = api.create(spec_of(tmp_path, data))
    asked = server.made("CreateCluster")[0]
    assert "Hyperpod" not in asked
    assert asked["InstanceGroups"] == data["InstanceGroups"]
    assert {"Key": "team", "Value": "speech"} in asked["Tags"]
    assert {"Key": "hyperpod:cluster", "Value": "ml"} in asked["Tags"]
    assert api.describe("ml").arn == arn
    assert api.describe("ml").id == arn.rpartition("/")[2]


def test_a_name_that_is_taken_is_told(running: SageMaker, tmp_path: Path) -> None:
    with pytest.raises(errors.AlreadyExists, match="a cluster ml exists already"):
        running.create(spec_of(tmp_path, request()))


def test_an_answer_that_is_lost_does_not_make_a_second_cluster(
    api: SageMaker, server: ContractServer, tmp_path: Path
) -> None:
    server.cut.add("CreateCluster")
    arn = api.create(spec_of(tmp_path, request()))
    assert arn == server.state.clusters["ml"].arn
    assert len(server.made("CreateCluster")) == 1


def test_a_create_that_never_arrived_is_made_again(
    api: SageMaker, server: ContractServer, tmp_path: Path, waits: list[float]
) -> None:
    server.plan("CreateCluster", "InternalFailure", status=500)
    assert api.create(spec_of(tmp_path, request()))
    assert len(server.made("CreateCluster")) == 2
    assert waits


def test_a_service_that_stays_away_ends_in_an_error_to_try_again(
    api: SageMaker, server: ContractServer, tmp_path: Path
) -> None:
    server.plan("CreateCluster", "InternalFailure", status=500, times=9)
    with pytest.raises(errors.ProviderUnavailable):
        api.create(spec_of(tmp_path, request()))
    assert server.state.clusters == {}


def test_a_quota_is_told_as_one(api: SageMaker, server: ContractServer, tmp_path: Path) -> None:
    server.plan("CreateCluster", "ResourceLimitExceeded", "limit 'ml.g5.8xlarge for cluster usage' is 0 Instances")
    with pytest.raises(errors.QuotaExceeded, match="for cluster usage") as caught:
        api.create(spec_of(tmp_path, request()))
    assert "Service Quotas" in caught.value.hint


def test_a_missing_right_is_named(api: SageMaker, server: ContractServer, tmp_path: Path) -> None:
    text = "User: x is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/Worker"
    server.plan("CreateCluster", "AccessDeniedException", text)
    with pytest.raises(errors.AccessDenied, match="iam:PassRole"):
        api.create(spec_of(tmp_path, request()))


def test_a_cluster_that_is_not_there_is_not_found(api: SageMaker) -> None:
    with pytest.raises(errors.NotFound, match="cluster nowhere"):
        api.describe("nowhere")
    assert api.find("nowhere") is None


def test_clusters_are_listed_over_pages(api: SageMaker, tmp_path: Path) -> None:
    for number in range(105):
        api.create(spec_of(tmp_path, request(f"ml-{number}")))
    assert len(api.clusters()) == 105


def test_nodes_have_slurms_names_and_addresses(running: SageMaker) -> None:
    nodes = running.nodes("ml")
    assert [node.group for node in nodes] == ["controller", "worker", "worker", "worker"]
    head = nodes[0]
    assert head.name.startswith("ip-10-1-0-")
    assert head.address == head.name.removeprefix("ip-").replace("-", ".")
    assert head.state is InstanceStatus.RUNNING
    cluster = running.describe("ml")
    assert [group.role for group in cluster.groups] == [Role.HEAD, Role.WORKER]
    assert session_target(cluster, head) == f"sagemaker-cluster:{cluster.id}_controller-{head.instance_id}"


def test_a_node_is_found_by_every_name_it_has(running: SageMaker) -> None:
    nodes = running.nodes("ml")
    node = nodes[2]
    for name in (node.name, node.instance_id, node.address, f"worker-{node.instance_id}", "worker-2"):
        assert pick_node(nodes, "ml", name) == node
    with pytest.raises(errors.NotFound) as caught:
        pick_node(nodes, "ml", "worker-4")
    assert nodes[0].name in caught.value.hint


def test_all_nodes_of_the_largest_group_are_listed_in_time(
    api: SageMaker, server: ContractServer, tmp_path: Path
) -> None:
    api.create(spec_of(tmp_path, request(workers=6757)))
    began = time.process_time()
    nodes = api.nodes("ml")
    spent = time.process_time() - began
    assert len(nodes) == 6758
    assert len({node.instance_id for node in nodes}) == 6758
    assert len(server.made("ListClusterNodes")) == 68
    # The server's own share is in it, too.
    assert spent < 5.0


# --- update


def test_a_group_is_resized_and_the_others_are_not_mentioned(running: SageMaker, server: ContractServer) -> None:
    assert running.set_counts("ml", {"worker": 5}) == ("~ worker.InstanceCount: 3 -> 5",)
    (asked,) = server.made("UpdateCluster")
    (group,) = asked["InstanceGroups"]
    assert (group["InstanceGroupName"], group["InstanceCount"]) == ("worker", 5)
    assert group["LifeCycleConfig"]["OnCreate"] == "on_create.sh"
    assert group["ExecutionRole"].endswith("role/Worker")
    cluster = running.describe("ml")
    assert (cluster.group("worker") or cluster.groups[0]).target == 5


def test_a_size_that_is_so_already_asks_for_nothing(running: SageMaker, server: ContractServer) -> None:
    assert running.set_counts("ml", {"worker": 3}) == ()
    assert server.made("UpdateCluster") == []


def test_an_unknown_group_names_those_there_are(running: SageMaker) -> None:
    with pytest.raises(errors.NotFound) as caught:
        running.set_counts("ml", {"wroker": 3})
    assert "controller, worker" in caught.value.hint


def test_a_change_in_mid_change_is_refused_by_its_state(running: SageMaker, server: ContractServer) -> None:
    server.state.clusters["ml"].status = "Updating"
    server.state.missing_groups = {"worker"}
    server.plan("UpdateCluster", "ConflictException", "Cluster ml is in Updating status")
    with pytest.raises(errors.InvalidState, match="Updating") as caught:
        running.set_counts("ml", {"worker": 9})
    assert caught.value.exit_code == 4


def test_groups_are_deleted(running: SageMaker) -> None:
    running.delete_groups("ml", ["worker"])
    assert [group.name for group in running.describe("ml").groups] == ["controller"]


# --- nodes


def test_nodes_are_replaced_and_a_repetition_is_as_good(running: SageMaker) -> None:
    old = [node.instance_id for node in running.nodes("ml") if node.group == "worker"]
    assert [result.is_done for result in running.replace_nodes("ml", old[:2])] == [True, True]
    again = running.replace_nodes("ml", old[:2])
    assert [(result.is_done, result.code) for result in again] == [(True, "InstanceIdInUse")] * 2
    running.describe("ml")
    fresh = [node.instance_id for node in running.nodes("ml") if node.group == "worker"]
    assert len(set(fresh) & set(old)) == 1


def test_each_node_of_a_batch_has_its_own_result(running: SageMaker) -> None:
    nodes = running.nodes("ml")
    head, worker = nodes[0].instance_id, nodes[1].instance_id
    gone = "i-0000000000000dead"
    results = running.replace_nodes("ml", [worker, head, gone])
    assert [(r.node, r.is_done, r.code) for r in results] == [
        (worker, True, ""), (head, False, "InvalidInstanceStatus"), (gone, False, "InstanceIdNotFound"),
    ]  # fmt: skip


def test_many_nodes_are_sent_in_batches_of_what_the_model_allows(
    api: SageMaker, server: ContractServer, tmp_path: Path
) -> None:
    server.state.looks_to_run = 1
    api.create(spec_of(tmp_path, request(workers=260)))
    api.describe("ml")
    ids = [node.instance_id for node in api.nodes("ml") if node.group == "worker"]
    assert all(result.is_done for result in api.reboot_nodes("ml", ids))
    assert [len(asked["NodeIds"]) for asked in server.made("BatchRebootClusterNodes")] == [25] * 10 + [10]
    assert all(result.is_done for result in api.delete_nodes("ml", ids))
    assert [len(asked["NodeIds"]) for asked in server.made("BatchDeleteClusterNodes")] == [99, 99, 62]


def test_deleting_a_node_that_is_gone_is_done(running: SageMaker) -> None:
    (result,) = running.delete_nodes("ml", ["i-0000000000000dead"])
    assert result.is_done


def test_software_is_updated_and_checks_are_started(running: SageMaker, server: ContractServer) -> None:
    running.start_health_check("ml", {"worker": ()}, ["InstanceStress"])
    assert server.state.health_checks[0]["DeepHealthCheckConfigurations"][0]["InstanceGroupName"] == "worker"
    running.update_software("ml", ["worker"])
    assert {node.status for node in running.nodes("ml") if node.group == "worker"} == {"SystemUpdating"}


def test_events_exist_only_for_continuous_clusters(running: SageMaker, server: ContractServer) -> None:
    with pytest.raises(errors.InvalidState) as caught:
        running.events("ml")
    assert "Continuous" in caught.value.hint


def test_events_come_oldest_first(api: SageMaker, server: ContractServer, tmp_path: Path) -> None:
    data = request() | {"NodeProvisioningMode": "Continuous"}
    arn = api.create(spec_of(tmp_path, data))
    for number in range(3):
        server.state.events.append(
            {
                "EventId": f"{number:08d}-0000-0000-0000-000000000000", "ClusterArn": arn, "ClusterName": "ml",
                "ResourceType": "Instance", "EventTime": f"2026-01-0{number + 1}T00:00:00Z",
                "Description": f"event {number}", "EventLevel": "Info",
            }
        )  # fmt: skip
    assert [event.text for event in api.events("ml", limit=2)] == ["event 1", "event 2"]


def test_deleting_is_done_when_there_is_nothing(running: SageMaker) -> None:
    assert running.delete("ml")
    assert running.describe("ml").status == "Deleting"
    assert running.find("ml") is None
    assert not running.delete("ml")
