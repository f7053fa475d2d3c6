"""What the checks of network devices share."""

from __future__ import annotations

from hyperpod.health.sysfs import word
from hyperpod.ports.host import Host

FLAP_WINDOW_S = 300.0
"""A link that falls twice within this time flaps; a single fall is somebody at a cable."""

_AMAZON = "0x1d0f"


def is_efa(host: Host, device: str) -> bool:
    """True for the folder of an EFA below /sys/class/infiniband: its name depends on udev, its maker does not."""
    return word(host, f"{device}/device/vendor") == _AMAZON
