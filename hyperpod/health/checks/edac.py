"""The memory controllers count no uncorrected errors, and few corrected ones."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.sysfs import Rises, names, number, shares_devices, word
from hyperpod.ports.host import Host

NAME = "edac"
HOUR_S = 3600.0

_CONTROLLER = re.compile(r"mc\d+")
_DIMM = re.compile(r"(?:dimm|rank)\d+")
_ROW = re.compile(r"csrow\d+")
_CHANNEL = re.compile(r"ch(\d+)_ce_count")


@dataclass
class EdacCheck:
    """Reads the kernel's counters of each memory module."""

    about: ClassVar[About] = About(
        title="Memory modules have no uncorrected errors, and few corrected ones",
        reads="/sys/devices/system/edac/mc/mc*/{ue_count,ce_count} and, when those rise, the same of each module.",
        means="The counters begin at 0 with every boot. An uncorrected error has destroyed data of this boot, also "
        "when no line of the kernel log is left that says so. Corrected errors are what the memory is built for; a "
        "module that corrects a hundred an hour is on its way out.",
        does="Uncorrected: FATAL, REPLACE at once. Many corrected ones: WARN.",
        codes={
            "MemoryUncorrected": "An uncorrected memory error was counted in this boot.",
            "MemoryCorrected": "A module corrects more than corrected_per_h errors an hour.",
        },
        source="The kernel's EDAC documentation; the rate is the field's usual one.",
    )
    corrected_per_h: int = setting(100, "Corrected errors of one module per hour that are still normal.")
    interval_s: float = setting(60.0, "Seconds between two looks; the kernel log tells uncorrected ones at once.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    is_job_start: bool = True
    roles: frozenset[Role] = EVERYWHERE
    _totals: dict[str, int] = field(default_factory=dict, repr=False)
    _rises: Rises = field(default_factory=lambda: Rises(HOUR_S), repr=False)

    def run(self, ports: Ports) -> Result:
        """Look at every controller, and at its modules where something rose."""
        if shares_devices(ports):
            return Result()
        host, now = ports.host, ports.host.monotonic()
        root = f"{ports.facts.sysfs}/devices/system/edac/mc"
        findings: list[Finding] = []
        for controller in names(host, root):
            if not _CONTROLLER.fullmatch(controller):
                continue
            base = f"{root}/{controller}"
            if uncorrected := number(host, f"{base}/ue_count"):
                where = _worst_module(host, base) or controller
                text = f"{uncorrected} uncorrected memory errors in this boot at {where}"
                findings.append(
                    fatal(NAME, "MemoryUncorrected", text, action=Action.REPLACE, device=where, is_hard=True)
                )
            total = number(host, f"{base}/ce_count")
            if total is not None and total != self._totals.get(base):
                # The first look takes in where each module stands; later ones only happen after a rise.
                self._totals[base] = total
                for module, count in _corrected(host, base).items():
                    self._rises.see((controller, module), count, now)
            findings += self._many(controller, now)
        return Result(tuple(findings))

    def _many(self, controller: str, now: float) -> list[Finding]:
        out = []
        for key in self._rises.counters():
            count = self._rises.within(key, HOUR_S, now) if key[0] == controller else 0
            if count > self.corrected_per_h:
                where = f"{controller} {key[1]}"
                text = f"{count} corrected memory errors within an hour at {where}"
                out.append(warn(NAME, "MemoryCorrected", text, device=where))
        return out


def _corrected(host: Host, base: str) -> dict[str, int | None]:
    """Return the corrected errors of each module, as the kernel names modules: dimms, or channels of rows."""
    found = {}
    for name in names(host, base):
        if _DIMM.fullmatch(name):
            found[_label(host, base, name)] = number(host, f"{base}/{name}/dimm_ce_count")
    if found:
        return found
    for row in (name for name in names(host, base) if _ROW.fullmatch(name)):
        for file in names(host, f"{base}/{row}"):
            if channel := _CHANNEL.fullmatch(file):
                found[f"{row} channel {channel[1]}"] = number(host, f"{base}/{row}/{file}")
    return found


def _worst_module(host: Host, base: str) -> str:
    for name in names(host, base):
        if _DIMM.fullmatch(name) and number(host, f"{base}/{name}/dimm_ue_count"):
            return _label(host, base, name)
        if _ROW.fullmatch(name) and number(host, f"{base}/{name}/ue_count"):
            return f"{base.rpartition('/')[2]} {name}"
    return ""


def _label(host: Host, base: str, name: str) -> str:
    label = word(host, f"{base}/{name}/dimm_label") or ""
    return label[:60] if label else name
