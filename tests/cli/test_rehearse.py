"""The command that rehearses faults: plans that cannot be carried out, interrupts, and what a killed one has left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from surroundings import Fakes

from hyperpod.adapters.local.diary import Diary, Trace, Traces
from hyperpod.cli.rehearse import read_plan
from hyperpod.errors import HyperpodError, InvalidState

PLANS = sorted((Path(__file__).parents[2] / "configs" / "rehearsals").glob("*.yaml"))
QUIET = "{Fault: %s, After: 0, Settle: 1, Expect: {Verdict: none, Action: None}}"


class FakeFaults:
    """Remembers what was broken and mended; ``on`` may fail or end the program at a fault."""

    def __init__(self) -> None:
        self.broken: list[tuple[str, str, str]] = []
        self.done: list[tuple[str, ...]] = []
        self.on: Callable[[str], None] = lambda fault: None

    def inject(self, cluster: str, node: str, fault: str, argument: str = "") -> str:
        self.on(fault)
        self.done.append(("inject", node, fault, argument))
        self.broken.append((node, fault, argument))
        return f"{node}: broken"

    def undo(self, cluster: str, node: str, fault: str, argument: str = "") -> None:
        self.done.append(("undo", node, fault, argument))
        if (node, fault, argument) in self.broken:
            self.broken.remove((node, fault, argument))


@pytest.fixture
def faults(fakes: Fakes) -> FakeFaults:
    fakes.machines.add("demo", "head-1", "worker-1", "worker-2")
    made = FakeFaults()
    fakes.place.make_faults = lambda provider: cast(Any, made)
    fakes.place.sleep = lambda seconds: setattr(fakes.place, "clock", _later(fakes.place.clock(), seconds))
    node = {"state": "in use", "group": "worker", "findings": [], "jobs": [7]}
    fakes.controller.answers["nodes"] = [
        {**node, "node": name, "instance_id": f"i-{name}"} for name in ("worker-1", "worker-2")
    ]
    begun = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    fakes.controller.answers["job"] = {"attempts": [{"number": 1, "cause": None, "first_task_at": begun}]}
    fakes.machines.head_answers = {"sbatch": "7\n", "find": "step_5\n", "cat": "1 5\n"}
    return made


def _later(now: float, seconds: float) -> Callable[[], float]:
    return lambda: now + seconds


def plan_file(folder: Path, *faults: str, prepare: str = "[]") -> str:
    path = folder / "plan.yaml"
    path.write_text(f"Name: short\nLimit: 20\nPrepare: {prepare}\nFaults:\n" + "".join(f"  - {f}\n" for f in faults))
    return str(path)


def diary(fakes: Fakes) -> Diary:
    return Diary(fakes.machines.cluster("demo").path)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_plan_that_we_ship_could_be_carried_out(path: Path, fakes: Fakes) -> None:
    assert read_plan(path).faults
    assert fakes.run("rehearse", str(path), "--dry-run").code == 0


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("{Fault: earthquake}", "Faults[1]: unknown fault 'earthquake'"),
        ("{Fault: kernel-line}", "Faults[1]: kernel-line needs TEXT"),
        ("{Fault: cpu-hog, Argument: none}", "Faults[1]: a number of processors is needed"),
        ("{Fault: power-off, Argument: now}", "Faults[1]: power-off takes no argument"),
        ("{Fault: kill-task, For: 5}", "Faults[1]: kill-task cannot be undone"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_breaks_nothing(
    fakes: Fakes, faults: FakeFaults, tmp_path: Path, fault: str, complaint: str
) -> None:
    result = fakes.run("rehearse", plan_file(tmp_path, QUIET % "freeze", fault))
    assert result.code == 2
    assert complaint in result.err
    assert faults.done == []


def test_a_dry_run_shows_the_plan_and_breaks_nothing(fakes: Fakes, faults: FakeFaults, tmp_path: Path) -> None:
    plan = plan_file(tmp_path, QUIET % "freeze", prepare="[{Fault: gpus, Argument: 4}]")
    result = fakes.run("rehearse", plan, "--dry-run", "--output", "json")
    assert result.json["prepare"] == [{"fault": "gpus", "argument": "4"}]
    assert [row["fault"] for row in result.json["faults"]] == ["freeze"]
    assert "every worker gets gpus 4" in fakes.run("rehearse", plan, "--dry-run").out
    assert faults.done == []


def test_a_report_that_could_not_be_written_is_refused_at_the_beginning(
    fakes: Fakes, faults: FakeFaults, tmp_path: Path
) -> None:
    result = fakes.run("rehearse", plan_file(tmp_path, QUIET % "freeze"), "--junit", str(tmp_path / "no" / "x.xml"))
    assert (result.code, faults.done) == (2, [])


def test_what_a_plan_prepares_is_done_to_every_worker_and_undone(
    fakes: Fakes, faults: FakeFaults, tmp_path: Path
) -> None:
    plan = plan_file(tmp_path, QUIET % "freeze", prepare="[{Fault: gpus, Argument: 4}]")
    assert fakes.run("rehearse", plan).code == 0
    assert [call[:3] for call in faults.done[:2]] == [("inject", "worker-1", "gpus"), ("inject", "worker-2", "gpus")]
    assert faults.broken == []
    assert not diary(fakes).traces


def test_a_rehearsal_that_cannot_go_on_reports_what_it_has(fakes: Fakes, faults: FakeFaults, tmp_path: Path) -> None:
    def fail(fault: str) -> None:
        if fault == "network-cut":
            raise InvalidState("break worker-1", "exited already")

    faults.on = fail
    junit = tmp_path / "report.xml"
    plan = plan_file(tmp_path, *(QUIET % fault for fault in ("freeze", "network-cut", "power-off")))
    result = fakes.run("rehearse", plan, "--junit", str(junit), "--output", "json")
    assert result.code == 1
    assert [(f["fault"], f["was_tried"], f["passed"]) for f in result.json["faults"]] == [
        ("freeze", True, True),
        ("network-cut", False, False),
        ("power-off", False, False),
    ]
    assert "exited already" in result.json["faults"][1]["problems"][0]
    suite = ElementTree.fromstring(junit.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "0", "2")
    assert faults.broken == []


def test_an_interrupt_undoes_everything(fakes: Fakes, faults: FakeFaults, tmp_path: Path) -> None:
    def interrupt(fault: str) -> None:
        if fault == "freeze":
            raise KeyboardInterrupt

    faults.on = interrupt
    plan = plan_file(tmp_path, QUIET % "freeze", prepare="[{Fault: gpus, Argument: 4}]")
    assert fakes.run("rehearse", plan).code == 130
    assert faults.broken == []
    assert ("undo", "worker-1", "freeze", "") in faults.done or ("undo", "worker-2", "freeze", "") in faults.done


@pytest.mark.parametrize("way", [("--undo",), ("PLAN",)])
def test_what_a_killed_rehearsal_has_left_is_undone(
    fakes: Fakes, faults: FakeFaults, tmp_path: Path, way: tuple[str, ...]
) -> None:
    left = diary(fakes)
    with left.opened():
        left.note_fault(Trace("worker-2", "disk-full", "/tmp"))
        left.note_job(6, "/fsx/rehearsal-1")
    words = [plan_file(tmp_path, QUIET % "freeze") if word == "PLAN" else word for word in way]
    assert fakes.run("rehearse", *words).code == 0
    assert faults.done[0] == ("undo", "worker-2", "disk-full", "/tmp")
    again = fakes.run("rehearse", "--undo")
    assert (again.code, again.out) == (0, "no rehearsal has left anything\n")


def test_two_rehearsals_of_one_cluster_exclude_each_other(fakes: Fakes, faults: FakeFaults, tmp_path: Path) -> None:
    with diary(fakes).opened():
        result = fakes.run("rehearse", plan_file(tmp_path, QUIET % "freeze"))
    assert (result.code, faults.done) == (4, [])


def test_what_cannot_be_undone_stays_in_the_diary(fakes: Fakes, faults: FakeFaults) -> None:
    def refuse(*words: str) -> None:
        raise InvalidState("undo it", "frozen")

    faults.undo = refuse  # type: ignore[method-assign,assignment]
    left = diary(fakes)
    with left.opened():
        left.note_fault(Trace("worker-2", "disk-full", "/tmp"))
    assert fakes.run("rehearse", "--undo").code == 4
    with left.opened():
        assert left.traces.faults == [Trace("worker-2", "disk-full", "/tmp")]


@pytest.mark.parametrize("way", [("--undo",), ("PLAN",)])
def test_what_a_killed_injection_has_left_is_undone_by_a_rehearsal(
    fakes: Fakes, faults: FakeFaults, tmp_path: Path, way: tuple[str, ...]
) -> None:
    injected = Diary(fakes.machines.cluster("demo").path, "injected")
    with injected.opened():
        injected.note_fault(Trace("worker-2", "freeze", "", until=fakes.place.clock() - 60))
    words = [plan_file(tmp_path, QUIET % "freeze") if word == "PLAN" else word for word in way]
    result = fakes.run("rehearse", *words)
    assert result.code == 0, result.err
    assert faults.done[0] == ("undo", "worker-2", "freeze", "")
    assert "undone now: freeze on worker-2" in result.err
    assert injected.is_empty


def test_a_diary_of_an_older_version_is_understood(tmp_path: Path) -> None:
    (tmp_path / "rehearsal.json").write_text('{"faults": [["worker-1", "freeze", ""]], "job": 3, "folder": "/fsx/x"}')
    book = Diary(tmp_path)
    with book.opened():
        assert book.traces == Traces([Trace("worker-1", "freeze", "")], 3, "/fsx/x")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"faults": [["a"]]}', '{"faults": 1, "job": 0, "folder": ""}'])
def test_a_damaged_diary_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "rehearsal.json").write_text(text)
    book = Diary(tmp_path)
    with book.opened():
        assert book.traces == Traces()


def test_a_diary_without_a_cluster_is_told(tmp_path: Path) -> None:
    with pytest.raises(HyperpodError), Diary(tmp_path / "gone").opened():
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_like_ctrl_c(number: int) -> None:
    program = (
        "import os, signal\nfrom hyperpod.cli.options import ended_like_ctrl_c\n"
        # A suite that was started under nohup hands on that it ignores the signal.
        f"signal.signal({number}, signal.SIG_DFL)\n"
        f"try:\n    with ended_like_ctrl_c():\n        os.kill(os.getpid(), {number})\n        signal.pause()\n"
        "except KeyboardInterrupt:\n    print('undone')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, env=env)
    assert (done.returncode, done.stdout) == (0, "undone\n")


def test_the_diary_is_on_disk_before_anything_is_broken(fakes: Fakes, faults: FakeFaults, tmp_path: Path) -> None:
    seen: list[Any] = []
    path = fakes.machines.cluster("demo").path / "rehearsal.json"
    faults.on = lambda fault: seen.append(json.loads(path.read_text())["faults"][-1][1])
    assert fakes.run("rehearse", plan_file(tmp_path, QUIET % "freeze")).code == 0
    assert seen == ["freeze"]
    assert not path.exists()
