"""The hardware does not hold the GPUs' clocks down while they work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import THREE_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.gpu import UNREADABLE, is_busy, look, title
from hyperpod.ports.gpu import GpuView

NAME = "gpu_slowdown"

_FEWEST_OTHERS = 3
_SLOWDOWN, _THERMAL, _BRAKE = 0x08, 0x40, 0x80


@dataclass
class GpuSlowdownCheck:
    """Reads the reasons for which clocks are held down."""

    about: ClassVar[About] = About(
        title="The hardware does not slow the GPUs down",
        reads="NVML's reasons for lowered clocks, how busy the GPU is, and its draw beside that of the others.",
        means="Heat or the power supply's brake has cut the clocks of a GPU that works: the whole job waits for it. A "
        "limit that software sets (power cap, application clocks, its own thermal control) is normal and was seen on "
        "most nodes of healthy fleets; an idle GPU says nothing. The same on many nodes of a rack is the site's "
        "cooling or power, and the breaker holds all action. A GPU that is as busy as the others of the same job and "
        "draws half of what they do is slow for a reason that the driver does not tell; it is only compared while one "
        "job alone has the node, because two jobs differ.",
        does="After three looks of three: DRAIN, so that jobs come to their end; no reboot by itself.",
        codes={
            "HardwareThermal": "The hardware cut the clocks because of heat.",
            "PowerBrake": "The power supply's brake cut the clocks.",
            "HardwareSlowdown": "The hardware cut the clocks and does not say for which of the two.",
            "PowerOutlier": "A busy GPU draws far less, or far more, than the others of the job (WARN: suspect).",
            **UNREADABLE,
        },
        source="NVML clocks event reasons 0x08, 0x40, 0x80; software power cap 0x04 fired on 69 % of a fleet "
        "(NVSentinel 465, 1708), a real brake went unseen for 36 hours (1666).",
    )
    busy_percent: float = setting(20.0, "Utilisation from which a GPU works.")
    alike_percent: float = setting(90.0, "Utilisation from which GPUs are busy enough to be compared by their draw.")
    least_share: float = setting(0.5, "Share of the others' median draw below which a GPU stands out.")
    most_share: float = setting(1.6, "Share of the others' median draw above which a GPU stands out.")
    interval_s: float = setting(60.0, "Seconds between two looks.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = THREE_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS

    def run(self, ports: Ports) -> Result:
        """Report busy GPUs whose clocks the hardware holds down."""
        seen = look(ports, NAME, "slowdowns")
        findings = list(seen.blind)
        for gpu in seen.gpus:
            reasons = gpu.slowdowns or 0
            if not is_busy(gpu, self.busy_percent) or not reasons & (_SLOWDOWN | _THERMAL | _BRAKE):
                continue
            if reasons & _THERMAL:
                code, cause = "HardwareThermal", "because of heat"
            elif reasons & _BRAKE:
                code, cause = "PowerBrake", "because the power supply brakes"
            else:
                code, cause = "HardwareSlowdown", "for heat or power"
            heat = "" if gpu.temperature_c is None else f", {gpu.temperature_c} °C"
            text = f"{title(gpu)}: the hardware holds its clocks down {cause} (reasons {reasons:#x}{heat})"
            findings.append(fatal(NAME, code, text, action=Action.DRAIN, device=gpu.bus_id))
        if ports.facts.jobs is not None and len(ports.facts.jobs) == 1:
            known = {finding.device for finding in findings}
            findings += [f for f in self._outliers(seen.gpus) if f.device not in known]
        return Result(tuple(findings))

    def _outliers(self, gpus: Sequence[GpuView]) -> list[Finding]:
        """Compare the draw of GPUs that are all fully busy; three others make a comparison."""
        busy = {
            gpu.index: (gpu, gpu.power_w)
            for gpu in gpus
            if gpu.power_w and (gpu.utilisation_percent or 0) >= self.alike_percent
        }
        out = []
        for index, (gpu, draw) in busy.items():
            others = [other for number, (_, other) in busy.items() if number != index]
            if len(others) < _FEWEST_OTHERS:
                return []
            usual = sorted(others)[len(others) // 2]
            if not self.least_share * usual <= draw <= self.most_share * usual:
                text = f"{title(gpu)} draws {draw:.0f} W, the other busy GPUs of the job about {usual:.0f} W"
                out.append(warn(NAME, "PowerOutlier", text, device=gpu.bus_id))
        return out
