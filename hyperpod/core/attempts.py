"""The record of a job brought up to what is seen: attempts that begin, end, and why. Only computes, takes no action."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from hyperpod.core.job import (
    BATCH_STEP,
    EXTERN_STEP,
    Attempt,
    ExitCause,
    JobRecord,
    JobStatus,
    JobView,
    TaskExit,
)
from hyperpod.core.liveness import DEAD_CAUSE, SHUTDOWN_CAUSE, fatal_findings, urgent_findings
from hyperpod.core.node import Availability, NodeView, RepairStatus, refuses_launches
from hyperpod.core.policy import ResumePolicy
from hyperpod.core.snapshot import JobFacts, Snapshot

DEAD_CAUSES = (DEAD_CAUSE, SHUTDOWN_CAUSE)

_NO_OUTPUT_FILE = 53
"""No signal of Linux's; Slurm says it when a batch script's files cannot be opened."""

_SIGKILL = 9

_REFUSED_SIGNATURE = "batch:1:0"

REFUSAL_PATIENCE = timedelta(milliseconds=500)
"""Reports of tasks are on their way for so long after the first look at a job's end."""

_SIGTERM = 15


def first_failure(facts: JobFacts, restart_count: int) -> TaskExit | None:
    """Return the failure that came first in this attempt, before those that it dragged along.

    Exits by SIGTERM and steps that we killed ourselves follow others; they count only when nothing else failed.
    """
    own = [e for e in facts.exits if e.restart_count == restart_count and e.is_failure and e.step_id != EXTERN_STEP]
    causes = [e for e in own if e.signal != _SIGTERM and e.step_id != BATCH_STEP]
    tasks = [e for e in own if e.step_id != BATCH_STEP]
    return min(causes or tasks or own, key=lambda e: (e.time, e.rank), default=None)


def failure_signature(view: JobView, failure: TaskExit | None) -> str:
    if failure is None:
        return f"batch:{view.exit_code}:{view.exit_signal}"
    what = "batch" if failure.step_id == BATCH_STEP else "task"
    return f"{what}:{failure.exit_code or 0}:{failure.signal or 0}"


def dead_nodes(attempt: Attempt, nodes: Mapping[str, NodeView]) -> list[tuple[NodeView, str]]:
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


def is_leaving(node: NodeView) -> bool:
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
        if is_explained or is_leaving(node):
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
    signature = failure_signature(view, failure)
    if status is JobStatus.CANCELLED:
        return ExitCause.USER_CANCELLED, "it was cancelled", ""
    if status in (JobStatus.TIMEOUT, JobStatus.DEADLINE):
        return ExitCause.TIME_LIMIT, "its time limit was reached", ""
    if status is JobStatus.PREEMPTED:
        return ExitCause.PREEMPTED, "it was preempted", ""
    dead = dead_nodes(attempt, nodes)
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
        why = "; ".join(f"{n.name}: {why_bad(n)}" for n in bad)
        return ExitCause.NODE_UNHEALTHY, why, ""
    if status is JobStatus.BOOT_FAIL:
        return ExitCause.LAUNCH_FAILED, "a node did not boot for it", ""
    if status is JobStatus.OUT_OF_MEMORY:
        return ExitCause.OUT_OF_MEMORY, "it used more memory than it had asked for", signature
    if status is JobStatus.FAILED:
        sentence = failure.sentence if failure else _batch_sentence(view)
        return ExitCause.APPLICATION, sentence, signature
    refusing = [nodes[name] for name in attempt.nodes if name in nodes and refuses_launches(nodes[name])]
    if refusing and not is_heard_of(attempt, facts):
        why = "; ".join(f"{n.name} could not launch it: {n.reason}" for n in refusing)
        return ExitCause.LAUNCH_FAILED, why, ""
    # Whoever requeues a running job has its tasks end by these signals: they say nothing about the program.
    if failure is not None and failure.signal not in (_SIGTERM, _SIGKILL):
        return ExitCause.APPLICATION, failure.sentence, signature
    return ExitCause.OTHER, "it was requeued by somebody else", ""


def is_launch_failed(view: JobView) -> bool:
    """Say whether Slurm holds the job because a node could not launch it; a user's own hold is something else."""
    text = f"{view.pending_reason} {view.pending_message}".lower().replace("_", " ")
    return view.status is JobStatus.PENDING and view.is_held and "launch failed" in text


def is_held_for_exclusion(record: JobRecord, view: JobView) -> bool:
    """Say whether Slurm holds the job as one that can never run, while we keep it from nodes."""
    return (
        view.is_held and view.pending_reason == "BadConstraints" and bool({*view.excluded} - {*record.users_excluded})
    )


def is_heard_of(attempt: Attempt, facts: JobFacts) -> bool:
    """Say whether any task of an attempt, its script included, was ever reported as started or ended."""
    if attempt.first_task_at is not None or attempt.restart_count in facts.first_tasks:
        return True
    return any(e.restart_count == attempt.restart_count for e in facts.exits)


def may_be_refused(attempt: Attempt, facts: JobFacts) -> bool:
    """Say whether an attempt looks as if its node had refused to launch it.

    slurmctld then writes a failure with status 1 which no script has returned (24.11, agent.c: "Killing non-startable
    batch"), and no task of it is ever heard of.
    """
    is_alike = attempt.cause is ExitCause.APPLICATION and attempt.signature == _REFUSED_SIGNATURE
    return is_alike and not is_heard_of(attempt, facts)


def _with_refused_launch(record: JobRecord, view: JobView, facts: JobFacts, snapshot: Snapshot) -> JobRecord:
    """Judge again a failure of which nothing was heard although the agent of its batch host has spoken since."""
    current = record.current if view.status is JobStatus.FAILED else None
    if current is None or not may_be_refused(current, facts):
        return record
    host = snapshot.by_name.get(view.batch_host or (current.nodes[0] if current.nodes else ""))
    seen = current.failure_seen_at
    # A node whose plugin is not proven to be loaded may have nothing to report.
    if host is None or not host.is_ready or host.heartbeat_at is None or seen is None:
        return record
    if host.heartbeat_at < seen + REFUSAL_PATIENCE:
        return record
    text = f"{host.name} refused to launch it: Slurm says status 1, and no task of it was started"
    refused = replace(current, cause=ExitCause.LAUNCH_FAILED, message=text, signature="")
    return _avoid_bad_nodes(record.with_attempt(refused), refused, snapshot.by_name)


def why_bad(node: NodeView) -> str:
    fatal = urgent_findings(node) or fatal_findings(node)
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
    record = _with_late_reports(_with_steps_reached(record), view, facts)
    return _with_refused_launch(record, view, facts, snapshot)


def _with_late_reports(record: JobRecord, view: JobView, facts: JobFacts) -> JobRecord:
    """Judge a failure of the program again when the reports of its tasks come after the job's end.

    The batch script's status differs with the order in which things fell; the first task's does not.
    """
    for attempt in record.attempts[-2:]:
        if attempt.cause is not ExitCause.APPLICATION or not attempt.signature.startswith("batch:"):
            continue
        failure = first_failure(facts, attempt.restart_count)
        if failure is not None and failure.step_id != BATCH_STEP and failure.signal != _SIGTERM:
            told = replace(attempt, signature=failure_signature(view, failure), message=failure.sentence)
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
    repairs = [n.repair.since for n, _ in dead_nodes(attempt, nodes) if n.repair is not None]
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
    ours = frozenset(name for instance, name in record.avoid.items() if _machine(name, snapshot) in ("", instance))
    # A spare is no place: Slurm takes a job that has too few nodes in its partition for one that can never run.
    if ours and len(_places(view, snapshot) - ours - set(record.users_excluded)) < view.node_count:
        ours = frozenset(name for name in ours if _is_suspect(snapshot.by_name.get(name)))
    return tuple(sorted({*record.users_excluded, *ours}))


def has_room(view: JobView, snapshot: Snapshot, excluded: Collection[str]) -> bool:
    """Say whether the job's partition has enough nodes for it, busy or not, without the excluded ones."""
    return len(_places(view, snapshot) - set(excluded)) >= view.node_count


def _places(view: JobView, snapshot: Snapshot) -> frozenset[str]:
    return frozenset(
        n.name for n in snapshot.nodes if n.in_partition and (n.partition == view.partition or not view.partition)
    )


def _is_suspect(node: NodeView | None) -> bool:
    if node is None:
        return False
    is_out = node.repair is not None or node.is_drained or node.availability is Availability.DOWN
    return is_out or bool(fatal_findings(node)) or not node.is_ready
