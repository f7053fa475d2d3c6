"""Work that may block, each piece in a thread that can be given up.

A check that hangs in the kernel keeps its thread for ever; nobody waits for it, and a process that ends does not
either (daemon threads). A thread whose work came back takes the next piece: making one costs more than most checks do.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)

STACK_BYTES = 256 * 1024
"""Enough for a check; the default of 8 MiB each would look bad in the node's memory figures."""

MOST_IDLE = 2
"""Threads that wait for work; more are made when much is to be done at once, and end with it."""

Piece = Callable[[], None]


class Workers:
    """Starts pieces of work.

    Args:
        deliver: Called, from any thread, with what is to be run in the agent's loop, and with whether it is urgent.
    """

    def __init__(self, deliver: Callable[[Callable[[], None], bool], None]) -> None:
        self._deliver = deliver
        self._idle: deque[SimpleQueue[Piece]] = deque()
        threading.stack_size(STACK_BYTES)

    def start(
        self,
        name: str,
        work: Callable[[], object],
        done: Callable[[object], None],
        is_urgent: Callable[[object], bool] = lambda result: True,
    ) -> None:
        """Run ``work`` apart and then ``done(result or exception)`` in the loop.

        Args:
            name: For the thread, as long as it does this.
            work: What may block.
            done: Takes the result.
            is_urgent: Asked in the thread; a result that is not waits until the loop has something else to do.
        """

        def run() -> None:
            threading.current_thread().name = name
            try:
                result: object = work()
            except Exception as error:  # noqa: BLE001 - whatever a check raises is its result: it could not tell
                result = error
            self._deliver(lambda: done(result), is_urgent(result))

        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            try:
                threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
            except RuntimeError as error:
                log.warning("no thread for work name=%s error=%s", name, error)
                failed = error
                self._deliver(lambda: done(failed), True)
                return
        inbox.put(run)

    def _serve(self, inbox: SimpleQueue[Piece]) -> None:
        while True:
            inbox.get()()
            if len(self._idle) >= MOST_IDLE:
                return
            self._idle.append(inbox)
