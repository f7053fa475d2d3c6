"""When a job is started again, where not, and when it is given up: what happens while it runs and when it has ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hyperpod.core import plan as do
from hyperpod.core.finding import Action, Finding, Severity, Whose
from hyperpod.core.job import EXTERN_STEP, INTERACTIVE_STEP, Attempt, ExitCause, JobRecord, JobStatus, JobView
from hyperpod.core.liveness import DEAD_CAUSE, SHUTDOWN_CAUSE
from hyperpod.core.node import Availability, NodeView, RepairStatus
from hyperpod.core.policy import ResumePolicy
from hyperpod.core.resume import ResumeDecision, decide_jobs, decide_resume, is_armed_by
from hyperpod.core.snapshot import JobFacts, Snapshot
from hyperpod.core.verdict import Kind
from tests.core.worlds import (
    RESUME,
    ago,
    attempt,
    batch_exit,
    exit_of,
    failed,
    fatal,
    in_repair,
    job,
    machine,
    node,
    nodes,
    record,
    snapshot,
)

J = JobStatus
NO_FACTS = JobFacts()
DOWN = {"availability": Availability.DOWN, "heartbeat_at": ago(20)}


def decide(
    kept: JobRecord,
    view: JobView | None,
    facts: JobFacts = NO_FACTS,
    *views: NodeView,
    policy: ResumePolicy = RESUME,
    **fields: Any,
) -> ResumeDecision:
    return decide_resume(kept, view, facts, snapshot(*nodes(4, *views), **fields), policy)


def kinds(decision: ResumeDecision) -> list[str]:
    return [type(a).__name__ for a in decision.actions]


def ended(decision: ResumeDecision, number: int = 1) -> Attempt:
    return next(a for a in decision.record.attempts if a.number == number)


def exits(*told: Any, **fields: Any) -> JobFacts:
    return JobFacts(exits=told, **fields)


# --- the record -------------------------------------------------------------------------------------------------


def test_the_first_run_opens_the_first_attempt_with_its_machines() -> None:
    decision = decide(record(), job())
    assert decision.actions == ()
    opened = ended(decision)
    assert (opened.number, opened.nodes, opened.instance_ids) == (1, ("worker-1", "worker-2"), (machine(1), machine(2)))


def test_a_later_run_opens_the_next_attempt_with_the_checkpoint_that_it_was_given() -> None:
    facts = JobFacts(resumes={1: ("/fsx/c/step_40", 40)})
    decision = decide(record(failed(1)), job(restart_count=1), facts)
    assert (ended(decision, 2).resume_from, ended(decision, 2).resume_step) == ("/fsx/c/step_40", 40)


def test_a_run_that_was_over_between_two_looks_is_an_attempt_like_any_other() -> None:
    decision = decide(record(failed(1)), job(status=J.FAILED, restart_count=1, exit_code=2))
    assert (ended(decision, 2).cause, ended(decision, 2).signature) == (ExitCause.APPLICATION, "batch:2:0")
    first = decide(record(), job(status=J.FAILED, exit_code=2))
    assert ended(first).cause is ExitCause.APPLICATION


def test_an_armed_job_that_slurm_does_not_know_any_more_is_over() -> None:
    assert decide(record(attempt()), None).record.verdict == "JobGone"


def test_a_job_is_not_gone_because_slurm_is_silent() -> None:
    decision = decide(record(attempt()), None, missing=("slurm",))
    assert decision.record.verdict == ""


# --- nodes ------------------------------------------------------------------------------------------------------


def test_a_node_failure_leads_to_another_attempt_without_that_machine() -> None:
    gone = in_repair(1, RepairStatus.FENCING, DOWN, cause=DEAD_CAUSE, message="worker-1 is dead")
    requeued = job(status=J.PENDING, restart_count=1, begin_at=ago(-119), pending_reason="BeginTime")
    decision = decide(record(attempt()), requeued, NO_FACTS, gone)
    assert (ended(decision).cause, ended(decision).message) == (ExitCause.NODE_DEAD, "worker-1 is dead")
    assert decision.record.avoid == {machine(1): "worker-1"}
    assert decision.actions == (
        # Its start waits for the next second, see test_resume_pending.
        do.ExpediteJob("worker-1 is dead", 7, ("worker-1",), start_now=False, set_excluded=True, top_priority=True),
    )


def test_a_job_that_slurm_ended_with_node_fail_is_requeued() -> None:
    decision = decide(record(attempt()), job(status=J.NODE_FAIL))
    assert kinds(decision) == ["RequeueJob"]
    assert ended(decision).cause is ExitCause.NODE_DEAD


def test_a_node_that_slurm_itself_gave_up_counts_as_dead() -> None:
    given_up = node(1, **DOWN, reason="Not responding", reason_by="slurm")
    decision = decide(record(attempt()), job(status=J.PENDING, restart_count=1), NO_FACTS, given_up)
    assert ended(decision).cause is ExitCause.NODE_DEAD


def test_a_job_that_completed_is_completed_although_a_node_of_it_died() -> None:
    gone = in_repair(1, RepairStatus.FENCING, DOWN, cause=DEAD_CAUSE)
    decision = decide(record(attempt()), job(status=J.COMPLETED), NO_FACTS, gone)
    assert decision.record.verdict == "Completed"


def test_a_job_that_goes_on_without_its_dead_node_is_requeued() -> None:
    gone = in_repair(1, RepairStatus.FENCING, DOWN, cause=DEAD_CAUSE)
    decision = decide(record(attempt()), job(nodes=("worker-2",)), NO_FACTS, gone)
    assert kinds(decision) == ["RequeueJob"]


def test_a_fatal_finding_on_a_node_moves_the_job_once_the_node_is_drained() -> None:
    ill = node(1, findings=(fatal(),))
    waits = decide(record(attempt()), job(), NO_FACTS, ill)
    assert (waits.actions, waits.notes[0].code) == ((), "WaitsForDrain")
    closed = in_repair(1, RepairStatus.DRAINING, {"findings": (fatal(),)})
    moves = decide(record(attempt()), job(), NO_FACTS, closed)
    assert kinds(moves) == ["RequeueJob"]
    assert moves.record.avoid == {machine(1): "worker-1"}
    theirs = node(1, findings=(fatal(),), is_drained=True, reason="new fan on Monday", reason_by="ops")
    assert kinds(decide(record(attempt()), job(), NO_FACTS, theirs)) == ["RequeueJob"]


@pytest.mark.parametrize(
    ("check", "code", "action", "leaves"),
    [
        ("service", "ServiceDown", Action.DRAIN, False),
        ("munge", "MungeFailed", Action.DRAIN, False),
        ("gpu_temperature", "GpuHot", Action.DRAIN, False),
        ("gpu_slowdown", "HardwareSlowdown", Action.DRAIN, False),
        ("disk", "DiskFull", Action.DRAIN, False),
        ("user_check.mine", "Critical", Action.DRAIN, False),
        ("shared_fs", "MountMissing", Action.DRAIN, True),
        ("infiniband", "LinkDown", Action.DRAIN, True),
        ("gpu_recovery", "PeerDrainNeeded", Action.DRAIN, True),
        ("cpu_count", "CpusMissing", Action.REPLACE, True),
        ("kernel_log", "Xid79", Action.REBOOT, True),
        ("kernel_log", "Xid154", Action.DRAIN, True),
    ],
)
def test_a_job_leaves_at_once_what_is_to_be_repaired_or_ends_jobs_and_else_runs_to_its_end(
    check: str, code: str, action: Action, leaves: bool
) -> None:
    found = fatal(code, action, check=check)
    closed = in_repair(1, RepairStatus.DRAINING, {"findings": (found,)})
    assert kinds(decide(record(attempt()), job(), NO_FACTS, closed)) == (["RequeueJob"] if leaves else [])


def test_why_a_job_leaves_is_what_it_leaves_for() -> None:
    both = (fatal("ServiceDown", Action.DRAIN, check="service"), fatal("Xid79"))
    closed = in_repair(1, RepairStatus.DRAINING, {"findings": both})
    (requeue,) = decide(record(attempt()), job(), NO_FACTS, closed).actions
    assert requeue.reason == "worker-1: Xid79 was seen"


def test_a_job_leaves_a_node_that_shuts_down_in_an_orderly_way() -> None:
    leaving = in_repair(1, RepairStatus.DRAINING, {"said_goodbye": True}, cause=SHUTDOWN_CAUSE)
    assert kinds(decide(record(attempt()), job(), NO_FACTS, leaving)) == ["RequeueJob"]


def test_what_an_administrator_wants_with_a_node_waits_for_its_job() -> None:
    asked = in_repair(1, RepairStatus.DRAINING, cause="admin/Replace")
    assert decide(record(attempt()), job(), NO_FACTS, asked).actions == ()


def test_why_we_requeued_a_running_job_is_not_judged_again_by_how_its_tasks_ended() -> None:
    closed = in_repair(1, RepairStatus.DRAINING, {"findings": (fatal(),)})
    decided = decide(record(attempt()), job(), NO_FACTS, closed).record
    killed = exits(exit_of(code=None, signal=9))
    after = decide(decided, job(status=J.PENDING, restart_count=1), killed)
    assert (ended(after).cause, ended(after).message) == (ExitCause.NODE_UNHEALTHY, "worker-1: Xid79 was seen")


def test_the_last_attempt_stays_on_its_ill_node() -> None:
    closed = in_repair(1, RepairStatus.DRAINING, {"findings": (fatal(),)})
    last = job(is_requeue_allowed=False)
    decision = decide(record(attempt(), max_attempts=1), last, NO_FACTS, closed)
    assert (decision.actions, decision.notes[0].code) == ((), "AttemptsUsedUp")


def test_a_failed_job_whose_node_has_an_older_finding_is_not_excused_by_it() -> None:
    old = node(1, findings=(fatal(since=ago(5000)),))
    decision = decide(record(attempt()), job(status=J.FAILED, exit_code=1), NO_FACTS, old)
    assert ended(decision).cause is ExitCause.APPLICATION
    recent = node(1, findings=(fatal(since=ago(100)),))
    decision = decide(record(attempt()), job(status=J.FAILED, exit_code=1), NO_FACTS, recent)
    assert ended(decision).cause is ExitCause.NODE_UNHEALTHY


# --- tasks ------------------------------------------------------------------------------------------------------


def test_the_rest_of_a_step_gets_a_grace_before_it_is_ended() -> None:
    told = exits(exit_of(code=None, signal=11))
    first = decide(record(attempt()), job(), told)
    assert first.actions == ()
    assert 0 < first.wake_after.total_seconds() <= 0.3
    later = record(attempt(failure_seen_at=ago(0.4)))
    second = decide(later, job(), told)
    assert kinds(second) == ["KillStep"]
    third = decide(later, job(), replace(told, killed_steps=frozenset({(0, 0)})))
    assert third.actions == ()


def test_only_the_step_that_failed_is_ended() -> None:
    told = exits(exit_of(code=3, step_id=4))
    [kill] = decide(record(attempt(failure_seen_at=ago(1))), job(), told).actions
    assert isinstance(kill, do.KillStep)
    assert kill.step_id == 4


@pytest.mark.parametrize("step", [INTERACTIVE_STEP, -5])
def test_the_script_itself_is_no_step_to_end(step: int) -> None:
    told = exits(exit_of(step_id=step))
    assert decide(record(attempt(failure_seen_at=ago(1))), job(), told).actions == ()


def test_the_failure_of_an_earlier_attempt_does_not_end_the_present_one() -> None:
    told = exits(exit_of(restart_count=0))
    assert decide(record(failed(1), attempt(2)), job(restart_count=1), told).actions == ()


def test_a_failed_script_is_requeued_when_there_is_no_sign_that_it_fails_for_ever() -> None:
    over = job(status=J.FAILED, exit_code=1)
    asks = decide(record(attempt()), over, exits(exit_of(1, code=1)))
    assert kinds(asks) == ["ScanCheckpoints"]
    told = exits(exit_of(1, code=1), scanned_attempt=1, scan_step=-1)
    decision = decide(asks.record, over, told)
    assert kinds(decision) == ["RequeueJob"]
    assert ended(decision).message == "rank 1 of step 0 on worker-1 exited with status 1"


def test_the_first_failure_is_the_cause_and_those_that_it_dragged_along_are_not() -> None:
    told = exits(
        exit_of(2, code=None, signal=15, time=999.0),
        exit_of(0, code=None, signal=9, time=1001.0),
        exit_of(1, code=None, signal=11, time=1000.0),
        batch_exit(139, time=998.0),
    )
    decision = decide(record(attempt()), job(status=J.FAILED, exit_code=139), told)
    assert ended(decision).signature == "task:0:11"


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([-1, -1], "ApplicationFault"),
        ([-1, 5], ""),
        ([5, 5], "ApplicationFault"),
        ([5, 9], ""),
        ([-1, None], ""),
    ],
    ids=["no checkpoint at all", "progress", "no newer checkpoint", "a newer checkpoint", "could not be looked at"],
)
def test_the_same_failure_twice_ends_the_job_unless_there_was_progress(steps: list[int | None], verdict: str) -> None:
    kept = record(failed(1, last_step=steps[0]), failed(2, last_step=steps[1], ended_at=ago(1)))
    facts = JobFacts(scanned_attempt=2, scan_step=steps[1])
    decision = decide(kept, job(status=J.FAILED, restart_count=1, exit_code=1), facts)
    assert decision.record.verdict == verdict
    assert kinds(decision) == ([] if verdict else ["RequeueJob"])


def test_another_failure_than_before_is_another_matter() -> None:
    kept = record(failed(1, signature="task:0:11"), failed(2, ended_at=ago(1)))
    decision = decide(kept, job(status=J.FAILED, restart_count=1), JobFacts(scanned_attempt=2, scan_step=-1))
    assert kinds(decision) == ["RequeueJob"]


def test_a_node_failure_between_two_equal_failures_separates_them() -> None:
    kept = record(failed(1), failed(2, cause=ExitCause.NODE_DEAD), failed(3, ended_at=ago(1)))
    decision = decide(kept, job(status=J.FAILED, restart_count=2), JobFacts(scanned_attempt=3, scan_step=-1))
    assert kinds(decision) == ["RequeueJob"]


def test_out_of_memory_is_the_programs_and_needs_progress() -> None:
    decision = decide(record(attempt()), job(status=J.OUT_OF_MEMORY, exit_signal=9))
    assert (kinds(decision), ended(decision).cause) == (["ScanCheckpoints"], ExitCause.OUT_OF_MEMORY)


# --- srun --auto-resume -----------------------------------------------------------------------------------------

STEP = {"armed_by": "step"}
SEEN = {"failure_seen_at": ago(1)}


def test_under_srun_auto_resume_the_job_is_requeued_before_its_script_sees_the_failure() -> None:
    told = exits(exit_of(1, code=1))
    asks = decide(record(attempt(**SEEN), **STEP), job(), told)
    assert kinds(asks) == ["ScanCheckpoints"]
    decision = decide(asks.record, job(), replace(told, scanned_attempt=1, scan_step=5))
    assert kinds(decision) == ["RequeueJob"]
    closed = decide(
        decision.record, job(status=J.PENDING, restart_count=1), exits(exit_of(1), exit_of(code=None, signal=9))
    )
    assert (ended(closed).cause, ended(closed).last_step) == (ExitCause.APPLICATION, 5)


@pytest.mark.parametrize(("step", "done"), [(-1, "KillStep"), (5, "RequeueJob")])
def test_under_srun_auto_resume_the_same_failure_without_progress_is_left_to_the_script(step: int, done: str) -> None:
    kept = record(failed(1), attempt(2, **SEEN), **STEP)
    told = exits(exit_of(1, code=1, restart_count=1), scanned_attempt=2, scan_step=step)
    assert kinds(decide(kept, job(restart_count=1), told)) == [done]


# --- endings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "verdict"),
    [
        (job(status=J.COMPLETED), "Completed"),
        (job(status=J.CANCELLED), "UserCancelled"),
        (job(status=J.TIMEOUT), "TimeLimit"),
        (job(status=J.DEADLINE), "TimeLimit"),
    ],
)
def test_a_job_is_not_started_again_when_it_ended_as(view: JobView, verdict: str) -> None:
    killed = exits(exit_of(code=None, signal=15))
    decision = decide(record(attempt()), view, killed)
    assert (decision.record.verdict, decision.actions) == (verdict, ())


@pytest.mark.parametrize(
    ("view", "cause", "who"),
    [
        (job(status=J.CANCELLED), ExitCause.USER_CANCELLED, None),
        (job(status=J.TIMEOUT), ExitCause.TIME_LIMIT, None),
        (job(status=J.DEADLINE), ExitCause.TIME_LIMIT, None),
        (job(status=J.PREEMPTED), ExitCause.PREEMPTED, None),
        (job(status=J.PENDING, restart_count=1), ExitCause.OTHER, None),
        (job(status=J.NODE_FAIL), ExitCause.NODE_DEAD, Kind.UNKNOWN),
        (job(status=J.OUT_OF_MEMORY, exit_signal=9), ExitCause.OUT_OF_MEMORY, Kind.APPLICATION),
        (job(status=J.FAILED, exit_signal=15), ExitCause.APPLICATION, Kind.UNKNOWN),
    ],
    ids=["scancel", "time limit", "deadline", "preempted", "requeued", "a node failed", "memory", "a stray signal"],
)
def test_tasks_that_end_by_sigterm_say_nothing_slurms_word_does(
    view: JobView, cause: ExitCause, who: Kind | None
) -> None:
    killed = exits(exit_of(code=None, signal=15), exit_of(1, code=None, signal=15, node="worker-2"))
    first = ended(decide(record(attempt()), view, killed))
    assert first.cause is cause
    assert (first.attribution.kind if first.attribution else None) is who


def test_memory_of_the_machine_is_told_from_the_jobs_own_limit() -> None:
    over = job(status=J.OUT_OF_MEMORY, exit_signal=9)
    killed = exits(exit_of(code=None, signal=9))
    kernel = {"check": "kernel_log", "severity": Severity.WARN, "message": "killed", "since": ago(1)}
    limit = Finding(code="OutOfMemoryJob", whose=Whose.USER, job_id=7, **kernel)
    machines = Finding(code="OutOfMemoryNode", **kernel)
    for told, who in ((limit, Kind.APPLICATION), (machines, Kind.UNKNOWN)):
        first = ended(decide(record(attempt()), over, killed, node(1, findings=(told,))))
        assert first.attribution is not None
        assert first.attribution.kind is who
        assert told.code in first.attribution.reason


def test_a_cancelled_job_is_cancelled_whatever_else_was_wrong() -> None:
    gone = in_repair(1, RepairStatus.FENCING, DOWN, cause=DEAD_CAUSE)
    told = exits(exit_of(code=None, signal=11))
    assert decide(record(attempt()), job(status=J.CANCELLED), told, gone).record.verdict == "UserCancelled"


def test_a_job_cancelled_before_it_ran_is_cancelled() -> None:
    view = replace(job(status=J.CANCELLED), started_at=None)
    assert decide(record(), view).record.verdict == "UserCancelled"


def test_the_policy_may_resume_after_the_time_limit() -> None:
    decision = decide(record(attempt()), job(status=J.TIMEOUT), policy=replace(RESUME, on_time_limit="resume"))
    assert kinds(decision) == ["RequeueJob"]


def test_a_preempted_job_is_left_to_slurm() -> None:
    decision = decide(record(attempt()), job(status=J.PREEMPTED))
    assert (decision.actions, decision.record.verdict, decision.notes[0].code) == ((), "", "Preempted")


@pytest.mark.parametrize(("own", "default"), [(2, 10), (None, 2)])
def test_used_up_attempts_end_the_job(own: int | None, default: int) -> None:
    kept = record(failed(1), attempt(2), max_attempts=own)
    decision = decide(kept, job(status=J.NODE_FAIL, restart_count=1), policy=replace(RESUME, max_attempts=default))
    assert decision.record.verdict == "AttemptsUsedUp"


def test_a_script_that_hides_a_killed_task_does_not_hide_it_from_us() -> None:
    hidden = exits(exit_of(code=None, signal=9))
    decision = decide(record(attempt()), job(status=J.COMPLETED), hidden)
    assert (kinds(decision), ended(decision).cause) == (["ScanCheckpoints"], ExitCause.APPLICATION)


@pytest.mark.parametrize(
    "told",
    [
        exits(exit_of(code=1)),
        exits(exit_of(code=None, signal=15)),
        exits(exit_of(code=None, signal=9), exit_of(code=0, step_id=1)),
        exits(exit_of(code=None, signal=9, step_id=EXTERN_STEP)),
    ],
    ids=[
        "a status that the script handles",
        "a step that was told to end",
        "a later step that ended well",
        "the end of its place holder",
    ],
)
def test_a_job_that_completed_is_believed_with(told: JobFacts) -> None:
    assert decide(record(attempt()), job(status=J.COMPLETED), told).record.verdict == "Completed"


def test_an_interactive_allocation_cannot_be_started_again_and_says_so() -> None:
    over = decide(record(attempt()), job(status=J.NODE_FAIL, is_batch=False))
    assert (over.actions, over.record.verdict) == ((), "Interactive")
    closed = in_repair(1, RepairStatus.DRAINING, {"findings": (fatal(),)})
    runs = decide(record(attempt()), job(is_batch=False), NO_FACTS, closed)
    assert (runs.actions, runs.notes[0].code) == ((), "Interactive")


def test_running_without_a_started_task_is_a_failed_launch() -> None:
    stuck = record(attempt(first_task_at=None, started_at=ago(121)))
    decision = decide(stuck, job(started_at=ago(121)))
    assert kinds(decision) == ["RequeueJob"]
    assert ended(decision).decided_cause is ExitCause.LAUNCH_FAILED
    young = record(attempt(first_task_at=None, started_at=ago(119)))
    assert decide(young, job(started_at=ago(119))).actions == ()


def test_without_our_agents_nobody_can_say_that_no_task_has_started() -> None:
    stuck = record(attempt(first_task_at=None, started_at=ago(121)))
    mute = node(1, heartbeat_at=None)
    assert decide(stuck, job(started_at=ago(121)), NO_FACTS, mute).actions == ()


@pytest.mark.parametrize(
    ("view", "kept", "gone"),
    [
        (job(nodes=("worker-2",), is_requeue_allowed=False), attempt(), True),
        (job(started_at=ago(121), is_requeue_allowed=False), attempt(first_task_at=None, started_at=ago(121)), False),
    ],
    ids=["a lost node", "no task"],
)
def test_with_used_up_attempts_a_running_job_is_left_as_it_is(view: JobView, kept: Attempt, gone: bool) -> None:
    lost = [in_repair(1, RepairStatus.FENCING, DOWN, cause=DEAD_CAUSE)] if gone else []
    decision = decide(record(kept, max_attempts=1), view, NO_FACTS, *lost)
    assert (decision.actions, decision.notes[0].code) == ((), "AttemptsUsedUp")


def test_a_job_that_ended_without_having_run_is_over() -> None:
    view = replace(job(status=J.BOOT_FAIL), started_at=None)
    assert decide(record(), view).record.verdict == "NotStarted"


def test_a_script_killed_by_a_signal_is_told_so() -> None:
    decision = decide(record(attempt()), job(status=J.FAILED, exit_signal=9))
    assert ended(decision).message == "the batch script was killed by signal 9"
    decision = decide(record(attempt()), job(status=J.FAILED, exit_signal=53))
    assert "could not open the job's output file" in ended(decision).message


def test_a_node_that_is_leaving_for_its_own_illness_excuses_the_job() -> None:
    leaving = in_repair(1, RepairStatus.DRAINING)
    decision = decide(record(attempt()), job(status=J.FAILED, exit_code=1), NO_FACTS, leaving)
    assert ended(decision).cause is ExitCause.NODE_UNHEALTHY


def test_a_job_on_a_node_that_a_person_had_fenced_is_a_node_failure() -> None:
    forced = in_repair(1, RepairStatus.FENCING, DOWN, cause="admin/Replace")
    decision = decide(record(attempt()), job(status=J.PENDING, restart_count=1), NO_FACTS, forced)
    assert ended(decision).cause is ExitCause.NODE_DEAD


def test_progress_is_measured_from_the_checkpoint_that_the_attempt_was_given() -> None:
    """The newest was damaged: attempt 2 began at 400 instead of 900 and reached 600 before it failed."""
    second = failed(2, resume_from="/fsx/c/step_400", resume_step=400, last_step=600, ended_at=ago(1))
    kept = record(failed(1, last_step=900), second)
    decision = decide(kept, job(status=J.FAILED, restart_count=1), JobFacts(scanned_attempt=2, scan_step=600))
    assert kinds(decision) == ["RequeueJob"]


def test_a_refused_launch_is_told_from_a_script_that_failed() -> None:
    """Only when nothing was heard of the attempt although its batch host has spoken since."""
    mute = attempt(first_task_at=None, failure_seen_at=ago(0.2))
    view = job(status=J.FAILED, exit_code=1, batch_host="worker-1")
    waits = decide(record(mute), view, JobFacts(scanned_attempt=1, scan_step=-1))
    assert waits.actions == ()
    spoken = decide(
        record(replace(mute, failure_seen_at=ago(2))), view, JobFacts(scanned_attempt=1), node(1, heartbeat_at=ago(0.1))
    )
    assert (kinds(spoken), ended(spoken).cause) == (["RequeueJob"], ExitCause.LAUNCH_FAILED)
    assert "worker-1 refused to launch it" in ended(spoken).message
    told = decide(
        record(replace(mute, failure_seen_at=ago(2))), view, exits(batch_exit(), scanned_attempt=1, scan_step=-1)
    )
    assert ended(told).cause is ExitCause.APPLICATION


@pytest.mark.parametrize(
    "host",
    [node(1, heartbeat_at=ago(3.2)), node(1, is_ready=False)],
    ids=["silent since", "its plugin is not proven"],
)
def test_without_word_from_the_batch_host_a_failed_script_is_the_programs(host: NodeView) -> None:
    mute = attempt(first_task_at=None, failure_seen_at=ago(3.5))
    view = job(status=J.FAILED, exit_code=1, batch_host="worker-1")
    decision = decide(record(mute), view, JobFacts(scanned_attempt=1, scan_step=-1), host)
    assert ended(decision).cause is ExitCause.APPLICATION


@pytest.mark.parametrize("reason", ["batch job complete failure", "SlurmdSpoolDir is full", "Prolog error"])
def test_a_node_that_slurm_drained_because_it_could_not_launch_is_to_blame(reason: str) -> None:
    refusing = node(1, is_drained=True, reason=reason, reason_by="slurm")
    mute = record(attempt(first_task_at=None))
    decision = decide(mute, job(status=J.PENDING, restart_count=1), NO_FACTS, refusing)
    assert ended(decision).cause is ExitCause.LAUNCH_FAILED
    assert decision.record.avoid == {machine(1): "worker-1"}


# --- all jobs ---------------------------------------------------------------------------------------------------


def test_jobs_that_are_not_armed_or_are_judged_already_are_left_alone() -> None:
    world = snapshot(*nodes(4), jobs=(job(1, J.FAILED), job(2, J.FAILED), job(3, J.FAILED)))
    kept = {
        1: record(attempt(), job_id=1, armed_by=""),
        2: record(attempt(), job_id=2, verdict="UserCancelled"),
        3: record(attempt(), job_id=3, armed_by="job"),
    }
    plan = decide_jobs(replace(world, records=kept), RESUME)
    assert {a.job_id for a in plan.actions if isinstance(a, do.JobAction)} == {3}


def test_a_record_is_saved_before_what_relies_on_it() -> None:
    world: Snapshot = snapshot(*nodes(4), jobs=(job(7, J.NODE_FAIL),), records={7: record(attempt())})
    assert [type(a) for a in decide_jobs(world, RESUME).actions] == [do.SaveJob, do.RequeueJob]


@pytest.mark.parametrize(
    ("environment", "default", "armed"),
    [
        ({"HYPERPOD_AUTO_RESUME": "3"}, False, ("job", 3)),
        ({"HYPERPOD_AUTO_RESUME": "1"}, False, ("job", None)),
        ({"HYPERPOD_AUTO_RESUME": "default"}, False, ("job", None)),
        ({"HYPERPOD_AUTO_RESUME": "0"}, True, ("", None)),
        ({}, True, ("job", None)),
        ({}, False, ("", None)),
    ],
)
def test_a_job_is_armed_by(environment: dict[str, str], default: bool, armed: tuple[str, int | None]) -> None:
    assert is_armed_by(environment, replace(RESUME, default=default)) == armed


def test_only_severe_findings_are_named_actions() -> None:
    """A finding that asks for nothing moves no job."""
    told = node(1, findings=(fatal(action=Action.NONE),))
    assert decide(record(attempt()), job(), NO_FACTS, told).actions == ()


def test_the_last_attempt_is_told_to_slurm_which_would_start_another_by_itself() -> None:
    last = record(attempt(), max_attempts=1)
    decision = decide(last, job(is_requeue_allowed=True))
    assert [type(a) for a in decision.actions] == [do.ForbidRequeue]
    assert decide(last, job(is_requeue_allowed=False)).actions == ()


def test_a_task_that_reports_after_the_jobs_end_gives_the_failure_its_name() -> None:
    view = job(status=J.FAILED, exit_code=1)
    closed = decide(record(attempt()), view).record
    assert closed.current is not None
    assert closed.current.signature == "batch:1:0"
    late = decide(closed, view, JobFacts(exits=(exit_of(0, code=2),))).record
    assert late.current is not None
    assert late.current.signature == "task:2:0"


def test_a_failed_script_waits_a_moment_for_the_reports_of_its_tasks() -> None:
    view = job(status=J.FAILED, exit_code=1)
    scanned = JobFacts(scanned_attempt=1, scan_step=-1)
    seen = decide(record(attempt()), view, scanned)
    assert seen.actions == ()
    assert timedelta(0) < seen.wake_after <= timedelta(seconds=1)
    earlier = attempt(failure_seen_at=ago(2))
    assert [type(a) for a in decide(record(earlier), view, scanned).actions] == [do.RequeueJob]
