"""Slurm's configuration files, as text made from what the cluster should be. Pure.

Owns the choice of every parameter, each with its reason in the file itself (administrators read that, not this).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SLURMCTLD_PORT = 6817
SLURMD_PORT = 6818
SPARE_PARTITION = "hyperpod-spare"
STATE_DIR = "/var/spool/slurmctld"
PLUGIN_PATH = "/usr/lib/x86_64-linux-gnu/slurm-wlm/hyperpod.so"


@dataclass(frozen=True)
class SlurmNode:
    """A worker as slurm.conf describes it. ``address`` keeps slurmctld from asking a resolver that may block."""

    name: str
    address: str
    cpus: int
    memory_mb: int


@dataclass(frozen=True)
class SlurmPartition:
    """A partition of users; ``nodes`` in the order they were made."""

    name: str
    nodes: tuple[str, ...]
    is_default: bool = False


@dataclass(frozen=True)
class SlurmLayout:
    """All that slurm.conf depends on: no instance is named in it, so a replaced machine changes nothing.

    Attributes:
        spares: Nodes that wait in the hidden partition until the controller needs them.
        slurmd_timeout_s: Silence after which slurmctld by itself calls a node down.
        default_time_s: Time limit of jobs that give none; None leaves it unlimited.
        parameters: More parameters; one that is set here already takes their value.
    """

    cluster: str
    head_name: str
    head_address: str
    nodes: tuple[SlurmNode, ...]
    partitions: tuple[SlurmPartition, ...]
    spares: tuple[str, ...] = ()
    slurmd_timeout_s: int = 300
    default_time_s: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


# (comment, parameters). A comment stands above the parameters it explains.
_FIXED: Sequence[tuple[str, Mapping[str, str]]] = (
    (
        "who runs what, where",
        {
            "SlurmUser": "slurm",
            "SlurmctldPort": str(SLURMCTLD_PORT),
            "SlurmdPort": str(SLURMD_PORT),
            "AuthType": "auth/munge",
            "CredType": "cred/munge",
            "StateSaveLocation": STATE_DIR,
            "SlurmdSpoolDir": "/var/spool/slurmd",
            "SlurmctldPidFile": "/run/slurmctld/slurmctld.pid",
            "SlurmdPidFile": "/run/slurm/slurmd.pid",
            "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
            "SlurmdLogFile": "/var/log/slurm/slurmd.log",
            "SlurmctldDebug": "info",
            "SlurmdDebug": "info",
            "LogTimeFormat": "iso8601_ms",
        },
    ),
    (
        "workers fetch all of this from here",
        {"SlurmctldParameters": "enable_configless"},
    ),
    (
        "a credential's life is also how long a requeued job waits (120 s by default); it must outlast the start of\n"
        "# a job on a loaded node. The controller shortens the wait further; this is what remains without it.",
        {"AuthInfo": "cred_expire=30"},
    ),
    (
        "a node that went down comes back only when the controller has checked it, or by hand",
        {"ReturnToService": "0"},
    ),
    (
        "no cgroups: nodes may be containers, where the hierarchy belongs to the host",
        {
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "MpiDefault": "none",
        },
    ),
    (
        "the figures below are promises to Slurm, several nodes may share one machine's cores",
        {
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SlurmdParameters": "config_overrides",
        },
    ),
    (
        "start a job as soon as it can run: the defaults look at the queue every 30 and 60 s. First come, first\n"
        "# served, so that a requeued job has its old place in front of those which came after it.",
        {
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=50000,bf_interval=2,"
            "bf_continue",
            "PriorityType": "priority/basic",
        },
    ),
    (
        "an unreachable node must not hold up the answers to everybody else: short connects, no relay through nodes",
        {"TCPTimeout": "1", "MessageTimeout": "10", "TreeWidth": "1024"},
    ),
    (
        "a requeued job's log is continued; jobs are remembered long enough to ask why they ended",
        {"JobRequeue": "1", "JobFileAppend": "1", "MinJobAge": "3600"},
    ),
    (
        "a task that ignores SIGTERM is killed soon, the next attempt waits for it",
        {"KillWait": "5", "InactiveLimit": "0", "UnkillableStepTimeout": "60"},
    ),
    (
        "limits of the submitting shell make no sense on another machine",
        {"PropagateResourceLimitsExcept": "MEMLOCK,NOFILE,NPROC"},
    ),
    ("", {"AccountingStorageType": "accounting_storage/none", "JobCompType": "jobcomp/none"}),
)


def render_slurm_conf(layout: SlurmLayout) -> str:
    """Return slurm.conf. The same layout gives the same text, whatever the order of ``parameters``."""
    extra = {name.lower(): (name, value) for name, value in layout.parameters.items()}
    lines = [
        "# Written by hyperpod; changes by hand are undone. Add parameters in the specification (Hyperpod.Slurm).",
        f"ClusterName={layout.cluster}",
        f"SlurmctldHost={layout.head_name}({layout.head_address})",
        f"SlurmdTimeout={layout.slurmd_timeout_s}",
    ]
    for comment, parameters in _FIXED:
        lines += [""] + ([f"# {comment}"] if comment else [])
        for name, value in parameters.items():
            lines.append(f"{name}={extra.pop(name.lower(), (name, value))[1]}")
    if extra:
        lines += ["", "# from the specification"]
        lines += [f"{name}={value}" for name, value in sorted(extra.values())]
    lines += ["", "# nodes and partitions"]
    lines += [
        f"NodeName={node.name} NodeAddr={node.address} Port={SLURMD_PORT} CPUs={node.cpus} "
        f"RealMemory={node.memory_mb} State=UNKNOWN"
        for node in layout.nodes
    ]
    for partition in layout.partitions:
        lines.append(_partition(partition, layout.default_time_s))
    if layout.spares:
        lines.append(
            f"PartitionName={SPARE_PARTITION} Nodes={','.join(layout.spares)} Default=NO Hidden=YES RootOnly=YES "
            "State=UP"
        )
    return "\n".join(lines) + "\n"


def _partition(partition: SlurmPartition, default_time_s: int | None) -> str:
    # An empty Nodes= would mean every node to some releases; a partition without the key has none.
    nodes = f"Nodes={','.join(partition.nodes)} " if partition.nodes else ""
    time = "" if default_time_s is None else f" DefaultTime={max(1, -(-default_time_s // 60))}"
    default = "YES" if partition.is_default else "NO"
    return f"PartitionName={partition.name} {nodes}Default={default} MaxTime=INFINITE{time} State=UP"


def render_cgroup_conf() -> str:
    """Return cgroup.conf: with the plugins above, Slurm must not look for a cgroup hierarchy at all."""
    return "CgroupPlugin=disabled\n"


def render_plugstack_conf(*, default_on: bool = False) -> str:
    """Return plugstack.conf. ``optional``: a plugin that does not load is reported by the agent, jobs still run.

    ``default_on`` arms jobs that say nothing; the plugin waits for an attempt's variables in armed jobs only.
    """
    return f"optional {PLUGIN_PATH}{' default=on' if default_on else ''}\n"
