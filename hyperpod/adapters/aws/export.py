"""A specification as what its user would otherwise have typed: for the AWS CLI, CloudFormation or Terraform.

Pure. The request is the file's own; our block and our tag are left out, for these tools know nothing of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import yaml

from hyperpod.adapters.aws.sagemaker_requests import input_keys
from hyperpod.core.spec import ClusterSpec

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAME: Final = re.compile(r"[^A-Za-z0-9]+")


class Format(StrEnum):
    """What a specification is written for."""

    AWS_CLI = "aws-cli"
    CLOUDFORMATION = "cloudformation"
    TERRAFORM = "terraform"


def export(spec: ClusterSpec, form: Format) -> str:
    """Return the text of a file that makes the same cluster with another tool."""
    request = {key: value for key, value in spec.aws_request.items() if key in input_keys("CreateCluster")}
    match form:
        case Format.AWS_CLI:
            return json.dumps(request, indent=4) + "\n"
        case Format.CLOUDFORMATION:
            return _cloudformation(request)
        case Format.TERRAFORM:
            return _terraform(request)


def how_to_use(spec: ClusterSpec, form: Format) -> str:
    """Return the command that uses the file."""
    name = spec.cluster_name
    return {
        Format.AWS_CLI: "aws sagemaker create-cluster --cli-input-json file://create-cluster.json",
        Format.CLOUDFORMATION: f"aws cloudformation deploy --stack-name {name} --template-file cluster.yaml",
        Format.TERRAFORM: "terraform init && terraform apply",
    }[form]


def _cloudformation(request: Mapping[str, Any]) -> str:
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"HyperPod cluster {request['ClusterName']}",
        "Resources": {"Cluster": {"Type": "AWS::SageMaker::Cluster", "Properties": dict(request)}},
        "Outputs": {"ClusterArn": {"Value": {"Fn::GetAtt": ["Cluster", "ClusterArn"]}}},
    }
    return yaml.safe_dump(template, sort_keys=False, width=110)


def _terraform(request: Mapping[str, Any]) -> str:
    name = _NAME.sub("_", str(request["ClusterName"])).strip("_")
    if not name[0].isalpha():
        name = f"cluster_{name}"
    body = "".join(_attributes(request, 1))
    return (
        'terraform {\n  required_providers {\n    awscc = {\n      source = "hashicorp/awscc"\n    }\n  }\n}\n\n'
        f'resource "awscc_sagemaker_cluster" "{name}" {{\n{body}}}\n'
    )


def _attributes(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    # terraform fmt lines up the signs of neighbours that take one line each.
    run: list[tuple[str, str]] = []
    for key, value in values.items():
        text = _hcl(value, depth)
        run.append((_snake(key), text))
        if "\n" in text:
            yield from _aligned(run[:-1], indent)
            yield f"{indent}{run[-1][0]} = {text}\n"
            run = []
    yield from _aligned(run, indent)


def _aligned(run: list[tuple[str, str]], indent: str) -> Iterator[str]:
    width = max((len(key) for key, _ in run), default=0)
    for key, text in run:
        yield f"{indent}{key.ljust(width)} = {text}\n"


def _hcl(value: Any, depth: int) -> str:
    indent = "  " * depth
    if isinstance(value, Mapping):
        return f"{{\n{''.join(_attributes(value, depth + 1))}{indent}}}" if value else "{}"
    if isinstance(value, list):
        if not value:
            return "[]"
        if not any(isinstance(item, dict | list) for item in value):
            return f"[{', '.join(_hcl(item, depth) for item in value)}]"
        items = "".join(f"{indent}  {_hcl(item, depth + 1)},\n" for item in value)
        return f"[\n{items}{indent}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    # In HCL "${" and "%{" begin expressions.
    return json.dumps(str(value), ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _snake(key: str) -> str:
    """``VolumeSizeInGB`` becomes ``volume_size_in_gb``, ``SourceS3Uri`` becomes ``source_s3_uri``."""
    return _WORD.sub("_", key).lower()
