"""Programs that the agent has started and may have to kill from another thread."""

from __future__ import annotations

import contextlib
import os
import signal
import threading


class Programs:
    """Knows the process group of each running program. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, int | None] = {}
        self._stopped: set[str] = set()

    def ordered(self, key: str) -> None:
        """A program is about to be started; from now on it can be stopped."""
        with self._lock:
            self._groups[key] = None

    def may_start(self, key: str) -> bool:
        """Say whether it was not stopped meanwhile; one that was is forgotten."""
        with self._lock:
            if key not in self._stopped:
                return True
            self._forget(key)
            return False

    def started(self, key: str, group: int) -> None:
        """It runs now, as this process group."""
        with self._lock:
            self._groups[key] = group
            if key in self._stopped:
                _kill(group)

    def ended(self, key: str) -> bool:
        """It has ended; return whether it was stopped."""
        with self._lock:
            was_stopped = key in self._stopped
            self._forget(key)
            return was_stopped

    def stop_all(self) -> None:
        """Kill what runs; what is about to start will not."""
        with self._lock:
            for key, group in self._groups.items():
                self._stopped.add(key)
                if group is not None:
                    _kill(group)

    def _forget(self, key: str) -> None:
        self._groups.pop(key, None)
        self._stopped.discard(key)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
