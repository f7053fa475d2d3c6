"""Observe: put what Slurm, the provider, the agents and the journal say into one snapshot.

Reads only. A source that does not answer is named in ``Snapshot.missing``; what it would have said is unknown.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from hyperpod.controller import notices
from hyperpod.controller.memory import NodeWord
from hyperpod.controller.reasons import finding_of, see_reason
from hyperpod.controller.world import NodeSlot, World
from hyperpod.core.finding import Finding, observed
from hyperpod.core.job import JobRecord, JobStatus, JobView
from hyperpod.core.judging import accused_machines
from hyperpod.core.majority import CHECK as GROUP
from hyperpod.core.majority import Counted, judge_groups
from hyperpod.core.node import Availability, InstanceStatus, NodeView, Repair, RepairStatus, Role
from hyperpod.core.notices import due_findings
from hyperpod.core.policy import JUDGED_BY_CONTROLLER, Mode
from hyperpod.core.resume import is_armed_by
from hyperpod.core.snapshot import PastRepair, Snapshot
from hyperpod.errors import HyperpodError, ProviderUnavailable, StoreError
from hyperpod.ports.provider import Instance
from hyperpod.ports.slurm import NodeState

log = logging.getLogger(__name__)

PROVIDER_MAX_AGE = timedelta(seconds=5)
"""How old the provider's word may be while all is well; asked anew as soon as something is not."""

_SILENT = "%s does not answer error=%s"

REPAIR_BEGAN = "RepairBegan"
_HISTORY = "repair_history"
SPARE_PARTITION = "hyperpod-spare"
"""Hidden partition, for root only, in which spares wait."""


def observe(world: World) -> Snapshot:
    """Return the world as it is now. Never raises for a source that is silent."""
    missing: list[str] = []
    states: dict[str, NodeState] = {}
    views: tuple[JobView, ...] = ()
    slots = [s for s in world.slots() if s.role is Role.WORKER]
    world.memory.sees_slots([s.name for s in slots], world.clock.now())
    added = world.memory.slots or {}
    try:
        states = {s.name: s for s in world.slurm.nodes()}
        views = world.slurm.jobs()
        # An answer without the nodes that we know is no answer (PAINS: "unknown is never yes").
        if slots and not any(s.name in states for s in slots):
            missing.append("slurm")
    except HyperpodError as error:
        world.repeats.warning(log, ("silent", "slurm"), world.clock.now(), _SILENT, "slurm", error)
        missing.append("slurm")
    repairs = {r.node: r for r in world.store.repairs()}
    instances = _instances(world, repairs, missing)
    notices.ask(world)
    on_node: dict[str, list[int]] = {}
    for view in views:
        if view.status in (JobStatus.RUNNING, JobStatus.CONFIGURING, JobStatus.SUSPENDED):
            for name in view.nodes:
                on_node.setdefault(name, []).append(view.job_id)
    views = whole_het_jobs(views)
    odd = _odd_ones(world, slots)
    nodes = tuple(
        _node(
            slot,
            states.get(slot.name),
            instances.get(slot.name),
            "provider" not in missing,
            world.memory.nodes.get(slot.name, NodeWord()),
            repairs.get(slot.name),
            tuple(sorted(on_node.get(slot.name, ()))),
            added.get(slot.name),
            odd.get(slot.name, ()),
            world,
        )
        for slot in slots
    )
    nodes = tuple(_with_slurms_word(world, node, states.get(node.name)) for node in nodes)
    if world.repair_policy.check_modes:
        nodes = tuple(_under_policy(world, node) for node in nodes)
    records = {r.job_id: r for r in world.store.jobs()}
    if "slurm" not in missing:
        records |= _remember_new_jobs(world, views, records)
        known = {view.job_id for view in views}
        for job_id in [j for j in world.memory.facts if j not in known]:
            world.memory.forget_job(job_id)
    reset = world.store.value("breaker_reset_at")
    now = world.clock.now()
    try:
        world.ledger.look(nodes, now)
        world.exclusions.look(views, records, nodes, now)
    except StoreError as error:
        # Repairs go on without the account of old faults.
        world.repeats.warning(log, ("silent", "ledger"), now, _SILENT, "ledger", error)
    history = _history(world)
    snapshot = Snapshot(
        now=now,
        started_at=world.memory.started_at,
        nodes=nodes,
        jobs=views,
        records=records,
        facts=dict(world.memory.facts),
        history=history,
        suspicion=world.ledger.suspicion(now),
        offenders=world.ledger.offenders(nodes, now),
        accused=accused_machines(records.values(), history, now),
        breaker_reset_at=datetime.fromisoformat(reset) if reset else None,
        missing=tuple(missing),
        are_notices_known=notices.is_known(world),
    )
    world.last_snapshot = snapshot
    return snapshot


def _odd_ones(world: World, slots: list[NodeSlot]) -> Mapping[str, tuple[Finding, ...]]:
    """Return what is found by comparing the nodes of each group; worked out anew only when something has changed."""
    memory, now = world.memory, world.clock.now()
    names = tuple(slot.name for slot in slots)
    made_of = (memory.inventories, names)
    known = memory.majority
    if known is None or known[0] != made_of or (known[1].next_at is not None and now >= known[1].next_at):
        policy = world.repair_policy
        counted = [
            Counted(slot.name, slot.group, word.inventory, word.instance_id, word.boot_id, word.inventory_since)
            for slot in slots
            if policy.mode_of(slot.group, GROUP) is not Mode.OFF and (word := memory.nodes.get(slot.name)) is not None
        ]
        known = memory.majority = (made_of, judge_groups(counted, now, world.repair_policy.group_limits))
    return known[1].findings


def whole_het_jobs(views: tuple[JobView, ...]) -> tuple[JobView, ...]:
    """Return the jobs with the leader of each het job on the nodes of all its components: it lives and dies as one."""
    parts: dict[int, list[JobView]] = {}
    for view in views:
        if view.het_job_id is not None and view.het_offset:
            parts.setdefault(view.het_job_id, []).append(view)
    if not parts:
        return views
    whole = []
    for view in views:
        others = parts.get(view.job_id, ())
        names = dict.fromkeys((*view.nodes, *(name for part in others for name in part.nodes)))
        count = view.node_count + sum(part.node_count for part in others)
        whole.append(replace(view, nodes=tuple(names), node_count=count) if others else view)
    return tuple(whole)


def _history(world: World) -> tuple[PastRepair, ...]:
    policy = world.repair_policy
    since = world.clock.now() - timedelta(seconds=max(policy.breaker_window_s, policy.reboot_window_s))
    try:
        rows = json.loads(world.store.value(_HISTORY) or "[]")
        past = [
            # Rows that an older version wrote end with the time.
            PastRepair(str(node), str(cause), datetime.fromisoformat(at), *(more and (str(more[0]), bool(more[1]))))
            for node, cause, at, *more in rows
        ]
        return tuple(p for p in past if p.at >= since)
    except (ValueError, TypeError, RecursionError) as error:
        # The breaker begins to count anew; the repairs themselves go on.
        log.warning("the history of repairs is damaged and begins anew error=%s", error)
        world.store.set_value(_HISTORY, "[]")
        return ()


def remember_repair(world: World, repair: Repair) -> None:
    """Write down that a repair begins, for the breaker, or that its machine is rebooted, for the next time.

    What is older than both windows is dropped.
    """
    is_reboot = repair.status is RepairStatus.REBOOTING
    new = PastRepair(repair.node, repair.cause, world.clock.now(), repair.instance_id, is_reboot)
    rows = [(p.node, p.cause, p.at.isoformat(), p.instance_id, p.is_reboot) for p in (*_history(world), new)]
    world.store.set_value(_HISTORY, json.dumps(rows))


def _instances(world: World, repairs: dict[str, Repair], missing: list[str]) -> dict[str, Instance]:
    """Return the provider's machines by slot; the last word is used again while it is fresh and all is well."""
    now = world.clock.now()
    silence = world.repair_policy.silence
    sleeping = {name for name, repair in repairs.items() if repair.status is RepairStatus.ASLEEP}
    is_calm = len(sleeping) == len(repairs) and all(
        w.heartbeat_at and now - w.heartbeat_at <= silence
        for name, w in world.memory.nodes.items()
        if name not in sleeping
    )
    is_fresh = world.instances_at is not None and now - world.instances_at < PROVIDER_MAX_AGE
    if world.instances is None or not is_fresh or not is_calm:
        try:
            seen = world.machines.observe(world.cluster)
            if not seen and any(s.role is Role.WORKER for s in world.slots()):
                # Never "all machines are gone": an answer without any is no answer.
                raise ProviderUnavailable(f"the provider names no machine of cluster {world.cluster}")
            world.instances, world.instances_at = seen, now
        except HyperpodError as error:
            world.repeats.warning(log, ("silent", "provider"), world.clock.now(), _SILENT, "provider", error)
            missing.append("provider")
            return {i.node: i for i in world.instances or ()}
    return {i.node: i for i in world.instances}


def _node(
    slot: NodeSlot,
    state: NodeState | None,
    instance: Instance | None,
    has_provider: bool,
    word: NodeWord,
    repair: Repair | None,
    jobs: tuple[int, ...],
    added_at: datetime | None,
    odd: tuple[Finding, ...],
    world: World,
) -> NodeView:
    if instance is not None:
        status = instance.status if has_provider else InstanceStatus.UNKNOWN
        instance_id = instance.id
    else:
        # The provider answered without this slot: its machine is gone. Without an answer nothing is known.
        status = InstanceStatus.GONE if has_provider else InstanceStatus.UNKNOWN
        instance_id = ""
    is_same = not instance_id or not word.instance_id or word.instance_id == instance_id
    findings = (*word.findings, *odd) if is_same else ()
    told = notices.of_node(world, slot.name, instance_id or word.instance_id) if world.memory.notices.findings else ()
    clock = world.memory.clocks.get(slot.address) if world.memory.clocks else None
    refused = clock.finding(world.clock.now()) if clock is not None else None
    if refused is not None and world.repair_policy.mode_of(slot.group, refused.check) is not Mode.OFF:
        findings = (*findings, refused)
    if findings or told:
        now = world.clock.now()
        is_heard = is_same and word.heartbeat_at is not None and now - word.heartbeat_at <= world.repair_policy.silence
        findings = due_findings((*findings, *told), is_heard=is_heard, now=now)
    return NodeView(
        name=slot.name,
        group=slot.group,
        role=slot.role,
        partition=slot.partition,
        in_partition=state is not None and slot.partition in state.partitions,
        in_spares=state is not None and SPARE_PARTITION in state.partitions,
        availability=state.availability if state else Availability.UNKNOWN,
        is_drained=bool(state and (state.is_drained or state.is_fail)),
        is_completing=bool(state and state.is_completing),
        is_responding=bool(state and state.is_responding),
        reason=state.reason if state else "",
        reason_by=state.reason_by if state else "",
        jobs=jobs,
        instance_id=instance_id or word.instance_id,
        instance_status=status,
        address=instance.address if instance and has_provider else "",
        slurm_address=state.address if state else "",
        created_at=instance.created_at if instance else None,
        added_at=added_at,
        heartbeat_at=word.heartbeat_at if is_same else None,
        said_goodbye=is_same and word.said_goodbye_at is not None,
        agent_instance_id=word.instance_id if is_same else "",
        boot_id=word.boot_id if is_same else "",
        is_ready=word.is_ready and is_same and word.said_goodbye_at is None,
        owes_deep=word.owes_deep and is_same,
        waits_for_deep=bool(word.wants) and is_same,
        is_reachable=word.is_reachable,
        reachable_at=word.reachable_at,
        closed=tuple(f for _, f in word.closed) if is_same else (),
        findings=findings,
        repair=repair,
    )


def _with_slurms_word(world: World, node: NodeView, state: NodeState | None) -> NodeView:
    """Return the node with a finding for the reason that Slurm itself gave; a person's reason never becomes one."""
    reasons, now = world.memory.reasons, world.clock.now()
    if state is None:
        return node
    seen = see_reason(reasons.get(node.name), state, node.instance_id, node.boot_id, now)
    if seen is None:
        reasons.pop(node.name, None)
        return node
    reasons[node.name] = seen
    finding = finding_of(seen, state, node.boot_id, now)
    return node if finding is None else replace(node, findings=(*node.findings, finding))


def _under_policy(world: World, node: NodeView) -> NodeView:
    """Return the node with the findings that are made on the head node as their checks' modes have them.

    The last thing that is done to them: an announced end counts only shortly before, a failed check when it lasts.
    """
    findings, closed = _as_modes_have_them(world, node.group, node.findings), node.closed
    if closed:
        closed = _as_modes_have_them(world, node.group, closed)
    if findings == node.findings and closed == node.closed:
        return node
    return replace(node, findings=findings, closed=closed)


def _as_modes_have_them(world: World, group: str, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    kept = []
    for finding in findings:
        mode = world.repair_policy.mode_of(group, finding.check)
        if finding.check not in JUDGED_BY_CONTROLLER or mode is Mode.ACT:
            kept.append(finding)
        elif mode is Mode.OBSERVE:
            kept.append(observed(finding))
    return tuple(kept)


def _remember_new_jobs(world: World, views: tuple[JobView, ...], known: dict[int, JobRecord]) -> dict[int, JobRecord]:
    """Write down every job that is seen for the first time, armed or not, from its stored environment."""
    new = {}
    for view in views:
        if view.job_id in known or not view.is_batch:
            continue
        if view.status.is_over and (view.ended_at is None or view.ended_at < world.memory.started_at):
            # History; one that ended between two looks of ours is judged like any other.
            continue
        try:
            environment = world.slurm.saved_environment(view.array_job_id or view.het_job_id or view.job_id)
        except HyperpodError as error:
            text = "cannot read the environment of job=%s error=%s"
            world.repeats.warning(log, ("environment", view.job_id), world.clock.now(), text, view.job_id, error)
            continue
        armed_by, most = is_armed_by(environment or {}, world.resume_policy)
        if view.het_job_id is not None and view.het_offset:
            # A het job is requeued as one, by its leader.
            armed_by = ""
        directory = (environment or {}).get("HYPERPOD_CHECKPOINT_DIR", "")
        new[view.job_id] = remember_job(world, view, armed_by, most, directory)
    return new


def remember_job(world: World, view: JobView, armed_by: str, most: int | None, directory: str) -> JobRecord:
    """Write a job down, with its checkpoint directory filled in."""
    record = JobRecord(
        job_id=view.job_id,
        user=view.user,
        uid=view.uid,
        name=view.name,
        armed_by=armed_by,
        max_attempts=most,
        checkpoint_dir=checkpoint_dir(world, view, directory),
        users_excluded=view.excluded,
    )
    world.store.put_job(record)
    if armed_by:
        try:
            world.slurm.allow_requeue(view.job_id)
        except HyperpodError as error:
            log.warning("cannot allow requeue job=%s error=%s", view.job_id, error)
        limit = most or world.resume_policy.max_attempts
        text = f"job {view.job_id} ({view.name}) of {view.user} is watched: at most {limit} attempts"
        world.store.add_event("JobArmed", text, world.clock.now(), job_id=view.job_id, uid=view.uid)
    return record


def checkpoint_dir(world: World, view: JobView, named: str) -> str:
    """Return the job's checkpoint directory: what it named, else the template with its own words filled in."""
    if named.startswith("/"):
        return named
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in view.name).lstrip(".") or "job"
    return world.resume_policy.checkpoint_dir.format(
        user=view.user or view.uid, job_name=safe, job_id=view.job_id, cluster=world.cluster
    )
