"""The same calls on servers that are not ours: moto in this process, and over HTTP by AWS_ENDPOINT_URL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from hyperpod import errors
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.sagemaker import SageMaker
from hyperpod.adapters.aws.sagemaker_wait import Waiter
from tests.aws_server.server import ContractServer
from tests.aws_server.specs import request, spec_of, write_spec

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["moto", "contract"])
def account(request: pytest.FixtureRequest, server: ContractServer) -> Iterator[Aws]:
    """The same calls on both; where ours differs from moto, ours is wrong."""
    if request.param == "contract":
        server.state.looks_to_run = 1
        yield Aws(region="us-west-2", session=server.session(), sleep=lambda _: None)
        return
    with mock_aws():
        yield Aws(region="us-west-2", sleep=lambda _: None)


def test_a_cluster_lives_on_every_server(account: Aws, tmp_path: Path) -> None:
    api = SageMaker(account)
    assert api.clusters() == []
    api.create(spec_of(tmp_path, request(workers=90)))
    with pytest.raises(errors.AlreadyExists):
        api.create(spec_of(tmp_path, request()))
    cluster = api.describe("ml")
    assert (cluster.status, [(g.name, g.current) for g in cluster.groups]) == (
        "InService", [("controller", 1), ("worker", 90)],
    )  # fmt: skip
    nodes = api.nodes("ml")
    assert (len(nodes), {node.status for node in nodes}) == (91, {"Running"})
    assert {node.group for node in nodes} == {"controller", "worker"}
    assert [c.name for c in api.clusters()] == ["ml"]
    assert api.delete("ml")
    Waiter(api, sleep=lambda _: None).until_gone("ml")
    assert api.find("ml") is None
    assert not api.delete("ml")


def test_a_cluster_lives_on_a_server_named_by_the_environment(
    server: ContractServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.state.looks_to_run = 1
    with server.serve() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        aws = Aws(region="us-west-2")
        api = SageMaker(aws)
        api.create(spec_of(tmp_path, request()))
        assert api.describe("ml").is_settled
        with pytest.raises(errors.NotFound):
            api.describe("nowhere")
        assert aws.account() == "123456789012"
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="sagemaker-x")
        assert list(aws.pages("s3", "ListObjectsV2", "Contents", Bucket="sagemaker-x")) == []


def test_the_contract_server_refuses_what_the_model_refuses(served: Aws) -> None:
    for bad in ({"ClusterName": "under_score"}, {"ClusterName": "x", "NodeRecovery": "Sometimes"}):
        with pytest.raises(errors.ConfigError, match="validation error"):
            served.call("sagemaker", "UpdateCluster", **bad)


def test_the_library_is_loaded_only_for_a_call() -> None:
    program = "import sys; from hyperpod.adapters.aws.client import Aws; Aws(); print('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, timeout=30)
    assert done.stdout == "False\n"


def test_the_program_itself_works_over_http(
    server: ContractServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.state.looks_to_run = 1
    path = write_spec(tmp_path, request())
    with server.serve() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("HYPERPOD_PROVIDER", "sagemaker")

        def run(*argv: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "hyperpod.cli.app", *argv],
                capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=False,
            )  # fmt: skip

        made = run("create-cluster", "--cli-input-json", f"file://{path}")
        assert made.returncode == 0, made.stderr
        shown = run("describe-cluster", "ml", "--debug")
        assert "InService" in shown.stdout
        assert "operation=DescribeCluster" in shown.stderr
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in shown.stderr
        assert os.environ["AWS_SESSION_TOKEN"] not in shown.stderr
        missing = run("describe-cluster", "other")
        assert (missing.returncode, missing.stdout) == (3, "")
