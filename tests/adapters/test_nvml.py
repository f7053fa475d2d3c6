"""The NVML adapter through the real nvidia-ml-py, on a library of our own with settable state."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.local import gpu_faults
from hyperpod.adapters.nvml import Nvml, bus_id_of
from hyperpod.ports.gpu import GpuAnswer, GpuError, GpuView, LibraryFault, NoLibrary
from tests.fakes.clock import FakeClock
from tests.fakes.nvml import NAME, NvmlState, build_library

pynvml = pytest.importorskip("pynvml")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlState:
    state = NvmlState(tmp_path / "state")
    monkeypatch.setenv("FAKE_NVML_STATE", str(state.path))
    state.set(count=8)
    return state


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def nvml(library: Path, state: NvmlState, clock: FakeClock) -> Nvml:
    return Nvml(clock.monotonic, library=str(library))


def one(nvml: Nvml, index: int = 0) -> GpuView:
    return nvml.look(max_age_s=-1)[index]


def test_eight_gpus_that_are_well(nvml: Nvml) -> None:
    assert nvml.count() == 8
    views = nvml.look()
    assert [v.bus_id for v in views][:2] == ["0000:10:00.0", "0000:18:00.0"]
    assert not any(v.errors for v in views)
    third = views[3]
    assert (third.index, third.uuid, third.serial) == (3, "GPU-00000000-0000-0000-0000-000000000003", "1651023000003")
    assert (third.name, third.driver) == ("NVIDIA H100 80GB HBM3", "570.86.15")
    assert (third.links_active, third.links_total) == (18, 18)
    assert third.link_errors == {"crc": 0, "replay": 0, "recovery": 0}
    assert (third.remap_pending, third.remap_failed, third.sram_uncorrected) == (False, False, 0)
    assert (third.pcie_width, third.pcie_width_max, third.pcie_gen, third.pcie_gen_max) == (16, 16, 5, 5)
    assert (third.fabric_state, third.fabric_status, third.fabric_uuid) == (3, 0, "")


VALUES: list[tuple[dict[str, object], str, object]] = [
    ({"recovery_action": 2}, "recovery_action", 2),
    ({"ecc_volatile": 3}, "volatile_uncorrected", 3),
    ({"ecc_aggregate": 9}, "aggregate_uncorrected", 9),
    ({"sram": 2}, "sram_uncorrected", 2),
    ({"sram_exceeded": 1}, "sram_threshold_exceeded", True),
    ({"remap_pending": 1}, "remap_pending", True),
    ({"remap_failed": 1}, "remap_failed", True),
    ({"remap": "none", "retired_pending": 1}, "remap_pending", True),
    ({"retired_pages": 61}, "retired_pages", 61),
    ({"links_active": 17}, "links_active", 17),
    ({"links": 12}, "links_total", 12),
    ({"links": 0}, "links_total", None),
    ({"link_crc": 2}, "link_errors", {"crc": 36, "replay": 0, "recovery": 0}),
    ({"link_recovery_failed": 1}, "link_errors", {"crc": 0, "replay": 0, "recovery": 0, "recovery_failed": 18}),
    ({}, "banks_without_spare", 0),
    ({"banks_none": 2}, "banks_without_spare", 2),
    ({"remap": "none"}, "banks_without_spare", None),
    ({"power_limit_mw": 500000}, "power_limit_w", 500.0),
    ({"power_limit_mw": "none"}, "power_limit_w", None),
    ({}, "clocks", "1980/2619 MHz"),
    ({"clock": 1410}, "clocks", "1410/2619 MHz"),
    ({"clock": "none"}, "clocks", ""),
    ({"vbios": "92.00.45.00.03"}, "vbios", "92.00.45.00.03"),
    ({"error.VbiosVersion": 3}, "vbios", ""),
    ({"pcie_width": 8}, "pcie_width", 8),
    ({"pcie_gen": 1}, "pcie_gen", 1),
    ({"pcie_replays": 7}, "pcie_replays", 7),
    ({"slowdowns": 0x88}, "slowdowns", 0x88),
    ({"error.CurrentClocksEventReasons": 13, "slowdowns": 4}, "slowdowns", 4),
    ({"temperature": 88}, "temperature_c", 88),
    ({"power_mw": 650500}, "power_w", 650.5),
    ({"utilisation": 97}, "utilisation_percent", 97),
    ({"fabric_state": 2}, "fabric_state", 2),
    ({"fabric_state": "none"}, "fabric_state", None),
    ({"fabric_status": 23}, "fabric_status", 23),
    ({"fabric_uuid": 0x6D}, "fabric_uuid", "6d" + "00" * 15),
    ({"fabric_clique": 4026}, "fabric_clique", 4026),
    ({"fabric_health": 0x80}, "fabric_health", 0x80),
    ({"persistence": 0}, "persistence", False),
    ({"processes": "71 70"}, "compute_processes", (70, 71)),
    ({"memory_used_mib": 1024}, "memory_used_mib", 1024),
]


@pytest.mark.parametrize(("values", "attribute", "expected"), VALUES)
def test_a_value_of_the_library_becomes_an_attribute(
    nvml: Nvml, state: NvmlState, values: dict[str, object], attribute: str, expected: object
) -> None:
    state.gpu(2, **values)
    view = one(nvml, 2)
    assert getattr(view, attribute) == expected
    assert view.errors == {}


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({"temperature": 60, "margin": 27, "slowdown_tlimit": -2}, 89),
        ({"temperature": 60, "margin": 27, "slowdown_tlimit": "none"}, 87),
        ({"temperature": 90, "margin": -3, "slowdown_tlimit": -2}, 89),
        ({"margin": "none", "slowdown_c": 91}, 91),
        ({"margin": "none", "slowdown_c": "none"}, None),
    ],
)
def test_the_limit_is_where_the_part_slows_down(
    nvml: Nvml, state: NvmlState, values: dict[str, object], limit: int | None
) -> None:
    state.gpu(0, **values)
    assert one(nvml).temperature_limit_c == limit


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (4, GpuAnswer.DENIED),
        (14, GpuAnswer.INFOROM),
        (15, GpuAnswer.LOST),
        (16, GpuAnswer.RESET_REQUIRED),
        (10, GpuAnswer.FAILED),
        (999, GpuAnswer.FAILED),
        (12345, GpuAnswer.FAILED),
    ],
)
def test_what_the_library_refuses_is_told_by_its_kind(
    nvml: Nvml, state: NvmlState, code: int, answer: GpuAnswer
) -> None:
    state.gpu(1, error__Temperature=code)
    views = nvml.look()
    assert views[1].errors["temperature_c"].answer is answer
    assert views[1].temperature_c is None
    assert not views[0].errors


@pytest.mark.parametrize("code", [2, 3, 13, 22, 25, 26])
def test_what_a_part_does_not_have_is_no_error_and_is_not_asked_again(
    nvml: Nvml, state: NvmlState, clock: FakeClock, code: int
) -> None:
    state.gpu(0, error__RemappedRows=code)
    view = one(nvml)
    assert (view.remap_failed, view.errors) == (None, {})
    state.gpu(0, error__RemappedRows=None, remap_failed=1)
    assert one(nvml).remap_failed is None
    clock.advance(601)
    assert one(nvml).remap_failed is True


def test_a_lost_gpu_is_asked_once_and_the_others_are_seen(nvml: Nvml, state: NvmlState) -> None:
    nvml.look()
    state.gpu(3, error=15)
    views = nvml.look(max_age_s=-1)
    assert [error.answer for error in views[3].errors.values()] == [GpuAnswer.LOST]
    assert views[3].bus_id == "0000:28:00.0"
    assert views[4].temperature_c == 45


def test_a_gpu_without_a_handle_keeps_the_address_it_had(nvml: Nvml, state: NvmlState) -> None:
    state.gpu(6, handle_error=28)
    assert one(nvml, 6).bus_id == "gpu-6"
    state.gpu(6, handle_error=None)
    nvml.look(max_age_s=-1)
    state.gpu(6, handle_error=15)
    view = one(nvml, 6)
    assert view.bus_id == "0000:40:00.0"
    assert view.errors["handle"].answer is GpuAnswer.LOST


def test_recovery_actions_come_by_address_without_those_that_do_not_say(nvml: Nvml, state: NvmlState) -> None:
    state.set(count=3)
    state.gpu(1, recovery_action=4)
    state.gpu(2, recovery_action="none")
    assert nvml.recovery_actions() == {"0000:10:00.0": 0, "0000:18:00.0": 4}


class OldBinding:
    """nvidia-ml-py of years ago: without what newer drivers have."""

    MISSING = (
        "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
        "NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT",
        "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
        "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
        "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
        "c_nvmlGpuFabricInfoV_t",
        "c_nvmlEccSramErrorStatus_v1_t",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
    )

    def __getattr__(self, name: str) -> Any:
        if name in self.MISSING:
            raise AttributeError(name)
        return getattr(pynvml, name)


def test_an_old_binding_sees_less_and_finds_nothing(library: Path, state: NvmlState, clock: FakeClock) -> None:
    nvml = Nvml(clock.monotonic, library=str(library), binding=OldBinding)
    state.gpu(0, recovery_action=1, sram=5, slowdowns=64)
    assert nvml.recovery_actions() == {}
    view = one(nvml)
    assert (view.recovery_action, view.fabric_state, view.link_errors) == (None, None, {})
    assert (view.sram_uncorrected, view.slowdowns, view.temperature_limit_c) == (5, 64, 90)
    assert view.errors == {}


def test_one_look_serves_many_checks_until_it_is_old(nvml: Nvml, state: NvmlState, clock: FakeClock) -> None:
    first = nvml.look()
    state.gpu(0, temperature=80)
    clock.advance(30)
    assert nvml.look() is first
    assert nvml.look(max_age_s=2)[0].temperature_c == 80
    clock.advance(36)
    state.gpu(0, temperature=81)
    assert nvml.look()[0].temperature_c == 81


def test_links_are_counted_by_the_minute(nvml: Nvml, state: NvmlState, clock: FakeClock) -> None:
    nvml.look()
    state.gpu(0, link_crc=1)
    clock.advance(10)
    assert one(nvml).link_errors["crc"] == 0
    clock.advance(50)
    assert one(nvml).link_errors["crc"] == 18


# --- libraries that do not serve


def test_nothing_is_loaded_where_there_is_no_library(tmp_path: Path, clock: FakeClock) -> None:
    def never() -> Any:
        raise AssertionError("loaded")

    nvml = Nvml(clock.monotonic, library="libnvidia-none.so.1", folders=(str(tmp_path),), binding=never)
    for call in (nvml.count, nvml.look, nvml.recovery_actions):
        with pytest.raises(NoLibrary) as caught:
            call()
        assert caught.value.fault is LibraryFault.ABSENT


def test_a_library_that_is_installed_later_is_found(library: Path, tmp_path: Path, clock: FakeClock) -> None:
    late = tmp_path / NAME
    nvml = Nvml(clock.monotonic, library=str(late), folders=())
    with pytest.raises(NoLibrary):
        nvml.count()
    late.write_bytes(library.read_bytes())
    with pytest.raises(NoLibrary):
        nvml.count()
    clock.advance(301)
    assert nvml.count() == 0


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF"])
def test_a_file_that_does_not_load_is_damaged(tmp_path: Path, clock: FakeClock, content: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(NoLibrary) as caught:
        Nvml(clock.monotonic, library=str(path)).look()
    assert caught.value.fault is LibraryFault.DAMAGED
    assert caught.value.is_damaged


def test_a_dangling_link_is_damaged(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / NAME).symlink_to("libnvidia-ml.so.570.86.15")
    with pytest.raises(NoLibrary) as caught:
        Nvml(clock.monotonic, library=str(tmp_path / NAME)).look()
    assert caught.value.is_damaged


@pytest.mark.parametrize(
    ("code", "fault"), [(9, LibraryFault.NO_DRIVER), (12, LibraryFault.DAMAGED), (18, LibraryFault.MISMATCH)]
)
def test_a_library_that_does_not_start_says_why(
    nvml: Nvml, state: NvmlState, clock: FakeClock, code: int, fault: LibraryFault
) -> None:
    state.set(init=code)
    with pytest.raises(NoLibrary) as caught:
        nvml.look()
    assert caught.value.fault is fault
    state.set(init=0)
    clock.advance(6)
    assert len(nvml.look()) == 8


def test_other_troubles_of_the_start_are_failures(nvml: Nvml, state: NvmlState) -> None:
    state.set(init=999)
    with pytest.raises(GpuError) as caught:
        nvml.count()
    assert caught.value.answer is GpuAnswer.FAILED


def test_a_library_that_does_not_start_is_tried_ever_more_rarely(
    library: Path, state: NvmlState, clock: FakeClock
) -> None:
    tries = 0

    class Counted:
        def __getattr__(self, name: str) -> Any:
            nonlocal tries
            tries += name == "nvmlInit"
            return getattr(pynvml, name)

    state.set(init=9)
    nvml = Nvml(clock.monotonic, library=str(library), binding=Counted)
    for _ in range(3600):
        clock.advance(1)
        with pytest.raises(NoLibrary):
            nvml.look()
    assert 12 <= tries <= 20


def test_a_gpu_that_comes_late_is_seen_after_the_library_was_opened_anew(nvml: Nvml, state: NvmlState) -> None:
    state.set(count=7)
    assert len(nvml.look()) == 7
    state.set(count=8)
    assert len(nvml.look()) == 7
    nvml.forget()
    assert len(nvml.look()) == 8


def test_a_count_that_fails_makes_the_library_start_afresh(nvml: Nvml, state: NvmlState, clock: FakeClock) -> None:
    nvml.look()
    state.set(count_error=999, init=18)
    with pytest.raises(GpuError):
        nvml.look(max_age_s=-1)
    with pytest.raises(NoLibrary):
        nvml.look(max_age_s=-1)
    state.set(count_error=None, init=None)
    clock.advance(6)
    assert len(nvml.look(max_age_s=-1)) == 8


def test_a_node_without_the_binding_says_so(library: Path, state: NvmlState, clock: FakeClock) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'pynvml'")

    with pytest.raises(NoLibrary, match="nvidia-ml-py is not installed") as caught:
        Nvml(clock.monotonic, library=str(library), binding=missing).look()
    assert caught.value.fault is LibraryFault.NO_BINDING


# --- calls that hang


@pytest.fixture
def hanging(library: Path, state: NvmlState) -> Iterator[Nvml]:
    """An adapter on the real clock with a GPU that is about to die; lets its thread go at the end."""
    nvml = Nvml(library=str(library), patience_s=0.2)
    while True:
        try:
            nvml.look()
            break
        except GpuError:
            continue  # a busy machine
    state.gpu(5, hang=1)
    yield nvml
    state.gpu(5, hang=None)
    deadline = time.monotonic() + 10
    while _threads() and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert not _threads()


def _threads() -> int:
    return sum(thread.name == "nvml" for thread in threading.enumerate())


def test_a_call_that_hangs_is_given_up_and_never_made_twice(hanging: Nvml) -> None:
    for _ in range(20):
        with pytest.raises(GpuError) as caught:
            hanging.look(max_age_s=-1)
        assert caught.value.answer is GpuAnswer.HANGS
    for call in (hanging.count, hanging.recovery_actions):
        with pytest.raises(GpuError, match="does not come back"):
            call()
    assert _threads() == 1


def test_callers_after_the_first_do_not_wait(hanging: Nvml) -> None:
    with pytest.raises(GpuError):
        hanging.look(max_age_s=-1)
    before = time.monotonic()
    for _ in range(10):
        with pytest.raises(GpuError):
            hanging.look(max_age_s=-1)
    assert time.monotonic() - before < 1


def test_an_earlier_look_still_serves_while_a_call_hangs(hanging: Nvml) -> None:
    with pytest.raises(GpuError):
        hanging.look(max_age_s=-1)
    assert len(hanging.look()) == 8


def test_callers_at_the_same_time_share_one_look(library: Path, state: NvmlState) -> None:
    nvml = Nvml(library=str(library), patience_s=10)
    nvml.look()
    state.gpu(0, hang=1)
    found: list[object] = []
    callers = [threading.Thread(target=lambda: found.append(nvml.look(max_age_s=-1))) for _ in range(5)]
    for caller in callers:
        caller.start()
    assert _threads() == 1
    state.gpu(0, hang=None)
    for caller in callers:
        caller.join(10)
    assert len(found) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000:9B:00.0", "0000:9b:00.0"), ("0001:00:1E.0", "0001:00:1e.0"), ("00010000:01:00.0", "10000:01:00.0")],
)
def test_addresses_are_written_as_the_kernel_does(text: str, expected: str) -> None:
    assert bus_id_of(text) == expected


def test_the_module_loads_neither_ctypes_nor_the_binding() -> None:
    source = sys.modules["hyperpod.adapters.nvml"].__file__
    assert source is not None
    top = [line for line in Path(source).read_text().splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in top if "ctypes" in line or "pynvml" in line]


@pytest.mark.parametrize("word", gpu_faults.WORDS)
def test_every_word_for_a_fault_changes_what_is_seen(library: Path, nvml: Nvml, state: NvmlState, word: str) -> None:
    before = nvml.look()
    state.path.write_text(gpu_faults.fault_lines(f"{word}:3") + gpu_faults.machine_state("8"))
    found: object = None
    try:
        found = Nvml(library=str(library), patience_s=0.3).look()
    except (GpuError, NoLibrary) as error:
        found = error
    state.set(count=8)
    assert found != before
    if isinstance(found, tuple) and len(found) == 8:
        assert found[:3] == before[:3]
        assert found[3] != before[3]
