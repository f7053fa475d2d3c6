"""Programs that print a line a period: started again with pauses, never waited for."""

from __future__ import annotations

import time

from hyperpod.adapters.process import Processes
from hyperpod.adapters.stream import KEPT_LINES, LONGEST_LINE, LONGEST_PAUSE_S, Program, ProgramStreams
from tests.fakes.clock import FakeClock
from tests.fakes.process import FakeChild, FakeProcesses


def program(*children: FakeChild) -> tuple[Program, FakeProcesses, FakeClock, list[float]]:
    processes, clock, pauses = FakeProcesses(), FakeClock(), []
    processes.children = list(children)
    return Program(("monitor", "-c", "x"), processes, clock.monotonic, pauses.append), processes, clock, pauses


def test_lines_are_taken_once_whatever_pieces_they_come_in() -> None:
    running, _, clock, _ = program(FakeChild(b'{"a":', b" 1}\n{", b'"b": 2}\n\nrest'))
    running.run_once()
    clock.advance(7)
    told = running.take()
    assert told.lines == ('{"a": 1}', '{"b": 2}')
    assert told.age_s == 7
    assert told.problem == "it ended with status 0"
    assert running.take().lines == ()


def test_only_the_newest_lines_are_kept_and_the_others_counted() -> None:
    running, _, _, _ = program(FakeChild(b"".join(b"%d\n" % n for n in range(KEPT_LINES + 5))))
    running.run_once()
    told = running.take()
    assert told.lines[0] == "5"
    assert told.lost == 5


def test_output_without_line_ends_does_not_fill_the_memory() -> None:
    running, _, _, _ = program(FakeChild(*[b"x" * (LONGEST_LINE // 2 + 1)] * 5, b"\nwhole\n"))
    running.run_once()
    told = running.take()
    assert told.lines[-1] == "whole"
    assert told.lost == 2


def test_a_program_that_ends_at_once_is_started_less_and_less_often() -> None:
    running, processes, _, _ = program(*[FakeChild() for _ in range(20)])
    waits = []
    for _ in range(20):
        running.run_once()
        waits.append(running.wait_s)
    assert waits[:4] == [2, 4, 8, 16]
    assert waits[-1] == LONGEST_PAUSE_S
    assert all(child.is_killed for child in processes.started)


def test_a_program_that_is_not_there_is_a_problem_and_no_error() -> None:
    running, _, _, _ = program()
    running.run_once()
    told = running.take()
    assert told.age_s is None
    assert "cannot be started" in told.problem


def test_a_real_program_is_started_when_it_is_asked_for_and_read_without_waiting() -> None:
    streams = ProgramStreams(Processes())
    argv = ("/bin/sh", "-c", "echo one; echo two; read forever")
    first = streams.read(argv)
    assert first.problem == ""
    lines = list(first.lines)
    deadline = time.monotonic() + 5
    while len(lines) < 2 and time.monotonic() < deadline:
        lines += streams.read(argv).lines
    assert lines == ["one", "two"]
