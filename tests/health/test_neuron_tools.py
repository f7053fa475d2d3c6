"""The fake Neuron tools speak the real ones' formats, and the check follows them through a real stream."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from hyperpod.adapters import local
from hyperpod.adapters.process import Processes
from hyperpod.adapters.stream import ProgramStreams
from hyperpod.core.finding import Severity
from hyperpod.health.check import Facts, Ports, Result
from hyperpod.health.checks.neuron import NeuronCheck
from hyperpod.health.parse_neuron import parse_neuron_ls, parse_neuron_monitor
from tests.fakes.clock import FakeClock
from tests.fakes.host import FakeHost, FakeMunge

TOOLS = Path(local.__file__).parent / "doubles"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state.json"
    monkeypatch.setenv("FAKE_NEURON_STATE", str(path))
    path.write_text(json.dumps({"devices": 2, "period_s": 0.02}))
    return path


def set_state(path: Path, **values: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"devices": 2, "period_s": 0.02, **values}))
    os.replace(new, path)


def test_the_fake_tools_can_be_read_like_the_real_ones(state: Path) -> None:
    set_state(state, exit=0)
    listed = subprocess.run([TOOLS / "neuron-ls", "-j"], capture_output=True, text=True, timeout=20, check=True)
    devices = parse_neuron_ls(listed.stdout)
    assert devices is not None
    assert [(d.index, d.cores) for d in devices] == [(0, 2), (1, 2)]
    set_state(state, counters={"1": {"mem_ecc_uncorrected": 3}}, errors={"hardware": 1})
    with subprocess.Popen([TOOLS / "neuron-monitor"], stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        report = parse_neuron_monitor(monitor.stdout.readline())
        monitor.kill()
    assert report is not None
    assert report.devices == 2
    assert report.counters[1]["mem_ecc_uncorrected"] == 3
    assert report.errors[4242]["hardware"] == 1
    assert report.problem == ""


def test_an_error_that_the_monitor_counts_reaches_the_check(state: Path) -> None:
    assert stat.S_IMODE((TOOLS / "neuron-monitor").stat().st_mode) & 0o111
    host = FakeHost(FakeClock())
    for device in (0, 1):
        host.files[f"/sys/devices/virtual/neuron_device/neuron{device}/stats/hardware/mem_ecc_uncorrected/total"] = "0"
    monitor = str(TOOLS / "neuron-monitor")
    host.files[monitor], host.executables = "x", frozenset({monitor})
    check = NeuronCheck(monitors=(monitor,))
    streams = ProgramStreams(Processes())

    def look() -> Result:
        return check.run(Ports(host, FakeMunge(), Facts(host.now(), 1000.0, "worker-1"), streams=streams))

    def wait_for(code: str) -> Severity:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = [f for f in look().findings if f.code == code]
            if found:
                return found[0].severity
        raise AssertionError(f"{code} was not found")

    assert look().findings == ()
    set_state(state, errors={"hardware": 1})
    wait_for("NeuronHardwareErrors")
    set_state(state, counters={"1": {"mem_ecc_uncorrected": 1}})
    assert wait_for("NeuronMemoryUncorrected") is Severity.FATAL
    set_state(state, error="could not open the driver")
    assert wait_for("NeuronToolFailed") is Severity.UNKNOWN
    set_state(state, exit=3)
