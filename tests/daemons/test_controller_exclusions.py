"""What the controller remembers of the nodes that users exclude from their jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hyperpod.controller.exclusions import MOST_KEPT
from hyperpod.controller.queries import Queries
from tests.daemons.cluster import Cluster


def ask(lab: Cluster) -> list[dict[str, Any]]:
    return list(Queries(lab.world, {0}).answer("offenders", {}, 1000)["excluded"])


def submit(lab: Cluster, uid: int, *excluded: str, **fields: Any) -> int:
    return lab.submit(1, {}, uid=uid, user=f"u{uid}", excluded=excluded, **fields)


def test_users_who_exclude_a_node_are_counted_and_it_is_not_drained() -> None:
    lab = Cluster(workers=8, spares=0)
    for uid in (1001, 1002, 1003, 1004, 1001):
        submit(lab, uid, "worker-3")
    submit(lab, 1005)
    (row,) = ask(lab)
    assert (row["node"], row["users"], row["of_users"], row["is_significant"]) == ("worker-3", 4, 5, True)
    assert lab.is_well()
    assert not any("100" in str(value) for key, value in row.items() if key not in ("instance_id", "chance"))


def test_a_list_of_half_the_cluster_is_no_complaint() -> None:
    lab = Cluster(workers=8, spares=0)
    submit(lab, 1001, *(f"worker-{n}" for n in range(1, 5)))
    assert ask(lab) == []


def test_what_the_controller_excludes_itself_is_not_the_users() -> None:
    lab = Cluster(workers=8, spares=0)
    job = lab.submit(nodes=2, excluded=("worker-8",), uid=1001)
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: lab.view(job).restart_count == 1)
    assert len(lab.view(job).excluded) > 1
    lab.restart()
    lab.run(3)
    assert [row["node"] for row in ask(lab)] == ["worker-8"]


def test_the_account_outlives_a_restart_and_a_replaced_machine_begins_anew() -> None:
    lab = Cluster(workers=8, spares=0)
    for uid in (1001, 1002, 1003):
        submit(lab, uid, "worker-3")
    lab.restart()
    lab.run(2)
    assert [row["users"] for row in ask(lab)] == [3]
    old = lab.machines.machines["worker-3"].instance.id
    lab.machines.replace("worker-3", old, "t")
    lab.run(20)
    submit(lab, 1004, "worker-3")
    rows = {row["instance_id"]: (row["node"], row["was_node"], row["users"]) for row in ask(lab)}
    assert rows.pop(old) == ("", "worker-3", 3)
    assert list(rows.values()) == [("worker-3", "worker-3", 1)]


@pytest.mark.parametrize("text", ["not JSON", "[]", '{"found": [["a"]], "users": []}', '{"found": 3, "users": 4}'])
def test_a_damaged_account_begins_anew(text: str) -> None:
    lab = Cluster(workers=8, spares=0)
    lab.store.set_value("exclusions", text)
    lab.restart()
    submit(lab, 1001, "worker-3")
    assert [row["users"] for row in ask(lab)] == [1]


def test_the_account_does_not_grow_without_end() -> None:
    lab = Cluster(workers=8, spares=0)
    at = lab.clock.now().isoformat()
    found = [(f"i-{n}", "worker-1", n, at) for n in range(MOST_KEPT + 500)]
    lab.store.set_value("exclusions", json.dumps({"found": found, "users": [(n, at) for n in range(MOST_KEPT + 500)]}))
    lab.restart()
    submit(lab, 70_001, "worker-3")
    kept = json.loads(lab.store.value("exclusions") or "")
    assert len(kept["found"]) <= MOST_KEPT
    assert len(kept["users"]) <= MOST_KEPT
