"""The clock as a port, so that no decision and no test reads the real one."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> datetime:
        """Return the present moment, aware UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards; only differences have a meaning."""
        ...
