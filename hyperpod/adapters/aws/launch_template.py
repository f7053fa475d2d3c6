"""Launch templates, one for each instance group: what every machine of the group has in common.

Owns their content and their upkeep. A template is found by its name and its cluster's tag; a new version is made only
when the content has changed, so machines that run are not touched and a replacement is always of the newest kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from hyperpod.adapters.aws import tags
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.instance_types import InstanceType, network_interfaces
from hyperpod.errors import ProviderError

_VERSIONS_KEPT: Final = 5


class Market(StrEnum):
    """How a group's machines are paid for."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    CAPACITY_BLOCK = "capacity-block"


@dataclass(frozen=True)
class GroupSettings:
    """How the machines of one group are made.

    Attributes:
        shape: Their instance type.
        image_id: AMI.
        root_device: Name of the AMI's root device, such as ``/dev/sda1``.
        subnet: One subnet, so one zone: nodes of one cluster must be near each other.
        security_groups: Groups of every interface.
        instance_profile: Name of the instance profile with the machines' rights.
        user_data: Script for the first boot.
        root_volume_gib: Size of the root volume; None for the AMI's own.
        kms_key_id: Key of the root volume; empty for the account's default key.
        market: How they are paid for.
        reservation_id: Capacity reservation or capacity block to use; empty for open ones.
        placement_group: Name of the placement group; empty for none.
        efa: Whether EFA interfaces are made where the type has them.
        threads_per_core: 1 switches hyper-threads off; None leaves the type's own.
        key_name: EC2 key pair for emergencies; empty for none.
        tags: The user's tags.
    """

    shape: InstanceType
    image_id: str
    subnet: str
    security_groups: tuple[str, ...]
    instance_profile: str
    user_data: str = ""
    root_device: str = "/dev/sda1"
    root_volume_gib: int | None = None
    kms_key_id: str = ""
    market: Market = Market.ON_DEMAND
    reservation_id: str = ""
    placement_group: str = ""
    efa: bool = True
    threads_per_core: int | None = None
    key_name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def template_name(cluster: str, group: str) -> str:
    """Return the name of a group's template; neither name can hold a dot, so no two groups share one."""
    return f"hyperpod.{cluster}.{group}"


def template_data(settings: GroupSettings, cluster: str, group: str) -> dict[str, Any]:
    """Return the content of a group's launch template. Pure.

    The metadata service answers with session tokens only, and not to containers; the root volume is encrypted.
    """
    volume: dict[str, Any] = {"Encrypted": True, "VolumeType": "gp3", "DeleteOnTermination": True}
    if settings.root_volume_gib is not None:
        volume["VolumeSize"] = settings.root_volume_gib
    if settings.kms_key_id:
        volume["KmsKeyId"] = settings.kms_key_id
    own = {**settings.tags, tags.CLUSTER: cluster, tags.GROUP: group}
    data: dict[str, Any] = {
        "ImageId": settings.image_id,
        "InstanceType": settings.shape.name,
        "IamInstanceProfile": {"Name": settings.instance_profile},
        "BlockDeviceMappings": [{"DeviceName": settings.root_device, "Ebs": volume}],
        "NetworkInterfaces": network_interfaces(
            settings.shape, settings.subnet, settings.security_groups, efa=settings.efa
        ),
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        # A shutdown from inside must not lose the machine and its address.
        "InstanceInitiatedShutdownBehavior": "stop",
        "Monitoring": {"Enabled": False},
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags.tag_list(own)} for kind in ("instance", "volume", "network-interface")
        ],
    }
    if settings.user_data:
        data["UserData"] = settings.user_data
    if settings.key_name:
        data["KeyName"] = settings.key_name
    if settings.placement_group:
        data["Placement"] = {"GroupName": settings.placement_group}
    if settings.threads_per_core is not None:
        data["CpuOptions"] = {"CoreCount": settings.shape.cores, "ThreadsPerCore": settings.threads_per_core}
    if settings.reservation_id:
        data["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": settings.reservation_id}
        }
    if settings.market is Market.SPOT:
        data["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
        # A one-time spot instance cannot be stopped.
        data["InstanceInitiatedShutdownBehavior"] = "terminate"
    elif settings.market is Market.CAPACITY_BLOCK:
        data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return data


def content_hash(data: Mapping[str, Any]) -> str:
    """Return a short text that is another one when the content is; it is kept as the version's description."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def ensure_template(aws: Aws, cluster: str, group: str, data: Mapping[str, Any], *, folder: str = "") -> str:
    """Make a group's template, or a new version of it when its content has changed, and return the template's id.

    Args:
        folder: Bucket and prefix of the cluster's folder, for a tag.
    """
    name = template_name(cluster, group)
    digest = content_hash(data)
    found = find_templates(aws, cluster, group)
    if not found:
        answer = aws.call(
            "ec2",
            "CreateLaunchTemplate",
            what=f"launch template {name}",
            repeat=True,
            LaunchTemplateName=name,
            VersionDescription=digest,
            ClientToken=hashlib.sha256(f"{name}\0{digest}".encode()).hexdigest()[:32],
            LaunchTemplateData=dict(data),
            TagSpecifications=[
                {
                    "ResourceType": "launch-template",
                    "Tags": tags.tag_list(
                        {tags.CLUSTER: cluster, tags.GROUP: group, tags.NAME: name, tags.FOLDER: folder or "-"}
                    ),
                }
            ],
        )
        return str(answer["LaunchTemplate"]["LaunchTemplateId"])
    template = found[0]
    identity = str(template["LaunchTemplateId"])
    versions = describe_versions(aws, identity)
    current = next((v for v in versions if v.get("DefaultVersion")), None)
    if current is not None and current.get("VersionDescription") == digest:
        return identity
    same = next((v for v in versions if v.get("VersionDescription") == digest), None)
    if same is None:
        same = aws.call(
            "ec2",
            "CreateLaunchTemplateVersion",
            what=f"launch template {name}",
            repeat=True,
            LaunchTemplateId=identity,
            VersionDescription=digest,
            ClientToken=hashlib.sha256(f"{identity}\0{digest}\0{len(versions)}".encode()).hexdigest()[:32],
            LaunchTemplateData=dict(data),
        )["LaunchTemplateVersion"]
    number = int(same["VersionNumber"])
    aws.call("ec2", "ModifyLaunchTemplate", repeat=True, LaunchTemplateId=identity, DefaultVersion=str(number))
    _drop_old_versions(aws, identity, versions, number)
    return identity


def describe_versions(aws: Aws, template_id: str, versions: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the versions of a template, newest first; all of them unless some are named (``$Default``)."""
    asked: dict[str, Any] = {"Versions": list(versions)} if versions else {}
    operation = "DescribeLaunchTemplateVersions"
    found = aws.pages("ec2", operation, "LaunchTemplateVersions", LaunchTemplateId=template_id, **asked)
    return sorted(found, key=lambda version: -int(version["VersionNumber"]))


def find_templates(aws: Aws, cluster: str, group: str | None = None) -> list[dict[str, Any]]:
    """Return the templates of a cluster, or of one of its groups, by their tags."""
    wanted = {"cluster": cluster} if group is None else {"cluster": cluster, "group": group}
    found = aws.pages("ec2", "DescribeLaunchTemplates", "LaunchTemplates", Filters=tags.tag_filters(**wanted))
    return sorted(found, key=lambda template: str(template["LaunchTemplateName"]))


def _drop_old_versions(aws: Aws, template_id: str, before: Sequence[Mapping[str, Any]], current: int) -> None:
    old = [int(version["VersionNumber"]) for version in before if int(version["VersionNumber"]) != current]
    surplus = sorted(old, reverse=True)[_VERSIONS_KEPT:]
    if surplus:
        names = [str(number) for number in surplus]
        # Old versions cost nothing; not to have the right to delete them must not stop a launch.
        with contextlib.suppress(ProviderError):
            aws.call("ec2", "DeleteLaunchTemplateVersions", repeat=True, LaunchTemplateId=template_id, Versions=names)
