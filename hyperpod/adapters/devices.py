"""Devices and the clock by the kernel's own calls: ethtool's, NVMe's, adjtimex.

Implements ``ports.devices.Devices``. Linux only, standard library only; starts no process.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping

from hyperpod.ports.devices import NvmeHealth

# linux/sockios.h, linux/ethtool.h
_SIOCETHTOOL = 0x8946
_GET_STRINGS, _GET_STATS, _GET_SET_INFO = 0x1B, 0x1D, 0x37
_STATS_SET = 1
_NAME_BYTES = 32
_MOST_STATISTICS = 16384

# linux/nvme_ioctl.h: _IOWR('N', 0x41, struct nvme_admin_cmd) of 72 bytes
_NVME_ADMIN = 0xC0484E41
_GET_LOG_PAGE, _HEALTH_PAGE, _HEALTH_BYTES = 0x02, 0x02, 512
_NVME_TIMEOUT_MS = 3000

# linux/timex.h
_STA_UNSYNC = 0x40
_TIME_ERROR = 5
_TIMEX_BYTES = 256


class LocalDevices:
    """Asks this machine's kernel."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}

    def interface_statistics(self, interface: str) -> Mapping[str, int]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            names = self._names.get(interface)
            if names is None:
                names = self._names[interface] = _statistic_names(sock, interface)
            if not names:
                return {}
            found = array.array("B", struct.pack("=II", _GET_STATS, len(names)) + bytes(8 * len(names)))
            _ethtool(sock, interface, found)
            count = struct.unpack_from("=II", found)[1]
            if count != len(names):
                # The driver was loaded anew, or its queues have changed: the names are asked for the next time.
                self._names.pop(interface, None)
                return {}
            return dict(zip(names, struct.unpack_from(f"={count}Q", found, 8), strict=True))

    def nvme_health(self, device: str) -> NvmeHealth:
        page = array.array("B", bytes(_HEALTH_BYTES))
        dwords = _HEALTH_BYTES // 4 - 1
        command = struct.pack(
            "=BBHIIIQQIIIIIIIIII",
            _GET_LOG_PAGE, 0, 0, 0xFFFFFFFF, 0, 0, 0, page.buffer_info()[0], 0, _HEALTH_BYTES,
            _HEALTH_PAGE | dwords << 16, 0, 0, 0, 0, 0, _NVME_TIMEOUT_MS, 0,
        )  # fmt: skip
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if fcntl.ioctl(descriptor, _NVME_ADMIN, bytearray(command)) > 0:
                raise OSError(errno.EIO, "the drive refuses its health log", device)
        finally:
            os.close(descriptor)
        return parse_nvme_health(page.tobytes())

    def clock_is_synchronised(self) -> bool | None:
        # Only this call needs the foreign function library, and only once in minutes.
        import ctypes

        try:
            library = ctypes.CDLL(None, use_errno=True)
            timex = (ctypes.c_uint8 * _TIMEX_BYTES)()
            state = library.adjtimex(timex)
        except (OSError, AttributeError):
            return None
        if state < 0:
            return None
        # struct timex begins with modes, then offset, freq, maxerror, esterror as longs, then status.
        long = ctypes.sizeof(ctypes.c_long)
        status = ctypes.c_int.from_buffer(timex, long * 5).value
        return not (status & _STA_UNSYNC or state == _TIME_ERROR)


def parse_nvme_health(page: bytes) -> NvmeHealth:
    """Read the health log of a drive (512 bytes, little endian)."""
    return NvmeHealth(
        warning=page[0],
        spare_percent=page[3],
        used_percent=page[5],
        media_errors=int.from_bytes(page[160:176], "little"),
    )


def _ethtool(sock: socket.socket, interface: str, data: array.array[int]) -> None:
    request = struct.pack("=16sQ", interface.encode()[:15], data.buffer_info()[0]) + bytes(16)
    fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request)


def _statistic_names(sock: socket.socket, interface: str) -> tuple[str, ...]:
    info = array.array("B", struct.pack("=IIQI", _GET_SET_INFO, 0, 1 << _STATS_SET, 0))
    try:
        _ethtool(sock, interface, info)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return ()
        raise
    mask, count = struct.unpack_from("=QI", info, 8)
    if not mask or not 0 < count <= _MOST_STATISTICS:
        return ()
    strings = array.array("B", struct.pack("=III", _GET_STRINGS, _STATS_SET, count) + bytes(_NAME_BYTES * count))
    _ethtool(sock, interface, strings)
    text = strings.tobytes()[12:]
    return tuple(
        text[at : at + _NAME_BYTES].partition(b"\0")[0].decode(errors="replace")
        for at in range(0, _NAME_BYTES * count, _NAME_BYTES)
    )
