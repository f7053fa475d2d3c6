"""Which AMI nodes boot: by id, by an SSM parameter, or the newest of a well-known line.

Owns the names of the public parameters. Nothing is cached: a cluster keeps its image in its launch templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hyperpod.adapters.aws.client import Aws
from hyperpod.errors import ConfigError, NotFound

_PARAMETERS: Final[Mapping[str, str]] = {
    "debian": "/aws/service/debian/release/13/latest/{amd}",
    "ubuntu": "/aws/service/canonical/ubuntu/server/24.04/stable/current/{amd}/hvm/ebs-gp3/ami-id",
    "dlami": "/aws/service/deeplearning/ami/{x86}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
    "neuron": "/aws/service/neuron/dlami/multi-framework/ubuntu-22.04/latest/image_id",
}
_ARCHITECTURES: Final[Mapping[str, str]] = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class Image:
    """An AMI: its id, the name of its root device, its architecture, and its least root volume."""

    id: str
    root_device: str
    architecture: str
    root_gib: int


def parameter_of(name: str, architecture: str) -> str:
    """Return the SSM parameter that holds the newest image of a line. Pure."""
    text = _PARAMETERS.get(name, name)
    return text.format(amd=_ARCHITECTURES.get(architecture, "amd64"), x86=architecture)


def find_image(aws: Aws, name: str, architecture: str = "x86_64") -> Image:
    """Return the AMI that a specification means.

    Args:
        name: ``ami-…``, an SSM parameter, or the name of a line.
        architecture: Of the instance type.
    Raises:
        ConfigError: There is none, or it is for other machines.
    """
    identity = name
    if not name.startswith("ami-"):
        parameter = parameter_of(name, architecture)
        try:
            found = aws.call("ssm", "GetParameter", what=f"parameter {parameter}", Name=parameter)
        except NotFound as error:
            raise ConfigError(
                f"Hyperpod.Ec2.Image: {name}: no SSM parameter {parameter} in {aws.region_name}",
                hint="name an AMI of this region: Image: ami-…",
            ) from error
        identity = str(found["Parameter"]["Value"])
    try:
        images = aws.call("ec2", "DescribeImages", what=f"image {identity}", ImageIds=[identity]).get("Images", ())
    except NotFound:
        images = ()
    if not images:
        raise ConfigError(
            f"Hyperpod.Ec2.Image: there is no image {identity} in {aws.region_name}, or it is not shared with you",
            hint="AMI ids differ by region",
        )
    data = images[0]
    if data.get("Architecture", architecture) != architecture:
        raise ConfigError(
            f"Hyperpod.Ec2.Image: {identity} is for {data['Architecture']}, the instance type is {architecture}"
        )
    root = str(data.get("RootDeviceName") or "/dev/sda1")
    sizes = [m["Ebs"].get("VolumeSize", 8) for m in data.get("BlockDeviceMappings", ()) if m.get("DeviceName") == root]
    return Image(identity, root, str(data.get("Architecture", architecture)), max([int(s) for s in sizes if s] or [8]))
