"""Specifications as files of other tools, judged by those tools where they are here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hyperpod.adapters.aws.export import Format, export, how_to_use
from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.config.load import load_spec
from hyperpod.core.spec import ClusterSpec
from tests.aws_server.shapes import complaints, operation
from tests.aws_server.specs import request, spec_of

EXAMPLE = Path(__file__).parents[3] / "configs" / "hyperpod-aws" / "create-cluster.json"


@pytest.fixture(scope="module")
def example() -> ClusterSpec:
    """The example file of a HyperPod cluster."""
    return load_spec(EXAMPLE, validate=validate_create_cluster).spec


def test_for_the_aws_cli_it_is_the_request_and_nothing_more(example: ClusterSpec, tmp_path: Path) -> None:
    assert json.loads(export(example, Format.AWS_CLI)) == json.loads(EXAMPLE.read_text())
    mine = json.loads(export(spec_of(tmp_path, request() | {"Hyperpod": {"Spares": 1}}), Format.AWS_CLI))
    assert mine == request()
    model = operation("CreateCluster")
    assert model is not None
    assert complaints(mine, model.input_shape) == []


def test_the_template_passes_cfn_lint(example: ClusterSpec, tmp_path: Path) -> None:
    from cfnlint.api import ManualArgs, lint_file

    path = tmp_path / "cluster.yaml"
    for spec in (example, spec_of(tmp_path, request(NodeProvisioningMode="Continuous"))):
        path.write_text(export(spec, Format.CLOUDFORMATION))
        assert lint_file(path, config=ManualArgs(regions=["us-west-2"])) == []
    template = yaml.safe_load(path.read_text())
    assert template["Resources"]["Cluster"]["Properties"]["ClusterName"] == "ml"


def test_cfn_lint_would_have_found_a_mistake(example: ClusterSpec, tmp_path: Path) -> None:
    from cfnlint.api import ManualArgs, lint_file

    path = tmp_path / "cluster.yaml"
    path.write_text(export(example, Format.CLOUDFORMATION).replace("InstanceCount", "InstanceKount"))
    assert lint_file(path, config=ManualArgs(regions=["us-west-2"])) != []


def test_for_terraform_names_are_in_its_own_words(example: ClusterSpec) -> None:
    text = export(example, Format.TERRAFORM)
    assert 'resource "awscc_sagemaker_cluster" "ml_cluster" {' in text
    for line in ("instance_groups = [", "source_s3_uri", "volume_size_in_gb", "on_start_deep_health_checks"):
        assert line in text
    assert text.count("{") == text.count("}")


def test_terraform_reads_it_and_would_write_it_the_same(example: ClusterSpec, tmp_path: Path) -> None:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not here")
    path = tmp_path / "main.tf"
    path.write_text(export(example, Format.TERRAFORM))
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-diff", str(path)], capture_output=True, text=True, timeout=30,
        env={"CHECKPOINT_DISABLE": "1", "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_what_terraform_would_take_for_an_expression_is_text(tmp_path: Path) -> None:
    data = request(Tags=[{"Key": "who", "Value": "${x} %{y}"}])
    data["Tags"][0]["Value"] = "a b"
    text = export(spec_of(tmp_path, data), Format.TERRAFORM)
    assert '"a b"' in text
    from hyperpod.adapters.aws.export import _hcl

    assert _hcl("${x} %{y}", 0) == '"$${x} %%{y}"'


def test_each_comes_with_the_command_that_uses_it(example: ClusterSpec) -> None:
    assert [how_to_use(example, form).split()[0] for form in Format] == ["aws", "aws", "terraform"]
