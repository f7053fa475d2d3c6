"""The runner: rhythm, deadlines, damping, hanging checks; time is passed in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.finding import Action, Finding, Severity, is_announced
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, fatal, unknown, warn
from hyperpod.health.runner import Runner

START = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass
class Probe:
    """A check that is never run: the runner only reads its settings."""

    name: str = "probe"
    interval_s: float = 10.0
    deadline_s: float = 2.0
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        raise NotImplementedError


@dataclass
class Keeper(Probe):
    """A check that keeps what it has found until a person ends it."""

    kept: tuple[tuple[str, str], ...] = (("Hard", ""),)

    def clear(self, code: str, device: str) -> bool:
        was_kept = (code, device) in self.kept
        self.kept = tuple(key for key in self.kept if key != (code, device))
        return was_kept


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def drive(runner: Runner, results: list[Result | BaseException], first: float = 0.0, step: float = 10.0) -> float:
    """Give one result a run and return the time after them."""
    now = first
    for result in results:
        ((check, run_id),) = runner.due(now)
        runner.finished(check.name, run_id, result, now, at(now))
        now += step
    return now


BAD = fatal("probe", "Bad", "it is bad", action=Action.REBOOT)
HARD = fatal("probe", "Hard", "it is broken", is_hard=True)
OK = Result()


def ill(*findings: Finding) -> Result:
    return Result(findings)


def codes(runner: Runner) -> list[str]:
    return [f.code for f in runner.findings()]


def test_a_soft_finding_opens_on_its_second_sight() -> None:
    runner = Runner([Probe()])
    now = drive(runner, [ill(BAD)])
    assert codes(runner) == []
    drive(runner, [ill(BAD)], now)
    assert codes(runner) == ["Bad"]


def test_a_soft_finding_seen_twice_of_three_opens() -> None:
    runner = Runner([Probe()])
    drive(runner, [ill(BAD), OK, ill(BAD)])
    assert codes(runner) == ["Bad"]


def test_a_soft_finding_seen_twice_of_four_does_not_open() -> None:
    runner = Runner([Probe()])
    drive(runner, [ill(BAD), OK, OK, ill(BAD)])
    assert codes(runner) == []


def test_a_hard_finding_opens_at_once() -> None:
    runner = Runner([Probe()])
    drive(runner, [ill(HARD)])
    assert codes(runner) == ["Hard"]


def test_a_finding_closes_after_two_runs_without_it() -> None:
    runner = Runner([Probe()])
    now = drive(runner, [ill(HARD), OK])
    assert codes(runner) == ["Hard"]
    drive(runner, [OK], now)
    assert codes(runner) == []


def test_a_run_that_could_not_tell_does_not_close_a_finding() -> None:
    runner = Runner([Probe()])
    blind = ill(unknown("probe", "Blind", "cannot tell"))
    drive(runner, [ill(HARD), blind, blind, blind])
    assert codes(runner) == ["Hard", "Blind"]


def test_being_blind_for_one_device_does_not_keep_the_findings_of_another() -> None:
    runner = Runner([Probe()])
    other = fatal("probe", "Hard", "it is broken", is_hard=True, device="a")
    blind = ill(unknown("probe", "Blind", "cannot tell", device="b"))
    drive(runner, [ill(other), blind, blind])
    assert codes(runner) == ["Blind"]
    runner = Runner([Probe()])
    blind = ill(unknown("probe", "Blind", "cannot tell", device="a"))
    drive(runner, [ill(other), blind, blind])
    assert codes(runner) == ["Hard", "Blind"]


def test_unknown_is_shown_at_once_and_goes_at_once() -> None:
    runner = Runner([Probe()])
    now = drive(runner, [ill(unknown("probe", "Blind", "cannot tell"))])
    assert codes(runner) == ["Blind"]
    drive(runner, [OK], now)
    assert codes(runner) == []


def test_an_exception_of_a_check_is_unknown() -> None:
    runner = Runner([Probe()])
    drive(runner, [ValueError("odd text")])
    (finding,) = runner.findings()
    assert (finding.code, finding.severity) == ("CheckFailed", Severity.UNKNOWN)
    assert "odd text" in finding.message


def test_a_finding_keeps_its_first_time_and_carries_machine_and_boot() -> None:
    runner = Runner([Probe()], boot_id="b", instance_id="i-1")
    drive(runner, [ill(HARD), ill(HARD), ill(HARD)])
    (finding,) = runner.findings()
    assert (finding.since, finding.boot_id, finding.instance_id) == (START, "b", "i-1")


def test_a_run_past_its_deadline_is_a_finding_and_is_not_started_again() -> None:
    runner = Runner([Probe()])
    runner.due(0.0)
    assert not runner.tick(1.9, at(1.9))
    assert runner.tick(2.1, at(2.1))
    (finding,) = runner.findings()
    assert (finding.code, finding.severity) == ("CheckHangs", Severity.UNKNOWN)
    assert runner.due(100.0) == ()
    assert not runner.tick(100.0, at(100.0))


def test_a_hanging_check_does_not_hold_up_others() -> None:
    runner = Runner([Probe("a"), Probe("b", is_basic=True)])
    runner.due(20.0)
    runner.tick(30.0, at(30.0))
    runner.finished("b", 1, OK, 30.0, at(30.0))
    assert [check.name for check, _ in runner.due(40.0)] == ["b"]


def test_a_hanging_check_that_comes_back_ends_the_finding() -> None:
    runner = Runner([Probe()])
    ((_, run_id),) = runner.due(0.0)
    runner.tick(5.0, at(5.0))
    assert runner.finished("probe", run_id, OK, 60.0, at(60.0))
    assert codes(runner) == []
    assert len(runner.due(62.0)) == 1


def test_a_late_result_of_a_run_given_up_is_ignored() -> None:
    runner = Runner([Probe()])
    ((_, run_id),) = runner.due(0.0)
    runner.finished("probe", run_id, OK, 0.1, at(0.1))
    assert not runner.finished("probe", run_id, ill(HARD), 0.2, at(0.2))
    assert codes(runner) == []


def test_observe_only_says_what_it_would_have_asked_for() -> None:
    runner = Runner([Probe()], observe_only=["probe"])
    drive(runner, [ill(BAD), ill(BAD)])
    (finding,) = runner.findings()
    assert (finding.severity, finding.action, finding.would) == (Severity.WARN, Action.NONE, Action.REBOOT)
    assert "would have drained the node and asked for Reboot" in finding.message


def test_an_announced_end_keeps_no_work_away_where_it_is_only_observed() -> None:
    announced = replace(BAD, severity=Severity.WARN, action=Action.REPLACE, deadline=at(3600.0))
    for runner, is_kept_away in (
        (Runner([Probe()]), True),
        (Runner([Probe()], observe_only=["probe"]), False),
        (Runner([Probe()], overrides={"probe": {"Bad": Severity.WARN}}), False),
    ):
        drive(runner, [ill(announced), ill(announced)])
        (finding,) = runner.findings()
        assert is_announced(finding) == is_kept_away
        assert finding.severity is Severity.WARN


def test_what_damping_still_holds_back_is_observed_too() -> None:
    runner = Runner([Probe()], observe_only=["probe"])
    drive(runner, [ill(BAD)])
    assert [f.severity for f in runner.suspicions(["probe"])] == [Severity.WARN]


@pytest.mark.parametrize(
    ("word", "action"), [(Severity.WARN, Action.NONE), (Severity.OK, Action.NONE), (Severity.FATAL, Action.REBOOT)]
)
def test_a_site_gives_a_code_another_severity(word: Severity, action: Action) -> None:
    runner = Runner([Probe()], overrides={"probe": {"Bad": word}})
    drive(runner, [ill(BAD), ill(BAD)])
    (finding,) = runner.findings()
    assert (finding.severity, finding.action) == (word, action)


def test_a_warning_made_fatal_drains() -> None:
    runner = Runner([Probe()], overrides={"probe": {"Odd": Severity.FATAL}})
    drive(runner, [ill(warn("probe", "Odd", "odd"))] * 2)
    assert [f.action for f in runner.findings()] == [Action.DRAIN]


def test_not_being_able_to_look_is_never_made_fatal() -> None:
    runner = Runner([Probe()], overrides={"probe": {"Blind": Severity.FATAL}})
    drive(runner, [ill(unknown("probe", "Blind", "cannot tell"))] * 3)
    assert [f.severity for f in runner.findings()] == [Severity.UNKNOWN]


def test_a_node_is_ready_when_every_basic_check_has_passed_once() -> None:
    runner = Runner([Probe("a", is_basic=True), Probe("b", is_basic=True), Probe("c")])
    assert runner.why_not_ready() == "the check a has not run yet"
    runner.due(0.0)
    runner.finished("a", 1, OK, 0.0, at(0))
    runner.finished("b", 1, ill(BAD), 0.0, at(0))
    assert runner.why_not_ready() == "it is bad"
    runner.due(1.0)
    runner.finished("b", 2, Result(not_ready="still starting"), 1.0, at(1))
    assert runner.why_not_ready() == "still starting"
    runner.due(2.0)
    runner.finished("b", 3, ill(warn("b", "Odd", "a little odd")), 2.0, at(2))
    assert runner.why_not_ready() == ""


def test_a_check_that_is_only_observed_does_not_keep_a_node_from_work() -> None:
    runner = Runner([Probe(is_basic=True)], observe_only=["probe"])
    drive(runner, [ill(BAD)])
    assert runner.why_not_ready() == ""


def test_a_basic_check_is_repeated_every_second_until_it_passes() -> None:
    runner = Runner([Probe(is_basic=True)])
    now = drive(runner, [Result(not_ready="not yet"), Result(not_ready="not yet"), OK], step=1.0)
    assert runner.due(now) == ()
    assert runner.next_deadline() == pytest.approx(12.0, abs=0.1)


def test_forced_checks_run_now_unless_they_run_already() -> None:
    runner = Runner([Probe("a", is_basic=True), Probe("b", is_basic=True)])
    runner.due(0.0)
    runner.finished("a", 1, OK, 0.1, at(0.1))
    assert [check.name for check, _ in runner.force(["a", "b"], 0.2)] == ["a"]
    assert runner.running(["a", "b"]) == ("a", "b")


def test_suspicions_are_what_damping_holds_back() -> None:
    runner = Runner([Probe()])
    drive(runner, [ill(BAD)])
    assert [f.code for f in runner.suspicions(["probe"])] == ["Bad"]
    assert runner.suspicions([]) == ()


RESULTS = st.sampled_from([OK, ill(BAD), ill(HARD), ill(BAD, HARD), ill(unknown("probe", "Blind", "?"))])


@given(st.lists(RESULTS, max_size=30))
def test_two_healthy_runs_always_end_every_finding(results: list[Result]) -> None:
    runner = Runner([Probe()])
    now = drive(runner, list(results))
    drive(runner, [OK, OK], now)
    assert codes(runner) == []


@given(st.lists(RESULTS, max_size=30))
def test_no_soft_finding_opens_that_was_seen_once(results: list[Result]) -> None:
    runner = Runner([Probe()])
    drive(runner, list(results))
    if sum(BAD in r.findings for r in results) < 2:
        assert "Bad" not in codes(runner)


def test_what_is_due_soon_starts_with_what_is_due_but_never_alone() -> None:
    runner = Runner([Probe("a", interval_s=10.0), Probe("b", interval_s=100.0)], start=0.0)
    starts: dict[str, list[float]] = {"a": [], "b": []}
    for second in range(0, 400):
        for check, run_id in runner.due(float(second)):
            starts[check.name].append(float(second))
            runner.finished(check.name, run_id, Result(), float(second), at(second))
    gaps = {name: {round(b - a, 6) for a, b in itertools.pairwise(times)} for name, times in starts.items()}
    assert gaps["a"] == {10.0}
    # "b" goes with "a", up to a tenth of its interval before its time.
    assert all(90.0 <= gap <= 100.0 for gap in gaps["b"])
    assert set(starts["b"][1:]) <= set(starts["a"])


def test_a_person_ends_what_a_check_keeps_and_nothing_else() -> None:
    runner = Runner([Keeper(damping=Damping(1, 1))])
    now = drive(runner, [ill(HARD, BAD)])
    assert codes(runner) == ["Hard", "Bad"]
    assert not runner.clear("Bad", "")
    assert not runner.clear("Hard", "0000:9b:00.0")
    assert runner.clear("Hard", "")
    assert codes(runner) == ["Bad"]
    assert not runner.clear("Hard", "")
    drive(runner, [ill(HARD)], first=now)
    assert codes(runner) == ["Hard"]


def test_a_check_that_keeps_nothing_cannot_be_cleared() -> None:
    runner = Runner([Probe()])
    drive(runner, [ill(HARD)])
    assert not runner.clear("Hard", "")
    assert codes(runner) == ["Hard"]
