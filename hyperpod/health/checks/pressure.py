"""The machine is not busy with finding memory: pages are not swapped to and fro, and nothing waits for long."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, setting, warn
from hyperpod.health.slurm_conf import figures_are_declared

NAME = "pressure"


@dataclass
class PressureCheck:
    """Reads /proc/pressure/memory and /proc/vmstat."""

    about: ClassVar[About] = About(
        title="Work does not wait for memory",
        reads="/proc/pressure/memory (full, mean of a minute) and the swapped pages in /proc/vmstat.",
        means="Everything stands still for a share of the time because memory is looked for: a job that needs more "
        "than the node has, or a leak. Kernels without pressure figures (CONFIG_PSI) and nodes without swap have "
        "nothing to show. Where several nodes share a machine nothing is compared.",
        does="WARN only, and blames the users' work.",
        codes={
            "MemoryPressure": "All work waited for memory for more than full_percent of the last minute.",
            "SwapStorm": "More than pages_per_s pages a second are swapped in and out.",
        },
        source="The kernel's PSI documentation; our judgement of the limits.",
    )
    full_percent: float = setting(20.0, "Percent of the last minute in which all work waited; training needs none.")
    pages_per_s: float = setting(1000.0, "Pages per second, 4 MB/s: a job that swaps more does not get on.")
    interval_s: float = setting(60.0, "Seconds between two looks; the figure is a mean of a minute.")
    deadline_s: float = 2.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE
    _before: tuple[float, int] | None = field(default=None, repr=False)

    def run(self, ports: Ports) -> Result:
        """Look once; the swap rate needs the look before."""
        findings: list[Finding] = []
        percent = self._full(ports)
        if percent is not None and percent > self.full_percent:
            text = f"all work waited for memory for {percent:.0f} % of the last minute"
            findings.append(warn(NAME, "MemoryPressure", text, whose=Whose.USER))
        rate = self._swapped(ports)
        if rate is not None and rate > self.pages_per_s:
            text = f"{rate:.0f} pages a second are swapped in and out"
            findings.append(warn(NAME, "SwapStorm", text, whose=Whose.USER))
        if findings and figures_are_declared(ports.host):
            return Result()
        return Result(tuple(findings))

    def _full(self, ports: Ports) -> float | None:
        try:
            match = re.search(
                r"^full .*?\bavg60=(\d+\.\d+)", ports.host.read_text("/proc/pressure/memory"), re.MULTILINE
            )
        except OSError:
            return None
        return float(match[1]) if match else None

    def _swapped(self, ports: Ports) -> float | None:
        now = ports.host.monotonic()
        try:
            found = re.findall(r"^pswp(?:in|out) (\d+)$", ports.host.read_text("/proc/vmstat"), re.MULTILINE)
        except OSError:
            return None
        pages = sum(int(value) for value in found)
        before, self._before = self._before, (now, pages)
        if before is None or now <= before[0] or pages < before[1]:
            return None
        return (pages - before[1]) / (now - before[0])
