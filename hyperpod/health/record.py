"""The record that ``hyperpod health explain`` gives for each event, and how a judgement becomes one word. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hyperpod.core.finding import Action, Severity, Whose


class Word(StrEnum):
    """What an event asks for.

    OK: nothing; it is information, over, or not what it looks like. APP: the job's own fault, never the node's.
    WARN: a person should look, or work is kept away; the machine stays. REBOOT, REPLACE: what the machine needs.
    UNKNOWN: the tool that should tell has failed, so nothing is said about the hardware.
    """

    OK = "ok"
    APP = "app"
    WARN = "warn"
    REBOOT = "reboot"
    REPLACE = "replace"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Record:
    """One event.

    Attributes:
        line: Line of the text, from 1.
        check: The check of the agent that judges it.
        code: CamelCase reason, as in the agent's findings.
        device: Part of the node; empty for the whole node.
        verdict: What it asks for.
        reason: Why, in a sentence, with what was assumed and what would change it.
        boot: Number of the boot within the text that the line belongs to; 0 where that means nothing. A text that
            goes on with a later boot makes the record one of the past.
    """

    line: int
    check: str
    code: str
    device: str
    verdict: Word
    reason: str
    boot: int = field(default=0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "line": self.line,
            "check": self.check,
            "code": self.code,
            "device": self.device,
            "verdict": self.verdict.value,
            "reason": self.reason,
        }


def word_of(severity: Severity, action: Action, whose: Whose) -> Word:
    """Return the word for a judgement."""
    if severity is Severity.UNKNOWN:
        return Word.UNKNOWN
    if severity is Severity.OK:
        return Word.APP if whose is Whose.USER else Word.OK
    if severity is Severity.FATAL and action in (Action.REBOOT, Action.REPLACE):
        return Word.REBOOT if action is Action.REBOOT else Word.REPLACE
    return Word.APP if whose is Whose.USER else Word.WARN


def sentence(*parts: str) -> str:
    """Join what there is to say, without empty parts."""
    return "; ".join(part for part in parts if part)
