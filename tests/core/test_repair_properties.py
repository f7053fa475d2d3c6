"""What decide_repair must never do, whatever world it is shown."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings

from hyperpod.core import plan as do
from hyperpod.core.budget import unhealthy_limit
from hyperpod.core.finding import Action, Severity
from hyperpod.core.liveness import fatal_findings, is_dead
from hyperpod.core.node import ALLOWED, Availability, DrainOwner, InstanceStatus, RepairStatus, parse_admin_action
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.repair import decide_repair
from hyperpod.core.snapshot import Snapshot
from tests.core.worlds import of, repair_policies, shuffled, worlds

FEW = settings(max_examples=25, deadline=None)
MACHINE_WORK = (RepairStatus.REBOOTING, RepairStatus.REPLACING)


def saved(world: Snapshot, policy: RepairPolicy) -> dict[str, RepairStatus]:
    return {a.node: a.repair.status for a in of(decide_repair(world, policy), do.SaveRepair)}


@FEW
@given(worlds(), repair_policies)
def test_same_input_gives_the_same_plan_in_whatever_order_nodes_are_listed(
    world: Snapshot, policy: RepairPolicy
) -> None:
    order = list(range(len(world.nodes)))
    random.Random(1).shuffle(order)
    plan = decide_repair(world, policy)
    assert decide_repair(world, policy) == plan
    again = decide_repair(shuffled(world, order), policy)
    assert again.actions == plan.actions
    assert again.wake_after == plan.wake_after


@FEW
@given(worlds(), repair_policies)
def test_never_starts_more_machine_work_than_the_budget(world: Snapshot, policy: RepairPolicy) -> None:
    before = {n.name for n in world.nodes if n.repair is not None and n.repair.status in MACHINE_WORK}
    begun = {
        name
        for name, status in saved(world, policy).items()
        if status in MACHINE_WORK
        and name not in before
        and _was(world, name) is not RepairStatus.CHECKING
        # A spare that is started is checked, but nothing is done to its machine: it must not wait for repairs.
        and not (status is RepairStatus.CHECKING and _was(world, name) in (RepairStatus.ASLEEP, RepairStatus.WAKING))
    }
    assert not begun or len(before | begun) <= policy.max_parallel_repaired


def _was(world: Snapshot, name: str) -> RepairStatus | None:
    repair = world.by_name[name].repair
    return None if repair is None else repair.status


@FEW
@given(worlds(), repair_policies)
def test_never_takes_more_nodes_out_than_the_unhealthy_limit(world: Snapshot, policy: RepairPolicy) -> None:
    plan = decide_repair(world, policy)
    out = {n.name for n in world.nodes if n.repair is not None or n.availability is Availability.DOWN}
    taken = {a.node for kind in (do.DrainNode, do.MarkDown) for a in of(plan, kind)}
    asked = {n.name for n in world.nodes if parse_admin_action(n.reason)}
    new = taken - out - asked
    assert not new or len(out | new) <= unhealthy_limit(len(world.nodes), policy)


@FEW
@given(worlds(), repair_policies)
def test_never_touches_a_healthy_node(world: Snapshot, policy: RepairPolicy) -> None:
    healthy = {
        n.name
        for n in world.nodes
        if n.repair is None
        and n.availability is Availability.UP
        and not n.is_drained
        and n.is_ready
        and not n.said_goodbye
        and n.heartbeat_at is not None
        and world.now - n.heartbeat_at <= policy.silence
        and not [f for f in n.findings if f.severity is Severity.FATAL]
    }
    touched = {a.node for a in decide_repair(world, policy).actions if isinstance(a, do.NodeAction)}
    spares = {a.node for kind in (do.UseSpare, do.ParkSpare) for a in of(decide_repair(world, policy), kind)}
    assert not healthy & (touched - spares)


@FEW
@given(worlds(), repair_policies)
def test_an_incomplete_observation_leads_to_questions_only(world: Snapshot, policy: RepairPolicy) -> None:
    plan = decide_repair(world, policy)
    if world.is_complete:
        return
    assert all(isinstance(a, do.ProbeNode) for a in plan.actions)
    assert "IncompleteObservation" in {n.code for n in plan.notes}


@FEW
@given(worlds(), repair_policies)
def test_switched_off_no_machine_is_touched_and_the_same_nodes_are_drained(
    world: Snapshot, policy: RepairPolicy
) -> None:
    off = decide_repair(world, replace(policy, enabled=False))
    assert not [a for a in off.actions if isinstance(a, do.FenceInstance | do.RebootInstance | do.ReplaceInstance)]
    assert not of(off, do.MarkDown)
    on = {a.node for a in of(decide_repair(world, replace(policy, enabled=True)), do.DrainNode)}
    assert {a.node for a in of(off, do.DrainNode)} == on


@FEW
@given(worlds(), repair_policies)
def test_never_lifts_or_overwrites_a_persons_drain(world: Snapshot, policy: RepairPolicy) -> None:
    persons = {
        n.name
        for n in world.nodes
        if n.is_drained and n.drain_owner is DrainOwner.PERSON and not parse_admin_action(n.reason)
    }
    plan = decide_repair(world, policy)
    for kind in (do.UndrainNode, do.DrainNode, do.ParkSpare, do.UseSpare):
        assert not persons & {a.node for a in of(plan, kind)}


@FEW
@given(worlds(), repair_policies)
def test_never_ends_a_machine_with_live_jobs_unless_it_is_dead_or_fenced(world: Snapshot, policy: RepairPolicy) -> None:
    plan = decide_repair(world, policy)
    for kind in (do.ReplaceInstance, do.RebootInstance):
        for action in of(plan, kind):
            node = world.by_name[action.node]
            assert not node.jobs or node.instance_status in (InstanceStatus.STOPPED, InstanceStatus.GONE)
    for action in of(plan, do.FenceInstance):
        node = world.by_name[action.node]
        assert is_dead(node, policy, world) or (node.repair and node.repair.status is RepairStatus.FENCING)


@FEW
@given(worlds(), repair_policies)
def test_every_saved_status_is_allowed_by_the_table(world: Snapshot, policy: RepairPolicy) -> None:
    for name, status in saved(world, policy).items():
        before = _was(world, name) or RepairStatus.HEALTHY
        assert status is before or status in ALLOWED[before]
    for action in of(decide_repair(world, policy), do.EndRepair):
        was = _was(world, action.node)
        assert was is not None
        assert RepairStatus.HEALTHY in ALLOWED[was]


@FEW
@given(worlds(), repair_policies)
def test_unknown_findings_and_those_of_others_never_begin_a_repair(world: Snapshot, policy: RepairPolicy) -> None:
    for action in of(decide_repair(world, policy), do.SaveRepair):
        node = world.by_name[action.node]
        if node.repair is None and action.repair.cause.split("/")[0] in ("kernel_log", "disk", "gpu"):
            assert fatal_findings(node)
            assert action.repair.action is not Action.NONE


@FEW
@given(worlds(), repair_policies)
def test_a_node_gets_one_decision_at_a_time(world: Snapshot, policy: RepairPolicy) -> None:
    plan = decide_repair(world, policy)
    for name in world.by_name:
        mine = [type(a) for a in plan.actions if isinstance(a, do.NodeAction) and a.node == name]
        assert len(mine) == len(set(mine)), mine
        assert not {do.DrainNode, do.UndrainNode} <= set(mine)
        assert not {do.UseSpare, do.ParkSpare} <= set(mine)
