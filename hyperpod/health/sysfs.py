"""Reading the kernel's device tree through the host port, and rates of its counters. Remembers; does no I/O itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hyperpod.health.check import Ports
from hyperpod.ports.host import Host

KERNELS_SYSFS = "/sys"


def names(host: Host, path: str) -> Sequence[str]:
    """Return the names in a folder; empty when it is not there or cannot be read."""
    try:
        return host.list_dir(path)
    except OSError:
        return ()


def word(host: Host, path: str) -> str | None:
    """Return a file's text without blanks at its ends; None when it cannot be read."""
    try:
        return host.read_text(path, 4096).strip()
    except (OSError, ValueError):
        return None


def number(host: Host, path: str) -> int | None:
    """Return the whole number that a file holds; None when it cannot be read or holds something else."""
    text = word(host, path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def shares_kernel(ports: Ports) -> bool:
    """True on a node that shares its kernel with others (a container).

    What the kernel says of the machine is not about the node then, and every such node would report it.
    """
    return ports.host.booted_at() > 0


def shares_devices(ports: Ports) -> bool:
    """True where the kernel is shared and the device tree is the machine's, not one of the node's own."""
    return ports.facts.sysfs == KERNELS_SYSFS and shares_kernel(ports)


class Rises:
    """How much counters have risen within a time.

    The first value seen of a counter is where counting begins: totals of yesterday are no events of today. A decrease
    means that the counter was reset, by its driver or by a person; counting begins again there.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._last: dict[tuple[str, ...], int] = {}
        self._rises: dict[tuple[str, ...], deque[tuple[float, int]]] = {}

    def see(self, key: tuple[str, ...], value: int | None, now: float) -> int:
        """Take a counter's value in and return how much it has risen since the last."""
        if value is None:
            return 0
        before = self._last.get(key)
        self._last[key] = value
        if before is None or value <= before:
            return 0
        rises = self._rises.setdefault(key, deque(maxlen=512))
        rises.append((now, value - before))
        return value - before

    def within(self, key: tuple[str, ...], window_s: float, now: float) -> int:
        """Return how much a counter has risen in the last ``window_s`` seconds."""
        rises = self._rises.get(key)
        if not rises:
            return 0
        while rises and now - rises[0][0] > self._longest_s:
            rises.popleft()
        return sum(rise for at, rise in rises if now - at <= window_s)

    def count(self, key: tuple[str, ...], amount: int, now: float) -> None:
        """Add events that were counted elsewhere."""
        if amount > 0:
            self._rises.setdefault(key, deque(maxlen=512)).append((now, amount))

    def counters(self) -> Sequence[tuple[str, ...]]:
        """Return the counters that have risen."""
        return tuple(self._rises)
