"""The machine has the memory that Slurm believes it has, and some of it is available."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.slurm_conf import figures_are_declared
from hyperpod.health.sysfs import shares_kernel

NAME = "memory"


@dataclass
class MemoryCheck:
    """Reads /proc/meminfo."""

    about: ClassVar[About] = About(
        title="The machine has the memory that Slurm counts on",
        reads="MemTotal and MemAvailable in /proc/meminfo; slurm.conf for config_overrides. MemTotal is compared "
        "within the group (the check group), where nodes do not share a machine.",
        means="A node with less than its RealMemory is set to INVALID by slurmctld, or jobs are killed on it: a "
        "module has failed. Where slurm.conf says config_overrides nothing is compared: several nodes share a machine "
        "on purpose.",
        does="FATAL, replace, when it is missing twice: a figure may be wrong for a moment at boot. Little available "
        "memory is WARN, the job's own business.",
        codes={
            "MemoryMissing": "The machine has less memory than Slurm counts on.",
            "MemoryLow": "Less than warn_available_percent of the memory is available.",
            "MemoryUnreadable": "The kernel's figures could not be read.",
        },
        source="slurm.conf(5), RealMemory; proc_meminfo(5).",
    )
    margin_percent: float = setting(
        1.0, "Share that may be missing; the kernel's own part differs a little between kernels."
    )
    warn_available_percent: float = setting(
        2.0, "Share of available memory below which the node is near an out-of-memory kill."
    )
    interval_s: float = setting(
        30.0, "Seconds between two looks; modules fail seldom, and the kernel's log tells it sooner."
    )
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
        # What several nodes share is no node's own, and the same on all of them.
        inventory = {} if shares_kernel(ports) else {"memory_mib": str(total_mib)}
        return Result(tuple(findings), inventory=inventory)


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the figures of /proc/meminfo in kB, by name."""
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
