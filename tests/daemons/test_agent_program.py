"""The agent put together: its files, its effects, and what a bad configuration gets."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.host import LocalHost
from hyperpod.agent import __main__ as program
from hyperpod.agent import loop as loop_module
from hyperpod.agent.loop import Loop
from hyperpod.agent.mind import Mind
from hyperpod.agent.settings import AgentSettings, parse_settings
from hyperpod.ports.host import Contact, Process
from hyperpod.ports.process import Completed
from tests.fakes.host import FakeHost, FakeMunge
from tests.fakes.process import FakeProcesses


class FakeLink:
    """Keeps what it is given; never connects."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_stopped = False

    def start(self) -> None: ...

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(dict(message))

    def reset(self) -> None: ...

    def stop(self, timeout_s: float) -> None:
        self.is_stopped = True


def settings_in(folder: Path, **changes: Any) -> AgentSettings:
    values = {
        "cluster": "demo",
        "node": "worker-1",
        "group": "worker",
        "role": "worker",
        "head_address": "10.0.0.2",
        "instance_id": "i-1",
        "socket_path": str(folder / "run/agent.sock"),
        "jobs_dir": str(folder / "run/jobs"),
        "state_dir": str(folder / "state"),
        "kmsg_path": str(folder / "kmsg"),
        "boot_id_path": str(folder / "boot_id"),
    }
    (folder / "boot_id").write_text("boot-1\n")
    return parse_settings(json.dumps({**values, **changes}), "agent.json")


class Stage:
    """An agent with real files and threads, a fake machine and a fake link."""

    def __init__(self, folder: Path) -> None:
        self.settings = settings_in(folder)
        self.host = FakeHost()
        self.link = FakeLink()
        machine = LocalHost(FakeProcesses())
        # The checks are due a thousand seconds after the agent was built.
        self.host.clock.advance(machine.monotonic())
        built, self.mind = program.build(self.settings, machine, FakeMunge())  # type: ignore[arg-type]
        built._server.close()
        self.loop = Loop(
            self.settings,
            self.host,
            FakeMunge(),
            lambda on_event: self.link,  # type: ignore[arg-type,return-value]
            program.Notifier({}),
            allowed=(os.getuid(),),
        )
        self.loop.mind = self.mind
        self.mind._do = self.loop

    def wait(self, is_done: Any) -> None:
        """Handle events until something has happened; each turn waits for a thread's wake-up."""
        for _ in range(100):
            if is_done():
                return
            self.loop._wait(1.0)
        raise AssertionError("it did not happen")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.loop._server.close()


def test_a_check_runs_apart_and_its_result_comes_back(stage: Stage) -> None:
    stage.loop._tick()
    stage.wait(lambda: all(s.runs for s in stage.mind.runner.states() if s.name in ("service", "munge", "memory")))
    problems = {s.name: s.last_problem for s in stage.mind.runner.states()}
    assert "munged" in problems["service"]
    assert problems["munge"] == "the controller has not answered yet"
    assert "/proc/meminfo" in problems["memory"]


def test_a_kernel_line_in_the_file_becomes_a_finding(stage: Stage, tmp_path: Path) -> None:
    stage.loop._kmsg = loop_module.KmsgReader(stage.settings.kmsg_path)
    stage.loop._look_at_kernel_log()
    assert [f.code for f in stage.mind.findings] == ["LogUnreadable"]
    (tmp_path / "kmsg").write_text("4,1,0,-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
    stage.loop._look_at_kernel_log()
    assert [f.code for f in stage.mind.findings] == ["Xid79"]


def test_a_jobs_folder_is_open_to_read_and_old_news_is_removed(stage: Stage, tmp_path: Path) -> None:
    stage.loop.mark_peer_lost(7, "worker-2")
    file = tmp_path / "run/jobs/7/peer_lost"
    assert file.read_text() == "worker-2\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE(file.parent.stat().st_mode) & 0o777 == 0o755
    stage.loop.make_job_folder(7)
    assert not file.exists()


def test_folders_of_jobs_long_gone_are_removed(stage: Stage, tmp_path: Path) -> None:
    stage.loop.mark_peer_lost(6, "worker-2")
    os.utime(tmp_path / "run/jobs/6", (0, 0))
    stage.loop.make_job_folder(7)
    assert sorted(p.name for p in (tmp_path / "run/jobs").iterdir()) == ["7"]


def test_probes_answer_through_the_loop(stage: Stage) -> None:
    stage.host.contacts = {"10.0.0.3:6818": Contact.OPEN}
    stage.mind._lease.answers = {"10.0.0.3:6818": None, "10.0.0.4:6818": None}
    stage.loop.probe([("10.0.0.3", 6818), ("10.0.0.4", 6818)])
    stage.wait(lambda: None not in stage.mind._lease.answers.values())
    assert stage.mind._lease.answers == {"10.0.0.3:6818": Contact.OPEN, "10.0.0.4:6818": Contact.SILENT}


def test_a_fence_kills_the_jobs_that_are_here(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.host.process_list = [Process(40, 1, 0, "slurmstepd", "slurmstepd: [7.0]"), Process(41, 40, 1000, "python")]
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(loop_module, "kill", lambda pid, number: bool(killed.append((pid, number))))
    stage.loop.kill_jobs(None, "cut off")
    stage.wait(lambda: any(f.code == "LeaseLost" for f in stage.mind.findings))
    assert killed == [(41, signal.SIGKILL)]


def test_an_agent_that_stops_with_its_machine_says_goodbye(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = FakeProcesses({("systemctl",): Completed("stopping\n", "", 1)})
    monkeypatch.setattr(loop_module, "Processes", lambda: answers)
    stage.loop._stop()
    assert [m["type"] for m in stage.link.sent] == ["goodbye"]
    assert stage.link.is_stopped


def test_an_agent_that_is_restarted_says_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = FakeProcesses({("systemctl",): Completed("running\n", "", 0)})
    monkeypatch.setattr(loop_module, "Processes", lambda: answers)
    stage.loop._stop()
    assert stage.link.sent == []
    assert not os.path.exists(stage.settings.socket_path)


def build(folder: Path, **changes: Any) -> Mind:
    loop, mind = program.build(settings_in(folder, **changes), LocalHost(FakeProcesses()), FakeMunge())  # type: ignore[arg-type]
    loop._server.close()
    return mind


def test_state_is_kept_over_a_restart_within_one_boot(tmp_path: Path) -> None:
    mind = build(tmp_path)
    mind._is_ready = mind._must_save = True
    mind.save()
    assert build(tmp_path).why_not_ready == ""
    (tmp_path / "boot_id").write_text("boot-2\n")
    state = json.loads((tmp_path / "state/state.json").read_text())
    assert state["boot_id"] == "boot-1"


def test_a_damaged_state_does_not_stop_the_agent(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    for text in ("", "{", "[]", '{"boot_id": "boot-1"}'):
        (tmp_path / "state/state.json").write_text(text)
        assert build(tmp_path).why_not_ready


@pytest.mark.parametrize("health", [{"disk": {"warn": 1}}, {"kernel_log": {"overrides": {"Xid79": "bad"}}}])
def test_settings_of_checks_that_make_no_sense_are_reported_and_defaults_hold(
    tmp_path: Path, health: dict[str, Any]
) -> None:
    mind = build(tmp_path, health=health)
    (finding,) = mind.findings
    assert (finding.check, finding.code) == ("agent", "SettingsRefused")
    assert "disk" in mind.runner.names


def test_a_missing_configuration_is_one_line_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["run", "--config", str(tmp_path / "none.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2].startswith(f"error: {tmp_path}/none.json: No such file")
    assert lines[-1].startswith("hint: ")


def test_the_gateway_is_read_from_the_routing_table() -> None:
    table = "Iface\tDestination\tGateway \tFlags\neth0\t0000590A\t00000000\t0001\neth0\t00000000\t0100590A\t0003\n"
    host = FakeHost(files={"/proc/net/route": table})
    assert program.default_gateway(host) == "10.89.0.1"  # type: ignore[arg-type]
    assert program.default_gateway(FakeHost()) == ""  # type: ignore[arg-type]
