"""What only the kernel's calls tell of devices and of the clock, as a port. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class NvmeHealth:
    """The part of an NVMe drive's health log that we judge.

    Attributes:
        warning: The bits of "critical warning" (NVM Express Base Specification, SMART / Health Information).
        used_percent: Share of its rated life that is used; may be more than 100.
        spare_percent: Spare blocks that are left.
        media_errors: Errors that the drive could not correct, ever.
    """

    warning: int
    used_percent: int = 0
    spare_percent: int = 100
    media_errors: int = 0


class Devices(Protocol):
    """Devices of this node."""

    def interface_statistics(self, interface: str) -> Mapping[str, int]:
        """Return a network driver's own counters (``ethtool -S``); empty for a driver that has none.

        Raises:
            OSError: if the interface is gone or may not be asked.
        """
        ...

    def nvme_health(self, device: str) -> NvmeHealth:
        """Return the health of an NVMe controller (``/dev/nvme0``).

        Raises:
            OSError: if there is none or it does not answer.
        """
        ...

    def clock_is_synchronised(self) -> bool | None:
        """Say whether the kernel's clock is kept in step by somebody; None when the kernel does not say."""
        ...


class NoDevices:
    """A machine that tells nothing."""

    def interface_statistics(self, interface: str) -> Mapping[str, int]:
        """See ``Devices``."""
        return {}

    def nvme_health(self, device: str) -> NvmeHealth:
        """See ``Devices``."""
        raise FileNotFoundError(2, "No such file or directory", device)

    def clock_is_synchronised(self) -> bool | None:
        """See ``Devices``."""
        return None
