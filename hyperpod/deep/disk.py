"""Disks: what is read back is what was written, and how fast."""

from __future__ import annotations

import os
import tempfile
import time
from zlib import crc32

from hyperpod.deep.result import Line

_BLOCK = 4 << 20
_SHARE_OF_FREE = 0.05


def check_disk(folder: str, size: int) -> list[Line]:
    """Write a file of ``size`` bytes at most, have it leave the cache, read it back and compare checksums.

    Never takes more than a twentieth of what is free. The file has no name, so that nothing stays if we are killed.
    """
    try:
        free = os.statvfs(folder)
        size = min(size, int(free.f_bavail * free.f_frsize * _SHARE_OF_FREE)) // _BLOCK * _BLOCK
        if size == 0:
            return [Line("disk_checksum", True, detail=f"{folder}: too little room", skipped=True)]
        return _check(folder, size)
    except OSError as error:
        return [Line("disk_checksum", False, detail=f"{folder}: {error.strerror or error}")]


def _check(folder: str, size: int) -> list[Line]:
    block = os.urandom(_BLOCK)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        written: list[int] = []
        start = time.perf_counter()
        for number in range(size // _BLOCK):
            # Every block differs, so that one in another's place is noticed.
            data = number.to_bytes(8, "big") + block[8:]
            written.append(crc32(data))
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        os.fsync(file.fileno())
        write_s = time.perf_counter() - start
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start = time.perf_counter()
        for number, wanted in enumerate(written):
            data = _read(file.fileno())
            if crc32(data) != wanted:
                at = number * _BLOCK
                return [Line("disk_checksum", False, detail=f"{folder}: what was read at byte {at} was not written")]
        read_s = time.perf_counter() - start
    return [
        Line("disk_checksum", True, value=size / 1e6, unit="MB", detail=folder),
        Line("disk_write", True, value=size / write_s / 1e6, unit="MB/s", detail=folder),
        Line("disk_read", True, value=size / read_s / 1e6, unit="MB/s", detail=folder),
    ]


def _read(descriptor: int) -> bytes:
    parts = bytearray()
    while len(parts) < _BLOCK:
        part = os.read(descriptor, _BLOCK - len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)
