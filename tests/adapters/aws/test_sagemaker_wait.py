"""Waiting for HyperPod clusters: progress by instance, the script's last words, and no waiting for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.stub import Stubber

from hyperpod import errors
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.sagemaker import SageMaker
from hyperpod.adapters.aws.sagemaker_wait import Look, Outcome, Waiter
from tests.aws_server.server import ContractServer
from tests.aws_server.specs import request, spec_of
from tests.fakes.clock import FakeClock


@pytest.fixture
def looks() -> list[Look]:
    return []


@pytest.fixture
def wait(served: Aws, looks: list[Look], tmp_path: Path) -> Callable[..., Outcome]:
    """Create a cluster of three nodes and wait for it."""
    api, clock = SageMaker(served), FakeClock()

    def run(**more: object) -> Outcome:
        api.create(spec_of(tmp_path, request(**more)))  # type: ignore[arg-type]
        waiter = Waiter(api, looks.append, lambda s: (clock.advance(s), None)[1], clock.monotonic, timeout_s=600)
        return waiter.until_settled("ml")

    return run


def test_it_is_told_how_many_instances_are_there(wait: Callable[..., Outcome], looks: list[Look]) -> None:
    outcome = wait()
    assert outcome.is_ready
    assert [look.share for look in looks] == [0.0, 1.0]
    assert looks[0].line() == "Creating: controller 0 of 1, worker 0 of 2"
    assert {node.status for node in looks[0].nodes} == {"Pending"}


def test_in_service_with_too_few_instances_is_not_ready(
    wait: Callable[..., Outcome], server: ContractServer, looks: list[Look], served: Aws
) -> None:
    wait()
    server.state.looks_to_run = 3
    SageMaker(served).set_counts("ml", {"worker": 4})
    looks.clear()
    server.state.clusters["ml"].status = "InService"
    clock = FakeClock()
    waiter = Waiter(SageMaker(served), looks.append, lambda s: (clock.advance(s), None)[1], clock.monotonic)
    assert waiter.until_settled("ml").is_ready
    assert [look.cluster.status for look in looks] == ["InService"] * 3
    assert [look.share for look in looks] == [0.6, 0.6, 1.0]


def test_a_failed_script_ends_the_wait_with_the_end_of_its_log(
    wait: Callable[..., Outcome], server: ContractServer, served: Aws
) -> None:
    server.state.failing_groups = {"worker"}
    logs = Stubber(served.client("logs"))
    for number in range(2):
        logs.add_response(
            "get_log_events", {"events": [{"message": "apt-get update\n"}, {"message": f"E: no space {number}"}]}
        )
    logs.activate()
    outcome = wait()
    assert not outcome.is_ready
    assert outcome.cluster.status == "Failed"
    assert [failure.tail for failure in outcome.failures] == [
        ("apt-get update", "E: no space 0"), ("apt-get update", "E: no space 1"),
    ]  # fmt: skip
    text = "\n".join(outcome.failures[0].lines())
    assert "Lifecycle scripts did not run successfully" in text
    assert f"/aws/sagemaker/Clusters/ml/{outcome.cluster.id} LifecycleConfig/worker/i-" in text
    logs.assert_no_pending_responses()


def test_a_log_that_cannot_be_read_says_why(wait: Callable[..., Outcome], server: ContractServer, served: Aws) -> None:
    server.state.failing_groups = {"worker"}
    logs = Stubber(served.client("logs"))
    logs.add_client_error("get_log_events", "AccessDeniedException", "no")
    logs.add_client_error("get_log_events", "ResourceNotFoundException", "no stream")
    logs.activate()
    first, second = wait().failures
    assert "logs:GetLogEvents" in first.tail[0]
    assert "not started" in second.lines()[1]


def test_machines_that_never_come_end_the_wait_at_its_time(
    wait: Callable[..., Outcome], server: ContractServer, looks: list[Look]
) -> None:
    server.state.missing_groups = {"worker"}
    outcome = wait()
    assert (outcome.is_ready, outcome.has_timed_out) == (False, True)
    assert len(looks) == 41


def test_a_service_that_is_away_for_a_moment_does_not_end_the_wait(
    wait: Callable[..., Outcome], server: ContractServer
) -> None:
    server.plan("DescribeCluster", "ThrottlingException", "Rate exceeded", times=9)
    assert wait().is_ready


def test_a_deleted_cluster_is_waited_for(wait: Callable[..., Outcome], served: Aws, looks: list[Look]) -> None:
    wait()
    api, clock = SageMaker(served), FakeClock()
    api.delete("ml")
    Waiter(api, looks.append, lambda s: (clock.advance(s), None)[1], clock.monotonic).until_gone("ml")
    assert api.find("ml") is None


def test_a_cluster_that_does_not_go_is_told(wait: Callable[..., Outcome], served: Aws, server: ContractServer) -> None:
    wait()
    clock = FakeClock()
    waiter = Waiter(SageMaker(served), sleep=lambda s: (clock.advance(s), None)[1], monotonic=clock.monotonic)
    with pytest.raises(errors.ProviderUnavailable, match="still being deleted"):
        waiter.until_gone("ml")
