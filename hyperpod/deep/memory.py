"""Memory: does it keep what is written, and how fast is it copied."""

from __future__ import annotations

from hyperpod.deep.result import Line, repeat

PATTERNS = (0x00, 0xFF, 0x55, 0xAA)
"""All bits low, all high, and both alternations: each cell holds both values, beside neighbours of both."""


def available_bytes(text: str) -> int:
    """Return MemAvailable of /proc/meminfo."""
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable")


_CHUNK = 1 << 20


def check_patterns(size: int) -> Line:
    """Fill ``size`` bytes with each pattern, copy them, and compare the copy with what was written."""
    original, copy = memoryview(bytearray(size)), memoryview(bytearray(size))
    for pattern in PATTERNS:
        wanted = bytes([pattern]) * _CHUNK
        for at in range(0, size, _CHUNK):
            original[at : at + _CHUNK] = wanted[: len(original[at : at + _CHUNK])]
        copy[:] = original
        for at in range(0, size, _CHUNK):
            found = copy[at : at + _CHUNK]
            if found != wanted[: len(found)]:
                first = next(i for i, byte in enumerate(found) if byte != pattern)
                detail = f"byte {at + first} holds {found[first]:#04x}, {pattern:#04x} was written"
                return Line("memory_pattern", False, detail=detail)
    return Line("memory_pattern", True, value=size / 1e6, unit="MB")


def measure_bandwidth(size: int, seconds: float) -> Line:
    """Copy a block back and forth; what is read and what is written both count."""
    source, target = memoryview(bytearray(b"\xa5") * size), memoryview(bytearray(size))

    def copy() -> int:
        target[:] = source
        return 2 * size

    moved, took = repeat(copy, seconds)
    return Line("memory_bandwidth", True, value=moved / took / 1e9, unit="GB/s")
