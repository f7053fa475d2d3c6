"""Nodes: who owns a drain, what reasons say, and the repair's table of moves."""

from __future__ import annotations

import pytest

from hyperpod.core.finding import Action
from hyperpod.core.node import (
    ALLOWED,
    REASON_PREFIX,
    Availability,
    DrainOwner,
    Repair,
    RepairStatus,
    drain_reason,
    nearest_admin_action,
    owner_of_reason,
    parse_admin_action,
    reason_machine,
)
from hyperpod.errors import InvalidState
from tests.core.worlds import NOW, ago, drained, machine, node, repair


@pytest.mark.parametrize(
    ("reason", "author", "owner"),
    [
        ("hyperpod:kernel_log/Xid79 it fell off the bus", "root", DrainOwner.OURS),
        ("Not responding", "slurm", DrainOwner.SLURM),
        ("Kill task failed", "root", DrainOwner.SLURM),
        ("Node unexpectedly rebooted", "", DrainOwner.SLURM),
        ("", "", DrainOwner.SLURM),
        ("Not responding", "ann", DrainOwner.PERSON),
        ("new fan on Monday", "root", DrainOwner.PERSON),
        ("Action:Replace", "root", DrainOwner.PERSON),
        ("about hyperpod: look at this", "root", DrainOwner.PERSON),
    ],
)
def test_the_owner_of_a_drain_is_told_by_its_words_and_in_doubt_it_is_a_persons(
    reason: str, author: str, owner: DrainOwner
) -> None:
    assert owner_of_reason(reason, author) is owner


def test_a_node_in_service_belongs_to_nobody_whatever_its_reason_says() -> None:
    assert node(reason="new fan on Monday", reason_by="ops").drain_owner is DrainOwner.NOBODY
    assert drained(1, "new fan on Monday", "ops").drain_owner is DrainOwner.PERSON
    down = node(availability=Availability.DOWN, reason="Not responding", reason_by="slurm")
    assert down.drain_owner is DrainOwner.SLURM


def test_our_reason_names_cause_fault_machine_and_boot_and_stays_short() -> None:
    long = drain_reason(
        "kernel_log/Xid79", "GPU 0000:1b:00.0 'fell' off\nthe bus | " * 20, "node", machine(3), "b" * 36
    )
    assert long.startswith("hyperpod:kernel_log/Xid79 GPU 0000:1b:00.0  fell  off the bus")
    assert long.endswith(f"[node] ({machine(3)}, boot bbbbbbbb)")
    assert len(long) <= 200
    assert not set(long) & set("\n'\"|")


def test_a_very_long_cause_does_not_push_out_the_machine() -> None:
    text = drain_reason("c" * 300, "message", "node", machine(3), "boot-1")
    assert len(text) <= 200
    assert reason_machine(text) == machine(3)


def test_the_machine_is_read_back_from_our_reason() -> None:
    assert reason_machine(drain_reason("disk/Full", "no room", "node", machine(7), "")) == machine(7)
    assert reason_machine(drain_reason("disk/Full", "no room", "node", "", "")) == ""
    assert reason_machine("new fan on Monday") == ""


@pytest.mark.parametrize(
    ("reason", "action", "meant"),
    [
        ("Action:Replace", Action.REPLACE, ""),
        ("Action:Reboot", Action.REBOOT, ""),
        ("Action:Replace : Not responding", Action.REPLACE, ""),
        ("action:replace", None, "Action:Replace"),
        ("Action:Replace ", None, "Action:Replace"),
        (" Action:Replace", None, "Action:Replace"),
        ("Action: Replace", None, "Action:Replace"),
        ("Replace", None, "Action:Replace"),
        ("reboot", None, "Action:Reboot"),
        ("please replace the fan", None, ""),
        ("Action:Remove", None, ""),
        ("", None, ""),
    ],
)
def test_an_administrators_action_is_exact_and_near_misses_are_known(
    reason: str, action: Action | None, meant: str
) -> None:
    assert parse_admin_action(reason) is action
    assert nearest_admin_action(reason) == meant


@pytest.mark.parametrize("before", list(RepairStatus))
def test_only_moves_of_the_table_are_possible(before: RepairStatus) -> None:
    for after in RepairStatus:
        start = repair(1, before)
        if after is before or after in ALLOWED[before]:
            assert start.moved(after, NOW).status is after
        else:
            with pytest.raises(InvalidState, match="cannot move the repair of worker-1"):
                start.moved(after, NOW)


def test_every_status_can_be_reached_and_none_is_a_dead_end() -> None:
    assert set().union(*ALLOWED.values()) == set(RepairStatus)
    assert set(ALLOWED) == set(RepairStatus)
    assert all(ALLOWED.values())


def test_a_move_sets_its_time_and_keeps_the_beginning() -> None:
    moved = repair(1, RepairStatus.DRAINING, since=ago(100)).moved(RepairStatus.REPLACING, NOW, attempt=2)
    assert (moved.since, moved.changed_at, moved.attempt) == (ago(100), NOW, 2)


def test_a_repair_survives_the_journal() -> None:
    kept = repair(1, RepairStatus.REPLACING, attempt=2, last_error="no capacity", was_rebooted=True)
    assert Repair.from_dict(kept.to_dict()) == kept


def test_the_prefix_is_what_the_owner_rule_looks_for() -> None:
    assert owner_of_reason(f"{REASON_PREFIX}x", "root") is DrainOwner.OURS
