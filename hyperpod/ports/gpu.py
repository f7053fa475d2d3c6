"""NVIDIA's management library as a port: what the GPU checks read. Read only; nothing here changes a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

SHARED_S = 35.0
"""A look at all GPUs costs about a hundred calls; checks that can wait share one that is at most this old."""


class GpuAnswer(StrEnum):
    """How the library answered where it gave no value."""

    NOT_SUPPORTED = "not supported"
    DENIED = "no permission"
    LOST = "GPU is lost"
    RESET_REQUIRED = "a reset is required"
    INFOROM = "the board's own record is damaged"
    HANGS = "no answer"
    FAILED = "failed"


class GpuError(Exception):
    """The library gave no value; ``answer`` says of which kind that is.

    NOT_SUPPORTED is no fault: older parts and drivers lack the value, and DENIED says nothing about the GPU. LOST and
    RESET_REQUIRED are hard facts about it. HANGS: a call to the library has not come back.
    """

    def __init__(self, answer: GpuAnswer, message: str) -> None:
        super().__init__(message)
        self.answer = answer


class LibraryFault(StrEnum):
    """Why the library cannot be used."""

    ABSENT = "absent"
    NO_BINDING = "no binding"
    NO_DRIVER = "no driver"
    DAMAGED = "damaged"
    MISMATCH = "mismatch"


class NoLibrary(Exception):
    """There is no usable library here.

    ABSENT: this machine has none. NO_BINDING: it has one, but nvidia-ml-py is not installed. NO_DRIVER: the kernel's
    part is not loaded. DAMAGED: the file is there but cannot be loaded. MISMATCH: it is of another version than the
    kernel's part.
    """

    def __init__(self, message: str, fault: LibraryFault = LibraryFault.ABSENT) -> None:
        super().__init__(message)
        self.fault = fault

    @property
    def is_damaged(self) -> bool:
        """True when no program on this machine can use the library either."""
        return self.fault in (LibraryFault.DAMAGED, LibraryFault.MISMATCH)


@dataclass(frozen=True)
class GpuView:
    """One GPU as it was read. None: not supported by the part or the driver.

    Attributes:
        index: The library's own number.
        bus_id: PCI address, lower case, ``0000:9b:00.0``.
        uuid, serial, name: Identity.
        errors: What could not be read, by the name of the attribute, with how the library answered.
        recovery_action: The driver's own word (0 none, 1 reset GPU, 2 reboot node, 3 drain P2P, 4 drain and reset,
            5 recover IMEX domain); None where the driver is too old to say.
        volatile_uncorrected, aggregate_uncorrected: Uncorrected ECC errors since the driver started, and ever.
        sram_uncorrected: Uncorrected errors of the on-chip memory, ever.
        sram_threshold_exceeded: The driver's own word that these were too many.
        remap_pending, remap_failed: State of the row remapper; of page retirement on parts without one.
        banks_without_spare: Banks of the memory that have no spare row left for a further remap.
        retired_pages: Pages retired for double bit errors (parts without a row remapper).
        links_active, links_total: NVLinks that are up, and that the part has; None for parts without.
        link_errors: Error counters of the links, summed up by kind.
        pcie_width, pcie_width_max, pcie_gen, pcie_gen_max, pcie_replays: Its place on the bus.
        slowdowns: Bits of the reasons for which clocks are held down now.
        temperature_c, temperature_limit_c: Degrees Celsius; the limit is where the part slows down.
        power_w, utilisation_percent: Draw and use.
        power_limit_w, clocks, vbios: How the part is set up: limit of its draw, application clocks (processor and
            memory, ``1980/2619 MHz``), version of its firmware. These are read every ten minutes.
        fabric_state, fabric_status, fabric_clique, fabric_uuid, fabric_health: Of parts with an NVSwitch fabric.
        persistence: Whether the driver keeps the GPU awake without users.
        compute_processes: Ids of the processes that compute on it, on this machine.
        driver: Version of the driver.
        memory_used_mib: Memory in use.
    """

    index: int
    bus_id: str
    uuid: str = ""
    serial: str = ""
    name: str = ""
    errors: Mapping[str, GpuError] = field(default_factory=dict)
    recovery_action: int | None = None
    volatile_uncorrected: int | None = None
    aggregate_uncorrected: int | None = None
    sram_uncorrected: int | None = None
    sram_threshold_exceeded: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    banks_without_spare: int | None = None
    retired_pages: int | None = None
    links_active: int | None = None
    links_total: int | None = None
    link_errors: Mapping[str, int] = field(default_factory=dict)
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_replays: int | None = None
    slowdowns: int | None = None
    temperature_c: int | None = None
    temperature_limit_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clocks: str = ""
    vbios: str = ""
    utilisation_percent: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_clique: int | None = None
    fabric_uuid: str = ""
    fabric_health: int | None = None
    persistence: bool | None = None
    compute_processes: tuple[int, ...] = ()
    driver: str = ""
    memory_used_mib: int | None = None


class Gpus(Protocol):
    """The GPUs of this node."""

    def count(self) -> int:
        """Return how many GPUs the library knows.

        Raises:
            NoLibrary: if there is none.
            GpuError: if it does not answer.
        """
        ...

    def recovery_actions(self) -> Mapping[str, int]:
        """Return the driver's recovery action by PCI address: the cheapest hard fact there is. Parts and drivers
        that do not say are left out.

        Raises:
            NoLibrary, GpuError: as ``count``.
        """
        ...

    def look(self, max_age_s: float = SHARED_S) -> Sequence[GpuView]:
        """Return every GPU as it was at most ``max_age_s`` ago. What cannot be read of one is in its ``errors``.

        Raises:
            NoLibrary, GpuError: as ``count``.
        """
        ...

    def forget(self) -> None:
        """Start the library afresh with the next call: an open one never sees a GPU that came later."""
        ...


class NoGpus:
    """A machine without NVIDIA's library."""

    def count(self) -> int:
        """See ``Gpus``."""
        raise NoLibrary("this machine has no NVIDIA library")

    def recovery_actions(self) -> Mapping[str, int]:
        """See ``Gpus``."""
        raise NoLibrary("this machine has no NVIDIA library")

    def look(self, max_age_s: float = SHARED_S) -> Sequence[GpuView]:
        """See ``Gpus``."""
        raise NoLibrary("this machine has no NVIDIA library")

    def forget(self) -> None:
        """See ``Gpus``."""
