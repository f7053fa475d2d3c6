"""Spares that are stopped while nobody needs them: stopped, started in time, and used after the running ones."""

from __future__ import annotations

import pytest

from hyperpod.core.finding import Action
from hyperpod.core.job import JobStatus
from hyperpod.core.node import InstanceStatus, NodeView, RepairStatus
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.spares import decide_spares
from hyperpod.errors import NoCapacity
from tests.core.worlds import in_repair, node, nodes, repair, snapshot
from tests.daemons.cluster import Cluster

STOPPED = {"are_spares_stopped": True}


def sleeping(lab: Cluster) -> list[str]:
    return sorted(r.node for r in lab.store.repairs() if r.status is RepairStatus.ASLEEP)


def off(lab: Cluster) -> list[str]:
    machines = lab.machines.machines
    return sorted(n for n, m in machines.items() if m.instance.status is InstanceStatus.STOPPED)


def asleep_lab(workers: int = 4, spares: int = 1, **repair: object) -> Cluster:
    lab = Cluster(workers, spares, repair={**STOPPED, **repair})
    lab.run_until(lambda: len(off(lab)) == spares, seconds=60)
    lab.run(5)
    return lab


def test_a_spare_that_nobody_needs_is_stopped_and_left_in_peace() -> None:
    lab = asleep_lab()
    lab.run(60)

    assert sleeping(lab) == off(lab) == ["worker-4"]
    assert lab.node("worker-4").is_drained
    assert lab.machines.made["worker-4"] == 1
    assert [call[0] for call in lab.machines.calls] == ["park"]
    assert "RepairBegan" not in lab.kinds()


def test_spares_run_where_the_policy_does_not_say_otherwise() -> None:
    lab = Cluster()
    lab.run(60)

    assert off(lab) == []


def test_a_stopped_spare_is_started_when_it_is_needed_and_the_job_goes_on_with_it() -> None:
    lab = asleep_lab(3, 1)
    job = lab.submit(nodes=2)
    dead = lab.view(job).nodes[0]
    lab.machines.fail(dead)
    lab.run_until(lambda: lab.view(job).restart_count == 1 and lab.view(job).status is JobStatus.RUNNING)

    assert "worker-3" in lab.view(job).nodes
    lab.run_until(lambda: sleeping(lab) == [dead], seconds=120)
    # The machine that replaced the dead one is the spare now, and sleeps.
    assert off(lab) == [dead]
    assert lab.machines.made == {dead: 2, **{n: 1 for n in lab.machines.made if n != dead}}


def spare(number: int, **fields: object) -> NodeView:
    return node(number, in_partition=False, in_spares=True, **fields)


def sleeper(number: int) -> NodeView:
    begun = repair(number, RepairStatus.ASLEEP, cause="spare/Stopped", action=Action.NONE)
    return spare(number, repair=begun, instance_status=InstanceStatus.STOPPED, heartbeat_at=None, is_drained=True)


@pytest.mark.parametrize(
    ("out", "expected"),
    [(1, ["UseSpare worker-4"]), (2, ["UseSpare worker-4", "SaveRepair worker-5", "StartSpare worker-5"])],
)
def test_running_spares_are_used_before_stopped_ones(out: int, expected: list[str]) -> None:
    policy = RepairPolicy(spare_count={"worker": 3}, are_spares_stopped=True)
    lost = [in_repair(i, RepairStatus.REPLACING) for i in range(1, out + 1)]
    world = snapshot(*nodes(6, *lost, spare(4), sleeper(5), sleeper(6)))

    actions, _ = decide_spares(world, policy)

    assert [f"{type(a).__name__} {a.node}" for a in actions] == expected


def test_a_spare_that_cannot_start_is_asked_again_and_another_one_is_started() -> None:
    lab = asleep_lab(5, 2)
    real = lab.machines.power_on
    refused: list[str] = []

    def power_on(instance_id: str) -> None:
        if lab.machines._find(instance_id) == "worker-4":
            refused.append(instance_id)
            raise NoCapacity("EC2 has no capacity now")
        real(instance_id)

    lab.machines.power_on = power_on  # type: ignore[method-assign]
    lab.machines.fail("worker-1")
    lab.run_until(lambda: any(e.startswith("NodeHealthy worker-5") for e in lab.history()), seconds=60)
    assert refused
    assert lab.machines.made["worker-4"] == 1, "no capacity says nothing against a machine"

    # Neither is needed any more: the one that cannot start is not asked for ever.
    lab.run_until(lambda: sleeping(lab) == ["worker-4", "worker-5"], seconds=300)
    tries = len(refused)
    lab.run(300)
    assert len(refused) == tries


def test_a_stopped_machine_that_vanishes_is_replaced() -> None:
    lab = asleep_lab()
    lab.machines._set("worker-4", InstanceStatus.GONE)
    lab.run_until(lambda: lab.machines.made["worker-4"] == 2, seconds=60)
    lab.run_until(lambda: sleeping(lab) == ["worker-4"], seconds=120)


def test_sleeping_spares_are_no_reason_to_stop_repairs() -> None:
    lab = asleep_lab(6, 3, max_unhealthy_percentage=34)
    lab.machines.fail("worker-1")
    lab.run_until(lambda: lab.machines.made["worker-1"] == 2, seconds=60)


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", range(6))
def test_a_controller_that_is_killed_while_it_stops_a_spare_ends_the_same(at: int, is_after: bool) -> None:
    lab = Cluster(repair=STOPPED)
    lab.assassin.order(lab.assassin.count + at, is_after=is_after)
    lab.run_until(lambda: off(lab) == ["worker-4"], seconds=60)
    lab.run(10)

    assert sleeping(lab) == ["worker-4"]
    assert lab.machines.made["worker-4"] == 1


def test_spares_are_started_again_when_the_policy_changes() -> None:
    lab = asleep_lab()
    lab.world.repair_policy = type(lab.repair_policy)(spare_count={"worker": 1})
    lab.run_until(lambda: off(lab) == [], seconds=60)
    lab.run_until(lab.is_well)
