"""Software RAID arrays (md) have their disks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.parse_mdstat import Array, parse_mdstat
from hyperpod.health.sysfs import shares_kernel

NAME = "raid"


@dataclass
class RaidCheck:
    """Reads /proc/mdstat."""

    about: ClassVar[About] = About(
        title="Software RAID arrays have their disks",
        reads="/proc/mdstat.",
        means="An array with redundancy goes on without a disk, slower and without a net. RAID 0 has none: a failed "
        "disk is the end of the array. The monthly check, a resync and a rebuild are work, not faults.",
        does="A lost array is FATAL, REPLACE; a degraded one WARN, with what it is doing about it.",
        codes={
            "RaidLost": "An array without redundancy has lost a disk, or the kernel calls it broken.",
            "RaidDegraded": "An array works without one of its disks.",
            "RaidInactive": "An array is not started.",
            "RaidUnreadable": "The kernel's list cannot be understood.",
        },
        source="md(4).",
    )
    interval_s: float = setting(60.0, "Seconds between two looks; the kernel log tells a failing disk at once.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Read the list once."""
        if shares_kernel(ports):
            return Result()
        try:
            text = ports.host.read_text("/proc/mdstat")
        except FileNotFoundError:
            return Result()
        except OSError as error:
            return Result((unknown(NAME, "RaidUnreadable", f"/proc/mdstat: {error.strerror or error}"),))
        if text.strip() and not text.startswith("Personalities"):
            return Result((unknown(NAME, "RaidUnreadable", "/proc/mdstat says something that is not understood"),))
        findings = []
        for array in parse_mdstat(text):
            finding = judge_array(array)
            if finding is not None:
                findings.append(finding)
        return Result(tuple(findings))


def judge_array(array: Array) -> Finding | None:
    """Return what is wrong with an array; None when nothing is."""
    if array.is_lost:
        which = f" ({', '.join(array.failed)} failed)" if array.failed else ""
        text = f"the array {array.name} ({array.level or 'unknown level'}) is lost{which}"
        return fatal(NAME, "RaidLost", text, action=Action.REPLACE, device=array.name)
    if not array.is_active:
        return warn(NAME, "RaidInactive", f"the array {array.name} is not started", device=array.name)
    if array.missing or array.failed:
        doing = f", {array.work} is under way" if array.work in ("recovery", "resync", "reshape") else ""
        which = f" ({', '.join(array.failed)} failed)" if array.failed else ""
        text = (
            f"the array {array.name} works without {max(array.missing, len(array.failed))} of its disks{which}{doing}"
        )
        return warn(NAME, "RaidDegraded", text, device=array.name)
    return None
