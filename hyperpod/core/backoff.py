"""Delays between tries, as a pure function of the try's number."""

from __future__ import annotations

from datetime import timedelta


def delay_after(attempt: int, *, first: timedelta, most: timedelta) -> timedelta:
    """Return how long to wait after try number ``attempt`` (from 1): doubles each time up to ``most``."""
    if attempt < 1:
        raise ValueError("attempt counts from 1")
    # The exponent is bounded so that a huge attempt number cannot overflow timedelta.
    doubled: timedelta = first * 2 ** min(attempt - 1, 20)
    return min(doubled, most)
