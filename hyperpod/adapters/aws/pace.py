"""Keeps our own calls inside EC2's token buckets, so that a large cluster does not throttle the account's other users.

Owns the buckets as published ("Request throttling for the Amazon EC2 API"): size and refill a second, for each account
and region. Others of the account take from the same buckets, so being throttled stays possible and is retried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

BUCKETS: Final[Mapping[str, tuple[float, float]]] = {
    "RunInstances": (5, 2),
    "StartInstances": (5, 2),
    "StopInstances": (5, 2),
    "TerminateInstances": (100, 5),
    "reads": (100, 20),
    "changes": (50, 5),
}
"""Calls: how many at once, and how many more a second."""
MACHINES: Final[Mapping[str, tuple[float, float]]] = {
    "RunInstances": (1000, 2),
    "StartInstances": (1000, 2),
    "StopInstances": (1000, 20),
    "TerminateInstances": (1000, 20),
}
"""Machines that these calls are about, in the same way."""


def bucket_of(operation: str) -> str:
    """Return the bucket of an EC2 operation."""
    if operation in BUCKETS:
        return operation
    return "reads" if operation.startswith(("Describe", "Get")) else "changes"


def machines_in(operation: str, request: Mapping[str, Any]) -> int:
    """Return how many machines a request counts for; 0 where only calls are counted."""
    if operation not in MACHINES:
        return 0
    return int(request.get("MaxCount") or len(request.get("InstanceIds", ())))


class Pace:
    """Counts tokens down and fills them up as time passes. Safe from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def wait_s(self, service: str, operation: str, machines: int = 0) -> float:
        """Take the tokens of one call and return how long to wait before making it; 0 while there are enough.

        Args:
            machines: As ``machines_in`` says.
        """
        if service != "ec2":
            return 0.0
        bucket = bucket_of(operation)
        with self._lock:
            wait = self._take(bucket, BUCKETS[bucket], 1)
            if machines and operation in MACHINES:
                wait = max(wait, self._take(f"machines of {operation}", MACHINES[operation], machines))
        return wait

    def _take(self, name: str, bucket: tuple[float, float], tokens: int) -> float:
        size, refill = bucket
        now = self._monotonic()
        left, at = self._left.get(name, (size, now))
        left = min(size, left + (now - at) * refill) - tokens
        self._left[name] = (left, now)
        return max(0.0, -left / refill)
