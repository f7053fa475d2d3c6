"""Slurm's own reason for a node becomes a finding; a person's never does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hyperpod.controller.reasons import SeenReason, finding_of, see_reason
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.node import Availability
from hyperpod.ports.slurm import NodeState
from tests.daemons.cluster import Cluster

T0 = datetime(2026, 3, 1, tzinfo=UTC)
GRES = "gres/gpu count reported lower than configured (7 < 8)"


def state(reason: str, by: str = "slurm", *, at: datetime = T0, boot_at: datetime | None = None) -> NodeState:
    return NodeState(
        "worker-1",
        Availability.UP,
        is_drained=True,
        reason=reason,
        reason_by=by,
        reason_at=at,
        boot_at=boot_at,
    )


def look(
    node: NodeState, before: SeenReason | None = None, *, boot: str = "b1", after_s: float = 0
) -> tuple[SeenReason | None, Finding | None]:
    now = T0 + timedelta(seconds=after_s)
    seen = see_reason(before, node, "i-1", boot, now)
    return seen, finding_of(seen, node, boot, now)


def test_a_count_must_be_seen_twice_a_minute_apart() -> None:
    seen, first = look(state(GRES))
    _, soon = look(state(GRES), seen, after_s=30)
    _, later = look(state(GRES), seen, after_s=60)
    assert first is not None
    assert (first.severity, first.action) == (Severity.WARN, Action.NONE)
    assert soon is not None
    assert soon.severity is Severity.WARN
    assert later is not None
    assert (later.check, later.code, later.severity, later.action) == (
        "slurm",
        "GresMissing",
        Severity.FATAL,
        Action.REBOOT,
    )
    assert (later.instance_id, later.boot_id) == ("i-1", "b1")
    assert later.evidence == GRES


def test_a_reason_that_slurm_sets_anew_is_counted_anew() -> None:
    seen, _ = look(state(GRES))
    again = T0 + timedelta(seconds=50)
    _, found = look(state(GRES, at=again), seen, after_s=60)
    assert found is not None
    assert found.severity is Severity.WARN


def test_a_persons_reason_and_ours_are_left_alone() -> None:
    for node in (state("Prolog error", "bob"), state("hyperpod:kernel_log/Xid79 off"), state("bad cable", "root")):
        assert look(node) == (None, None)


def test_the_reason_of_an_earlier_boot_says_nothing_about_this_one() -> None:
    seen, _ = look(state(GRES))
    _, found = look(state(GRES), seen, boot="b2", after_s=300)
    assert found is None
    _, by_time = look(state(GRES, boot_at=T0 + timedelta(seconds=10)), after_s=300)
    assert by_time is None


def test_a_restarted_controller_takes_the_boot_that_the_agent_names() -> None:
    seen, _ = look(state(GRES), boot="")
    assert seen is not None
    seen, found = look(state(GRES), seen, boot="b1", after_s=90)
    assert seen is not None
    assert seen.boot_id == "b1"
    assert found is not None
    assert found.severity is Severity.FATAL


def test_a_healthy_node_has_no_reason() -> None:
    assert see_reason(None, NodeState("worker-1", Availability.UP), "i-1", "b1", T0) is None
    assert see_reason(None, None, "i-1", "b1", T0) is None
    assert finding_of(None, None, "b1", T0) is None


def drain(lab: Cluster, node: str, by: str) -> None:
    held = lab.slurm._node(node)
    held.state = replace(held.state, is_drained=True, reason=GRES, reason_by=by, reason_at=lab.clock.now())


def test_a_node_that_slurm_drained_for_missing_accelerators_is_rebooted_once_and_opened() -> None:
    lab = Cluster()
    drain(lab, "worker-1", "slurm")
    lab.run(30)
    assert not lab.store.repairs()
    lab.run_until(lambda: "NodeRebooting" in lab.kinds(), 90)
    lab.run_until(lab.is_well, 120)
    assert lab.machines.made.get("worker-1", 1) == 1
    assert not lab.world.memory.reasons


def test_a_person_who_types_the_same_keeps_the_node() -> None:
    lab = Cluster()
    drain(lab, "worker-1", "bob")
    lab.run(90)
    assert not lab.store.repairs()
    assert "NodeRebooting" not in lab.kinds()
