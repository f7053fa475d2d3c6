"""The GPUs have all their lanes, and the bus runs at its speed while they work."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.gpu import UNREADABLE, look, title
from hyperpod.ports.gpu import GpuView

NAME = "gpu_pcie"


@dataclass
class GpuPcieCheck:
    """Compares width and generation with the most that device and slot can."""

    about: ClassVar[About] = About(
        title="GPUs have their full PCIe link",
        reads="NVML's present and greatest PCIe width and generation, the replay counter, and how busy the GPU is.",
        means="Fewer lanes than device and slot can have is a bad contact or a bad part. A GPU without work lowers the "
        "generation to save power: it is judged only while it works. Replays are put right by the bus.",
        does="FATAL, REBOOT after two looks of three (the link is trained afresh); a second time REPLACE. Many replays "
        "are WARN.",
        codes={
            "PcieWidth": "The link has fewer lanes than device and slot can have.",
            "PcieSpeed": "The link is of a lower generation than it can be, while the GPU works.",
            "PcieReplays": "Many packets had to be sent again.",
            **UNREADABLE,
        },
        source="Practice of other monitors: width 2 of 3, generation only at a utilisation above 50 %.",
    )
    busy_percent: float = setting(50.0, "Utilisation from which the generation counts; idle GPUs run at generation 1.")
    replays_per_hour: int = setting(500, "Replays that are worth a look; our judgement.")
    interval_s: float = setting(120.0, "Seconds between two looks; it shares the look of other checks.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS
    _replays: dict[str, deque[tuple[float, int]]] = field(default_factory=dict, repr=False)
    _last: dict[str, int] = field(default_factory=dict, repr=False)

    def run(self, ports: Ports) -> Result:
        """Compare each GPU's link with what it can be."""
        seen = look(ports, NAME, "pcie_width", "pcie_gen")
        now = ports.host.monotonic()
        findings = list(seen.blind)
        for gpu in seen.gpus:
            if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
                text = f"{title(gpu)}: its PCIe link has {gpu.pcie_width} lanes of {gpu.pcie_width_max}"
                findings.append(fatal(NAME, "PcieWidth", text, action=Action.REBOOT, device=gpu.bus_id))
            is_slow = bool(gpu.pcie_gen and gpu.pcie_gen_max and gpu.pcie_gen < gpu.pcie_gen_max)
            if is_slow and (gpu.utilisation_percent or 0) > self.busy_percent:
                text = (
                    f"{title(gpu)}: its PCIe link is of generation {gpu.pcie_gen}, not {gpu.pcie_gen_max}, "
                    f"at a utilisation of {gpu.utilisation_percent} %"
                )
                findings.append(fatal(NAME, "PcieSpeed", text, action=Action.REBOOT, device=gpu.bus_id))
            count = self._replays_of(gpu, now)
            if count >= self.replays_per_hour:
                text = f"{title(gpu)}: {count} PCIe packets were sent again within an hour"
                findings.append(warn(NAME, "PcieReplays", text, device=gpu.bus_id))
        widths = {f"x{gpu.pcie_width_max} gen{gpu.pcie_gen_max}" for gpu in seen.gpus if gpu.pcie_width_max}
        return Result(tuple(findings), inventory={"gpu_pcie": ", ".join(sorted(widths))} if widths else {})

    def _replays_of(self, gpu: GpuView, now: float) -> int:
        """Return the replays of the last hour; the first look only says where to count from."""
        count = gpu.pcie_replays
        if count is None:
            return 0
        before = self._last.get(gpu.bus_id, count)
        self._last[gpu.bus_id] = count
        recent = self._replays.setdefault(gpu.bus_id, deque())
        added = count - before if count >= before else count
        if added:
            recent.append((now, added))
        while recent and now - recent[0][0] > 3600:
            recent.popleft()
        return sum(number for _, number in recent)
