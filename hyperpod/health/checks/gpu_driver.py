"""NVIDIA's driver is loaded, and its libraries fit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.gpu import UNREADABLE, Bus, look
from hyperpod.ports.gpu import GpuView, LibraryFault, NoLibrary

NAME = "gpu_driver"

_CODES = {
    LibraryFault.DAMAGED: "LibraryDamaged",
    LibraryFault.MISMATCH: "LibraryMismatch",
    LibraryFault.NO_DRIVER: "DriverNotLoaded",
}


@dataclass
class GpuDriverCheck:
    """Loads the library once, and looks at the settings of the driver."""

    about: ClassVar[About] = About(
        title="NVIDIA's driver and libraries work",
        reads="Whether NVML loads and starts, the first bytes of libcuda, the driver's version and persistence mode; "
        "for the group's comparison also the GPUs' model, firmware (vBIOS), application clocks and power limit.",
        means="A library of no bytes, one that does not load, or one of another version than the kernel's part: no "
        "program on this node can use a GPU. Images carry such libraries, and drivers that find nothing, on machines "
        "without GPUs too: a fault needs a GPU on the PCI bus, or the instance type's word. One container with an old "
        "library logs a mismatch in the kernel log; this check asks with the node's own library.",
        does="FATAL, REBOOT for libraries at once, for a driver that is not loaded after the grace. Persistence mode "
        "that is off, and versions that differ from the group's, are to be set right without a drain: WARN.",
        codes={
            "LibraryDamaged": "The file of NVML cannot be loaded.",
            "LibraryMismatch": "NVML is of another version than the kernel's part.",
            "DriverNotLoaded": "The kernel's part of the driver is not loaded.",
            "CudaLibraryDamaged": "libcuda is no library.",
            "PersistenceOff": "The driver gives up a GPU's state when nobody uses it.",
            "BindingMissing": "nvidia-ml-py is not installed, so nothing can be said of the GPUs.",
            **UNREADABLE,
        },
        source="Practice of other monitors; soperator 2684 (a library of no bytes).",
    )
    cuda_paths: tuple[str, ...] = setting(
        (
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
            "/usr/lib64/libcuda.so.1",
        ),
        "Where libcuda may be; one that is not there is not missed.",
    )
    grace_s: float = setting(300.0, "Seconds after the boot in which the driver may be late.")
    interval_s: float = setting(300.0, "Seconds between two looks; a driver changes with a boot or an update.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = True
    roles: frozenset[Role] = WORKERS
    _bus: Bus = field(default_factory=Bus, repr=False)
    _had_gpus: bool = field(default=False, repr=False)

    def run(self, ports: Ports) -> Result:
        """Say whether programs can use the GPUs."""
        seen = look(ports, NAME)
        if seen.no_library is not None:
            return self._without_library(ports, seen.no_library)
        if not seen.gpus:
            # That NVML does not answer is another check's; what was found here before stays.
            return Result(seen.blind)
        self._had_gpus = True
        findings = [*self._cuda(ports), *_persistence(seen.gpus)]
        return Result(tuple(findings), inventory=_words(seen.gpus))

    def _without_library(self, ports: Ports, error: NoLibrary) -> Result:
        code = _CODES.get(error.fault)
        has_gpus = self._had_gpus or bool(ports.facts.expected.get("gpus")) or bool(self._bus.gpus(ports))
        if error.fault is LibraryFault.ABSENT or not has_gpus:
            return Result()
        if code is None:
            return Result((unknown(NAME, "BindingMissing", str(error)),))
        if error.fault is LibraryFault.NO_DRIVER and ports.facts.uptime_s < self.grace_s:
            return Result(not_ready=f"{error}; the driver may still be starting")
        is_hard = error.fault is not LibraryFault.NO_DRIVER
        return Result((fatal(NAME, code, str(error), action=Action.REBOOT, is_hard=is_hard),))

    def _cuda(self, ports: Ports) -> list[Finding]:
        findings = []
        for path in self.cuda_paths:
            try:
                start = ports.host.read_bytes(path, 4)
            except OSError:
                continue
            if start != b"\x7fELF":
                text = f"{path} is no library: it {'is empty' if not start else 'begins with other bytes'}"
                findings.append(
                    fatal(NAME, "CudaLibraryDamaged", text, action=Action.REBOOT, device=path, is_hard=True)
                )  # fmt: skip
        return findings


def _words(gpus: Sequence[GpuView]) -> dict[str, str]:
    """Return how the GPUs are set up, in words that the group compares; what a part does not tell is left out."""
    told = {
        "gpu_driver": {gpu.driver for gpu in gpus},
        "gpu_model": {gpu.name for gpu in gpus},
        "gpu_vbios": {gpu.vbios for gpu in gpus},
        "gpu_clocks": {gpu.clocks for gpu in gpus},
        "gpu_power_limit": {f"{gpu.power_limit_w:g} W" if gpu.power_limit_w else "" for gpu in gpus},
        "gpu_persistence": {"" if gpu.persistence is None else "on" if gpu.persistence else "off" for gpu in gpus},
    }
    return {name: ", ".join(sorted(words)) for name, words in told.items() if "" not in words}


def _persistence(gpus: Sequence[GpuView]) -> list[Finding]:
    off = [gpu.index for gpu in gpus if gpu.persistence is False]
    if not off:
        return []
    text = f"persistence mode is off for GPU {', '.join(map(str, off))}: start nvidia-persistenced"
    return [warn(NAME, "PersistenceOff", text, whose=Whose.SITE)]
