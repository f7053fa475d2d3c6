"""Holds back log lines that say the same again and again."""

from __future__ import annotations

import logging

HOLD_BACK_S = 900.0
MOST_TEXTS = 100


class QuietLog:
    """A logger that says each text at most once in 15 minutes, then with the number of times it was held back."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, level: int, text: str, now: float) -> None:
        """Log a text unless it was logged a short time ago.

        Args:
            level: As for ``logging``.
            text: The whole line.
            now: Monotonic seconds.
        """
        said_at, held_back = self._said.get(text, (None, 0))
        if said_at is not None and now - said_at < HOLD_BACK_S:
            self._said[text] = (said_at, held_back + 1)
            return
        if len(self._said) >= MOST_TEXTS:
            self._said.pop(next(iter(self._said)))
        self._said[text] = (now, 0)
        tail = f" ({held_back} times more since the last time)" if held_back else ""
        self._log.log(level, "%s%s", text, tail)
