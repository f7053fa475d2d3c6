"""What makes no sense in a spec for EC2, found before anything is made.

Owns the rules of provider ``ec2`` alone: what its launches need, and what only the HyperPod API has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hyperpod.config.problem import Problem, closest
from hyperpod.core.spec import HyperpodBlock


def check_ec2(
    request: Mapping[str, Any], block: HyperpodBlock, parameters: Mapping[str, Any] | None = None
) -> Iterator[Problem]:
    """Yield what a cluster of our own instances cannot have, or lacks.

    Args:
        parameters: provisioning_parameters.json, if there is one.
    """
    if block.ec2.image == "debian" and (parameters or {}).get("fsx_dns_name"):
        text = "Debian has no Lustre client, and fsx_dns_name wants one; name an image with it (DLAMI, or baked by you)"
        yield Problem(("Hyperpod", "Ec2", "Image"), text)
    listed = request.get("InstanceGroups")
    groups = [(i, g) for i, g in enumerate(listed if isinstance(listed, list) else ()) if isinstance(g, Mapping)]
    if not block.ec2.bucket and groups and not any(_source(group).startswith("s3://") for _, group in groups):
        text = "no bucket for the cluster's folder; name one here or in a SourceS3Uri (hyperpod prepare makes one)"
        yield Problem(("Hyperpod", "Ec2", "Bucket"), text)
    for index, group in groups:
        yield from _check_network(request, index, group)
        if group.get("TrainingPlanArn") is not None:
            yield Problem(
                ("InstanceGroups", index, "TrainingPlanArn"),
                "training plans are HyperPod's; on EC2 name a capacity reservation or block in "
                "Hyperpod.Ec2.Reservations",
            )
        if group.get("ImageId") not in (None, "default"):
            text = "the nodes of a cluster on EC2 boot one image, so that they have one Slurm: Hyperpod.Ec2.Image"
            yield Problem(("InstanceGroups", index, "ImageId"), text)
    yield from _check_reservations(block, [group for _, group in groups])


def check_reservations_elsewhere(block: HyperpodBlock) -> Iterator[Problem]:
    """Yield a problem for reservations of EC2 in a cluster that the HyperPod API makes: it cannot use them."""
    if block.ec2.reservations:
        text = "the HyperPod API takes no reservations or capacity blocks of EC2; name a training plan: TrainingPlanArn"
        yield Problem(("Hyperpod", "Ec2", "Reservations"), text)


def _check_network(request: Mapping[str, Any], index: int, group: Mapping[str, Any]) -> Iterator[Problem]:
    own = group.get("OverrideVpcConfig")
    network = own if own is not None else request.get("VpcConfig")
    if network is None:
        if index == 0:
            text = "EC2 needs VpcConfig with a subnet and a security group (hyperpod prepare prints their ids)"
            yield Problem(("InstanceGroups",), text)
        return
    subnets = network.get("Subnets") if isinstance(network, Mapping) else None
    if isinstance(subnets, list) and len(subnets) > 1 and (own is not None or index == 0):
        place = (
            ("InstanceGroups", index, "OverrideVpcConfig", "Subnets") if own is not None else ("VpcConfig", "Subnets")
        )
        text = f"{len(subnets)} subnets; on EC2 a group is in one, since nodes of one job must be near each other"
        yield Problem(place, text)


def _check_reservations(block: HyperpodBlock, groups: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    by_name = {str(group.get("InstanceGroupName")): group for group in groups}
    for name in block.ec2.reservations:
        place = ("Hyperpod", "Ec2", "Reservations", name)
        if name not in by_name:
            near = closest(name, list(by_name))
            tail = f"did you mean {near}?" if near else f"groups are {', '.join(by_name)}"
            yield Problem(place, f"no instance group {name}; {tail}")
        elif "Spot" in (by_name[name].get("CapacityRequirements") or {}):
            yield Problem(place, "a reservation and CapacityRequirements Spot exclude each other; give one")


def _source(group: Mapping[str, Any]) -> str:
    lifecycle = group.get("LifeCycleConfig")
    return str(lifecycle.get("SourceS3Uri") or "") if isinstance(lifecycle, Mapping) else ""
