"""Ethernet ports of the machine carry, at their speed, with the right frame size, within the instance's allowance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, THREE_OF_THREE, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.checks.efa import carrier
from hyperpod.health.links import FLAP_WINDOW_S, OUTAGE_WHY, Outages
from hyperpod.health.sysfs import Rises, names, number, shares_devices, word
from hyperpod.ports.host import Host

NAME = "ethernet"
_ETHERNET = 1
_ERRORS = ("rx_crc_errors", "rx_errors", "tx_errors")


@dataclass
class EthernetCheck:
    """Reads /sys/class/net."""

    about: ClassVar[About] = About(
        title="Ethernet ports carry, at full speed, within the instance's allowance",
        reads="/sys/class/net/*/{carrier,carrier_down_count,speed,duplex,mtu,statistics} of interfaces with a device "
        "below them, and the driver's own statistics (ethtool).",
        means="An interface that carried in this boot is wanted; spare ports and empty cages never did. Switched off "
        "by a person is no fault. Bridges, virtual and bond interfaces are not looked at: their ports are. Packets "
        "beyond the instance's allowance are shaped by EC2: the users' traffic, not a fault.",
        does="A lost carrier drains after three looks, a port of a bond is WARN: the bond goes on. Everything else is "
        "WARN.",
        codes={
            "EthernetDown": "An interface that carried in this boot has lost its carrier.",
            "BondPortDown": "A port of a bond has lost its carrier; the others carry on.",
            "EthernetFlaps": "An interface lost its carrier twice within five minutes.",
            "EthernetSlow": "An interface is slower than it was in this boot.",
            "EthernetHalfDuplex": "An interface runs half duplex.",
            "EthernetErrors": "An interface counts more than errors_per_min errors.",
            "MtuDiffers": "An interface's frame size is not the one that is set for it.",
            "AllowanceExceeded": "EC2 shapes packets: the instance's allowance is exceeded.",
        },
        source="The kernel's sysfs-class-net; Amazon's ENA documentation for *_allowance_exceeded.",
    )
    ignored: tuple[str, ...] = setting((), "Interfaces that are never looked at.")
    mtu: int = setting(0, "Frame size that every interface must have; 0: only compared within the group.")
    errors_per_min: int = setting(100, "Receive and transmit errors per minute that are still normal.")
    allowance_per_min: int = setting(1000, "Shaped packets per minute that users should know of; bursts shape some.")
    outage_s: float = setting(30.0, OUTAGE_WHY)
    grace_s: float = setting(300.0, "Seconds after the boot in which flaps do not count: links train.")
    interval_s: float = setting(20.0, "Seconds between two looks.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = THREE_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE
    _is_port: dict[str, bool] = field(default_factory=dict, repr=False)
    _speeds: dict[str, int] = field(default_factory=dict, repr=False)
    _carried: set[str] = field(default_factory=set, repr=False)
    _outages: Outages = field(default_factory=Outages, repr=False)
    _rises: Rises = field(default_factory=lambda: Rises(FLAP_WINDOW_S), repr=False)

    def run(self, ports: Ports) -> Result:
        """Look at every interface of the machine."""
        if shares_devices(ports):
            return Result()
        host, now = ports.host, ports.host.monotonic()
        root = f"{ports.facts.sysfs}/class/net"
        findings: list[Finding] = []
        inventory: dict[str, str] = {}
        carrying = 0
        for interface in names(host, root):
            if interface in self.ignored or not self._counts(host, root, interface):
                continue
            base = f"{root}/{interface}"
            carries = carrier(host, base)
            carrying += bool(carries)
            findings += self._link(host, base, interface, carries, ports.facts.uptime_s < self.grace_s, now)
            if carries:
                findings += self._quality(host, base, interface, now, inventory)
                findings += self._allowance(ports, interface, now)
        for interface in sorted(self._carried - set(names(host, root))):
            findings.append(self._down(interface, f"interface {interface} is gone", now))
        if carrying:
            inventory["ethernet_ports"] = str(carrying)
        return Result(tuple(findings), inventory=inventory)

    def _counts(self, host: Host, root: str, interface: str) -> bool:
        if interface not in self._is_port:
            is_ethernet = number(host, f"{root}/{interface}/type") == _ETHERNET
            self._is_port[interface] = is_ethernet and bool(names(host, f"{root}/{interface}/device"))
        return self._is_port[interface]

    def _link(
        self, host: Host, base: str, interface: str, carries: bool | None, is_young: bool, now: float
    ) -> list[Finding]:
        out = []
        if carries:
            self._carried.add(interface)
            self._outages.up(interface)
        elif carries is None:
            self._carried.discard(interface)
            self._outages.up(interface)
        elif interface in self._carried:
            if names(host, f"{base}/bonding_slave"):
                text = f"{interface}, a port of a bond, has no carrier"
                out.append(warn(NAME, "BondPortDown", text, device=interface))
            else:
                state = word(host, f"{base}/operstate") or "unknown"
                out.append(self._down(interface, f"{interface} has no carrier (state {state})", now))
        falls = self._rises.see((interface, "falls"), number(host, f"{base}/carrier_down_count"), now)
        if not is_young:
            self._rises.count((interface, "flaps"), falls, now)
        flaps = self._rises.within((interface, "flaps"), FLAP_WINDOW_S, now)
        if flaps >= 2:
            text = f"{interface} lost its carrier {flaps} times within five minutes"
            out.append(warn(NAME, "EthernetFlaps", text, device=interface))
        return out

    def _down(self, interface: str, text: str, now: float) -> Finding:
        is_short = self._outages.down_s(interface, now) < self.outage_s
        return (warn if is_short else fatal)(NAME, "EthernetDown", text, device=interface)

    def _quality(self, host: Host, base: str, interface: str, now: float, inventory: dict[str, str]) -> list[Finding]:
        out = []
        speed = number(host, f"{base}/speed")
        if speed is not None and speed > 0:
            best = self._speeds[interface] = max(speed, self._speeds.get(interface, 0))
            inventory[f"speed_{interface}"] = str(speed)
            if speed < best:
                text = f"{interface} runs at {speed} Mb/s, before at {best}"
                out.append(warn(NAME, "EthernetSlow", text, device=interface))
        if word(host, f"{base}/duplex") == "half":
            out.append(warn(NAME, "EthernetHalfDuplex", f"{interface} runs half duplex", device=interface))
        mtu = number(host, f"{base}/mtu")
        if mtu is not None:
            inventory[f"mtu_{interface}"] = str(mtu)
            if self.mtu and mtu != self.mtu:
                text = f"{interface} has frames of {mtu} bytes, not {self.mtu}"
                out.append(warn(NAME, "MtuDiffers", text, device=interface, whose=Whose.SITE))
        errors = 0
        for counter in _ERRORS:
            self._rises.see((interface, counter), number(host, f"{base}/statistics/{counter}"), now)
            errors += self._rises.within((interface, counter), 60.0, now)
        if errors > self.errors_per_min:
            out.append(warn(NAME, "EthernetErrors", f"{interface}: {errors} errors within a minute", device=interface))
        return out

    def _allowance(self, ports: Ports, interface: str, now: float) -> list[Finding]:
        try:
            found = ports.devices.interface_statistics(interface)
        except OSError:
            return []
        shaped = {}
        for counter, value in found.items():
            if counter.endswith("_allowance_exceeded"):
                self._rises.see((interface, counter), value, now)
                if count := self._rises.within((interface, counter), 60.0, now):
                    shaped[counter.removesuffix("_allowance_exceeded")] = count
        if sum(shaped.values()) <= self.allowance_per_min:
            return []
        what = ", ".join(f"{name} {count}" for name, count in shaped.items())
        text = f"{interface}: EC2 shapes packets beyond the instance's allowance ({what} within a minute)"
        return [warn(NAME, "AllowanceExceeded", text, device=interface, whose=Whose.USER)]
