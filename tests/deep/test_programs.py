"""The programs of deep checks, each on a machine that is well and on one that is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperpod.deep import compute, dcgm, disk, memory, network
from hyperpod.deep.__main__ import main
from hyperpod.deep.result import Line, parse_lines, repeat

TOKEN = "ab" * 32


def _names(lines: list[Line]) -> list[tuple[str, bool]]:
    return [(line.test, line.ok) for line in lines]


def test_memory_that_keeps_what_is_written_passes() -> None:
    assert memory.check_patterns(3 << 20) == Line("memory_pattern", True, value=3.145728, unit="MB")


def test_a_flipped_bit_of_memory_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memoryview", _broken_memory(), raising=False)
    line = memory.check_patterns(1 << 20)
    assert (line.ok, line.detail) == (False, "byte 777 holds 0x01, 0x00 was written")


def _broken_memory() -> object:
    class Stuck(bytearray):
        """A block whose byte 777 has its lowest bit stuck."""

        def __setitem__(self, key: object, value: object) -> None:
            super().__setitem__(key, value)  # type: ignore[call-overload]
            super().__setitem__(777, self[777] | 1)

    return Stuck


def _dcgmi(folder: Path, text: str, status: int = 0) -> str:
    program = folder / "dcgmi"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = 'diag -r 2 -j' ] || exit 9\ncat <<'END'\n{text}\nEND\nexit {status}\n")
    program.chmod(0o755)
    return str(program)


def _diag(status: str, severity: int = 2) -> str:
    warnings = [{"error_severity": severity, "warning": "GPU 3 is ill"}] if status != "Pass" else []
    result = {"entity_group": "GPU", "entity_id": 3, "status": status, "warnings": warnings}
    return json.dumps(
        {"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "software", "results": [result]}]}]}}
    )


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        (_diag("Pass"), 0, (True, False, "")),
        (_diag("Fail"), 226, (False, False, "GPU 3, software: GPU 3 is ill")),
        # A setting is no broken part; a tool that failed says nothing.
        (_diag("Fail", severity=5), 226, (True, False, "GPU 3, software: GPU 3 is ill")),
        ("Error: unable to establish a connection to the specified host: localhost", 1, (True, True, "DCGM says")),
        ("{}", 0, (True, True, "DCGM says")),
    ],
)
def test_dcgms_diagnostic_is_believed_only_when_it_is_understood(
    tmp_path: Path, text: str, status: int, expected: tuple[bool, bool, str]
) -> None:
    (line,) = dcgm.check_dcgm(2, program=_dcgmi(tmp_path, text, status))
    assert (line.ok, line.skipped, line.detail[: len(expected[2])]) == expected


def test_a_machine_without_dcgm_says_nothing_of_it(tmp_path: Path) -> None:
    assert dcgm.check_dcgm(program=str(tmp_path / "dcgmi")) == []


_ENDLESS = """#!/bin/sh
trap 'echo stopped >{folder}/told; exit 1' TERM
echo $$ >{folder}/begun
while :; do sleep 0.05; done
"""


def test_dcgms_diagnostic_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(_ENDLESS.format(folder=tmp_path))
    program.chmod(0o755)
    (line,) = dcgm.check_dcgm(program=str(program), limit_s=0.5)
    assert (line.ok, line.skipped) == (True, True)
    assert (tmp_path / "told").read_text() == "stopped\n"


def test_dcgms_diagnostic_is_stopped_when_the_check_is_killed_for_a_job(tmp_path: Path) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(_ENDLESS.format(folder=tmp_path))
    program.chmod(0o755)
    code = f"from hyperpod.deep.dcgm import check_dcgm; check_dcgm(3, program={str(program)!r})"
    check = subprocess.Popen([sys.executable, "-c", code])
    try:
        _wait_for(tmp_path / "begun")
    finally:
        check.kill()
        check.wait()
    _wait_for(tmp_path / "told")
    pid = int((tmp_path / "begun").read_text())
    _until(lambda: not Path(f"/proc/{pid}").exists())


def _wait_for(path: Path) -> None:
    _until(lambda: path.exists() and path.read_text().endswith("\n"))


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_processors_compute_the_known_answers() -> None:
    assert compute.chain() == compute.KNOWN_CHAIN
    assert compute.logistic() == compute.KNOWN_FLOAT
    assert compute.check_cpus([min(os.sched_getaffinity(0))], 0.01).ok


@pytest.mark.parametrize(
    ("name", "wrong", "text"),
    [("chain", compute.KNOWN_CHAIN ^ 1, "integers gave"), ("logistic", 0.1, "floating point gave")],
)
def test_a_core_that_computes_wrongly_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: float, text: str
) -> None:
    monkeypatch.setattr(compute, name, lambda: wrong)
    assert text in compute.check_core(None, 0.0)


def test_a_disk_that_returns_what_was_written_passes(tmp_path: Path) -> None:
    lines = disk.check_disk(str(tmp_path), 8 << 20)
    assert _names(lines) == [("disk_checksum", True), ("disk_write", True), ("disk_read", True)]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_returns_something_else_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_read", lambda descriptor: b"\0" * (4 << 20))
    (line,) = disk.check_disk(str(tmp_path), 8 << 20)
    assert not line.ok
    assert "at byte 0 was not written" in line.detail


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    (line,) = disk.check_disk(str(tmp_path / "gone"), 8 << 20)
    assert (line.ok, "No such file" in line.detail) == (False, True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_two_ends_of_a_link_measure_it() -> None:
    port = _free_port()
    served: list[Line] = []
    thread = threading.Thread(target=lambda: served.append(network.serve("127.0.0.1", port, "127.0.0.1", TOKEN, 10.0)))
    thread.start()
    lines = network.measure("127.0.0.1", port, TOKEN, 1 << 20, 10.0)
    thread.join()
    assert _names(lines) == [("network_latency", True), ("network_bandwidth", True)]
    assert all(line.value and line.value > 0 for line in lines)
    assert served == [Line("serve", True)]


def test_a_client_without_the_token_gets_nothing_and_the_right_one_is_still_served() -> None:
    port = _free_port()
    thread = threading.Thread(target=network.serve, args=("127.0.0.1", port, "127.0.0.1", TOKEN, 10.0))
    thread.start()
    assert not network.measure("127.0.0.1", port, "cd" * 32, 1 << 20, 10.0)[0].ok
    assert network.measure("127.0.0.1", port, TOKEN, 1 << 20, 10.0)[1].ok
    thread.join()


def test_nobody_who_serves_is_told_with_the_reason() -> None:
    (line,) = network.measure("127.0.0.1", _free_port(), TOKEN, 1, 0.2)
    assert (line.ok, line.detail) == (False, "127.0.0.1: Connection refused")


def test_work_is_repeated_until_the_time_is_over_and_at_least_once() -> None:
    assert repeat(lambda: 1, 0.0)[0] == 1


def test_lines_of_libraries_between_the_results_are_left_out() -> None:
    text = f'warning: no libuv\n{Line("a", True).to_json()}\n[]\n{{"test": "b"}}\n{Line("c", False).to_json()}\n'
    assert [(line.test, line.ok) for line in parse_lines(text)] == [("a", True), ("c", False)]


@pytest.mark.parametrize("argv", [[], ["stress"], ["stress", "{}"], ["stress", "x"], ["dance", "{}"], ["serve", "[]"]])
def test_a_wrong_call_says_so(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("hyperpod.deep: ")


def test_the_stress_program_prints_a_line_for_each_test(tmp_path: Path) -> None:
    args = {"seconds": 0.01, "folders": [str(tmp_path)], "disk_mb": 4, "matrix": 32}
    done = subprocess.run(
        [sys.executable, "-m", "hyperpod.deep", "stress", json.dumps(args)], capture_output=True, text=True, check=True
    )
    tests = [line.test for line in parse_lines(done.stdout)]
    assert tests[:3] == ["memory_pattern", "memory_bandwidth", "cpu_numeric"]
    assert "disk_checksum" in tests
