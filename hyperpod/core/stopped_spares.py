"""Spares whose machines are stopped while nobody needs them: when one is stopped, started, and what can go wrong.

Owns the two states of a repair record that stand for it. Running spares are always used first. Only computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from hyperpod.core import plan as do
from hyperpod.core.budget import Budget
from hyperpod.core.finding import Action
from hyperpod.core.liveness import is_fresh
from hyperpod.core.node import InstanceStatus, NodeView, Repair, RepairStatus, drain_reason
from hyperpod.core.plan import Note
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.snapshot import Snapshot

CAUSE = "spare/Stopped"
IDLE_WAKE = timedelta(seconds=2)

Planned = tuple[list[do.Action], list[Note], timedelta]


def is_asleep(node: NodeView) -> bool:
    """Say whether the node is a stopped spare: out of service, and nothing wrong with it."""
    return node.repair is not None and node.repair.status is RepairStatus.ASLEEP


def is_waking(node: NodeView) -> bool:
    """Say whether a spare is on its way, and was not refused: it will soon be there."""
    repair = node.repair
    if repair is None or repair.cause != CAUSE or repair.last_error:
        return False
    return repair.status in (RepairStatus.WAKING, RepairStatus.CHECKING)


def decide_stop(idle: Sequence[NodeView], snapshot: Snapshot) -> list[do.NodeAction]:
    """Stop the last of the running spares that nobody needs, one a tick; the drain comes first.

    Args:
        idle: Usable nodes outside of the users' partition, by name.
    """
    free = [n for n in idle if not n.jobs and not n.is_completing and n.instance_id and not n.findings]
    actions: list[do.NodeAction] = []
    for node in free[-1:]:
        message = f"{node.name} waits as a stopped spare"
        repair = Repair(
            node=node.name,
            status=RepairStatus.ASLEEP,
            cause=CAUSE,
            message=message,
            action=Action.NONE,
            instance_id=node.instance_id,
            since=snapshot.now,
            changed_at=snapshot.now,
            boot_id=node.boot_id,
        )
        reason = drain_reason(CAUSE, message, "site", node.instance_id, node.boot_id)
        actions += [
            do.SaveRepair(message, node.name, repair),
            do.DrainNode(reason, node.name),
            do.StopSpare(message, node.name, node.instance_id),
        ]
    return actions


def decide_rest(members: Sequence[NodeView], snapshot: Snapshot) -> list[do.NodeAction]:
    """Let spares sleep on that could not be started and are not needed any more."""
    actions: list[do.NodeAction] = []
    for node in members:
        repair = node.repair
        if repair is None or repair.status is not RepairStatus.WAKING or not repair.last_error:
            continue
        if node.instance_status is InstanceStatus.STOPPED:
            why = f"{node.name} is not needed any more"
            actions.append(do.SaveRepair(why, node.name, repair.moved(RepairStatus.ASLEEP, snapshot.now)))
    return actions


def decide_start(sleeping: Sequence[NodeView], wanted: int, why: str, snapshot: Snapshot) -> list[do.NodeAction]:
    """Start so many of the sleeping spares, by name."""
    actions: list[do.NodeAction] = []
    for node in sleeping[: max(wanted, 0)]:
        assert node.repair is not None
        moved = node.repair.moved(RepairStatus.WAKING, snapshot.now, last_error="")
        actions += [do.SaveRepair(why, node.name, moved), do.StartSpare(why, node.name, node.repair.instance_id)]
    return actions


def asleep(node: NodeView, repair: Repair, snapshot: Snapshot, budget: Budget) -> Planned:
    """A spare sleeps: its machine is stopped again if it runs, and replaced if it is gone."""
    now = snapshot.now
    if node.instance_id and node.instance_id != repair.instance_id:
        return (
            [_save(repair.moved(RepairStatus.CHECKING, now, action=Action.NONE), "another machine is in the slot")],
            [],
            timedelta(0),
        )
    if node.instance_status is InstanceStatus.GONE:
        return _replace(node, repair, snapshot, budget, f"{node.name}: the machine of a stopped spare is gone")
    if node.instance_status is InstanceStatus.RUNNING:
        if node.jobs or node.is_completing or not node.is_drained:
            # Somebody has opened it: it is at work, or may be any moment.
            moved = repair.moved(RepairStatus.CHECKING, now, action=Action.NONE)
            return [_save(moved, f"{node.name} was opened by somebody")], [], timedelta(0)
        stop = do.StopSpare(repair.message, node.name, repair.instance_id)
        return [] if repair.must_wait(now) else [stop], [], timedelta(seconds=1)
    return [], [], IDLE_WAKE


def waking(node: NodeView, repair: Repair, snapshot: Snapshot, policy: RepairPolicy, budget: Budget) -> Planned:
    """A spare is needed: its machine is asked to start until its agent is heard.

    A refusal says nothing against the machine: it is asked again for ever, while other spares are tried.
    """
    now = snapshot.now
    if node.instance_id and node.instance_id != repair.instance_id:
        return (
            [_save(repair.moved(RepairStatus.CHECKING, now, action=Action.NONE), "another machine is in the slot")],
            [],
            timedelta(0),
        )
    if is_fresh(node, policy, snapshot) and node.boot_id != repair.boot_id:
        moved = repair.moved(RepairStatus.CHECKING, now, action=Action.NONE, boot_id=node.boot_id, last_error="")
        return [_save(moved, f"{node.name} has started")], [], timedelta(0)
    is_late = not node.jobs and now - repair.changed_at > timedelta(seconds=policy.replace_timeout_s)
    if node.instance_status is InstanceStatus.GONE or (is_late and not repair.last_error):
        why = "its machine is gone" if node.instance_status is InstanceStatus.GONE else "it did not start in time"
        return _replace(node, repair, snapshot, budget, f"{node.name}: {why}")
    note = Note("Waking", f"{node.name} is being started{repair.waits(now)}{_error(repair)}", node.name)
    actions: list[do.Action] = []
    if node.instance_status is InstanceStatus.STOPPED and not repair.must_wait(now):
        actions.append(do.StartSpare(repair.message, node.name, repair.instance_id))
    return actions, [note], timedelta(milliseconds=500)


def _replace(node: NodeView, repair: Repair, snapshot: Snapshot, budget: Budget, why: str) -> Planned:
    if not budget.allows_repair():
        return [], [Note("Refused", f"{why}, but as many repairs as allowed are under way", node.name)], IDLE_WAKE
    budget.under_repair += 1
    moved = repair.moved(RepairStatus.REPLACING, snapshot.now, action=Action.REPLACE, attempt=1)
    act = do.ReplaceInstance(why, node.name, repair.instance_id, 1)
    return [_save(moved, why), act], [], timedelta(milliseconds=500)


def _error(repair: Repair) -> str:
    return f", last error: {repair.last_error}" if repair.last_error else ""


def _save(repair: Repair, why: str) -> do.SaveRepair:
    return do.SaveRepair(why, repair.node, repair)
