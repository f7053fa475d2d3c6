"""A requeued job on its way to the next attempt: begin time, priority, excluded nodes, holds, leftovers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hyperpod.core import plan as do
from hyperpod.core.job import ExitCause, JobRecord, JobStatus, JobView
from hyperpod.core.liveness import DEAD_CAUSE
from hyperpod.core.node import Availability, NodeView, RepairStatus
from hyperpod.core.resume import TOP_PRIORITY, ResumeDecision, decide_resume
from hyperpod.core.snapshot import JobFacts
from tests.core.worlds import NOW, RESUME, ago, attempt, failed, in_repair, job, machine, node, nodes, record, snapshot


def pending(**fields: Any) -> JobView:
    """The job after its requeue: excluded, first in its queue, free to begin, unless said otherwise."""
    values = {"restart_count": 1, "priority": TOP_PRIORITY, "pending_reason": "Resources", "begin_at": ago(1)}
    return job(status=JobStatus.PENDING, **{**values, **fields})


def died(**fields: Any) -> JobRecord:
    """A job whose first attempt ended with the death of worker-1."""
    over = failed(1, cause=ExitCause.NODE_DEAD, message="worker-1 is dead", ended_at=ago(5))
    return record(over, **{"avoid": {machine(1): "worker-1"}, **fields})


def decide(kept: JobRecord, view: JobView, *views: NodeView, count: int = 4) -> ResumeDecision:
    return decide_resume(kept, view, JobFacts(), snapshot(*nodes(count, *views)), RESUME)


def expedited(decision: ResumeDecision) -> do.ExpediteJob:
    [action] = [a for a in decision.actions if isinstance(a, do.ExpediteJob)]
    return action


def test_slurms_begin_time_delay_is_beaten_until_it_is_gone() -> None:
    view = pending(excluded=("worker-1",), begin_at=ago(-110), pending_reason="BeginTime")
    assert expedited(decide(died(), view)).start_now
    assert decide(died(), pending(excluded=("worker-1",))).actions == ()


def test_a_job_is_not_started_in_the_second_in_which_its_last_attempt_ended() -> None:
    # The same node would refuse it: slurmd takes the new credential for one that was revoked in that second.
    second = NOW.replace(microsecond=0)
    over = failed(1, cause=ExitCause.APPLICATION, ended_at=second + timedelta(milliseconds=200))
    view = pending(begin_at=ago(-110), pending_reason="BeginTime", excluded=("worker-1", "worker-2"))
    early = snapshot(*nodes(4), now=second + timedelta(milliseconds=900))
    waiting = decide_resume(record(over), view, JobFacts(), early, RESUME)
    assert (waiting.actions, waiting.wake_after) == ((), timedelta(milliseconds=100))
    due = snapshot(*nodes(4), now=second + timedelta(seconds=1))
    assert expedited(decide_resume(record(over), view, JobFacts(), due, RESUME)).start_now


def test_a_begin_time_that_a_person_set_later_is_respected() -> None:
    tomorrow = pending(excluded=("worker-1",), begin_at=ago(-86_400), pending_reason="BeginTime")
    decision = decide(died(), tomorrow)
    assert (decision.actions, decision.notes[0].code) == ((), "CannotStart")


def test_a_resumed_job_gets_its_place_at_the_head_of_its_queue() -> None:
    assert expedited(decide(died(), pending(excluded=("worker-1",), priority=100))).top_priority


def test_bad_machines_are_excluded_together_with_what_the_user_excluded() -> None:
    action = expedited(decide(died(users_excluded=("worker-4",)), pending(excluded=("worker-4",))))
    assert action.set_excluded
    assert action.excluded == ("worker-1", "worker-4")


def test_a_replaced_machine_counts_as_new() -> None:
    replaced = node(1, instance_id=machine(50), agent_instance_id=machine(50))
    action = expedited(decide(died(), pending(excluded=("worker-1",)), replaced))
    assert action.excluded == ()


def test_a_machine_found_well_again_is_not_avoided_when_the_job_could_not_start_otherwise() -> None:
    action = expedited(decide(died(), pending(excluded=("worker-1",)), count=2))
    assert action.excluded == ()
    ill = in_repair(1, RepairStatus.REPLACING, cause=DEAD_CAUSE)
    assert decide(died(), pending(excluded=("worker-1",)), ill, count=2).actions == ()


@pytest.mark.parametrize("cause", [ExitCause.OTHER, ExitCause.PREEMPTED])
def test_a_job_that_somebody_else_requeued_waits_its_turn(cause: ExitCause) -> None:
    kept = record(failed(1, cause=cause))
    assert decide(kept, pending(priority=100, begin_at=ago(-110))).actions == ()


def test_a_job_that_has_never_run_is_left_alone() -> None:
    assert decide(record(), pending(restart_count=0, priority=100, begin_at=ago(-110))).actions == ()


def test_a_requeue_by_its_user_is_not_a_failure_of_the_program() -> None:
    decision = decide(record(attempt()), pending(priority=100))
    assert decision.record.attempts[0].cause is ExitCause.OTHER


def test_a_job_that_waits_for_something_else_says_for_what() -> None:
    blocked = pending(excluded=("worker-1",), pending_reason="QOSMaxJobsPerUserLimit")
    decision = decide(died(), blocked)
    assert "QOSMaxJobsPerUserLimit" in decision.notes[0].message


# --- holds ------------------------------------------------------------------------------------------------------

HELD = {"is_held": True, "priority": 0, "pending_reason": "JobHeldUser"}


def test_a_users_own_hold_is_never_touched() -> None:
    decision = decide(died(), pending(**HELD, pending_message="held by user"))
    assert (decision.actions, decision.notes[0].code) == ((), "Held")


@pytest.mark.parametrize("text", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_a_job_held_after_a_failed_launch_is_released_once_and_not_to_the_same_node(text: str) -> None:
    ran = attempt(nodes=("worker-1",), instance_ids=(machine(1),))
    decision = decide(record(ran), pending(**HELD, pending_message=text))
    assert [type(a) for a in decision.actions] == [do.ExpediteJob, do.ReleaseJob]
    assert expedited(decision).excluded == ("worker-1",)
    assert decision.record.attempts[0].cause is ExitCause.LAUNCH_FAILED
    again = decide(decision.record, pending(**HELD, pending_message=text))
    assert again.actions == ()


def test_of_several_nodes_only_those_that_slurm_closed_are_blamed_for_a_failed_launch() -> None:
    closed = node(2, is_drained=True, reason="Prolog error", reason_by="slurm")
    decision = decide(record(attempt()), pending(**HELD, pending_message="launch failed requeued held"), closed)
    assert decision.record.avoid == {machine(2): "worker-2"}


def test_a_failed_launch_that_nobody_saw_run_is_released_too() -> None:
    decision = decide(record(), pending(**HELD, pending_message="launch failed requeued held"))
    assert [type(a) for a in decision.actions] == [do.ReleaseJob]


NEVER = {"is_held": True, "priority": 0, "pending_reason": "BadConstraints"}
SPARE = {"in_partition": False}


def test_a_spare_is_no_place_for_a_job_so_a_machine_that_is_well_again_is_not_avoided() -> None:
    # Two nodes are left in the partition and one of them is well again after its reboot; the third waits as a spare.
    view = pending(excluded=("worker-1",), node_count=2)
    assert expedited(decide(died(), view, node(3, **SPARE), count=3)).excluded == ()
    kept = [a for a in decide(died(), view, count=3).actions if isinstance(a, do.ExpediteJob)]
    assert kept == []


@pytest.mark.parametrize(
    ("view", "spares", "excluded"),
    [
        ({"excluded": ("worker-1",)}, True, ()),  # too few without it: it is needed after all
        ({"excluded": ("worker-1",)}, False, ("worker-1",)),  # a spare has come meanwhile
        ({"excluded": ("worker-1", "worker-2")}, False, ("worker-1",)),
        ({"excluded": ()}, True, None),  # Slurm's reason is another one
    ],
)
def test_a_job_that_slurm_holds_because_of_our_exclusion_is_let_go(
    view: dict[str, Any], spares: bool, excluded: tuple[str, ...] | None
) -> None:
    others = (node(3, **SPARE),) if spares else ()
    decision = decide(died(), pending(**NEVER, **view, node_count=2), *others, count=3)
    if excluded is None:
        assert (decision.actions, decision.notes[0].code) == ((), "Held")
        return
    assert [type(a) for a in decision.actions] == [do.ExpediteJob, do.ReleaseJob]
    assert expedited(decision).excluded == excluded


def test_a_hold_that_does_not_end_with_our_exclusion_is_lifted_once() -> None:
    view = pending(**NEVER, excluded=("worker-1",), node_count=2)
    first = decide(died(), view, count=3)
    assert first.record.released_once
    assert decide(first.record, view, count=3).actions == ()


def test_a_job_held_while_its_nodes_are_out_waits_for_them() -> None:
    out = node(2, is_drained=True, reason="hyperpod:x", reason_by="root")
    bad = in_repair(1, RepairStatus.FENCING, {"availability": Availability.DOWN}, cause=DEAD_CAUSE)
    decision = decide(died(), pending(**NEVER, excluded=("worker-1",), node_count=2), bad, out, count=2)
    assert decision.actions == ()


# --- leftovers --------------------------------------------------------------------------------------------------


def test_what_keeps_a_requeued_job_completing_is_ended_on_the_nodes_that_live() -> None:
    gone = in_repair(1, RepairStatus.FENCING, {"availability": Availability.DOWN}, cause=DEAD_CAUSE)
    view = pending(excluded=("worker-1",), is_completing=True)
    [action] = decide(died(), view, gone).actions
    assert isinstance(action, do.EndLeftovers)
    assert action.nodes == ("worker-2",)


def test_a_program_that_ends_by_itself_is_given_slurms_own_time_for_it() -> None:
    kept = record(failed(1, ended_at=ago(5)))
    view = pending(is_completing=True, excluded=("worker-1", "worker-2"))
    assert decide(kept, view).actions == ()
    late = replace(kept, attempts=(failed(1, ended_at=ago(9)),))
    assert [type(a) for a in decide(late, view).actions] == [do.EndLeftovers]
