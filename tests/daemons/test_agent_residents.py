"""Jobs on the node: who is here, and which checks run at a job's start and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_agent_mind import ENV, Stage, make_settings

from hyperpod.agent.mind import JOB_CHECK_GAP_S, SEARCH_INTERVAL_S
from hyperpod.agent.residents import GRACE_S, LOOK_GAP_S, Residents
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, Damping, Ports, Result, fatal
from hyperpod.health.runner import Runner

END = {**ENV, "type": "step_end", "time": 1.0}
START = {**ENV, "type": "task_start", "time": 1.0, "rank": 0}


@dataclass
class JobCheck:
    """A check that runs when jobs come and go."""

    name: str
    is_job_start: bool = False
    is_job_end: bool = False
    interval_s: float = 1e6
    deadline_s: float = 2.0
    damping: Damping = field(default_factory=Damping)
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        raise NotImplementedError


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path, make_settings())
    runner: Any = Runner([JobCheck("first"), JobCheck("start", is_job_start=True), JobCheck("end", is_job_end=True)])
    made.mind.runner = runner
    made.tick()
    made.actions.started.clear()
    return made


def started(stage: Stage) -> list[str]:
    """What was started since the last look."""
    names = [name for name, _, _ in stage.actions.started]
    stage.actions.started.clear()
    return names


def sees(stage: Stage, *jobs: int) -> None:
    stage.mind.on_jobs(frozenset(jobs), stage.now, stage.now, stage.clock.now())


@pytest.mark.parametrize("request_", [ENV, START], ids=["env", "task_start"])
def test_the_first_sign_of_a_job_starts_its_checks(stage: Stage, request_: dict[str, Any]) -> None:
    stage.ask(1, request_)
    assert started(stage) == ["start"]
    assert stage.actions.kernel_looks == 1


def test_the_plugin_has_its_answer_before_any_check_runs(stage: Stage) -> None:
    order: list[str] = []
    stage.actions.reply = lambda client, lines: order.append("reply")  # type: ignore[method-assign]
    stage.actions.start_check = lambda check, run_id, facts: order.append(check.name)  # type: ignore[method-assign]
    stage.ask(1, START)
    assert order == ["reply", "start"]


def test_further_steps_and_tasks_of_the_job_start_nothing(stage: Stage) -> None:
    stage.ask(1, ENV)
    stage.finish("start")
    started(stage)
    stage.tick(60)
    started(stage)
    for request in (START, {**ENV, "step_id": 0}, {**START, "rank": 1}):
        stage.ask(1, request)
    assert started(stage) == []


def test_the_next_attempt_of_a_job_is_a_new_start(stage: Stage) -> None:
    stage.ask(1, ENV)
    stage.finish("start")
    started(stage)
    stage.tick(JOB_CHECK_GAP_S)
    stage.ask(1, {**ENV, "restart_count": 3})
    assert started(stage) == ["start"]


def test_many_short_jobs_share_one_look(stage: Stage) -> None:
    for job_id in range(1, 50):
        stage.ask(1, {**ENV, "job_id": job_id})
        if job_id == 1:
            stage.finish("start")
    assert started(stage) == ["start"]


def test_a_hard_finding_at_a_jobs_start_goes_to_the_controller_at_once(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, ENV)
    stage.actions.sent.clear()
    stage.finish("start", Result((fatal("start", "Gone", "a GPU is gone", is_hard=True),)))
    (beat,) = stage.beats()
    assert [f.code for f in beat.findings] == ["Gone"]


def test_the_checks_for_a_jobs_end_run_when_its_processes_are_gone(stage: Stage) -> None:
    stage.ask(1, ENV)
    stage.finish("start")
    stage.tick(30)
    stage.ask(1, END)
    started(stage)
    looks = stage.actions.job_looks
    stage.tick(GRACE_S - 0.1)
    assert stage.actions.job_looks == looks
    stage.tick(0.2)
    assert stage.actions.job_looks == looks + 1
    sees(stage)
    assert started(stage) == ["end"]


def test_a_job_between_two_steps_has_not_ended(stage: Stage) -> None:
    stage.ask(1, ENV)
    stage.ask(1, END)
    stage.tick(30)
    started(stage)
    sees(stage, 7)
    assert started(stage) == []
    assert stage.mind.facts(stage.now, stage.clock.now(), 1000.0).jobs == {7}


def test_the_jobs_here_are_not_known_before_the_first_look(stage: Stage) -> None:
    assert stage.mind.facts(stage.now, stage.clock.now(), 1000.0).jobs is None
    stage.ask(1, ENV)
    assert stage.mind.facts(stage.now, stage.clock.now(), 1000.0).jobs is None
    sees(stage)
    assert stage.mind.facts(stage.now, stage.clock.now(), 1000.0).jobs == {7}


def test_the_processes_are_looked_at_once_a_minute_and_not_each_tick(stage: Stage) -> None:
    before = stage.actions.job_looks
    stage.run(SEARCH_INTERVAL_S * 2)
    assert stage.actions.job_looks - before == 2


def test_a_request_without_a_job_is_refused_and_nothing_starts(stage: Stage) -> None:
    stage.ask(1, {"type": "task_start", "job_id": 0, "step_id": 0, "time": 1.0})
    assert started(stage) == []


@pytest.mark.parametrize("step_id", ["x", None, [], float("inf")])
def test_a_strange_step_is_answered_once(stage: Stage, step_id: Any) -> None:
    stage.ask(1, {**ENV, "step_id": step_id})
    assert len(stage.actions.replies) <= 1


# --- the account itself ---------------------------------------------------------------------------------------------


def test_looks_keep_their_distance() -> None:
    here = Residents()
    here.looks(100.0)
    here.step_began(7, 0, 0, 100.0)
    here.step_ended(7, 0, 100.1)
    assert here.looks_at == 100.0 + LOOK_GAP_S


def test_a_job_that_came_while_it_was_looked_is_not_taken_for_ended() -> None:
    here = Residents()
    here.looks(100.0)
    here.step_began(7, 0, 0, 100.2)
    assert here.saw((), 100.0) == ()
    assert here.jobs == {7}
    assert here.saw((), 101.0) == (7,)


def test_a_job_from_before_the_agent_is_no_start_when_it_speaks() -> None:
    here = Residents()
    here.saw((7,), 1.0)
    assert not here.step_began(7, 2, 0, 2.0)
    assert here.step_began(7, 3, 0, 3.0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["began", "ended", "saw"]), st.integers(1, 3), st.integers(0, 1), st.integers(0, 2))
)


@given(STEPS)
def test_a_job_whose_step_was_just_heard_is_always_here_and_none_ends_twice(events: list[Any]) -> None:
    here, now, begun = Residents(), 0.0, set()
    for kind, job, restart, step in events:
        now += 1.0
        if kind == "began":
            here.step_began(job, restart, step, now)
            begun.add(job)
            assert job in here._jobs
        elif kind == "ended":
            here.step_ended(job, step, now)
        else:
            ended = here.saw((job,), now)
            assert set(ended) <= begun | {1, 2, 3}
            assert here.jobs == {job}
            assert here.saw((job,), now + 0.5) == ()
