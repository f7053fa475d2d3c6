"""Records of the kernel log, as /dev/kmsg gives them. Pure.

Format (Documentation/ABI/testing/dev-kmsg): ``prefix,sequence,microseconds,flags[,…];text``, then continuation
lines that begin with a blank and carry ``KEY=value``. The prefix is facility * 8 + level. Only facility 0 is
the kernel: it stamps facility 1 (user) on what programs write to /dev/kmsg without one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True)
class Record:
    """One record. ``at_s`` is in seconds of the kernel's clock, 0 when the writer gave no time."""

    sequence: int
    at_s: float
    level: int
    facility: int
    text: str

    @property
    def is_kernels(self) -> bool:
        """True when the kernel itself wrote it."""
        return self.facility == 0


def parse_record(raw: str) -> Record | None:
    """Read one record (its first line; continuation lines are dropped), or return None when it is not one."""
    head, found, rest = raw.partition(";")
    fields = head.split(",")
    if not found or len(fields) < 3 or not all(f.isascii() and f.isdigit() for f in fields[:3]):
        return None
    prefix = int(fields[0])
    text = rest.partition("\n")[0]
    if "\\x" in text:
        text = _ESCAPE.sub(lambda m: chr(int(m.group(1), 16)), text)
    return Record(int(fields[1]), int(fields[2]) / 1e6, prefix & 7, prefix >> 3, text)


@dataclass(frozen=True)
class Position:
    """How far the log of one boot has been read."""

    boot_id: str
    sequence: int = -1
    at_s: float = 0.0

    def is_new(self, record: Record, booted_at_s: float) -> bool:
        """True for a record of this boot that was not read before.

        Args:
            record: The record.
            booted_at_s: When this boot began on the kernel's clock. A file that stands in for /dev/kmsg may
                hold lines of earlier boots; half a second of tolerance covers the start of a container.
        """
        if record.at_s and record.at_s < booted_at_s - 0.5:
            return False
        return record.sequence > self.sequence

    def after(self, record: Record) -> Position:
        """Return the position behind a record."""
        return Position(self.boot_id, record.sequence, record.at_s)
