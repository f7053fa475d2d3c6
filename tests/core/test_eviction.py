"""Where the next attempt of a job that failed for an unknown reason may start, and what it may not cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from hyperpod.core import plan as do
from hyperpod.core.eviction import soft_eviction
from hyperpod.core.job import ExitCause, JobRecord, JobStatus, JobView
from hyperpod.core.node import NodeView
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.resume import ResumeDecision, decide_jobs, decide_resume
from hyperpod.core.snapshot import JobFacts, Snapshot
from hyperpod.core.spares import decide_spares
from hyperpod.core.verdict import Kind, Verdict
from tests.core.worlds import (
    RESUME,
    ago,
    exit_of,
    failed,
    fatal,
    job,
    job_worlds,
    machine,
    node,
    nodes,
    record,
    snapshot,
)


def unknown(**suspects: float) -> Verdict:
    told = {name.replace("_", "-"): score for name, score in suspects.items()}
    return Verdict(Kind.UNKNOWN, "unknown, because …", suspects=told)


def waits(**fields: Any) -> JobView:
    """Requeued, and about to start again."""
    values: dict[str, Any] = {"restart_count": 1, "priority": 4_000_000_000, "begin_at": ago(1)}
    return job(status=JobStatus.PENDING, **{**values, **fields})


def kept(verdict: Verdict | None, **fields: Any) -> JobRecord:
    """A job whose first attempt ended on worker-1 and worker-2."""
    return record(failed(1, attribution=verdict, ended_at=ago(5), **fields))


def spare(number: int, **fields: Any) -> NodeView:
    return node(number, in_partition=False, in_spares=True, **fields)


def decide(verdict: Verdict | None, view: JobView, *views: NodeView, count: int = 4, **fields: Any) -> ResumeDecision:
    return decide_resume(kept(verdict), view, JobFacts(), snapshot(*nodes(count, *views), **fields), RESUME)


def excluded(decision: ResumeDecision) -> tuple[str, ...]:
    return next((a.excluded for a in decision.actions if isinstance(a, do.ExpediteJob)), ())


BUSY = {"jobs": (99,)}


@pytest.mark.parametrize(
    ("verdict", "others", "out"),
    [
        (unknown(), (), ("worker-1", "worker-2")),
        (unknown(worker_2=0.3), (), ("worker-1", "worker-2")),
        (unknown(worker_2=0.3), (node(4, **BUSY),), ("worker-2",)),
        (unknown(worker_1=0.3, worker_2=0.5), (node(4, **BUSY),), ("worker-2",)),
        (unknown(worker_2=0.3), (node(3, **BUSY), node(4, **BUSY)), ()),
        (unknown(), (node(4, **BUSY),), ()),
        (unknown(worker_2=0.3), (node(4, is_ready=False),), ("worker-2",)),
        (Verdict(Kind.NODE, "node worker-2, …", ("worker-2",), suspects={"worker-2": 0.6}), (), ("worker-2",)),
        (Verdict(Kind.APPLICATION, "application, …"), (), ()),
    ],
    ids=[
        "the whole set where there is room",
        "also when one is suspect",
        "only the suspect one where there is room for one",
        "the worst first",
        "nobody without room",
        "nobody in particular without room for all",
        "a node that is not ready is no room",
        "only the node that is to blame",
        "nobody when it is the program",
    ],
)
def test_the_next_attempt_avoids(verdict: Verdict, others: tuple[NodeView, ...], out: tuple[str, ...]) -> None:
    assert excluded(decide(verdict, waits(), *others)) == out


def test_a_job_that_could_not_start_otherwise_gets_its_nodes_back() -> None:
    narrow = waits(excluded=("worker-1", "worker-2"), pending_reason="Resources")
    decision = decide(unknown(), narrow, node(3, **BUSY), node(4, **BUSY))
    [action] = [a for a in decision.actions if isinstance(a, do.ExpediteJob)]
    assert (action.set_excluded, action.excluded) == (True, ())


def test_nodes_that_the_job_asks_for_by_name_are_never_kept_from_it() -> None:
    decision = decide(unknown(worker_1=0.5), waits(required=("worker-1",)))
    assert "worker-1" not in excluded(decision)


def test_a_job_that_has_not_failed_avoids_nobody() -> None:
    assert soft_eviction(record(), waits(), snapshot(*nodes(4)), ()).nodes == ()


def test_a_replaced_machine_is_not_avoided() -> None:
    other = node(2, instance_id=machine(50), agent_instance_id=machine(50))
    assert excluded(decide(unknown(worker_2=0.5), waits(), other)) == ("worker-1",)


def test_a_node_that_failed_jobs_of_others_point_at_is_not_tried_either() -> None:
    suspicion = {machine(3): {50: 0.5, 51: 0.5}}
    decision = decide(unknown(worker_2=0.3), waits(), count=5, suspicion=suspicion)
    assert "worker-3" in excluded(decision)


def test_only_the_next_attempt_is_kept_from_a_suspect() -> None:
    """Where the last attempt ended for another reason, what pointed at a node before is not held against it."""
    first = failed(1, attribution=unknown(worker_2=0.5), ended_at=ago(600))
    second = failed(2, cause=ExitCause.PREEMPTED, attribution=None, ended_at=ago(5))
    both = decide_resume(record(first, second), waits(restart_count=2), JobFacts(), snapshot(*nodes(4)), RESUME)
    assert excluded(both) == ()


# --- spares -----------------------------------------------------------------------------------------------------


def test_a_spare_stands_in_for_a_suspect_where_there_is_no_other_node() -> None:
    views = (node(3, **BUSY), spare(4))
    decision = decide(unknown(worker_2=0.5), waits(), *views)
    assert [(type(a).__name__, getattr(a, "node", "")) for a in decision.actions] == [("UseSpare", "worker-4")]
    without = decide(unknown(), waits(), *views)
    assert not [a for a in without.actions if isinstance(a, do.UseSpare)]
    blind = decide(unknown(worker_2=0.5), waits(), *views, missing=("provider",))
    assert not [a for a in blind.actions if isinstance(a, do.UseSpare)]


def test_the_least_suspect_spare_comes_first_and_the_most_suspect_node_waits_in_its_place() -> None:
    policy = RepairPolicy(spare_count={"worker": 2})
    suspicion = {machine(2): {7: 0.5}, machine(4): {8: 0.9}}
    lacking = snapshot(*nodes(5, node(1, is_drained=True), spare(4), spare(5)), suspicion=suspicion)
    assert [a.node for a in decide_spares(lacking, policy)[0]] == ["worker-5"]
    many = snapshot(*nodes(5, spare(4)), suspicion=suspicion)
    assert [(type(a).__name__, a.node) for a in decide_spares(many, policy)[0]] == [("ParkSpare", "worker-2")]
    leaving = snapshot(*nodes(5, spare(4), node(2, is_completing=True)), suspicion=suspicion)
    assert decide_spares(leaving, policy)[0] == [], "the suspect is about to be free"


# --- over several attempts --------------------------------------------------------------------------------------


def over(restarts: int, *on: int) -> JobView:
    return job(status=JobStatus.FAILED, exit_code=1, restart_count=restarts, nodes=tuple(f"worker-{i}" for i in on))


def attempt_on(number: int, *on: int, **fields: Any) -> Any:
    names, ids = tuple(f"worker-{i}" for i in on), tuple(machine(i) for i in on)
    return failed(number, nodes=names, instance_ids=ids, **fields)


def test_the_same_failure_elsewhere_stops_the_job_whatever_the_limit() -> None:
    policy = replace(RESUME, same_failure_limit=5)
    kept_record = record(attempt_on(1, 1, 2, attribution=unknown(worker_1=0.3)), attempt_on(2, 3, 4, ended_at=ago(2)))
    told = JobFacts(exits=(exit_of(restart_count=1),), scanned_attempt=2, scan_step=-1)
    decision = decide_resume(kept_record, over(1, 3, 4), told, snapshot(*nodes(4)), policy)
    assert decision.record.verdict == "ApplicationFault"
    assert "without a common machine" in decision.record.verdict_message
    kinds = [a.attribution.kind for a in decision.record.attempts if a.attribution is not None]
    assert kinds == [Kind.APPLICATION, Kind.APPLICATION], "nothing is held against the first nodes any more"
    assert all(not a.attribution.suspects for a in decision.record.attempts if a.attribution is not None)


def test_a_program_that_makes_progress_goes_on_but_keeps_its_nodes() -> None:
    kept_record = record(
        attempt_on(1, 1, 2, last_step=10, attribution=unknown(worker_1=0.3)),
        attempt_on(2, 3, 4, last_step=20, ended_at=ago(2)),
    )
    told = JobFacts(exits=(exit_of(restart_count=1),), scanned_attempt=2, scan_step=20)
    decision = decide_resume(kept_record, over(1, 3, 4), told, snapshot(*nodes(6)), RESUME)
    assert [type(a) for a in decision.actions] == [do.RequeueJob]
    again = decide_resume(decision.record, waits(restart_count=2), told, snapshot(*nodes(6)), RESUME)
    assert excluded(again) == ()


def test_a_failure_that_is_put_down_to_a_node_does_not_count_against_the_program() -> None:
    told = Verdict(Kind.NODE, "node worker-1, because …", ("worker-1",))
    kept_record = record(attempt_on(1, 1, 2, attribution=told), attempt_on(2, 2, 3, ended_at=ago(2)))
    facts = JobFacts(exits=(exit_of(restart_count=1, node="worker-3"),), scanned_attempt=2, scan_step=-1)
    decision = decide_resume(kept_record, over(1, 2, 3), facts, snapshot(*nodes(4)), RESUME)
    assert [type(a) for a in decision.actions] == [do.RequeueJob]


def test_a_finding_within_minutes_of_the_end_revises_who_it_was_also_when_the_job_is_over() -> None:
    ended = record(failed(1, ended_at=ago(100), attribution=unknown()), verdict="AttemptsUsedUp")
    world: Snapshot = snapshot(*nodes(4, node(2, findings=(fatal(since=ago(5)),))), records={7: ended})
    [save] = decide_jobs(world, RESUME).actions
    assert isinstance(save, do.SaveJob)
    [attempt] = save.record.attempts
    assert attempt.attribution is not None
    assert (attempt.attribution.kind, attempt.attribution.nodes) == (Kind.NODE, ("worker-2",))
    assert save.record.verdict == "AttemptsUsedUp"
    later = replace(world, now=world.now + timedelta(minutes=6))
    assert decide_jobs(later, RESUME).actions == ()


@settings(max_examples=25, deadline=None)
@given(job_worlds())
def test_soft_eviction_always_leaves_room_and_never_takes_what_the_job_asked_for(world: Snapshot) -> None:
    for view in world.jobs:
        for verdict in (unknown(worker_1=0.5), unknown()):
            chosen = soft_eviction(kept(verdict), view, world, ()).nodes
            assert not set(chosen) & set(view.required)
            if chosen:
                left = [n for n in world.nodes if n.name not in chosen and n.partition == view.partition]
                assert len(left) >= view.node_count
