"""What hangs below a PCIe port: whether a job depends on it. Reads sysfs through the host port."""

from __future__ import annotations

import re

from hyperpod.health.sysfs import names, word
from hyperpod.ports.host import Host

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BRIDGE = "0x0604"
_HARMLESS = ("0x0c03", "0x04", "0x07", "0x09", "0x0d")
"""USB, sound and video, serial ports, input, wireless."""

_DISPLAY = "0x03"
_CONSOLES = frozenset({"0x1a03", "0x102b"})
"""Makers of the small display chips that only show a server's console."""

_DEEPEST = 8


def is_needed(host: Host, sysfs: str, address: str) -> bool:
    """Say whether a part, or one below a port, is something that a job needs.

    False only where all parts are known and harmless: a port below which nothing is left may have lost a GPU.
    """
    return _is_needed(host, f"{sysfs}/bus/pci/devices/{address}", 0)


def _is_needed(host: Host, folder: str, depth: int) -> bool:
    kind = word(host, f"{folder}/class")
    if kind is None or depth > _DEEPEST:
        return True
    if kind.startswith(_BRIDGE):
        below = [name for name in names(host, folder) if _ADDRESS.fullmatch(name)]
        return not below or any(_is_needed(host, f"{folder}/{name}", depth + 1) for name in below)
    if kind.startswith(_DISPLAY):
        return word(host, f"{folder}/vendor") not in _CONSOLES
    return not kind.startswith(_HARMLESS)
