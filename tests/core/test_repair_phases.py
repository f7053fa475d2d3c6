"""How a repair goes on from phase to phase until the node takes work again, or a person must look."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hyperpod.core import plan as do
from hyperpod.core.finding import Action
from hyperpod.core.liveness import DEAD_CAUSE, RETURNED_CAUSE, SHUTDOWN_CAUSE
from hyperpod.core.node import Availability, InstanceStatus, NodeView, Repair, RepairStatus
from hyperpod.core.plan import Plan
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.repair import decide_repair
from hyperpod.core.spares import decide_spares
from tests.core.worlds import (
    NOW,
    POLICY,
    ago,
    codes,
    fatal,
    in_repair,
    machine,
    names,
    node,
    nodes,
    of,
    repair,
    snapshot,
)

S = RepairStatus


def decide(*views: NodeView, count: int = 6, policy: RepairPolicy = POLICY, **fields: Any) -> Plan:
    return decide_repair(snapshot(*nodes(count, *views), **fields), policy)


def saved(plan: Plan) -> Repair:
    [save] = of(plan, do.SaveRepair)
    repair: Repair = save.repair
    return repair


# --- draining ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [{"jobs": (7,)}, {"is_completing": True}])
def test_a_drained_node_waits_for_its_jobs_to_leave(busy: dict[str, Any]) -> None:
    plan = decide(in_repair(1, S.DRAINING, {"findings": (fatal(),), **busy}))
    assert plan.actions == ()
    assert codes(plan) == ["Draining"]


def test_a_drained_node_without_jobs_is_replaced() -> None:
    plan = decide(in_repair(1, S.DRAINING, {"findings": (fatal(),)}))
    assert names(plan) == ["SaveRepair", "ReplaceInstance"]
    assert saved(plan).status is S.REPLACING


def test_a_drained_node_is_rebooted_where_the_finding_asks_for_it() -> None:
    plan = decide(in_repair(1, S.DRAINING, {"findings": (fatal(action=Action.REBOOT),)}))
    assert names(plan) == ["SaveRepair", "RebootInstance"]


def test_a_reboot_that_has_not_helped_is_followed_by_a_replacement() -> None:
    ill = in_repair(1, S.DRAINING, {"findings": (fatal(action=Action.REBOOT),)}, was_rebooted=True)
    assert names(decide(ill)) == ["SaveRepair", "ReplaceInstance"]


def test_reboot_first_holds_until_the_machine_is_rebooted() -> None:
    ill = in_repair(1, S.DRAINING, {"findings": (fatal(is_hard=False),)}, action=Action.REBOOT)
    assert "RebootInstance" in names(decide(ill, policy=replace(POLICY, reboot_first=True)))


def test_a_finding_that_only_drains_keeps_the_node_out_as_long_as_it_is_open() -> None:
    full = fatal("Full", Action.DRAIN, check="disk")
    assert codes(decide(in_repair(1, S.DRAINING, {"findings": (full,)}))) == ["Drained"]
    assert names(decide(in_repair(1, S.DRAINING))) == ["UndrainNode", "EndRepair"]


def test_a_node_whose_findings_are_closed_stays_drained_while_it_is_not_heard() -> None:
    quiet = in_repair(1, S.DRAINING, {"heartbeat_at": ago(10), "jobs": (7,)})
    assert "UndrainNode" not in names(decide(quiet))


def test_a_drain_lifted_by_somebody_else_is_set_again_while_a_finding_is_open() -> None:
    opened = in_repair(1, S.DRAINING, {"findings": (fatal(),), "is_drained": False, "reason": ""})
    assert names(decide(opened)) == ["DrainNode"]


def test_a_node_that_dies_while_draining_is_fenced() -> None:
    died = in_repair(
        1, S.DRAINING, {"heartbeat_at": ago(10), "jobs": (7,), "is_reachable": False, "reachable_at": ago(1)}
    )
    plan = decide(died)
    assert names(plan) == ["SaveRepair", "FenceInstance", "MarkDown"]
    assert saved(plan).status is S.FENCING


def test_a_draining_node_that_falls_silent_is_asked_about() -> None:
    quiet = in_repair(1, S.DRAINING, {"heartbeat_at": ago(10), "jobs": (7,)})
    assert "ProbeNode" in names(decide(quiet))


def test_a_node_that_is_going_down_is_not_rebooted_in_the_middle_of_it() -> None:
    leaving = in_repair(1, S.DRAINING, {"said_goodbye": True}, cause=SHUTDOWN_CAUSE, action=Action.REBOOT)
    assert codes(decide(leaving)) == ["GoingDown"]


def test_a_node_that_has_shut_down_and_booted_again_takes_work() -> None:
    back = in_repair(1, S.DRAINING, {"boot_id": "boot-new"}, cause=SHUTDOWN_CAUSE, action=Action.REBOOT)
    assert names(decide(back)) == ["UndrainNode", "EndRepair"]


# --- fencing ----------------------------------------------------------------------------------------------------

DOWN = {"availability": Availability.DOWN, "heartbeat_at": ago(20)}


def test_a_machine_that_still_runs_is_fenced_again() -> None:
    plan = decide(in_repair(1, S.FENCING, DOWN, cause=DEAD_CAUSE))
    assert names(plan) == ["FenceInstance"]


def test_a_fenced_node_is_replaced_when_it_is_down_and_its_jobs_are_gone() -> None:
    off = {**DOWN, "instance_status": InstanceStatus.STOPPED}
    assert decide(in_repair(1, S.FENCING, {**off, "jobs": (7,)}, cause=DEAD_CAUSE)).actions == ()
    assert decide(in_repair(1, S.FENCING, {**off, "is_completing": True}, cause=DEAD_CAUSE)).actions == ()
    assert names(decide(in_repair(1, S.FENCING, off, cause=DEAD_CAUSE))) == ["SaveRepair", "ReplaceInstance"]


def test_down_alone_is_not_enough_because_a_live_node_would_take_its_job_back() -> None:
    only_down = {**DOWN, "instance_status": InstanceStatus.STOPPED, "is_drained": False, "reason": ""}
    assert names(decide(in_repair(1, S.FENCING, only_down, cause=DEAD_CAUSE))) == ["MarkDown"]


def test_fenced_nodes_beyond_the_budget_wait_in_the_order_in_which_they_died() -> None:
    off = {**DOWN, "instance_status": InstanceStatus.STOPPED}
    dead = [in_repair(i, S.FENCING, off, cause=DEAD_CAUSE, since=ago(60 - i)) for i in (1, 2, 3)]
    plan = decide(*dead, count=10)
    assert [a.node for a in of(plan, do.ReplaceInstance)] == ["worker-1", "worker-2"]
    assert codes(plan) == ["Refused"]


def test_a_fenced_slot_with_another_machine_is_checked() -> None:
    plan = decide(in_repair(1, S.FENCING, {"instance_id": machine(50)}, cause=DEAD_CAUSE))
    assert saved(plan).status is S.CHECKING


def test_a_node_that_came_back_from_its_own_shutdown_is_checked() -> None:
    back = in_repair(1, S.FENCING, {"boot_id": "boot-new"}, cause=SHUTDOWN_CAUSE, action=Action.REBOOT)
    assert saved(decide(back)).status is S.CHECKING


# --- rebooting --------------------------------------------------------------------------------------------------


def test_a_reboot_is_asked_for_once_for_each_repair() -> None:
    first = of(decide(in_repair(1, S.REBOOTING, {"heartbeat_at": ago(20)})), do.RebootInstance)[0]
    later = of(decide(in_repair(1, S.REBOOTING, {"heartbeat_at": ago(20)}, since=ago(10))), do.RebootInstance)[0]
    assert first.key != later.key


def test_a_new_boot_is_checked() -> None:
    assert saved(decide(in_repair(1, S.REBOOTING, {"boot_id": "boot-new"}))).status is S.CHECKING


def test_a_node_that_does_not_come_back_from_a_reboot_is_replaced() -> None:
    lost = in_repair(1, S.REBOOTING, {"heartbeat_at": ago(1000)}, changed_at=ago(901), action=Action.REBOOT)
    assert names(decide(lost)) == ["SaveRepair", "ReplaceInstance"]


def test_a_machine_that_is_off_a_minute_after_its_reboot_is_replaced() -> None:
    off = {"heartbeat_at": ago(100), "instance_status": InstanceStatus.STOPPED}
    soon = in_repair(1, S.REBOOTING, off, changed_at=ago(59), action=Action.REBOOT)
    assert names(decide(soon)) == ["RebootInstance"]
    late = in_repair(1, S.REBOOTING, off, changed_at=ago(61), action=Action.REBOOT)
    assert names(decide(late)) == ["SaveRepair", "ReplaceInstance"]


# --- replacing --------------------------------------------------------------------------------------------------


def test_a_replacement_is_asked_for_until_another_machine_is_there() -> None:
    assert names(decide(in_repair(1, S.REPLACING))) == ["ReplaceInstance"]
    pending = {"instance_id": machine(50), "instance_status": InstanceStatus.PENDING}
    assert decide(in_repair(1, S.REPLACING, pending)).actions == ()
    runs = {"instance_id": machine(50)}
    assert saved(decide(in_repair(1, S.REPLACING, runs))).status is S.CHECKING


def test_a_node_that_somebody_opened_in_mid_replacement_is_closed_and_its_machine_spared() -> None:
    opened = in_repair(1, S.REPLACING, {"is_drained": False, "jobs": (7,)})
    assert names(decide(opened)) == ["DrainNode"]


def test_a_machine_with_jobs_is_spared_although_its_node_is_closed() -> None:
    busy = in_repair(1, S.REBOOTING, {"jobs": (7,)}, action=Action.REBOOT)
    plan = decide(busy)
    assert (plan.actions, codes(plan)) == ((), ["Draining"])


def test_a_new_machine_that_stops_is_given_up_at_once() -> None:
    stopped = {"instance_id": machine(50), "instance_status": InstanceStatus.STOPPED}
    assert saved(decide(in_repair(1, S.REPLACING, stopped))).attempt == 2


def test_the_next_try_waits_longer_each_time_and_uses_another_machine() -> None:
    failed = {"instance_id": machine(50), "instance_status": InstanceStatus.FAILED}
    soon = decide(in_repair(1, S.REPLACING, failed, changed_at=ago(4)))
    assert (soon.actions, codes(soon)) == ((), ["Waiting"])
    due = decide(in_repair(1, S.REPLACING, failed, changed_at=ago(5)))
    assert (saved(due).attempt, saved(due).instance_id) == (2, machine(50))
    assert "birth failed" in saved(due).last_error
    second = decide(in_repair(1, S.REPLACING, failed, changed_at=ago(9), attempt=2))
    assert second.actions == ()


def test_after_the_last_try_a_person_must_look() -> None:
    failed = {"instance_id": machine(50), "instance_status": InstanceStatus.FAILED}
    plan = decide(in_repair(1, S.REPLACING, failed, attempt=3))
    # Held with the machine that failed last, so that it is not taken for one that a person brought.
    assert (saved(plan).status, saved(plan).instance_id) == (S.HELD, machine(50))
    assert "gave up after 3 tries" in of(plan, do.SaveRepair)[0].reason


def test_a_provider_without_capacity_is_asked_for_ever() -> None:
    refused = in_repair(1, S.REPLACING, changed_at=ago(5000), last_error="no capacity", refusals=9, next_try_at=ago(1))
    assert names(decide(refused)) == ["ReplaceInstance"]
    unanswered = in_repair(1, S.REPLACING, changed_at=ago(5000))
    assert saved(decide(unanswered)).attempt == 2


WAITS = {"last_error": "no capacity", "refusals": 4, "next_try_at": NOW + timedelta(seconds=16)}
REFUSED: dict[str, tuple[NodeView, str]] = {
    "a replacement": (in_repair(1, S.REPLACING, **WAITS), "ReplaceInstance"),
    "a reboot": (in_repair(1, S.REBOOTING, action=Action.REBOOT, **WAITS), "RebootInstance"),
    "a spare's start": (
        in_repair(1, S.WAKING, {"instance_status": InstanceStatus.STOPPED, "heartbeat_at": None}, cause="spare/Stopped",
                  action=Action.NONE, **WAITS), "StartSpare"),
    "a spare's stop": (
        in_repair(1, S.ASLEEP, cause="spare/Stopped", action=Action.NONE, **WAITS), "StopSpare"),
}  # fmt: skip


@pytest.mark.parametrize(("view", "action"), REFUSED.values(), ids=list(REFUSED))
def test_what_the_provider_has_refused_waits_for_its_time(view: NodeView, action: str) -> None:
    assert view.repair is not None
    assert names(decide(view)) == []
    due = replace(view, repair=replace(view.repair, next_try_at=ago(0.1)))
    assert names(decide(due)) == [action]
    again = replace(view, repair=replace(view.repair, refusals=0, next_try_at=None, last_error=""))
    assert names(decide(again)) == [action]


@pytest.mark.parametrize("what", ["a replacement", "a reboot", "a spare's start"])
def test_it_is_said_why_and_how_long_it_waits(what: str) -> None:
    (note,) = decide(REFUSED[what][0]).notes
    assert "refused 4 times, next try in 16 s, last error: no capacity" in note.message


def test_a_machine_that_was_granted_and_does_not_come_is_waited_for_as_long_as_any_other() -> None:
    late = repair(1, S.REPLACING, changed_at=ago(5000)).refused("no capacity", ago(4900)).taken()
    assert (late.refusals, late.last_error) == (0, "")
    assert saved(decide(in_repair(1, S.REPLACING, {"repair": late}))).attempt == 2


def test_pauses_double_from_seconds_to_minutes_and_end_with_the_refusals() -> None:
    now, pauses, begun = NOW, [], repair(1, S.REPLACING)
    for _ in range(11):
        begun = begun.refused("no capacity", now)
        assert begun.next_try_at is not None
        pauses.append((begun.next_try_at - now).total_seconds())
        now = begun.next_try_at
        assert begun.must_wait(now - timedelta(seconds=0.1))
        assert not begun.must_wait(now)
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert Repair.from_dict(json.loads(json.dumps(begun.to_dict()))) == begun
    moved = begun.moved(S.CHECKING, now)
    assert (moved.refusals, moved.next_try_at, moved.waits(now)) == (0, None, "")
    assert begun.taken().refused("throttled", now).next_try_at == now + timedelta(seconds=2)


def test_a_repair_that_an_older_version_wrote_has_not_been_refused() -> None:
    old = {k: v for k, v in repair(1).to_dict().items() if k not in ("refusals", "next_try_at")}
    assert Repair.from_dict(old) == repair(1)


# --- checking ---------------------------------------------------------------------------------------------------


def test_a_checked_node_takes_work_again() -> None:
    assert names(decide(in_repair(1, S.CHECKING))) == ["UndrainNode", "EndRepair"]


@pytest.mark.parametrize(
    "view",
    [{"is_ready": False}, {"heartbeat_at": None}, {"heartbeat_at": ago(5)}, {"agent_instance_id": machine(60)}],
    ids=["not ready", "not heard", "silent", "the agent of another machine"],
)
def test_a_node_under_check_waits_while_it_is(view: dict[str, Any]) -> None:
    plan = decide(in_repair(1, S.CHECKING, view))
    assert plan.actions == ()
    assert codes(plan) == ["Checking"]


def test_a_persons_drain_stays_after_the_repair() -> None:
    assert names(decide(in_repair(1, S.CHECKING, {"reason": "new fan on Monday"}))) == ["EndRepair"]


def test_the_drain_of_an_administrators_action_is_lifted_after_the_repair() -> None:
    assert "UndrainNode" in names(decide(in_repair(1, S.CHECKING, {"reason": "Action:Replace"})))


def test_a_new_machine_with_a_fatal_finding_is_replaced_again() -> None:
    ill = in_repair(1, S.CHECKING, {"findings": (fatal(),), "instance_id": machine(50)}, changed_at=ago(10))
    assert saved(decide(ill)).attempt == 2


def test_a_returned_node_with_a_fatal_finding_is_drained_for_it() -> None:
    ill = in_repair(1, S.CHECKING, {"findings": (fatal(),)}, cause=RETURNED_CAUSE, action=Action.NONE)
    moved = saved(decide(ill))
    assert (moved.status, moved.cause, moved.action) == (S.DRAINING, "kernel_log/Xid79", Action.REPLACE)


def test_a_machine_that_never_becomes_ready_is_tried_again() -> None:
    slow = in_repair(1, S.CHECKING, {"is_ready": False}, changed_at=ago(901))
    assert saved(decide(slow)).attempt == 2


def test_a_returned_node_that_does_not_become_ready_is_only_told_of() -> None:
    slow = in_repair(1, S.CHECKING, {"is_ready": False}, changed_at=ago(901), cause=RETURNED_CAUSE, action=Action.NONE)
    assert codes(decide(slow)) == ["NotReady"]


def test_the_repaired_node_becomes_the_spare_before_it_is_opened() -> None:
    plan = decide(in_repair(1, S.CHECKING), count=4, policy=replace(POLICY, spare_count={"worker": 1}))
    assert names(plan) == ["ParkSpare", "UndrainNode", "EndRepair"]


# --- held -------------------------------------------------------------------------------------------------------


def test_a_held_node_waits_for_a_person() -> None:
    assert codes(decide(in_repair(1, S.HELD))) == ["Held"]


def test_a_held_node_with_another_machine_is_checked() -> None:
    assert saved(decide(in_repair(1, S.HELD, {"instance_id": machine(50)}))).status is S.CHECKING


def test_a_held_node_that_a_person_opened_is_done() -> None:
    assert names(decide(in_repair(1, S.HELD, {"is_drained": False, "reason": ""}))) == ["EndRepair"]


def test_an_action_in_the_reason_of_a_held_node_tries_again() -> None:
    plan = decide(in_repair(1, S.HELD, {"reason": "Action:Replace"}, attempt=3))
    assert names(plan) == ["SaveRepair", "ReplaceInstance"]
    assert saved(plan).attempt == 1


def test_a_wish_for_a_held_node_obeys_the_budget() -> None:
    busy = [in_repair(i, S.REPLACING) for i in (2, 3)]
    plan = decide(in_repair(1, S.HELD, {"reason": "Action:Replace"}), *busy)
    assert "worker-1" not in {a.node for a in of(plan, do.ReplaceInstance)}
    assert "Refused" in codes(plan)


# --- spares -----------------------------------------------------------------------------------------------------

SPARE = replace(POLICY, spare_count={"worker": 1})


def spare(number: int, **fields: Any) -> NodeView:
    return node(number, in_partition=False, in_spares=True, **fields)


def test_a_spare_joins_for_a_node_in_repair() -> None:
    plan = decide(in_repair(1, S.FENCING, DOWN, cause=DEAD_CAUSE), spare(4), count=4, policy=SPARE)
    assert [a.node for a in of(plan, do.UseSpare)] == ["worker-4"]


def test_a_spare_does_not_join_for_a_node_that_is_only_unheard() -> None:
    unheard = [node(i, heartbeat_at=None, is_ready=False) for i in (1, 2, 3)]
    assert not of(decide(*unheard, spare(4), count=4, policy=SPARE, started_at=ago(1)), do.UseSpare)


@pytest.mark.parametrize("ill", [{"is_ready": False}, {"heartbeat_at": ago(5)}, {"is_drained": True, "reason": "x"}])
def test_a_spare_that_does_not_work_is_not_used(ill: dict[str, Any]) -> None:
    plan = decide(in_repair(1, S.REPLACING), spare(4, **ill), count=4, policy=SPARE)
    assert not of(plan, do.UseSpare)
    assert "NoSpare" in codes(plan)


def test_with_too_many_in_use_an_idle_one_is_parked_and_never_a_busy_one() -> None:
    busy = [node(i, jobs=(7,)) for i in (3, 4)]
    plan = decide(*busy, count=4, policy=SPARE)
    assert [a.node for a in of(plan, do.ParkSpare)] == ["worker-2"]
    all_busy = [node(i, jobs=(7,)) for i in range(1, 5)]
    assert not of(decide(*all_busy, count=4, policy=SPARE), do.ParkSpare)


def test_spares_do_not_move_while_a_source_is_missing() -> None:
    world = snapshot(*nodes(4, in_repair(1, S.REPLACING), spare(4)), missing=("slurm",))
    assert decide_spares(world, SPARE) == ([], [])


def test_a_move_out_of_the_spares_that_was_cut_short_is_finished() -> None:
    both = node(3, in_partition=True, in_spares=True)
    assert [a.node for a in of(decide(both, spare(4), count=4, policy=SPARE), do.UseSpare)] == ["worker-3"]
