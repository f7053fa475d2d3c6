"""The load is not far above the number of processors. Only ever WARN: a busy node is what the cluster is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, setting, unknown, warn
from hyperpod.health.slurm_conf import figures_are_declared

NAME = "load"


@dataclass
class LoadCheck:
    """Reads /proc/loadavg."""

    about: ClassVar[About] = About(
        title="The load is not far above the number of processors",
        reads="/proc/loadavg, the mean of five minutes, so that a job's start does not count.",
        means="More processes want to run than there are processors. Where slurm.conf says config_overrides nothing is "
        "compared: the load is that of a machine which several nodes share.",
        does="WARN only: training with many data loaders reaches two or three per processor and is healthy.",
        codes={
            "LoadHigh": "The load is above per_cpu times the processors.",
            "LoadUnreadable": "The kernel's figure could not be read.",
        },
        source="proc_loadavg(5); our judgement of the limit.",
    )
    per_cpu: float = setting(4.0, "Load per processor that is still normal; data loaders reach two or three.")
    interval_s: float = setting(60.0, "Seconds between two looks; the figure is a mean of five minutes anyway.")
    deadline_s: float = 2.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Compare the five-minute load with the processors."""
        try:
            load = float(ports.host.read_text("/proc/loadavg").split()[1])
        except (OSError, ValueError, IndexError) as error:
            return Result((unknown(NAME, "LoadUnreadable", f"/proc/loadavg: {error}"),))
        cpus = max(1, ports.host.cpu_count())
        if load <= self.per_cpu * cpus or figures_are_declared(ports.host):
            return Result()
        text = f"the load of the last five minutes is {load:.1f} on {cpus} processors"
        return Result((warn(NAME, "LoadHigh", text, whose=Whose.USER),))
