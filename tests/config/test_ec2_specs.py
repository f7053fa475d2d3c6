"""What a specification for EC2 lacks, or asks of EC2 that only the HyperPod API has."""

from __future__ import annotations

from typing import Any

import pytest
from spec_texts import LoadText, Mistakes, aws_group, aws_request

from hyperpod.core.spec import Provider

NETWORK = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
PLAN = "arn:aws:sagemaker:us-west-2:111122223333:training-plan/plan"


def ec2(worker: dict[str, Any] | None = None, block: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return a request for EC2 that is right but for what is said."""
    groups = [aws_group("head", "Controller"), aws_group("worker", "Compute", **(worker or {}))]
    own = {"Provider": "ec2", "Ec2": {"Bucket": "sagemaker-b", **(block or {})}}
    return aws_request(InstanceGroups=groups, VpcConfig=NETWORK, Hyperpod=own) | more


def test_a_request_for_ec2_is_taken(load_text: LoadText) -> None:
    assert load_text(ec2(block={"Reservations": {"worker": "cr-1"}})).spec.provider is Provider.EC2


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a reservation for no group": (
        ec2(block={"Reservations": {"workers": "cr-1"}}),
        "at Hyperpod.Ec2.Reservations.workers: no instance group workers; did you mean worker?",
    ),
    "a reservation and spot": (
        ec2({"CapacityRequirements": {"Spot": {}}}, {"Reservations": {"worker": "cr-1"}}),
        "at Hyperpod.Ec2.Reservations.worker: a reservation and CapacityRequirements Spot exclude each other; give one",
    ),
    "a training plan": (
        ec2({"TrainingPlanArn": PLAN}),
        "at InstanceGroups[1].TrainingPlanArn: training plans are HyperPod's; on EC2 name a capacity reservation or "
        "block in Hyperpod.Ec2.Reservations",
    ),
    "an image of a group": (
        ec2({"ImageId": "ami-0123456789abcdef0"}),
        "at InstanceGroups[1].ImageId: the nodes of a cluster on EC2 boot one image, so that they have one Slurm: "
        "Hyperpod.Ec2.Image",
    ),
    "two subnets": (
        ec2(VpcConfig=NETWORK | {"Subnets": ["subnet-1", "subnet-2"]}),
        "at VpcConfig.Subnets: 2 subnets; on EC2 a group is in one, since nodes of one job must be near each other",
    ),
    "two subnets of a group": (
        ec2({"OverrideVpcConfig": NETWORK | {"Subnets": ["subnet-1", "subnet-2"]}}),
        "at InstanceGroups[1].OverrideVpcConfig.Subnets: 2 subnets; on EC2 a group is in one, since nodes of one job "
        "must be near each other",
    ),
    "no network": (
        ec2(VpcConfig=None) | {"VpcConfig": None},
        "at InstanceGroups: EC2 needs VpcConfig with a subnet and a security group (hyperpod prepare prints their ids)",
    ),
    "no bucket": (
        ec2() | {"Hyperpod": {"Provider": "ec2"}},
        "at Hyperpod.Ec2.Bucket: no bucket for the cluster's folder; name one here or in a SourceS3Uri (hyperpod "
        "prepare makes one)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_ec2_cannot_do_is_said_before_anything_is_made(case: str, mistakes: Mistakes) -> None:
    request, expected = WRONG[case]
    if request.get("VpcConfig") is None:
        del request["VpcConfig"]

    lines = [line.partition(": ")[2] for line in mistakes(request)]

    assert lines == [expected]


def test_a_source_in_s3_names_the_bucket(load_text: LoadText) -> None:
    scripts = {"SourceS3Uri": "s3://sagemaker-b/lifecycle-scripts/", "OnCreate": "on_create.sh"}

    assert (
        load_text(ec2({"LifeCycleConfig": scripts}) | {"Hyperpod": {"Provider": "ec2"}}).spec.hyperpod.ec2.bucket
        is None
    )


def test_lustre_on_an_image_without_its_client_is_said(mistakes: Mistakes, load_text: LoadText) -> None:
    parameters = {"fsx_dns_name": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com", "fsx_mountname": "abc"}

    (line,) = mistakes(ec2(), parameters=parameters)
    assert "at Hyperpod.Ec2.Image: Debian has no Lustre client" in line
    load_text(ec2(block={"Image": "dlami"}), parameters=parameters)


def test_hyperpod_cannot_use_reservations_of_ec2(mistakes: Mistakes) -> None:
    request = aws_request(Hyperpod={"Provider": "sagemaker", "Ec2": {"Reservations": {"worker": "cr-1"}}})

    (line,) = mistakes(request)
    assert "at Hyperpod.Ec2.Reservations: the HyperPod API takes no reservations" in line
