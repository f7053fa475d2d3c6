"""The hardware does not hold the GPUs' clocks down while they work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action
from hyperpod.core.node import Role
from hyperpod.health.check import THREE_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting
from hyperpod.health.gpu import UNREADABLE, is_busy, look, title

NAME = "gpu_slowdown"

_SLOWDOWN, _THERMAL, _BRAKE = 0x08, 0x40, 0x80


@dataclass
class GpuSlowdownCheck:
    """Reads the reasons for which clocks are held down."""

    about: ClassVar[About] = About(
        title="The hardware does not slow the GPUs down",
        reads="NVML's reasons for lowered clocks, and how busy the GPU is.",
        means="Heat or the power supply's brake has cut the clocks of a GPU that works: the whole job waits for it. A "
        "limit that software sets (power cap, application clocks, its own thermal control) is normal and was seen on "
        "most nodes of healthy fleets; an idle GPU says nothing. The same on many nodes of a rack is the site's "
        "cooling or power, and the breaker holds all action.",
        does="After three looks of three: DRAIN, so that jobs come to their end; no reboot by itself.",
        codes={
            "HardwareThermal": "The hardware cut the clocks because of heat.",
            "PowerBrake": "The power supply's brake cut the clocks.",
            "HardwareSlowdown": "The hardware cut the clocks and does not say for which of the two.",
            **UNREADABLE,
        },
        source="NVML clocks event reasons 0x08, 0x40, 0x80; software power cap 0x04 fired on 69 % of a fleet "
        "(NVSentinel 465, 1708), a real brake went unseen for 36 hours (1666).",
    )
    busy_percent: float = setting(20.0, "Utilisation from which a GPU works.")
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
        return Result(tuple(findings))
