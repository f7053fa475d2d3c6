"""A node whose clock is too far off for munge is refused by the controller; that is shown, not taken for silence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hyperpod.controller.memory import Memory
from hyperpod.core.finding import Severity

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("refused_at", "looked_at", "is_shown"),
    [
        ([0, 2, 4, 6], 7, True),
        ([0], 1, False),  # one message may have been held up on its way
        ([0, 2, 4, 6], 37, False),  # it is accepted again
        ([0, 100], 101, False),  # two single ones
    ],
)
def test_a_clock_counts_when_messages_are_refused_again_and_again(
    refused_at: list[float], looked_at: float, is_shown: bool
) -> None:
    memory = Memory(AT)
    for seconds in refused_at:
        memory.sees_clock("10.0.0.3", 600.0, after(seconds))
    found = memory.clocks["10.0.0.3"].finding(after(looked_at))
    assert (found is not None) == is_shown


@pytest.mark.parametrize(("ahead_s", "text"), [(600.0, "600 s ahead of"), (-400.0, "400 s behind")])
def test_a_wrong_clock_is_shown_with_its_direction_and_drains_nobody(ahead_s: float, text: str) -> None:
    memory = Memory(AT)
    for seconds in (0, 6):
        memory.sees_clock("10.0.0.3", ahead_s, after(seconds))
    found = memory.clocks["10.0.0.3"].finding(after(7))
    assert found is not None
    assert (found.check, found.code, found.severity) == ("munge", "ClockOffset", Severity.WARN)
    assert text in found.message
