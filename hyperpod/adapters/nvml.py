"""NVIDIA's management library (NVML) through nvidia-ml-py.

Implements ``ports.gpu.Gpus``. Owns the one place where NVML is called: every call is made in a thread of its own that
can be given up, and there is never more than one such thread, so that a dying GPU stops neither the agent nor fills it
with threads. One look at all GPUs serves every check for some seconds. Nothing is loaded, not even ctypes, on a
machine without the library. Reads only.

The library stays initialised between looks, as with other monitors: stop the agent before ``nvidia-smi --gpu-reset``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from hyperpod.ports.gpu import SHARED_S, GpuAnswer, GpuError, GpuView, LibraryFault, NoLibrary

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib64/nvidia",
    "/usr/local/nvidia/lib64",
    "/opt/nvidia/lib64",
)
"""Where distributions, images and container runtimes put the library."""

_DRIVER = "/proc/driver/nvidia"

_ANSWERS = {
    2: GpuAnswer.NOT_SUPPORTED,  # invalid argument: a field or a link that this driver does not know
    3: GpuAnswer.NOT_SUPPORTED,
    4: GpuAnswer.DENIED,
    6: GpuAnswer.NOT_SUPPORTED,  # not found
    13: GpuAnswer.NOT_SUPPORTED,  # the library is older than the function
    14: GpuAnswer.INFOROM,
    15: GpuAnswer.LOST,
    16: GpuAnswer.RESET_REQUIRED,
    21: GpuAnswer.NOT_SUPPORTED,  # no data yet
    22: GpuAnswer.NOT_SUPPORTED,  # ECC of a virtual GPU
    25: GpuAnswer.NOT_SUPPORTED,  # another version of the argument
    26: GpuAnswer.NOT_SUPPORTED,  # deprecated
    27: GpuAnswer.NOT_SUPPORTED,  # not ready
    28: GpuAnswer.LOST,  # GPU not found
}
"""By NVML's return code; the others are FAILED."""

_LIBRARY_FAULTS = {9: LibraryFault.NO_DRIVER, 12: LibraryFault.DAMAGED, 18: LibraryFault.MISMATCH}

_UNCORRECTED, _VOLATILE, _AGGREGATE, _SRAM = 1, 0, 1, 7
_CLOCK_GRAPHICS, _CLOCK_MEMORY = 0, 2
_MAX_LINKS = 18

_FIELDS = {
    "recovery_action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    "retired_pages": "NVML_FI_DEV_RETIRED_DBE",
    "retired_pending": "NVML_FI_DEV_RETIRED_PENDING",
    "pcie_replays": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "slowdown_margin": "NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT",
    "crc": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "crc_data": "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "replay": "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "recovery": "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
}
"""Values that are asked for in one call. A constant that this nvidia-ml-py lacks is not asked for."""

_TOTALS = ("crc", "crc_data", "replay", "recovery")

_LINK_FIELDS = {
    "link_crc": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
    "link_replay": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "link_recovery": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    "receive": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "integrity": "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "recovery_failed": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
}
"""The same, of each link: the first three up to the fourth generation of NVLink, the others from the fifth on."""

_LINKS_EVERY_S = 50.0
_RETRY_S = 5.0

_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

_IDLE = "nvml, idle"

_STACK_BYTES = 2 * 1024 * 1024
"""The agent gives its threads 256 KiB, which is enough for Python but not promised to be for NVIDIA's library."""


@dataclass
class _Call:
    """One use of the library that is under way."""

    name: str
    started: float
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None


@dataclass
class _Part:
    """What is remembered of one GPU: what does not change, and what it does not have."""

    bus_id: str
    uuid: str = ""
    serial: str = ""
    name: str = ""
    width_max: int | None = None
    gen_max: int | None = None
    power_limit_w: float | None = None
    clocks: str = ""
    vbios: str = ""
    banks_without_spare: int | None = None
    links: tuple[int, ...] = ()
    missing: set[str] = field(default_factory=set)
    fields: tuple[tuple[str, int, int], ...] = ()
    read_at: float = 0.0
    link_errors: Mapping[str, int] = field(default_factory=dict)
    links_active: int | None = None
    links_read_at: float = -1e9


class Nvml:
    """The GPUs of this node.

    Args:
        monotonic: Seconds that never go backwards.
        library: Name for the dynamic loader, or a path.
        folders: Where a library is looked for before anything is loaded.
        binding: Imports nvidia-ml-py.
        patience_s: How long a caller waits for the library.
        absent_s: A machine without the library is looked at again after this long. One whose library does not start is
            asked again soon at first (the driver may be late) and at last as seldom: NVIDIA's library starts a
            program each time that it finds no driver.
        remember_s: What does not change, and what a part does not support, is asked again after this long.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        library: str = LIBRARY,
        folders: Sequence[str] = FOLDERS,
        binding: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        patience_s: float = 4.0,
        absent_s: float = 300.0,
        remember_s: float = 600.0,
    ) -> None:
        self._monotonic = monotonic
        self._library = library
        self._folders = folders
        self._binding = binding
        self._patience_s = patience_s
        self._absent_s = absent_s
        self._remember_s = remember_s
        self._lock = threading.Lock()
        self._call: _Call | None = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._has_thread = False
        self._refused: NoLibrary | None = None
        self._refused_until = 0.0
        self._refusals = 0
        self._looked: tuple[float, tuple[GpuView, ...]] | None = None
        self._nvml: Any = None
        self._is_ready = False
        self._is_stale = False
        self._parts: dict[int, _Part] = {}
        self._driver = ""

    # --- the port ---------------------------------------------------------------------------------------------

    def count(self) -> int:
        """See ``Gpus``."""
        return self._ask("count", self._count)

    def recovery_actions(self) -> Mapping[str, int]:
        """See ``Gpus``."""
        return self._ask("recovery", self._recovery_actions)

    def look(self, max_age_s: float = SHARED_S) -> Sequence[GpuView]:
        """See ``Gpus``."""
        looked = self._looked
        if looked is not None and self._monotonic() - looked[0] <= max_age_s:
            return looked[1]
        return self._ask("look", self._look)

    def forget(self) -> None:
        """See ``Gpus``."""
        self._looked, self._is_stale = None, True

    # --- one call at a time -----------------------------------------------------------------------------------

    def _ask(self, name: str, work: Callable[[], T]) -> T:
        """Have ``work`` done in a thread of its own; callers of the same work share it."""
        give_up_at = self._monotonic() + self._patience_s
        while True:
            with self._lock:
                if self._refused is not None and self._monotonic() < self._refused_until:
                    raise NoLibrary(str(self._refused), self._refused.fault)
                call = self._call
                if call is None:
                    call = self._call = _Call(name, self._monotonic())
                    self._start(call, work)
            # One that is late already is not waited for again by everybody who comes.
            until = min(give_up_at, call.started + self._patience_s)
            if not call.done.wait(max(0.0, until - self._monotonic())):
                raise GpuError(GpuAnswer.HANGS, "NVML does not come back from a call")
            if call.name == name:
                if call.error is not None:
                    raise call.error
                return call.result  # type: ignore[no-any-return]

    def _start(self, call: _Call, work: Callable[[], object]) -> None:
        """Have the library's own thread do it: a new one for each call would cost more than most calls."""

        def run() -> None:
            try:
                call.result = work()
            except Exception as error:  # noqa: BLE001 - handed to the caller as it is
                call.error = error
            with self._lock:
                self._call = None
                self._note_refusal(call.error)
            call.done.set()

        if not self._has_thread:
            before = threading.stack_size(_STACK_BYTES)
            try:
                threading.Thread(target=self._serve, name=_IDLE, daemon=True).start()
                self._has_thread = True
            except RuntimeError as error:
                self._call = None
                call.error = GpuError(GpuAnswer.FAILED, f"no thread for NVML: {error}")
                call.done.set()
                return
            finally:
                threading.stack_size(before)
        self._inbox.put(run)

    def _serve(self) -> None:
        thread = threading.current_thread()
        while True:
            run = self._inbox.get()
            thread.name = "nvml"
            run()
            thread.name = _IDLE

    def _note_refusal(self, error: Exception | None) -> None:
        if not isinstance(error, NoLibrary):
            self._refused, self._refusals = None, 0
            return
        is_absent = error.fault is LibraryFault.ABSENT
        wait_s = self._absent_s if is_absent else min(self._absent_s, _RETRY_S * 2**self._refusals)
        self._refused, self._refused_until = error, self._monotonic() + wait_s
        self._refusals = min(self._refusals + 1, 16)

    # --- the library ------------------------------------------------------------------------------------------

    def _ready(self) -> Any:
        """Return the binding, loaded and initialised.

        Raises:
            NoLibrary, GpuError: if that is not possible.
        """
        if self._nvml is None:
            self._nvml = self._load()
        if not self._is_ready:
            self._parts.clear()
            try:
                self._nvml.nvmlInit()
            except self._nvml.NVMLError as error:
                fault = _LIBRARY_FAULTS.get(error.value)
                if fault is not None:
                    raise NoLibrary(f"NVML does not start: {error}", fault) from error
                raise self._translated(error) from error
            self._is_ready = True
            self._driver = self._text(self._nvml.nvmlSystemGetDriverVersion)
        return self._nvml

    def _load(self) -> Any:
        is_there = os.path.lexists(self._library) or any(
            os.path.lexists(f"{folder}/{self._library}") for folder in self._folders
        )
        if not is_there and not os.path.isdir(_DRIVER):
            raise NoLibrary("this machine has no NVIDIA library")
        import ctypes

        try:
            ctypes.CDLL(self._library)
        except OSError as error:
            if not is_there and "No such file" in str(error):
                raise NoLibrary("the NVIDIA driver is loaded, its library is not installed") from error
            raise NoLibrary(f"NVML cannot be loaded: {error}", LibraryFault.DAMAGED) from error
        try:
            return self._binding()
        except ImportError as error:
            text = "the GPUs cannot be looked at: the Python package nvidia-ml-py is not installed"
            raise NoLibrary(text, LibraryFault.NO_BINDING) from error

    def _close(self) -> None:
        """Start afresh with the next look: GPUs and drivers come, go and change their state below an open library."""
        self._is_ready = False
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def _translated(self, error: Any) -> GpuError:
        return GpuError(_ANSWERS.get(error.value, GpuAnswer.FAILED), f"{error} (NVML code {error.value})")

    def _text(self, function: Callable[..., Any], *arguments: object) -> str:
        try:
            return str(function(*arguments))
        except (self._nvml.NVMLError, ValueError):
            return ""

    def _count(self) -> int:
        if self._is_stale and self._is_ready:
            self._close()
        self._is_stale = False
        nvml = self._ready()
        try:
            return int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            self._close()
            raise self._translated(error) from error

    def _handle(self, index: int) -> tuple[Any, GpuError | None]:
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetHandleByIndex(index), None
        except nvml.NVMLError as error:
            return None, self._translated(error)

    # --- what is asked ----------------------------------------------------------------------------------------

    def _recovery_actions(self) -> Mapping[str, int]:
        number = self._count()
        field_id = getattr(self._nvml, _FIELDS["recovery_action"], None)
        found: dict[str, int] = {}
        for index in range(number if field_id is not None else 0):
            handle, error = self._handle(index)
            if error is not None:
                continue
            part = self._part(index, handle)
            try:
                (value,) = self._nvml.nvmlDeviceGetFieldValues(handle, [field_id])
            except self._nvml.NVMLError:
                continue
            if value.nvmlReturn == 0:
                found[part.bus_id] = int(_value_of(value))
        return found

    def _look(self) -> tuple[GpuView, ...]:
        number = self._count()
        views = tuple(self._look_at(index) for index in range(number))
        self._looked = (self._monotonic(), views)
        return views

    def _look_at(self, index: int) -> GpuView:
        handle, error = self._handle(index)
        if error is not None:
            known = self._parts.get(index)
            bus_id = known.bus_id if known else f"gpu-{index}"
            return GpuView(index, bus_id, uuid=known.uuid if known else "", errors={"handle": error})
        part = self._part(index, handle)
        return _Reader(self._nvml, handle, part, self._monotonic(), self._translated).view(index, self._driver)

    def _part(self, index: int, handle: Any) -> _Part:
        """Return what is remembered of a GPU, read again when it has become old."""
        now = self._monotonic()
        known = self._parts.get(index)
        if known is not None and now - known.read_at < self._remember_s:
            return known
        nvml = self._nvml
        bus_id = known.bus_id if known else f"gpu-{index}"
        try:
            bus_id = bus_id_of(str(nvml.nvmlDeviceGetPciInfo(handle).busId))
        except (nvml.NVMLError, ValueError):
            if known is not None:
                return known
        part = _Part(
            bus_id,
            self._text(nvml.nvmlDeviceGetUUID, handle),
            self._text(nvml.nvmlDeviceGetSerial, handle),
            self._text(nvml.nvmlDeviceGetName, handle),
            read_at=now,
        )
        part.width_max = self._number(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
        part.gen_max = self._number(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
        self._set_up(part, handle)
        # A part has fewer links than the interface has numbers for; those it lacks answer "not supported".
        links: list[int] = []
        for link in range(_MAX_LINKS):
            try:
                nvml.nvmlDeviceGetNvLinkState(handle, link)
            except nvml.NVMLError:
                if not links:
                    break
                continue
            links.append(link)
        part.links = tuple(links)
        part.fields = self._fields_of(part)
        self._parts[index] = part
        return part

    def _set_up(self, part: _Part, handle: Any) -> None:
        """Read how a part is set up. It changes seldom, and not every part and binding has all of it."""
        nvml = self._nvml

        def ask(name: str, *arguments: object) -> Any:
            try:
                return getattr(nvml, name)(handle, *arguments)
            except (AttributeError, nvml.NVMLError, ValueError):
                return None

        limit = ask("nvmlDeviceGetPowerManagementLimit")
        part.power_limit_w = limit / 1000 if limit else None
        clocks = [ask("nvmlDeviceGetApplicationsClock", kind) for kind in (_CLOCK_GRAPHICS, _CLOCK_MEMORY)]
        part.clocks = f"{clocks[0]}/{clocks[1]} MHz" if all(clocks) else ""
        part.vbios = str(ask("nvmlDeviceGetVbiosVersion") or "")
        histogram = ask("nvmlDeviceGetRowRemapperHistogram")
        part.banks_without_spare = None if histogram is None else int(histogram.none)

    def _number(self, function: Callable[..., Any], *arguments: object) -> int | None:
        try:
            return int(function(*arguments))
        except (self._nvml.NVMLError, ValueError):
            return None

    def _fields_of(self, part: _Part) -> tuple[tuple[str, int, int], ...]:
        """Return name, number and link of every value to ask for."""
        found = [(name, getattr(self._nvml, constant, None), 0) for name, constant in _FIELDS.items()]
        for name, constant in _LINK_FIELDS.items():
            found += [(name, getattr(self._nvml, constant, None), link) for link in part.links]
        return tuple((name, number, link) for name, number, link in found if number is not None)


class _Reader:
    """Reads one GPU once."""

    def __init__(self, nvml: Any, handle: Any, part: _Part, now: float, translated: Callable[[Any], GpuError]) -> None:
        self._nvml = nvml
        self._handle = handle
        self._part = part
        self._now = now
        self._translated = translated
        self._errors: dict[str, GpuError] = {}
        self._is_lost = False

    def view(self, index: int, driver: str) -> GpuView:
        """Ask for everything; nothing more after the first word that the GPU is lost."""
        part = self._part
        fields, link_errors = self._read_fields()
        remapped = self._read("remap_failed", "nvmlDeviceGetRemappedRows")
        sram, is_exceeded = self._read_sram()
        temperature = self._read("temperature_c", "nvmlDeviceGetTemperature", 0)
        power = self._read("power_w", "nvmlDeviceGetPowerUsage")
        use = self._read("utilisation_percent", "nvmlDeviceGetUtilizationRates")
        memory = self._read("memory_used_mib", "nvmlDeviceGetMemoryInfo")
        fabric = self._read_fabric()
        persistence = self._read("persistence", "nvmlDeviceGetPersistenceMode")
        return GpuView(
            index,
            part.bus_id,
            uuid=part.uuid,
            serial=part.serial,
            name=part.name,
            recovery_action=fields.get("recovery_action"),
            volatile_uncorrected=self._read(
                "volatile_uncorrected", "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE
            ),
            aggregate_uncorrected=self._read(
                "aggregate_uncorrected", "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _AGGREGATE
            ),
            sram_uncorrected=sram,
            sram_threshold_exceeded=is_exceeded,
            remap_pending=bool(remapped[2]) if remapped else _flag(fields.get("retired_pending")),
            remap_failed=bool(remapped[3]) if remapped else None,
            banks_without_spare=part.banks_without_spare,
            retired_pages=fields.get("retired_pages"),
            links_active=part.links_active,
            links_total=None if part.links_active is None else len(part.links),
            link_errors=link_errors,
            pcie_width=self._read("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_width_max=part.width_max,
            pcie_gen=self._read("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_gen_max=part.gen_max,
            pcie_replays=fields.get("pcie_replays"),
            slowdowns=self._read_slowdowns(),
            temperature_c=temperature,
            temperature_limit_c=self._read_limit(temperature, fields.get("slowdown_margin")),
            power_w=power / 1000 if power is not None else None,
            power_limit_w=part.power_limit_w,
            clocks=part.clocks,
            vbios=part.vbios,
            utilisation_percent=use.gpu if use is not None else None,
            persistence=_flag(persistence),
            compute_processes=self._read_processes(),
            driver=driver,
            memory_used_mib=memory.used >> 20 if memory is not None else None,
            **fabric,
            errors=self._errors,
        )

    def _read(self, name: str, function: str, *arguments: object) -> Any:
        """Return one value, or None with the reason in the errors. What a part does not have is not asked again."""
        if self._is_lost or function in self._part.missing:
            return None
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except AttributeError:
            # An older nvidia-ml-py.
            self._part.missing.add(function)
        except self._nvml.NVMLError as error:
            self._failed(name, function, self._translated(error))
        except ValueError as error:
            self._errors[name] = GpuError(GpuAnswer.FAILED, f"{function} gave nonsense: {error}")
        return None

    def _failed(self, name: str, function: str, answer: GpuError) -> None:
        if answer.answer is GpuAnswer.NOT_SUPPORTED:
            self._part.missing.add(function)
            return
        self._is_lost = self._is_lost or answer.answer is GpuAnswer.LOST
        self._errors[name] = GpuError(answer.answer, f"{function}: {answer}")

    def _read_fields(self) -> tuple[dict[str, int], Mapping[str, int]]:
        asked = self._part.fields
        # Links are by far the most values, and are judged by the minute.
        is_due = self._now - self._part.links_read_at >= _LINKS_EVERY_S
        if not is_due:
            asked = tuple(item for item in asked if item[0] not in _LINK_FIELDS and item[0] not in _TOTALS)
        numbers = [(number, link) for _, number, link in asked]
        values = self._read("fields", "nvmlDeviceGetFieldValues", numbers) if numbers else None
        plain: dict[str, int] = {}
        of_links: dict[str, int] = {}
        if values is None:
            return plain, self._part.link_errors
        supported = []
        for (name, number, link), value in zip(asked, values, strict=True):
            answer = GpuAnswer.NOT_SUPPORTED
            if value.nvmlReturn != 0:
                answer = _ANSWERS.get(value.nvmlReturn, GpuAnswer.FAILED)
                if answer is not GpuAnswer.NOT_SUPPORTED:
                    self._failed(name, f"field {number}", GpuError(answer, f"NVML code {value.nvmlReturn}"))
            elif name in _LINK_FIELDS or name in _TOTALS:
                kind = name.removeprefix("link_").removesuffix("_data")
                of_links[kind] = of_links.get(kind, 0) + int(_value_of(value))
            else:
                plain[name] = int(_value_of(value))
            if value.nvmlReturn == 0 or answer is not GpuAnswer.NOT_SUPPORTED:
                supported.append((name, number, link))
        if is_due:
            self._part.fields = tuple(supported)
            self._part.links_active = self._read_links()
            self._part.link_errors, self._part.links_read_at = of_links, self._now
        return plain, self._part.link_errors

    def _read_links(self) -> int | None:
        """Return how many links are up. One that has answered before and is said not to exist now is down."""
        if self._is_lost or not self._part.links:
            return None
        active = 0
        for link in self._part.links:
            try:
                active += bool(self._nvml.nvmlDeviceGetNvLinkState(self._handle, link))
            except self._nvml.NVMLError as error:
                answer = self._translated(error)
                if answer.answer is not GpuAnswer.NOT_SUPPORTED:
                    self._failed("links_active", "nvmlDeviceGetNvLinkState", answer)
                    return None
        return active

    def _read_sram(self) -> tuple[int | None, bool | None]:
        if hasattr(self._nvml, "c_nvmlEccSramErrorStatus_v1_t"):
            status = self._nvml.c_nvmlEccSramErrorStatus_v1_t()
            if self._read("sram_uncorrected", "nvmlDeviceGetSramEccErrorStatus", _by_reference(status)) is not None:
                return int(status.aggregateUncParity + status.aggregateUncSecDed), bool(status.bThresholdExceeded)
        count = self._read(
            "sram_uncorrected", "nvmlDeviceGetMemoryErrorCounter", _UNCORRECTED, _AGGREGATE, _SRAM
        )  # fmt: skip
        return count, None

    def _read_slowdowns(self) -> int | None:
        new = "nvmlDeviceGetCurrentClocksEventReasons"
        found: int | None = self._read("slowdowns", new)
        if found is None and new in self._part.missing:
            found = self._read("slowdowns", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return found

    def _read_limit(self, temperature: int | None, slowdown_margin: int | None) -> int | None:
        """Return the temperature at which the part slows down.

        Newer parts only tell the margin to their limit, and slow down where that margin reaches a (negative) figure:
        a margin of -1 alone is still within it.
        """
        margin = self._read("temperature_limit_c", "nvmlDeviceGetMarginTemperature")
        if margin is not None and temperature is not None:
            return int(temperature + margin - (slowdown_margin or 0))
        limit: int | None = self._read("temperature_limit_c", "nvmlDeviceGetTemperatureThreshold", 1)
        return limit

    def _read_fabric(self) -> dict[str, Any]:
        if not hasattr(self._nvml, "c_nvmlGpuFabricInfoV_t"):
            return {}
        fabric = self._nvml.c_nvmlGpuFabricInfoV_t()
        if self._read("fabric_state", "nvmlDeviceGetGpuFabricInfoV", _by_reference(fabric)) is None:
            return {}
        uuid = bytes(fabric.clusterUuid)
        return {
            "fabric_state": int(fabric.state),
            "fabric_status": int(fabric.status),
            "fabric_clique": int(fabric.cliqueId),
            "fabric_uuid": uuid.hex() if any(uuid) else "",
            "fabric_health": int(fabric.healthMask),
        }

    def _read_processes(self) -> tuple[int, ...]:
        found = self._read("compute_processes", "nvmlDeviceGetComputeRunningProcesses")
        return tuple(sorted({int(process.pid) for process in found or ()}))


def binding_file() -> Path | None:
    """Return the file of this machine's nvidia-ml-py, which is all of it; nodes get a copy. None without it."""
    found = importlib.util.find_spec("pynvml")
    return Path(found.origin) if found is not None and found.origin else None


def bus_id_of(text: str) -> str:
    """Return a PCI address as the kernel writes it: ``00000000:9B:00.0`` becomes ``0000:9b:00.0``.

    Raises:
        ValueError: if it is none.
    """
    domain, bus, rest = text.lower().split(":")
    return f"{int(domain, 16):04x}:{bus}:{rest}"


def _by_reference(structure: Any) -> Any:
    # nvidia-ml-py hands these on as they are. ctypes is loaded by then.
    import ctypes

    return ctypes.byref(structure)


def _value_of(value: Any) -> Any:
    kinds = _VALUE_TYPES
    return getattr(value.value, kinds[value.valueType] if value.valueType < len(kinds) else "ullVal")


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
