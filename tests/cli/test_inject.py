"""The command that breaks nodes on purpose."""

from __future__ import annotations

from typing import Any, cast

import pytest
from surroundings import Fakes

from hyperpod.adapters.local.fault_kinds import FAULTS


class FakeFaults:
    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []

    def inject(self, *what: str) -> str:
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
