"""All GPU checks together: on the library of our own, through nvidia-ml-py, the adapter and the runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.nvml import Nvml
from hyperpod.core.finding import Finding, Severity
from hyperpod.core.node import Role
from hyperpod.health.check import Check, Facts, Ports
from hyperpod.health.checks.gpu_count import GpuCountCheck
from hyperpod.health.registry import build_checks
from hyperpod.health.runner import Runner
from tests.fakes.clock import FakeClock
from tests.fakes.gpus import FakeGpus
from tests.fakes.host import FakeHost, FakeMunge
from tests.fakes.nvml import NvmlState, build_library

pynvml = pytest.importorskip("pynvml")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


class Counted:
    """nvidia-ml-py with a count of the looks: each begins with the number of GPUs."""

    def __init__(self) -> None:
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlDeviceGetCount(self) -> int:
        self.looks += 1
        return int(pynvml.nvmlDeviceGetCount())


class Node:
    """A node whose agent runs nothing but the checks of GPUs."""

    def __init__(self, library: Path) -> None:
        self.clock = FakeClock()
        self.host = FakeHost(self.clock)
        self.binding = Counted()
        self.nvml = Nvml(self.clock.monotonic, library=str(library), binding=lambda: self.binding)
        checks = [c for c in build_checks(Role.WORKER, {}) if c.name.startswith(("gpu_", "dcgm"))]
        assert len(checks) == 13
        self.runner = Runner(checks, start=self.clock.monotonic())

    def run(self, check: Check, run_id: int) -> None:
        facts = Facts(now=self.host.now(), uptime_s=5000.0, node="worker-1", jobs=frozenset())
        result = check.run(Ports(self.host, FakeMunge(), facts, self.nvml))
        self.runner.finished(check.name, run_id, result, self.clock.monotonic(), self.host.now())

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            for check, run_id in self.runner.due(self.clock.monotonic()):
                self.run(check, run_id)

    def fatal(self) -> list[Finding]:
        return [f for f in self.runner.findings() if f.severity is Severity.FATAL]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlState:
    state = NvmlState(tmp_path / "state")
    monkeypatch.setenv("FAKE_NVML_STATE", str(state.path))
    state.set(count=8)
    return state


@pytest.fixture
def node(library: Path, state: NvmlState) -> Node:
    return Node(library)


def test_eight_healthy_gpus_find_nothing_and_are_looked_at_a_few_times_a_minute(node: Node) -> None:
    node.live(60)
    node.binding.looks = 0
    node.live(600)
    assert node.runner.findings() == ()
    assert node.runner.why_not_ready() == ""
    # In a minute: two questions for the recovery action, one for the number, at most three looks at everything.
    assert node.binding.looks <= 10 * 6


def test_a_recovery_action_drains_within_its_interval_and_its_end_closes_the_finding(
    node: Node, state: NvmlState
) -> None:
    node.live(60)
    state.gpu(3, recovery_action=1)
    node.live(31)
    assert [(f.check, f.code, f.device) for f in node.fatal()] == [("gpu_recovery", "GpuResetNeeded", "0000:28:00.0")]
    state.gpu(3, recovery_action=0)
    node.live(61)
    assert node.fatal() == []


def test_a_lost_gpu_is_one_finding_and_not_one_of_every_check(node: Node, state: NvmlState) -> None:
    node.live(60)
    state.gpu(3, error=15)
    node.live(120)
    assert [(f.check, f.code) for f in node.runner.findings()] == [("gpu_lost", "GpuLost")]


def test_a_gpu_that_is_gone_is_seen_at_once_after_a_failure(node: Node, state: NvmlState) -> None:
    for index in range(8):
        folder = f"/sys/bus/pci/devices/0000:{0x10 + 8 * index:02x}:00.0"
        node.host.files |= {f"{folder}/vendor": "0x10de", f"{folder}/class": "0x030200"}
    node.live(65)
    state.set(missing=1)
    node.clock.advance(1)
    for check, run_id in node.runner.force(["gpu_count"], node.clock.monotonic()):
        node.run(check, run_id)
    assert [(f.code, f.device) for f in node.fatal()] == [("GpuMissing", "0000:48:00.0")]


def test_a_failure_that_passes_drains_nobody(node: Node, state: NvmlState) -> None:
    node.live(60)
    for _ in range(3):
        state.gpu(3, error__RemappedRows=999)
        node.live(59)
        assert node.fatal() == []
        state.gpu(3, error__RemappedRows=None)
        node.live(120)
    assert node.runner.findings() == ()


def test_a_failure_that_stays_counts_after_three_looks(node: Node, state: NvmlState) -> None:
    node.live(60)
    state.gpu(3, error__RemappedRows=999)
    node.live(91)
    assert [(f.check, f.code) for f in node.fatal()] == [("gpu_lost", "GpuFails")]


def test_what_cannot_be_read_any_more_stays_as_it_was_found(node: Node, state: NvmlState) -> None:
    node.live(60)
    state.gpu(3, remap_failed=1)
    node.live(121)
    assert [f.code for f in node.fatal()] == ["RemapFailed"]
    state.gpu(3, remap_failed=None, error__RemappedRows=999)
    node.live(250)
    assert "RemapFailed" in [f.code for f in node.fatal()]


@pytest.mark.parametrize(
    ("values", "seconds", "code"),
    [
        ({"slowdowns": 0x88, "utilisation": 99}, 60, ""),
        ({"slowdowns": 0x88, "utilisation": 99}, 240, "PowerBrake"),
        ({"slowdowns": 0x04, "utilisation": 99}, 600, ""),
        ({"temperature": 95, "margin": -6}, 240, "GpuHot"),
        ({"temperature": 88, "margin": -1}, 600, ""),
        ({"links_active": 17}, 190, "LinkDown"),
        ({"link_recovery": 9}, 600, ""),
        ({"pcie_width": 4}, 370, "PcieWidth"),
        ({"pcie_gen": 1}, 600, ""),
        ({"ecc_volatile": 5, "ecc_aggregate": 500}, 600, ""),
        ({"fabric_status": 23}, 157, "FabricStatus"),
        ({"fabric_health": 0x80}, 600, ""),
        ({"sram": 40}, 600, ""),
    ],
)
def test_a_state_of_the_library_becomes_the_finding_that_it_should_be(
    node: Node, state: NvmlState, values: dict[str, object], seconds: int, code: str
) -> None:
    node.live(120)
    state.gpu(5, **values)
    node.live(seconds)
    assert [f.code for f in node.fatal()] == ([code] if code else [])


def test_the_library_is_opened_anew_while_gpus_may_come_late_and_not_for_ever() -> None:
    host = FakeHost()
    for address in ("0000:10:00.0", "0000:18:00.0"):
        folder = f"/sys/bus/pci/devices/{address}"
        host.files |= {f"{folder}/vendor": "0x10de", f"{folder}/class": "0x030200"}
    gpus = FakeGpus.of_case({"gpus": {"count": 1}})
    check = GpuCountCheck()
    for uptime_s, forgotten in ((30.0, 1), (400.0, 2), (700.0, 2)):
        check.run(Ports(host, FakeMunge(), Facts(host.now(), uptime_s, "worker-1"), gpus))
        assert gpus.forgotten == forgotten
