"""The load is not far above the number of processors.

Only ever WARN: a busy node is what the cluster is for. Settings: ``per_cpu`` (4.0: training with many data loaders
reaches two or three), over five minutes, so that a job's start does not count. Where slurm.conf says
``config_overrides`` nothing is compared: the load is that of a machine which several nodes share.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod.core.finding import Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, unknown, warn
from hyperpod.health.slurm_conf import figures_are_declared

NAME = "load"


@dataclass
class LoadCheck:
    """Reads /proc/loadavg."""

    per_cpu: float = 4.0
    interval_s: float = 60.0
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
