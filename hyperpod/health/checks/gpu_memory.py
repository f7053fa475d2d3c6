"""The memory of the GPUs can still repair itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.gpu import UNREADABLE, look, title
from hyperpod.health.sysfs import Rises
from hyperpod.ports.gpu import GpuView

NAME = "gpu_memory"


@dataclass
class _Sram:
    last: int
    times: deque[float] = field(default_factory=deque)


@dataclass
class GpuMemoryCheck:
    """Reads row remapping, page retirement and the errors of the on-chip memory."""

    about: ClassVar[About] = About(
        title="GPU memory can still repair itself",
        reads="NVML's remapped rows and their histogram, retired pages (parts before Ampere), uncorrected errors since "
        "the driver's start and those of the on-chip memory.",
        means="A row that could not be remapped is the end of the part's own repair. A remap that is pending waits for "
        "a reset; the vendor lets running and new jobs go on. Uncorrected errors of the main memory are what remapping "
        "is for: new ones are evidence for the job that ran, and totals of the part's whole life are never a fault. A "
        "bank that has no spare row left works, but the next error in it is the end: suspect. The "
        "on-chip memory has no spare rows, so errors that come twice are the part's.",
        does="REPLACE for a failed remap (at once), for on-chip errors that come again within a day, for the driver's "
        "word that they are too many, and for too many retired pages. A pending remap is WARN: reset when idle.",
        codes={
            "EccUncorrected": "New uncorrected memory errors (WARN for an hour: evidence, no drain by itself).",
            "BanksWithoutSpare": "Banks of the memory have no spare row left (WARN: the next error is the end).",
            "RemapFailed": "A row of the memory could not be remapped.",
            "RemapPending": "A remapped row, or a retired page, waits for a reset of the GPU.",
            "SramErrors": "Uncorrected errors of the on-chip memory came at least twice within the window.",
            "SramThreshold": "The driver says that the on-chip memory has had too many uncorrected errors.",
            "PagesRetired": "More pages are retired than the vendor accepts.",
            **UNREADABLE,
        },
        source="NVIDIA, GPU memory error management; practice of other monitors.",
    )
    sram_events: int = setting(2, "Looks with new uncorrected on-chip errors that make a fault; one may be a ray.")
    sram_window_s: float = setting(86400.0, "Seconds within which they count together.")
    banks_limit: int = setting(1, "Banks without a spare row from which the part is suspect; a new part has none.")
    ecc_s: float = setting(3600.0, "Seconds for which new uncorrected errors stay as evidence.")
    retired_pages_limit: int = setting(60, "Retired pages; the vendor takes parts back from 60 on.")
    interval_s: float = setting(120.0, "Seconds between two looks; the kernel's Xid lines come at once.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS
    _sram: dict[str, _Sram] = field(default_factory=dict, repr=False)
    _ecc: Rises = field(default_factory=lambda: Rises(86400.0), repr=False)

    def run(self, ports: Ports) -> Result:
        """Judge each GPU's memory."""
        seen = look(ports, NAME, "remap_failed", "sram_uncorrected", "retired_pages", max_age_s=2.0)
        now = ports.host.monotonic()
        return Result((*seen.blind, *(finding for gpu in seen.gpus for finding in self._judge(gpu, now))))

    def _judge(self, gpu: GpuView, now: float) -> list[Finding]:
        out = []
        where, device = title(gpu), gpu.bus_id
        if gpu.remap_failed:
            text = f"{where}: a row of its memory could not be remapped"
            out.append(fatal(NAME, "RemapFailed", text, action=Action.REPLACE, device=device, is_hard=True))
        if gpu.remap_pending:
            text = f"{where}: a repair of its memory waits for a reset; jobs may go on"
            out.append(warn(NAME, "RemapPending", text, device=device))
        key = (gpu.uuid or device, "volatile")
        self._ecc.see(key, gpu.volatile_uncorrected, now)
        if count := self._ecc.within(key, self.ecc_s, now):
            text = f"{where}: {count} new uncorrected errors of its memory; remapping takes care of them"
            out.append(warn(NAME, "EccUncorrected", text, device=device))
        if (gpu.banks_without_spare or 0) >= self.banks_limit:
            text = f"{where}: {gpu.banks_without_spare} banks of its memory have no spare row left"
            out.append(warn(NAME, "BanksWithoutSpare", text, device=device))
        if gpu.sram_threshold_exceeded:
            text = f"{where}: its on-chip memory has had too many uncorrected errors"
            out.append(fatal(NAME, "SramThreshold", text, action=Action.REPLACE, device=device, is_hard=True))
        events = self._new_sram_errors(gpu, now)
        if events >= self.sram_events:
            hours = self.sram_window_s / 3600
            text = f"{where}: uncorrected errors of its on-chip memory came {events} times within {hours:.0f} hours"
            out.append(fatal(NAME, "SramErrors", text, action=Action.REPLACE, device=device, is_hard=True))
        if gpu.retired_pages is not None and gpu.retired_pages >= self.retired_pages_limit:
            text = f"{where}: {gpu.retired_pages} pages of its memory are retired"
            out.append(fatal(NAME, "PagesRetired", text, action=Action.REPLACE, device=device))
        return out

    def _new_sram_errors(self, gpu: GpuView, now: float) -> int:
        """Return how many looks within the window saw new errors; what was there at the first look is the past."""
        if gpu.sram_uncorrected is not None:
            known = self._sram.setdefault(gpu.uuid or gpu.bus_id, _Sram(gpu.sram_uncorrected))
            if gpu.sram_uncorrected > known.last:
                known.times.append(now)
            known.last = gpu.sram_uncorrected
        found = self._sram.get(gpu.uuid or gpu.bus_id)
        if found is None:
            return 0
        while found.times and now - found.times[0] > self.sram_window_s:
            found.times.popleft()
        return len(found.times)
