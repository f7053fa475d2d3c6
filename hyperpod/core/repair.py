"""Decide which nodes to fence, drain, reboot, replace, check and bring back.

Owns the repair of nodes from the first silence or fatal finding to the machine that takes work again. Liveness, budget
and spares are decided beside it. Everything here only computes; the controller applies the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from hyperpod.core import plan as do
from hyperpod.core.backoff import delay_after
from hyperpod.core.budget import Budget, hit_nodes, is_machine_work, open_breakers, widespread_causes
from hyperpod.core.finding import Action, Finding, Severity, Whose, strongest_action
from hyperpod.core.liveness import (
    AGREED_CAUSE,
    DEAD_CAUSE,
    FIRST_CHECK_CAUSE,
    OFF,
    OFFENDER_CAUSE,
    RETURNED_CAUSE,
    SHUTDOWN_CAUSE,
    announced_findings,
    fatal_findings,
    is_before_first_job,
    is_dead,
    is_fresh,
    is_silent,
)
from hyperpod.core.node import (
    Availability,
    DrainOwner,
    InstanceStatus,
    NodeView,
    Repair,
    RepairStatus,
    Role,
    drain_reason,
    nearest_admin_action,
    parse_admin_action,
    reason_machine,
)
from hyperpod.core.notices import is_announced_cause, is_providers_cause
from hyperpod.core.plan import Note, Plan
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.snapshot import Snapshot
from hyperpod.core.spares import decide_spares, should_park
from hyperpod.core.stopped_spares import asleep, is_asleep, waking

IDLE_WAKE = timedelta(seconds=2)
"""Longest sleep: Slurm is polled at least this often as a fallback for lost messages."""

_ANNOUNCED = "ec2_event/"
"""Under this the budget counts what the plan being made begins for announced ends."""

_ENDS_MACHINES = (do.FenceInstance, do.MarkDown, do.RebootInstance, do.ReplaceInstance)
"""What is never done while repair is switched off."""

REBOOT_TAKES_AT_MOST = timedelta(seconds=60)
"""A machine that is still off this long after it was rebooted will not come by itself."""


def decide_repair(snapshot: Snapshot, policy: RepairPolicy) -> Plan:
    """Decide which nodes to probe, fence, drain, reboot, replace, check and bring back.

    Pure. Nodes are taken by name, so that equal snapshots give equal plans in whatever order they list nodes.

    Args:
        snapshot: Nodes seen at ``snapshot.now`` (UTC). Up to 10,000 nodes; O(n log n).
        policy: Limits. ``max_parallel_repaired`` counts repairs already under way.

    Returns:
        Plan whose destructive actions stay inside the budget; refused nodes are in ``notes``. While a source is
        missing it holds no destructive action and says so.

    Source: docs/architecture.md; EKS NodeRepairConfig for the words of the limits.
    """
    workers = [n for n in snapshot.nodes if n.role is Role.WORKER]
    remarkable, earliest = _remarkable(workers, policy, snapshot)
    budget = Budget(
        workers=len(workers),
        unhealthy=sum(1 for n in remarkable if not is_asleep(n) and _is_unhealthy(n)),
        under_repair=sum(1 for n in remarkable if is_machine_work(n.repair)),
        hit=hit_nodes(snapshot.history, policy, snapshot.now, snapshot.breaker_reset_at),
        policy=policy,
    )
    notes: list[Note] = []
    actions: list[do.Action] = []
    wake = IDLE_WAKE
    if earliest is not None:
        wake = min(wake, earliest + policy.silence - snapshot.now + timedelta(milliseconds=20))

    suspects = [
        n
        for n in remarkable
        if (n.repair is None or n.repair.status is RepairStatus.DRAINING) and is_silent(n, policy, snapshot)
    ]
    for node in suspects:
        if node.instance_status not in OFF and _needs_probe(node, policy, snapshot):
            actions.append(do.ProbeNode("the agent is silent; asking for a second opinion", node.name))
            wake = min(wake, timedelta(milliseconds=200))

    if not snapshot.is_complete:
        sources = " and ".join(snapshot.missing)
        notes.append(Note("IncompleteObservation", f"no answer from {sources}: nothing destructive is done"))
        return Plan(tuple(actions), tuple(notes), min(wake, timedelta(seconds=1)))
    if not policy.enabled:
        notes.append(Note("RepairDisabled", "repair is switched off: bad nodes are drained, machines are left alone"))

    unconfirmed = [n for n in suspects if n.repair is None and n.instance_status not in OFF]
    is_mass_silence = len(unconfirmed) >= 2 and len(unconfirmed) * 2 > len(workers)
    waiting = {n.name for n in unconfirmed} if is_mass_silence else set()
    if is_mass_silence:
        names = ", ".join(n.name for n in unconfirmed[:5])
        notes.append(Note("MassSilence", f"most agents are silent at once ({names}, …): our side or the network"))

    widespread = widespread_causes(remarkable, len(workers), policy)
    for cause, names_hit in widespread.items():
        text = (
            f"{cause} on {len(names_hit)} nodes at once ({', '.join(names_hit[:5])}): our side, the site or the network"
        )
        notes.append(Note("SiteProblem", f"{text}; nothing is done for it, a person should look"))
    breakers = open_breakers(snapshot.history, policy, snapshot.now, snapshot.breaker_reset_at)
    for cause, names_hit in sorted(breakers.items()):
        notes.append(Note("BreakerOpen", f"{cause} on {', '.join(names_hit)}: a site problem; a person should look"))

    for node in remarkable:
        if node.name in waiting or _is_held_by_the_site(node, widespread, policy, snapshot):
            continue
        planned, more, soon = _one_node(node, snapshot, policy, budget)
        if not policy.enabled and any(isinstance(a, _ENDS_MACHINES) for a in planned):
            # What goes with it, such as the next phase in the journal, is left too: it would tell what is not so.
            why = next(a.reason for a in planned if isinstance(a, _ENDS_MACHINES))
            planned = [a for a in planned if isinstance(a, do.DrainNode)]
            more, soon = [*more, Note("RepairDisabled", f"{node.name} is left as it is: {why}", node.name)], IDLE_WAKE
        actions += planned
        notes += more
        wake = min(wake, soon)
    spare_actions, spare_notes = decide_spares(snapshot, policy)
    parked = {a.node for a in actions if isinstance(a, do.ParkSpare)}
    # One decision at a time: a spare that is stopped or started must not be under another one already, and what it
    # was asked for before is not asked again.
    repeated = (do.StopSpare, do.StartSpare)
    decided = {a.node for a in actions if isinstance(a, do.NodeAction) and not isinstance(a, repeated)}
    turned = {a.node for a in spare_actions if isinstance(a, do.SaveRepair)} - decided
    actions = [a for a in actions if not (isinstance(a, repeated) and a.node in turned)]
    moves = (do.UseSpare, do.ParkSpare)
    actions += [a for a in spare_actions if a.node not in (parked if isinstance(a, moves) else decided)]
    notes += spare_notes
    return Plan(tuple(actions), tuple(notes), wake)


def _is_held_by_the_site(
    node: NodeView, widespread: Mapping[str, tuple[str, ...]], policy: RepairPolicy, snapshot: Snapshot
) -> bool:
    """Say whether all that is wrong with a node is what is wrong with most of the fleet: then it is left alone."""
    if not widespread or node.repair is not None or is_dead(node, policy, snapshot) or _admins_wish(node) is not None:
        return False
    fatal = fatal_findings(node)
    return bool(fatal) and all(f"{f.check}/{f.code}" in widespread for f in fatal)


def _is_unhealthy(node: NodeView) -> bool:
    return node.repair is not None or node.availability is Availability.DOWN


def _needs_probe(node: NodeView, policy: RepairPolicy, snapshot: Snapshot) -> bool:
    if node.reachable_at is None or (node.heartbeat_at is not None and node.reachable_at <= node.heartbeat_at):
        return True
    pause = timedelta(seconds=1) if node.said_goodbye else max(policy.silence, timedelta(seconds=3))
    return snapshot.now - node.reachable_at > pause


def _remarkable(
    workers: list[NodeView], policy: RepairPolicy, snapshot: Snapshot
) -> tuple[list[NodeView], datetime | None]:
    """Return the nodes that need a closer look, by name, and the oldest heartbeat of those that are heard.

    Nearly all nodes are heard, open and without findings or repair: they need no decision, and are passed quickly.
    """
    listening_to = snapshot.now - policy.silence
    remarkable = []
    earliest: datetime | None = None
    for node in workers:
        heard = node.heartbeat_at
        if heard is not None and heard >= listening_to and not node.said_goodbye:
            if earliest is None or heard < earliest:
                earliest = heard
            is_open = node.availability is Availability.UP and not node.is_drained
            is_noted = node.instance_id in snapshot.offenders or node.instance_id in snapshot.accused
            if is_open and node.repair is None and not (node.findings or is_noted or node.owes_deep):
                continue
        remarkable.append(node)
    remarkable.sort(key=lambda n: n.name)
    return remarkable, earliest


def _one_node(
    node: NodeView,
    snapshot: Snapshot,
    policy: RepairPolicy,
    budget: Budget,
) -> tuple[list[do.Action], list[Note], timedelta]:
    if node.repair is None:
        return _begin(node, snapshot, policy, budget)
    status = node.repair.status
    if status is RepairStatus.DRAINING:
        return _draining(node, node.repair, snapshot, policy, budget)
    if status is RepairStatus.FENCING:
        return _fencing(node, node.repair, snapshot, policy, budget)
    if status is RepairStatus.REBOOTING:
        return _rebooting(node, node.repair, snapshot, policy)
    if status is RepairStatus.REPLACING:
        return _replacing(node, node.repair, snapshot, policy)
    if status is RepairStatus.CHECKING:
        return _checking(node, node.repair, snapshot, policy)
    if status is RepairStatus.ASLEEP:
        return asleep(node, node.repair, snapshot, budget)
    if status is RepairStatus.WAKING:
        return waking(node, node.repair, snapshot, policy, budget)
    return _held(node, node.repair, snapshot, policy, budget)


def _new_repair(
    node: NodeView, status: RepairStatus, cause: str, message: str, action: Action, now: datetime
) -> Repair:
    return Repair(
        node=node.name,
        status=status,
        cause=cause,
        message=message,
        action=action,
        instance_id=node.instance_id or node.agent_instance_id,
        since=now,
        changed_at=now,
        boot_id=node.boot_id,
    )


def _save(repair: Repair, why: str) -> do.SaveRepair:
    return do.SaveRepair(why, repair.node, repair)


def _dead_action(policy: RepairPolicy) -> Action:
    """A dead machine is replaced, not power-cycled first: what stopped it once may stop it again under a job."""
    return Action.REBOOT if policy.action == "Reboot" else Action.REPLACE


def _admins_wish(node: NodeView) -> Action | None:
    """Return what an administrator asked for in the node's reason, as long as the node is out of service."""
    is_out = node.is_drained or node.availability is Availability.DOWN
    return parse_admin_action(node.reason) if is_out else None


def _begin(
    node: NodeView, snapshot: Snapshot, policy: RepairPolicy, budget: Budget
) -> tuple[list[do.Action], list[Note], timedelta]:
    now = snapshot.now
    owner = node.drain_owner
    asked = _admins_wish(node)
    if is_dead(node, policy, snapshot):
        if owner is DrainOwner.PERSON and asked is None and not node.jobs:
            text = f"dead, but drained by {node.reason_by or 'a person'}: left alone"
            return [], [Note("PersonsDrain", text, node.name)], IDLE_WAKE
        return _begin_dead(node, snapshot, policy, budget)
    if asked is not None:
        message = f"asked by {node.reason_by or 'an administrator'}: {node.reason}"
        repair = _new_repair(node, RepairStatus.DRAINING, f"admin/{asked.value}", message, asked, now)
        return [_save(repair, message)], [], timedelta(0)
    if node.said_goodbye and owner is not DrainOwner.PERSON:
        return _begin_goodbye(node, snapshot, budget)
    meant = nearest_admin_action(node.reason) if owner is DrainOwner.PERSON else ""
    if meant:
        text = f"{node.reason.strip()!r} not understood, did you mean {meant}"
        return [do.AnswerReason(text.replace("'", ""), node.name)], [], IDLE_WAKE
    fatal = fatal_findings(node)
    if fatal:
        return _begin_fatal(node, fatal, snapshot, policy, budget)
    announced = announced_findings(node)
    if announced and owner is DrainOwner.NOBODY:
        return _begin_announced(node, announced, snapshot, budget)
    notes = [
        Note("NotTheNode", f"{f.code} is the {f.whose.value}'s: the node is not drained for it", node.name)
        for f in node.findings
        if f.severity is Severity.FATAL and f.whose is not Whose.NODE
    ]
    offender = snapshot.offenders.get(node.instance_id)
    if offender is not None and owner is DrainOwner.NOBODY:
        if policy.replace_offenders:
            text = f"{node.name} fails too often: {offender.sentence}"
            return _begin_soft(node, OFFENDER_CAUSE, text, Action.REPLACE, snapshot, budget)
        notes.append(Note("RepeatOffender", f"{node.name} fails too often: {offender.sentence}", node.name))
    accused = snapshot.accused.get(node.instance_id)
    if accused is not None and owner is DrainOwner.NOBODY:
        action = Action.REPLACE if was_rebooted_for(node, AGREED_CAUSE, snapshot, policy) else Action.REBOOT
        return _begin_soft(node, AGREED_CAUSE, f"a job ended here: {accused}", action, snapshot, budget)
    if node.owes_deep and owner is DrainOwner.NOBODY and is_fresh(node, policy, snapshot):
        # No repair and no budget: it is not taken out of work, it has not begun. Once it is ready it is undrained.
        return [_close_before_check(node)], notes, timedelta(milliseconds=500)
    if node.owes_deep:
        notes.append(Note("BeforeFirstJob", f"{node.name} takes no job before its deep check", node.name))
    is_working = node.is_ready and is_fresh(node, policy, snapshot)
    is_void = owner is DrainOwner.OURS and reason_machine(node.reason) not in ("", node.instance_id)
    is_back = owner is DrainOwner.SLURM and node.availability is Availability.DOWN and is_working
    is_ours_without_repair = owner is DrainOwner.OURS and is_working
    if is_void or is_back or is_ours_without_repair:
        message = "another machine is in the slot" if is_void else f"it is back after: {node.reason or 'down'}"
        repair = _new_repair(node, RepairStatus.CHECKING, RETURNED_CAUSE, message, Action.NONE, now)
        return [_save(repair, message)], notes, timedelta(0)
    if owner is DrainOwner.PERSON:
        who = node.reason_by or "a person"
        notes.append(Note("PersonsDrain", f"drained by {who}: {node.reason}", node.name))
    elif owner is DrainOwner.SLURM and node.is_drained:
        text = f"drained by Slurm itself ({node.reason or 'no reason given'}): hyperpod undrain brings it back"
        notes.append(Note("SlurmsDrain", text, node.name))
    return [], notes, IDLE_WAKE


def _close_before_check(node: NodeView) -> do.Action:
    """Its slurmd starts only when this drain is seen, so nothing can come before the check."""
    machine = node.instance_id or node.agent_instance_id
    text = "takes no job before its deep check"
    return do.DrainNode(drain_reason(FIRST_CHECK_CAUSE, text, Whose.SITE.value, machine, node.boot_id), node.name)


def _begin_soft(
    node: NodeView, cause: str, message: str, action: Action, snapshot: Snapshot, budget: Budget
) -> tuple[list[do.Action], list[Note], timedelta]:
    """Take a node out of work that works now: its jobs may end, then its machine is seen to."""
    if budget.is_broken_by(cause):
        return [], [_refused(node, f"{message}, but the breaker is open for {cause}")], IDLE_WAKE
    if not budget.allows_unhealthy(node):
        return [], [_refused(node, f"{message}, but too many nodes are out of service already")], IDLE_WAKE
    repair = _new_repair(node, RepairStatus.DRAINING, cause, message, action, snapshot.now)
    budget.begin(node, cause)
    reason = drain_reason(cause, message, Whose.NODE.value, repair.instance_id, repair.boot_id)
    return [_save(repair, message), do.DrainNode(reason, node.name)], [], timedelta(milliseconds=100)


def _begin_goodbye(node: NodeView, snapshot: Snapshot, budget: Budget) -> tuple[list[do.Action], list[Note], timedelta]:
    """An orderly shutdown has begun: its armed jobs move at once, before slurmd stops."""
    message = f"{node.name} is shutting down in an orderly way"
    if budget.is_broken_by(SHUTDOWN_CAUSE):
        return [], [_refused(node, f"{message}, but the breaker is open for shutdowns")], IDLE_WAKE
    if not budget.allows_unhealthy(node):
        return [], [_refused(node, f"{message}, but too many nodes are out of service already")], IDLE_WAKE
    repair = _new_repair(node, RepairStatus.DRAINING, SHUTDOWN_CAUSE, message, Action.REBOOT, snapshot.now)
    budget.begin(node, SHUTDOWN_CAUSE)
    actions: list[do.Action] = [_save(repair, message)]
    if not node.is_drained:
        reason = drain_reason(SHUTDOWN_CAUSE, message, Whose.NODE.value, repair.instance_id, repair.boot_id)
        actions.append(do.DrainNode(reason, node.name))
    return actions, [], timedelta(milliseconds=100)


def _refused(node: NodeView, why: str) -> Note:
    return Note("Refused", f"{node.name}: {why}", node.name)


def _begin_dead(
    node: NodeView,
    snapshot: Snapshot,
    policy: RepairPolicy,
    budget: Budget,
) -> tuple[list[do.Action], list[Note], timedelta]:
    how = (
        f"its machine is {node.instance_status.value}"
        if node.instance_status in OFF
        else f"no heartbeat for {_age(node, snapshot)} and neither ssh nor slurmd answers"
    )
    message = f"{node.name} is dead: {how}"
    cause, action = DEAD_CAUSE, _dead_action(policy)
    if node.said_goodbye:
        message, cause, action = f"{node.name} was shut down in an orderly way", SHUTDOWN_CAUSE, Action.REBOOT
    if budget.is_broken_by(cause):
        return [], [_refused(node, f"{message}, but the breaker is open for dead nodes")], IDLE_WAKE
    if not budget.allows_unhealthy(node):
        return [], [_refused(node, f"{message}, but too many nodes are out of service already")], IDLE_WAKE
    repair = _new_repair(node, RepairStatus.FENCING, cause, message, action, snapshot.now)
    budget.begin(node, cause)
    actions: list[do.Action] = [_save(repair, message)]
    actions += _fence_and_down(node, repair)
    return actions, [], timedelta(milliseconds=100)


def jobs_on(node: NodeView) -> str:
    """Return the number of jobs on a node in words: ``1 job``, ``2 jobs``."""
    return f"{len(node.jobs)} job{'' if len(node.jobs) == 1 else 's'}"


def _age(node: NodeView, snapshot: Snapshot) -> str:
    if node.heartbeat_at is None:
        return "as long as we listen"
    return f"{(snapshot.now - node.heartbeat_at).total_seconds():.1f} s"


def _fence_and_down(node: NodeView, repair: Repair) -> list[do.Action]:
    """Power the machine off first: the job must not start elsewhere while the old one may still write."""
    actions: list[do.Action] = []
    if node.instance_status not in OFF and repair.instance_id:
        actions.append(do.FenceInstance(repair.message, node.name, repair.instance_id))
    if not _is_marked_down(node):
        reason = drain_reason(repair.cause, repair.message, "node", repair.instance_id, repair.boot_id)
        actions.append(do.MarkDown(reason, node.name, repair.instance_id))
    return actions


def _is_marked_down(node: NodeView) -> bool:
    """DOWN alone is not enough: a live node may register again and take the job back (ReturnToService)."""
    return node.availability is Availability.DOWN and (node.is_drained or node.drain_owner is DrainOwner.PERSON)


def _begin_fatal(
    node: NodeView,
    fatal: tuple[Finding, ...],
    snapshot: Snapshot,
    policy: RepairPolicy,
    budget: Budget,
) -> tuple[list[do.Action], list[Note], timedelta]:
    worst, action = _worst_of(node, fatal, snapshot, policy)
    cause = f"{worst.check}/{worst.code}"
    if node.drain_owner is DrainOwner.PERSON:
        return (
            [],
            [Note("PersonsDrain", f"{cause} on a node that {node.reason_by} drained: left alone", node.name)],
            IDLE_WAKE,
        )
    if budget.is_broken_by(cause):
        return [], [_refused(node, f"{cause}, but the breaker is open for it")], IDLE_WAKE
    if not budget.allows_unhealthy(node):
        return [], [_refused(node, f"{cause}, but too many nodes are out of service already")], IDLE_WAKE
    repair = _new_repair(node, RepairStatus.DRAINING, cause, worst.message, action, snapshot.now)
    budget.begin(node, cause)
    reason = drain_reason(cause, worst.message, worst.whose.value, repair.instance_id, node.boot_id)
    actions: list[do.Action] = [_save(repair, worst.message)]
    if not node.is_drained or is_before_first_job(node.reason):
        actions.append(do.DrainNode(reason, node.name))
    return actions, [], timedelta(milliseconds=100)


def _begin_announced(
    node: NodeView, announced: tuple[Finding, ...], snapshot: Snapshot, budget: Budget
) -> tuple[list[do.Action], list[Note], timedelta]:
    """Keep new work away from a machine that will be taken away; its jobs may end by themselves until shortly before.

    Few at a time: a maintenance of half the site is announced for days ahead, and each machine is free of it once it
    has been replaced.
    """
    first = min(announced, key=lambda f: (f.deadline or snapshot.now, f.key))
    cause = f"{first.check}/{first.code}"
    waiting = sum(1 for n in snapshot.nodes if n.repair is not None and is_announced_cause(n.repair.cause))
    begun = len(budget.hit[_ANNOUNCED])
    if waiting + begun >= budget.policy.max_parallel_repaired:
        return [], [_refused(node, f"{cause}: as many announced ends as allowed are under way")], IDLE_WAKE
    if not budget.allows_unhealthy(node):
        return [], [_refused(node, f"{cause}, but too many nodes are out of service already")], IDLE_WAKE
    repair = _new_repair(node, RepairStatus.DRAINING, cause, first.message, first.action, snapshot.now)
    budget.begin(node, _ANNOUNCED)
    reason = drain_reason(cause, first.message, Whose.NODE.value, repair.instance_id, node.boot_id)
    actions: list[do.Action] = [_save(repair, first.message), do.DrainNode(reason, node.name)]
    return actions, [], timedelta(milliseconds=100)


def _worst_of(
    node: NodeView, fatal: tuple[Finding, ...], snapshot: Snapshot, policy: RepairPolicy
) -> tuple[Finding, Action]:
    """Return the finding that decides, and what to do about it: the ladder of none, drain, reboot, replace.

    A reboot comes first where the policy wants one, and a replacement where the same cause has come back on the same
    machine after a reboot.
    """
    action = strongest_action(fatal)
    worst = max(fatal, key=lambda f: (f.action is action, f.is_hard, f.key))
    if action is Action.REPLACE and policy.reboot_first and not worst.is_hard:
        action = Action.REBOOT
    if action is Action.REBOOT and was_rebooted_for(node, f"{worst.check}/{worst.code}", snapshot, policy):
        action = Action.REPLACE
    return worst, action


def was_rebooted_for(node: NodeView, cause: str, snapshot: Snapshot, policy: RepairPolicy) -> bool:
    """Say whether this machine was rebooted for this cause within the window, by a repair before the present one."""
    machine = node.instance_id or node.agent_instance_id
    since = snapshot.now - timedelta(seconds=policy.reboot_window_s)
    before = node.repair.since if node.repair is not None else snapshot.now
    return any(
        p.is_reboot and p.cause == cause and p.instance_id == machine and since <= p.at < before
        for p in snapshot.history
    )


def _draining(
    node: NodeView, repair: Repair, snapshot: Snapshot, policy: RepairPolicy, budget: Budget
) -> tuple[list[do.Action], list[Note], timedelta]:
    now = snapshot.now
    if is_dead(node, policy, snapshot):
        moved = repair.moved(RepairStatus.FENCING, now, action=_machine_action(repair))
        return [_save(moved, f"{node.name} died while draining"), *_fence_and_down(node, moved)], [], timedelta(0)
    is_admins = repair.cause.startswith("admin/")
    # What these rest on is the past, which no check can find to be over.
    is_judged = repair.cause in (OFFENDER_CAUSE, AGREED_CAUSE) and node.instance_id == repair.instance_id
    fatal = fatal_findings(node)
    announced = announced_findings(node)
    is_known = snapshot.are_notices_known or not is_providers_cause(repair.cause)
    is_well = not fatal and not announced and is_known
    if not is_admins and not is_judged and is_well and node.is_ready and is_fresh(node, policy, snapshot):
        actions: list[do.Action] = []
        if node.drain_owner is DrainOwner.OURS:
            actions.append(do.UndrainNode(f"{repair.cause} is over", node.name))
        actions.append(do.EndRepair(f"{repair.cause} is over", node.name))
        return actions, [], timedelta(0)
    actions = []
    if not node.is_drained:
        reason = drain_reason(repair.cause, repair.message, "node", repair.instance_id, repair.boot_id)
        actions.append(do.DrainNode(reason, node.name))
    if node.jobs or node.is_completing or not node.is_drained:
        note = Note("Draining", f"{node.name} waits for {jobs_on(node)} to leave: {repair.message}", node.name)
        return actions, [note], timedelta(milliseconds=500)
    if fatal and not is_admins and repair.cause != OFFENDER_CAUSE:
        # What the machine suffers from now decides, not what began the drain.
        repair = replace(repair, action=_worst_of(node, fatal, snapshot, policy)[1])
    elif announced and not is_admins:
        repair = replace(repair, action=announced[0].action)
    is_going_down = repair.cause == SHUTDOWN_CAUSE and node.said_goodbye
    if is_going_down and now - repair.changed_at <= timedelta(seconds=policy.replace_timeout_s):
        return actions, [Note("GoingDown", repair.message, node.name)], timedelta(seconds=1)
    if repair.action not in (Action.REBOOT, Action.REPLACE):
        return actions, [Note("Drained", f"{node.name} is kept out of work: {repair.message}", node.name)], IDLE_WAKE
    if not budget.allows_repair():
        return actions, [_refused(node, "its repair waits: as many as allowed are under way")], IDLE_WAKE
    budget.under_repair += 1
    return [*actions, *_start_machine_action(repair, now)], [], timedelta(milliseconds=200)


def _machine_action(repair: Repair) -> Action:
    return repair.action if repair.action in (Action.REBOOT, Action.REPLACE) else Action.REPLACE


def _start_machine_action(repair: Repair, now: datetime) -> list[do.Action]:
    if repair.action is Action.REBOOT and not repair.was_rebooted:
        moved = repair.moved(RepairStatus.REBOOTING, now, was_rebooted=True, attempt=1)
        return [
            _save(moved, f"rebooting: {repair.message}"),
            do.RebootInstance(repair.message, repair.node, repair.instance_id, repair.since),
        ]
    moved = repair.moved(RepairStatus.REPLACING, now, action=Action.REPLACE, attempt=1)
    return [
        _save(moved, f"replacing: {repair.message}"),
        do.ReplaceInstance(repair.message, repair.node, repair.instance_id, 1),
    ]


def _fencing(
    node: NodeView, repair: Repair, snapshot: Snapshot, policy: RepairPolicy, budget: Budget
) -> tuple[list[do.Action], list[Note], timedelta]:
    if node.instance_id and node.instance_id != repair.instance_id:
        return _another_machine(node, repair, snapshot)
    has_booted = bool(node.boot_id) and node.boot_id != repair.boot_id and is_fresh(node, policy, snapshot)
    if repair.cause == SHUTDOWN_CAUSE and has_booted:
        moved = repair.moved(RepairStatus.CHECKING, snapshot.now)
        return [_save(moved, "it has booted again by itself")], [], timedelta(0)
    actions = _fence_and_down(node, repair)
    if actions or node.jobs or node.is_completing:
        return actions, [], timedelta(milliseconds=200)
    # This repair is counted in the budget already.
    if (
        budget.under_repair > policy.max_parallel_repaired
        and _older_repairs(node, snapshot) >= policy.max_parallel_repaired
    ):
        return [], [_refused(node, "its repair waits: as many as allowed are under way")], IDLE_WAKE
    return _start_machine_action(replace(repair, action=_machine_action(repair)), snapshot.now), [], timedelta(0)


def _another_machine(
    node: NodeView, repair: Repair, snapshot: Snapshot
) -> tuple[list[do.Action], list[Note], timedelta]:
    """The dead machine has left the slot, so it is fenced; its jobs still have to be told, and the newcomer checked."""
    why = "another machine is in the slot already"
    moved = repair.moved(RepairStatus.CHECKING, snapshot.now)
    if _is_marked_down(node):
        return [_save(moved, why)], [], timedelta(0)
    reason = drain_reason(repair.cause, repair.message, Whose.NODE.value, repair.instance_id, repair.boot_id)
    is_newcomers = node.created_at is not None and any(
        job.job_id in node.jobs and job.started_at is not None and job.started_at > node.created_at
        for job in snapshot.jobs
    )
    if is_newcomers:
        # Slurm has given the newcomer work already: only more of it is kept away until it has passed its checks.
        drain = [] if node.is_drained else [do.DrainNode(reason, node.name)]
        return [*drain, _save(moved, why)], [], timedelta(0)
    return [do.MarkDown(reason, node.name, repair.instance_id), _save(moved, why)], [], timedelta(0)


def _older_repairs(node: NodeView, snapshot: Snapshot) -> int:
    """Count repairs of machines under way that come before this one (by begin, then by name)."""
    mine = node.repair
    assert mine is not None
    return sum(
        1
        for other in snapshot.nodes
        if other.repair is not None
        and other.name != node.name
        and is_machine_work(other.repair)
        and (
            other.repair.status is not RepairStatus.FENCING
            or (other.repair.since, other.name) < (mine.since, node.name)
        )
    )


def _rebooting(
    node: NodeView, repair: Repair, snapshot: Snapshot, policy: RepairPolicy
) -> tuple[list[do.Action], list[Note], timedelta]:
    now = snapshot.now
    if node.boot_id and node.boot_id != repair.boot_id and is_fresh(node, policy, snapshot):
        return [_save(repair.moved(RepairStatus.CHECKING, now), "it has booted again")], [], timedelta(0)
    if _is_back_at_work(node):
        return _close_again(node, repair, policy, now)
    is_off = node.instance_status in OFF and not repair.last_error and now - repair.changed_at > REBOOT_TAKES_AT_MOST
    if is_off or now - repair.changed_at > timedelta(seconds=policy.replace_timeout_s):
        return _start_machine_action(replace(repair, action=Action.REPLACE), now), [], timedelta(0)
    again = do.RebootInstance(repair.message, node.name, repair.instance_id, repair.since)
    asked: list[do.Action] = [] if repair.must_wait(now) else [again]
    return asked, [Note("Rebooting", _progress(node, repair, policy, now), node.name)], timedelta(seconds=1)


def _is_back_at_work(node: NodeView) -> bool:
    """Say whether somebody has opened a node in mid-repair, or even has work on it: its machine must stay then."""
    is_open = node.availability is Availability.UP and not node.is_drained
    return is_open or (bool(node.jobs) and node.instance_status not in OFF)


def _close_again(
    node: NodeView, repair: Repair, policy: RepairPolicy, now: datetime
) -> tuple[list[do.Action], list[Note], timedelta]:
    actions: list[do.Action] = []
    if not node.is_drained:
        reason = drain_reason(repair.cause, repair.message, Whose.NODE.value, repair.instance_id, repair.boot_id)
        actions.append(do.DrainNode(reason, node.name))
    text = f"{_progress(node, repair, policy, now)}: waits for {jobs_on(node)} to leave"
    return actions, [Note("Draining", text, node.name)], timedelta(milliseconds=500)


def _progress(node: NodeView, repair: Repair, policy: RepairPolicy, now: datetime) -> str:
    since = int((now - repair.since).total_seconds())
    error = repair.waits(now) + (f", last error: {repair.last_error}" if repair.last_error else "")
    tries = f"try {repair.attempt} of {policy.replace_attempts}, " if repair.status is RepairStatus.REPLACING else ""
    return f"{repair.status.value} ({tries}since {since} s{error})"


def _replacing(
    node: NodeView, repair: Repair, snapshot: Snapshot, policy: RepairPolicy
) -> tuple[list[do.Action], list[Note], timedelta]:
    now = snapshot.now
    is_new = bool(node.instance_id) and node.instance_id != repair.instance_id
    if is_new and node.instance_status is InstanceStatus.RUNNING:
        return [_save(repair.moved(RepairStatus.CHECKING, now), "the new machine runs")], [], timedelta(0)
    if is_new and node.instance_status is InstanceStatus.FAILED:
        return _next_try(node, repair, snapshot, policy, "the new machine's birth failed")
    if is_new and node.instance_status is InstanceStatus.STOPPED:
        return _next_try(node, repair, snapshot, policy, "the new machine has stopped")
    if not is_new and _is_back_at_work(node):
        return _close_again(node, repair, policy, now)
    # A provider that refuses (no capacity, throttled) says nothing against a machine: it is asked for ever.
    is_refused = not is_new and repair.refusals > 0
    if not is_refused and now - repair.changed_at > timedelta(seconds=policy.replace_timeout_s):
        return _next_try(node, repair, snapshot, policy, "no new machine in time")
    again = do.ReplaceInstance(repair.message, node.name, repair.instance_id, repair.attempt)
    note = Note("Replacing", _progress(node, repair, policy, now), node.name)
    return [] if is_new or repair.must_wait(now) else [again], [note], timedelta(milliseconds=500)


def _next_try(
    node: NodeView, repair: Repair, snapshot: Snapshot, policy: RepairPolicy, error: str
) -> tuple[list[do.Action], list[Note], timedelta]:
    """Try with another machine after a delay, or hold the node for a person when the tries are used up."""
    now = snapshot.now
    if node.jobs and node.instance_status not in OFF:
        text = f"{node.name} waits for {jobs_on(node)} to leave: {error}"
        return [], [Note("Draining", text, node.name)], IDLE_WAKE
    if repair.attempt >= policy.replace_attempts:
        # With the machine that failed last: a person's next one is told by being another.
        last = node.instance_id or repair.instance_id
        held = repair.moved(RepairStatus.HELD, now, last_error=error, instance_id=last)
        return [_save(held, f"gave up after {repair.attempt} tries: {error}")], [], IDLE_WAKE
    delay = delay_after(repair.attempt, first=timedelta(seconds=5), most=timedelta(minutes=5))
    left = repair.changed_at + delay - now
    if left > timedelta(0):
        return [], [Note("Waiting", _progress(node, repair, policy, now), node.name)], left
    again = repair.moved(
        RepairStatus.REPLACING,
        now,
        action=Action.REPLACE,
        instance_id=node.instance_id or repair.instance_id,
        attempt=repair.attempt + 1,
        last_error=error,
    )
    act = do.ReplaceInstance(f"next try after: {error}", node.name, again.instance_id, again.attempt)
    return [_save(again, act.reason), act], [], timedelta(0)


def _checking(
    node: NodeView, repair: Repair, snapshot: Snapshot, policy: RepairPolicy
) -> tuple[list[do.Action], list[Note], timedelta]:
    now = snapshot.now
    fatal = fatal_findings(node)
    is_working = node.is_ready and is_fresh(node, policy, snapshot)
    is_same_machine = not node.instance_id or node.agent_instance_id in ("", node.instance_id)
    if is_working and is_same_machine and not fatal:
        if node.drain_owner is DrainOwner.PERSON and not parse_admin_action(node.reason):
            return [do.EndRepair("repaired; a person's drain stays", node.name)], [], IDLE_WAKE
        # Parking comes before undraining, so that no job can slip in between.
        actions: list[do.Action] = []
        is_spare = should_park(node, snapshot, policy)
        if is_spare:
            actions.append(do.ParkSpare("back from repair; it becomes the spare", node.name, node.partition))
        if node.is_drained or node.availability is Availability.DOWN:
            actions.append(do.UndrainNode("passed its checks", node.name))
        actions.append(do.EndRepair(f"{node.name} is {'a spare' if is_spare else 'in service'} again", node.name))
        return actions, [], timedelta(0)
    if node.instance_status is InstanceStatus.FAILED or (fatal and repair.action is Action.REPLACE):
        return _next_try(node, repair, snapshot, policy, fatal[0].message if fatal else "the machine's birth failed")
    if fatal:
        worst, action = _worst_of(node, fatal, snapshot, policy)
        cause = f"{worst.check}/{worst.code}"
        moved = repair.moved(RepairStatus.DRAINING, now, cause=cause, action=action, message=worst.message)
        return [_save(moved, worst.message)], [], timedelta(0)
    if is_dead(node, policy, snapshot) and node.jobs:
        moved = repair.moved(RepairStatus.FENCING, now, action=_machine_action(repair), instance_id=node.instance_id)
        return [_save(moved, f"{node.name} died"), *_fence_and_down(node, moved)], [], timedelta(0)
    if node.owes_deep and node.drain_owner is DrainOwner.NOBODY and is_fresh(node, policy, snapshot):
        # Somebody has opened it: its slurmd would wait for ever.
        note = Note("Checking", _progress(node, repair, policy, now), node.name)
        return [_close_before_check(node)], [note], timedelta(milliseconds=500)
    if node.waits_for_deep and is_fresh(node, policy, snapshot):
        # A deep check ends by itself; the time for a birth is over when it begins.
        return [], [Note("Checking", _progress(node, repair, policy, now), node.name)], timedelta(milliseconds=500)
    # While we were away the slurmd of one that owes its deep check has waited for us: that was not its fault.
    began = max(repair.changed_at, snapshot.started_at) if node.owes_deep else repair.changed_at
    if is_dead(node, policy, snapshot) or now - began > timedelta(seconds=policy.replace_timeout_s):
        if repair.cause == RETURNED_CAUSE and node.instance_status not in OFF:
            note = Note("NotReady", f"{node.name} came back but does not pass its basic checks", node.name)
            return [], [note], IDLE_WAKE
        return _next_try(node, repair, snapshot, policy, "the new machine did not become ready in time")
    return [], [Note("Checking", _progress(node, repair, policy, now), node.name)], timedelta(milliseconds=500)


def _held(
    node: NodeView, repair: Repair, snapshot: Snapshot, policy: RepairPolicy, budget: Budget
) -> tuple[list[do.Action], list[Note], timedelta]:
    """Wait for a person: another machine, an ``Action:`` in the reason, or a drain lifted by hand bring it back."""
    now = snapshot.now
    if node.instance_id and node.instance_id != repair.instance_id and node.instance_status is InstanceStatus.RUNNING:
        moved = repair.moved(RepairStatus.CHECKING, now)
        return [_save(moved, "a person brought another machine")], [], timedelta(0)
    is_open = node.availability is Availability.UP and not node.is_drained
    # One that owes its deep check is closed for that, and opened after it, like any other.
    is_well = (node.is_ready or node.owes_deep) and not fatal_findings(node)
    if is_open and is_well and is_fresh(node, policy, snapshot):
        return [do.EndRepair("a person has opened it again", node.name)], [], IDLE_WAKE
    asked = _admins_wish(node)
    if asked is not None and not node.jobs and not node.is_completing:
        if not budget.allows_repair():
            return [], [_refused(node, "its repair waits: as many as allowed are under way")], IDLE_WAKE
        budget.under_repair += 1
        fresh = replace(repair, action=asked, instance_id=node.instance_id or repair.instance_id, was_rebooted=False)
        return _start_machine_action(replace(fresh, since=now, boot_id=node.boot_id), now), [], timedelta(0)
    note = Note("Held", f"{node.name} waits for a person: {repair.message}; last error: {repair.last_error}", node.name)
    return [], [note], IDLE_WAKE
