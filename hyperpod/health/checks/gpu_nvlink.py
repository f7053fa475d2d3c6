"""The NVLinks between GPUs are up and carry data without many errors."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.gpu import UNREADABLE, look, title
from hyperpod.ports.gpu import GpuView

NAME = "gpu_nvlink"

_SERIOUS = frozenset({"recovery", "recovery_failed", "integrity", "receive"})
"""Kinds that the link could not put right by sending once more."""


@dataclass
class _Windows:
    started: float
    count: int
    bad: deque[bool]


@dataclass
class GpuNvlinkCheck:
    """Counts links, and windows of a minute with errors."""

    about: ClassVar[About] = About(
        title="NVLinks are up and clean",
        reads="NVML's state of each NVLink, and the error counters of each GPU's links.",
        means="A link that was up in this boot and is down, or fewer links than the instance type has, halves a job's "
        "speed or ends it. How many links a part should have cannot be read from the part: bridges and PCIe cards "
        "leave links unused by design, also all of them, and an A100 has 12 where the interface has numbers for 18; so "
        "the type's table and the group's majority decide. Counters count as rates: a window of a minute is bad when "
        "it adds errors, and only a link that is bad half of the time is a fault.",
        does="FATAL, REBOOT for a link that is down (two looks of three). Errors that a link could not correct in 15 "
        "of 30 windows: FATAL, DRAIN, so that jobs come to their end. Errors that it corrected: WARN.",
        codes={
            "LinkDown": "A GPU has fewer NVLinks up than before or than its type has.",
            "LinkErrors": "NVLink errors in half of the last windows that sending again did not put right.",
            "LinkRetries": "NVLink errors in half of the last windows that were put right.",
            **UNREADABLE,
        },
        source="Practice of other monitors; windows as in NVIDIA's resiliency extension (15 bad of 30 of 60 s).",
    )
    window_s: float = setting(60.0, "Seconds of one window.")
    windows: int = setting(30, "Windows that are remembered: half an hour.")
    bad_windows: int = setting(15, "Windows with errors among them that make a fault.")
    errors_per_window: int = setting(1, "New errors of one kind that make a window bad.")
    interval_s: float = setting(60.0, "Seconds between two looks.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS
    _most: dict[str, int] = field(default_factory=dict, repr=False)
    _windows: dict[tuple[str, str], _Windows] = field(default_factory=dict, repr=False)

    def run(self, ports: Ports) -> Result:
        """Compare the links with what they were, and count windows."""
        seen = look(ports, NAME, "links_active", "crc", "replay", "recovery")
        expected = int(ports.facts.expected.get("nvlinks", 0))
        now = ports.host.monotonic()
        findings = list(seen.blind)
        for gpu in seen.gpus:
            findings += self._links(gpu, expected)
            findings += self._errors(gpu, now)
        counts = [gpu.links_active for gpu in seen.gpus if gpu.links_active is not None]
        # A GPU that does not tell would change the sum: then nothing is compared.
        inventory = {"nvlinks": str(sum(counts))} if counts and len(counts) == len(seen.gpus) else {}
        return Result(tuple(findings), inventory=inventory)

    def _links(self, gpu: GpuView, expected: int) -> list[Finding]:
        if gpu.links_active is None:
            return []
        most = self._most[gpu.bus_id] = max(gpu.links_active, self._most.get(gpu.bus_id, 0))
        wanted = max(most, expected)
        if gpu.links_active >= wanted:
            return []
        text = f"{title(gpu)}: {gpu.links_active} of {wanted} NVLinks are up"
        return [fatal(NAME, "LinkDown", text, action=Action.REBOOT, device=gpu.bus_id)]

    def _errors(self, gpu: GpuView, now: float) -> list[Finding]:
        bad: dict[bool, list[str]] = {True: [], False: []}
        for kind, count in sorted(gpu.link_errors.items()):
            windows = self._windows.get((gpu.bus_id, kind))
            if windows is None:
                windows = _Windows(now, count, deque(maxlen=self.windows))
                self._windows[gpu.bus_id, kind] = windows
            elif now - windows.started >= self.window_s * 0.9:
                # A counter that has become smaller was reset, and what it counts now is new.
                added = count - windows.count if count >= windows.count else count
                windows.bad.append(added >= self.errors_per_window)
                windows.started, windows.count = now, count
            if sum(windows.bad) >= self.bad_windows:
                bad[kind in _SERIOUS].append(f"{kind} in {sum(windows.bad)} of {len(windows.bad)}")
        out = []
        if bad[True]:
            text = f"{title(gpu)}: NVLink errors by windows: {', '.join(bad[True])}"
            out.append(fatal(NAME, "LinkErrors", text, action=Action.DRAIN, device=gpu.bus_id))
        if bad[False]:
            text = f"{title(gpu)}: NVLink errors, corrected, by windows: {', '.join(bad[False])}"
            out.append(warn(NAME, "LinkRetries", text, device=gpu.bus_id))
        return out
