"""The agent's configuration file: what it must say, and what holds when it says nothing.

Generated when a cluster is made and completed on the machine when an instance is born. A value that cannot be used
ends the agent with the reason; a key that is not known is only noted, so that a file of a newer version still serves.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hyperpod.core.node import Role
from hyperpod.errors import ConfigError

DEFAULT_PATH = "/etc/hyperpod/agent.json"


@dataclass(frozen=True)
class Peer:
    """Another node of the cluster."""

    node: str
    address: str


@dataclass(frozen=True)
class AgentSettings:
    """Everything that the agent is told.

    Attributes:
        cluster, node, group, role, instance_id: Who this machine is.
        address: Own address as the cluster knows it; empty: not checked.
        head_address, controller_port: Where the controller listens.
        socket_path: Where the plugin and ``hyperpod health`` find the agent.
        jobs_dir: Where a job finds its files (``peer_lost``).
        state_dir: What outlives a restart of the agent: kernel log position, unsent task exits.
        boot_id_path: A file with this boot's id, where the kernel's own does not tell boots apart; empty: the kernel's.
        kmsg_path: ``/dev/kmsg``, or a file with the same records on a node that shares its kernel.
        sysfs_path: The kernel's device tree, or a folder with one that was made for a rehearsal.
        shared_mounts: Folders that every node shares.
        heartbeat_interval_s: 1 s: three misses are noticed within the 5 s that a dead node may cost.
        lease_s: Without contact for this long, and without reaching peers, jobs that may have been started
            elsewhere are killed here.
        peers: Other workers, to tell "I am cut off" from "the head node is away"; those of other roles in the file are
            left out.
        slurmd_port: Their port to probe.
        metadata_endpoint: The cloud's metadata service; empty: there is none, and nothing is asked.
        health: Settings by check, see docs/guides/health-checks.md.
        deep_on_start: Deep checks to be done before this boot's first job (``InstanceStress``,
            ``InstanceConnectivity``).
        expected_cpus, expected_memory_mib: Slurm's figures for this node (``cpus`` and ``memory_mb`` in the file).
        expected: What a machine of this instance type has, by the names of inventories; what is not in it is not known.
        ignored: Keys that are not known, each with the nearest known one.
    """

    cluster: str
    node: str
    group: str
    role: Role
    head_address: str
    instance_id: str = ""
    address: str = ""
    controller_port: int = 6830
    socket_path: str = "/run/hyperpod/agent.sock"
    jobs_dir: str = "/run/hyperpod/jobs"
    state_dir: str = "/var/lib/hyperpod-agent"
    boot_id_path: str = ""
    kmsg_path: str = "/dev/kmsg"
    sysfs_path: str = "/sys"
    shared_mounts: tuple[str, ...] = ()
    heartbeat_interval_s: float = 1.0
    lease_s: float = 10.0
    peers: tuple[Peer, ...] = ()
    slurmd_port: int = 6818
    metadata_endpoint: str = ""
    health: Mapping[str, Any] = field(default_factory=dict)
    expected_cpus: int | None = None
    expected_memory_mib: int | None = None
    deep_on_start: tuple[str, ...] = ()
    expected: Mapping[str, float] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


_NEEDED = ("cluster", "node", "group", "role", "head_address")
_TEXTS = (
    "cluster", "node", "group", "head_address", "instance_id", "address", "socket_path", "jobs_dir", "state_dir",
    "boot_id_path", "kmsg_path", "sysfs_path", "head_node", "metadata_endpoint",
)  # fmt: skip
_NUMBERS = {"heartbeat_interval_s": (0.1, 60.0), "lease_s": (2.0, 3600.0)}
_PORTS = ("controller_port", "slurmd_port")
_COUNTS = {"cpus": "expected_cpus", "memory_mb": "expected_memory_mib"}
_LISTS = ("shared_mounts", "peers", "deep_on_start")
_KNOWN = (*_TEXTS, "role", *_NUMBERS, *_PORTS, *_COUNTS, *_LISTS, "health", "expected")


def parse_settings(text: str, source: str) -> AgentSettings:
    """Read the configuration.

    Args:
        text: JSON, one object.
        source: Where it is from, for messages.
    Raises:
        ConfigError: naming the key that is wrong, and what is allowed.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: must hold one JSON object")
    for key in _NEEDED:
        if not data.get(key):
            raise ConfigError(f"{source}: {key}: is missing")
    values: dict[str, Any] = {"ignored": tuple(_described(key) for key in data if key not in _KNOWN)}
    for key in _TEXTS:
        if data.get(key) is not None:
            if not isinstance(data[key], str):
                raise ConfigError(f"{source}: {key}: must be a text")
            values[key] = data[key]
    for key, (low, high) in _NUMBERS.items():
        if data.get(key) is not None:
            values[key] = _number(source, key, data[key], low, high)
    for key in _PORTS:
        if data.get(key) is not None:
            values[key] = int(_number(source, key, data[key], 1, 65535))
    try:
        values["role"] = Role(data["role"])
    except ValueError as error:
        raise ConfigError(f"{source}: role: must be one of {', '.join(r.value for r in Role)}") from error
    values["shared_mounts"] = _texts(source, "shared_mounts", data.get("shared_mounts") or [])
    values["deep_on_start"] = _texts(source, "deep_on_start", data.get("deep_on_start") or [])
    values["peers"] = _peers(source, data.get("peers") or [], data["node"])
    health = data.get("health") or {}
    if not isinstance(health, dict):
        raise ConfigError(f"{source}: health: must be an object")
    values["health"] = health
    expected = data.get("expected") or {}
    if not isinstance(expected, dict):
        raise ConfigError(f"{source}: expected: must be an object of numbers")
    values["expected"] = {key: _number(source, f"expected.{key}", count, 0, 1e9) for key, count in expected.items()}
    for key, name in _COUNTS.items():
        if data.get(key) is not None:
            values[name] = int(_number(source, key, data[key], 1, 1e9))
    values.pop("head_node", None)
    return AgentSettings(**values)


def _described(key: str) -> str:
    close = difflib.get_close_matches(key, _KNOWN, n=1)
    return f"{key} (did you mean {close[0]}?)" if close else key


def _number(source: str, key: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(f"{source}: {key}: must be a number from {low:g} to {high:g}")
    return float(value)


def _texts(source: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{source}: {key}: must be a list of texts")
    return tuple(value)


def _peers(source: str, value: object, own: str) -> tuple[Peer, ...]:
    try:
        peers = [
            Peer(str(item["node"]), str(item["address"]))
            for item in value  # type: ignore[attr-defined]
            if item.get("role", "worker") == "worker"
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{source}: peers: must be a list of objects with node and address") from error
    return tuple(peer for peer in peers if peer.node != own)
