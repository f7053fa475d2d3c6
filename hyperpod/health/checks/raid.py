"""Software RAID arrays (md) have their disks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.sysfs import shares_kernel

NAME = "raid"

_HEAD = re.compile(
    r"(?P<array>md\S*) : (?P<state>active|inactive|broken)(?: \((?:auto-)?read-only\))?(?: (?P<level>raid\d+|linear))?"
    r"(?P<disks>.*)"
)
_COUNT = re.compile(r"\[(?P<wanted>\d+)/(?P<working>\d+)\]\s+\[(?P<map>[U_]+)\]")
_WORK = re.compile(r"\b(?P<what>recovery|resync|reshape|check)\s*=")
_FAILED = re.compile(r"(\S+?)\[\d+\](?:\(\w\))*\(F\)")


@dataclass(frozen=True)
class Array:
    """One array of /proc/mdstat.

    Attributes:
        work: What it is doing (``recovery``, ``check``, ...); empty when nothing.
        failed: Its disks that are marked (F).
        missing: Disks that are not at work.
    """

    name: str
    level: str
    is_active: bool
    is_broken: bool = False
    missing: int = 0
    failed: tuple[str, ...] = ()
    work: str = ""

    @property
    def is_lost(self) -> bool:
        """True when data is gone: nothing makes up for a disk."""
        return self.is_broken or (bool(self.failed) and self.level in ("raid0", "linear"))


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
            finding = _judge(array)
            if finding is not None:
                findings.append(finding)
        return Result(tuple(findings))


def _judge(array: Array) -> Finding | None:
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


def parse_mdstat(text: str) -> tuple[Array, ...]:
    """Read the kernel's list of arrays; lines that are none are passed over."""
    found: list[Array] = []
    blocks = re.split(r"\n(?=md\S* : )", "\n" + text)
    for block in blocks:
        head = _HEAD.match(block)
        if head is None:
            continue
        count, work = _COUNT.search(block), _WORK.search(block)
        missing = int(count["wanted"]) - int(count["working"]) if count else 0
        found.append(
            Array(
                name=head["array"],
                level=head["level"] or "",
                is_active=head["state"] == "active",
                is_broken=head["state"] == "broken",
                missing=max(missing, 0),
                failed=tuple(_FAILED.findall(head["disks"])),
                work=work["what"] if work else "",
            )
        )
    return tuple(found)
