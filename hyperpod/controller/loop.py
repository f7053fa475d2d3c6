"""The controller's loop: take messages in, observe, decide, apply, sleep until the next deadline or message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hyperpod.controller import apply as effects
from hyperpod.controller import notices
from hyperpod.controller.memory import Report
from hyperpod.controller.observe import observe, remember_job
from hyperpod.controller.observed import note_observed
from hyperpod.controller.world import World
from hyperpod.core import messages as words
from hyperpod.core.addresses import decide_addresses
from hyperpod.core.job import BATCH_STEP, JobRecord, TaskExit
from hyperpod.core.messages import Heartbeat, parse_task_exit
from hyperpod.core.plan import Plan, merge
from hyperpod.core.repair import IDLE_WAKE, decide_repair
from hyperpod.core.resume import decide_jobs, most_attempts
from hyperpod.errors import HyperpodError

log = logging.getLogger(__name__)

ENV_GIVEN = "env_given"
TASK_FAILED = "TaskFailed"
SET_ASIDE_TOLD = 20
"""Checkpoints set aside that are told one by one; with more, how many."""

KEPT_FAILURES = 32
"""Failed tasks of a job that are written into the journal; its memory holds them all."""


def run_once(world: World) -> Plan:
    """Run one tick: the only shape of one. Returns the plan that was applied."""
    take_reports(world)
    snapshot = observe(world)
    note_observed(world, snapshot)
    if not world.are_partitions_saved and "slurm" not in snapshot.missing:
        # A move of a spare may have been cut short by the end of the controller before this one.
        world.are_partitions_saved = effects.save_all_partitions(world)
    # Repairs come first: a node is fenced and marked before its jobs are judged.
    plan = decide_repair(snapshot, world.repair_policy)
    failures = effects.apply(world, plan)
    if plan.actions:
        # Jobs are judged with the repairs that have just begun in view.
        repairs = {r.node: r for r in world.store.repairs()}
        nodes = tuple(replace(n, repair=repairs.get(n.name)) for n in snapshot.nodes)
        snapshot = replace(snapshot, nodes=nodes)
    if world.save_address is not None:
        failures += effects.apply(world, Plan(decide_addresses(snapshot), (), IDLE_WAKE))
    jobs = decide_jobs(snapshot, world.resume_policy)
    failures += effects.apply(world, Plan(jobs.actions, (), jobs.wake_after))
    merged = merge((plan, jobs))
    effects.show_notes(world, merged)
    if failures:
        merged = replace(merged, wake_after=max(merged.wake_after, timedelta(milliseconds=500)))
    return merged


def take_reports(world: World) -> None:
    """Take all waiting messages into memory and journal, oldest first; a strange one is logged and dropped."""
    for report in world.inbox.take():
        try:
            _take(world, report)
        except (HyperpodError, KeyError, ValueError, TypeError) as error:
            log.warning("message not understood kind=%s error=%s", report.kind, error)
        if report.on_taken is not None:
            report.on_taken()


def _take(world: World, report: Report) -> None:
    kind, data = report.kind, report.data
    if kind == words.HEARTBEAT:
        world.memory.heard(Heartbeat.from_dict(data), report.at)
    elif kind == words.GOODBYE:
        world.memory.said_goodbye(str(data["node"]), report.at)
        text = f"{data['node']} is shutting down in an orderly way"
        world.store.add_event("NodeGoodbye", text, report.at, node=str(data["node"]))
    elif kind == words.TASK_START:
        world.memory.task_started(words.whole_job(data), _restart_count(world, data), report.at)
    elif kind == words.TASK_EXIT:
        _take_exit(world, report)
    elif kind == ENV_GIVEN:
        _take_env(world, report)
    elif kind == effects.PROBED:
        world.memory.probed(str(data["node"]), bool(data["is_reachable"]), report.at)
    elif kind == effects.MACHINE_DONE:
        effects.machine_done(world, report)
    elif kind == effects.SPARE_DONE:
        effects.spare_done(world, report)
    elif kind == notices.TOLD:
        notices.told(world, report)
    elif kind == effects.SCANNED:
        step = data["step"]
        world.memory.scanned(int(data["job_id"]), int(data["attempt"]), None if step is None else int(step))
    elif kind == words.COMMAND:
        data["run"](world)
    else:
        log.debug("message of no interest kind=%s", kind)


def _take_exit(world: World, report: Report) -> None:
    # A het job is judged as one: a rank of any component counts for its leader.
    told = {**report.data, "job_id": words.whole_job(report.data)}
    task = parse_task_exit(told)
    offset_s = world.memory.nodes[task.node].clock_offset_s if task.node in world.memory.nodes else 0.0
    # A report may come late, when the next attempt has begun already.
    at = _moment(task.time - offset_s)
    task = replace(task, restart_count=_restart_count(world, told, at))
    if not world.memory.task_ended(task, offset_s) or not task.is_failure:
        return
    if sum(1 for e in world.memory.job_facts(task.job_id).exits if e.is_failure) > KEPT_FAILURES:
        # A thousand ranks that fall with the first one would hold up the tick for news that change nothing.
        return
    record = world.store.job(task.job_id)
    if record is not None and record.is_armed and not record.verdict:
        # Kept in the journal, so that a controller that is killed now still knows it when it comes back.
        text = task.sentence
        world.store.add_event(
            TASK_FAILED,
            text,
            report.at,
            node=task.node,
            job_id=task.job_id,
            uid=record.uid,
            data={**task.__dict__, "clock_offset_s": round(offset_s, 6)},
        )
        _ask_for_quick_checks(world, record, task)


def _ask_for_quick_checks(world: World, record: JobRecord, task: TaskExit) -> None:
    """Have all nodes of the attempt look at themselves now; what they find comes with their next heartbeat.

    Nothing waits for it: a finding that comes late still moves the job off the bad node.
    """
    current = record.current
    snapshot = world.last_snapshot
    job = next((j for j in snapshot.jobs if j.job_id == task.job_id), None) if snapshot is not None else None
    is_first = sum(1 for e in world.memory.job_facts(task.job_id).exits if e.is_failure) == 1
    for node in current.nodes if current is not None and is_first else ():
        order: dict[str, Any] = {"type": words.QUICK_CHECK, "id": f"{task.job_id}:{task.restart_count}"}
        if job is not None and job.uid >= 0 and job.output.startswith("/") and node == job.batch_host:
            # Whose devices are Neuron's reads what the runtime has written there.
            order["output"] = {"job_id": job.job_id, "uid": job.uid, "path": job.output}
        world.agents.send(node, order)


def _restart_count(world: World, data: Mapping[str, Any], at: datetime | None = None) -> int:
    """Return which attempt a report belongs to. slurmstepd does not tell it for batch scripts: then the one that had
    been given its environment last at that moment."""
    said = int(data.get("restart_count") or 0)
    if int(data["step_id"]) != BATCH_STEP:
        return said
    return max(said, world.memory.attempt_at(words.whole_job(data), at))


def _moment(epoch_s: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(epoch_s, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _take_env(world: World, report: Report) -> None:
    """An agent asked for an attempt's environment: arm the job if its step said so, and note what it was given."""
    data = report.data
    job_id = int(data["job_id"])
    world.memory.gave_env(job_id, int(data["restart_count"]), report.at)
    record = world.store.job(job_id)
    armed_by = str(data.get("armed_by") or "")
    if (record is None or not record.is_armed) and armed_by:
        record = _arm(world, record, data, armed_by)
    if record is None:
        return
    directory = str(data.get("checkpoint_dir") or "")
    if record.is_armed and directory.startswith("/") and directory != record.checkpoint_dir:
        # The script itself has named another directory: that is where progress shows.
        record = replace(record, checkpoint_dir=directory)
        world.store.put_job(record)
    if data.get("resume_from"):
        # Its attempt may not have been seen running yet; it is written down with it.
        path, step = str(data["resume_from"]), int(data["resume_step"])
        world.memory.resumes(job_id, int(data["restart_count"]), path, step)
    aside = [f"half-written checkpoint set aside: {path}" for path in data.get("set_aside", ())]
    # The directory is the user's, and so is the number of things in it; the journal is everybody's.
    rest = [f"and {len(aside) - SET_ASIDE_TOLD} more set aside"] if len(aside) > SET_ASIDE_TOLD else []
    for text in [*aside[:SET_ASIDE_TOLD], *rest]:
        world.store.add_event("CheckpointSetAside", text[:2000], report.at, job_id=job_id, uid=record.uid)
    problems = [str(problem)[:300] for problem in data.get("problems", ())]
    if problems:
        text = f"no checkpoint is offered: {'; '.join(problems[:3])}"
        world.store.add_event("NoCheckpoint", text, report.at, job_id=job_id, uid=record.uid)


def _arm(world: World, record: JobRecord | None, data: Mapping[str, Any], armed_by: str) -> JobRecord | None:
    job_id = int(data["job_id"])
    value = str(data.get("auto_resume") or "")
    if value == "0" or data.get("het_offset"):
        # A het job is requeued as one, by its leader.
        return record
    most = most_attempts(value)
    if record is None:
        view = world.slurm.job(job_id)
        if view is None:
            return None
        return remember_job(world, view, armed_by, most, str(data.get("checkpoint_dir") or ""))
    directory = str(data.get("checkpoint_dir") or record.checkpoint_dir)
    record = replace(record, armed_by=armed_by, max_attempts=most, checkpoint_dir=directory)
    world.store.put_job(record)
    world.slurm.allow_requeue(job_id)
    world.store.add_event(
        "JobArmed",
        f"job {job_id} is watched: asked for by srun in its script",
        world.clock.now(),
        job_id=job_id,
        uid=record.uid,
    )
    return record


def restore(world: World) -> None:
    """After a start: take back into memory what the journal knows of attempts that still run."""
    for record in world.store.jobs():
        if record.verdict or not record.is_armed:
            continue
        for event in world.store.events(job_id=record.job_id, limit=10_000):
            if event.kind == TASK_FAILED and event.data:
                world.memory.task_ended(parse_task_exit(event.data), float(event.data.get("clock_offset_s") or 0.0))
            elif event.kind == "StepEnded" and event.data:
                key = (int(event.data["restart_count"]), int(event.data["step_id"]))
                world.memory.step_killed(record.job_id, *key)
    for intent in world.store.unfinished():
        # Level-based: what is still due will be planned again; the journal only must not believe it done.
        world.store.finish(intent.key, world.clock.now(), error="the controller was restarted")


def run(
    world: World,
    *,
    is_stopping: Callable[[], bool],
    watchdog: Callable[[], None],
    after: Callable[[], None] = lambda: None,
) -> None:
    """Tick until told to stop. A tick that fails is logged and tried again; it never ends the loop.

    Args:
        world: The surroundings.
        is_stopping: Called before each tick; True ends the loop.
        watchdog: Called after each tick, to tell the service manager that we are alive.
        after: Called after each tick that did not fail, for what is decided beside repairs and jobs.
    """
    restore(world)
    while not is_stopping():
        wake_s = 1.0
        try:
            wake_s = run_once(world).wake_after.total_seconds()
            after()
        except HyperpodError as error:
            kind = ("tick", type(error).__name__)
            world.repeats.warning(log, kind, world.clock.now(), "tick failed error=%s", error)
        except Exception:
            log.exception("tick failed unexpectedly")
        watchdog()
        world.inbox.wait(max(wake_s, 0.02))
