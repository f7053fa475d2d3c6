"""Decide whether a job is started again, where not, and when to give up.

Owns the life of an armed job over its attempts. State changes (``update_record``) and due actions
(``decide_resume``) are apart; both only compute. A job that is not armed gets no action at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from hyperpod.core import plan as do
from hyperpod.core.attempts import (
    DEAD_CAUSES,
    dead_nodes,
    excluded_nodes,
    failure_signature,
    first_failure,
    has_room,
    is_held_for_exclusion,
    is_launch_failed,
    may_be_refused,
    update_record,
    why_bad,
)
from hyperpod.core.attribution import AFTER
from hyperpod.core.eviction import soft_eviction, spare_for
from hyperpod.core.job import (
    BATCH_STEP,
    INTERACTIVE_STEP,
    Attempt,
    ExitCause,
    JobRecord,
    JobStatus,
    JobView,
    TaskExit,
)
from hyperpod.core.judging import judged
from hyperpod.core.liveness import SHUTDOWN_CAUSE, urgent_findings
from hyperpod.core.node import Availability, NodeView, RepairStatus
from hyperpod.core.plan import Note, Plan
from hyperpod.core.policy import ResumePolicy
from hyperpod.core.repair import IDLE_WAKE
from hyperpod.core.snapshot import JobFacts, Snapshot
from hyperpod.core.verdict import Kind

SOON = timedelta(milliseconds=200)
"""Sleep while a job is between two states that Slurm passes through quickly."""

REPORT_PATIENCE = timedelta(seconds=1)

LAUNCH_PATIENCE = timedelta(seconds=3)
"""Where nothing was heard of an attempt at all: two heartbeats of its batch host decide whether it was launched."""

CONVICTED_LIMIT = 2
"""Failures without a new checkpoint that end a job whose program is convicted, whatever the policy's own limit is."""

NO_FACTS = JobFacts()

LONGEST_REQUEUE_DELAY = timedelta(seconds=180)
"""Slurm begins a requeued job 120 s later; a begin time past this was set by a person."""


@dataclass(frozen=True)
class ResumeDecision:
    """What happens with one job: the new record (when it changed), the actions, and why."""

    record: JobRecord
    actions: tuple[do.Action, ...] = ()
    notes: tuple[Note, ...] = ()
    wake_after: timedelta = IDLE_WAKE


def decide_resume(
    record: JobRecord, view: JobView | None, facts: JobFacts, snapshot: Snapshot, policy: ResumePolicy
) -> ResumeDecision:
    """Decide what to do with one job now.

    Pure; same input, same decision.

    Args:
        record: What is remembered; jobs that are not armed get no action.
        view: The job now; None when Slurm answered that it does not know it.
        facts: Reports of the plugin and the checkpoint scan for the present attempt.
        snapshot: The world at ``snapshot.now``.
        policy: Limits.

    Returns:
        The record as it is now, the actions due, and notes for people. While the observation is incomplete, no
        destructive action is due.
    """
    if not record.is_armed or record.verdict:
        return ResumeDecision(record)
    if view is None:
        if "slurm" in snapshot.missing:
            return ResumeDecision(record)
        return _stop(record, "JobGone", "Slurm does not know the job any more")
    before = record
    record = judged(update_record(record, view, facts, snapshot, policy), facts, snapshot)
    if "slurm" in snapshot.missing:
        note = Note("IncompleteObservation", "no answer from slurm: the job is left alone", job_id=record.job_id)
        return ResumeDecision(before, notes=(note,))
    if view.status in (JobStatus.RUNNING, JobStatus.CONFIGURING):
        return _running(record, view, facts, snapshot, policy)
    if view.status is JobStatus.PENDING:
        return _pending(record, view, snapshot)
    if view.status.is_over:
        return _over(record, view, facts, snapshot, policy)
    return ResumeDecision(record)


def _stop(record: JobRecord, verdict: str, message: str) -> ResumeDecision:
    stopped = replace(record, verdict=verdict, verdict_message=message)
    return ResumeDecision(stopped)


def _requeue(
    record: JobRecord, view: JobView, why: str, snapshot: Snapshot, cause: ExitCause | None = None, signature: str = ""
) -> ResumeDecision:
    """Requeue a job; ``cause`` says why when it still runs."""
    if not view.is_batch:
        if view.status.is_over:
            return _stop(record, "Interactive", f"only batch jobs can be started again: {why}")
        note = Note("Interactive", f"only batch jobs can be started again: {why}", job_id=record.job_id)
        return ResumeDecision(record, notes=(note,))
    current = record.current
    if current is not None and current.decided_at is None:
        decided = replace(current, decided_at=snapshot.now)
        if cause is not None:
            decided = replace(decided, decided_cause=cause, message=why, signature=signature)
        record = record.with_attempt(decided)
    action = do.RequeueJob(why, record.job_id, view.restart_count, view.status)
    return ResumeDecision(record, (action,), wake_after=SOON)


def _running(
    record: JobRecord, view: JobView, facts: JobFacts, snapshot: Snapshot, policy: ResumePolicy
) -> ResumeDecision:
    now = snapshot.now
    current = record.current
    assert current is not None
    if current.number >= (record.max_attempts or policy.max_attempts) and view.is_batch and view.is_requeue_allowed:
        why = f"attempt {current.number} is the last one allowed"
        return ResumeDecision(record, (do.ForbidRequeue(why, record.job_id),))
    is_undisturbed = snapshot.troubled.isdisjoint(view.nodes) and snapshot.troubled.isdisjoint(current.nodes)
    if is_undisturbed and current.first_task_at is not None and not facts.exits:
        return ResumeDecision(record)
    mine = {name: snapshot.by_name[name] for name in view.nodes if name in snapshot.by_name}
    bad = [n for n in mine.values() if _must_leave(n)]
    limit = record.max_attempts or policy.max_attempts
    lost = [why for n, why in dead_nodes(current, snapshot.by_name) if n.availability is Availability.DOWN]
    if lost and view.status is JobStatus.RUNNING:
        # Slurm ends such a job by itself, unless it was told not to (--no-kill): then nobody else ever would.
        if current.number >= limit:
            return ResumeDecision(record, notes=(_used_up(record, limit, "; ".join(lost)),))
        return _requeue(record, view, "; ".join(lost), snapshot, ExitCause.NODE_DEAD)
    if bad:
        why = "; ".join(f"{n.name}: {why_bad(n)}" for n in sorted(bad, key=lambda n: n.name))
        avoid = {**record.avoid, **{n.instance_id: n.name for n in bad if n.instance_id}}
        record = replace(record, avoid=avoid)
        if current.failure_seen_at is None:
            record = record.with_attempt(replace(current, failure_seen_at=now))
        if current.number >= limit:
            return ResumeDecision(record, notes=(_used_up(record, limit, why),))
        if any(n.repair is None and not n.is_drained for n in bad):
            # The drain comes first: a requeued job must find the node closed.
            note = Note("WaitsForDrain", f"a bad node is not drained yet: {why}", job_id=record.job_id)
            return ResumeDecision(record, notes=(note,))
        return _requeue(record, view, why, snapshot, ExitCause.NODE_UNHEALTHY)
    failure = first_failure(facts, view.restart_count)
    if failure is not None and failure.step_id not in (BATCH_STEP, INTERACTIVE_STEP):
        # Exits are ordered by the nodes' clocks; the grace counts from when we saw it on ours.
        seen = current.failure_seen_at or now
        left = seen + timedelta(seconds=policy.step_kill_grace_s) - now
        if left > timedelta(0):
            return ResumeDecision(record, wake_after=left)
        if record.armed_by == "step" and view.is_batch:
            return _step_failed(record, current, view, failure, facts, snapshot, policy)
        return _end_step(record, view, failure, facts)
    if failure is not None:
        return ResumeDecision(record, wake_after=SOON)
    started = current.started_at
    if started is not None and current.first_task_at is None and view.status is JobStatus.RUNNING:
        deadline = started + timedelta(seconds=policy.first_task_timeout_s)
        heard = [n for n in mine.values() if n.is_ready and n.heartbeat_at is not None and n.heartbeat_at > started]
        if now >= deadline and mine and len(heard) == len(mine) and snapshot.started_at < started:
            if current.number >= limit:
                return ResumeDecision(record, notes=(_used_up(record, limit, "no task was ever started"),))
            why = f"no task started within {policy.first_task_timeout_s:g} s"
            return _requeue(record, view, why, snapshot, ExitCause.LAUNCH_FAILED)
    return ResumeDecision(record)


def _end_step(record: JobRecord, view: JobView, failure: TaskExit, facts: JobFacts) -> ResumeDecision:
    """End what is left of a step once: its survivors would wait for the lost one for half an hour."""
    if (view.restart_count, failure.step_id) in facts.killed_steps:
        return ResumeDecision(record, wake_after=timedelta(seconds=1))
    kill = do.KillStep(failure.sentence, record.job_id, view.restart_count, failure.step_id)
    return ResumeDecision(record, (kill,), wake_after=SOON)


def _must_leave(node: NodeView) -> bool:
    """Say whether a running job must leave a node that still works: it is found ill, or it is shutting down."""
    repair = node.repair
    if repair is not None and repair.cause == SHUTDOWN_CAUSE and repair.status is RepairStatus.DRAINING:
        return True
    return bool(urgent_findings(node)) and (repair is None or repair.cause not in DEAD_CAUSES)


def _step_failed(
    record: JobRecord,
    current: Attempt,
    view: JobView,
    failure: TaskExit,
    facts: JobFacts,
    snapshot: Snapshot,
    policy: ResumePolicy,
) -> ResumeDecision:
    """``srun --auto-resume`` failed: the whole job is requeued, before its script sees the failure."""
    if facts.scanned_attempt != current.number:
        scan = do.ScanCheckpoints("was there progress?", record.job_id, current.number)
        return ResumeDecision(record, (scan,), wake_after=SOON)
    signature = failure_signature(view, failure)
    seen = replace(current, cause=ExitCause.APPLICATION, signature=signature, last_step=facts.scan_step)
    limit = record.max_attempts or policy.max_attempts
    is_hopeless = _trailing_failures(record.with_attempt(seen)) >= policy.same_failure_limit
    if is_hopeless or current.number >= limit:
        # The script sees its step fail, as without us; the verdict follows when it has ended.
        return _end_step(record, view, failure, facts)
    record = record.with_attempt(replace(current, last_step=facts.scan_step))
    return _requeue(record, view, failure.sentence, snapshot, ExitCause.APPLICATION, signature)


def _used_up(record: JobRecord, limit: int, why: str) -> Note:
    return Note("AttemptsUsedUp", f"all {limit} attempts are used up: {why}", job_id=record.job_id)


def _made_progress(record: JobRecord, attempt: Attempt) -> bool | None:
    """Say whether a newer checkpoint was completed in an attempt; None when that is not known.

    What it started from is what it was given, or the newest that earlier attempts left, whichever is known.
    """
    if attempt.last_step is None:
        return None
    if attempt.resume_from:
        return attempt.last_step > attempt.resume_step
    before = [a.last_step for a in record.attempts if a.number < attempt.number and a.last_step is not None]
    return attempt.last_step > max(before, default=-1)


def _trailing_failures(record: JobRecord) -> int:
    """Count equal failures of the application at the end of the history with no new checkpoint between them.

    None when the last attempt itself made progress. One that progressed and then failed is where the count ends,
    itself included: its checkpoint came before its failure.
    """
    count = 0
    signature = ""
    for attempt in reversed(record.attempts):
        if attempt.cause is None or not attempt.cause.is_applications:
            break
        if attempt.attribution is not None and attempt.attribution.kind is Kind.NODE:
            break
        if signature and attempt.signature != signature:
            break
        # What could not be looked at does not count against the job; the number of attempts still bounds it.
        has_progress = _made_progress(record, attempt) is not False
        if has_progress and not count:
            break
        signature = attempt.signature
        count += 1
        if has_progress:
            break
    return count


def _over(
    record: JobRecord, view: JobView, facts: JobFacts, snapshot: Snapshot, policy: ResumePolicy
) -> ResumeDecision:
    current = record.current
    if current is None or current.cause is None:
        if view.status is JobStatus.CANCELLED:
            return _stop(record, "UserCancelled", "it was cancelled before it ran")
        return _stop(record, "NotStarted", f"it ended without having run: {view.status.value}")
    cause, message = current.cause, current.message
    limit = record.max_attempts or policy.max_attempts
    if cause is ExitCause.COMPLETED:
        return _stop(record, "Completed", message)
    if cause is ExitCause.USER_CANCELLED:
        return _stop(record, "UserCancelled", "its user or an administrator cancelled it")
    if cause is ExitCause.TIME_LIMIT and policy.on_time_limit != "resume":
        return _stop(record, "TimeLimit", "its time limit was reached (policy OnTimeLimit: stop)")
    if cause is ExitCause.PREEMPTED:
        return ResumeDecision(record, notes=(Note("Preempted", "left to Slurm's preemption", job_id=record.job_id),))
    if current.number >= limit:
        return _stop(record, "AttemptsUsedUp", f"all {limit} attempts are used up; the last: {message}")
    if cause.is_applications:
        if current.last_step is None and facts.scanned_attempt != current.number:
            scan = do.ScanCheckpoints("was there progress?", record.job_id, current.number)
            return ResumeDecision(record, (scan,), wake_after=SOON)
        if cause is ExitCause.APPLICATION and current.signature.startswith("batch:"):
            # Which task fell first may still be on its way, and tells better than the script's own status.
            patience = LAUNCH_PATIENCE if may_be_refused(current, facts) else REPORT_PATIENCE
            left = (current.failure_seen_at or snapshot.now) + patience - snapshot.now
            if left > timedelta(0):
                return ResumeDecision(record, wake_after=min(left, REPORT_PATIENCE))
        failures = _trailing_failures(record)
        verdict = current.attribution
        is_convicted = verdict is not None and verdict.is_elsewhere
        if failures >= (min(CONVICTED_LIMIT, policy.same_failure_limit) if is_convicted else policy.same_failure_limit):
            told = f"the same failure {failures} times with no new checkpoint between: {message}"
            if verdict is not None and verdict.kind is Kind.APPLICATION:
                told = f"{told} ({verdict.reason})"
            return _stop(record, "ApplicationFault", told)
    return _requeue(record, view, message, snapshot)


def _pending(record: JobRecord, view: JobView, snapshot: Snapshot) -> ResumeDecision:
    current = record.current
    if view.is_held:
        if is_launch_failed(view) and not record.released_once:
            excluded = excluded_nodes(record, view, snapshot)
            release: list[do.Action] = [do.ReleaseJob("its launch failed on a bad node", record.job_id)]
            if tuple(sorted(view.excluded)) != excluded:
                why = "not again where its launch failed"
                release.insert(0, do.ExpediteJob(why, record.job_id, excluded, False, True, False))
            return ResumeDecision(replace(record, released_once=True), tuple(release), wake_after=SOON)
        if is_held_for_exclusion(record, view):
            # Slurm holds for ever what no node of the partition could run; without our word it could.
            excluded = excluded_nodes(record, view, snapshot)
            is_changed = tuple(sorted(view.excluded)) != excluded
            if has_room(view, snapshot, excluded) and (is_changed or not record.released_once):
                why = "nodes that it was kept from are needed after all"
                let_go = (
                    do.ExpediteJob(why, record.job_id, excluded, False, True, False),
                    do.ReleaseJob(why, record.job_id),
                )
                kept = record if is_changed else replace(record, released_once=True)
                return ResumeDecision(kept, let_go, wake_after=SOON)
        note = Note("Held", f"held: {view.pending_message or view.pending_reason}", job_id=record.job_id)
        return ResumeDecision(record, notes=(note,))
    if current is None or current.ended_at is None or current.restart_count >= view.restart_count:
        return ResumeDecision(record)
    if current.cause in (ExitCause.OTHER, ExitCause.PREEMPTED, None):
        return ResumeDecision(record)
    leftovers = _leftovers(record, current, view, snapshot)
    hard = excluded_nodes(record, view, snapshot)
    soft = soft_eviction(record, view, snapshot, hard)
    excluded = tuple(sorted({*hard, *soft.nodes}))
    is_delayed = view.begin_at is not None and snapshot.now < view.begin_at <= current.ended_at + LONGEST_REQUEUE_DELAY
    too_early = current.ended_at.replace(microsecond=0) + timedelta(seconds=1) - snapshot.now
    expedite = do.ExpediteJob(
        current.message,
        record.job_id,
        excluded=excluded,
        # A node refuses ("already killed") what is started in the very second in which the attempt before was ended:
        # slurmd compares the two in whole seconds (24.11, cred_context.c).
        start_now=is_delayed and too_early <= timedelta(0),
        set_excluded=tuple(sorted(view.excluded)) != excluded,
        top_priority=view.priority < TOP_PRIORITY,
    )
    spare = spare_for(soft.wanted, view, snapshot) if snapshot.is_complete else None
    if spare is not None:
        why = f"job {record.job_id} should not get {soft.wanted[0]} again, and there is no other node for it"
        leftovers = (*leftovers, do.UseSpare(why, spare.name, spare.partition))
    if expedite.start_now or expedite.set_excluded or expedite.top_priority:
        return ResumeDecision(record, (*leftovers, expedite), wake_after=SOON)
    if is_delayed:
        return ResumeDecision(record, leftovers, wake_after=min(SOON, too_early))
    if view.is_completing or spare is not None:
        return ResumeDecision(record, leftovers, wake_after=SOON)
    if view.pending_reason in ("Resources", "Priority", "None", ""):
        return ResumeDecision(record, wake_after=timedelta(milliseconds=500))
    text = f"waits for {view.pending_reason}: {view.pending_message or 'no further word from Slurm'}"
    return ResumeDecision(record, notes=(Note("CannotStart", text, job_id=record.job_id),))


def _leftovers(record: JobRecord, attempt: Attempt, view: JobView, snapshot: Snapshot) -> tuple[do.Action, ...]:
    """After a grace, end what holds a requeued job in COMPLETING; where a node died nothing there ends by itself."""
    if not view.is_completing or attempt.ended_at is None:
        return ()
    is_node = attempt.cause in (ExitCause.NODE_DEAD, ExitCause.NODE_UNHEALTHY)
    age = snapshot.now - attempt.ended_at
    if age < (LEFTOVER_GRACE_NODE if is_node else LEFTOVER_GRACE):
        return ()
    alive = tuple(
        n.name
        for n in snapshot.nodes
        if n.name in attempt.nodes and (n.repair is None or n.repair.cause not in DEAD_CAUSES)
    )
    why = f"attempt {attempt.number} is over but still holds its nodes"
    return (do.EndLeftovers(why, record.job_id, alive, age.total_seconds()),)


LEFTOVER_GRACE_NODE = timedelta(milliseconds=300)

LEFTOVER_GRACE = timedelta(seconds=8)
"""Slurm's own KillWait comes first when all nodes live: tasks may use SIGTERM to end well."""

TOP_PRIORITY = 4_000_000_000
"""Priority of a resumed job; above every computed one, below Slurm's own reserved values (2^32 - 1 and - 2)."""


def decide_jobs(snapshot: Snapshot, policy: ResumePolicy) -> Plan:
    """Decide for every remembered job, in the order of their ids.

    Pure. Changed records come as ``SaveJob`` before the actions that rely on them.
    """
    views = {job.job_id: job for job in snapshot.jobs}
    actions: list[do.Action] = []
    notes: list[Note] = []
    wake = IDLE_WAKE
    for job_id in sorted(snapshot.records):
        record = snapshot.records[job_id]
        if not record.is_armed:
            continue
        if record.verdict:
            late = _late(record, snapshot)
            if late is not record:
                actions.append(do.SaveJob("its last attempt is judged anew", job_id, late))
            continue
        facts = snapshot.facts.get(job_id, NO_FACTS)
        decision = decide_resume(record, views.get(job_id), facts, snapshot, policy)
        if decision.record is not record and decision.record != record:
            why = decision.record.verdict_message or "its attempts are written down"
            actions.append(do.SaveJob(why, job_id, decision.record))
        actions += decision.actions
        notes += decision.notes
        wake = min(wake, decision.wake_after)
    return Plan(tuple(actions), tuple(notes), wake)


def _late(record: JobRecord, snapshot: Snapshot) -> JobRecord:
    """A finding that comes within minutes of a job's end revises who ended it; whether it is over stays as it is."""
    current = record.current
    if current is None or current.ended_at is None or snapshot.now > current.ended_at + AFTER:
        return record
    if "slurm" in snapshot.missing or snapshot.troubled.isdisjoint(current.nodes):
        return record
    return judged(record, NO_FACTS, snapshot)


def is_armed_by(environment: Mapping[str, str], policy: ResumePolicy) -> tuple[str, int | None]:
    """Read from a job's stored environment whether it is armed: (``job`` or empty, most attempts or None).

    ``HYPERPOD_AUTO_RESUME`` is set by the plugin: a number, ``default``, or ``0`` for a refusal.
    """
    value = environment.get("HYPERPOD_AUTO_RESUME", "")
    if value == "0":
        return "", None
    if value or policy.default:
        return "job", most_attempts(value)
    return "", None


def most_attempts(value: str) -> int | None:
    """Return the number of attempts that ``--auto-resume`` asks for; None for the cluster's number.

    1 switches it on, as it does on SageMaker HyperPod: one attempt and no other would be no auto-resume.
    """
    return int(value) if value.isdigit() and value != "1" else None
