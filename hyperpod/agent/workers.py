"""Work that may block, each piece in a thread of its own that can be given up.

A check that hangs in the kernel keeps its thread for ever; nobody waits for it, and a process that ends does not
either (daemon threads).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

STACK_BYTES = 256 * 1024
"""Enough for a check; the default of 8 MiB each would look bad in the node's memory figures."""


class Workers:
    """Starts pieces of work.

    Args:
        deliver: Called, from any thread, with what is to be run in the agent's loop.
    """

    def __init__(self, deliver: Callable[[Callable[[], None]], None]) -> None:
        self._deliver = deliver
        threading.stack_size(STACK_BYTES)

    def start(self, name: str, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Run ``work`` apart and then ``done(result or exception)`` in the loop."""

        def run() -> None:
            try:
                result: object = work()
            except Exception as error:  # noqa: BLE001 - whatever a check raises is its result: it could not tell
                result = error
            self._deliver(lambda: done(result))

        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError as error:
            log.warning("no thread for work name=%s error=%s", name, error)
            failed = error
            self._deliver(lambda: done(failed))
