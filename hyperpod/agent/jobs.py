"""Which processes on this node belong to which Slurm job, and what is remembered of the jobs.

The search is pure: it works on a list of processes. slurmstepd names the job in its title
(``slurmstepd: [1234.batch]``); everything below it belongs to the job, and so does a process that was started with
the job's SLURM_JOB_ID and has left that tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyperpod.health.slurmstepd import job_of
from hyperpod.ports.host import Process


def jobs_on_node(processes: Iterable[Process]) -> frozenset[int]:
    """Return the ids of the jobs that have a slurmstepd here."""
    return frozenset(job for job in (job_of(p) for p in processes) if job is not None)


def processes_of_jobs(
    processes: Sequence[Process],
    job_ids: Collection[int],
    environment: Callable[[int], Mapping[str, str]],
    started_before: float | None = None,
) -> tuple[int, ...]:
    """Return the process ids of these jobs' programs.

    slurmstepd itself is left alive: it sees its tasks die, cleans up and reports their end to Slurm. With
    ``started_before`` the attempt is over for Slurm already and only its leftovers are wanted: then slurmstepd is
    one of them (it may wait long for a dead peer), and what was started later belongs to the next attempt.

    Args:
        processes: All processes of the node.
        job_ids: The jobs.
        environment: Reads a process's initial environment; asked only for users' processes outside of the trees.
        started_before: Seconds on this machine's boot clock, or None for every process of the jobs.
    """
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: set[int] = set()
    queue = [p for p in processes if job_of(p) in job_ids]
    if started_before is not None:
        queue = [p for p in queue if p.started_at < started_before]
        found.update(p.pid for p in queue)
    while queue:
        parent = queue.pop()
        for child in children.get(parent.pid, ()):
            if child.pid not in found:
                queue.append(child)
                if not (child.uid == 0 and child.name.startswith("slurmstepd")):
                    found.add(child.pid)
    wanted = {str(job_id) for job_id in job_ids}
    for process in processes:
        if process.uid == 0 or process.pid in found:
            continue
        if started_before is not None and process.started_at >= started_before:
            continue
        if environment(process.pid).get("SLURM_JOB_ID") in wanted:
            found.add(process.pid)
    return tuple(sorted(found))


@dataclass(frozen=True)
class KnownJob:
    """What a job's requests have told: enough to serve it while the controller is away.

    ``is_armed`` is None while nothing said whether it is to be resumed.
    """

    job_id: int
    uid: int
    restart_count: int = 0
    checkpoint_dir: str = ""
    is_armed: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KnownJob:
        """Build from ``to_dict``'s output.

        Raises:
            KeyError, ValueError, TypeError: if it is not one.
        """
        armed = data.get("is_armed")
        return cls(
            job_id=int(data["job_id"]),
            uid=int(data["uid"]),
            restart_count=int(data.get("restart_count", 0)),
            checkpoint_dir=str(data.get("checkpoint_dir", "")),
            is_armed=None if armed is None else bool(armed),
        )


def jobs_to_fence(here: Collection[int], known: Mapping[int, KnownJob]) -> tuple[int, ...]:
    """Return the jobs whose processes must be killed when this node is cut off.

    A job that is known not to be resumed stays: nothing of ours starts it elsewhere. One that nothing is known of
    is killed, because two attempts that write one checkpoint are worse than an attempt lost.
    """
    return tuple(sorted(job for job in here if job not in known or known[job].is_armed is not False))
