"""No program computes on a GPU for a job that is over, or past Slurm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.gpu import UNREADABLE, look, title
from hyperpod.ports.gpu import GpuView
from hyperpod.ports.host import Host

NAME = "gpu_processes"

_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)


@dataclass
class GpuProcessesCheck:
    """Finds the job of each process that computes on a GPU."""

    about: ClassVar[About] = About(
        title="Only jobs that run compute on the GPUs",
        reads="NVML's compute processes and memory in use, the processes' cgroup and environment, and the jobs that "
        "Slurm has on this node.",
        means="A process of a job that is over holds the memory of its GPU: the next job finds it full. One that "
        "stands in the kernel cannot be killed. Right after a job's end its processes may still be going. Root's own "
        "(the driver's daemons, DCGM) and those of another name space are left alone. While it is not known which jobs "
        "there are, nothing is said.",
        does="After the grace: DRAIN for a process that a kill ends (the finding closes when it is gone), REBOOT for "
        "one that stands in the kernel. A program that a person started past Slurm is WARN: it is the user's.",
        codes={
            "LeftoverProcess": "A process of a job that is over still computes on a GPU.",
            "UnkillableProcess": "Such a process stands in the kernel, where no signal reaches it.",
            "ForeignProcess": "A program that no job started computes on a GPU.",
            "MemoryHeld": "Memory of a GPU is in use although no job and no process is there (WARN).",
            **UNREADABLE,
        },
        source="Practice of other monitors: 30 s after the epilog, kill first, reboot if unkillable; a prolog that "
        "looked at once raced with the previous job's exit (soperator).",
    )
    grace_s: float = setting(30.0, "Seconds for which a process may outlive its job.")
    held_mib: int = setting(4096, "MiB in use on an idle GPU beyond what the driver itself takes (below 2 GiB).")
    interval_s: float = setting(30.0, "Seconds between two looks; it shares the look of other checks.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS
    is_job_end: ClassVar[bool] = True
    _first_seen: dict[int, float] = field(default_factory=dict, repr=False)
    _held_since: dict[str, float] = field(default_factory=dict, repr=False)

    def run(self, ports: Ports) -> Result:
        """Judge each compute process that no running job explains."""
        seen = look(ports, NAME, "compute_processes")
        now = ports.host.monotonic()
        where: dict[int, str] = {}
        for gpu in seen.gpus:
            for pid in gpu.compute_processes:
                where.setdefault(pid, gpu.bus_id)
        strange = {}
        for pid in where if ports.facts.jobs is not None else ():
            job = _job_of(ports.host, pid)
            if job is not None and job not in (ports.facts.jobs or ()):
                strange[pid] = job
        self._first_seen = {pid: self._first_seen.get(pid, now) for pid in strange}
        late = {pid: job for pid, job in strange.items() if now - self._first_seen[pid] >= self.grace_s}
        found = (_judge(ports.host, pid, job, where[pid]) for pid, job in sorted(late.items()))
        return Result((*seen.blind, *found, *self._held(seen.gpus, ports.facts.jobs, now)))

    def _held(self, gpus: Sequence[GpuView], jobs: frozenset[int] | None, now: float) -> list[Finding]:
        """Find idle GPUs whose memory nobody gives back; where a process is seen, that is another finding."""
        held = {
            gpu.bus_id: gpu
            for gpu in gpus
            if jobs is not None
            and not jobs
            and not gpu.compute_processes
            and "compute_processes" not in gpu.errors
            and (gpu.memory_used_mib or 0) > self.held_mib
        }
        self._held_since = {device: self._held_since.get(device, now) for device in held}
        out = []
        for device, gpu in held.items():
            if now - self._held_since[device] >= self.grace_s:
                text = (
                    f"{title(gpu)}: {gpu.memory_used_mib} MiB of its memory are in use, no job and no process is there"
                )
                out.append(warn(NAME, "MemoryHeld", text, device=device))
        return out


def _job_of(host: Host, pid: int) -> int | None:
    """Return the job of a process; 0 for one that no job started; None for one that is not ours to judge."""
    try:
        cgroup = host.read_text(f"/proc/{pid}/cgroup", 4096)
        status = host.read_text(f"/proc/{pid}/status", 4096)
    except OSError:
        return None
    match = _JOB.search(cgroup)
    if match is not None:
        return int(match[1])
    named = host.environment(pid).get("SLURM_JOB_ID", "")
    if named.isdigit():
        return int(named)
    return None if re.search(r"^Uid:\s+0\s", status, re.MULTILINE) else 0


def _judge(host: Host, pid: int, job: int, device: str) -> Finding:
    try:
        status = host.read_text(f"/proc/{pid}/status", 4096)
    except OSError:
        status = ""
    name = re.search(r"^Name:\s*(.*)$", status, re.MULTILINE)
    who = f"process {pid} ({name[1].strip() if name else '?'})"
    # The processes are named in the text only, so that a finding is one for each GPU.
    if job == 0:
        text = f"{who} computes on GPU {device}, no job has started it"
        return warn(NAME, "ForeignProcess", text, device=device, whose=Whose.USER)
    if re.search(r"^State:\s+D", status, re.MULTILINE):
        text = f"{who} of job {job}, which is over, stands in the kernel and holds GPU {device}"
        return fatal(NAME, "UnkillableProcess", text, action=Action.REBOOT, device=device)
    text = f"{who} of job {job}, which is over, still computes on GPU {device}: kill it"
    return fatal(NAME, "LeftoverProcess", text, action=Action.DRAIN, device=device, whose=Whose.USER)
