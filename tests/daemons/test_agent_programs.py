from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from hyperpod.agent.programs import Programs


@pytest.fixture
def process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)


def test_a_running_program_is_killed_with_its_group(process: subprocess.Popen[bytes]) -> None:
    programs = Programs()
    programs.ordered("a")
    assert programs.may_start("a")
    programs.started("a", process.pid)
    programs.stop_all()
    assert process.wait(10) == -signal.SIGKILL
    assert programs.ended("a")


def test_a_program_stopped_before_its_start_does_not_start() -> None:
    programs = Programs()
    programs.ordered("a")
    programs.stop_all()
    assert not programs.may_start("a")
    programs.ordered("a")
    assert programs.may_start("a")


def test_a_program_stopped_while_it_starts_is_killed(process: subprocess.Popen[bytes]) -> None:
    programs = Programs()
    programs.ordered("a")
    assert programs.may_start("a")
    programs.stop_all()
    programs.started("a", process.pid)
    assert process.wait(10) == -signal.SIGKILL


def test_one_that_ended_by_itself_was_not_stopped() -> None:
    programs = Programs()
    programs.ordered("a")
    programs.started("a", 2**22 + 1)
    assert not programs.ended("a")
    programs.stop_all()
