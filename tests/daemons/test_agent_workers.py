"""The agent's threads: results come back, threads are used again, one that hangs is left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from hyperpod.agent.workers import MOST_IDLE, Workers

WAIT_S = 5.0


class Stage:
    """Workers whose deliveries are taken by hand."""

    def __init__(self) -> None:
        self.delivered: queue.SimpleQueue[tuple[Callable[[], None], bool]] = queue.SimpleQueue()
        self.workers = Workers(lambda event, urgent: self.delivered.put((event, urgent)))
        self.results: list[object] = []

    def start(self, work: Callable[[], object], is_urgent: Callable[[object], bool] = lambda r: True) -> None:
        self.workers.start("test", work, self.results.append, is_urgent)

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
    end = threading.Barrier(21)
    for _ in range(20):
        stage.start(lambda: end.wait(WAIT_S))
    end.wait(WAIT_S)
    for _ in range(20):
        stage.take()
    for thread in [t for t in threading.enumerate() if t.name == "test"][MOST_IDLE + 20 :]:
        thread.join(WAIT_S)
    assert len(stage.results) == 20
