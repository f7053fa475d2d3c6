"""Log lines that repeat are held back, not lost."""

from __future__ import annotations

import logging

import pytest

from hyperpod.agent.quiet import HOLD_BACK_S, MOST_TEXTS, QuietLog


def test_a_text_is_said_once_in_a_while_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietLog(logging.getLogger("test"))
    for now in (0.0, 1.0, 2.0, HOLD_BACK_S):
        quiet.say(logging.WARNING, "it is away", now)
    assert caplog.messages == ["it is away", "it is away (2 times more since the last time)"]


def test_other_texts_are_said(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietLog(logging.getLogger("test"))
    for text in ("a", "b", "a"):
        quiet.say(logging.WARNING, text, 1.0)
    assert caplog.messages == ["a", "b"]


def test_memory_is_bounded() -> None:
    quiet = QuietLog(logging.getLogger("test"))
    for number in range(MOST_TEXTS * 2):
        quiet.say(logging.DEBUG, str(number), 1.0)
    assert len(quiet._said) == MOST_TEXTS
