"""A clock that moves only when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """Implements ``ports.clock.Clock``; begins at a fixed moment."""

    def __init__(self, start: datetime = datetime(2025, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._passed = timedelta()

    def now(self) -> datetime:
        """Return the moment that the test has reached."""
        return self._start + self._passed

    def monotonic(self) -> float:
        """Return the seconds passed, with an offset nobody should rely on."""
        return 1000.0 + self._passed.total_seconds()

    def advance(self, seconds: float) -> datetime:
        """Let time pass and return the new moment."""
        if seconds < 0:
            raise ValueError("time does not go backwards")
        self._passed += timedelta(seconds=seconds)
        return self.now()
