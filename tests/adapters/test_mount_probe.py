"""The helpers that try writes on mounts: one for each mount, asked again and again, replaced when they hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyperpod.adapters.mount_probe import MountProbe, new_name
from hyperpod.adapters.process import Processes
from hyperpod.errors import CommandError, CommandTimeout
from tests.fakes.clock import FakeClock
from tests.fakes.process import FakeChild, FakeProcesses


def probe(*children: FakeChild) -> tuple[MountProbe, FakeProcesses, FakeClock]:
    processes, clock = FakeProcesses(), FakeClock()
    processes.children = list(children)

    def pause(seconds: float) -> None:
        clock.advance(seconds)

    return MountProbe(processes, monotonic=clock.monotonic, pause=pause), processes, clock


def test_one_helper_serves_all_tries_of_a_mount() -> None:
    tries, processes, _ = probe(FakeChild(b"ok\n", b"ok", b"\n"), FakeChild(b"ok\n"))
    tries.try_write("/fsx/", "a", "one", 5.0)
    tries.try_write("/fsx/", "b", "two\twith\nends", 5.0)
    tries.try_write("/home", "c", "three", 5.0)
    assert [child.written for child in processes.started] == [
        [b"/fsx/a\tone\n", b"/fsx/b\ttwo with ends\n"],
        [b"/home/c\tthree\n"],
    ]


def test_a_helper_that_hangs_is_replaced_and_its_file_is_removed_by_the_next() -> None:
    tries, processes, _ = probe(FakeChild(None), FakeChild(b"Input/output error\n", b"ok\n", b"ok\n"))
    with pytest.raises(CommandTimeout):
        tries.try_write("/fsx", "a", "one", 5.0)
    assert processes.started[0].is_killed
    with pytest.raises(CommandError, match="Input/output error"):
        tries.try_write("/fsx", "b", "two", 5.0)
    tries.try_write("/fsx", "c", "three", 5.0)
    tries.try_write("/fsx", "d", "four", 5.0)
    assert processes.started[1].written == [
        b"/fsx/b\ttwo\t/fsx/a\n",
        b"/fsx/c\tthree\t/fsx/a\n",
        b"/fsx/d\tfour\n",
    ]


def test_a_dead_mount_holds_one_helper_however_often_it_is_tried() -> None:
    held = FakeChild(None, dies=False)
    tries, processes, clock = probe(held, FakeChild(b"ok\n"))
    for _ in range(5):
        with pytest.raises(CommandTimeout):
            tries.try_write("/fsx", "a", "one", 5.0)
        clock.advance(20)
    assert processes.started == [held]
    held.status = -9
    tries.try_write("/fsx", "b", "two", 5.0)
    assert len(processes.started) == 2


def test_a_helper_that_has_ended_is_an_error_once() -> None:
    tries, processes, _ = probe(FakeChild(b""), FakeChild(b"ok\n"))
    with pytest.raises(CommandError, match="has ended"):
        tries.try_write("/fsx", "a", "one", 5.0)
    tries.try_write("/fsx", "b", "two", 5.0)
    assert len(processes.started) == 2


def test_a_real_helper_writes_reads_and_removes_and_never_through_a_link(tmp_path: Path) -> None:
    tries = MountProbe(Processes())
    tries.try_write(str(tmp_path), new_name("worker 1/"), "token", 5.0)
    assert list(tmp_path.iterdir()) == []
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.symlink(victim, tmp_path / "trap")
    with pytest.raises(CommandError, match="File exists"):
        tries.try_write(str(tmp_path), "trap", "token", 5.0)
    assert victim.read_text() == "precious"
    assert (tmp_path / "trap").is_symlink()
    with pytest.raises(CommandError, match="No such file"):
        tries.try_write(str(tmp_path / "gone"), "a", "token", 5.0)


def test_names_of_probes_tell_whose_they_are_and_cannot_be_guessed() -> None:
    assert new_name("worker-1/..").startswith(".hyperpod-probe.worker-1_...")
    assert new_name("worker-1") != new_name("worker-1")
