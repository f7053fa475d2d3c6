"""Programs that print a line a period, kept running: each has a thread that reads it and starts it again.

Implements ``ports.stream.Streams``. Nobody waits here for a program: the thread reads, ``read`` takes what is there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from hyperpod.errors import CommandError
from hyperpod.ports.process import Running, Starter
from hyperpod.ports.stream import Told

KEPT_LINES = 32
LONGEST_LINE = 4 * 1024 * 1024
"""A program that prints no line end must not fill our memory."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
WELL_S = 60.0
"""A program that has run this long was not started in vain: the next pause is the first again."""

_STACK_BYTES = 128 * 1024


class ProgramStreams:
    """Runs programs for as long as we live.

    Args:
        starter: Starts them.
        monotonic, pause: The clock and the wait between two starts, for tests.
    """

    def __init__(
        self,
        starter: Starter,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._starter = starter
        self._monotonic = monotonic
        self._pause = pause
        self._programs: dict[tuple[str, ...], Program] = {}

    def read(self, argv: Sequence[str]) -> Told:
        """See ``ports.stream.Streams``."""
        key = tuple(argv)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = Program(key, self._starter, self._monotonic, self._pause)
            try:
                threading.Thread(target=program.run, name=f"stream {key[0]}", daemon=True).start()
            except RuntimeError as error:
                del self._programs[key]
                return Told(problem=f"no thread for it: {error}")
        return program.take()


class Program:
    """One program: its lines, and how it fares."""

    def __init__(
        self,
        argv: tuple[str, ...],
        starter: Starter,
        monotonic: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._argv = argv
        self._starter = starter
        self._monotonic = monotonic
        self._pause = pause
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._lost = 0
        self._last_at: float | None = None
        self._problem = ""
        self.wait_s = FIRST_PAUSE_S

    def take(self) -> Told:
        """Return and forget what has come."""
        with self._lock:
            lines, lost = tuple(self._lines), self._lost
            self._lines.clear()
            self._lost = 0
            age = None if self._last_at is None else self._monotonic() - self._last_at
            return Told(lines, age, self._problem, lost)

    def run(self) -> None:
        """Run the program for ever."""
        while True:
            self.run_once()
            self._pause(self.wait_s)

    def run_once(self) -> None:
        """Run the program to its end and take its lines in; sets how long to wait before the next time."""
        started = self._monotonic()
        try:
            child = self._starter.start(self._argv)
        except CommandError as error:
            self._ended(f"it cannot be started: {error.stderr_tail or error.message}", started)
            return
        with self._lock:
            self._problem = ""
        try:
            self._read(child)
        finally:
            child.kill()
            code = _code(child)
            child.close()
        self._ended(f"it ended with status {code}", started)

    def _read(self, child: Running) -> None:
        pending = bytearray()
        while chunk := child.read(None):
            pending += chunk
            if b"\n" in chunk:
                *lines, rest = bytes(pending).split(b"\n")
                pending = bytearray(rest)
                self._took(lines)
            elif len(pending) > LONGEST_LINE:
                with self._lock:
                    self._lost += 1
                pending.clear()

    def _took(self, lines: Sequence[bytes]) -> None:
        with self._lock:
            for line in lines:
                if not line.strip():
                    continue
                if len(self._lines) == KEPT_LINES:
                    self._lost += 1
                self._lines.append(line.decode(errors="replace"))
                self._last_at = self._monotonic()

    def _ended(self, problem: str, started: float) -> None:
        ran_s = self._monotonic() - started
        with self._lock:
            self._problem = problem[:200]
        self.wait_s = FIRST_PAUSE_S if ran_s >= WELL_S else min(self.wait_s * 2, LONGEST_PAUSE_S)


def _code(child: Running) -> int | None:
    """Return how a killed program ended; None while the kernel still holds it."""
    for _ in range(10):
        code = child.code()
        if code is not None:
            return code
        time.sleep(0.02)
    return None
