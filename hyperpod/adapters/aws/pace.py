"""Keeps our own calls inside EC2's token buckets, so that a large cluster does not throttle the account's other users.

Owns the buckets as published ("Request throttling for the Amazon EC2 API"): size and refill a second, for each account
and region. Others of the account take from the same buckets, so being throttled stays possible and is retried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

BUCKETS: Final[Mapping[str, tuple[float, float]]] = {
    "RunInstances": (5, 2),
    "StartInstances": (5, 2),
    "StopInstances": (5, 2),
    "TerminateInstances": (100, 5),
    "reads": (100, 20),
    "changes": (50, 5),
}


def bucket_of(operation: str) -> str:
    """Return the bucket of an EC2 operation."""
    if operation in BUCKETS:
        return operation
    return "reads" if operation.startswith(("Describe", "Get")) else "changes"


class Pace:
    """Counts tokens down and fills them up as time passes. Safe from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def wait_s(self, service: str, operation: str) -> float:
        """Take a token for one call and return how long to wait before making it; 0 while there are any."""
        if service != "ec2":
            return 0.0
        bucket = bucket_of(operation)
        size, refill = BUCKETS[bucket]
        with self._lock:
            now = self._monotonic()
            left, at = self._left.get(bucket, (size, now))
            left = min(size, left + (now - at) * refill) - 1
            self._left[bucket] = (left, now)
        return max(0.0, -left / refill)
