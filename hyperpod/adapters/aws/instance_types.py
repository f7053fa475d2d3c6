"""What EC2 says of instance types: processors, memory, network cards, and the interfaces a machine gets from them.

Owns the reading of DescribeInstanceTypes; no figure of any type is written down here. ``ml.`` names of the SageMaker
API mean the EC2 type of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hyperpod.adapters.aws.client import Aws
from hyperpod.errors import ConfigError

_PER_CALL: Final = 100
"""Most types that one call may name."""


@dataclass(frozen=True)
class NetworkCard:
    """One network card: its index and the kinds of interface it carries."""

    index: int
    interface_types: frozenset[str] = frozenset({"interface"})


@dataclass(frozen=True)
class InstanceType:
    """An instance type as EC2 describes it.

    Attributes:
        name: EC2's name, without ``ml.``.
        vcpus: Processors that Linux sees.
        cores: Cores, for ThreadsPerCore.
        memory_mib: Memory in MiB, before what kernel and firmware keep.
        architectures: Such as ``x86_64`` or ``arm64``.
        cards: Network cards by index; the API lists them in random order.
        efa_interfaces: How many EFA interfaces it may have; 0 without EFA.
        gpus: NVIDIA or other GPUs.
        accelerators: Trainium and Inferentia devices.
        is_nitro: Whether tags in its metadata follow changes, among other things.
        has_instance_store: Whether it has disks that are lost when it stops.
        strategies: Placement strategies it supports.
        markets: ``on-demand``, ``spot``, ``capacity-block``.
    """

    name: str
    vcpus: int
    cores: int
    memory_mib: int
    architectures: tuple[str, ...] = ("x86_64",)
    cards: tuple[NetworkCard, ...] = (NetworkCard(0),)
    efa_interfaces: int = 0
    gpus: int = 0
    accelerators: int = 0
    is_nitro: bool = True
    has_instance_store: bool = False
    strategies: frozenset[str] = field(default_factory=frozenset)
    markets: frozenset[str] = field(default_factory=frozenset)


def ec2_type(name: str) -> str:
    """Return EC2's name of an instance type; ``ml.p5.48xlarge`` is ``p5.48xlarge``."""
    return name.removeprefix("ml.")


def parse_instance_type(data: Mapping[str, Any]) -> InstanceType:
    """Read one entry of DescribeInstanceTypes."""
    network = data.get("NetworkInfo", {})
    cards = sorted(
        (
            NetworkCard(int(card["NetworkCardIndex"]), frozenset(card.get("InterfaceTypes") or ("interface", "efa")))
            for card in network.get("NetworkCards", ())
        ),
        key=lambda card: card.index,
    )
    cpus = data.get("VCpuInfo", {})
    devices = data.get("NeuronInfo", {}).get("NeuronDevices") or data.get("InferenceAcceleratorInfo", {}).get(
        "Accelerators", ()
    )
    return InstanceType(
        name=str(data["InstanceType"]),
        vcpus=int(cpus.get("DefaultVCpus", 1)),
        cores=int(cpus.get("DefaultCores", cpus.get("DefaultVCpus", 1))),
        memory_mib=int(data.get("MemoryInfo", {}).get("SizeInMiB", 0)),
        architectures=tuple(data.get("ProcessorInfo", {}).get("SupportedArchitectures", ("x86_64",))),
        cards=tuple(cards) or (NetworkCard(0),),
        efa_interfaces=int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0))
        if network.get("EfaSupported")
        else 0,
        gpus=sum(int(gpu.get("Count", 0)) for gpu in data.get("GpuInfo", {}).get("Gpus", ())),
        accelerators=sum(int(device.get("Count", 0)) for device in devices),
        is_nitro=data.get("Hypervisor", "nitro") != "xen",
        has_instance_store=bool(data.get("InstanceStorageSupported")),
        strategies=frozenset(data.get("PlacementGroupInfo", {}).get("SupportedStrategies", ())),
        markets=frozenset(data.get("SupportedUsageClasses", ())),
    )


def describe_types(aws: Aws, names: Collection[str]) -> dict[str, InstanceType]:
    """Ask EC2 about instance types; the answer is keyed by the names as they were given.

    Raises:
        ConfigError: if this region does not have one of them.
    """
    wanted = sorted({ec2_type(name) for name in names})
    found: dict[str, InstanceType] = {}
    for start in range(0, len(wanted), _PER_CALL):
        # A filter, not a list of names: one that the region lacks is then missing in the answer, not an error.
        filters = [{"Name": "instance-type", "Values": wanted[start : start + _PER_CALL]}]
        for data in aws.pages("ec2", "DescribeInstanceTypes", "InstanceTypes", Filters=filters):
            shape = parse_instance_type(data)
            found[shape.name] = shape
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ConfigError(
            f"EC2 has no instance type {', '.join(missing)} in this region",
            hint="aws ec2 describe-instance-type-offerings --location-type availability-zone shows where it is",
        )
    return {name: found[ec2_type(name)] for name in names}


def network_interfaces(
    shape: InstanceType, subnet: str, security_groups: Sequence[str], *, efa: bool = True
) -> list[dict[str, Any]]:
    """Return the interfaces of a machine, one on each card that EFA may use.

    Pure. The first is always device 0 on card 0: its address is the node's. Further ones carry EFA only where the
    card can do that, so that they use up no address of the subnet.

    Args:
        subnet: Where all of them are.
        security_groups: Groups of all of them.
        efa: Whether EFA is wanted where the type has it.
    """
    base = {"SubnetId": subnet, "Groups": list(security_groups), "DeleteOnTermination": True}
    wanted = shape.efa_interfaces if efa else 0
    interfaces: list[dict[str, Any]] = []
    for card in shape.cards:
        can_efa = bool(card.interface_types & {"efa", "efa-only"})
        if card.index == 0:
            kind = {"InterfaceType": "efa"} if wanted and "efa" in card.interface_types else {}
            interfaces.append({**base, "NetworkCardIndex": 0, "DeviceIndex": 0, **kind})
            wanted -= bool(kind)
        elif wanted > 0 and can_efa:
            kind = {"InterfaceType": "efa-only" if "efa-only" in card.interface_types else "efa"}
            interfaces.append({**base, "NetworkCardIndex": card.index, "DeviceIndex": 1, **kind})
            wanted -= 1
    return interfaces
