"""The controller's journal in one SQLite file; implements ``ports.store.Store``.

Owns the schema and its migrations. Values are kept as the JSON of ``core``'s ``to_dict``. WAL with
``synchronous=FULL``: each commit is on the disk before the method returns, because an intent that a power failure
takes back could be carried out twice (NORMAL may lose the last commits). A commit costs one fsync; the controller
writes a few per event, not per tick.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hyperpod.core.job import JobRecord
from hyperpod.core.node import Repair
from hyperpod.core.offenders import Exposure, Fault
from hyperpod.core.suspicion import Mark
from hyperpod.errors import StoreError
from hyperpod.ports.store import Event, Intent

log = logging.getLogger(__name__)

MAX_EVENTS = 100_000
MAX_ENDED_JOBS = 10_000
KEEP_DONE_INTENTS = timedelta(days=90)
MAX_SIZE_BYTES = 512 * 1024 * 1024
STORE_RESET = "StoreReset"
"""Kind of the event that says a damaged journal was put aside."""

_PRUNE_EVERY = 500
_PAGE_BYTES = 4096

# One entry per version; an opened file is brought from its own version to the last, in one transaction each.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE intents (key TEXT PRIMARY KEY, kind TEXT NOT NULL, target TEXT NOT NULL,
        intended_at TEXT NOT NULL, is_done INTEGER NOT NULL DEFAULT 0, done_at TEXT, error TEXT NOT NULL DEFAULT '',
        attempt INTEGER NOT NULL DEFAULT 1)""",
        "CREATE INDEX intents_open ON intents (intended_at) WHERE done_at IS NULL",
        """CREATE TABLE jobs (job_id INTEGER PRIMARY KEY, is_ended INTEGER NOT NULL, body TEXT NOT NULL)""",
        "CREATE TABLE repairs (node TEXT PRIMARY KEY, body TEXT NOT NULL)",
        """CREATE TABLE events (event_id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL,
        message TEXT NOT NULL, node TEXT NOT NULL, job_id INTEGER, uid INTEGER, data TEXT)""",
        "CREATE INDEX events_job ON events (job_id, event_id) WHERE job_id IS NOT NULL",
        "CREATE INDEX events_node ON events (node, event_id) WHERE node != ''",
        "CREATE TABLE named_values (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE event_counts (kind TEXT PRIMARY KEY, count INTEGER NOT NULL)",
    ),
    (
        """CREATE TABLE faults (identity TEXT NOT NULL, cause TEXT NOT NULL, at TEXT NOT NULL, machine TEXT NOT NULL,
        node TEXT NOT NULL, PRIMARY KEY (identity, cause, at))""",
        """CREATE TABLE marks (job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, machine TEXT NOT NULL,
        node TEXT NOT NULL, weight REAL NOT NULL, at TEXT NOT NULL, PRIMARY KEY (job_id, attempt, machine))""",
        """CREATE TABLE exposures (machine TEXT PRIMARY KEY, node TEXT NOT NULL, first_at TEXT NOT NULL,
        last_at TEXT NOT NULL)""",
    ),
)

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_HINTS = {
    sqlite3.SQLITE_FULL: "free some space on the disk of the journal",
    sqlite3.SQLITE_READONLY: "the journal's file system is read-only, or the file belongs to another user",
    sqlite3.SQLITE_CANTOPEN: "see that the directory exists and can be written",
    sqlite3.SQLITE_BUSY: "another controller has the journal open",
    sqlite3.SQLITE_IOERR: "the disk of the journal reports errors",
}


class _Damaged(Exception):
    """The file is no journal any more."""


def open_store(path: Path, now: datetime) -> SqliteStore:
    """Open the journal, making it when it is missing.

    A damaged one is moved to ``<name>.corrupt-<time>`` and a new one begun, whose first event says so: the
    controller goes on with what Slurm, the provider and the agents tell.

    Args:
        path: File; its directory is made (mode 0700) when missing.
        now: Present moment, for the names and events written here.
    Raises:
        StoreError: if the file cannot be opened or written, or belongs to a newer version.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(f"the journal's directory {path.parent} cannot be made: {error.strerror}") from error
    try:
        return SqliteStore(path, now)
    except _Damaged as damage:
        aside = _move_aside(path, now)
        store = SqliteStore(path, now)
        store.add_event(
            STORE_RESET,
            f"the journal {path} was damaged ({damage}); it was kept as {aside} and a new one was begun",
            now,
            data={"kept_as": str(aside)},
        )
        return store


def _move_aside(path: Path, now: datetime) -> Path:
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    aside, number = path.with_name(f"{path.name}.corrupt-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    try:
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                os.replace(part, aside.with_name(aside.name + suffix))
    except OSError as error:
        raise StoreError(f"the damaged journal {path} cannot be moved aside: {error.strerror}") from error
    return aside


class SqliteStore:
    """The journal. Safe to use from several threads; use ``open_store`` to get one.

    Args:
        path: File of the database.
        now: Present moment, from which old entries are cleared.
        max_size_bytes: Size beyond which writes fail as on a full disk.
    """

    def __init__(self, path: Path, now: datetime, *, max_size_bytes: int = MAX_SIZE_BYTES) -> None:
        self._path = path
        self._lock = threading.RLock()
        try:
            self._db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise _translated(error, path) from error
        try:
            self._prepare(now, max_size_bytes)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, now: datetime, max_size_bytes: int) -> None:
        try:
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise _Damaged(str(found))
            self._path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(f"PRAGMA max_page_count={max(max_size_bytes // _PAGE_BYTES, 1)}")
        except sqlite3.DatabaseError as error:
            if _code(error) in _DAMAGED:
                raise _Damaged(str(error)) from error
            raise _translated(error, self._path) from error
        except OSError as error:
            raise StoreError(f"the journal {self._path} is not ours to use: {error.strerror}") from error
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > len(_MIGRATIONS):
            raise StoreError(
                f"the journal {self._path} was written by a newer hyperpod (version {version})",
                hint="install that version again, or move the file away",
            )
        for number, statements in enumerate(_MIGRATIONS[version:], start=version + 1):
            with self._transaction() as db:
                for statement in statements:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={number}")
        with self._transaction() as db:
            db.execute("DELETE FROM intents WHERE is_done = 1 AND done_at < ?", (_iso(now - KEEP_DONE_INTENTS),))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # --- intents ------------------------------------------------------------------------------------------------

    def intend(self, key: str, kind: str, target: str, now: datetime) -> Intent:
        """Write an intent down, or return the one that has this key already.

        One that had failed is open again, with its attempt counted; one that is done is returned as done.
        """
        with self._transaction() as db:
            db.execute(
                """INSERT INTO intents (key, kind, target, intended_at) VALUES (?, ?, ?, ?)
                ON CONFLICT (key) DO UPDATE SET intended_at = excluded.intended_at, done_at = NULL, error = '',
                attempt = attempt + 1 WHERE is_done = 0 AND done_at IS NOT NULL""",
                (key, kind, target, _iso(now)),
            )
            return _intent(db.execute(f"{_SELECT_INTENT} WHERE key = ?", (key,)).fetchone())

    def finish(self, key: str, now: datetime, error: str = "") -> None:
        """Mark an intent done, or failed with its error (which lets it be tried again).

        Raises:
            StoreError: if nothing was intended under this key.
        """
        with self._transaction() as db:
            changed = db.execute(
                "UPDATE intents SET is_done = ?, done_at = ?, error = ? WHERE key = ?",
                (0 if error else 1, _iso(now), error, key),
            ).rowcount
            if changed != 1:
                raise StoreError(f"nothing was intended under the key {key}")

    def unfinished(self) -> Sequence[Intent]:
        """Return intents that were begun and neither done nor failed, oldest first."""
        rows = self._rows(f"{_SELECT_INTENT} WHERE done_at IS NULL ORDER BY intended_at, rowid")
        return [_intent(row) for row in rows]

    def attempts(self, key: str) -> int:
        """Return how often this was intended after failures, from 1; 0 when it never was."""
        rows = self._rows("SELECT attempt FROM intents WHERE key = ?", (key,))
        return int(rows[0][0]) if rows else 0

    # --- jobs and repairs ---------------------------------------------------------------------------------------

    def put_job(self, record: JobRecord) -> None:
        """Keep a job's record; of ended jobs the ``MAX_ENDED_JOBS`` with the highest ids stay."""
        # A job between two attempts, or one that has not run yet, is still wanted.
        has_ended = record.current is None or record.current.ended_at is not None
        is_ended = bool(record.verdict) or (not record.is_armed and has_ended)
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO jobs (job_id, is_ended, body) VALUES (?, ?, ?)",
                (record.job_id, int(is_ended), _json(record.to_dict())),
            )
            if record.job_id % _PRUNE_EVERY == 0:
                db.execute(
                    """DELETE FROM jobs WHERE is_ended = 1 AND job_id IN
                    (SELECT job_id FROM jobs WHERE is_ended = 1 ORDER BY job_id DESC LIMIT -1 OFFSET ?)""",
                    (MAX_ENDED_JOBS,),
                )

    def job(self, job_id: int) -> JobRecord | None:
        """Return a job's record."""
        if not 0 <= job_id < 2**63:
            # SQLite cannot even be asked for it.
            return None
        rows = self._rows("SELECT body FROM jobs WHERE job_id = ?", (job_id,))
        return self._job(job_id, rows[0][0]) if rows else None

    def jobs(self) -> Sequence[JobRecord]:
        """Return all records, by job id."""
        found = self._rows("SELECT job_id, body FROM jobs ORDER BY job_id")
        records = {job_id: self._job(job_id, body) for job_id, body in found}
        self._drop("jobs", "job_id", [job_id for job_id, record in records.items() if record is None])
        return [record for record in records.values() if record is not None]

    def _job(self, job_id: int, body: str) -> JobRecord | None:
        """Read a record; one that is damaged is as good as unknown, and must not stop the care for all others."""
        try:
            record = JobRecord.from_dict(json.loads(body))
            if record.job_id != job_id:
                raise ValueError(f"it is the record of {record.job_id!r}, not of {job_id}")
            return record
        except _UNREADABLE as error:
            log.warning("a job in the journal cannot be read path=%s body=%.100r error=%r", self._path, body, error)
            return None

    def _drop(self, table: str, column: str, keys: Sequence[Any]) -> None:
        """Remove damaged rows, which would be met again at every look."""
        if keys:
            with self._transaction() as db:
                db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(key,) for key in keys])

    def put_repair(self, repair: Repair) -> None:
        """Keep the repair of a node."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO repairs (node, body) VALUES (?, ?)", (repair.node, _json(repair.to_dict()))
            )

    def drop_repair(self, node: str) -> None:
        """Forget the repair of a node; nothing happens when there is none."""
        with self._transaction() as db:
            db.execute("DELETE FROM repairs WHERE node = ?", (node,))

    def repairs(self) -> Sequence[Repair]:
        """Return the repairs under way, by node name."""
        found = []
        damaged = []
        for node, body in self._rows("SELECT node, body FROM repairs ORDER BY node"):
            try:
                found.append(Repair.from_dict(json.loads(body)))
            except _UNREADABLE as error:
                # The node is looked at anew: whatever is wrong with it shows again.
                text = "a repair in the journal cannot be read path=%s body=%.100r error=%r"
                log.warning(text, self._path, body, error)
                damaged.append(node)
        self._drop("repairs", "node", damaged)
        return found

    # --- events and values --------------------------------------------------------------------------------------

    def add_event(
        self,
        kind: str,
        message: str,
        now: datetime,
        *,
        node: str = "",
        job_id: int | None = None,
        uid: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Event:
        """Write down something that happened; the newest ``MAX_EVENTS`` are kept."""
        with self._transaction() as db:
            event_id = db.execute(
                "INSERT INTO events (at, kind, message, node, job_id, uid, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (_iso(now), kind, message, node, job_id, uid, None if data is None else _json(data)),
            ).lastrowid
            assert event_id is not None
            db.execute(
                "INSERT INTO event_counts (kind, count) VALUES (?, 1) "
                "ON CONFLICT (kind) DO UPDATE SET count = count + 1",
                (kind,),
            )
            if event_id % _PRUNE_EVERY == 0:
                db.execute("DELETE FROM events WHERE event_id <= ?", (event_id - MAX_EVENTS,))
        return Event(event_id, now, kind, message, node, job_id, uid, data)

    def events(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        job_id: int | None = None,
        node: str = "",
        seen_by: int | None = None,
        own_jobs: Collection[int] = (),
    ) -> Sequence[Event]:
        """Return up to ``limit`` events, oldest first; only a job's or a node's when asked.

        After an id the first ones that follow it; without an id the newest. With ``seen_by``, a uid, only events about
        no job at all and about that user's; ``own_jobs`` tells whose those are that were written without a uid.
        """
        # A negative limit would mean "all" to SQLite.
        limit = max(0, limit)
        where: list[str] = ["event_id > ?"]
        parameters: list[Any] = [after]
        if seen_by is not None:
            where.append("(job_id IS NULL OR uid = ? OR (uid IS NULL AND job_id IN (SELECT value FROM json_each(?))))")
            parameters += [seen_by, _json(sorted(own_jobs))]
        if job_id is not None:
            where.append("job_id = ?")
            parameters.append(job_id)
        if node:
            where.append("node = ?")
            parameters.append(node)
        rows = self._rows(
            f"SELECT event_id, at, kind, message, node, job_id, uid, data FROM events WHERE {' AND '.join(where)} "
            f"ORDER BY event_id {'ASC' if after else 'DESC'} LIMIT ?",
            (*parameters, limit),
        )
        events = [_event(*row) for row in rows]
        return events if after else events[::-1]

    def event_counts(self) -> Mapping[str, int]:
        """Return how many events of each kind there have been, those included that were pruned since."""
        return {str(kind): int(count) for kind, count in self._rows("SELECT kind, count FROM event_counts")}

    def last_event_id(self) -> int:
        """Return the id of the newest event, 0 when there is none; ``events`` from here on are new ones."""
        return int(self._rows("SELECT COALESCE(MAX(event_id), 0) FROM events")[0][0])

    # --- machines -----------------------------------------------------------------------------------------------

    def put_fault(self, fault: Fault) -> None:
        """Keep a fault of a machine; the same one twice is kept once."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO faults (identity, cause, at, machine, node) VALUES (?, ?, ?, ?, ?)",
                (fault.identity, fault.cause, _iso(fault.at), fault.machine, fault.node),
            )

    def faults(self) -> Sequence[Fault]:
        """Return all faults kept, oldest first."""
        rows = self._rows("SELECT identity, machine, node, cause, at FROM faults ORDER BY at, identity, cause")
        return [Fault(identity, m, n, cause, datetime.fromisoformat(at)) for identity, m, n, cause, at in rows]

    def put_marks(self, job_id: int, attempt: int, marks: Sequence[Mark]) -> None:
        """Keep what an attempt has left on machines, in the place of what was kept of it before."""
        with self._transaction() as db:
            db.execute("DELETE FROM marks WHERE job_id = ? AND attempt = ?", (job_id, attempt))
            db.executemany(
                "INSERT INTO marks (job_id, attempt, machine, node, weight, at) VALUES (?, ?, ?, ?, ?, ?)",
                [(job_id, attempt, m.machine, m.node, m.weight, _iso(m.at)) for m in marks],
            )

    def marks(self) -> Sequence[Mark]:
        """Return all marks kept, oldest first."""
        rows = self._rows(
            "SELECT machine, node, job_id, attempt, weight, at FROM marks ORDER BY at, job_id, attempt, machine"
        )
        return [Mark(m, n, job, number, w, datetime.fromisoformat(at)) for m, n, job, number, w, at in rows]

    def put_exposures(self, exposures: Sequence[Exposure]) -> None:
        """Keep from when to when machines have been seen, by machine."""
        with self._transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO exposures (machine, node, first_at, last_at) VALUES (?, ?, ?, ?)",
                [(e.machine, e.node, _iso(e.first_at), _iso(e.last_at)) for e in exposures],
            )

    def exposures(self) -> Sequence[Exposure]:
        """Return how long each machine has been seen, by its id."""
        rows = self._rows("SELECT machine, node, first_at, last_at FROM exposures ORDER BY machine")
        return [Exposure(m, n, datetime.fromisoformat(a), datetime.fromisoformat(b)) for m, n, a, b in rows]

    def forget_machines(self, before: datetime) -> None:
        """Drop faults, marks and exposures that ended before a moment."""
        with self._transaction() as db:
            db.execute("DELETE FROM faults WHERE at < ?", (_iso(before),))
            db.execute("DELETE FROM marks WHERE at < ?", (_iso(before),))
            db.execute("DELETE FROM exposures WHERE last_at < ?", (_iso(before),))

    # --- named values -------------------------------------------------------------------------------------------

    def set_value(self, key: str, value: str) -> None:
        """Keep a small named value."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO named_values (key, value) VALUES (?, ?)", (key, value))

    def value(self, key: str) -> str | None:
        """Return a named value."""
        rows = self._rows("SELECT value FROM named_values WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    # --- plumbing -----------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    # A full disk can have ended the transaction already.
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise _translated(error, self._path) from error

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise _translated(error, self._path) from error


_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)

_SELECT_INTENT = "SELECT key, kind, target, intended_at, is_done, done_at, error FROM intents"


def _intent(row: Sequence[Any]) -> Intent:
    key, kind, target, intended_at, is_done, done_at, error = row
    return Intent(
        key=key,
        kind=kind,
        target=target,
        intended_at=datetime.fromisoformat(intended_at),
        is_done=bool(is_done),
        done_at=datetime.fromisoformat(done_at) if done_at else None,
        error=error,
    )


def _event(
    event_id: int, at: str, kind: str, message: str, node: str, job_id: int | None, uid: int | None, data: str | None
) -> Event:
    told = json.loads(data) if data else None
    return Event(event_id, datetime.fromisoformat(at), kind, message, node, job_id, uid, told)


def _iso(moment: datetime) -> str:
    # Always UTC and of one length, so that the text sorts like the time.
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _code(error: sqlite3.Error) -> int:
    # Extended result codes carry the primary one in their low byte.
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _translated(error: sqlite3.Error, path: Path) -> StoreError:
    return StoreError(f"the journal {path} cannot be used: {error}", hint=_HINTS.get(_code(error), ""))
