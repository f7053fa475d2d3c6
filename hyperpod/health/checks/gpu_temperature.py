"""No GPU is hotter than the temperature at which it slows down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action
from hyperpod.core.node import Role
from hyperpod.health.check import THREE_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting
from hyperpod.health.gpu import UNREADABLE, look, title

NAME = "gpu_temperature"


@dataclass
class GpuTemperatureCheck:
    """Compares temperature and limit."""

    about: ClassVar[About] = About(
        title="GPUs are below their thermal limit",
        reads="NVML's temperature, and the limit from its margin and slowdown figure, or the older threshold.",
        means="The GPU is hotter than where it slows itself down: cooling has failed, or the room is too hot. A small "
        "negative margin is not yet that on newer parts, whose own figure is below zero (-2 on H100): the limit "
        "counts, not the margin's sign.",
        does="After three looks of three: DRAIN, so that jobs come to their end. Many nodes at once are the site's.",
        codes={"GpuHot": "The GPU is above the temperature at which it slows down.", **UNREADABLE},
        source="Practice of other monitors; a check of the margin's sign alone was wrong (gpud 1208).",
    )
    margin_c: int = setting(0, "Degrees below the limit from which it counts; 0: only above the limit.")
    interval_s: float = setting(60.0, "Seconds between two looks.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = THREE_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS

    def run(self, ports: Ports) -> Result:
        """Report GPUs above their limit."""
        seen = look(ports, NAME, "temperature_c", "temperature_limit_c")
        findings = list(seen.blind)
        for gpu in seen.gpus:
            if gpu.temperature_c is None or not gpu.temperature_limit_c:
                continue
            if gpu.temperature_limit_c - gpu.temperature_c < self.margin_c:
                text = f"{title(gpu)} has {gpu.temperature_c} °C, it slows down at {gpu.temperature_limit_c} °C"
                findings.append(fatal(NAME, "GpuHot", text, action=Action.DRAIN, device=gpu.bus_id))
        return Result(tuple(findings))
