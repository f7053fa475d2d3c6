"""The command that breaks nodes on purpose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest
from surroundings import Fakes

from hyperpod.adapters.local.diary import Diary, Trace
from hyperpod.adapters.local.fault_kinds import FAULTS
from hyperpod.cli.leftovers import GRACE_S
from hyperpod.errors import InvalidState


class FakeFaults:
    """Remembers what it was asked; ``on`` is called at every fault, and may end the program there."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []
        self.on: Callable[[], None] = lambda: None

    def inject(self, *what: str) -> str:
        self.on()
        self.done.append(("inject", *what))
        return "broken"

    def undo(self, *what: str) -> None:
        self.done.append(("undo", *what))


@pytest.fixture
def faults(fakes: Fakes) -> FakeFaults:
    fakes.machines.add("demo", "head-1", "worker-1")
    made = FakeFaults()
    fakes.place.make_faults = lambda provider: cast(Any, made)
    return made


def test_a_fault_is_injected_and_stays(fakes: Fakes, faults: FakeFaults) -> None:
    result = fakes.run("inject", "kernel-line", "worker-1", "NVRM: Xid 79")
    assert (result.code, result.out) == (0, "broken\n")
    assert faults.done == [("inject", "demo", "worker-1", "kernel-line", "NVRM: Xid 79")]


def test_a_fault_for_a_time_is_undone_after_it(fakes: Fakes, faults: FakeFaults) -> None:
    assert fakes.run("inject", "freeze", "worker-1", "--for", "1m").code == 0
    assert faults.done == [("inject", "demo", "worker-1", "freeze", ""), ("undo", "demo", "worker-1", "freeze", "")]
    assert fakes.place.clock() == 1060


def test_an_interrupt_undoes_a_fault_for_a_time(fakes: Fakes, faults: FakeFaults) -> None:
    assert fakes.run("inject", "freeze", "worker-1", "--for", "1h").code == 130
    assert faults.done[-1] == ("undo", "demo", "worker-1", "freeze", "")


def test_a_file_of_the_device_tree_and_its_value_may_be_options(fakes: Fakes, faults: FakeFaults) -> None:
    path = "class/net/eth0/carrier"
    assert fakes.run("inject", "sysfs", "worker-1", "--path", path, "--value", "0").code == 0
    assert fakes.run("inject", "sysfs", "worker-1", "--path", path, "--undo").code == 0
    assert faults.done == [
        ("inject", "demo", "worker-1", "sysfs", f"{path}=0"),
        ("undo", "demo", "worker-1", "sysfs", path),
    ]


def test_undo_takes_a_fault_back(fakes: Fakes, faults: FakeFaults) -> None:
    assert fakes.run("inject", "read-only", "worker-1", "/scratch", "--undo").code == 0
    assert faults.done == [("undo", "demo", "worker-1", "read-only", "/scratch")]


# --- what a killed --for leaves -----------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing can be done any more, as after kill -9."""


def injected(fakes: Fakes) -> Diary:
    return Diary(fakes.machines.cluster("demo").path, "injected")


def left_behind(fakes: Fakes, *traces: Trace) -> Diary:
    """Leave the diary as commands leave it that are killed while they wait."""
    diary = injected(fakes)
    with diary.opened():
        for trace in traces:
            diary.note_fault(trace)
    return diary


@pytest.mark.parametrize(
    "again", [("freeze", "worker-1", "--undo"), ("kill-agent", "worker-1"), ("freeze", "worker-1", "--for", "5s")]
)
def test_what_a_killed_for_has_left_is_undone_by_the_next_call(
    fakes: Fakes, faults: FakeFaults, again: tuple[str, ...]
) -> None:
    left_behind(fakes, Trace("worker-2", "disk-full", "/tmp", until=fakes.place.clock() - GRACE_S - 1))
    result = fakes.run("inject", *again)
    assert result.code == 0, result.err
    assert faults.done[0] == ("undo", "demo", "worker-2", "disk-full", "/tmp")
    (line,) = [line for line in result.err.splitlines() if "earlier inject" in line]
    assert line == "an earlier inject --for was ended before its time was over; undone now: disk-full on worker-2"
    assert injected(fakes).is_empty


@pytest.mark.parametrize("ago_s", [-60.0, 0.0, GRACE_S])
def test_one_whose_time_is_not_over_is_left_to_its_own_command(fakes: Fakes, faults: FakeFaults, ago_s: float) -> None:
    left_behind(fakes, Trace("worker-2", "freeze", "", until=fakes.place.clock() - ago_s))
    assert fakes.run("inject", "kill-agent", "worker-1").code == 0
    assert [what[0] for what in faults.done] == ["inject"]
    assert not injected(fakes).is_empty


def test_it_is_written_down_before_anything_is_broken_and_with_its_time(fakes: Fakes, faults: FakeFaults) -> None:
    seen: list[Trace] = []

    def look() -> None:
        diary = injected(fakes)
        with diary.opened():
            seen.extend(diary.traces.faults)

    faults.on = look
    assert fakes.run("inject", "freeze", "worker-1", "--for", "1m").code == 0
    assert seen == [Trace("worker-1", "freeze", "", until=1060.0)]
    assert injected(fakes).is_empty


def test_a_kill_in_the_middle_leaves_it_written_down(fakes: Fakes, faults: FakeFaults) -> None:
    def die() -> None:
        raise Killed

    faults.on = die
    with contextlib.suppress(Killed):
        fakes.run("inject", "freeze", "worker-1", "--for", "1m")
    with (diary := injected(fakes)).opened():
        assert diary.traces.faults == [Trace("worker-1", "freeze", "", until=1060.0)]


def test_nothing_stays_written_down_after_an_interrupt_or_a_refusal(fakes: Fakes, faults: FakeFaults) -> None:
    assert fakes.run("inject", "freeze", "worker-1", "--for", "1h").code == 130
    assert injected(fakes).is_empty

    def refuse() -> None:
        raise InvalidState("break worker-1", "exited already")

    faults.on = refuse
    assert fakes.run("inject", "freeze", "worker-1", "--for", "1m").code == 4
    assert injected(fakes).is_empty


def test_what_a_person_takes_back_needs_no_second_time(fakes: Fakes, faults: FakeFaults) -> None:
    later = fakes.place.clock() + 60
    left_behind(
        fakes,
        Trace("worker-1", "sysfs", "class/net/eth0/carrier=0", later),
        Trace("worker-1", "sysfs", "class/net/eth1/carrier=0", later),
        Trace("worker-2", "sysfs", "class/net/eth0/carrier=0", later),
    )
    assert fakes.run("inject", "sysfs", "worker-1", "--path", "class/net/eth0/carrier", "--undo").code == 0
    with (diary := injected(fakes)).opened():
        assert [(t.node, t.argument[:14]) for t in diary.traces.faults] == [
            ("worker-1", "class/net/eth1"),
            ("worker-2", "class/net/eth0"),
        ]


def test_what_cannot_be_undone_now_is_tried_again_by_the_next_call(fakes: Fakes, faults: FakeFaults) -> None:
    left_behind(fakes, Trace("worker-2", "freeze", "", until=fakes.place.clock() - 60))
    undo = faults.undo

    def refuse(*_: str) -> None:
        raise InvalidState("undo it", "not now")

    faults.undo = refuse  # type: ignore[method-assign]
    first = fakes.run("inject", "kill-agent", "worker-1")
    assert first.code == 0
    assert "worker-2: freeze could not be undone" in first.err
    faults.undo = undo  # type: ignore[method-assign]
    assert "undone now: freeze on worker-2" in fakes.run("inject", "kill-agent", "worker-1").err


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "FAULT and NODE are needed"),
        (["earthquake", "worker-1"], "unknown fault 'earthquake'; known are power-off"),
        (["sysfs", "worker-1", "--path", "class/net"], "belong together"),
        (["freeze", "worker-1", "--path", "x", "--value", "1"], "are for sysfs"),
        (["freeze", "worker-1", "--for", "soon"], "--for soon: must be a duration"),
        (["freeze", "worker-1", "--for", "5s", "--undo"], "exclude each other"),
        (["kill-task", "worker-1", "--for", "5s"], "kill-task cannot be undone"),
        (["freeze", "Worker"], "is not a node name"),
    ],
)
def test_mistakes_break_nothing(fakes: Fakes, faults: FakeFaults, argv: list[str], complaint: str) -> None:
    result = fakes.run("inject", *argv)
    assert result.code == 2
    assert complaint in result.err
    assert faults.done == []


def test_the_faults_are_listed(fakes: Fakes) -> None:
    rows = fakes.run("inject", "--list", "-o", "json").json
    assert [row["fault"] for row in rows] == list(FAULTS)
    assert "network-cut" in fakes.run("inject", "--list").out
