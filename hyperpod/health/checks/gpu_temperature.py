"""No GPU is hotter than where it slows down, or far hotter than the node's others at the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import THREE_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.gpu import UNREADABLE, look, title
from hyperpod.ports.gpu import GpuView

NAME = "gpu_temperature"

_FEWEST_OTHERS = 3


@dataclass
class GpuTemperatureCheck:
    """Compares temperature and limit, and the GPUs of a job with each other."""

    about: ClassVar[About] = About(
        title="GPUs are below their thermal limit",
        reads="NVML's temperature, and the limit from its margin and slowdown figure, or the older threshold; how busy "
        "the GPU is, and its draw beside that of the others.",
        means="The GPU is hotter than where it slows itself down: cooling has failed, or the room is too hot. A small "
        "negative margin is not yet that on newer parts, whose own figure is below zero (-2 on H100): the limit "
        "counts, not the margin's sign. A GPU that is far hotter than the others of the same job, although it draws no "
        "more than they do, is badly cooled: a loose heat sink, a blocked channel, a fan. It is compared with the "
        "median of the others, while one job alone has the node and at least three others are as busy: places differ "
        "by 10 to 15 degrees on boards whose air passes one GPU after the other, and two jobs differ.",
        does="After three looks of three: DRAIN, so that jobs come to their end. Many nodes at once are the site's. A "
        "GPU that stands out is WARN and never drains: it still keeps up.",
        codes={
            "GpuHot": "The GPU is above the temperature at which it slows down.",
            "TemperatureOutlier": "A busy GPU is far hotter than the others of the job (WARN: suspect).",
            **UNREADABLE,
        },
        source="Practice of other monitors; a check of the margin's sign alone was wrong (gpud 1208). Others have "
        "fixed limits by part; how far a GPU may be from the others is our own judgement.",
    )
    margin_c: int = setting(0, "Degrees below the limit from which it counts; 0: only above the limit.")
    outlier_c: int = setting(20, "Degrees above the others' median from which a busy GPU stands out.")
    alike_percent: float = setting(
        90.0, "Utilisation from which GPUs are busy enough to be compared by their temperature."
    )
    most_share: float = setting(1.2, "Share of the others' median draw above which a GPU may be hotter: it does more.")
    interval_s: float = setting(60.0, "Seconds between two looks.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = THREE_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS

    def run(self, ports: Ports) -> Result:
        """Report GPUs above their limit, and those that stand out."""
        seen = look(ports, NAME, "temperature_c", "temperature_limit_c")
        findings = list(seen.blind)
        for gpu in seen.gpus:
            if gpu.temperature_c is None or not gpu.temperature_limit_c:
                continue
            if gpu.temperature_limit_c - gpu.temperature_c < self.margin_c:
                text = f"{title(gpu)} has {gpu.temperature_c} °C, it slows down at {gpu.temperature_limit_c} °C"
                findings.append(fatal(NAME, "GpuHot", text, action=Action.DRAIN, device=gpu.bus_id))
        if ports.facts.jobs is not None and len(ports.facts.jobs) == 1:
            known = {finding.device for finding in findings}
            findings += [f for f in self._outliers(seen.gpus) if f.device not in known]
        return Result(tuple(findings))

    def _outliers(self, gpus: Sequence[GpuView]) -> list[Finding]:
        busy = [
            (gpu, gpu.temperature_c)
            for gpu in gpus
            if gpu.temperature_c and (gpu.utilisation_percent or 0) >= self.alike_percent
        ]
        if len(busy) <= _FEWEST_OTHERS:
            return []
        out = []
        for gpu, heat in busy:
            others = [(other, value) for other, value in busy if other is not gpu]
            usual = _median([value for _, value in others])
            draw = _median([other.power_w for other, _ in others if other.power_w])
            works_more = bool(gpu.power_w and draw and gpu.power_w > self.most_share * draw)
            if heat - usual >= self.outlier_c and not works_more:
                text = f"{title(gpu)} has {heat} °C, the other busy GPUs of the job about {usual:.0f} °C"
                out.append(warn(NAME, "TemperatureOutlier", text, device=gpu.bus_id))
        return out


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
