"""No process of a job is left when the job has ended; one that hangs in the kernel never will be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import AT_ONCE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.slurmstepd import job_of
from hyperpod.ports.host import Host, Process

NAME = "leftovers"

_Id = tuple[int, float]
"""A process's number and start: numbers are used again."""


@dataclass
class _Left:
    job_id: int
    since: float
    stuck_since: float | None = None
    looks_stuck: int = 0


@dataclass
class LeftoversCheck:
    """Looks at users' processes that no running job accounts for."""

    about: ClassVar[About] = About(
        title="No process of an ended job is left",
        reads="/proc of users' processes: their ancestors, their initial SLURM_JOB_ID, their state.",
        means="A process below a slurmstepd belongs to a running job; one that was started by a job which has no "
        "slurmstepd any more is left over. The epilog gets half a minute to end it. State D is a wait in the kernel "
        "that no signal ends: the device or file system behind it is stuck.",
        does="A leftover is WARN and the user's: it takes memory and devices from the next job. One that is in state D "
        "at every look for a minute after its job's end is FATAL, REBOOT: nothing else frees what it holds.",
        codes={
            "ProcessesLeft": "Processes of a job that has ended are still there.",
            "ProcessesStuck": "Processes of a job that has ended hang in the kernel and cannot be killed.",
        },
        source="Slurm's Kill task failed; GCM and soperator look for processes without a job.",
    )
    least_uid: int = setting(1000, "Users' numbers begin here; system accounts have no jobs.")
    left_s: float = setting(30.0, "Seconds after a job's end that its epilog may take to clean up.")
    stuck_s: float = setting(60.0, "Seconds in state D after the job's end from which the node is rebooted.")
    interval_s: float = setting(30.0, "Seconds between two looks.")
    deadline_s: float = 10.0
    name: str = NAME
    damping: Damping = AT_ONCE
    is_quick: bool = False
    is_basic: bool = False
    is_job_end: bool = True
    roles: frozenset[Role] = WORKERS
    _left: dict[_Id, _Left] = field(default_factory=dict, repr=False)
    _started_by: dict[_Id, int] = field(default_factory=dict, repr=False)

    def run(self, ports: Ports) -> Result:
        """Look at every process of users once."""
        host, now = ports.host, ports.host.monotonic()
        found = self._without_job(host, ports.facts.jobs)
        self._left = {key: self._aged(key, job_id, process, now) for key, (job_id, process) in found.items()}
        findings: list[Finding] = []
        for job_id in sorted({left.job_id for left in self._left.values()}):
            mine = {key[0]: left for key, left in self._left.items() if left.job_id == job_id}
            stuck = [
                pid
                for pid, left in mine.items()
                if left.stuck_since is not None and now - left.stuck_since >= self.stuck_s and left.looks_stuck >= 3
            ]
            old = [pid for pid, left in mine.items() if now - left.since >= self.left_s]
            if stuck:
                text = f"{len(stuck)} processes of job {job_id}, which has ended, hang in the kernel (pid {stuck[0]})"
                findings.append(
                    fatal(NAME, "ProcessesStuck", text, action=Action.REBOOT, device=f"job {job_id}", is_hard=True)
                )
            elif old:
                text = f"{len(old)} processes of job {job_id} are left although it has ended (pid {min(old)})"
                findings.append(warn(NAME, "ProcessesLeft", text, device=f"job {job_id}", whose=Whose.USER))
        return Result(tuple(findings))

    def _aged(self, key: _Id, job_id: int, process: Process, now: float) -> _Left:
        left = self._left.get(key) or _Left(job_id, now)
        if process.state == "D":
            left.stuck_since = now if left.stuck_since is None else left.stuck_since
            left.looks_stuck += 1
        else:
            left.stuck_since, left.looks_stuck = None, 0
        return left

    def _without_job(self, host: Host, jobs: frozenset[int] | None) -> dict[_Id, tuple[int, Process]]:
        """Return users' processes that a job has started which is not running here any more."""
        known: dict[int, Process | None] = {}
        candidates: dict[_Id, tuple[int, Process]] = {}
        users = host.processes_of_users(self.least_uid)
        known.update({process.pid: process for process in users})
        started_by = {}
        for process in users:
            key = (process.pid, process.started_at)
            job_id = _serving_job(host, process, known)
            if job_id is not None:
                if jobs is not None and job_id not in jobs:
                    candidates[key] = (job_id, process)
                continue
            by = self._started_by.get(key)
            if by is None:
                text = host.environment(process.pid).get("SLURM_JOB_ID", "")
                by = int(text) if text.isascii() and text.isdigit() and len(text) < 11 else 0
            started_by[key] = by
            if by and (jobs is None or by not in jobs):
                candidates[key] = (by, process)
        self._started_by = started_by
        if candidates and jobs is None:
            # A program that has left its job's tree is no leftover while the job runs.
            running = {job_of(process) for process in host.processes()}
            return {key: found for key, found in candidates.items() if found[0] not in running}
        return candidates


def _serving_job(host: Host, process: Process, known: dict[int, Process | None]) -> int | None:
    """Return the job of the slurmstepd above a process; None when there is none."""
    for _ in range(64):
        if process.parent <= 1:
            return None
        if process.parent not in known:
            known[process.parent] = host.process(process.parent)
        parent = known[process.parent]
        if parent is None:
            return None
        job_id = job_of(parent)
        if job_id is not None:
            return job_id
        process = parent
    return None
