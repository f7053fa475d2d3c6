"""Delays between tries, as a pure function of the try's number."""

from __future__ import annotations

from datetime import timedelta

REFUSED_FIRST, REFUSED_MOST = timedelta(seconds=2), timedelta(minutes=5)
"""Between two tries of a launch or start that the provider refuses. Most refusals end within seconds (a limit on calls,
a machine that is still changing its state); a lack of machines takes minutes to hours, and each try costs calls that
the rest of the account needs too."""


def delay_after(attempt: int, *, first: timedelta, most: timedelta) -> timedelta:
    """Return how long to wait after try number ``attempt`` (from 1): doubles each time up to ``most``."""
    if attempt < 1:
        raise ValueError("attempt counts from 1")
    # The exponent is bounded so that a huge attempt number cannot overflow timedelta.
    doubled: timedelta = first * 2 ** min(attempt - 1, 20)
    return min(doubled, most)


def after_refusal(count: int) -> timedelta:
    """Return how long to wait after the provider has refused for the ``count``-th time in a row (from 1)."""
    return delay_after(count, first=REFUSED_FIRST, most=REFUSED_MOST)
