"""Log lines that would come with every tick: the first one is written, its repetitions are held back.

Owns when something was said last. One object is one key; what changes in the text is no news by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from datetime import datetime, timedelta

PAUSE = timedelta(minutes=15)


class Repeats:
    """Remembers for each object when it was last written of, and what was held back since."""

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[datetime, int]] = {}

    def is_due(self, key: Hashable, now: datetime) -> bool:
        """Say whether an object may be written of; counts it as held back otherwise."""
        said = self._said.get(key)
        if said is not None and now - said[0] < PAUSE:
            self._said[key] = (said[0], said[1] + 1)
            return False
        self._said[key] = (now, 0)
        if len(self._said) > 10_000:
            self._said = {k: v for k, v in self._said.items() if now - v[0] < PAUSE}
        return True

    def warning(self, log: logging.Logger, key: Hashable, now: datetime, text: str, *values: object) -> None:
        """Log a warning, at most every quarter of an hour for each object; repetitions are for DEBUG."""
        held = self._said.get(key, (now, 0))[1]
        if not self.is_due(key, now):
            log.debug(text, *values)
        elif held:
            log.warning(text + " repeats=%s", *values, held)
        else:
            log.warning(text, *values)

    def ended(self, key: Hashable) -> None:
        """The object is well again: what comes next is news."""
        self._said.pop(key, None)
