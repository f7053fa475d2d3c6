"""Entries of ``journalctl -o verbose`` and ``-o export``: fields over several lines, put together. Pure.

Owns the two formats. The rest of the journal's forms is one line, or one JSON document, an entry: ``log_lines``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hyperpod.health.log_lines import LogLine, parse_journal_entry

_VERBOSE = re.compile(
    r"^(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \S+ \[s=[0-9a-f]+;i=[0-9a-f]+;"
    r"b=(?P<boot>[0-9a-f]{32});m=(?P<monotonic>[0-9a-f]{1,15});t=(?P<realtime>[0-9a-f]{1,15});x=[0-9a-f]+\]$"
)
_CURSOR = "__CURSOR=s="
_FIELD = re.compile(r"^(?P<indent> {4})?(?P<name>[A-Z_][A-Z0-9_]{0,63})(?:=(?P<value>.*))?$")
_WANTED = frozenset(
    {"MESSAGE", "_TRANSPORT", "SYSLOG_IDENTIFIER", "SYSLOG_FACILITY", "_COMM", "_BOOT_ID", "_HOSTNAME",
     "_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP", "_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP"}
)  # fmt: skip
_MOST_LINES = 200


def begins_entry(text: str) -> bool:
    """True for the first line of an entry."""
    return text.startswith(_CURSOR) or (text.endswith("]") and ";b=" in text and _VERBOSE.match(text) is not None)


@dataclass
class JournalFields:
    """One entry, as far as it was read. ``line`` is where its message stands."""

    line: int
    fields: dict[str, str] = field(default_factory=dict)
    _is_verbose: bool = False
    _name: str = ""
    _is_binary: bool = False
    _count: int = 0

    @classmethod
    def begun(cls, number: int, text: str) -> JournalFields:
        """Take an entry's first line."""
        found = _VERBOSE.match(text)
        if found is None:
            return cls(number)
        fields = {
            "_BOOT_ID": found["boot"],
            "__REALTIME_TIMESTAMP": str(int(found["realtime"], 16)),
            "__MONOTONIC_TIMESTAMP": str(int(found["monotonic"], 16)),
        }
        return cls(number, fields, True)

    def take(self, number: int, text: str) -> bool:
        """Take a further line; False for one that does not belong to the entry."""
        self._count += 1
        if not text.strip() or self._count > _MOST_LINES:
            return False
        if self._is_binary:
            # Behind the name alone come the length, eight bytes of which at most one is left here, and the value.
            self._keep(self._name, text if text[:1] == "N" else text[1:])
            self._is_binary = False
            return True
        found = _FIELD.match(text)
        if found is None or bool(found["indent"]) != self._is_verbose or (self._is_verbose and found["value"] is None):
            if not self._is_verbose or not text.startswith("     "):
                return False
            # A value of several lines, each below the first.
            self._keep(self._name, f"{self.fields.get(self._name, '')}\n{text.strip()}")
            return True
        self._name = found["name"]
        if found["value"] is None:
            self._is_binary = True
        else:
            self._keep(self._name, found["value"])
        if self._name == "MESSAGE":
            self.line = number
        return True

    def _keep(self, name: str, value: str) -> None:
        if name in _WANTED:
            self.fields[name] = value

    def entry(self) -> LogLine | None:
        """Return the line of the log; None for an entry without a message."""
        return parse_journal_entry(self.fields)
