"""What the checks of NVIDIA GPUs share: one way to look at them, and to say what could not be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hyperpod.core.finding import Finding
from hyperpod.health.check import Ports, unknown
from hyperpod.ports.gpu import SHARED_S, GpuAnswer, GpuError, GpuView, NoLibrary

UNREADABLE = {
    "GpusUnreadable": "NVML did not answer; nothing is known of any GPU at this moment.",
    "GpuUnreadable": "NVML gave no value for this GPU; what was found before stays.",
}
"""Codes of every check that looks at GPUs."""

SILENT = frozenset({GpuAnswer.NOT_SUPPORTED, GpuAnswer.LOST, GpuAnswer.RESET_REQUIRED, GpuAnswer.INFOROM})
"""Answers that leave nothing to say: no fault, or one that ``gpu_lost`` reports."""

_GPU_CLASSES = ("0x0300", "0x0302")
_OTHER_DRIVERS = ("vfio-pci", "nouveau", "nvgrace_gpu_vfio_pci")


@dataclass(frozen=True)
class Seen:
    """What a look gave: the GPUs, and UNKNOWN findings for what could not be read.

    ``no_library`` is set where there is none that can be used; then both are empty, and ``gpu_driver`` says it.
    """

    gpus: Sequence[GpuView] = ()
    blind: tuple[Finding, ...] = ()
    no_library: NoLibrary | None = None


def look(ports: Ports, check: str, *attributes: str, max_age_s: float = SHARED_S) -> Seen:
    """Look at the GPUs for a check that needs these attributes of ``GpuView``."""
    try:
        gpus = ports.gpus.look(max_age_s)
    except NoLibrary as error:
        return Seen(no_library=error)
    except GpuError as error:
        return Seen(blind=(unknown(check, "GpusUnreadable", f"the GPUs cannot be looked at: {error}"),))
    blind = []
    for gpu in gpus:
        failed = [gpu.errors[name] for name in ("handle", "fields", *attributes) if name in gpu.errors]
        failed = [error for error in failed if error.answer not in SILENT]
        if failed:
            blind.append(unknown(check, "GpuUnreadable", f"{title(gpu)}: {failed[0]}", device=gpu.bus_id))
    return Seen(gpus, tuple(blind))


def title(gpu: GpuView) -> str:
    """Return how a GPU is called in sentences."""
    return f"GPU {gpu.index} ({gpu.bus_id})"


def is_busy(gpu: GpuView, percent: float) -> bool:
    """Say whether a GPU works now; parts that do not tell (cut into instances) count while they have processes."""
    if gpu.utilisation_percent is None:
        return bool(gpu.compute_processes)
    return gpu.utilisation_percent >= percent


@dataclass
class Bus:
    """The PCI bus, as far as NVIDIA's driver is concerned. What a device is does not change, so it is read once."""

    _is_gpu: dict[str, bool] = field(default_factory=dict)

    def gpus(self, ports: Ports) -> frozenset[str]:
        """Return the addresses of the GPUs that NVIDIA's driver has or should have; empty where no bus is to be seen.

        Not counted: virtual functions, GPUs that are handed on to virtual machines, those of another driver.
        """
        folder = f"{ports.facts.sysfs}/bus/pci/devices"
        found = names(ports, folder)
        for name in found:
            if name not in self._is_gpu:
                self._is_gpu[name] = _is_gpu(ports, f"{folder}/{name}")
        return frozenset(
            name for name in found if self._is_gpu[name] and _driver(ports, f"{folder}/{name}") not in _OTHER_DRIVERS
        )


def names(ports: Ports, folder: str) -> tuple[str, ...]:
    """Return the names in a folder; none if it cannot be read."""
    try:
        return tuple(ports.host.list_dir(folder))
    except OSError:
        return ()


def _is_gpu(ports: Ports, folder: str) -> bool:
    try:
        if ports.host.read_text(f"{folder}/vendor", 32).strip() != "0x10de":
            return False
        if not ports.host.read_text(f"{folder}/class", 32).startswith(_GPU_CLASSES):
            return False
    except OSError:
        return False
    try:
        ports.host.read_link(f"{folder}/physfn")
    except OSError:
        return True
    return False


def _driver(ports: Ports, folder: str) -> str:
    try:
        return ports.host.read_link(f"{folder}/driver").rpartition("/")[2]
    except OSError:
        return ""
