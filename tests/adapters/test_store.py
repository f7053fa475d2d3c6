"""The journal: one suite for the real one and the fake, then what only a file can suffer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hyperpod.adapters import store as module
from hyperpod.adapters.store import STORE_RESET, SqliteStore, open_store
from hyperpod.core.finding import Action
from hyperpod.core.job import Attempt, ExitCause, JobRecord
from hyperpod.core.node import Repair, RepairStatus
from hyperpod.core.offenders import Exposure, Fault
from hyperpod.core.suspicion import Mark
from hyperpod.errors import StoreError
from hyperpod.ports.store import Store
from tests.fakes.store import MemoryStore

NOW = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def record(job_id: int = 7, **changes: object) -> JobRecord:
    attempt = Attempt(1, 0, started_at=NOW, nodes=("worker-1",), instance_ids=("i-1",), cause=ExitCause.NODE_DEAD)
    whole = JobRecord(
        job_id, user="ubuntu", uid=1000, armed_by="job", attempts=(attempt,), avoid={"i-1": "worker-1"}, max_attempts=3
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def repair(node: str = "worker-1") -> Repair:
    return Repair(node, RepairStatus.REPLACING, "agent/NodeDead", "dead", Action.REPLACE, "i-1", NOW, later(5), 2)


@pytest.fixture(params=["sqlite", "memory"])
def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Give the store; calling again is a restart of the program."""
    memory = MemoryStore()
    opened: list[SqliteStore] = []

    def reopen() -> Store:
        if request.param == "memory":
            return memory
        if opened:
            opened[-1].close()
        opened.append(open_store(tmp_path / "journal.db", NOW))
        return opened[-1]

    return reopen


def test_an_intent_is_unfinished_until_it_is_done_also_over_a_restart(reopened: Callable[[], Store]) -> None:
    store = reopened()
    store.intend("b", "replace", "worker-2", later(1))
    store.intend("a", "drain", "worker-1", NOW)
    store = reopened()
    assert [(i.key, i.kind, i.target, i.intended_at) for i in store.unfinished()] == [
        ("a", "drain", "worker-1", NOW),
        ("b", "replace", "worker-2", later(1)),
    ]
    store.finish("a", later(2))
    assert [i.key for i in reopened().unfinished()] == ["b"]


def test_an_intent_that_is_done_is_returned_as_done(reopened: Callable[[], Store]) -> None:
    store = reopened()
    store.intend("k", "replace", "worker-1", NOW)
    store.finish("k", later(1))
    again = store.intend("k", "replace", "worker-1", later(60))
    assert (again.is_done, again.intended_at, again.done_at) == (True, NOW, later(1))
    assert list(store.unfinished()) == []


def test_an_unfinished_intent_keeps_its_first_time(reopened: Callable[[], Store]) -> None:
    store = reopened()
    store.intend("k", "replace", "worker-1", NOW)
    assert store.intend("k", "replace", "worker-1", later(60)).intended_at == NOW


def test_a_failed_intent_may_be_tried_again(reopened: Callable[[], Store]) -> None:
    store = reopened()
    store.intend("k", "replace", "worker-1", NOW)
    store.finish("k", later(1), "no capacity")
    assert list(store.unfinished()) == []
    again = store.intend("k", "replace", "worker-1", later(60))
    assert (again.is_done, again.error, again.done_at, again.intended_at) == (False, "", None, later(60))
    assert store.attempts("k") == 2  # type: ignore[attr-defined]
    store.finish("k", later(61))
    assert store.intend("k", "replace", "worker-1", later(62)).is_done


def test_finishing_what_was_never_intended_is_an_error(reopened: Callable[[], Store]) -> None:
    with pytest.raises(StoreError, match="nothing was intended under the key k"):
        reopened().finish("k", NOW)


def test_jobs_and_repairs_come_back_equal(reopened: Callable[[], Store]) -> None:
    store = reopened()
    store.put_job(record(9))
    store.put_job(record(7))
    store.put_job(record(9, verdict="UserCancelled"))
    store.put_repair(repair("worker-2"))
    store.put_repair(repair("worker-1"))
    store.drop_repair("worker-2")
    store.drop_repair("worker-3")
    store = reopened()
    assert list(store.jobs()) == [record(7), record(9, verdict="UserCancelled")]
    assert (store.job(7), store.job(8)) == (record(7), None)
    assert list(store.repairs()) == [repair("worker-1")]


def test_events_are_read_by_id_job_and_node(reopened: Callable[[], Store]) -> None:
    store = reopened()
    first = store.add_event("NodeDead", "worker-1 is dead", NOW, node="worker-1", data={"silence_s": 3.1})
    store.add_event("Requeued", "job 7", later(1), job_id=7, uid=1000)
    store.add_event("Replaced", "worker-1", later(2), node="worker-1")
    store = reopened()
    assert store.events()[0] == first
    assert [e.kind for e in store.events(node="worker-1")] == ["NodeDead", "Replaced"]
    assert [(e.kind, e.uid, e.data) for e in store.events(job_id=7)] == [("Requeued", 1000, None)]
    assert [e.kind for e in store.events(after=first.event_id, limit=1)] == ["Requeued"]
    assert store.last_event_id() == store.events()[-1].event_id  # type: ignore[attr-defined]


def test_without_an_id_the_newest_events_are_given(reopened: Callable[[], Store]) -> None:
    store = reopened()
    for number in range(5):
        store.add_event("Kind", str(number), later(number))
    assert [e.message for e in store.events(limit=2)] == ["3", "4"]
    assert [e.message for e in store.events(after=1, limit=2)] == ["1", "2"]


def test_events_are_counted_by_kind(reopened: Callable[[], Store]) -> None:
    store = reopened()
    for kind in ("NodeDead", "Requeued", "NodeDead"):
        store.add_event(kind, "x", NOW)
    assert reopened().event_counts() == {"NodeDead": 2, "Requeued": 1}  # type: ignore[attr-defined]


def test_values_are_kept(reopened: Callable[[], Store]) -> None:
    store = reopened()
    assert store.value("breaker") is None
    store.set_value("breaker", "open")
    store.set_value("breaker", "closed")
    assert reopened().value("breaker") == "closed"


# --- the file ---------------------------------------------------------------------------------------------------


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    open_store(tmp_path / "deep" / "journal.db", NOW).close()
    assert (tmp_path / "deep" / "journal.db").stat().st_mode & 0o777 == 0o600


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    store = open_store(tmp_path / "journal.db", NOW)
    store.intend("k", "replace", "worker-1", NOW)
    # Never closed: the next one finds a write-ahead log, as after kill -9.
    assert [i.key for i in open_store(tmp_path / "journal.db", NOW).unfinished()] == ["k"]


@pytest.mark.parametrize("damage", ["garbage", "middle", "schema"])
def test_a_damaged_file_is_kept_aside_and_an_event_says_so(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.db"
    store = open_store(path, NOW)
    for number in range(300):
        store.add_event("Kind", f"message {number} " + "x" * 100, NOW)
    store.close()
    whole = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"this is no database, whatever its name says" * 50)
    elif damage == "middle":
        path.write_bytes(whole[:8192] + b"\xff" * 16384 + whole[24576:])
    else:
        path.write_bytes(whole[:100] + b"\xff" * 3996 + whole[4096:])
    damaged = path.read_bytes()
    store = open_store(path, NOW)
    (event,) = store.events()
    assert event.kind == STORE_RESET
    assert "journal.db.corrupt-20250301T120000Z" in event.message
    assert (tmp_path / "journal.db.corrupt-20250301T120000Z").read_bytes() == damaged
    store.intend("k", "replace", "worker-1", NOW)
    store.close()
    path.write_bytes(b"again no database" * 100)
    open_store(path, NOW).close()
    assert (tmp_path / "journal.db.corrupt-20250301T120000Z-2").exists()


def test_an_empty_file_is_a_new_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    assert list(open_store(tmp_path / "journal.db", NOW).events()) == []


def test_a_full_disk_is_said_and_the_journal_stays_whole(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db", NOW, max_size_bytes=40 * 4096)
    store.intend("k", "replace", "worker-1", NOW)
    with pytest.raises(StoreError, match="full") as caught:
        store.set_value("big", "x" * 1_000_000)
    assert caught.value.hint == "free some space on the disk of the journal"
    assert store.value("big") is None
    store.finish("k", later(1))
    store.close()
    assert list(open_store(tmp_path / "journal.db", NOW).unfinished()) == []


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        open_store(tmp_path / "file" / "journal.db", NOW)


def test_a_path_that_is_a_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open"):
        open_store(tmp_path, NOW)


def test_a_journal_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    open_store(path, NOW).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreError, match="newer hyperpod"):
        open_store(path, NOW)
    assert [p.name for p in tmp_path.iterdir() if "corrupt" in p.name] == []


def test_only_the_newest_events_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 100)
    monkeypatch.setattr(module, "_PRUNE_EVERY", 50)
    store = open_store(tmp_path / "journal.db", NOW)
    for number in range(300):
        store.add_event("Kind", str(number), NOW)
    assert [e.event_id for e in store.events()] == list(range(201, 301))


def test_records_of_jobs_under_way_are_never_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED_JOBS", 3)
    monkeypatch.setattr(module, "_PRUNE_EVERY", 1)
    store = open_store(tmp_path / "journal.db", NOW)
    between = replace(record(1).attempts[0], ended_at=later(9))
    store.put_job(record(1, attempts=(between,)))
    for job_id in range(2, 9):
        store.put_job(record(job_id, verdict="Completed"))
    assert [job.job_id for job in store.jobs()] == [1, 6, 7, 8]


def test_intents_done_long_ago_are_cleared_when_opened(tmp_path: Path) -> None:
    store = open_store(tmp_path / "journal.db", NOW)
    for key in ("done", "failed", "open"):
        store.intend(key, "replace", "worker-1", NOW)
    store.finish("done", NOW)
    store.finish("failed", NOW, "no capacity")
    store.close()
    store = open_store(tmp_path / "journal.db", NOW + timedelta(days=91))
    assert [store.attempts(key) for key in ("done", "failed", "open")] == [0, 1, 1]


def test_threads_may_write_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path / "journal.db", NOW)

    def write(number: int) -> None:
        for count in range(20):
            store.add_event("Kind", f"{number}/{count}", NOW)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.events()) == 80


def test_the_memory_store_fails_when_told_to() -> None:
    store = MemoryStore()
    store.next_error = StoreError("disk full")
    with pytest.raises(StoreError):
        store.set_value("a", "b")
    store.set_value("a", "b")
    assert store.value("a") == "b"


# --- who sees what, and what cannot be read ---------------------------------------------------------------------


def test_a_users_look_at_the_journal_leaves_others_out(reopened: Callable[[], Store]) -> None:
    store = reopened()
    store.add_event("Mine", "by uid", NOW, job_id=1, uid=1000)
    store.add_event("Theirs", "by uid", NOW, job_id=2, uid=1001)
    store.add_event("Old", "mine, written without a uid", NOW, job_id=3)
    store.add_event("Old", "theirs, written without a uid", NOW, job_id=4)
    store.add_event("Reused", "an id that was mine once", NOW, job_id=3, uid=1001)
    store.add_event("Node", "for all", NOW, node="worker-1")

    seen = store.events(seen_by=1000, own_jobs=[1, 3])

    assert [e.message for e in seen] == ["by uid", "mine, written without a uid", "for all"]
    assert [e.message for e in store.events(seen_by=1000, own_jobs=[1, 3], limit=1)] == ["for all"]


def test_a_negative_limit_is_none_at_all(reopened: Callable[[], Store]) -> None:
    store = reopened()
    store.add_event("Kind", "x", NOW)

    assert list(store.events(limit=-1)) == []


@pytest.mark.parametrize("body", ["[1]", "{", "[" * 100_000, '{"job_id": []}', "null"])
def test_a_damaged_row_is_left_out_and_the_others_stay(tmp_path: Path, body: str) -> None:
    journal = open_store(tmp_path / "journal.db", NOW)
    journal.put_job(record(7))
    journal.put_job(record(8))
    journal.put_repair(repair("worker-1"))
    journal.put_repair(repair("worker-2"))
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("UPDATE jobs SET body = ? WHERE job_id = 7", (body,))
        db.execute("UPDATE repairs SET body = ? WHERE node = 'worker-1'", (body,))

    assert [r.job_id for r in journal.jobs()] == [8]
    assert [r.node for r in journal.repairs()] == ["worker-2"]
    assert journal.job(7) is None


def test_a_number_beyond_what_can_be_stored_is_a_job_that_is_not_known(tmp_path: Path) -> None:
    assert open_store(tmp_path / "journal.db", NOW).job(10**30) is None


# --- machines ---------------------------------------------------------------------------------------------------


def test_faults_marks_and_exposures_outlive_a_restart_and_are_kept_once(reopened: Callable[[], Store]) -> None:
    store = reopened()
    fault = Fault("GPU-1", "i-1", "worker-1", "xid/79", NOW)
    marks = [Mark("i-1", "worker-1", 7, 1, 0.3, NOW), Mark("i-2", "worker-2", 7, 1, 0.1, NOW)]
    for _ in range(2):
        store.put_fault(fault)
        store.put_marks(7, 1, marks)
        store.put_exposures([Exposure("i-1", "worker-1", NOW, later(60))])
    store.put_marks(7, 2, [replace(marks[0], attempt=2)])
    store.put_marks(7, 1, marks[1:])
    store = reopened()
    assert list(store.faults()) == [fault]
    assert [(m.machine, m.weight) for m in store.marks()] == [("i-2", 0.1), ("i-1", 0.3)]
    assert list(store.exposures()) == [Exposure("i-1", "worker-1", NOW, later(60))]


def test_what_ended_before_a_moment_is_forgotten_of_machines(reopened: Callable[[], Store]) -> None:
    store = reopened()
    for seconds in (0, 100):
        name = f"i-{seconds}"
        store.put_fault(Fault(name, name, "worker-1", "xid/79", later(seconds)))
        store.put_marks(seconds, 1, [Mark(name, "worker-1", seconds, 1, 0.3, later(seconds))])
        store.put_exposures([Exposure(name, "worker-1", NOW, later(seconds))])
    store.forget_machines(later(50))
    assert [f.machine for f in store.faults()] == ["i-100"]
    assert [m.machine for m in store.marks()] == ["i-100"]
    assert [e.machine for e in store.exposures()] == ["i-100"]


def test_a_journal_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as db:
        for statement in module._MIGRATIONS[0]:
            db.execute(statement)
        db.execute("PRAGMA user_version=1")
    store = open_store(path, NOW)
    store.put_fault(Fault("i-1", "i-1", "worker-1", "xid/79", NOW))
    assert len(store.faults()) == 1
