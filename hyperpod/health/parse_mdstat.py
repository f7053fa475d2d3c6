"""The kernel's list of software RAID arrays, ``/proc/mdstat``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
        line: Line of its head in the text, from 1.
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
    line: int = 1

    @property
    def is_lost(self) -> bool:
        """True when data is gone: nothing makes up for a disk."""
        return self.is_broken or (bool(self.failed) and self.level in ("raid0", "linear"))


def parse_mdstat(text: str) -> tuple[Array, ...]:
    """Read the kernel's list of arrays; lines that are none are passed over."""
    found: list[Array] = []
    line = 0
    for block in re.split(r"\n(?=md\S* : )", "\n" + text):
        head = _HEAD.match(block)
        number, line = max(line, 1), line + block.count("\n") + 1
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
                line=number,
            )
        )
    return tuple(found)
