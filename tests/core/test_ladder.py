"""The ladder of actions: escalation on repeat, repeat offenders, nodes that jobs accuse, and what stops all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperpod.core import plan as do
from hyperpod.core.budget import unhealthy_limit, widespread_causes
from hyperpod.core.finding import Action, Finding, Severity, Whose
from hyperpod.core.judging import accused_machines
from hyperpod.core.liveness import AGREED_CAUSE, OFFENDER_CAUSE
from hyperpod.core.node import Availability, DrainOwner, NodeView, RepairStatus, parse_admin_action
from hyperpod.core.offenders import Offender
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.repair import decide_repair
from hyperpod.core.snapshot import PastRepair, Snapshot
from hyperpod.core.stopped_spares import is_asleep
from hyperpod.core.verdict import Evidence, Kind, Method, Verdict
from tests.core.worlds import (
    NOW,
    POLICY,
    ago,
    codes,
    drained,
    failed,
    fatal,
    findings,
    in_repair,
    machine,
    names,
    node,
    nodes,
    of,
    record,
    repair_policies,
    shuffled,
    snapshot,
    worlds,
)

CAUSE = "kernel_log/Xid119"
XID = fatal("Xid119", Action.REBOOT)
DAY = 86_400


def rebooted(seconds: float, number: int = 2, cause: str = CAUSE, is_reboot: bool = True) -> PastRepair:
    return PastRepair(f"worker-{number}", cause, ago(seconds), machine(number), is_reboot)


# --- escalation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "action"),
    [
        ((), Action.REBOOT),
        ((rebooted(3600),), Action.REPLACE),
        ((rebooted(DAY + 60),), Action.REBOOT),
        ((rebooted(3600, cause="kernel_log/Xid62"),), Action.REBOOT),
        ((rebooted(3600, is_reboot=False),), Action.REBOOT),
        ((rebooted(3600, number=3),), Action.REBOOT),
        ((replace(rebooted(3600), instance_id=machine(77)),), Action.REBOOT),
    ],
    ids=[
        "the first time",
        "again within a day",
        "again after more than a day",
        "another cause before",
        "it was only drained before",
        "another node",
        "the machine before it",
    ],
)
def test_a_cause_that_comes_back_after_a_reboot_is_replaced(history: tuple[PastRepair, ...], action: Action) -> None:
    world = snapshot(*nodes(8, node(2, findings=(XID,))), history=history)
    assert of(decide_repair(world, POLICY), do.SaveRepair)[0].repair.action is action


def test_the_reboot_of_the_present_repair_is_no_repeat() -> None:
    begun = in_repair(2, RepairStatus.DRAINING, {"findings": (XID,)}, cause=CAUSE, action=Action.REBOOT, since=ago(100))
    world = snapshot(*nodes(8, begun), history=(rebooted(90),))
    assert of(decide_repair(world, POLICY), do.RebootInstance)
    before = replace(world, history=(rebooted(200),))
    assert of(decide_repair(before, POLICY), do.ReplaceInstance)


def test_a_finding_that_is_still_there_after_the_reboot_leads_to_a_replacement() -> None:
    checked = in_repair(
        2,
        RepairStatus.CHECKING,
        {"findings": (XID,), "boot_id": "boot-new"},
        cause=CAUSE,
        action=Action.REBOOT,
        was_rebooted=True,
    )
    plan = decide_repair(snapshot(*nodes(8, checked)), POLICY)
    assert of(plan, do.SaveRepair)[0].repair.status is RepairStatus.DRAINING
    drains = of(plan, do.SaveRepair)[0].repair
    again = node(2, findings=(XID,), boot_id="boot-new", is_drained=True, repair=drains, reason=drains.message)
    assert of(decide_repair(snapshot(*nodes(8, again)), POLICY), do.ReplaceInstance)


# --- repeat offenders -------------------------------------------------------------------------------------------


def offender(number: int) -> Offender:
    return Offender(machine(number), machine(number), f"worker-{number}", 4, 28.0, 0.18, 4e-5, ("xid/79",), True)


def with_offenders(*numbers: int, views: tuple[NodeView, ...] = (), **fields: Any) -> Snapshot:
    return snapshot(*nodes(8, *views), offenders={machine(i): offender(i) for i in numbers}, **fields)


REPLACES = replace(POLICY, replace_offenders=True)


def test_an_offender_is_only_named_unless_the_policy_says_otherwise() -> None:
    plan = decide_repair(with_offenders(2), POLICY)
    assert (plan.actions, codes(plan)) == ((), ["RepeatOffender"])
    assert "4 faults in 28 days where 0.18 are expected" in plan.notes[0].message


def test_an_offender_is_drained_and_replaced_when_its_jobs_have_left() -> None:
    plan = decide_repair(with_offenders(2, views=(node(2, jobs=(7,)),)), REPLACES)
    assert names(plan) == ["SaveRepair", "DrainNode"]
    begun = of(plan, do.SaveRepair)[0].repair
    assert (begun.cause, begun.action, begun.status) == (OFFENDER_CAUSE, Action.REPLACE, RepairStatus.DRAINING)
    busy = node(2, jobs=(7,), is_drained=True, repair=begun, reason="hyperpod:x", reason_by="root")
    waiting = decide_repair(with_offenders(2, views=(busy,)), REPLACES)
    assert (waiting.actions, codes(waiting)) == ((), ["Draining"])
    idle = decide_repair(with_offenders(2, views=(replace(busy, jobs=()),)), REPLACES)
    assert of(idle, do.ReplaceInstance)


def test_offenders_are_replaced_within_the_limits() -> None:
    many = with_offenders(1, 2, 3, 4, 5, 6)
    plan = decide_repair(many, replace(REPLACES, max_unhealthy_percentage=25))
    assert len(of(plan, do.DrainNode)) == 2
    assert codes(plan).count("Refused") == 4
    broken = decide_repair(many, REPLACES)
    assert len(of(broken, do.DrainNode)) == REPLACES.breaker_nodes


def test_an_offender_that_a_person_drained_is_left_to_the_person() -> None:
    theirs = drained(2, "new fan on Monday", "ops")
    assert decide_repair(with_offenders(2, views=(theirs,)), REPLACES).actions == ()


# --- nodes that two methods accuse ------------------------------------------------------------------------------


def blamed(number: int = 2, *, method: Method = Method.EXITS, age: float = 10, **fields: Any) -> Any:
    name = f"worker-{number}"
    told = Verdict(
        Kind.NODE,
        f"node {name}, because …",
        (name,),
        0.6,
        True,
        {name: 0.6},
        (Evidence(NOW, name, "x", 0.3, method), Evidence(NOW, name, "y", 0.3, Method.FINDINGS)),
    )
    return record(failed(1, attribution=replace(told, **fields), ended_at=ago(age)))


@pytest.mark.parametrize(
    ("kept", "history", "is_accused"),
    [
        (blamed(), (), True),
        (blamed(method=Method.FACT), (), False),
        (blamed(may_drain=False), (), False),
        (blamed(kind=Kind.UNKNOWN, may_drain=False, nodes=()), (), False),
        (blamed(age=400), (), False),
        (blamed(age=10), (rebooted(5, cause=AGREED_CAUSE),), False),
        (blamed(age=10), (rebooted(50, cause=AGREED_CAUSE),), True),
    ],
    ids=["two methods", "a fact has its own repair", "one method", "unknown", "long ago", "dealt with", "once more"],
)
def test_a_machine_is_accused_by(kept: Any, history: tuple[PastRepair, ...], is_accused: bool) -> None:
    assert (machine(2) in accused_machines([kept], history, NOW)) is is_accused


def test_an_accused_node_is_drained_and_rebooted_after_its_jobs_and_replaced_the_next_time() -> None:
    world = snapshot(*nodes(8), accused={machine(2): "node worker-2, because …"})
    plan = decide_repair(world, POLICY)
    assert names(plan) == ["SaveRepair", "DrainNode"]
    begun = of(plan, do.SaveRepair)[0].repair
    assert (begun.cause, begun.action) == (AGREED_CAUSE, Action.REBOOT)
    drains = node(2, is_drained=True, repair=begun, reason="hyperpod:x", reason_by="root")
    assert of(decide_repair(snapshot(*nodes(8, drains)), POLICY), do.RebootInstance)
    again = replace(world, history=(rebooted(3600, cause=AGREED_CAUSE),))
    assert of(decide_repair(again, POLICY), do.SaveRepair)[0].repair.action is Action.REPLACE


# --- most of the fleet at once ----------------------------------------------------------------------------------


def test_what_most_of_the_fleet_shows_at_once_is_not_the_nodes() -> None:
    ill = [node(i, findings=(fatal("DriverMissing", check="gpu"),)) for i in (1, 2, 3, 4, 5)]
    plan = decide_repair(snapshot(*nodes(8, *ill)), POLICY)
    assert (plan.actions, codes(plan)) == ((), ["SiteProblem"])
    assert "gpu/DriverMissing on 5 nodes at once" in plan.notes[0].message
    few = decide_repair(snapshot(*nodes(12, *ill)), POLICY)
    assert len(of(few, do.DrainNode)) == POLICY.breaker_nodes


def test_a_node_with_a_fault_of_its_own_beside_it_is_repaired_all_the_same() -> None:
    shared = fatal("DriverMissing", check="gpu")
    ill = [node(i, findings=(shared,)) for i in (1, 2, 3, 4)]
    worse = node(5, findings=(shared, fatal()))
    plan = decide_repair(snapshot(*nodes(8, *ill, worse)), POLICY)
    assert {a.node for a in of(plan, do.DrainNode)} == {"worker-5"}


def test_what_a_check_calls_the_sites_is_told_when_it_is_on_several_nodes() -> None:
    hangs = fatal("MountHangs", check="shared_fs", whose=Whose.SITE)
    three = snapshot(*nodes(12, *[node(i, findings=(hangs,)) for i in (1, 2, 3)]))
    assert "SiteProblem" in codes(decide_repair(three, POLICY))
    two = snapshot(*nodes(12, *[node(i, findings=(hangs,)) for i in (1, 2)]))
    assert "SiteProblem" not in codes(decide_repair(two, POLICY))


def test_switching_the_breaker_off_switches_this_off_too() -> None:
    ill = [node(i, findings=(fatal(),)) for i in (1, 2, 3)]
    assert widespread_causes(ill, 3, replace(POLICY, breaker_nodes=0)) == {}


# --- properties -------------------------------------------------------------------------------------------------

FEW = settings(max_examples=40, deadline=None)
marked = st.dictionaries(st.sampled_from([machine(i) for i in (1, 2, 3, 4)]), st.just("node x, because …"), max_size=3)
policies = repair_policies.flatmap(lambda p: st.sampled_from([p, replace(p, replace_offenders=True)]))


@st.composite
def judged_worlds(draw: st.DrawFn) -> Snapshot:
    """Any world, with offenders, accused machines and earlier reboots."""
    world = draw(worlds())
    past = draw(st.lists(st.builds(rebooted, st.sampled_from([60.0, 90_000.0]), st.integers(1, 4)), max_size=3))
    return replace(
        world,
        offenders={machine(i): offender(i) for i in draw(st.sets(st.integers(1, 4), max_size=2))},
        accused=draw(marked),
        history=(*world.history, *past),
    )


@FEW
@given(judged_worlds(), policies)
def test_the_same_world_gives_the_same_plan_in_any_order(world: Snapshot, policy: RepairPolicy) -> None:
    plan = decide_repair(world, policy)
    assert decide_repair(world, policy) == plan
    assert decide_repair(shuffled(world, reversed(range(len(world.nodes)))), policy).actions == plan.actions


@FEW
@given(judged_worlds(), policies)
def test_judged_nodes_obey_the_limits_and_persons_drains(world: Snapshot, policy: RepairPolicy) -> None:
    plan = decide_repair(world, policy)
    is_out = {n.name for n in world.nodes if n.repair is not None or n.availability is Availability.DOWN}
    # A spare that sleeps is out of service by our own wish.
    out = is_out - {n.name for n in world.nodes if is_asleep(n)}
    asked = {n.name for n in world.nodes if parse_admin_action(n.reason)}
    taken = {a.node for kind in (do.DrainNode, do.MarkDown) for a in of(plan, kind)} - is_out - asked
    assert not taken or len(out | taken) <= unhealthy_limit(len(world.nodes), policy)
    persons = {
        n.name
        for n in world.nodes
        if n.is_drained and n.drain_owner is DrainOwner.PERSON and not parse_admin_action(n.reason)
    }
    assert not persons & {a.node for kind in (do.DrainNode, do.UndrainNode) for a in of(plan, kind)}
    if not world.is_complete:
        assert all(isinstance(a, do.ProbeNode) for a in plan.actions)


@FEW
@given(st.lists(findings, min_size=1, max_size=4))
def test_what_is_the_users_never_takes_a_node_out_whatever_the_check_says(told: list[Finding]) -> None:
    users = tuple(replace(f, whose=Whose.USER, severity=Severity.FATAL, is_hard=True) for f in told)
    plan = decide_repair(snapshot(*nodes(4, node(2, findings=users))), POLICY)
    assert plan.actions == ()


@FEW
@given(st.lists(findings, min_size=1, max_size=4))
def test_what_a_node_says_of_a_peer_is_not_held_against_the_node(told: list[Finding]) -> None:
    remote = tuple(replace(f, peer="worker-3") for f in told)
    assert decide_repair(snapshot(*nodes(4, node(2, findings=remote))), POLICY).actions == ()
