"""The agent's threads: results come back, threads are used again, one that hangs is left behind."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest

from hyperpod.agent.workers import MOST_IDLE, PATIENCE_S, Workers

WAIT_S = 5.0


class Stage:
    """Workers whose deliveries are taken by hand."""

    def __init__(self) -> None:
        self.delivered: queue.SimpleQueue[tuple[Callable[[], None], bool]] = queue.SimpleQueue()
        self.now = 100.0
        self.workers = Workers(lambda event, urgent: self.delivered.put((event, urgent)), lambda: self.now)
        self.results: list[object] = []

    def start(self, work: Callable[[], object], is_urgent: Callable[[object], bool] = lambda r: True) -> None:
        self.workers.start("test", work, self.results.append, is_urgent)

    def start_patient(self, work: Callable[[], object]) -> None:
        self.workers.start("test", work, self.results.append, is_patient=True)
        self.workers.flush()

    def take(self) -> bool:
        """Run the next delivery and return whether it was urgent."""
        event, is_urgent = self.delivered.get(timeout=WAIT_S)
        event()
        return is_urgent


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_result_and_an_exception_come_back(stage: Stage) -> None:
    stage.start(lambda: 7)
    assert stage.take()
    stage.start(lambda: 1 // 0)
    assert stage.take()
    assert stage.results[0] == 7
    assert isinstance(stage.results[1], ZeroDivisionError)


def test_the_work_says_whether_its_result_is_urgent(stage: Stage) -> None:
    stage.start(lambda: "well", lambda result: result != "well")
    assert not stage.take()
    stage.start(lambda: "ill", lambda result: result != "well")
    assert stage.take()


def test_one_piece_after_the_other_needs_one_thread_or_two(stage: Stage) -> None:
    used = set()
    for _ in range(50):
        stage.start(threading.get_ident)
        stage.take()
        used.add(stage.results[-1])
    # A piece may begin in the moment in which the thread before has delivered and is not idle yet.
    assert len(used) <= MOST_IDLE + 1


def test_a_piece_that_hangs_keeps_nothing_else_from_running(stage: Stage) -> None:
    end = threading.Event()
    stage.start(lambda: end.wait(WAIT_S))
    for number in range(5):
        stage.start(lambda n=number: n)  # type: ignore[misc]
        stage.take()
    assert stage.results == [0, 1, 2, 3, 4]
    end.set()
    stage.take()
    assert stage.results[-1] is True


def test_many_pieces_at_once_leave_few_threads(stage: Stage) -> None:
    together = threading.Barrier(20)

    def work() -> threading.Thread:
        together.wait(WAIT_S)
        return threading.current_thread()

    for _ in range(20):
        stage.start(work)
    for _ in range(20):
        stage.take()
    threads = {result for result in stage.results if isinstance(result, threading.Thread)}
    assert len(threads) == 20
    until = time.monotonic() + WAIT_S
    while sum(thread.is_alive() for thread in threads) > MOST_IDLE and time.monotonic() < until:
        time.sleep(0.01)
    assert sum(thread.is_alive() for thread in threads) == MOST_IDLE


def test_patient_work_is_done_by_one_thread_in_its_order(stage: Stage) -> None:
    for number in range(20):
        stage.start_patient(lambda n=number: (n, threading.get_ident()))  # type: ignore[misc]
    for _ in range(20):
        stage.take()
    assert [result[0] for result in stage.results] == list(range(20))  # type: ignore[index]
    assert len({result[1] for result in stage.results}) == 1  # type: ignore[index]


def test_patient_work_waits_until_the_loop_goes_to_sleep(stage: Stage) -> None:
    for number in range(3):
        stage.workers.start("test", lambda n=number: n, stage.results.append, is_patient=True)  # type: ignore[misc]
    stage.start(lambda: "at once")
    stage.take()
    assert stage.delivered.empty()
    stage.workers.flush()
    for _ in range(3):
        stage.take()
    assert stage.results == ["at once", 0, 1, 2]


def test_patient_work_behind_a_piece_that_hangs_is_done_by_another_thread(stage: Stage) -> None:
    begun, end = threading.Event(), threading.Event()
    stage.start_patient(lambda: (begun.set(), end.wait(WAIT_S))[1])
    stage.start_patient(lambda: "behind")
    assert begun.wait(WAIT_S)
    stage.now += PATIENCE_S / 2
    stage.workers.hurry()
    assert stage.delivered.empty()
    stage.now += PATIENCE_S
    stage.workers.hurry()
    stage.take()
    stage.start_patient(lambda: "later")
    stage.take()
    end.set()
    stage.take()
    assert stage.results == ["behind", "later", True]


def test_a_thread_that_was_given_up_ends_when_its_piece_comes_back(stage: Stage) -> None:
    begun, end = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def hang() -> None:
        threads.append(threading.current_thread())
        begun.set()
        end.wait(WAIT_S)

    stage.start_patient(hang)
    assert begun.wait(WAIT_S)
    stage.now += PATIENCE_S
    stage.workers.hurry()
    end.set()
    stage.take()
    threads[0].join(WAIT_S)
    assert not threads[0].is_alive()


def test_patient_work_keeps_nobody_else_waiting(stage: Stage) -> None:
    end = threading.Event()
    stage.start_patient(lambda: end.wait(WAIT_S))
    stage.start(lambda: "at once")
    stage.take()
    end.set()
    stage.take()
    assert stage.results == ["at once", True]
