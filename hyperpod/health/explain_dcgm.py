"""What the output of ``dcgmi health`` and ``dcgmi diag`` means, by the agent's own reader and rule. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hyperpod.core.finding import Action
from hyperpod.errors import UnexpectedOutput
from hyperpod.health.checks.dcgm import NAME, judge_result
from hyperpod.health.parse_dcgm import DcgmResult, DcgmTable, is_lost, parse_document
from hyperpod.health.record import Record, Word, sentence, word_of

_AGAIN = "counts when two runs see it; replaced when it fails again after the reboot"


class DcgmExplainer:
    """Explains both tools."""

    def __init__(self) -> None:
        self._table = DcgmTable()
        self._lost_at = -10

    def feed(self, number: int, text: str) -> list[Record]:
        """Take one line of a table, or a message."""
        if is_lost(text):
            before, self._lost_at = self._lost_at, number
            if number - before <= 2:
                return []
            return [Record(number, NAME, "HostEngineLost", "", Word.UNKNOWN, "dcgmi cannot reach its host engine")]
        return _judged(self._table.feed(number, text))

    def block(self, number: int, text: str) -> list[Record] | None:
        """Take a whole JSON document that begins in this line; None when it is not DCGM's."""
        try:
            results = parse_document(text)
        except UnexpectedOutput as error:
            why = sentence("DCGM's answer is not understood", str(error)[:200], "says nothing of the hardware")
            return [Record(number, NAME, "DcgmUnusable", "", Word.UNKNOWN, why)]
        return None if results is None else _judged(results, number - 1)

    def end(self) -> list[Record]:
        """Judge what waited for details."""
        return _judged(self._table.end())


def _judged(results: Iterable[DcgmResult], before: int = 0) -> list[Record]:
    out = []
    for result in results:
        finding = judge_result(result)
        if finding is None:
            continue
        if result.test == "Overall Health":
            # As in JSON: a word about the whole without a part that is ill contradicts itself, or was cut off.
            why = f"DCGM's overall word is {result.verdict.value}, and no part is named"
            out.append(Record(result.line + before, NAME, "DcgmUnusable", "", Word.UNKNOWN, why))
            continue
        word = word_of(finding.severity, finding.action, finding.whose)
        note = _AGAIN if finding.action is Action.REBOOT else ""
        out.append(
            Record(result.line + before, NAME, finding.code, finding.device, word, sentence(finding.message, note))
        )
    return out
