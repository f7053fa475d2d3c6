"""The way to AWS: when a call is made again, what is logged, and whose errors come out."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from hyperpod import errors
from hyperpod.adapters.aws.client import MAX_TRIES, Aws, redact

Stubbed = Callable[[str], Any]
ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl"


def test_throttling_passes_and_the_answer_comes(aws: Aws, stubbed: Stubbed, waits: list[float]) -> None:
    sagemaker = stubbed("sagemaker")
    for _ in range(3):
        sagemaker.add_client_error("delete_cluster", "ThrottlingException", "Rate exceeded")
    sagemaker.add_response("delete_cluster", {"ClusterArn": ARN}, {"ClusterName": "x"})
    assert aws.call("sagemaker", "DeleteCluster", ClusterName="x")["ClusterArn"] == ARN
    assert len(waits) == 3
    assert all(0 <= wait <= 20 for wait in waits)


def test_waits_are_jittered(stubbed: Stubbed, aws: Aws, waits: list[float]) -> None:
    sagemaker = stubbed("sagemaker")
    for _ in range(MAX_TRIES):
        sagemaker.add_client_error("delete_cluster", "ThrottlingException", "Rate exceeded")
    with pytest.raises(errors.Throttled, match="slow down"):
        aws.call("sagemaker", "DeleteCluster", ClusterName="x")
    assert len(set(waits)) == MAX_TRIES - 1


def test_a_change_is_not_repeated_when_nobody_knows_whether_it_was_made(stubbed: Stubbed, aws: Aws) -> None:
    sagemaker = stubbed("sagemaker")
    sagemaker.add_client_error("delete_cluster", "InternalFailure", http_status_code=500)
    with pytest.raises(errors.ProviderUnavailable):
        aws.call("sagemaker", "DeleteCluster", ClusterName="x")
    sagemaker.add_client_error("delete_cluster", "InternalFailure", http_status_code=500)
    sagemaker.add_response("delete_cluster", {"ClusterArn": ARN})
    assert aws.call("sagemaker", "DeleteCluster", ClusterName="x", repeat=True)


def test_a_read_is_repeated(stubbed: Stubbed, aws: Aws) -> None:
    sagemaker = stubbed("sagemaker")
    sagemaker.add_client_error("list_clusters", "ServiceUnavailable", http_status_code=503)
    sagemaker.add_response("list_clusters", {"ClusterSummaries": []})
    assert list(aws.pages("sagemaker", "ListClusters", "ClusterSummaries")) == []


def test_a_broken_connection_is_ours_with_its_cause(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    client = aws.client("sagemaker")

    def broken(**_: Any) -> None:
        raise ReadTimeoutError(endpoint_url="https://x")

    monkeypatch.setattr(client, "create_cluster", broken, raising=False)
    with pytest.raises(errors.ProviderUnavailable) as caught:
        aws.call("sagemaker", "CreateCluster", what="cluster x", ClusterName="x")
    assert isinstance(caught.value.__cause__, ReadTimeoutError)
    assert caught.value.exit_code == 75


def test_a_list_that_repeats_itself_is_an_error_and_not_a_short_list(stubbed: Stubbed, aws: Aws) -> None:
    sagemaker = stubbed("sagemaker")
    sagemaker.add_response("list_clusters", {"ClusterSummaries": [], "NextToken": "a"}, {})
    sagemaker.add_response("list_clusters", {"ClusterSummaries": [], "NextToken": "a"}, {"NextToken": "a"})
    with pytest.raises(errors.UnexpectedOutput, match="same page"):
        list(aws.pages("sagemaker", "ListClusters", "ClusterSummaries"))


def test_no_region_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(errors.ConfigError, match="no AWS region"):
        Aws().call("sagemaker", "ListClusters")


def test_a_profile_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(errors.ConfigError, match="nowhere"):
        Aws(profile="nowhere").client("sts")


def test_region_and_endpoint_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    made = Aws()
    assert made.region_name == "eu-central-1"
    assert made.client("sagemaker").meta.endpoint_url == "http://127.0.0.1:9"


def test_an_endpoint_that_does_not_answer_is_tried_again_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(errors.ProviderUnavailable, match="cannot be reached"):
        Aws(sleep=waits.append, max_tries=3).call("sts", "GetCallerIdentity")
    assert len(waits) == 2


def test_the_log_of_requests_has_no_credentials(
    aws: Aws, stubbed: Stubbed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    # Libraries that other tests load switch off all loggers that were there before them.
    monkeypatch.setattr(logging.getLogger("hyperpod.adapters.aws.client"), "disabled", False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(errors.ProviderUnavailable):
        Aws(sleep=lambda _: None, max_tries=1).call("sagemaker", "ListClusters", NameContains="abc")
    assert "ListClusters" in caplog.text
    assert "abc" in caplog.text
    for secret in ("AKIAEXAMPLE", "example-secret", "example-session-token"):
        assert secret not in caplog.text


def test_secrets_in_requests_are_not_shown() -> None:
    request = {
        "UserData": "x", "Password": "x", "Tags": [{"Key": "a", "SecretValue": "x"}], "NextToken": "n",
        "Orchestrator": {"SecretArn": "arn"}, "Text": "y" * 300,
    }  # fmt: skip
    shown = redact(request)
    assert shown["UserData"] == shown["Password"] == shown["Tags"][0]["SecretValue"] == "***"
    assert shown["NextToken"] == "n"
    assert shown["Orchestrator"] == {"SecretArn": "arn"}
    assert len(shown["Text"]) < 210


def test_help_does_not_load_the_library() -> None:
    program = (
        "import sys\nfrom hyperpod.cli.app import main\n"
        "code = main(['--help'])\nsys.exit(code or bool({'boto3', 'botocore'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
