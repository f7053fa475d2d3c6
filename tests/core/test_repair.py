"""How the repair of a node begins, and how it is bounded."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hyperpod.core import plan as do
from hyperpod.core.finding import Action, Severity, Whose
from hyperpod.core.liveness import DEAD_CAUSE, RETURNED_CAUSE, SHUTDOWN_CAUSE
from hyperpod.core.node import Availability, InstanceStatus, NodeView, RepairStatus
from hyperpod.core.repair import decide_repair
from tests.core.worlds import (
    NOW,
    OUR_REASON,
    POLICY,
    ago,
    codes,
    dead,
    drained,
    fatal,
    in_repair,
    machine,
    names,
    node,
    nodes,
    of,
    past,
    silent,
    snapshot,
)

# --- dead nodes -------------------------------------------------------------------------------------------------


def test_a_quiet_cluster_needs_nothing() -> None:
    plan = decide_repair(snapshot(*nodes(4)), POLICY)
    assert plan.actions == ()
    assert plan.notes == ()


def test_sleeps_until_the_next_heartbeat_would_be_missed() -> None:
    late = node(2, heartbeat_at=ago(2.5))
    plan = decide_repair(snapshot(*nodes(4, late)), POLICY)
    assert timedelta(seconds=0.5) <= plan.wake_after < timedelta(seconds=0.6)


def test_a_silent_node_is_asked_about_before_anything_is_done() -> None:
    plan = decide_repair(snapshot(*nodes(4, silent(2))), POLICY)
    assert names(plan) == ["ProbeNode"]


def test_a_silent_node_that_a_second_opinion_reaches_is_left_alone() -> None:
    alive = silent(2, is_reachable=True, reachable_at=ago(1))
    assert decide_repair(snapshot(*nodes(4, alive)), POLICY).actions == ()


def test_an_opinion_older_than_the_last_heartbeat_is_worth_nothing() -> None:
    before = silent(2, is_reachable=False, reachable_at=ago(20))
    assert names(decide_repair(snapshot(*nodes(4, before)), POLICY)) == ["ProbeNode"]


def test_a_dead_node_is_written_down_then_fenced_then_marked_down() -> None:
    plan = decide_repair(snapshot(*nodes(4, dead(2, jobs=(7,)))), POLICY)
    assert names(plan) == ["SaveRepair", "FenceInstance", "MarkDown"]
    begun = of(plan, do.SaveRepair)[0].repair
    assert (begun.status, begun.cause, begun.action) == (RepairStatus.FENCING, DEAD_CAUSE, Action.REPLACE)
    assert of(plan, do.MarkDown)[0].reason.startswith("hyperpod:node/NodeDead ")


def test_a_machine_that_the_provider_sees_off_needs_no_second_opinion_and_no_fence() -> None:
    plan = decide_repair(snapshot(*nodes(4, silent(2, instance_status=InstanceStatus.STOPPED))), POLICY)
    assert names(plan) == ["SaveRepair", "MarkDown"]


def test_a_provider_that_says_off_is_not_believed_while_the_agent_is_heard() -> None:
    contradiction = node(2, instance_status=InstanceStatus.GONE)
    assert decide_repair(snapshot(*nodes(4, contradiction)), POLICY).actions == ()


def test_after_the_controllers_start_agents_get_time_to_report() -> None:
    unheard = [node(i, heartbeat_at=None, instance_status=InstanceStatus.STOPPED) for i in (1, 2)]
    fresh = snapshot(*nodes(6, *unheard), started_at=ago(5))
    assert decide_repair(fresh, POLICY).actions == ()
    late = replace(fresh, started_at=ago(11))
    assert of(decide_repair(late, POLICY), do.MarkDown)


def test_a_slot_just_added_is_not_dead_before_its_first_machine_is_made() -> None:
    unborn: dict[str, Any] = {
        "heartbeat_at": None, "created_at": None, "instance_id": "", "instance_status": InstanceStatus.GONE,
    }  # fmt: skip
    assert decide_repair(snapshot(*nodes(4, node(4, added_at=ago(60), **unborn))), POLICY).actions == ()
    late = ago(POLICY.replace_timeout_s + 1)
    assert of(decide_repair(snapshot(*nodes(4, node(4, added_at=late, **unborn))), POLICY), do.MarkDown)


def test_a_newborn_machine_is_not_silent_before_it_could_speak() -> None:
    newborn = node(2, heartbeat_at=None, created_at=ago(100))
    assert decide_repair(snapshot(*nodes(4, newborn)), POLICY).actions == ()


def test_when_most_agents_fall_silent_at_once_nobody_is_touched() -> None:
    plan = decide_repair(snapshot(*nodes(5, dead(1), dead(2), dead(3))), POLICY)
    assert plan.actions == ()
    assert "MassSilence" in codes(plan)


def test_machines_that_are_off_do_not_hide_behind_mass_silence() -> None:
    off = [dead(i, instance_status=InstanceStatus.STOPPED) for i in (1, 2, 3)]
    plan = decide_repair(snapshot(*nodes(8, *off)), POLICY)
    assert len(of(plan, do.MarkDown)) == 3


def test_a_dead_node_without_work_that_a_person_drained_is_left_to_the_person() -> None:
    theirs = dead(2, is_drained=True, reason="new fan on Monday", reason_by="ops")
    plan = decide_repair(snapshot(*nodes(4, theirs)), POLICY)
    assert plan.actions == ()
    assert codes(plan) == ["PersonsDrain"]


def test_a_dead_node_with_work_is_fenced_whoever_drained_it() -> None:
    theirs = dead(2, is_drained=True, reason="new fan on Monday", reason_by="ops", jobs=(7,))
    assert "FenceInstance" in names(decide_repair(snapshot(*nodes(4, theirs)), POLICY))


def test_the_policy_may_reboot_dead_nodes() -> None:
    plan = decide_repair(snapshot(*nodes(4, dead(2))), replace(POLICY, action="Reboot"))
    assert of(plan, do.SaveRepair)[0].repair.action is Action.REBOOT


# --- findings ---------------------------------------------------------------------------------------------------


def test_a_fatal_finding_drains_the_node_with_whose_fault_it_is() -> None:
    plan = decide_repair(snapshot(*nodes(4, node(2, findings=(fatal(),), jobs=(7,)))), POLICY)
    assert names(plan) == ["SaveRepair", "DrainNode"]
    reason = of(plan, do.DrainNode)[0].reason
    assert reason == f"hyperpod:kernel_log/Xid79 Xid79 was seen [node] ({machine(2)}, boot boot-2)"


@pytest.mark.parametrize(
    "finding",
    [
        fatal(whose=Whose.SITE),
        fatal(whose=Whose.USER),
        fatal(action=Action.NONE),
        fatal(instance_id=machine(99)),
        fatal(boot_id="boot-before"),
        replace(fatal(), severity=Severity.UNKNOWN),
        replace(fatal(), severity=Severity.WARN),
    ],
    ids=["the site's", "the user's", "no action", "another machine's", "another boot's", "unknown", "a warning"],
)
def test_a_node_is_not_drained_for(finding: object) -> None:
    plan = decide_repair(snapshot(*nodes(4, node(2, findings=(finding,)))), POLICY)
    assert plan.actions == ()


def test_the_strongest_action_of_several_findings_counts() -> None:
    both = node(2, findings=(fatal("Full", Action.DRAIN, check="disk"), fatal("Xid79", Action.REBOOT)))
    begun = of(decide_repair(snapshot(*nodes(4, both)), POLICY), do.SaveRepair)[0].repair
    assert (begun.cause, begun.action) == ("kernel_log/Xid79", Action.REBOOT)


def test_reboot_first_tries_a_reboot_unless_the_finding_says_hardware() -> None:
    policy = replace(POLICY, reboot_first=True)
    for is_hard, action in ((False, Action.REBOOT), (True, Action.REPLACE)):
        ill = node(2, findings=(fatal(is_hard=is_hard),))
        assert of(decide_repair(snapshot(*nodes(4, ill)), policy), do.SaveRepair)[0].repair.action is action


def test_a_fatal_finding_on_a_node_that_a_person_drained_changes_nothing() -> None:
    theirs = drained(2, "new fan on Monday", "ops", findings=(fatal(),))
    plan = decide_repair(snapshot(*nodes(4, theirs)), POLICY)
    assert plan.actions == ()
    assert codes(plan) == ["PersonsDrain"]


def test_a_node_that_slurm_drained_by_itself_is_told_of() -> None:
    plan = decide_repair(snapshot(*nodes(4, drained(2, "Kill task failed", "root"))), POLICY)
    assert plan.actions == ()
    assert codes(plan) == ["SlurmsDrain"]


# --- limits -----------------------------------------------------------------------------------------------------


def test_the_third_node_with_one_cause_opens_the_breaker() -> None:
    ill = node(4, findings=(fatal(),))
    two = snapshot(*nodes(10, ill), history=past(1, 2))
    assert of(decide_repair(two, POLICY), do.DrainNode)
    three = replace(two, history=past(1, 2, 3))
    plan = decide_repair(three, POLICY)
    assert plan.actions == ()
    assert codes(plan) == ["BreakerOpen", "Refused"]


def test_the_breaker_counts_nodes_that_fall_ill_at_the_same_moment() -> None:
    ill = [node(i, findings=(fatal(),)) for i in range(1, 6)]
    plan = decide_repair(snapshot(*nodes(20, *ill)), POLICY)
    assert [a.node for a in of(plan, do.DrainNode)] == ["worker-1", "worker-2", "worker-3"]


@pytest.mark.parametrize(
    ("history", "reset_at"),
    [
        (past(1, 1, 1), None),
        (past(1, 2, 3, cause="disk/Full"), None),
        (past(1, 2, 3, seconds=4000), None),
        (past(1, 2, 3), ago(100)),
    ],
    ids=["one node three times", "another cause", "an hour ago", "closed by a person since"],
)
def test_the_breaker_stays_closed_for(history: tuple[object, ...], reset_at: object) -> None:
    ill = node(4, findings=(fatal(),))
    world = snapshot(*nodes(10, ill), history=history, breaker_reset_at=reset_at)
    assert of(decide_repair(world, POLICY), do.DrainNode)


def test_what_people_ask_for_never_opens_the_breaker() -> None:
    world = snapshot(*nodes(10), history=past(1, 2, 3, 4, cause="admin/Replace"))
    assert decide_repair(world, POLICY).notes == ()


def test_nothing_more_is_taken_out_when_too_many_are_out_already() -> None:
    ill = node(1, findings=(fatal(),))
    out = [
        node(i, availability=Availability.DOWN, reason="Not responding", reason_by="slurm", is_ready=False)
        for i in (2, 3)
    ]
    plan = decide_repair(snapshot(*nodes(4, ill, *out)), POLICY)
    assert plan.actions == ()
    assert codes(plan) == ["Refused"]


@pytest.mark.parametrize(
    ("ill", "cause"), [(dead(9), DEAD_CAUSE), (node(9, said_goodbye=True), SHUTDOWN_CAUSE)], ids=["dead", "shutdown"]
)
def test_the_breaker_stops_deaths_and_shutdowns_too(ill: NodeView, cause: str) -> None:
    plan = decide_repair(snapshot(*nodes(12, ill), history=past(1, 2, 3, cause=cause)), POLICY)
    assert not [n for n in names(plan) if n != "ProbeNode"]
    assert codes(plan) == ["BreakerOpen", "Refused"]


@pytest.mark.parametrize("ill", [dead(1), node(1, said_goodbye=True)], ids=["dead", "shutdown"])
def test_the_unhealthy_limit_holds_for_deaths_and_shutdowns_too(ill: NodeView) -> None:
    out = [in_repair(i, RepairStatus.HELD) for i in (2, 3)]
    plan = decide_repair(snapshot(*nodes(4, ill, *out)), POLICY)
    assert not [n for n in names(plan) if n != "ProbeNode"]
    assert "Refused" in codes(plan)


def test_a_dead_node_that_slurm_has_marked_down_counts_once() -> None:
    gone = dead(1, availability=Availability.DOWN, reason="Not responding", reason_by="slurm")
    assert "FenceInstance" in names(decide_repair(snapshot(*nodes(2, gone)), POLICY))


DEAD = {"heartbeat_at": ago(60), "is_reachable": False, "reachable_at": ago(1)}
OFF_CASES: dict[str, tuple[NodeView, list[str]]] = {
    "a fatal finding still drains": (node(2, findings=(fatal(),)), ["SaveRepair", "DrainNode"]),
    "one to be rebooted too": (node(2, findings=(fatal("Xid119", Action.REBOOT),)), ["SaveRepair", "DrainNode"]),
    "its drained machine is left": (in_repair(2, RepairStatus.DRAINING, {"findings": (fatal(),)}), []),
    "opened by hand it is drained again": (
        in_repair(2, RepairStatus.DRAINING, {"findings": (fatal(),), "is_drained": False, "reason": ""}),
        ["DrainNode"],
    ),
    "a node that is well again comes back": (in_repair(2, RepairStatus.DRAINING), ["UndrainNode", "EndRepair"]),
    "a dead node is not fenced": (dead(2), []),
    "nor one that dies while it is drained": (in_repair(2, RepairStatus.DRAINING, DEAD), []),
    "a fence under way is not repeated": (in_repair(2, RepairStatus.FENCING, {"heartbeat_at": ago(60)}), []),
    "nor a reboot": (in_repair(2, RepairStatus.REBOOTING, action=Action.REBOOT), []),
    "nor a replacement": (in_repair(2, RepairStatus.REPLACING, {"heartbeat_at": ago(60)}), []),
    "a new machine that has come is opened": (
        in_repair(2, RepairStatus.CHECKING), ["UndrainNode", "EndRepair"]
    ),
    "what a person asks for is drained, and waits": (drained(2, "Action:Replace"), ["SaveRepair"]),
}  # fmt: skip


@pytest.mark.parametrize(("view", "expected"), OFF_CASES.values(), ids=list(OFF_CASES))
def test_switched_off_it_drains_and_leaves_machines_alone(view: NodeView, expected: list[str]) -> None:
    plan = decide_repair(snapshot(*nodes(4, view)), replace(POLICY, enabled=False))
    assert [name for name in names(plan) if name != "ProbeNode"] == expected
    assert codes(plan)[0] == "RepairDisabled"


def test_switched_off_it_says_what_it_leaves() -> None:
    ill = in_repair(2, RepairStatus.DRAINING, {"findings": (fatal(),)})
    notes = decide_repair(snapshot(*nodes(4, ill)), replace(POLICY, enabled=False)).notes
    assert [(n.code, n.node) for n in notes] == [("RepairDisabled", ""), ("RepairDisabled", "worker-2")]
    assert "Xid79 was seen" in notes[1].message


# --- the deep check before the first job ------------------------------------------------------------------------

OWES: dict[str, Any] = {"owes_deep": True, "waits_for_deep": True, "is_ready": False}
BEFORE = f"hyperpod:deep/BeforeFirstJob takes no job before its deep check [site] ({machine(2)}, boot boot-2)"
FIRST_CASES: dict[str, tuple[NodeView, list[str]]] = {
    "a node that owes it is closed": (node(2, **OWES), ["DrainNode"]),
    "before its basic checks have passed too": (node(2, **{**OWES, "waits_for_deep": False}), ["DrainNode"]),
    "a job that was faster stays, and is the only one": (node(2, **OWES, jobs=(7,)), ["DrainNode"]),
    "closed once is enough": (drained(2, BEFORE, **OWES), []),
    "a person's drain is left": (drained(2, "my tests", "ann", **OWES), []),
    "what Slurm has taken down is closed": (
        node(2, **OWES, availability=Availability.DOWN, reason="Node unexpectedly rebooted", reason_by="slurm"), []
    ),
    "closed by Slurm's own drain": (drained(2, "Prolog error", "slurm", **OWES), []),
    "one that is not heard is not judged": (silent(2, **OWES, is_reachable=True, reachable_at=ago(1)), []),
    "a fault comes first": (node(2, **OWES, findings=(fatal(),)), ["SaveRepair", "DrainNode"]),
    "also where it is closed already": (drained(2, BEFORE, **OWES, findings=(fatal(),)), ["SaveRepair", "DrainNode"]),
    "after the check it is looked at once more": (drained(2, BEFORE), ["SaveRepair"]),
    "and after it as well while it is unknown": (
        drained(2, BEFORE, findings=(fatal("DeepUnknown", Action.NONE, check="deep", severity=Severity.UNKNOWN),)),
        ["SaveRepair"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("view", "expected"), FIRST_CASES.values(), ids=list(FIRST_CASES))
@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
def test_a_node_takes_no_job_before_its_deep_check(view: NodeView, expected: list[str], enabled: bool) -> None:
    plan = decide_repair(snapshot(*nodes(4, view)), replace(POLICY, enabled=enabled))
    assert names(plan) == expected
    if expected == ["DrainNode"]:
        assert of(plan, do.DrainNode)[0].reason == BEFORE


@pytest.mark.parametrize(
    "view", [drained(2, BEFORE, **OWES), drained(2, "my tests", "ann", **OWES)], ids=["ours", "a person's"]
)
def test_it_is_said_that_a_node_waits_for_its_deep_check(view: NodeView) -> None:
    assert "BeforeFirstJob" in codes(decide_repair(snapshot(*nodes(4, view)), POLICY))


def test_a_node_that_owes_its_check_and_was_opened_in_mid_repair_is_closed() -> None:
    opened = in_repair(2, RepairStatus.CHECKING, {**OWES, "is_drained": False, "reason": ""})
    plan = decide_repair(snapshot(*nodes(4, opened)), POLICY)
    assert [a.reason for a in of(plan, do.DrainNode)] == [BEFORE]


def test_a_held_node_that_a_person_opens_is_let_go_to_its_deep_check() -> None:
    opened = in_repair(2, RepairStatus.HELD, {**OWES, "is_drained": False, "reason": ""})
    assert names(decide_repair(snapshot(*nodes(4, opened)), POLICY)) == ["EndRepair"]


@pytest.mark.parametrize(("away_s", "expected"), [(10.0, []), (POLICY.replace_timeout_s + 10, ["ReplaceInstance"])])
def test_the_time_that_the_controller_was_away_is_not_held_against_a_machine_that_waits_for_it(
    away_s: float, expected: list[str]
) -> None:
    late = in_repair(
        2, RepairStatus.CHECKING, {**OWES, "waits_for_deep": False}, changed_at=ago(POLICY.replace_timeout_s + 60)
    )
    plan = decide_repair(replace(snapshot(*nodes(4, late)), started_at=ago(away_s)), POLICY)
    assert [name for name in names(plan) if name == "ReplaceInstance"] == expected


def test_a_whole_new_cluster_is_closed_at_once_whatever_the_budget() -> None:
    plan = decide_repair(snapshot(*(node(i, **OWES) for i in range(1, 9))), replace(POLICY, max_unhealthy_percentage=0))
    assert names(plan) == ["DrainNode"] * 8


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (OWES, []),
        ({**OWES, "waits_for_deep": False}, ["SaveRepair", "ReplaceInstance"]),
        ({**OWES, **DEAD}, ["SaveRepair", "Replace"]),
    ],
    ids=["a deep check takes its time", "a birth that does not end is given up", "a death is seen"],
)
def test_a_repaired_machine_may_take_long_only_for_its_deep_check(fields: dict[str, Any], expected: list[str]) -> None:
    late = in_repair(2, RepairStatus.CHECKING, {**fields}, changed_at=ago(POLICY.replace_timeout_s + 60))
    found = [name for name in names(decide_repair(snapshot(*nodes(4, late)), POLICY)) if name != "ProbeNode"]
    assert len(found) == len(expected)
    assert all(name.startswith(word) for name, word in zip(found, expected, strict=True))


@pytest.mark.parametrize("source", ["slurm", "provider"])
def test_with_a_source_missing_it_waits_and_says_so(source: str) -> None:
    ill = node(1, findings=(fatal(),))
    plan = decide_repair(snapshot(*nodes(6, ill, dead(2)), missing=(source,)), POLICY)
    assert plan.actions == ()
    assert codes(plan) == ["IncompleteObservation"]
    assert source in plan.notes[0].message


# --- people -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["Action:Replace", "Action:Reboot", "Action:Replace : Not responding"])
def test_an_administrators_action_in_the_reason_begins_a_repair(wish: str) -> None:
    plan = decide_repair(snapshot(*nodes(4, drained(2, wish, "root"))), POLICY)
    begun = of(plan, do.SaveRepair)[0].repair
    assert (begun.status, begun.cause) == (RepairStatus.DRAINING, f"admin/{wish.split(':')[1].split()[0]}")


def test_an_action_in_the_reason_of_a_node_in_service_means_nothing() -> None:
    assert decide_repair(snapshot(*nodes(4, node(2, reason="Action:Replace"))), POLICY).actions == ()


@pytest.mark.parametrize("typed", ["action:replace", "Replace", "Action:Replace ", "ACTION: REPLACE", "Action-Replace"])
def test_a_near_miss_is_answered_in_the_reason(typed: str) -> None:
    plan = decide_repair(snapshot(*nodes(4, drained(2, typed, "ops"))), POLICY)
    answer = of(plan, do.AnswerReason)[0].reason
    assert answer == f"{typed.strip()} not understood, did you mean Action:Replace"
    again = decide_repair(snapshot(*nodes(4, drained(2, answer, "root"))), POLICY)
    assert again.actions == (), "the answer is not answered again"


def test_an_administrators_wish_obeys_the_budget_too() -> None:
    busy = [in_repair(i, RepairStatus.REPLACING) for i in (1, 2)]
    asked = drained(3, "Action:Replace", "root")
    plan = decide_repair(snapshot(*nodes(8, *busy, asked)), POLICY)
    assert of(plan, do.SaveRepair)[0].repair.status is RepairStatus.DRAINING
    waiting = in_repair(3, RepairStatus.DRAINING, {"reason": "Action:Replace"}, cause="admin/Replace")
    plan = decide_repair(snapshot(*nodes(8, *busy, waiting)), POLICY)
    assert "worker-3" not in {a.node for a in of(plan, do.ReplaceInstance)}


# --- coming back ------------------------------------------------------------------------------------------------


def test_a_drain_of_ours_is_void_when_another_machine_is_in_the_slot() -> None:
    changed = drained(2, OUR_REASON.replace(machine(1), machine(50)))
    begun = of(decide_repair(snapshot(*nodes(4, changed)), POLICY), do.SaveRepair)[0].repair
    assert (begun.status, begun.cause) == (RepairStatus.CHECKING, RETURNED_CAUSE)


def test_a_drain_of_ours_without_a_repair_is_checked_when_the_node_works() -> None:
    forgotten = drained(1, OUR_REASON)
    plan = decide_repair(snapshot(*nodes(4, forgotten)), POLICY)
    assert of(plan, do.SaveRepair)[0].repair.status is RepairStatus.CHECKING


@pytest.mark.parametrize(
    ("is_ready", "heard", "comes_back"), [(True, 0.5, True), (False, 0.5, False), (True, 2.9, True)]
)
def test_a_node_that_slurm_marked_down_comes_back_when_it_works(is_ready: bool, heard: float, comes_back: bool) -> None:
    down = node(
        2,
        availability=Availability.DOWN,
        reason="Not responding",
        reason_by="slurm",
        is_ready=is_ready,
        heartbeat_at=ago(heard),
    )
    plan = decide_repair(snapshot(*nodes(4, down)), POLICY)
    assert bool(of(plan, do.SaveRepair)) is comes_back


def test_an_orderly_shutdown_closes_the_node_before_slurmd_stops() -> None:
    leaving = node(2, said_goodbye=True, jobs=(7,))
    plan = decide_repair(snapshot(*nodes(4, leaving)), POLICY)
    assert [n for n in names(plan) if n != "ProbeNode"] == ["SaveRepair", "DrainNode"]
    begun = of(plan, do.SaveRepair)[0].repair
    assert (begun.cause, begun.action) == (SHUTDOWN_CAUSE, Action.REBOOT)


def test_nodes_are_taken_by_name() -> None:
    ill = [node(i, findings=(fatal(),)) for i in (3, 1, 2)]
    plan = decide_repair(snapshot(*ill, *[node(i) for i in range(4, 12)]), POLICY)
    assert [a.node for a in of(plan, do.DrainNode)] == ["worker-1", "worker-2", "worker-3"]
    assert snapshot().now == NOW
