"""InfiniBand and RoCE ports are up, at their speed, and count few errors. EFA devices have a check of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import THREE_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.links import FLAP_WINDOW_S, OUTAGE_WHY, Outages, is_efa
from hyperpod.health.sysfs import Rises, names, number, shares_devices, word
from hyperpod.ports.host import Host

NAME = "infiniband"
HOUR_S = 3600.0

_LIMITS: Mapping[str, tuple[int, float]] = {
    "counters/symbol_error": (120, HOUR_S),
    "counters/link_error_recovery": (5, 60.0),
    "counters/local_link_integrity_errors": (10, HOUR_S),
    "counters/excessive_buffer_overrun_errors": (10, HOUR_S),
    "counters/port_rcv_errors": (120, HOUR_S),
    "hw_counters/rnr_nak_retry_err": (10, HOUR_S),
    "hw_counters/roce_slow_restart": (600, 60.0),
}
"""Most events that are still normal, within so many seconds."""


@dataclass
class InfinibandCheck:
    """Reads /sys/class/infiniband."""

    about: ClassVar[About] = About(
        title="InfiniBand and RoCE ports are up, at full rate, without many errors",
        reads="/sys/class/infiniband/*/ports/*/{state,phys_state,rate,counters,hw_counters}; once for each device its "
        "firmware (fw_ver), for the group's comparison.",
        means="A port that was active in this boot, or that the instance type has, is wanted; one that never was is a "
        "spare port or an empty cage and no fault. Counters are rates since the agent's first look: totals, and "
        "values that somebody has reset, are no events. The first five minutes of a boot are link training.",
        does="An outage of half a minute, or two within five minutes, is FATAL, drain: cable, module or switch port. "
        "The same on several nodes within seconds is their switch. Rates of errors and a slower link are WARN.",
        codes={
            "LinkDown": "A port that was active is not, for about 30 s.",
            "LinkFlaps": "A port lost its link twice within five minutes.",
            "LinksMissing": "Fewer ports are active than the instance type has.",
            "LinkSlow": "A port is slower than it was in this boot, or than the others of this node.",
            "LinkErrors": "A counter of errors rises faster than its limit.",
        },
        source="Mellanox/NVIDIA's counter documentation; limits of NVSentinel and HEALTH rules of the field.",
    )
    ignored: tuple[str, ...] = setting((), "Ports that are never looked at, as mlx5_0/1; for cables that are known.")
    outage_s: float = setting(30.0, OUTAGE_WHY)
    grace_s: float = setting(300.0, "Seconds after the boot in which flaps and missing links do not count.")
    interval_s: float = setting(15.0, "Seconds between two looks; three of them are the half minute of an outage.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = THREE_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    is_job_start: bool = True
    roles: frozenset[Role] = WORKERS
    _was_active: dict[str, str] = field(default_factory=dict, repr=False)
    _efa: dict[str, bool] = field(default_factory=dict, repr=False)
    _firmware: dict[str, str] = field(default_factory=dict, repr=False)
    _outages: Outages = field(default_factory=Outages, repr=False)
    _rises: Rises = field(default_factory=lambda: Rises(HOUR_S), repr=False)

    def run(self, ports: Ports) -> Result:
        """Look at every port."""
        if shares_devices(ports):
            return Result()
        host, now = ports.host, ports.host.monotonic()
        root = f"{ports.facts.sysfs}/class/infiniband"
        expected = int(ports.facts.expected.get("infiniband_ports", 0))
        is_young = ports.facts.uptime_s < self.grace_s
        findings: list[Finding] = []
        active: dict[str, str] = {}
        seen: set[str] = set()
        for device in names(host, root):
            if device not in self._efa:
                self._efa[device] = is_efa(host, f"{root}/{device}")
                self._firmware[device] = word(host, f"{root}/{device}/fw_ver") or ""
            if self._efa[device]:
                continue
            for port in names(host, f"{root}/{device}/ports"):
                name, base = f"{device}/{port}", f"{root}/{device}/ports/{port}"
                if name in self.ignored:
                    continue
                is_up = _is_active(host, base)
                if is_up is None:
                    continue
                seen.add(name)
                if is_up:
                    active[name] = word(host, f"{base}/rate") or ""
                findings += self._link(name, base, host, is_up, is_young, now)
                findings += self._errors(name, base, host, now)
        findings += [self._down(name, "is gone", now) for name in sorted(self._was_active) if name not in seen]
        findings += self._speeds(active)
        if len(active) < expected and not is_young:
            text = f"{len(active)} of {expected} InfiniBand ports are active"
            findings.append(fatal(NAME, "LinksMissing", text, action=Action.REBOOT))
        if not active and not expected:
            return Result(tuple(findings))
        rates = sorted({rate for rate in active.values() if rate})
        inventory = {"infiniband_ports": str(len(active)), "infiniband_rate": ", ".join(rates)}
        firmware = sorted({self._firmware[name.partition("/")[0]] for name in active} - {""})
        if firmware:
            inventory["infiniband_firmware"] = ", ".join(firmware)
        return Result(tuple(findings), inventory=inventory)

    def _link(self, name: str, base: str, host: Host, is_up: bool, is_young: bool, now: float) -> list[Finding]:
        out = []
        if is_up:
            self._outages.up(name)
        elif name in self._was_active:
            state = word(host, f"{base}/state") or "?"
            physical = word(host, f"{base}/phys_state") or "?"
            how = f"is {state.partition(': ')[2] or state} ({physical.partition(': ')[2] or physical})"
            out.append(self._down(name, how, now))
        falls = self._rises.see((name, "falls"), number(host, f"{base}/counters/link_downed"), now)
        if is_young:
            return out
        self._rises.count((name, "flaps"), falls, now)
        flaps = self._rises.within((name, "flaps"), FLAP_WINDOW_S, now)
        if flaps >= 2:
            text = f"port {name} lost its link {flaps} times within five minutes"
            out.append(fatal(NAME, "LinkFlaps", text, device=name))
        return out

    def _down(self, name: str, how: str, now: float) -> Finding:
        text = f"port {name} {how}, it was active in this boot"
        if self._outages.down_s(name, now) < self.outage_s:
            return warn(NAME, "LinkDown", text, device=name)
        return fatal(NAME, "LinkDown", text, device=name)

    def _errors(self, name: str, base: str, host: Host, now: float) -> list[Finding]:
        out = []
        for counter, (limit, window_s) in _LIMITS.items():
            self._rises.see((name, counter), number(host, f"{base}/{counter}"), now)
            count = self._rises.within((name, counter), window_s, now)
            if count > limit:
                text = f"port {name} counts {count} {counter.partition('/')[2]} within {window_s / 60:.0f} min"
                out.append(warn(NAME, "LinkErrors", text, device=name))
        return out

    def _speeds(self, active: Mapping[str, str]) -> list[Finding]:
        out = []
        for name, rate in active.items():
            before = self._was_active.get(name, "")
            best = before if speed_of(before) > speed_of(rate) else rate
            self._was_active[name] = best
            if speed_of(rate) < speed_of(best):
                out.append(warn(NAME, "LinkSlow", f"port {name} runs at {rate}, before at {best}", device=name))
        return out


def speed_of(rate: str) -> float:
    """Return the gigabits per second of ``200 Gb/sec (4X HDR)``; 0 for something else."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", rate)
    return float(match[1]) if match else 0.0


def _is_active(host: Host, base: str) -> bool | None:
    state, physical = word(host, f"{base}/state"), word(host, f"{base}/phys_state")
    if state is None or not re.match(r"\d+: ", state):
        # Not a port as the kernel shows it: nothing is said of it.
        return None
    return state.startswith("4:") and (physical is None or physical.startswith("5:"))
