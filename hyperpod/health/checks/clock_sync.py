"""Somebody keeps the kernel's clock in step. The offset to the head node's clock is the check ``munge``'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, setting, warn
from hyperpod.health.sysfs import shares_kernel

NAME = "clock_sync"


@dataclass
class ClockSyncCheck:
    """Asks the kernel by adjtimex."""

    about: ClassVar[About] = About(
        title="The clock is kept in step by chrony or another time service",
        reads="The kernel's own word (adjtimex: STA_UNSYNC).",
        means="Nobody corrects this clock: it runs away by seconds a day. That is no fault yet; how far it is off is "
        "judged by munge/ClockOffset. A time service needs some minutes after a boot. Containers share one clock.",
        does="WARN: start or mend chronyd.",
        codes={"ClockUnsynchronised": "The kernel says that nobody keeps its clock in step."},
        source="adjtimex(2); node-problem-detector watches the same flag.",
    )
    grace_s: float = setting(900.0, "Seconds after the boot that a time service may take to be sure of itself.")
    interval_s: float = setting(120.0, "Seconds between two looks; a clock runs away slowly.")
    deadline_s: float = 2.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Ask once."""
        if shares_kernel(ports) or ports.facts.uptime_s < self.grace_s:
            return Result()
        if ports.devices.clock_is_synchronised() is not False:
            return Result()
        text = "nobody keeps the clock in step (the kernel says: unsynchronised)"
        return Result((warn(NAME, "ClockUnsynchronised", text, whose=Whose.SITE),))
