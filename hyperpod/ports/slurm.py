"""Slurm as a port: what the controller reads from it and asks of it.

Every method carries a deadline inside its adapter. Reads raise ``SlurmUnavailable`` when slurmctld does not
answer: an unknown state is never an empty one. Writes are safe to repeat and accept "already so".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hyperpod.core.job import JobView
from hyperpod.core.node import Availability


@dataclass(frozen=True)
class NodeState:
    """One node as slurmctld knows it; times are aware UTC, memory in MiB."""

    name: str
    availability: Availability
    is_drained: bool = False
    is_fail: bool = False
    is_completing: bool = False
    is_responding: bool = True
    is_rebooting: bool = False
    is_allocated: bool = False
    reason: str = ""
    reason_by: str = ""
    reason_at: datetime | None = None
    address: str = ""
    cpus: int = 0
    memory_mib: int = 0
    boot_at: datetime | None = None
    slurmd_started_at: datetime | None = None
    partitions: tuple[str, ...] = ()


class Slurm(Protocol):
    """The requests to Slurm that the product needs."""

    def nodes(self) -> tuple[NodeState, ...]:
        """Return every node of the cluster, hidden partitions included."""
        ...

    def jobs(self) -> tuple[JobView, ...]:
        """Return every job that slurmctld remembers; array tasks and het components one by one."""
        ...

    def job(self, job_id: int) -> JobView | None:
        """Return one job, or None when slurmctld answers that it does not know it."""
        ...

    def partitions(self) -> Mapping[str, tuple[str, ...]]:
        """Return the expanded node names of every partition, hidden ones included."""
        ...

    def saved_environment(self, job_id: int) -> Mapping[str, str] | None:
        """Return the environment stored with a batch job, or None when it is not there to read."""
        ...

    def set_down(self, node: str, reason: str) -> None:
        """Mark a node DOWN and DRAIN: its jobs are requeued at once and it does not come back by itself."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Keep new work away from a node; running jobs stay."""
        ...

    def undrain(self, node: str) -> None:
        """Allow work again (Slurm's own word is RESUME)."""
        ...

    def update_address(self, node: str, address: str) -> None:
        """Tell slurmctld a new address for a node."""
        ...

    def set_partition_nodes(self, partition: str, nodes: Sequence[str]) -> None:
        """Set the members of a partition."""
        ...

    def allow_requeue(self, job_id: int) -> None:
        """Let a job be requeued although it was submitted with ``--no-requeue``."""
        ...

    def forbid_requeue(self, job_id: int) -> None:
        """Have Slurm end a job whose node dies, instead of requeueing it by itself."""
        ...

    def requeue(self, job_id: int) -> None:
        """Put a running or ended job back in the queue; a pending one stays as it is."""
        ...

    def start_now(self, job_id: int) -> None:
        """Set a pending job's begin time to now."""
        ...

    def set_excluded(self, job_id: int, nodes: Sequence[str]) -> None:
        """Set the nodes that a pending job must not get (the whole list; empty clears it)."""
        ...

    def set_top_priority(self, job_id: int) -> None:
        """Give a pending job its place at the head of its queue."""
        ...

    def release(self, job_id: int) -> None:
        """Release a job that Slurm holds."""
        ...

    def kill_step(self, job_id: int, step_id: int) -> None:
        """Kill one step of a job with SIGKILL, or the batch script for step -5."""
        ...
