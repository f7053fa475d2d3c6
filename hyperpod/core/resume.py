"""Decide whether a job is started again, where not, and when to give up.

Owns the life of an armed job over its attempts. State changes (``update_record``) and due actions
(``decide_resume``) are apart; both only compute. A job that is not armed gets no action at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from hyperpod.core import plan as do
from hyperpod.core.job import (
    BATCH_STEP,
    EXTERN_STEP,
    INTERACTIVE_STEP,
    Attempt,
    ExitCause,
    JobRecord,
    JobStatus,
    JobView,
    TaskExit,
)
from hyperpod.core.node import Availability, NodeView, RepairStatus
from hyperpod.core.plan import Note, Plan
from hyperpod.core.policy import ResumePolicy
from hyperpod.core.repair import DEAD_CAUSE, IDLE_WAKE, SHUTDOWN_CAUSE, fatal_findings
from hyperpod.core.snapshot import JobFacts, Snapshot

SOON = timedelta(milliseconds=200)
"""Sleep while a job is between two states that Slurm passes through quickly."""

DEAD_CAUSES = (DEAD_CAUSE, SHUTDOWN_CAUSE)
REPORT_PATIENCE = timedelta(seconds=1)
NO_FACTS = JobFacts()
_NO_OUTPUT_FILE = 53
"""No signal of Linux's; Slurm says it when a batch script's files cannot be opened."""
_SIGKILL = 9
_SIGTERM = 15
LONGEST_REQUEUE_DELAY = timedelta(seconds=180)
"""Slurm begins a requeued job 120 s later; a begin time past this was set by a person."""


@dataclass(frozen=True)
class ResumeDecision:
    """What happens with one job: the new record (when it changed), the actions, and why."""

    record: JobRecord
    actions: tuple[do.Action, ...] = ()
    notes: tuple[Note, ...] = ()
    wake_after: timedelta = IDLE_WAKE


def first_failure(facts: JobFacts, restart_count: int) -> TaskExit | None:
    """Return the failure that came first in this attempt, before those that it dragged along.

    Exits by SIGTERM and steps that we killed ourselves follow others; they count only when nothing else failed.
    """
    own = [e for e in facts.exits if e.restart_count == restart_count and e.is_failure and e.step_id != EXTERN_STEP]
    causes = [e for e in own if e.signal != _SIGTERM and e.step_id != BATCH_STEP]
    tasks = [e for e in own if e.step_id != BATCH_STEP]
    return min(causes or tasks or own, key=lambda e: (e.time, e.rank), default=None)


def _signature(view: JobView, failure: TaskExit | None) -> str:
    if failure is None:
        return f"batch:{view.exit_code}:{view.exit_signal}"
    what = "batch" if failure.step_id == BATCH_STEP else "task"
    return f"{what}:{failure.exit_code or 0}:{failure.signal or 0}"


def _dead_nodes(attempt: Attempt, nodes: Mapping[str, NodeView]) -> list[tuple[NodeView, str]]:
    """Return the attempt's nodes that died during it, each with a sentence.

    Their machine was fenced or is being replaced as dead, or Slurm itself has given them up.
    """
    dead = []
    for name, instance in zip(attempt.nodes, attempt.instance_ids, strict=False):
        node = nodes.get(name)
        if node is None:
            continue
        repair = node.repair
        if repair is not None:
            is_off = repair.cause in DEAD_CAUSES or repair.status is RepairStatus.FENCING
            if is_off and (not instance or repair.instance_id in ("", instance)):
                dead.append((node, repair.message))
        elif node.availability is Availability.DOWN and instance in ("", node.instance_id):
            dead.append((node, f"{name} is down: {node.reason or 'Slurm does not reach it'}"))
    return dead


def _is_leaving(node: NodeView) -> bool:
    """Say whether a node is on its way out because it is ill; what people ask for waits for its jobs."""
    repair = node.repair
    if repair is None or repair.status is not RepairStatus.DRAINING:
        return False
    return not repair.cause.startswith("admin/")


def _unhealthy_nodes(
    attempt: Attempt, nodes: Mapping[str, NodeView], snapshot: Snapshot, policy: ResumePolicy
) -> list[NodeView]:
    """Return the attempt's nodes whose own FATAL findings may explain its end."""
    oldest = snapshot.now - timedelta(seconds=policy.evidence_before_s)
    if attempt.started_at is not None:
        oldest = min(oldest, attempt.started_at)
    bad = []
    for name in attempt.nodes:
        node = nodes.get(name)
        if node is None:
            continue
        is_explained = any(f.since is None or f.since >= oldest for f in fatal_findings(node))
        if is_explained or _is_leaving(node):
            bad.append(node)
    return bad


def classify(
    view: JobView,
    attempt: Attempt,
    facts: JobFacts,
    nodes: Mapping[str, NodeView],
    snapshot: Snapshot,
    policy: ResumePolicy,
) -> tuple[ExitCause, str, str]:
    """Say why an attempt ended: cause, sentence with the evidence, signature.

    Pure. Slurm's own word comes first (a cancelled job is cancelled whatever signals its tasks saw), then hard
    facts about its nodes, then the exits of its tasks.
    """
    status = view.status
    failure = first_failure(facts, attempt.restart_count)
    signature = _signature(view, failure)
    if status is JobStatus.CANCELLED:
        return ExitCause.USER_CANCELLED, "it was cancelled", ""
    if status in (JobStatus.TIMEOUT, JobStatus.DEADLINE):
        return ExitCause.TIME_LIMIT, "its time limit was reached", ""
    if status is JobStatus.PREEMPTED:
        return ExitCause.PREEMPTED, "it was preempted", ""
    dead = _dead_nodes(attempt, nodes)
    if status is JobStatus.COMPLETED:
        killed = failure is not None and failure.signal is not None and failure.signal != _SIGTERM
        if failure is None or not killed or failure.step_id == BATCH_STEP:
            return ExitCause.COMPLETED, "it completed", ""
        if _later_step_succeeded(facts, failure):
            return ExitCause.COMPLETED, "it completed after a step of it was killed", ""
        if not dead:
            return ExitCause.APPLICATION, f"{failure.sentence}; the script's own status 0 hides it", signature
    if dead:
        return ExitCause.NODE_DEAD, "; ".join(why for _, why in dead), ""
    if attempt.decided_cause is not None:
        return attempt.decided_cause, attempt.message, attempt.signature
    if status is JobStatus.NODE_FAIL:
        return ExitCause.NODE_DEAD, "Slurm ended it because a node failed", ""
    if is_launch_failed(view):
        return ExitCause.LAUNCH_FAILED, "Slurm could not launch it and holds it", ""
    bad = _unhealthy_nodes(attempt, nodes, snapshot, policy)
    if bad:
        why = "; ".join(f"{n.name}: {_why_bad(n)}" for n in bad)
        return ExitCause.NODE_UNHEALTHY, why, ""
    if status is JobStatus.BOOT_FAIL:
        return ExitCause.LAUNCH_FAILED, "a node did not boot for it", ""
    if status is JobStatus.OUT_OF_MEMORY:
        return ExitCause.OUT_OF_MEMORY, "it used more memory than it had asked for", signature
    if status is JobStatus.FAILED:
        sentence = failure.sentence if failure else _batch_sentence(view)
        return ExitCause.APPLICATION, sentence, signature
    # Whoever requeues a running job has its tasks end by these signals: they say nothing about the program.
    if failure is not None and failure.signal not in (_SIGTERM, _SIGKILL):
        return ExitCause.APPLICATION, failure.sentence, signature
    return ExitCause.OTHER, "it was requeued by somebody else", ""


def is_launch_failed(view: JobView) -> bool:
    """Say whether Slurm holds the job because a node could not launch it; a user's own hold is something else."""
    text = f"{view.pending_reason} {view.pending_message}".lower().replace("_", " ")
    return view.status is JobStatus.PENDING and view.is_held and "launch failed" in text


def _why_bad(node: NodeView) -> str:
    fatal = fatal_findings(node)
    if fatal:
        return fatal[0].message
    return node.repair.message if node.repair else "unhealthy"


def _batch_sentence(view: JobView) -> str:
    if view.exit_signal == _NO_OUTPUT_FILE:
        return "Slurm could not open the job's output file (0:53): does its folder exist, may the user write there?"
    if view.exit_signal:
        return f"the batch script was killed by signal {view.exit_signal}"
    return f"the batch script exited with status {view.exit_code}"


def _later_step_succeeded(facts: JobFacts, failure: TaskExit) -> bool:
    """A step that ran well after the failed one shows that the script meant to go on."""
    same = [e for e in facts.exits if e.restart_count == failure.restart_count]
    return any(e.step_id > failure.step_id and e.step_id >= 0 and not e.is_failure for e in same)


def update_record(
    record: JobRecord, view: JobView, facts: JobFacts, snapshot: Snapshot, policy: ResumePolicy
) -> JobRecord:
    """Bring the record up to what is seen: open the attempt that runs, close the one that has ended.

    Pure and idempotent: the same view gives the same record.
    """
    nodes = snapshot.by_name
    current = record.current
    if current is not None and current.ended_at is None:
        current = _observed(current, view, facts, snapshot)
        ended = view.status.is_over or view.restart_count > current.restart_count
        if ended:
            cause, message, signature = classify(view, current, facts, nodes, snapshot, policy)
            closed = replace(
                current,
                ended_at=view.ended_at if view.status.is_over and view.ended_at else snapshot.now,
                cause=cause,
                message=message,
                signature=signature,
                failure_seen_at=_failure_seen_at(current, cause, nodes, snapshot),
            )
            record = _avoid_bad_nodes(record.with_attempt(closed), closed, nodes)
        elif current is not record.current:
            record = record.with_attempt(current)
    current = record.current
    is_running = view.status in (JobStatus.RUNNING, JobStatus.CONFIGURING, JobStatus.SUSPENDED)
    if is_running and (current is None or view.restart_count > current.restart_count):
        number = view.restart_count + 1
        started = Attempt(number=number, restart_count=view.restart_count)
        record = record.with_attempt(_observed(started, view, facts, snapshot))
    elif (
        view.status.is_over
        and view.started_at is not None
        and (current is None or (current.ended_at is not None and view.restart_count > current.restart_count))
    ):
        # It ran and ended between two looks.
        missed = Attempt(view.restart_count + 1, view.restart_count, view.started_at, view.nodes)
        record = update_record(record.with_attempt(missed), view, facts, snapshot, policy)
    current = record.current
    if current is not None and current.ended_at is not None and facts.scanned_attempt == current.number:
        record = record.with_attempt(replace(current, last_step=facts.scan_step))
    return _with_late_reports(_with_steps_reached(record), view, facts)


def _with_late_reports(record: JobRecord, view: JobView, facts: JobFacts) -> JobRecord:
    """Judge a failure of the program again when the reports of its tasks come after the job's end.

    The batch script's status differs with the order in which things fell; the first task's does not.
    """
    for attempt in record.attempts[-2:]:
        if attempt.cause is not ExitCause.APPLICATION or not attempt.signature.startswith("batch:"):
            continue
        failure = first_failure(facts, attempt.restart_count)
        if failure is not None and failure.step_id != BATCH_STEP and failure.signal != _SIGTERM:
            told = replace(attempt, signature=_signature(view, failure), message=failure.sentence)
            record = record.with_attempt(told)
    return record


def _with_steps_reached(record: JobRecord) -> JobRecord:
    """What an attempt was resumed from is how far the one before it had come, where nothing better is known."""
    for before, after in pairwise(record.attempts):
        if before.last_step is None and after.resume_from:
            record = record.with_attempt(replace(before, last_step=after.resume_step))
    return record


def _observed(attempt: Attempt, view: JobView, facts: JobFacts, snapshot: Snapshot) -> Attempt:
    is_its_own = view.restart_count == attempt.restart_count
    is_told = attempt.restart_count in facts.first_tasks or attempt.restart_count in facts.resumes
    if attempt.nodes and attempt.instance_ids and attempt.started_at and not is_told and not facts.exits:
        return attempt
    names = attempt.nodes or (view.nodes if is_its_own else ())
    failure = first_failure(facts, attempt.restart_count)
    path, step = facts.resumes.get(attempt.restart_count, ("", -1))
    return replace(
        attempt,
        nodes=names,
        instance_ids=attempt.instance_ids or tuple(_machine(n, snapshot) for n in names),
        started_at=attempt.started_at or (view.started_at if is_its_own else None),
        resume_from=attempt.resume_from or path,
        resume_step=attempt.resume_step if attempt.resume_from else step,
        first_task_at=attempt.first_task_at or facts.first_tasks.get(attempt.restart_count),
        failure_seen_at=attempt.failure_seen_at or (snapshot.now if failure else None),
    )


def _failure_seen_at(
    attempt: Attempt, cause: ExitCause, nodes: Mapping[str, NodeView], snapshot: Snapshot
) -> datetime | None:
    """Return when the first sign of an attempt's end was seen: a task's failure, or a node's repair that began."""
    if cause is ExitCause.COMPLETED:
        return attempt.failure_seen_at
    repairs = [n.repair.since for n, _ in _dead_nodes(attempt, nodes) if n.repair is not None]
    signs = [*repairs, *([attempt.failure_seen_at] if attempt.failure_seen_at else [])]
    return min(signs, default=snapshot.now)


def _machine(name: str, snapshot: Snapshot) -> str:
    node = snapshot.by_name.get(name)
    return node.instance_id if node else ""


def _avoid_bad_nodes(record: JobRecord, attempt: Attempt, nodes: Mapping[str, NodeView]) -> JobRecord:
    """Remember the machines that ended this attempt; by instance id, so that a replaced machine counts as new."""
    if attempt.cause not in (ExitCause.NODE_DEAD, ExitCause.NODE_UNHEALTHY, ExitCause.LAUNCH_FAILED):
        return record
    avoid = dict(record.avoid)
    for name, instance in zip(attempt.nodes, attempt.instance_ids, strict=False):
        node = nodes.get(name)
        if node is None or not instance:
            continue
        is_only_suspect = attempt.cause is ExitCause.LAUNCH_FAILED and (len(attempt.nodes) == 1 or node.is_drained)
        is_down = node.availability is Availability.DOWN
        if node.repair is not None or fatal_findings(node) or is_down or is_only_suspect:
            avoid[instance] = name
    return replace(record, avoid=avoid)


def excluded_nodes(record: JobRecord, view: JobView, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the nodes that the job must not get: the user's own and those that still are a machine to avoid.

    When too few others are left for the job, machines that have been found well again are not avoided any more:
    a job must not wait for ever for nodes that nobody will bring.
    """
    ours = {name for instance, name in record.avoid.items() if _machine(name, snapshot) in ("", instance)}
    if ours:
        places = [n for n in snapshot.nodes if n.partition == view.partition or not view.partition]
        left = [n for n in places if n.name not in ours and n.name not in record.users_excluded]
        if len(left) < view.node_count:
            ours = {name for name in ours if _is_suspect(snapshot.by_name.get(name))}
    return tuple(sorted({*record.users_excluded, *ours}))


def _is_suspect(node: NodeView | None) -> bool:
    if node is None:
        return False
    is_out = node.repair is not None or node.is_drained or node.availability is Availability.DOWN
    return is_out or bool(fatal_findings(node)) or not node.is_ready


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
    record = update_record(record, view, facts, snapshot, policy)
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
    lost = [why for n, why in _dead_nodes(current, snapshot.by_name) if n.availability is Availability.DOWN]
    if lost and view.status is JobStatus.RUNNING:
        # Slurm ends such a job by itself, unless it was told not to (--no-kill): then nobody else ever would.
        if current.number >= limit:
            return ResumeDecision(record, notes=(_used_up(record, limit, "; ".join(lost)),))
        return _requeue(record, view, "; ".join(lost), snapshot, ExitCause.NODE_DEAD)
    if bad:
        why = "; ".join(f"{n.name}: {_why_bad(n)}" for n in sorted(bad, key=lambda n: n.name))
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
    return bool(fatal_findings(node)) and (repair is None or repair.cause not in DEAD_CAUSES)


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
    signature = _signature(view, failure)
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
            left = (current.failure_seen_at or snapshot.now) + REPORT_PATIENCE - snapshot.now
            if left > timedelta(0):
                return ResumeDecision(record, wake_after=left)
        failures = _trailing_failures(record)
        if failures >= policy.same_failure_limit:
            told = f"the same failure {failures} times with no new checkpoint between: {message}"
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
        note = Note("Held", f"held: {view.pending_message or view.pending_reason}", job_id=record.job_id)
        return ResumeDecision(record, notes=(note,))
    if current is None or current.ended_at is None or current.restart_count >= view.restart_count:
        return ResumeDecision(record)
    if current.cause in (ExitCause.OTHER, ExitCause.PREEMPTED, None):
        return ResumeDecision(record)
    leftovers = _leftovers(record, current, view, snapshot)
    excluded = excluded_nodes(record, view, snapshot)
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
    if expedite.start_now or expedite.set_excluded or expedite.top_priority:
        return ResumeDecision(record, (*leftovers, expedite), wake_after=SOON)
    if is_delayed:
        return ResumeDecision(record, leftovers, wake_after=min(SOON, too_early))
    if view.is_completing:
        return ResumeDecision(record, leftovers, wake_after=SOON)
    if view.pending_reason in ("Resources", "Priority", "None", ""):
        return ResumeDecision(record, wake_after=timedelta(milliseconds=500))
    text = f"waits for {view.pending_reason}: {view.pending_message or 'no further word from Slurm'}"
    return ResumeDecision(record, notes=(Note("CannotStart", text, job_id=record.job_id),))


def _leftovers(record: JobRecord, attempt: Attempt, view: JobView, snapshot: Snapshot) -> tuple[do.EndLeftovers, ...]:
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
        if not record.is_armed or record.verdict:
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
