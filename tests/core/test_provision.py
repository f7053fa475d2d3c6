"""The difference between a specification and what is there: complete, deterministic, and it never takes a busy node."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.node import InstanceStatus, Role
from hyperpod.core.provision import SeenNode, diff_cluster, wanted_nodes
from hyperpod.core.spec import ClusterSpec


def spec(count: int = 3, spares: int = 1, login: int = 0) -> ClusterSpec:
    groups: list[dict[str, Any]] = [
        {"name": "worker", "count": count, "role": Role.WORKER, "partition": "dev", "spares": spares},
        {"name": "head", "count": 1, "role": Role.HEAD},
    ]
    if login:
        groups.insert(0, {"name": "login", "count": login, "role": Role.LOGIN})
    return ClusterSpec.model_validate({"cluster_name": "demo", "instance_groups": groups})


def seen(name: str, status: InstanceStatus = InstanceStatus.RUNNING, *, busy: bool = False) -> SeenNode:
    return SeenNode(name, name.rpartition("-")[0], f"i-{name}", status, is_busy=busy, partition="dev")


def whole(count: int = 3) -> list[SeenNode]:
    return [seen("head-1"), *(seen(f"worker-{i}") for i in range(1, count + 1))]


def test_the_head_node_comes_first_and_the_last_workers_are_spares() -> None:
    nodes = wanted_nodes(spec(login=1))

    assert [node.name for node in nodes] == ["head-1", "login-1", "worker-1", "worker-2", "worker-3"]
    assert [node.name for node in nodes if node.is_spare] == ["worker-3"]


def test_a_cluster_that_is_as_it_should_be_needs_nothing() -> None:
    assert diff_cluster(spec(), whole()).is_empty


def test_everything_is_made_when_there_is_nothing() -> None:
    assert [node.name for node in diff_cluster(spec(), []).create] == ["head-1", "worker-1", "worker-2", "worker-3"]


def test_growing_makes_only_what_is_missing() -> None:
    assert [node.name for node in diff_cluster(spec(5), whole()).create] == ["worker-4", "worker-5"]


def test_shrinking_takes_the_highest_first_and_leaves_busy_ones() -> None:
    there = [*whole(3), seen("worker-4", busy=True), seen("worker-5")]

    plan = diff_cluster(spec(3), there)

    assert [node.name for node in plan.remove] == ["worker-5"]
    assert [refusal.node for refusal in plan.refused] == ["worker-4"]
    assert [(node.name, node.partition) for node in plan.keep] == [("worker-4", "dev")]


def test_force_takes_busy_nodes_too() -> None:
    plan = diff_cluster(spec(2), [*whole(2), seen("worker-3", busy=True), seen("worker-10")], force=True)

    assert [node.name for node in plan.remove] == ["worker-10", "worker-3"]
    assert plan.keep == ()


def test_each_state_leads_to_its_own_action() -> None:
    there = [
        seen("head-1", InstanceStatus.STOPPED),
        seen("worker-1", InstanceStatus.FAILED),
        seen("worker-2", InstanceStatus.PENDING),
        seen("worker-3", InstanceStatus.GONE),
    ]

    plan = diff_cluster(spec(), there)

    assert [node.name for node in plan.start] == ["head-1"]
    assert [node.name for node in plan.retry] == ["worker-1"]
    assert [node.name for node in plan.wait] == ["worker-2"]
    assert [node.name for node in plan.create] == ["worker-3"]


def test_a_machine_of_unknown_state_is_left_alone() -> None:
    there = [*whole(2), seen("worker-3", InstanceStatus.UNKNOWN), seen("worker-4", InstanceStatus.UNKNOWN)]

    plan = diff_cluster(spec(), there)

    assert plan.is_empty
    assert [refusal.node for refusal in plan.refused] == ["worker-3", "worker-4"]


def test_the_plan_can_be_read() -> None:
    plan = diff_cluster(
        spec(2), [seen("head-1", InstanceStatus.STOPPED), seen("worker-1"), seen("worker-9", busy=True)]
    )

    assert plan.lines() == (
        "+ create worker-2 (worker, spare)",
        "+ start head-1 (i-head-1, powered off)",
        "! worker-9: a job runs on it; drain it first, or use --force",
    )


NODES = st.lists(
    st.builds(
        lambda index, status, busy: seen(f"worker-{index}", status, busy=busy),
        st.integers(1, 9),
        st.sampled_from(InstanceStatus),
        st.booleans(),
    ),
    unique_by=lambda node: node.name,
)


@given(NODES, st.integers(1, 6))
def test_no_busy_node_is_ever_removed_and_nothing_is_done_twice(there: list[SeenNode], count: int) -> None:
    plan = diff_cluster(spec(count, spares=0), there)
    touched = [*plan.create, *plan.start, *plan.retry, *plan.remove, *plan.wait]

    assert not any(node.is_busy for node in plan.remove)
    assert len({node.name for node in touched}) == len(touched)


@given(NODES, st.integers(1, 6), st.randoms())
def test_the_order_of_what_is_seen_does_not_matter(there: list[SeenNode], count: int, random: Any) -> None:
    shuffled = list(there)
    random.shuffle(shuffled)

    assert diff_cluster(spec(count, spares=0), there) == diff_cluster(spec(count, spares=0), shuffled)


@given(NODES, st.integers(1, 6))
def test_after_the_plan_was_carried_out_there_is_nothing_left_to_do(there: list[SeenNode], count: int) -> None:
    wanted = spec(count, spares=0)
    plan = diff_cluster(wanted, there)
    removed = {node.name for node in plan.remove}
    changed = {node.name for node in (*plan.create, *plan.start, *plan.retry)}
    after = [node for node in there if node.name not in removed | changed] + [seen(name) for name in sorted(changed)]

    assert diff_cluster(wanted, after).is_empty
