"""Apply: carry a plan out, one thin effect per action, each safe to run twice.

Actions with a key are written into the journal before and after. Every effect reads the one object again that it
is going to change, and accepts "already so". One that fails leaves the later actions of its target for the next
tick; it never stops those of other targets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hyperpod.controller.memory import Report
from hyperpod.controller.observe import REPAIR_BEGAN, SPARE_PARTITION, remember_repair
from hyperpod.controller.world import World
from hyperpod.core import plan as do
from hyperpod.core.job import JobStatus
from hyperpod.core.liveness import is_before_first_job
from hyperpod.core.messages import FETCH_FILES, KILL_JOB, PEER_LOST
from hyperpod.core.node import Availability, DrainOwner, Repair, RepairStatus, owner_of_reason, parse_admin_action
from hyperpod.core.plan import Plan
from hyperpod.core.stopped_spares import CAUSE as SPARE_CAUSE
from hyperpod.errors import HyperpodError, NotFound, ProviderError, SlurmError
from hyperpod.ports.slurm import NodeState

log = logging.getLogger(__name__)

NOTE_REPEAT = timedelta(minutes=15)
PHASES = frozenset({"Rebooting", "Replacing", "Checking"})
"""Notes about a repair that goes on: for the status, not for the history."""

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=0.5), timedelta(seconds=10)
"""Between two tries of a fence that fails. A machine seen off ends the wait: then no fence is planned any more."""

PROBED = "probed"
MACHINE_DONE = "machine_done"
SPARE_DONE = "spare_done"
SCANNED = "scanned"


def apply(world: World, plan: Plan) -> int:
    """Carry out every action of a plan; return how many failed."""
    failed: set[str] = set()
    count = 0
    for action in plan.actions:
        if action.target and action.target in failed:
            continue
        tried = f"{type(action).__name__}:{action.target}"
        # Only where a try takes long or harms: a job's requeue is refused for moments, and must not wait for more.
        has_backoff = isinstance(action, do.FenceInstance | do.MarkDown)
        if has_backoff and world.memory.must_wait(tried, world.clock.now()):
            failed.add(action.target)
            continue
        try:
            _apply_one(world, action)
        except HyperpodError as error:
            count += 1
            failed.add(action.target)
            now = world.clock.now()
            if has_backoff:
                world.memory.refused(tried, now, first=FIRST_PAUSE, most=LONGEST_PAUSE)
            text = "action failed action=%s target=%s error=%s"
            world.repeats.warning(log, tried, now, text, type(action).__name__, action.target, error)
            _remember_error(world, action, str(error))
        else:
            world.memory.refusals.pop(tried, None)
            world.repeats.ended(tried)
    return count


def _apply_one(world: World, action: do.Action) -> None:
    effect = _EFFECTS[type(action)]
    if not action.key:
        effect(world, action)
        return
    intent = world.store.intend(action.key, type(action).__name__, action.target, world.clock.now())
    if intent.is_done:
        return
    try:
        effect(world, action)
    except HyperpodError as error:
        world.store.finish(action.key, world.clock.now(), error=str(error))
        raise
    if not isinstance(action, do.ReplaceInstance | do.RebootInstance):
        # Machines take seconds; their worker thread finishes the intent.
        world.store.finish(action.key, world.clock.now())
    log.info("action=%s target=%s reason=%s", type(action).__name__, action.target, action.reason)


def _remember_error(world: World, action: do.Action, error: str) -> None:
    """Keep a node's last error in its repair, where people look for it."""
    if not isinstance(action, do.NodeAction):
        return
    for repair in world.store.repairs():
        if repair.node == action.node and repair.last_error != error:
            world.store.put_repair(replace(repair, last_error=error))


def _event(world: World, kind: str, message: str, **where: Any) -> None:
    world.store.add_event(kind, message, world.clock.now(), **where)


# --- nodes ------------------------------------------------------------------------------------------------------


def _probe(world: World, action: do.ProbeNode) -> None:
    # Where the machine is now: it may have come back elsewhere than the configuration says.
    address = next((i.address for i in world.instances or () if i.node == action.node and i.address), "")
    address = address or next((s.address for s in world.slots() if s.name == action.node), "")

    def work() -> None:
        is_reachable = world.probe(address)
        data = {"node": action.node, "is_reachable": is_reachable}
        world.inbox.put(Report(PROBED, world.clock.now(), data))

    world.jobs.submit(f"probe:{action.node}", work)


def _save_repair(world: World, action: do.SaveRepair) -> None:
    repair = action.repair
    before = {r.node: r for r in world.store.repairs()}.get(repair.node)
    is_new_cause = before is None or before.cause != repair.cause
    is_reboot = repair.status is RepairStatus.REBOOTING and (before is None or before.status is not repair.status)
    is_begun = is_new_cause and repair.status not in (RepairStatus.CHECKING, RepairStatus.ASLEEP)
    if is_begun or is_reboot:
        # Before the repair itself: killed in between, the breaker counts the node once all the same.
        remember_repair(world, repair)
    world.store.put_repair(repair)
    data = {
        "cause": repair.cause,
        "status": repair.status.value,
        "instance_id": repair.instance_id,
        "action": repair.action.value,
    }
    if is_begun:
        _event(world, REPAIR_BEGAN, action.reason, node=repair.node, data=data)
    if before is None or before.status is not repair.status:
        kind = f"Node{repair.status.value.capitalize()}"
        _event(world, kind, action.reason, node=repair.node, data=data)


def _end_repair(world: World, action: do.EndRepair) -> None:
    world.store.drop_repair(action.node)
    _event(world, "NodeHealthy", action.reason, node=action.node)


def _fence(world: World, action: do.FenceInstance) -> None:
    world.machines.power_off(action.instance_id)
    _event(world, "NodeFenced", f"{action.instance_id} is powered off: {action.reason}", node=action.node)
    world.instances_at = None


def _mark_down(world: World, action: do.MarkDown) -> None:
    _warn_peers(world, action.node)
    state = _state(world, action.node)
    # A person's drain outlives the machine: its words stay.
    reason = state.reason if state.is_drained and _owner(state) is DrainOwner.PERSON else action.reason
    world.slurm.set_down(action.node, reason)
    _event(world, "NodeDown", action.reason, node=action.node)


def _state(world: World, node: str) -> NodeState:
    """Read one node anew, right before it is changed."""
    state = next((s for s in world.slurm.nodes() if s.name == node), None)
    if state is None:
        raise NotFound(f"Slurm does not know the node {node}")
    return state


def _owner(state: NodeState) -> DrainOwner:
    return owner_of_reason(state.reason, state.reason_by)


def _warn_peers(world: World, node: str) -> None:
    """Tell the other nodes of its jobs that a peer is lost, for programs that want to react themselves."""
    snapshot = world.last_snapshot
    if snapshot is None:
        return
    for job in snapshot.jobs:
        if job.status is JobStatus.RUNNING and node in job.nodes:
            for other in job.nodes:
                if other != node:
                    world.agents.send(other, {"type": PEER_LOST, "job_id": job.job_id, "node": node})


def _drain(world: World, action: do.DrainNode) -> None:
    state = _state(world, action.node)
    owner = _owner(state)
    is_ours = owner is DrainOwner.OURS and not is_before_first_job(state.reason)
    if state.is_drained and (owner is DrainOwner.PERSON or is_ours):
        return
    world.slurm.drain(action.node, action.reason)
    _event(world, "NodeDrained", action.reason, node=action.node)


def _undrain(world: World, action: do.UndrainNode) -> None:
    state = _state(world, action.node)
    if not state.is_drained and not state.is_fail and state.availability is Availability.UP:
        return
    if _owner(state) is DrainOwner.PERSON and parse_admin_action(state.reason) is None:
        log.info("node=%s stays drained: a person has drained it meanwhile reason=%s", action.node, state.reason)
        return
    world.slurm.undrain(action.node)
    _event(world, "NodeUndrained", f"{action.node} is undrained: {action.reason}", node=action.node)


def _answer_reason(world: World, action: do.AnswerReason) -> None:
    world.slurm.drain(action.node, action.reason)
    _event(world, "ReasonNotUnderstood", action.reason, node=action.node)


def _replace(world: World, action: do.ReplaceInstance) -> None:
    def work() -> None:
        data: dict[str, Any] = {"key": action.key, "node": action.node, "error": ""}
        try:
            instance = world.machines.replace(action.node, action.instance_id, action.key)
            data["instance_id"], data["address"] = instance.id, instance.address
        except HyperpodError as error:
            data["error"] = str(error)
        world.inbox.put(Report(MACHINE_DONE, world.clock.now(), data))

    world.jobs.submit(action.target, work)


def _reboot(world: World, action: do.RebootInstance) -> None:
    def work() -> None:
        data: dict[str, Any] = {"key": action.key, "node": action.node, "error": ""}
        try:
            world.machines.reboot(action.instance_id)
        except HyperpodError as error:
            data["error"] = str(error)
        world.inbox.put(Report(MACHINE_DONE, world.clock.now(), data))

    world.jobs.submit(action.target, work)


def _stop_spare(world: World, action: do.StopSpare) -> None:
    _beside(world, action, f"stop:{action.instance_id}", "park")


def _start_spare(world: World, action: do.StartSpare) -> None:
    _beside(world, action, f"start:{action.instance_id}", "power_on")


def _beside(world: World, action: do.StopSpare | do.StartSpare, key: str, verb: str) -> None:
    """Stop or start a spare's machine beside the tick; the next observation says what became of it."""
    act = getattr(world.machines, verb, None)
    if act is None:
        raise ProviderError(f"this provider cannot {verb.replace('_', ' ')} a spare")

    def work() -> None:
        data: dict[str, Any] = {"key": key, "node": action.node, "error": ""}
        try:
            act(action.instance_id)
        except HyperpodError as error:
            data["error"] = str(error)
        world.inbox.put(Report(SPARE_DONE, world.clock.now(), data))

    world.jobs.submit(action.target, work)


def spare_done(world: World, report: Report) -> None:
    """Take in that a spare's machine was asked to stop or start; a refusal is kept where people look, and waits."""
    node, error = str(report.data["node"]), str(report.data["error"])
    world.instances_at = None
    if error:
        world.repeats.warning(log, ("spare", node), report.at, "spare refused node=%s error=%s", node, error)
    else:
        world.repeats.ended(("spare", node))
    for repair in world.store.repairs():
        if repair.node == node and repair.cause == SPARE_CAUSE:
            _answered(world, repair, error, report.at)


def machine_done(world: World, report: Report) -> None:
    """Take in that a reboot or replacement has returned: close its intent, or leave it open to be tried again."""
    key, node, error = str(report.data["key"]), str(report.data["node"]), str(report.data["error"])
    world.store.finish(key, report.at, error=error)
    world.instances_at = None
    for repair in world.store.repairs():
        if repair.node == node:
            _answered(world, repair, error, report.at)
    if error:
        world.repeats.warning(log, ("machine", node), report.at, "machine action failed node=%s error=%s", node, error)
        return
    world.repeats.ended(("machine", node))
    instance_id = str(report.data.get("instance_id", ""))
    if instance_id:
        _event(world, "NodeReplaced", f"{node} is now {instance_id}", node=node, data={"instance_id": instance_id})


def _answered(world: World, repair: Repair, error: str, at: datetime) -> None:
    """Keep in a repair what the provider has answered: the journal has the next try wait over a restart, too."""
    after = repair.refused(error, at) if error else repair.taken()
    if after == repair:
        return
    world.store.put_repair(after)
    if error and error != repair.last_error:
        _event(world, "MachineActionFailed", f"{error}{after.waits(at)}", node=repair.node)


def _move_address(world: World, action: do.MoveAddress) -> None:
    """The file first: a slurmctld that starts in between must not go back to the old address."""
    if world.save_address is not None:
        world.save_address(action.node, action.address)
    world.slurm.update_address(action.node, action.address)
    # Names resolve by a file on every node, which the provider has written anew.
    for slot in world.slots():
        world.agents.send(slot.name, {"type": FETCH_FILES})
    _event(world, "NodeMoved", action.reason, node=action.node, data={"address": action.address})


def _use_spare(world: World, action: do.UseSpare) -> None:
    _move(world, action.node, SPARE_PARTITION, action.partition)
    _event(world, "SpareUsed", f"{action.node} joins {action.partition}: {action.reason}", node=action.node)


def _park_spare(world: World, action: do.ParkSpare) -> None:
    _move(world, action.node, action.partition, SPARE_PARTITION)
    _event(world, "SpareParked", f"{action.node} waits as a spare: {action.reason}", node=action.node)


def _move(world: World, node: str, source: str, target: str) -> None:
    """Move a node between partitions; into the new one first, so that it is never in neither."""
    members = world.slurm.partitions()
    if target in members and node not in members[target]:
        world.slurm.set_partition_nodes(target, sorted({*members[target], node}))
    left = [n for n in members.get(source, ()) if n != node]
    if source in members and len(left) != len(members[source]):
        world.slurm.set_partition_nodes(source, left)
    save_partitions(world, (target, source))


def save_all_partitions(world: World) -> bool:
    """Write all partitions into slurm.conf where spares move between them; False when that failed."""
    try:
        names = world.slurm.partitions()
        if SPARE_PARTITION in names:
            save_partitions(world, names)
        return True
    except HyperpodError as error:
        world.repeats.warning(log, "partitions", world.clock.now(), "partitions not saved error=%s", error)
        return False


def save_partitions(world: World, names: Iterable[str]) -> None:
    """Write the members that slurmctld has now into slurm.conf; what is written already is left as it is."""
    now = world.slurm.partitions()
    for partition in names:
        if partition in now:
            world.save_partition(partition, now[partition])


# --- jobs -------------------------------------------------------------------------------------------------------


def _save_job(world: World, action: do.SaveJob) -> None:
    before = world.store.job(action.job_id)
    record = action.record
    world.ledger.save_marks(before, record, world.clock.now())
    world.store.put_job(record)
    seen = {a.number: a for a in before.attempts} if before else {}
    for attempt in record.attempts:
        old = seen.get(attempt.number)
        where = {"job_id": record.job_id, "uid": record.uid}
        if old is None:
            text = f"attempt {attempt.number} on {', '.join(attempt.nodes) or 'no node yet'}"
            _event(world, "AttemptStarted", text, data={"nodes": list(attempt.nodes)}, **where)
        if attempt.first_task_at and (old is None or old.first_task_at is None):
            _event(world, "FirstTaskStarted", f"attempt {attempt.number} has its first task", **where)
        if attempt.resume_from and (old is None or not old.resume_from):
            text = f"attempt {attempt.number} resumes from {attempt.resume_from}"
            _event(world, "Resuming", text, data={"step": attempt.resume_step}, **where)
        if attempt.failure_seen_at and (old is None or old.failure_seen_at is None):
            _event(
                world, "FailureSeen", f"attempt {attempt.number} is failing: {attempt.message}".rstrip(": "), **where
            )
        if attempt.cause is not None and (old is None or old.cause is None):
            text = f"attempt {attempt.number} ended, {attempt.cause.value}: {attempt.message}"
            _event(world, "AttemptEnded", text, data={"cause": attempt.cause.value}, **where)
        told = old.attribution.reason if old is not None and old.attribution is not None else ""
        if attempt.attribution is not None and attempt.attribution.reason != told:
            kind = "AttemptJudgedAnew" if told else "AttemptJudged"
            text = f"attempt {attempt.number}: {attempt.attribution.reason}"
            _event(world, kind, text, data={"kind": attempt.attribution.kind.value}, **where)
    if record.verdict and (before is None or not before.verdict):
        world.memory.forget_job(record.job_id)
        text = f"{record.verdict}: {record.verdict_message}"
        _event(world, "JobEnded", text, job_id=record.job_id, uid=record.uid, data={"verdict": record.verdict})


def _requeue(world: World, action: do.RequeueJob) -> None:
    view = world.slurm.job(action.job_id)
    if view is None:
        raise NotFound(f"Slurm does not know job {action.job_id} any more")
    if view.restart_count > action.restart_count or view.status is JobStatus.PENDING:
        return
    if view.status is not action.seen and view.status.is_over:
        # It ended by itself meanwhile, perhaps well or by its user: that is another decision.
        raise SlurmError(f"job {action.job_id} is {view.status.value} by now")
    world.slurm.requeue(action.job_id)
    # Slurm may take the request and do nothing while the job is still being cleaned up: believe what is seen.
    after = world.slurm.job(action.job_id)
    if after is not None and after.restart_count <= action.restart_count and after.status is not JobStatus.PENDING:
        raise SlurmError(f"job {action.job_id} is not requeued yet: it is {after.status.value}")
    _event(world, "JobRequeued", f"requeued: {action.reason}", job_id=action.job_id, uid=view.uid)


def _components(world: World, job_id: int) -> list[int]:
    """Return the ids of all components of a het job, the leader's first; of any other job its own."""
    snapshot = world.last_snapshot
    parts = [j.job_id for j in snapshot.jobs if j.het_job_id == job_id] if snapshot else []
    return sorted({job_id, *parts})


def _forbid_requeue(world: World, action: do.ForbidRequeue) -> None:
    world.slurm.forbid_requeue(action.job_id)


def _expedite(world: World, action: do.ExpediteJob) -> None:
    # A het job starts when all its components may; each has its own begin time, priority and excluded nodes.
    for job_id in _components(world, action.job_id):
        if action.set_excluded:
            world.slurm.set_excluded(job_id, action.excluded)
        if action.top_priority:
            world.slurm.set_top_priority(job_id)
        if action.start_now:
            world.slurm.start_now(job_id)


def _release(world: World, action: do.ReleaseJob) -> None:
    world.slurm.release(action.job_id)
    _event(world, "JobReleased", action.reason, job_id=action.job_id)


def _kill_step(world: World, action: do.KillStep) -> None:
    # A step over several components of a het job is one step of the same number in each; the others wait for the dead.
    for job_id in _components(world, action.job_id):
        world.slurm.kill_step(job_id, action.step_id)
    world.memory.step_killed(action.job_id, action.restart_count, action.step_id)
    data = {"restart_count": action.restart_count, "step_id": action.step_id}
    _event(world, "StepEnded", f"step {action.step_id} is ended: {action.reason}", job_id=action.job_id, data=data)


def _end_leftovers(world: World, action: do.EndLeftovers) -> None:
    for job_id in _components(world, action.job_id):
        message = {"type": KILL_JOB, "job_id": job_id, "ended_s": action.ended_s}
        for node in action.nodes:
            world.agents.send(node, message)


def _scan(world: World, action: do.ScanCheckpoints) -> None:
    record = world.store.job(action.job_id)
    if record is None:
        return

    def work() -> None:
        scan = world.checkpoints.scan(record.checkpoint_dir, record.user, set_aside=False)
        data = {"job_id": action.job_id, "attempt": action.attempt, "step": scan.step}
        world.inbox.put(Report(SCANNED, world.clock.now(), data))

    world.jobs.submit(f"scan:{action.job_id}", work)


def show_notes(world: World, plan: Plan) -> None:
    """Write notes into the history, each at most every quarter of an hour per object."""
    now = world.clock.now()
    world.last_notes = plan.notes
    for note in plan.notes:
        if note.code in PHASES:
            continue  # the repair's own events tell it
        key = (note.code, note.node, note.job_id)
        shown = world.notes_shown.get(key)
        if shown is not None and now - shown < NOTE_REPEAT:
            continue
        world.notes_shown[key] = now
        _event(world, note.code, note.message, node=note.node, job_id=note.job_id)
        log.info("note=%s node=%s job=%s message=%s", note.code, note.node, note.job_id, note.message)


_EFFECTS: dict[type[do.Action], Callable[[World, Any], None]] = {
    do.ProbeNode: _probe,
    do.SaveRepair: _save_repair,
    do.EndRepair: _end_repair,
    do.FenceInstance: _fence,
    do.MarkDown: _mark_down,
    do.DrainNode: _drain,
    do.UndrainNode: _undrain,
    do.AnswerReason: _answer_reason,
    do.RebootInstance: _reboot,
    do.ReplaceInstance: _replace,
    do.UseSpare: _use_spare,
    do.ParkSpare: _park_spare,
    do.MoveAddress: _move_address,
    do.StopSpare: _stop_spare,
    do.StartSpare: _start_spare,
    do.SaveJob: _save_job,
    do.RequeueJob: _requeue,
    do.ForbidRequeue: _forbid_requeue,
    do.ExpediteJob: _expedite,
    do.ReleaseJob: _release,
    do.KillStep: _kill_step,
    do.EndLeftovers: _end_leftovers,
    do.ScanCheckpoints: _scan,
}
