"""What ``ibstat``, ``ibstatus``, ``ibv_devinfo``, ``perfquery`` and ``ethtool`` print, line by line. Pure.

Owns the formats. Gives facts with the fields ``state``, ``physical``, ``rate``, ``layer``, ``link``, ``duplex``, of
``ethtool -S`` ``counter NAME`` and of ``perfquery`` ``port NAME``.
"""

from __future__ import annotations

import re

from hyperpod.health.text_fact import Fact

_CA = re.compile(r"^CA '(?P<ca>[^']+)'\s*$")
_IBSTATUS = re.compile(r"^Infiniband device '(?P<ca>[^']+)' port (?P<port>\d+) status:")
_HCA = re.compile(r"^hca_id:\s*(?P<ca>\S+)")
_SETTINGS = re.compile(r"^Settings for (?P<dev>[\w.@:-]+):")
_STATISTICS = re.compile(r"^NIC statistics:")
_PERFQUERY = re.compile(r"^# Port (?:extended |Extended )?[Cc]ounters: Lid (?P<lid>\d+) port (?P<port>\d+)\b")
_DOTTED = re.compile(r"^(?P<name>[A-Z]\w+):\.{2,}(?P<value>\d{1,20})\s*$")
_PORT = re.compile(r"^\s+(?:Port (?P<ibstat>\d+):|port:\s+(?P<ibv>\d+))\s*$")
_PAIR = re.compile(r"^\s+(?P<name>[A-Za-z][\w -]*?):\s+(?P<value>\S.*?)\s*$")
_COUNTER = re.compile(r"^\s+(?P<name>\w+):\s*(?P<value>\d+)\s*$")
_NAMES = {
    "state": "state",
    "physical state": "physical",
    "phys state": "physical",
    "phys_state": "physical",
    "rate": "rate",
    "link layer": "layer",
    "link_layer": "layer",
}
_ETHTOOL = {"link detected": "link", "duplex": "duplex", "speed": "speed"}


def is_start(text: str) -> bool:
    """True for a line that begins output of one of the tools."""
    return any(p.match(text) for p in (_CA, _IBSTATUS, _HCA, _SETTINGS, _STATISTICS, _PERFQUERY))


class LinkReader:
    """Takes lines, gives facts."""

    def __init__(self) -> None:
        self._device = ""
        self._port = ""
        self._kind = ""

    def feed(self, number: int, text: str) -> list[Fact]:
        """Take one line."""
        for pattern, kind in ((_CA, "ib"), (_IBSTATUS, "ib"), (_HCA, "ib"), (_SETTINGS, "ethtool")):
            found = pattern.match(text)
            if found:
                groups = found.groupdict()
                self._device, self._kind = groups.get("ca") or groups["dev"], kind
                self._port = groups.get("port") or ""
                return []
        counted = _PERFQUERY.match(text)
        if counted:
            self._device, self._port, self._kind = f"lid {counted['lid']}", counted["port"], "perfquery"
            return []
        if self._kind == "perfquery":
            dotted = _DOTTED.match(text)
            device = f"{self._device}/{self._port}"
            return [Fact(number, device, f"port {dotted['name']}", dotted["value"])] if dotted else []
        if _STATISTICS.match(text):
            self._kind = "statistics"
            return []
        port = _PORT.match(text)
        if port and self._kind == "ib":
            self._port = port["ibstat"] or port["ibv"]
            return []
        if self._kind == "statistics":
            counter = _COUNTER.match(text)
            return [Fact(number, self._device, f"counter {counter['name']}", counter["value"])] if counter else []
        pair = _PAIR.match(text)
        if not pair or not self._device:
            return []
        names = _NAMES if self._kind == "ib" else _ETHTOOL
        name = names.get(pair["name"].strip().lower())
        if not name:
            return []
        device = f"{self._device}/{self._port}" if self._port else self._device
        return [Fact(number, device, name, pair["value"])]
