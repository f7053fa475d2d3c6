"""The real clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """Reads the machine's clock; implements ``ports.clock.Clock``."""

    def now(self) -> datetime:
        """Return the present moment, aware UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        return time.monotonic()
