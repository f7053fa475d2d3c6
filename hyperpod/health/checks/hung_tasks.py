"""The kernel still reports processes that hang: after some reports it falls silent for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, setting, unknown
from hyperpod.health.sysfs import number, shares_kernel

NAME = "hung_tasks"
_LEFT = "/proc/sys/kernel/hung_task_warnings"


@dataclass
class HungTasksCheck:
    """Reads how many reports are left."""

    about: ClassVar[About] = About(
        title="The kernel still reports processes that hang",
        reads="/proc/sys/kernel/hung_task_warnings.",
        means="The kernel reports ten hung processes and then none any more until somebody writes a new number (-1: "
        "for ever). From then on the kernel log's silence is not health. Kernels without the watch have no file.",
        does="UNKNOWN: nothing is done to the node.",
        codes={"HungTaskReportsEnded": "The kernel no longer reports processes that hang."},
        source="The kernel's documentation of hung_task_warnings.",
    )
    interval_s: float = setting(300.0, "Seconds between two looks.")
    deadline_s: float = 2.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Look once."""
        if shares_kernel(ports) or number(ports.host, _LEFT) != 0:
            return Result()
        text = "the kernel no longer reports processes that hang (hung_task_warnings is 0)"
        return Result((unknown(NAME, "HungTaskReportsEnded", text),))
