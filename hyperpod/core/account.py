"""What a cluster needs in an account, compared with what is there: the plans of prepare and unprepare. Pure.

Owns the list of parts, their order and the rules of removal. Making and finding them is the adapter's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from hyperpod.core.names import is_name
from hyperpod.errors import ConfigError


class Cost(StrEnum):
    """What kind of bill a part makes; prices are the provider's to say."""

    FREE = "free"
    BY_USE = "by use"
    BY_HOUR = "by the hour"
    BY_SIZE = "by size, by the hour"


@dataclass(frozen=True)
class Part:
    """One thing that a cluster needs in an account. ``holds_data``: it is never removed unless it is named."""

    key: str
    title: str
    cost: Cost = Cost.FREE
    holds_data: bool = False


VPC: Final = "vpc"
SUBNET: Final = "private-subnet"
SECURITY_GROUP: Final = "security-group"
BUCKET: Final = "bucket"
FILE_SYSTEM: Final = "file-system"
EXECUTION_ROLE: Final = "execution-role"
NODE_ROLE: Final = "node-role"
HEAD_ROLE: Final = "head-role"
NODE_PROFILE: Final = "node-profile"
HEAD_PROFILE: Final = "head-profile"
ENDPOINTS: Final = ("ec2", "ssm", "ssmmessages", "ec2messages", "logs")
"""Services that nodes in a subnet without a way out must reach."""

_NETWORK: Final = (
    Part(VPC, "VPC"),
    Part("internet-gateway", "internet gateway"),
    Part("public-subnet", "public subnet, for the NAT gateway only"),
    Part("public-routes", "route table of the public subnet"),
    Part("nat-address", "public address of the NAT gateway", Cost.BY_HOUR),
    Part("nat", "NAT gateway: nodes reach out, nobody reaches in", Cost.BY_HOUR),
    Part(SUBNET, "private subnet in one zone, for all nodes"),
    Part("private-routes", "route table of the private subnet"),
    Part("s3-endpoint", "gateway endpoint for S3"),
)
_ONLY_WITH_NAT: Final = ("internet-gateway", "public-subnet", "public-routes", "nat-address", "nat")
_TAKEN_BY: Final[Mapping[str, str]] = {
    VPC: "--vpc",
    SUBNET: "--subnet",
    SECURITY_GROUP: "--security-group",
    BUCKET: "--bucket",
    FILE_SYSTEM: "--file-system",
}


@dataclass(frozen=True)
class Wanted:
    """What is wished for.

    Attributes:
        name: Name of the preparation; several in one account do not meet.
        region: For the bucket's name and the template.
        account: Number of the account, for the bucket's name.
        zone: Availability zone of the subnet and the file system.
        cidr: Network of a new VPC.
        has_nat: A NAT gateway as the way out; otherwise interface endpoints.
        providers: ``ec2``, ``sagemaker`` or both; each needs its own roles.
        file_system_gib: Size of a new FSx for Lustre file system; 0 for none.
        take: Things that are there already and are used as they are: part to id.
    """

    name: str
    region: str
    account: str
    zone: str
    cidr: str = "10.1.0.0/16"
    has_nat: bool = True
    providers: frozenset[str] = frozenset({"ec2", "sagemaker"})
    file_system_gib: int = 1200
    take: Mapping[str, str] = field(default_factory=dict)

    @property
    def bucket_name(self) -> str:
        """Name of the bucket; it begins as HyperPod wants it, and no other account can have it."""
        return self.take.get(BUCKET) or f"sagemaker-hyperpod-{self.account}-{self.region}-{self.name}".lower()[:63]

    @property
    def private_cidr(self) -> str:
        """The larger half of the VPC: 16,382 addresses of the usual /16, four in ten for EFA interfaces of p5."""
        network = ipaddress.IPv4Network(self.cidr)
        return str(list(network.subnets(prefixlen_diff=1))[1])

    @property
    def public_cidr(self) -> str:
        """A small part at the beginning of the VPC."""
        return str(next(ipaddress.IPv4Network(self.cidr).subnets(new_prefix=28)))


@dataclass(frozen=True)
class Found:
    """A part that is there.

    Attributes:
        id: Its id, or its name where it has none.
        is_ready: It can be used; False while it is being made.
        faults: What it lacks, each a few words; mended by ``settle``.
        data: What would be lost with it, for people; empty when nothing would.
    """

    id: str
    is_ready: bool = True
    faults: tuple[str, ...] = ()
    data: str = ""


class Do(StrEnum):
    """What a step does."""

    MAKE = "make"
    FIX = "fix"
    WAIT = "wait"
    KEEP = "keep"
    TAKE = "take over"
    REMOVE = "remove"
    LEAVE = "leave"


@dataclass(frozen=True)
class Step:
    """One line of a plan."""

    do: Do
    part: Part
    id: str = ""
    why: str = ""

    @property
    def changes(self) -> bool:
        """Whether something is done at all."""
        return self.do in (Do.MAKE, Do.FIX, Do.REMOVE)


def check_wanted(wanted: Wanted) -> None:
    """Check a wish.

    Raises:
        ConfigError: naming the option to change.
    """
    if not is_name(wanted.name) or len(wanted.name) > 20:
        raise ConfigError(
            f"{wanted.name!r} is no name for a preparation", hint="up to 20 letters, digits and single '-'"
        )
    try:
        network = ipaddress.IPv4Network(wanted.cidr)
    except ValueError as error:
        raise ConfigError(f"--cidr: {wanted.cidr} is no IPv4 network ({error})", hint="--cidr 10.1.0.0/16") from error
    if not network.is_private or not 16 <= network.prefixlen <= 24:
        raise ConfigError(f"--cidr: {wanted.cidr} must be private and from /16 to /24", hint="--cidr 10.1.0.0/16")
    if (VPC in wanted.take) != (SUBNET in wanted.take):
        missing = SUBNET if VPC in wanted.take else VPC
        raise ConfigError(
            f"a network is taken over whole: {_TAKEN_BY[missing]} is missing",
            hint="name both --vpc and --subnet, or neither to have a new network made",
        )
    gib = wanted.file_system_gib
    if gib and FILE_SYSTEM not in wanted.take and gib != 1200 and gib % 2400:
        raise ConfigError(f"--file-system-gib: {gib} is no size of FSx for Lustre", hint="1200, or a multiple of 2400")
    if not wanted.providers or wanted.providers - {"ec2", "sagemaker"}:
        raise ConfigError("--for: allowed are ec2 and sagemaker")


def parts_of(wanted: Wanted) -> tuple[Part, ...]:
    """Return what is needed, each after what it needs itself."""
    parts: list[Part] = []
    for part in _NETWORK:
        if SUBNET in wanted.take and part.key not in (VPC, SUBNET):
            continue
        if not wanted.has_nat and part.key in _ONLY_WITH_NAT:
            continue
        parts.append(part)
    parts.append(Part(SECURITY_GROUP, "security group: nodes reach each other in full, as EFA and FSx need it"))
    if not wanted.has_nat and SUBNET not in wanted.take:
        parts += [Part(f"{name}-endpoint", f"interface endpoint for {name}", Cost.BY_HOUR) for name in ENDPOINTS]
    parts.append(Part(BUCKET, "bucket for lifecycle scripts and clusters' folders", Cost.BY_USE, holds_data=True))
    if "sagemaker" in wanted.providers:
        parts.append(Part(EXECUTION_ROLE, "execution role of HyperPod's nodes"))
    if "ec2" in wanted.providers:
        parts += [
            Part(NODE_ROLE, "role of EC2 nodes"),
            Part(NODE_PROFILE, "instance profile of EC2 nodes"),
            Part(HEAD_ROLE, "role of EC2 head nodes, which replace others"),
            Part(HEAD_PROFILE, "instance profile of EC2 head nodes"),
        ]
    if wanted.file_system_gib or FILE_SYSTEM in wanted.take:
        parts.append(Part(FILE_SYSTEM, "FSx for Lustre, shared by all nodes", Cost.BY_SIZE, holds_data=True))
    return tuple(parts)


def all_parts(wanted: Wanted) -> tuple[Part, ...]:
    """Return every part that any preparation of this name may have made."""
    with_nat = Wanted(wanted.name, wanted.region, wanted.account, wanted.zone, wanted.cidr)
    without = Wanted(wanted.name, wanted.region, wanted.account, wanted.zone, wanted.cidr, has_nat=False)
    endpoints = [part for part in parts_of(without) if part.key.endswith("-endpoint") and part.key != "s3-endpoint"]
    parts = list(parts_of(with_nat))
    after = next(index for index, part in enumerate(parts) if part.key == SECURITY_GROUP) + 1
    return (*parts[:after], *endpoints, *parts[after:])


def plan_prepare(wanted: Wanted, found: Mapping[str, Found]) -> tuple[Step, ...]:
    """Return what ``prepare`` does, in order. Pure; what is right already is kept.

    Raises:
        ConfigError: A thing to be taken over is not there.
    """
    steps = []
    for part in parts_of(wanted):
        there = found.get(part.key)
        if part.key in wanted.take:
            if there is None:
                raise ConfigError(
                    f"{_TAKEN_BY.get(part.key, part.key)}: {wanted.take[part.key]} is not there",
                    hint=f"is it in region {wanted.region}, and in this account?",
                )
            steps.append(Step(Do.TAKE, part, there.id, "; ".join(there.faults)))
        elif there is None:
            steps.append(Step(Do.MAKE, part))
        elif there.faults:
            steps.append(Step(Do.FIX, part, there.id, "; ".join(there.faults)))
        else:
            steps.append(Step(Do.KEEP if there.is_ready else Do.WAIT, part, there.id))
    return tuple(steps)


def plan_unprepare(wanted: Wanted, found: Mapping[str, Found], delete_data: Collection[str] = ()) -> tuple[Step, ...]:
    """Return what ``unprepare`` does, in the reverse order of the making. Pure.

    Only what ``prepare`` made is in ``found``. What holds data goes only when its id is in ``delete_data``; then what
    it stands in stays as well.

    Raises:
        ConfigError: ``delete_data`` names something that is not there.
    """
    known = {there.id for there in found.values()}
    unknown = sorted(set(delete_data) - known)
    if unknown:
        raise ConfigError(f"--delete-data: {unknown[0]} was not made by this preparation", hint="--dry-run lists all")
    steps: list[Step] = []
    keeps_network = ""
    for part in reversed(all_parts(wanted)):
        there = found.get(part.key)
        if there is None or part.key in wanted.take:
            continue
        if part.holds_data and there.data and there.id not in delete_data:
            why = f"it holds {there.data}; --delete-data {there.id} removes it all the same"
            steps.append(Step(Do.LEAVE, part, there.id, why))
            if part.key == FILE_SYSTEM:
                keeps_network = there.id
        elif keeps_network and part.key in (VPC, SUBNET, SECURITY_GROUP):
            steps.append(Step(Do.LEAVE, part, there.id, f"{keeps_network} is in it"))
        else:
            steps.append(Step(Do.REMOVE, part, there.id))
    return tuple(steps)


def spec_lines(wanted: Wanted, ids: Mapping[str, str], mount: tuple[str, str] | None = None) -> tuple[str, ...]:
    """Return the lines of a specification that name what was prepared.

    Args:
        mount: DNS name and mount name of the file system.
    """
    lines = [
        "VpcConfig:",
        f"  SecurityGroupIds: [{ids.get(SECURITY_GROUP, '')}]",
        f"  Subnets: [{ids.get(SUBNET, '')}]",
    ]
    lines.append(f"# LifeCycleConfig: {{SourceS3Uri: s3://{ids.get(BUCKET, wanted.bucket_name)}/lifecycle-scripts/}}")
    if EXECUTION_ROLE in ids:
        lines.append(f"# ExecutionRole: arn:aws:iam::{wanted.account}:role/{ids[EXECUTION_ROLE]}")
    if NODE_PROFILE in ids:
        lines.append(f"# EC2 instance profiles: {ids[NODE_PROFILE]} (nodes), {ids.get(HEAD_PROFILE, '')} (head node)")
    if FILE_SYSTEM in ids:
        lines.append(f"# file system: {ids[FILE_SYSTEM]}")
    if mount is not None:
        lines.append("# to have it as /fsx: provisioning_parameters.json beside the specification, with")
        lines.append(f'#   "fsx_dns_name": "{mount[0]}", "fsx_mountname": "{mount[1]}"')
    return tuple(lines)
