"""Every GPU answers the driver's library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import THREE_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.gpu import title
from hyperpod.ports.gpu import GpuAnswer, GpuError, GpuView, NoLibrary

NAME = "gpu_lost"


@dataclass
class GpuLostCheck:
    """Looks at the errors that a look at all GPUs gave."""

    about: ClassVar[About] = About(
        title="Every GPU answers",
        reads="How NVML answers each question about each GPU.",
        means="Lost, and needing a reset, are the driver's own words and hard facts. Any other failure, or no answer "
        "at all, may be a moment's trouble: it counts when three looks in a row saw it. A value that the part or the "
        "driver does not have, or that we may not read, is no fault.",
        does="FATAL, REBOOT; a second time REPLACE. A damaged record on the board is WARN: the GPU works.",
        codes={
            "GpuLost": "NVML says that the GPU is lost.",
            "GpuNeedsReset": "NVML says that the GPU must be reset before it can be used.",
            "GpuFails": "NVML fails to answer about this GPU, three times in a row.",
            "LibraryFails": "NVML fails to answer about any GPU, three times in a row.",
            "LibraryHangs": "NVML does not come back from a call, three times in a row: a dying GPU does that.",
            "InforomDamaged": "The board's own record (infoROM) is damaged.",
            "GpuDenied": "The driver does not let us look at this GPU.",
            "GpusUnreadable": "We may not look at the GPUs.",
        },
        source="Practice of other monitors: LOST hard, NOT_SUPPORTED skipped, others 3 of 3; a swallowed failure made "
        "dead GPUs look healthy (gpustack).",
    )
    interval_s: float = setting(30.0, "Seconds between two looks; this one is fresh, most other GPU checks share it.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = THREE_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS

    def run(self, ports: Ports) -> Result:
        """Report what could not be read, by how the library answered."""
        try:
            gpus = ports.gpus.look(max_age_s=2.0)
        except NoLibrary:
            return Result()
        except GpuError as error:
            return Result((_of_library(error),))
        return Result(tuple(finding for gpu in gpus if (finding := _of_gpu(gpu)) is not None))


def _of_library(error: GpuError) -> Finding:
    if error.answer is GpuAnswer.DENIED:
        return unknown(NAME, "GpusUnreadable", f"the GPUs may not be looked at: {error}")
    code = "LibraryHangs" if error.answer is GpuAnswer.HANGS else "LibraryFails"
    return fatal(NAME, code, f"the GPUs do not answer: {error}", action=Action.REBOOT)


def _of_gpu(gpu: GpuView) -> Finding | None:
    answers = {error.answer: error for error in gpu.errors.values()}
    for answer, code in ((GpuAnswer.LOST, "GpuLost"), (GpuAnswer.RESET_REQUIRED, "GpuNeedsReset")):
        if answer in answers:
            text = f"{title(gpu)}: {answers[answer]}"
            return fatal(NAME, code, text, action=Action.REBOOT, device=gpu.bus_id, is_hard=True)
    if GpuAnswer.FAILED in answers:
        names = ", ".join(name for name, error in gpu.errors.items() if error.answer is GpuAnswer.FAILED)
        text = f"{title(gpu)} does not tell its {names}: {answers[GpuAnswer.FAILED]}"
        return fatal(NAME, "GpuFails", text, action=Action.REBOOT, device=gpu.bus_id)
    if GpuAnswer.DENIED in answers:
        return unknown(NAME, "GpuDenied", f"{title(gpu)}: {answers[GpuAnswer.DENIED]}", device=gpu.bus_id)
    if GpuAnswer.INFOROM in answers:
        return warn(NAME, "InforomDamaged", f"{title(gpu)}: {answers[GpuAnswer.INFOROM]}", device=gpu.bus_id)
    return None
