"""Nodes whose machine came back with another address than Slurm knows. Only computes."""

from __future__ import annotations

import ipaddress

from hyperpod.core import plan as do
from hyperpod.core.node import InstanceStatus
from hyperpod.core.snapshot import Snapshot


def decide_addresses(snapshot: Snapshot) -> tuple[do.MoveAddress, ...]:
    """Tell Slurm the address of every machine that lives elsewhere than it believes.

    Pure and level-based: whoever replaced the machine, and whether or not we lived to see it. A name in place of an
    address is left alone, and so is everything while a source is silent.
    """
    if not snapshot.is_complete:
        return ()
    return tuple(
        do.MoveAddress(f"{node.name} is at {node.address}, not at {node.slurm_address}", node.name, node.address)
        for node in sorted(snapshot.nodes, key=lambda n: n.name)
        if node.address != node.slurm_address
        and node.instance_status in (InstanceStatus.PENDING, InstanceStatus.RUNNING)
        and _is_address(node.address)
        and _is_address(node.slurm_address)
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
