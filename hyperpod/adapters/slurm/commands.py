"""Command lines for Slurm's tools, as argument lists.

Pure: builds arguments and never runs them. Values come from slurmctld or from validated names; those that may
hold blanks (reasons) are one argument each, so no shell and no quoting is involved.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperpod.core.job import BATCH_STEP
from hyperpod.errors import UsageError

TOP_PRIORITY = 0xFFFFFFFD
"""The highest priority that Slurm accepts: 0xffffffff means infinite and 0xfffffffe "not set"."""

# Slurm's own numbers for steps that are not a count from 0 (slurm.h: SLURM_BATCH_SCRIPT and others).
_STEP_NAMES = {-4: "extern", -6: "interactive"}


def show_nodes(*, json: bool = True) -> list[str]:
    """Every node, also those of hidden partitions."""
    return ["scontrol", "--all", "show", "nodes", "--json"] if json else ["scontrol", "--all", "-o", "show", "nodes"]


def show_node(node: str, *, json: bool = True) -> list[str]:
    """One node."""
    return ["scontrol", "show", "node", node, "--json"] if json else ["scontrol", "-o", "show", "node", node]


def show_jobs(*, json: bool = True) -> list[str]:
    """Every job that slurmctld remembers.

    squeue and not ``scontrol show jobs --json``: that one (24.11.5) prints an empty list and ends with status 0
    when slurmctld does not answer.
    """
    if json:
        return ["squeue", "--json", "--all", "--states=all"]
    return ["scontrol", "--all", "-o", "show", "jobs"]


def show_job(job_id: int, *, json: bool = True) -> list[str]:
    """One job; for the id of an array, its tasks too."""
    if json:
        return ["squeue", "--json", "--all", "--states=all", f"--jobs={job_id}"]
    return ["scontrol", "--all", "-o", "show", "job", str(job_id)]


def show_partitions(*, json: bool = True) -> list[str]:
    """Every partition, hidden ones included."""
    if json:
        return ["scontrol", "--all", "show", "partitions", "--json"]
    return ["scontrol", "--all", "-o", "show", "partitions"]


def set_node_state(node: str, state: str, reason: str = "") -> list[str]:
    """Set a node's state (``down``, ``drain``, ``resume``, ``undrain``)."""
    argv = ["scontrol", "update", f"nodename={node}", f"state={state}"]
    return [*argv, f"reason={reason}"] if reason else argv


def set_node_address(node: str, address: str) -> list[str]:
    """Set the address that slurmctld uses for a node."""
    return ["scontrol", "update", f"nodename={node}", f"nodeaddr={address}", f"nodehostname={node}"]


def set_partition_nodes(partition: str, nodes: Sequence[str]) -> list[str]:
    """Set a partition's members; an empty list empties it."""
    return ["scontrol", "update", f"partitionname={partition}", f"nodes={','.join(nodes)}"]


def set_job(job_id: int, name: str, value: str) -> list[str]:
    """Set one field of a job."""
    return ["scontrol", "update", f"jobid={job_id}", f"{name}={value}"]


def requeue(job_id: int) -> list[str]:
    """Put a job back in the queue."""
    return ["scontrol", "requeue", str(job_id)]


def release(job_id: int) -> list[str]:
    """Lift the hold of a job."""
    return ["scontrol", "release", str(job_id)]


def kill_step(job_id: int, step_id: int) -> list[str]:
    """Kill one step; ``BATCH_STEP`` means the batch script.

    Restricted to running jobs: without that, killing the batch script of a job which has been requeued in the
    meantime cancels the waiting job (24.11.5).

    Raises:
        UsageError: for a negative step id that has no name.
    """
    if step_id == BATCH_STEP:
        return ["scancel", "--state=RUNNING", "--signal=KILL", "--batch", str(job_id)]
    if step_id < 0 and step_id not in _STEP_NAMES:
        raise UsageError(f"step {step_id} of job {job_id} cannot be killed alone")
    return ["scancel", "--state=RUNNING", "--signal=KILL", f"{job_id}.{_STEP_NAMES.get(step_id, step_id)}"]
