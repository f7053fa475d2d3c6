"""The machine has the processors that Slurm believes it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting
from hyperpod.health.slurm_conf import figures_are_declared

NAME = "cpu_count"


@dataclass
class CpuCountCheck:
    """Counts the processors that are online."""

    about: ClassVar[About] = About(
        title="The machine has the processors that Slurm counts on",
        reads="The number of processors that are online; slurm.conf for config_overrides.",
        means="Fewer than configured makes slurmctld set the node INVALID. More is no fault: ThreadsPerCore may leave "
        "some out. Where slurm.conf says config_overrides nothing is compared.",
        does="FATAL, replace, after two of three looks: late processors at boot are seen twice before they count.",
        codes={"CpusMissing": "Fewer processors are online than Slurm counts on."},
        source="slurm.conf(5), CPUs.",
    )
    interval_s: float = setting(60.0, "Seconds between two looks; processors do not come and go.")
    deadline_s: float = 2.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = True
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Compare the count with Slurm's figure."""
        expected, found = ports.facts.expected_cpus, ports.host.cpu_count()
        if expected is None or found >= expected or figures_are_declared(ports.host):
            return Result()
        text = f"{found} processors are online, Slurm counts on {expected}"
        return Result((fatal(NAME, "CpusMissing", text, action=Action.REPLACE),))
