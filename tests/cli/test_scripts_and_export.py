"""Commands that send scripts and write files of other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from surroundings import Fakes

from hyperpod.adapters.aws import preflight
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.preflight import Result, Verdict
from tests.aws_server.guard import forbid_the_network
from tests.aws_server.specs import request, write_spec

TARGET = "s3://sagemaker-scripts/base"


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch, fakes: Fakes) -> None:
    forbid_the_network(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "example")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fakes.place.make_aws = lambda region, profile: Aws(region or "us-east-1", profile, sleep=lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "scripts"
    made.mkdir()
    (made / "on_create.sh").write_bytes(b"#!/bin/bash\r\necho\r\n")
    return made


@mock_aws
def test_scripts_are_refused_mended_sent_and_fetched(fakes: Fakes, folder: Path, tmp_path: Path) -> None:
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="sagemaker-scripts")
    refused = fakes.run("scripts", "sync", str(folder), TARGET)
    assert refused.code == 2
    assert "Windows line ends" in refused.err
    assert "hint: --fix mends" in refused.err
    result = fakes.run("scripts", "sync", str(folder), TARGET, "--fix")
    assert (result.code, result.out) == (0, "")
    assert "sent on_create.sh" in result.err
    assert f"{TARGET}/: 1 sent, 0 equal already" in result.err
    again = fakes.run("scripts", "sync", str(folder), TARGET, "--fix", "-o", "json").json
    assert (again["changed"], again["equal"]) == ([], ["on_create.sh"])
    back = tmp_path / "back"
    assert fakes.run("scripts", "pull", str(back), TARGET).code == 0
    assert (back / "on_create.sh").read_bytes() == b"#!/bin/bash\necho\n"
    shown = fakes.run("scripts", "sync", str(back), "s3://sagemaker-scripts/new", "--dry-run")
    assert shown.out == "~ on_create.sh\n"


@mock_aws
def test_a_bucket_that_is_not_there_ends_with_3(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    result = fakes.run("scripts", "sync", str(tmp_path), "s3://no-such-bucket/x")
    assert result.code == 3


def test_a_file_is_no_folder(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    assert fakes.run("scripts", "pull", str(tmp_path / "a.txt"), TARGET).code == 2
    assert fakes.run("scripts", "sync", str(tmp_path / "a.txt"), TARGET).code == 2


def test_a_specification_is_written_for_the_aws_cli(fakes: Fakes, tmp_path: Path) -> None:
    path = write_spec(tmp_path, request() | {"Hyperpod": {"Spares": {"worker": 1}}})
    result = fakes.run("export", str(path))
    assert result.code == 0
    assert json.loads(result.out) == request()
    assert "aws sagemaker create-cluster --cli-input-json" in result.err
    for form, words in (("cloudformation", "AWS::SageMaker::Cluster"), ("terraform", "awscc_sagemaker_cluster")):
        assert words in fakes.run("export", str(path), "--format", form).out
    assert fakes.run("export", str(path), "--format", "terraform", "-o", "json").json["format"] == "terraform"


def test_the_last_line_and_the_status_of_a_look_come_from_all_checks(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_one(p: object) -> Iterator[Result]:
        yield Result("one", Verdict.PASS, "good")

    def check_two(p: object) -> Iterator[Result]:
        yield Result("two", verdict[0], "bad", "mend it")

    verdict = [Verdict.FAIL]
    monkeypatch.setattr(preflight, "CHECKS", (check_one, check_two))
    path = str(write_spec(tmp_path, request()))
    result = fakes.run("validate", path, "--online")
    assert result.code == 1
    assert result.out.splitlines()[-3:] == [
        "fail     two: bad", "         fix: mend it", "not ready: 1 passed, 1 failed, 0 not known",
    ]  # fmt: skip
    verdict[0] = Verdict.UNKNOWN
    assert fakes.run("validate", path, "--online").out.splitlines()[-1] == "not ready: 1 passed, 0 failed, 1 not known"
    assert fakes.run("validate", path, "--online", "-o", "json").code == 1
    verdict[0] = Verdict.PASS
    result = fakes.run("validate", path, "--online")
    assert (result.code, result.out.splitlines()[-1]) == (0, "ready: 2 passed, 0 failed, 0 not known")


def test_a_look_into_an_account_is_not_about_this_machine(fakes: Fakes, spec: Path) -> None:
    assert fakes.run("validate", str(spec), "--online").code == 2


@mock_aws
def test_what_makes_a_hyperpod_cluster_ours_is_sent_along(fakes: Fakes, tmp_path: Path) -> None:
    s3 = boto3.client("s3", region_name="us-east-1")
    s3.create_bucket(Bucket="sagemaker-scripts")
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "provisioning_parameters.json").write_text("{}")
    spec = write_spec(tmp_path, request() | {"Hyperpod": {"Resume": {"MaxAttempts": 4}}})
    result = fakes.run("scripts", "sync", str(folder), TARGET, "--with-hyperpod", "--spec", str(spec))
    assert result.code == 0, result.err
    keys = {e["Key"].removeprefix("base/") for e in s3.list_objects_v2(Bucket="sagemaker-scripts")["Contents"]}
    assert keys >= {
        "on_init_complete.sh", "provisioning_parameters.json", "hyperpod-node/lib/hyperpod/agent/__main__.py",
        "hyperpod-node/lib/ClusterShell/NodeSet.py", "hyperpod-node/lib/prometheus_client/__init__.py",
        "hyperpod-node/spank_plugin/Makefile", "hyperpod-node/units/hyperpod-agent.service",
    }  # fmt: skip
    policies = s3.get_object(Bucket="sagemaker-scripts", Key="base/hyperpod-node/policies.json")["Body"].read()
    assert json.loads(policies)["resume"]["max_attempts"] == 4
    assert fakes.run("scripts", "sync", str(folder), TARGET, "--spec", str(spec)).code == 2
