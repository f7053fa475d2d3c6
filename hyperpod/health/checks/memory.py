"""The machine has the memory that Slurm believes it has.

A node with less than its RealMemory is set to INVALID by slurmctld, or jobs are killed on it. Settings:
``margin_percent`` (1: the kernel's own share differs a little between kernels). Damped: a figure that is wrong for a
moment at boot is seen twice before it counts. Where slurm.conf says ``config_overrides`` nothing is compared. WARN
below ``warn_available_percent`` (2) of memory available.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, fatal, unknown, warn
from hyperpod.health.slurm_conf import figures_are_declared

NAME = "memory"


@dataclass
class MemoryCheck:
    """Reads /proc/meminfo."""

    margin_percent: float = 1.0
    warn_available_percent: float = 2.0
    interval_s: float = 30.0
    deadline_s: float = 2.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = True
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Compare the total with Slurm's figure and look at what is available."""
        try:
            found = parse_meminfo(ports.host.read_text("/proc/meminfo"))
        except OSError as error:
            return Result((unknown(NAME, "MemoryUnreadable", f"/proc/meminfo: {error.strerror or error}"),))
        if "MemTotal" not in found:
            return Result((unknown(NAME, "MemoryUnreadable", "/proc/meminfo has no MemTotal"),))
        total_mib = found["MemTotal"] // 1024
        findings: list[Finding] = []
        expected = ports.facts.expected_memory_mib
        is_short = bool(expected) and total_mib < (expected or 0) * (1 - self.margin_percent / 100)
        if is_short and not figures_are_declared(ports.host):
            text = f"the machine has {total_mib} MiB of memory, Slurm counts on {expected}"
            findings.append(fatal(NAME, "MemoryMissing", text, action=Action.REPLACE))
        available = found.get("MemAvailable")
        if available is not None and 100 * available < self.warn_available_percent * found["MemTotal"]:
            findings.append(warn(NAME, "MemoryLow", f"only {available // 1024} MiB of memory are available"))
        return Result(tuple(findings))


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the figures of /proc/meminfo in kB, by name."""
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
