"""The screen of a cluster in the making, and the terminal forms of output."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from answers import status
from surroundings import FakeController, FakeMachines, Fakes

from hyperpod.cli import render
from hyperpod.cli.progress import CreationScreen
from hyperpod.errors import ProviderUnavailable
from hyperpod.ports.provider import Birth, BirthStatus, Instance, InstanceStatus


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def machines(tmp_path: Path) -> FakeMachines:
    made = FakeMachines(tmp_path, FakeController())
    made.add("demo", "head-1", "worker-1", status=InstanceStatus.PENDING)
    return made


def ticks() -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += 1.0


def test_each_change_of_a_machine_is_one_line(machines: FakeMachines, capsys: pytest.CaptureFixture[str]) -> None:
    clock = ticks()
    with CreationScreen(machines, "demo", lambda: next(clock)) as screen:
        screen("0 of 2 nodes ready; worker-1: pending", 0.5)
        screen("0 of 2 nodes ready; worker-1: slurm", 0.5)
        head, worker = machines.instances["demo", "head-1"], machines.instances["demo", "worker-1"]
        machines.births[worker.id] = Birth(worker.id, BirthStatus.RUNNING, message="steps/50_slurm.sh")
        machines.births[head.id] = Birth(head.id, BirthStatus.FAILED, script="x.sh", exit_code=3)
        machines.add("demo", "head-1", status=InstanceStatus.FAILED)
        machines.births[machines.instances["demo", "head-1"].id] = machines.births[head.id]
        screen("0 of 2 nodes ready; worker-1: slurm", 0.6)
        del machines.instances["demo", "worker-1"]
    err = capsys.readouterr().err
    assert err.count("0 of 2 nodes ready") == 1
    assert err.count("worker-1 (i-00000000000000002): booting") == 1
    assert "worker-1 (i-00000000000000002): setting up: steps/50_slurm.sh" in err
    assert "failed: x.sh ended with status 3" in err
    assert "worker-1: removed" in err


def test_machines_are_not_looked_at_while_the_image_is_built(machines: FakeMachines) -> None:
    looked: list[str] = []

    class Counting(FakeMachines):
        def observe(self, cluster: str) -> tuple[Instance, ...]:
            looked.append(cluster)
            return ()

    screen = CreationScreen(Counting(machines.home, machines.controller), "demo", lambda: 0.0)
    screen("Debian with Slurm: downloading packages", 0.1)
    assert looked == []


def test_a_provider_that_does_not_answer_harms_only_the_showing(machines: FakeMachines) -> None:
    class Silent(FakeMachines):
        def observe(self, cluster: str) -> tuple[Instance, ...]:
            raise ProviderUnavailable("podman ps did not answer")

    with CreationScreen(Silent(machines.home, machines.controller), "demo", lambda: 0.0) as screen:
        screen("starting 2 machines", 0.5)


def test_on_a_terminal_there_is_one_table_that_changes(machines: FakeMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    log = machines.home / "log"
    log.write_text("hello\n")
    head = machines.instances["demo", "head-1"]
    machines.births[head.id] = Birth(head.id, BirthStatus.RUNNING, log_path=str(log))
    clock = ticks()
    with CreationScreen(machines, "demo", lambda: next(clock), follow=True) as screen:
        screen("starting 2 machines", 0.5)
    text = terminal.getvalue()
    assert "starting 2 machines" in text
    assert "booting" in text
    assert "[head-1] hello" in text


def test_on_a_terminal_states_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    render.print_result(*render.status_screen(status()))
    assert "\x1b[" in terminal.getvalue()


def test_watching_on_a_terminal_outlives_the_controller(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.machines.add("demo", "head-1")
    fakes.controller.answers["status"] = ProviderUnavailable("the controller has just started", hint="ask again")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    from hyperpod.cli.app import main

    assert main(["status", "--watch", "--interval", "60"], fakes.place) == 130
    assert "no answer now: the controller has just started" in terminal.getvalue()
