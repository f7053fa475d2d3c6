"""What decide_resume must never do, whatever it is shown."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from hyperpod.core import plan as do
from hyperpod.core.attempts import excluded_nodes, is_held_for_exclusion, update_record
from hyperpod.core.job import JobRecord, JobStatus
from hyperpod.core.resume import decide_jobs, decide_resume
from hyperpod.core.snapshot import Snapshot
from tests.core.worlds import RESUME, job_worlds, of, shuffled

FEW = settings(max_examples=25, deadline=None)


@FEW
@given(job_worlds())
def test_same_input_gives_the_same_plan_in_whatever_order_nodes_are_listed(world: Snapshot) -> None:
    plan = decide_jobs(world, RESUME)
    assert decide_jobs(world, RESUME) == plan
    turned = shuffled(world, reversed(range(len(world.nodes))))
    assert decide_jobs(turned, RESUME) == plan


@FEW
@given(job_worlds())
def test_an_unarmed_or_judged_job_is_never_acted_on(world: Snapshot) -> None:
    record = world.records[7]
    actions = decide_jobs(world, RESUME).actions
    if not record.is_armed:
        assert actions == ()
    elif record.verdict:
        # Who ended it may be judged anew when a finding comes late; that it is over stays.
        saved = [a.record for a in actions if isinstance(a, do.SaveJob)]
        assert len(saved) == len(actions)
        assert all((r.verdict, r.verdict_message) == (record.verdict, record.verdict_message) for r in saved)


@FEW
@given(job_worlds())
def test_a_cancelled_job_is_never_started_again(world: Snapshot) -> None:
    plan = decide_jobs(world, RESUME)
    for view in world.jobs:
        if view.status is JobStatus.CANCELLED:
            assert not of(plan, do.RequeueJob)
            assert not of(plan, do.ReleaseJob)


@FEW
@given(job_worlds())
def test_a_silent_slurm_leads_to_no_action(world: Snapshot) -> None:
    if "slurm" in world.missing:
        assert decide_jobs(world, RESUME).actions == ()


@FEW
@given(job_worlds())
def test_attempts_are_never_more_than_allowed(world: Snapshot) -> None:
    record = world.records[7]
    limit = record.max_attempts or RESUME.max_attempts
    for action in of(decide_jobs(world, RESUME), do.RequeueJob):
        assert action.restart_count + 1 < limit


@FEW
@given(job_worlds())
def test_a_requeue_is_asked_for_once_and_only_of_a_batch_job_that_runs_or_has_ended(world: Snapshot) -> None:
    requeues = of(decide_jobs(world, RESUME), do.RequeueJob)
    assert len(requeues) <= 1
    for action in requeues:
        view = world.jobs[0]
        assert view.is_batch
        assert action.restart_count == view.restart_count
        assert view.status is action.seen
        assert view.status.is_over or view.status in (JobStatus.RUNNING, JobStatus.CONFIGURING)


@FEW
@given(job_worlds())
def test_what_the_user_excluded_stays_excluded_and_a_replaced_machine_counts_as_new(world: Snapshot) -> None:
    record = world.records[7]
    for view in world.jobs:
        excluded = excluded_nodes(record, view, world)
        assert set(record.users_excluded) <= set(excluded)
        for instance, name in record.avoid.items():
            node = world.by_name.get(name)
            if node is not None and node.instance_id not in ("", instance) and name not in record.users_excluded:
                assert name not in excluded


@FEW
@given(job_worlds())
def test_only_a_launch_failure_that_slurm_holds_is_released_and_only_once(world: Snapshot) -> None:
    plan = decide_jobs(world, RESUME)
    for _ in of(plan, do.ReleaseJob):
        if is_held_for_exclusion(world.records[7], world.jobs[0]):
            continue
        assert "launch failed" in world.jobs[0].pending_message
        assert not world.records[7].released_once
        assert of(plan, do.SaveJob)[0].record.released_once


@FEW
@given(job_worlds())
def test_looking_twice_changes_the_record_once(world: Snapshot) -> None:
    record = world.records[7]
    for view in world.jobs:
        once = update_record(record, view, world.facts[7], world, RESUME)
        assert update_record(once, view, world.facts[7], world, RESUME) == once
        assert JobRecord.from_dict(once.to_dict()) == once


@FEW
@given(job_worlds())
def test_a_saved_decision_leads_to_the_same_actions_again(world: Snapshot) -> None:
    """Killed after the record is saved and before its action: the next controller decides the same."""
    record, view = world.records[7], (world.jobs or (None,))[0]
    first = decide_resume(record, view, world.facts[7], world, RESUME)
    again = decide_resume(first.record, view, world.facts[7], world, RESUME)
    keep = [a for a in first.actions if not isinstance(a, do.ReleaseJob | do.ExpediteJob)]
    assert [a for a in again.actions if not isinstance(a, do.ReleaseJob | do.ExpediteJob)] == keep


@FEW
@given(job_worlds())
def test_other_peoples_messages_do_not_arm_a_job(world: Snapshot) -> None:
    unarmed = replace(world, records={7: replace(world.records[7], armed_by="")})
    assert decide_jobs(unarmed, RESUME).actions == ()
