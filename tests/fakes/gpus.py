"""GPUs made of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hyperpod.ports.gpu import SHARED_S, GpuAnswer, GpuError, GpuView, LibraryFault, NoLibrary

WELL: Mapping[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "recovery_action": 0,
    "volatile_uncorrected": 0,
    "aggregate_uncorrected": 0,
    "sram_uncorrected": 0,
    "sram_threshold_exceeded": False,
    "remap_pending": False,
    "remap_failed": False,
    "banks_without_spare": 0,
    "links_active": 18,
    "links_total": 18,
    "link_errors": {"crc": 0, "replay": 0, "recovery": 0},
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "pcie_replays": 0,
    "slowdowns": 0,
    "temperature_c": 45,
    "temperature_limit_c": 89,
    "power_w": 120.0,
    "power_limit_w": 700.0,
    "clocks": "1980/2619 MHz",
    "vbios": "96.00.5E.00.01",
    "utilisation_percent": 0,
    "fabric_state": 3,
    "fabric_status": 0,
    "fabric_clique": 0,
    "fabric_health": 0,
    "persistence": True,
    "driver": "570.86.15",
    "memory_used_mib": 4,
}


@dataclass
class FakeGpus:
    """Implements ``ports.gpu.Gpus``: the GPUs, or what is raised instead."""

    views: list[GpuView] = field(default_factory=list)
    error: Exception | None = None
    forgotten: int = 0

    @classmethod
    def of_case(cls, case: Mapping[str, Any]) -> FakeGpus:
        """Build from a case file's ``gpus``, ``gpu_error`` and ``no_library``."""
        if "no_library" in case:
            return cls(error=NoLibrary("the library does not load", LibraryFault[case["no_library"]]))
        if "gpu_error" in case:
            return cls(error=GpuError(GpuAnswer[case["gpu_error"]], "no answer from the library"))
        if "gpus" not in case:
            return cls(error=NoLibrary("this machine has no NVIDIA library"))
        data = case["gpus"]
        views = []
        for index in range(data["count"]):
            values: dict[str, Any] = {"bus_id": f"0000:{0x10 + 8 * index:02x}:00.0", "uuid": f"GPU-{index}", **WELL}
            values.update({**data.get("all", {}), **data.get(index, {})})
            values["compute_processes"] = tuple(values.get("compute_processes", ()))
            values["errors"] = {
                name: GpuError(GpuAnswer[answer], f"{name}: {GpuAnswer[answer].value}")
                for name, answer in values.get("errors", {}).items()
            }
            values.update(dict.fromkeys(values["errors"].keys() & WELL.keys()))
            views.append(GpuView(index, **values))
        return cls(views)

    def _answer(self) -> list[GpuView]:
        if self.error is not None:
            raise self.error
        return self.views

    def count(self) -> int:
        return len(self._answer())

    def recovery_actions(self) -> Mapping[str, int]:
        return {g.bus_id: g.recovery_action for g in self._answer() if g.recovery_action is not None}

    def look(self, max_age_s: float = SHARED_S) -> Sequence[GpuView]:
        return list(self._answer())

    def forget(self) -> None:
        self.forgotten += 1
