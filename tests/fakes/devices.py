"""Devices and streams made of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hyperpod.ports.devices import NvmeHealth
from hyperpod.ports.stream import Told


@dataclass
class FakeDevices:
    """Implements ``ports.devices.Devices``; a number in ``health`` is the error that asking the drive gives."""

    statistics: dict[str, dict[str, int]] = field(default_factory=dict)
    health: dict[str, NvmeHealth | int] = field(default_factory=dict)
    is_synchronised: bool | None = None

    def interface_statistics(self, interface: str) -> Mapping[str, int]:
        return self.statistics.get(interface, {})

    def nvme_health(self, device: str) -> NvmeHealth:
        found = self.health.get(device, 25)
        if isinstance(found, int):
            raise OSError(found, "no health log", device)
        return found

    def clock_is_synchronised(self) -> bool | None:
        return self.is_synchronised


@dataclass
class FakeStreams:
    """Implements ``ports.stream.Streams``; what was told is told once."""

    lines: list[str] = field(default_factory=list)
    age_s: float | None = None
    problem: str = ""
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def read(self, argv: Sequence[str]) -> Told:
        self.asked.append(tuple(argv))
        lines, self.lines = tuple(self.lines), []
        return Told(lines, self.age_s, self.problem)
