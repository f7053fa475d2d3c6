"""What ``/proc/mdstat`` means, by the agent's own rule. Pure: lines in, records out."""

from __future__ import annotations

import re

from hyperpod.health.checks.raid import NAME, judge_array
from hyperpod.health.parse_mdstat import parse_mdstat
from hyperpod.health.record import Record, Word, sentence, word_of

_START = re.compile(r"^(?:Personalities : |md\S+ : (?:active|inactive|broken)\b)")
_MOST_LINES = 4096
_TWO = "counts when two of three looks see it"


def is_start(text: str) -> bool:
    """True for a line that begins the list, or an array."""
    return _START.match(text) is not None


class RaidExplainer:
    """Collects the list, which is judged when it has ended: an array has several lines."""

    def __init__(self) -> None:
        self._first = 0
        self._lines: list[str] = []

    def feed(self, number: int, text: str) -> list[Record]:
        """Take one line."""
        # The list begins anew: a second look.
        out = self.end() if text.startswith("Personalities : ") else []
        if not self._lines:
            self._first = number
        if number - self._first < _MOST_LINES:
            # Blank lines do not come here.
            self._lines += [""] * (number - self._first - len(self._lines)) + [text]
        return out

    def end(self) -> list[Record]:
        """Judge every array."""
        arrays, first = parse_mdstat("\n".join(self._lines)), self._first
        self._lines = []
        out = []
        for array in arrays:
            line, finding = first + array.line - 1, judge_array(array)
            if finding is not None:
                word = word_of(finding.severity, finding.action, finding.whose)
                out.append(Record(line, NAME, finding.code, finding.device, word, sentence(finding.message, _TWO)))
            elif array.work:
                why = f"the array {array.name} has all of its disks ({array.work} is under way): no fault"
                out.append(Record(line, NAME, "RaidCheck", array.name, Word.OK, why))
        return out
