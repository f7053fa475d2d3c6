"""The configuration files of every node, made from the specification and the nodes' addresses. Pure.

No instance is named in them, so a replacement needs no new ones.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperpod.adapters.nodeconfig import peers_of
from hyperpod.adapters.slurm.conf import (
    SlurmLayout,
    SlurmNode,
    SlurmPartition,
    render_cgroup_conf,
    render_plugstack_conf,
    render_slurm_conf,
)
from hyperpod.core.deep import CHECK as DEEP
from hyperpod.core.node import Role
from hyperpod.core.policy import Mode, mode_in, modes_of
from hyperpod.core.provision import WantedNode, wanted_nodes
from hyperpod.core.settings import plain_checks
from hyperpod.core.spec import ClusterSpec, spec_policies
from hyperpod.ports.provider import NodeLaunch

CONTROLLER_PORT = 6830
METRICS_PORT = 9630
KMSG_PATH = "/var/log/hyperpod/kmsg"
SYSFS_PATH = "/run/hyperpod/sysfs"
BOOT_ID_PATH = "/run/hyperpod/boot_id"
SHARED_MOUNTS = ("/fsx", "/home")
_PARAMETERS_FILE = "provisioning_parameters.json"


@dataclass(frozen=True)
class Figures:
    """What Slurm is told of a machine: processors, and memory in MiB less what its system needs."""

    cpus: int
    memory_mb: int


def slurm_layout(
    spec: ClusterSpec,
    addresses: Mapping[str, str],
    *,
    keep: Sequence[WantedNode] = (),
    figures: Mapping[str, Figures] | None = None,
) -> SlurmLayout:
    """Return what slurm.conf has to say about this cluster.

    Args:
        keep: Nodes to be removed that still have a job.
        figures: By instance type; without them those of nodes on this machine.
    """
    nodes = [*wanted_nodes(spec), *keep]
    head = next(node for node in nodes if node.role is Role.HEAD)
    workers = [node for node in nodes if node.role is Role.WORKER]
    local, slurm = spec.hyperpod.local, spec.hyperpod.slurm
    here = Figures(local.cpus_per_node or os.cpu_count() or 1, local.memory_per_node)

    def figures_of(node: WantedNode) -> Figures:
        return here if figures is None else figures.get(node.instance_type, Figures(1, 1024))

    names = list(dict.fromkeys(node.partition for node in workers if node.partition))
    names += [group.partition for group in spec.workers if group.partition and group.partition not in names]
    return SlurmLayout(
        cluster=spec.cluster_name,
        head_name=head.name,
        head_address=addresses[head.name],
        nodes=tuple(
            SlurmNode(node.name, addresses[node.name], figures_of(node).cpus, figures_of(node).memory_mb)
            for node in workers
        ),
        partitions=tuple(
            SlurmPartition(
                name,
                tuple(node.name for node in workers if node.partition == name and not node.is_spare),
                is_default=name == spec.default_partition,
            )
            for name in names
        ),
        spares=tuple(node.name for node in workers if node.is_spare),
        slurmd_timeout_s=int(slurm.slurmd_timeout.total_seconds()),
        default_time_s=None if slurm.job_default_time is None else int(slurm.job_default_time.total_seconds()),
        parameters=slurm.parameters,
    )


def node_launches(
    spec: ClusterSpec,
    addresses: Mapping[str, str],
    *,
    keep: Sequence[WantedNode] = (),
    image_reference: str = "",
    figures: Mapping[str, Figures] | None = None,
    hardware: Mapping[str, Mapping[str, int]] | None = None,
    provider: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
) -> list[NodeLaunch]:
    """Return how each node of the specification is launched, head first.

    Args:
        figures: As ``slurm_layout``; given for machines that are not on this one.
        hardware: What machines should have, by instance type; without it nothing is expected of them.
        provider: What the controller must know of the provider; without it the local one's.
        variables: More variables for the lifecycle scripts.
    """
    nodes = wanted_nodes(spec)
    layout = slurm_layout(spec, addresses, keep=keep, figures=figures)
    launches = []
    for index, node in enumerate(nodes):
        lifecycle = spec.group(node.group).lifecycle
        files = {
            "node.env": _node_env(spec, node, layout, variables or {}),
            "agent.json": _json(
                _agent_config(spec, index, nodes, addresses, layout, is_here=figures is None)
                | {"expected": dict((hardware or {}).get(node.instance_type, {}))}
            ),
        }
        if node.role is Role.HEAD:
            files["slurm.conf"] = render_slurm_conf(layout)
            files["cgroup.conf"] = render_cgroup_conf()
            files["plugstack.conf"] = render_plugstack_conf(default_on=spec.hyperpod.resume.default)
            files["controller.json"] = _json(_controller_config(spec, [*nodes, *keep], addresses, provider))
        source = lifecycle.source or ""
        is_beside = "://" not in source and (Path(source) / _PARAMETERS_FILE).exists()
        if source and spec.provisioning_parameters is not None and not is_beside:
            files[f"lifecycle/{_PARAMETERS_FILE}"] = _json(spec.provisioning_parameters)
        launches.append(
            NodeLaunch(
                cluster=spec.cluster_name,
                node=node.name,
                group=node.group,
                role=node.role,
                instance_type=node.instance_type,
                files=files,
                lifecycle_source=source if lifecycle.on_create or lifecycle.on_init_complete else "",
                image=spec.hyperpod.local.image.value,
                image_reference=image_reference,
                shared_storage=spec.hyperpod.shared_storage or "",
            )
        )
    return launches


def _node_env(spec: ClusterSpec, node: WantedNode, layout: SlurmLayout, more: Mapping[str, str]) -> str:
    lifecycle = spec.group(node.group).lifecycle
    variables = {
        "HP_CLUSTER": spec.cluster_name,
        "HP_NODE": node.name,
        "HP_GROUP": node.group,
        "HP_ROLE": node.role.value,
        "HP_HEAD_NODE": layout.head_name,
        "HP_HEAD_ADDRESS": layout.head_address,
        "HP_INSTANCE_TYPE": node.instance_type,
        "HP_SHARED_MOUNTS": " ".join(SHARED_MOUNTS),
        "HP_ON_CREATE": lifecycle.on_create or "",
        "HP_ON_INIT_COMPLETE": lifecycle.on_init_complete or "",
        **more,
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())


def _agent_config(
    spec: ClusterSpec,
    index: int,
    nodes: Sequence[WantedNode],
    addresses: Mapping[str, str],
    layout: SlurmLayout,
    *,
    is_here: bool,
) -> dict[str, Any]:
    node = nodes[index]
    policies = spec_policies(spec)
    worker = next((worker for worker in layout.nodes if worker.name == node.name), None)
    health = plain_checks(spec.hyperpod.health, node.group)
    # A node must not wait for what is switched off.
    has_deep = mode_in(modes_of(health), DEEP) is not Mode.OFF
    return {
        "cluster": spec.cluster_name,
        "node": node.name,
        "group": node.group,
        "role": node.role.value,
        # Filled in on the machine itself.
        "instance_id": "",
        "address": addresses[node.name],
        "head_node": layout.head_name,
        "head_address": layout.head_address,
        "controller_port": CONTROLLER_PORT,
        # Nodes on one machine share its kernel's log; a machine of its own has its own.
        "kmsg_path": KMSG_PATH if is_here else "/dev/kmsg",
        # Nor is the device tree a node's own; what a rehearsal puts there is.
        "sysfs_path": SYSFS_PATH if is_here else "/sys",
        "boot_id_path": BOOT_ID_PATH,
        "shared_mounts": list(SHARED_MOUNTS),
        # Slurm may be promised more processors than this machine has; the check looks for those that are gone.
        "cpus": None if worker is None else min(worker.cpus, os.cpu_count() or worker.cpus) if is_here else worker.cpus,
        "memory_mb": None if worker is None else worker.memory_mb,
        "heartbeat_interval_s": policies["resume"]["heartbeat_interval_s"],
        "lease_s": policies["resume"]["lease_s"],
        "peers": [
            {"node": other.name, "address": addresses[other.name], "role": other.role.value}
            for other in peers_of(nodes, index, lambda n: n.role is Role.WORKER)
        ],
        "deep_on_start": list(spec.group(node.group).deep_checks) if node.role is Role.WORKER and has_deep else [],
        "health": health,
    }


def _controller_config(
    spec: ClusterSpec,
    nodes: Sequence[WantedNode],
    addresses: Mapping[str, str],
    provider: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
        "cluster": spec.cluster_name,
        "port": CONTROLLER_PORT,
        "metrics_port": METRICS_PORT,
        "state_dir": "/var/lib/hyperpod",
        "slurm_state_dir": "/var/spool/slurmctld",
        "provider": dict(provider)
        if provider is not None
        else {"kind": spec.provider.value, "socket": "/run/hyperpod-cloud/provider.sock"},
        "policies": spec_policies(spec),
        "nodes": [
            {
                "node": node.name,
                "group": node.group,
                "role": node.role.value,
                "address": addresses[node.name],
                "partition": node.partition,
                "spare": node.is_spare,
            }
            for node in nodes
        ],
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
