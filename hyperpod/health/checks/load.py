"""The load is not far above the number of processors. Only ever WARN: a busy node is what the cluster is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, setting, unknown, warn
from hyperpod.health.slurm_conf import figures_are_declared
from hyperpod.health.sysfs import number, word
from hyperpod.ports.host import Host

NAME = "load"


@dataclass
class LoadCheck:
    """Reads /proc/loadavg."""

    about: ClassVar[About] = About(
        title="The load is not far above the number of processors, and processes and files are not used up",
        reads="/proc/loadavg, the mean of five minutes, so that a job's start does not count, and its number of tasks; "
        "kernel.pid_max, kernel.threads-max, fs.file-nr.",
        means="More processes want to run than there are processors. Where slurm.conf says config_overrides nothing is "
        "compared: the load is that of a machine which several nodes share.",
        does="WARN only: training with many data loaders reaches two or three per processor and is healthy.",
        codes={
            "TasksHigh": "More than used_percent of the numbers that processes and threads may have are in use.",
            "FilesHigh": "More than used_percent of the open files that the kernel allows are in use.",
            "LoadHigh": "The load is above per_cpu times the processors.",
            "LoadUnreadable": "The kernel's figure could not be read.",
        },
        source="proc_loadavg(5); our judgement of the limit.",
    )
    per_cpu: float = setting(4.0, "Load per processor that is still normal; data loaders reach two or three.")
    used_percent: float = setting(70.0, "Percent of tasks and open files in use; beyond it forks and opens fail soon.")
    interval_s: float = setting(60.0, "Seconds between two looks; the figure is a mean of five minutes anyway.")
    deadline_s: float = 2.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Compare the five-minute load with the processors."""
        host = ports.host
        try:
            words = host.read_text("/proc/loadavg").split()
            load, tasks = float(words[1]), int(words[3].partition("/")[2])
        except (OSError, ValueError, IndexError) as error:
            return Result((unknown(NAME, "LoadUnreadable", f"/proc/loadavg: {error}"),))
        findings = [*self._used(host, tasks)]
        cpus = max(1, host.cpu_count())
        if load > self.per_cpu * cpus:
            text = f"the load of the last five minutes is {load:.1f} on {cpus} processors"
            findings.append(warn(NAME, "LoadHigh", text, whose=Whose.USER))
        return Result() if findings and figures_are_declared(host) else Result(tuple(findings))

    def _used(self, host: Host, tasks: int) -> list[Finding]:
        out = []
        limits = [number(host, f"/proc/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
        most = min((limit for limit in limits if limit), default=0)
        if most and 100 * tasks > self.used_percent * most:
            text = f"{tasks} processes and threads of at most {most}"
            out.append(warn(NAME, "TasksHigh", text, whose=Whose.USER))
        words = (word(host, "/proc/sys/fs/file-nr") or "").split()
        if len(words) == 3 and all(w.isascii() and w.isdigit() for w in words):
            files, allowed = int(words[0]), int(words[2])
            if 100 * files > self.used_percent * allowed:
                text = f"{files} open files of at most {allowed}"
                out.append(warn(NAME, "FilesHigh", text, whose=Whose.USER))
        return out
