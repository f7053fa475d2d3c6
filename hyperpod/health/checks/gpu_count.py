"""Every GPU that the machine has is there: on the PCI bus, in the driver's library, and as a device file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting
from hyperpod.health.gpu import UNREADABLE, Bus, Seen, look, names
from hyperpod.ports.gpu import GpuError, LibraryFault, NoLibrary

NAME = "gpu_count"

_LATE_S = 600.0
"""Until then after the boot the library is opened anew while GPUs are missing; later that would only make the driver
try, and log, the same failure again and again."""


@dataclass
class GpuCountCheck:
    """Compares the PCI bus, NVML and /dev with each other and with the instance type."""

    about: ClassVar[About] = About(
        title="Every NVIDIA GPU is there",
        reads="The PCI devices below sysfs, NVML's list, /dev/nvidia0 and on; the instance type's number of GPUs where "
        "it is known.",
        means="A GPU on the bus that NVML does not list has fallen off it, or its driver did not start. Virtual "
        "functions, GPUs handed on to virtual machines (vfio) and those of another driver (nouveau) are not counted. A "
        "source that shows no GPU at all says nothing by itself: in a container the bus or /dev may be hidden. Right "
        "after the boot the driver may be late, which only keeps the first job away.",
        does="FATAL at once, REBOOT; a second time, or a count that stays short, REPLACE. Where the type's number is "
        "not known the group's majority decides.",
        codes={
            "GpuMissing": "A GPU is on the PCI bus and the driver does not list it.",
            "GpusMissing": "Fewer GPUs than the instance type has.",
            "GpuFileMissing": "The driver lists more GPUs than there are device files: jobs cannot open one.",
            **UNREADABLE,
        },
        source="Practice of other monitors; NVML's count against the PCI list as in EKS node monitoring.",
    )
    grace_s: float = setting(120.0, "Seconds after the boot in which the driver may be late (seen in soperator).")
    interval_s: float = setting(60.0, "Seconds between two looks; a GPU that is gone also logs Xid 79 at once.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = True
    roles: frozenset[Role] = WORKERS
    is_job_start: ClassVar[bool] = True
    _bus: Bus = field(default_factory=Bus, repr=False)

    def run(self, ports: Ports) -> Result:
        """Count, and name what is missing."""
        expected = int(ports.facts.expected.get("gpus", 0))
        seen = self._look(ports)
        if seen.no_library is not None and seen.no_library.fault is LibraryFault.ABSENT and not expected:
            return Result(inventory={"gpus": "0"})
        if seen.blind and not seen.gpus:
            return Result(seen.blind)
        on_bus = self._bus.gpus(ports)
        if seen.no_library is None:
            listed = {gpu.bus_id for gpu in seen.gpus}
            findings = [*self._compare(ports, on_bus, listed)]
            count = len(seen.gpus)
        else:
            # Without nvidia-ml-py the bus is all that there is to count; gpu_driver says so.
            has_no_driver = seen.no_library.fault in (LibraryFault.ABSENT, LibraryFault.NO_DRIVER)
            findings, count = [], 0 if has_no_driver else len(on_bus)
        if count + len(findings) < expected:
            text = f"the machine shows {count} GPUs, its instance type has {expected}"
            findings.append(fatal(NAME, "GpusMissing", text, action=Action.REBOOT, is_hard=True))
        inventory = {"gpus": str(count)}
        if findings and ports.facts.uptime_s < _LATE_S:
            ports.gpus.forget()
        if findings and ports.facts.uptime_s < self.grace_s:
            return Result(not_ready=f"{findings[0].message}; the driver may still be starting", inventory=inventory)
        return Result((*seen.blind, *findings), inventory=inventory)

    def _look(self, ports: Ports) -> Seen:
        """Look at the list of GPUs, afresh only when their number has changed: that alone is cheap to ask."""
        seen = look(ports, NAME)
        try:
            if seen.gpus and ports.gpus.count() != len(seen.gpus):
                return look(ports, NAME, max_age_s=0.0)
        except (NoLibrary, GpuError):
            return look(ports, NAME, max_age_s=0.0)
        return seen

    def _compare(self, ports: Ports, on_bus: frozenset[str], listed: set[str]) -> list[Finding]:
        # One whose address NVML did not tell may be any of those that seem to be missing.
        nameless = sum(not re.fullmatch(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.\d", bus_id) for bus_id in listed)
        missing = sorted(on_bus - listed)[nameless:]
        findings = []
        for address in missing:
            text = f"the GPU {address} is on the PCI bus, NVML does not list it"
            findings.append(
                fatal(NAME, "GpuMissing", text, action=Action.REBOOT, device=address, is_hard=True)
            )  # fmt: skip
        files = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names(ports, "/dev"))
        if 0 < files < len(listed):
            text = f"NVML lists {len(listed)} GPUs, /dev has files for {files}"
            findings.append(fatal(NAME, "GpuFileMissing", text, action=Action.REBOOT, is_hard=True))
        return findings
