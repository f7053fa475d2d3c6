"""Work that may block, in threads that can be given up.

A check that hangs in the kernel keeps its thread for ever; nobody waits for it, and a process that ends does not
either (daemon threads). Waking a sleeping thread costs more than most checks do. So a thread whose work came back
takes the next piece, and what is patient is done by one thread, piece after piece, as long as none of them hangs. It
begins when the loop goes to sleep (``flush``): two threads that are awake together wake each other for the interpreter.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

log = logging.getLogger(__name__)

STACK_BYTES = 256 * 1024
"""Enough for a check; the default of 8 MiB each would look bad in the node's memory figures."""

MOST_IDLE = 2
"""Threads that wait for work; more are made when much is to be done at once, and end with it."""

PATIENCE_S = 0.25
"""What stands behind a piece that takes longer is done by another thread."""

Piece = Callable[[], None]


@dataclass
class _Line:
    """One thread and what waits for it."""

    inbox: SimpleQueue[Piece] = field(default_factory=SimpleQueue)
    since: float | None = None
    """When the piece that runs was begun."""
    is_given_up: bool = False


class Workers:
    """Starts pieces of work; to be used by one thread.

    Args:
        deliver: Called, from any thread, with what is to be run in the agent's loop, and with whether it is urgent.
        monotonic: Seconds that never go backwards.
    """

    def __init__(
        self, deliver: Callable[[Callable[[], None], bool], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._deliver = deliver
        self._monotonic = monotonic
        self._idle: deque[SimpleQueue[Piece]] = deque()
        self._guard = threading.Lock()
        self._line: _Line | None = None
        self._patient: list[Piece] = []
        threading.stack_size(STACK_BYTES)

    def start(
        self,
        name: str,
        work: Callable[[], object],
        done: Callable[[object], None],
        is_urgent: Callable[[object], bool] = lambda result: True,
        *,
        is_patient: bool = False,
    ) -> None:
        """Run ``work`` apart and then ``done(result or exception)`` in the loop.

        Args:
            name: For the thread, as long as it does this.
            work: What may block.
            done: Takes the result.
            is_urgent: Asked in the thread; a result that is not waits until the loop has something else to do.
            is_patient: It may wait for ``flush``, and then for other patient work, for ``PATIENCE_S`` and until the
                next ``hurry``.
        """

        def run() -> None:
            threading.current_thread().name = name
            try:
                result: object = work()
            except Exception as error:  # noqa: BLE001 - whatever a check raises is its result: it could not tell
                result = error
            self._deliver(lambda: done(result), is_urgent(result))

        if is_patient:
            self._patient.append(run)
            return
        try:
            inbox = self._free_inbox(name)
        except RuntimeError as error:
            log.warning("no thread for work name=%s error=%s", name, error)
            failed = error
            self._deliver(lambda: done(failed), True)
            return
        inbox.put(run)

    def flush(self) -> None:
        """Have the patient work begin; to be called when nothing else is to be done."""
        if not self._patient:
            return
        try:
            inbox = self._patient_inbox()
        except RuntimeError as error:
            # It stays, and is tried again when the loop goes to sleep the next time.
            log.warning("no thread for what waits error=%s", error)
            return
        for run in self._patient:
            inbox.put(run)
        self._patient.clear()

    def hurry(self) -> None:
        """Have another thread do what waits behind a piece that does not come back soon; to be called often."""
        line = self._line
        # Read once: its thread may end the piece in this moment.
        since = line.since if line is not None else None
        if line is None or since is None or self._monotonic() - since < PATIENCE_S:
            return
        self._line = None
        try:
            inbox = self._patient_inbox()
        except RuntimeError as error:
            log.warning("no thread for what waits error=%s", error)
            self._line = line
            return
        line.is_given_up = True
        with contextlib.suppress(Empty):
            while True:
                inbox.put(line.inbox.get_nowait())
        # If its piece came back in this very moment, the thread waits for another one and must learn that it is over.
        line.inbox.put(lambda: None)

    def _free_inbox(self, name: str) -> SimpleQueue[Piece]:
        try:
            return self._idle.pop()
        except IndexError:
            inbox: SimpleQueue[Piece] = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
            return inbox

    def _serve(self, inbox: SimpleQueue[Piece]) -> None:
        while True:
            inbox.get()()
            with self._guard:
                if len(self._idle) >= MOST_IDLE:
                    return
                self._idle.append(inbox)

    def _patient_inbox(self) -> SimpleQueue[Piece]:
        if self._line is None:
            line = _Line()
            threading.Thread(target=self._serve_line, args=(line,), name="patient", daemon=True).start()
            self._line = line
        return self._line.inbox

    def _serve_line(self, line: _Line) -> None:
        while not line.is_given_up:
            piece = line.inbox.get()
            line.since = self._monotonic()
            piece()
            line.since = None
