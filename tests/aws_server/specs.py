"""Specifications of HyperPod clusters for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.config.load import load_spec
from hyperpod.core.spec import ClusterSpec

ROLE = "arn:aws:iam::111122223333:role/Worker"


def request(name: str = "ml", workers: int = 2, **more: Any) -> dict[str, Any]:
    """Return a create file as users of AWS have it."""
    scripts = {"SourceS3Uri": "s3://sagemaker-scripts/lifecycle", "OnCreate": "on_create.sh"}
    kinds: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
        ("controller", "ml.m5.xlarge", 1, {"NodeType": "Controller"}),
        ("worker", "ml.g5.8xlarge", workers, {"NodeType": "Compute", "PartitionNames": ["dev"]}),
    )
    return {
        "ClusterName": name,
        "InstanceGroups": [
            {
                "InstanceGroupName": group,
                "InstanceType": kind,
                "InstanceCount": count,
                "LifeCycleConfig": scripts,
                "ExecutionRole": ROLE,
                "ThreadsPerCore": 1,
                "SlurmConfig": slurm,
            }
            for group, kind, count, slurm in kinds
        ],
        "VpcConfig": {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]},
        "Tags": [{"Key": "team", "Value": "speech"}],
        **more,
    }


def write_spec(folder: Path, data: dict[str, Any], name: str = "cluster.json") -> Path:
    """Write a create file."""
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def spec_of(folder: Path, data: dict[str, Any]) -> ClusterSpec:
    """Return a create file as the commands load it."""
    return load_spec(write_spec(folder, data), validate=validate_create_cluster).spec
