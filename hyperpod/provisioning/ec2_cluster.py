"""Creates, changes and deletes clusters on EC2: observe, diff (pure, in core.provision), apply.

Owns the order of effects there. Addresses are EC2's to give, so machines are launched first and wait; then every node's
files are written to the cluster's folder, and with them the machines are let go. Any call may be killed and made again.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import tarfile
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import hyperpod
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.ec2 import ASLEEP, DeleteReport, Ec2Provider
from hyperpod.adapters.aws.folder import CLUSTER, ClusterFolder, default_prefix
from hyperpod.adapters.aws.images import Image, find_image
from hyperpod.adapters.aws.instance_types import InstanceType, describe_types, ec2_type, network_interfaces
from hyperpod.adapters.aws.launch_template import GroupSettings, Market
from hyperpod.adapters.aws.placement import ensure_placement_group
from hyperpod.adapters.aws.user_data import BootSettings, encode_user_data, render_user_data
from hyperpod.adapters.nvml import binding_file
from hyperpod.core.instance_hardware import expected_of
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.core.provision import ProvisionPlan, SeenNode, diff_cluster, wanted_nodes
from hyperpod.core.spec import ClusterSpec
from hyperpod.errors import CommandError, ConfigError, HyperpodError, InvalidState, NotFound, ProviderError
from hyperpod.ports.provider import Birth, Instance, NodeLaunch
from hyperpod.provisioning.node_files import Figures, node_launches

logger = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
SPEC: Final = "spec.json"
READY_TIMEOUT_S: Final = 3600.0
_POLL_S: Final = 5.0
_ROOT_GIB: Final = 100
_KEPT_MIB: Final = 1024
_SCRIPTS: Final = "/opt/hyperpod/lifecycle_scripts"
_PARTS: Final = (
    ("hyperpod", "lib/hyperpod"),
    ("lifecycle_scripts", "lifecycle_scripts"),
    ("spank_plugin", "src/spank_plugin"),
)
_LEFT_OUT: Final = ("__pycache__", "tests", "build")


@dataclass(frozen=True)
class Ec2Result:
    """What a creation or change did; ``failures`` are machines that are not born, by node."""

    plan: ProvisionPlan
    instances: tuple[Instance, ...] = ()
    failures: Mapping[str, Birth] | None = None


def cluster_folder(aws: Aws, spec: ClusterSpec) -> ClusterFolder:
    """Return the folder of a cluster in S3.

    Raises:
        ConfigError: The specification names no bucket.
    """
    bucket = spec.hyperpod.ec2.bucket
    for group in spec.instance_groups:
        parts = urlsplit(group.lifecycle.source or "")
        if not bucket and parts.scheme == "s3":
            bucket = parts.netloc
    if not bucket:
        raise ConfigError(
            "no bucket for the cluster's folder: neither Hyperpod.Ec2.Bucket nor a SourceS3Uri names one",
            hint="hyperpod prepare makes one",
        )
    return ClusterFolder(aws, bucket, default_prefix(spec.cluster_name))


def open_provider(aws: Aws, spec: ClusterSpec, *, software: str = "", **options: Any) -> Ec2Provider:
    """Return the provider with all that launches need; asks EC2 about types and images.

    Args:
        software: Name of the archive of our programs, as ``send_software`` returned it.
        options: Of the provider: the clock.
    """
    folder = cluster_folder(aws, spec)
    groups = group_settings(aws, spec, folder, software)
    return Ec2Provider(aws, spec.cluster_name, folder, groups, **options)


def group_settings(aws: Aws, spec: ClusterSpec, folder: ClusterFolder, software: str) -> dict[str, GroupSettings]:
    """Return how the machines of each group are made.

    Raises:
        ConfigError: Something is missing or does not exist: network, instance type, image.
    """
    block = spec.hyperpod.ec2
    types = describe_types(aws, {group.instance_type for group in spec.instance_groups})
    raw = {str(g.get("InstanceGroupName")): g for g in spec.aws_request.get("InstanceGroups", ())}
    images: dict[str, Image] = {}
    settings = {}
    for group in spec.instance_groups:
        shape = types[group.instance_type]
        architecture = shape.architectures[0] if "x86_64" not in shape.architectures else "x86_64"
        if architecture not in images:
            images[architecture] = find_image(aws, block.image, architecture)
        image = images[architecture]
        subnet, security_groups = _network(spec, raw.get(group.name, {}))
        boot = BootSettings(
            spec.cluster_name, group.name, aws.region_name, folder.bucket, folder.prefix, software or "none"
        )
        placement = ""
        if block.placement and group.role is Role.WORKER and shape.efa_interfaces and "cluster" in shape.strategies:
            placement = ensure_placement_group(aws, spec.cluster_name, group.name)
        settings[group.name] = GroupSettings(
            shape=shape,
            image_id=image.id,
            root_device=image.root_device,
            subnet=subnet,
            security_groups=security_groups,
            instance_profile=block.head_profile if group.role is Role.HEAD else block.node_profile,
            user_data=encode_user_data(render_user_data(boot)),
            root_volume_gib=_root_gib(raw.get(group.name, {}), image),
            market=_market(raw.get(group.name, {}), shape, block.reservations.get(group.name, "")),
            reservation_id=block.reservations.get(group.name, ""),
            placement_group=placement,
            threads_per_core=group.threads_per_core,
            key_name=block.key_name or "",
            tags=spec.tags,
        )
    return settings


def figures_of(groups: Mapping[str, GroupSettings], spec: ClusterSpec) -> dict[str, Figures]:
    """Return by instance type what Slurm counts: a sixteenth of the memory, at least 1 GiB, stays with the system."""
    figures = {}
    for group in spec.instance_groups:
        shape = groups[group.name].shape
        cpus = shape.cores * group.threads_per_core if group.threads_per_core else shape.vcpus
        kept = max(shape.memory_mib // 16, _KEPT_MIB)
        figures[group.instance_type] = Figures(min(cpus, shape.vcpus), max(shape.memory_mib - kept, 512))
    return figures


def hardware_of(groups: Mapping[str, GroupSettings], spec: ClusterSpec) -> dict[str, dict[str, int]]:
    """Return by instance type what its machines should have: by EC2's own word, where it has one."""
    hardware = {}
    for group in spec.instance_groups:
        shape = groups[group.name].shape
        interfaces = network_interfaces(shape, "", (), efa=groups[group.name].efa)
        efa = sum(str(interface.get("InterfaceType", "")).startswith("efa") for interface in interfaces)
        # AMD's GPUs are nothing that a check of ours counts.
        told = {"gpus": 0 if shape.name.startswith("g4ad.") else shape.gpus, "neuron_devices": shape.accelerators}
        known = expected_of(shape.name, efa=efa)
        hardware[group.instance_type] = known | {name: count for name, count in told.items() if count}
    return hardware


def launches_of(
    spec: ClusterSpec, provider: Ec2Provider, addresses: Mapping[str, str], plan: ProvisionPlan | None = None
) -> list[NodeLaunch]:
    """Return how each node is launched, with its files."""
    folder = provider.folder
    about = {
        "kind": "ec2",
        "cluster": spec.cluster_name,
        "region": provider.aws.region_name,
        "bucket": folder.bucket,
        "prefix": folder.prefix,
    }
    parameters = spec.provisioning_parameters or {}
    variables = {"HP_STORAGE": "head"}
    if parameters.get("fsx_dns_name"):
        variables = {
            "HP_STORAGE": "lustre",
            "HP_FSX_DNS": str(parameters["fsx_dns_name"]),
            "HP_FSX_MOUNT": str(parameters.get("fsx_mountname") or ""),
        }
    return node_launches(
        spec,
        addresses,
        keep=() if plan is None else plan.keep,
        figures=figures_of(provider.groups, spec),
        hardware=hardware_of(provider.groups, spec),
        provider=about,
        variables=variables,
    )


def create_cluster(
    spec: ClusterSpec,
    provider: Ec2Provider,
    progress: Progress = lambda _what, _share: None,
    *,
    force: bool = False,
    keep_failed: bool = False,
    wait: bool = True,
    timeout_s: float = READY_TIMEOUT_S,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ec2Result:
    """Make the cluster what the specification says, and wait until its machines are born and in Slurm. Also grows and
    shrinks it.

    Raises:
        NoCapacity: A group could not be had as a whole; the others are there, and the same call goes on.
        InvalidState: Not all machines are born in time.
    """
    plan = diff_cluster(spec, observe_nodes(provider, spec), force=force)
    provider.folder.write_json(SPEC, spec.to_json())
    missing = {node.name for node in plan.create} | {node.name for node in plan.start}
    placeholders = {name: "0.0.0.0" for name in _names(spec, plan)}
    progress(f"launching {len(missing)} machines", 0.1)
    # All of them, not only those that are missing: a run that was killed has left machines whose slots nobody wrote.
    provider.launch(launches_of(spec, provider, placeholders, plan))
    addresses = provider.addresses()
    progress("writing the nodes' files", 0.3)
    launches = launches_of(spec, provider, addresses, plan)
    provider.configure(launches)
    for gone in plan.remove:
        progress(f"removing {gone.name}", 0.4)
        provider.terminate(gone.instance_id)
        provider.forget_node(gone.name)
    for failed in () if keep_failed else plan.retry:
        provider.replace(failed.name, failed.instance_id, f"create-{failed.instance_id}")
    if plan.remove or (plan.create and len(missing) < len(launches)):
        refresh(provider, progress)
    failures: Mapping[str, Birth] = {}
    if wait:
        failures = _wait(spec, provider, progress, keep_failed, timeout_s, monotonic, sleep)
    return Ec2Result(plan, provider.observe(spec.cluster_name), failures)


def observe_nodes(provider: Ec2Provider, spec: ClusterSpec) -> tuple[SeenNode, ...]:
    """Return the machines of the cluster; those that would be removed are asked whether a job runs on them."""
    instances = [i for i in provider.observe(spec.cluster_name) if i.node]
    names = {node.name for node in wanted_nodes(spec)}
    surplus = {i.node for i in instances if i.node not in names and i.status is InstanceStatus.RUNNING}
    busy = _busy(provider, instances) if surplus else frozenset()
    slots = (provider.folder.read_json(CLUSTER) or {}).get("slots", {})
    partitions = {group.name: group.partition for group in spec.instance_groups}
    return tuple(
        SeenNode(
            i.node,
            i.group,
            i.id,
            # A spare that is stopped on purpose is as it should be.
            InstanceStatus.RUNNING if i.labels.get(ASLEEP) else i.status,
            is_busy=i.node in surplus and i.role is Role.WORKER and (busy is None or i.node in busy),
            partition=partitions.get(i.group) or slots.get(i.node, {}).get("partition"),
        )
        for i in instances
    )


def refresh(provider: Ec2Provider, progress: Progress = lambda _what, _share: None) -> list[str]:
    """Have running machines take over new files; return what went wrong, which the next boot mends."""
    problems: list[str] = []
    scripts = f"{_SCRIPTS}/cloud/fetch.sh && {_SCRIPTS}/steps/60_hyperpod.sh"

    def one(instance: Instance) -> None:
        script = f"{scripts} && {_SCRIPTS}/apply_slurm_conf.sh" if instance.role is Role.HEAD else scripts
        try:
            provider.connect(instance.id).run(["bash", "-c", script], timeout_s=120)
        except HyperpodError as error:
            problems.append(f"{instance.node}: {error.message}")

    running = [i for i in provider.observe(provider.cluster) if i.node and i.status is InstanceStatus.RUNNING]
    # Workers first: slurmctld must not hear of new neighbours before everybody knows their addresses.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, [instance for instance in running if instance.role is not Role.HEAD]))
    for head in (instance for instance in running if instance.role is Role.HEAD):
        one(head)
    for problem in problems:
        logger.warning("files not taken over %s", problem)
        progress(f"files not taken over yet: {problem}", 0.5)
    return problems


def stored_spec(folder: ClusterFolder) -> ClusterSpec:
    """Return the specification that a cluster was last created or changed with.

    Raises:
        NotFound: There is no such cluster.
    """
    data = folder.read_json(SPEC)
    if data is None:
        raise NotFound(f"no cluster in {folder.uri}", hint="is it the right bucket, account and region?")
    return ClusterSpec.from_json(data)


def delete_cluster(
    cluster: str, aws: Aws, folder: ClusterFolder, progress: Progress = lambda _what, _share: None, **options: Any
) -> DeleteReport:
    """Remove everything that carries the cluster's tag, and its folder."""
    progress(f"deleting {cluster}", 0.0)
    report = Ec2Provider(aws, cluster, folder, **options).delete()
    progress("deleted" if not report.left else "not everything could be deleted", 1.0)
    return report


def send_software(
    folder: ClusterFolder, root: Path | None = None, nvml: Callable[[], Path | None] = binding_file
) -> str:
    """Send our programs and scripts to the folder, unless these very ones are there; return their name.

    Args:
        root: Where ``hyperpod``, ``lifecycle_scripts`` and ``spank_plugin`` are; by default where this program is.
        nvml: Finds nvidia-ml-py, which goes along.
    """
    root = root or Path(hyperpod.__file__).parents[1]
    files: dict[str, bytes] = {}
    for source, target in _PARTS:
        for path in sorted((root / source).rglob("*")):
            relative = path.relative_to(root / source)
            if path.is_file() and not any(part in _LEFT_OUT for part in relative.parts):
                files[f"{target}/{relative.as_posix()}"] = path.read_bytes()
    binding = nvml()
    if binding is not None:
        files["lib/pynvml.py"] = binding.read_bytes()
    if not any(name.startswith("lifecycle_scripts/") for name in files):
        raise ConfigError(f"no lifecycle_scripts in {root}", hint="install hyperpod from its source folder")
    archive = _archive(files)
    name = hashlib.sha256(archive).hexdigest()[:16]
    if not any(True for _ in folder.entries(f"software/{name}.tar.gz")):
        folder.write(f"software/{name}.tar.gz", archive)
    return name


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Return a compressed archive; equal files give equal bytes. One request of each machine, not hundreds."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _wait(
    spec: ClusterSpec,
    provider: Ec2Provider,
    progress: Progress,
    keep_failed: bool,
    timeout_s: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> dict[str, Birth]:
    deadline = monotonic() + timeout_s
    names = [node.name for node in wanted_nodes(spec)]
    replaced: set[str] = set()
    while True:
        by_node = {i.node: i for i in provider.observe(spec.cluster_name)}
        waiting = {}
        failures = {}
        for name in names:
            instance = by_node.get(name)
            if instance is None or instance.status is InstanceStatus.GONE:
                waiting[name] = "no machine"
            elif instance.status is InstanceStatus.FAILED:
                failures[name] = provider.birth(instance.id)
            elif instance.status is not InstanceStatus.RUNNING and not instance.labels.get(ASLEEP):
                waiting[name] = instance.labels.get("state", instance.status.value)
        for name, birth in list(failures.items()):
            if not keep_failed and name not in replaced:
                # Once: a script that fails on two machines fails on the third.
                replaced.add(name)
                progress(f"{name}: its script failed, trying another machine", 0.5)
                provider.replace(name, birth.instance_id, f"create-{birth.instance_id}")
                waiting[name] = "another machine after a failed script"
        ready = len(names) - len(waiting) - len(set(failures) - set(waiting))
        progress(f"{ready} of {len(names)} nodes ready", 0.5 + 0.5 * ready / max(len(names), 1))
        if not waiting:
            return failures
        if monotonic() >= deadline:
            missing = ", ".join(f"{node} ({why})" for node, why in sorted(waiting.items())[:5])
            raise InvalidState(
                f"wait for cluster {spec.cluster_name} any longer",
                f"not ready after {timeout_s:g} s: {missing}",
                hint="create-cluster again goes on from here",
            )
        sleep(_POLL_S)


def _busy(provider: Ec2Provider, instances: Collection[Instance]) -> frozenset[str] | None:
    """Return the nodes that hold a job; None when nobody can say, which must be taken as "all of them"."""
    head = next((i for i in instances if i.role is Role.HEAD and i.status is InstanceStatus.RUNNING), None)
    if head is None:
        return None
    try:
        connection = provider.connect(head.id)
        done = connection.run(["squeue", "--noheader", "--states=R,CG,S,CF,SI,SO", "--format=%N"], timeout_s=60)
        hosts = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if not hosts:
            return frozenset()
        names = connection.run(["scontrol", "show", "hostnames", ",".join(hosts)], timeout_s=60)
    except (CommandError, ProviderError):
        return None
    return frozenset(names.stdout.split())


def _names(spec: ClusterSpec, plan: ProvisionPlan) -> list[str]:
    return [*(node.name for node in wanted_nodes(spec)), *(node.name for node in plan.keep)]


def _network(spec: ClusterSpec, raw: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    own = raw.get("OverrideVpcConfig") or {}
    subnets = own.get("Subnets") or (spec.vpc.subnets if spec.vpc else ())
    groups = own.get("SecurityGroupIds") or (spec.vpc.security_group_ids if spec.vpc else ())
    if not subnets or not groups:
        raise ConfigError(
            f"group {raw.get('InstanceGroupName', '')}: VpcConfig with a subnet and a security group is needed for EC2",
            hint="hyperpod prepare makes both and prints their ids",
        )
    if len(subnets) > 1:
        raise ConfigError(
            f"group {raw.get('InstanceGroupName', '')}: {len(subnets)} subnets; EC2 groups are in one",
            hint="nodes of one job must be near each other: name one subnet",
        )
    return str(subnets[0]), tuple(str(group) for group in groups)


def _root_gib(raw: Mapping[str, Any], image: Image) -> int:
    """The root volume holds what the request wants as volumes: EC2 nodes have one."""
    volumes = [c.get("EbsVolumeConfig") or {} for c in raw.get("InstanceStorageConfigs", ())]
    root = [int(v["VolumeSizeInGB"]) for v in volumes if v.get("RootVolume") and v.get("VolumeSizeInGB")]
    more = [int(v["VolumeSizeInGB"]) for v in volumes if not v.get("RootVolume") and v.get("VolumeSizeInGB")]
    return max(image.root_gib, *(root or [_ROOT_GIB])) + sum(more)


def _market(raw: Mapping[str, Any], shape: InstanceType, reservation: str) -> Market:
    wishes = raw.get("CapacityRequirements") or {}
    if "Spot" in wishes:
        if shape.markets and "spot" not in shape.markets:
            raise ConfigError(f"{ec2_type(shape.name)} is not offered as spot")
        return Market.SPOT
    # A capacity block is the only market of a type that knows no other, given by its reservation.
    if reservation and shape.markets == {"capacity-block"}:
        return Market.CAPACITY_BLOCK
    return Market.ON_DEMAND
