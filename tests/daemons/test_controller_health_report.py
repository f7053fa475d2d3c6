"""Checks that are only observed: what the controller writes down of them, and what it reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hyperpod.controller.commands import _clear, _undrain
from hyperpod.controller.health_report import health_report
from hyperpod.controller.queries import Queries
from hyperpod.core.finding import Action, Finding, Severity, observed
from hyperpod.core.job import ExitCause
from hyperpod.errors import AccessDenied, UsageError
from hyperpod.ports.store import Event
from tests.core.worlds import NOW, ago, failed, record
from tests.daemons.cluster import Cluster

XID = Finding("kernel_log", "Xid95", Severity.FATAL, "GPU 0 reports Xid 95", Action.REBOOT, device="gpu0")


def believes(lab: Cluster, node: str, *findings: Finding) -> None:
    """Have a node's agent believe this of its present machine."""
    machine = lab.machines.machines[node]
    own = {"instance_id": machine.instance.id, "boot_id": machine.boot_id}
    lab.agents.findings[node] = tuple(replace(f, since=lab.clock.now(), **own) for f in findings)


def counted(lab: Cluster) -> list[tuple[str, str]]:
    return [(e.node, (e.data or {})["code"]) for e in lab.store.events() if e.kind == "WouldHaveDrained"]


def ask(lab: Cluster, uid: int = 0, **args: Any) -> Any:
    return Queries(lab.world, {0}).answer("health-report", args, uid)


def test_an_observed_finding_is_written_down_once_and_drains_nothing() -> None:
    lab = Cluster()
    believes(lab, "worker-1", observed(XID))
    lab.run(10)
    assert counted(lab) == [("worker-1", "Xid95")]
    assert lab.is_well()


def test_one_that_comes_again_is_written_down_again() -> None:
    lab = Cluster()
    for _ in range(2):
        believes(lab, "worker-1", observed(XID))
        lab.run(2)
        believes(lab, "worker-1")
        lab.run(2)
    assert counted(lab) == [("worker-1", "Xid95")] * 2


def test_a_restart_of_the_controller_counts_nothing_twice() -> None:
    lab = Cluster()
    believes(lab, "worker-1", observed(XID))
    lab.run(2)
    lab.restart()
    lab.run(5)
    assert counted(lab) == [("worker-1", "Xid95")]


def test_a_damaged_memory_of_it_begins_anew() -> None:
    lab = Cluster()
    lab.store.set_value("observed_open", "[[[")
    lab.restart()
    believes(lab, "worker-1", observed(XID))
    lab.run(2)
    assert counted(lab) == [("worker-1", "Xid95")]


def test_a_node_that_is_silent_for_a_while_is_not_counted_twice() -> None:
    lab = Cluster()
    believes(lab, "worker-1", observed(XID))
    lab.run(2)
    lab.restart()
    lab.agents.mute.add("worker-1")
    lab.run(1)
    lab.agents.mute.clear()
    lab.run(3)
    assert counted(lab) == [("worker-1", "Xid95")]


def test_ordinary_warnings_are_not_counted() -> None:
    lab = Cluster()
    believes(lab, "worker-1", Finding("disk", "DiskFull", Severity.WARN, "/ has 8 % free"))
    lab.run(3)
    assert counted(lab) == []


def test_the_report_has_what_would_have_been_done() -> None:
    lab = Cluster()
    believes(lab, "worker-1", observed(XID))
    lab.run(2)
    (row,) = ask(lab)["rows"]
    assert (row["check"], row["code"], row["mode"], row["action"]) == ("kernel_log", "Xid95", "observe", "Reboot")
    assert (row["count"], row["nodes"], row["taken_back"]) == (1, {"worker-1": 1}, None)
    assert row["nodes_with_failed_jobs"] == []


def test_a_job_that_fails_soon_after_speaks_for_the_check() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.run(3)
    node = lab.view(job).nodes[0]
    believes(lab, node, observed(XID))
    lab.run(2)
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: lab.view(job).restart_count == 1)
    lab.run(2)
    (row,) = ask(lab)["rows"]
    assert row["nodes_with_failed_jobs"] == [node]


def test_a_drain_that_a_person_takes_back_is_counted() -> None:
    lab = Cluster()
    believes(lab, "worker-1", replace(XID, action=Action.DRAIN))
    lab.run(3)
    _clear(lab.world, {"node": "worker-1", "check": "kernel_log", "code": "Xid95", "reason": "false alarm"})
    (row,) = ask(lab)["rows"]
    assert (row["mode"], row["count"], row["taken_back"]) == ("act", 1, 1)


def test_only_root_may_ask_and_not_for_more_than_a_year() -> None:
    lab = Cluster()
    with pytest.raises(AccessDenied):
        ask(lab, uid=1000)
    with pytest.raises(UsageError, match="a year"):
        ask(lab, since_s=1e9)


# --- the rows, from events alone ------------------------------------------------------------------------------------


def event(number: int, kind: str, seconds_ago: float, node: str = "worker-1", **data: Any) -> Event:
    return Event(number, ago(seconds_ago), kind, "", node, data=data)


def would(number: int, seconds_ago: float, node: str = "worker-1") -> Event:
    return event(number, "WouldHaveDrained", seconds_ago, node, check="disk", code="DiskFull", would="Drain")


DAY = 86_400.0


def rows(*events: Event, **fields: Any) -> list[dict[str, Any]]:
    return health_report(events, fields.get("records", ()), NOW - timedelta(days=7))


def test_what_is_older_than_asked_for_is_left_out() -> None:
    assert rows(would(1, 8 * DAY)) == []


def test_a_repair_for_another_reason_speaks_for_the_check() -> None:
    (observe, act) = rows(would(1, 3600), event(2, "RepairBegan", 600, cause="gpu/GpuLost", action="Replace"))
    assert observe["check"] == "disk"
    assert observe["nodes_repaired_otherwise"] == ["worker-1"]
    assert act["nodes_repaired_otherwise"] == []


def test_a_repair_of_another_node_or_two_days_later_says_nothing() -> None:
    found = rows(
        would(1, 3 * DAY),
        event(2, "RepairBegan", 600, cause="gpu/GpuLost"),
        event(3, "RepairBegan", 3 * DAY, "worker-2", cause="gpu/GpuLost"),
    )
    (row,) = (row for row in found if row["check"] == "disk")
    assert row["nodes_repaired_otherwise"] == []


@pytest.mark.parametrize(
    ("cause", "expected"),
    [(ExitCause.APPLICATION, ["worker-1"]), (ExitCause.COMPLETED, []), (ExitCause.TIME_LIMIT, [])],
)
def test_only_bad_ends_count(cause: ExitCause, expected: list[str]) -> None:
    (row,) = rows(would(1, 60), records=[record(failed(cause=cause))])
    assert row["nodes_with_failed_jobs"] == expected


def test_dead_nodes_and_orders_of_people_are_no_checks_doing() -> None:
    assert (
        rows(event(1, "RepairBegan", 9, cause="node/NodeDead"), event(2, "RepairBegan", 8, cause="admin/Replace")) == []
    )


def test_an_undrain_by_our_own_repair_is_not_a_persons() -> None:
    begun = event(1, "RepairBegan", 900, cause="disk/DiskFull")
    assert rows(begun, event(2, "NodeUndrained", 800))[0]["taken_back"] == 0
    assert rows(begun, event(2, "NodeUndrained", 800, by="person"))[0]["taken_back"] == 1
    later = event(2, "RepairBegan", 700, cause="gpu/GpuLost")
    found = {row["check"]: row["taken_back"] for row in rows(begun, later, event(3, "NodeUndrained", 600, by="person"))}
    assert found == {"disk": 0, "gpu": 1}


def test_an_administrators_undrain_says_that_a_person_did_it() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-1", "maintenance")
    lab.run(1)
    _undrain(lab.world, {"node": "worker-1"})
    assert [e.data for e in lab.store.events() if e.kind == "NodeUndrained"] == [{"by": "person"}]
