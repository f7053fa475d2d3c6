"""What the checks of network devices share."""

from __future__ import annotations

from hyperpod.health.sysfs import word
from hyperpod.ports.host import Host

FLAP_WINDOW_S = 300.0
"""A link that falls twice within this time flaps; a single fall is somebody at a cable."""

OUTAGE_WHY = (
    "Seconds without a link from which it is an outage; shorter ones are WARN, and count as a fall of the link."
)

_AMAZON = "0x1d0f"


def is_efa(host: Host, device: str) -> bool:
    """True for the folder of an EFA below /sys/class/infiniband: its name depends on udev, its maker does not."""
    return word(host, f"{device}/device/vendor") == _AMAZON


class Outages:
    """Since when links are down. A job's start or end may bring several looks within a second: looks are no time."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def down_s(self, link: str, now: float) -> float:
        """Take in that a link is down, and return for how long it has been seen so."""
        return now - self._since.setdefault(link, now)

    def up(self, link: str) -> None:
        """Take in that a link is up, or not wanted."""
        self._since.pop(link, None)
