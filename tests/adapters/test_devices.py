"""What the kernel's calls tell of devices."""

from __future__ import annotations

import pytest

from hyperpod.adapters.devices import LocalDevices, parse_nvme_health
from hyperpod.ports.devices import NvmeHealth


def test_a_health_log_is_read_by_its_offsets() -> None:
    page = bytearray(512)
    page[0], page[3], page[5] = 0b1100, 9, 101
    page[160:168] = (3).to_bytes(8, "little")
    assert parse_nvme_health(bytes(page)) == NvmeHealth(warning=12, used_percent=101, spare_percent=9, media_errors=3)


def test_what_is_no_drive_has_no_health() -> None:
    with pytest.raises(FileNotFoundError):
        LocalDevices().nvme_health("/dev/nvme99")
    with pytest.raises(OSError):
        LocalDevices().nvme_health("/dev/null")


def test_an_interface_without_a_driver_has_no_statistics() -> None:
    assert LocalDevices().interface_statistics("lo") == {}
    with pytest.raises(OSError):
        LocalDevices().interface_statistics("gone0")


def test_the_kernel_says_whether_its_clock_is_kept() -> None:
    assert LocalDevices().clock_is_synchronised() in (True, False, None)
