"""Which machines users exclude from their jobs, kept over restarts of the controller.

Owns what of it is written when. The list of a job is the user's own as it was first seen: later lists hold what the
controller has added.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hyperpod.core.exclusions import Exclusion, Shunned, complained_of, find_shunned
from hyperpod.core.job import JobRecord, JobView
from hyperpod.core.node import NodeView
from hyperpod.core.offenders import WINDOW, Exposure
from hyperpod.ports.store import Store

log = logging.getLogger(__name__)

_KEY = "exclusions"
MOST_KEPT = 5000
WRITE_EVERY = timedelta(hours=1)
"""How often it is written that a known user is still there: an hour in 28 days changes nothing."""


class Exclusions:
    """Who excludes what. Used by the tick, and read by queries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_read = False
        self._jobs: frozenset[int] = frozenset()
        self._found: dict[tuple[str, int], Exclusion] = {}
        self._users: dict[int, datetime] = {}
        self._written_at: datetime | None = None

    def look(
        self, views: Sequence[JobView], records: Mapping[int, JobRecord], nodes: Sequence[NodeView], now: datetime
    ) -> None:
        """Take in the jobs that are seen for the first time.

        Raises:
            StoreError: if the journal cannot be read or written.
        """
        self._read()
        known = self._jobs
        self._jobs = frozenset(view.job_id for view in views)
        if self._jobs <= known:
            return
        machines = {n.name: n.instance_id for n in nodes if n.instance_id}
        is_new = False
        for view in views:
            if view.job_id in known or view.uid < 0:
                continue
            at = min(view.submitted_at or now, now)
            record = records.get(view.job_id)
            # Where the controller has work of its own with a job, its list is not the user's any more.
            excluded = record.users_excluded if record is not None else view.excluded
            is_new = is_new or view.uid not in self._users
            self._users[view.uid] = max(at, self._users.get(view.uid, at))
            for name in complained_of(excluded, machines) if excluded else ():
                key = (machines[name], view.uid)
                before = self._found.get(key)
                is_new = is_new or before is None
                self._found[key] = Exclusion(machines[name], name, view.uid, max(at, before.at) if before else at)
        if is_new or self._written_at is None or now - self._written_at >= WRITE_EVERY:
            self._write(now)

    def shunned(self, exposures: Sequence[Exposure], now: datetime) -> tuple[Shunned, ...]:
        """Return the machines that users exclude, the most shunned first."""
        self._read()
        return find_shunned(list(self._found.values()), dict(self._users), exposures, now)

    def _read(self) -> None:
        if self._is_read:
            return
        text = self._store.value(_KEY)
        try:
            data = json.loads(text or "{}")
            found = [Exclusion(str(m), str(n), int(u), datetime.fromisoformat(at)) for m, n, u, at in data["found"]]
            users = {int(uid): datetime.fromisoformat(at) for uid, at in data["users"]}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if text:
                log.warning("the account of excluded nodes is damaged and begins anew error=%r", error)
        else:
            self._found = {(e.machine, e.uid): e for e in found}
            self._users = users
        self._is_read = True

    def _write(self, now: datetime) -> None:
        since = now - WINDOW
        kept = sorted((e for e in self._found.values() if e.at >= since), key=lambda e: e.at)[-MOST_KEPT:]
        self._found = {(e.machine, e.uid): e for e in kept}
        users = sorted((at, uid) for uid, at in self._users.items() if at >= since)[-MOST_KEPT:]
        self._users = {uid: at for at, uid in users}
        data = {
            "found": [(e.machine, e.node, e.uid, e.at.isoformat()) for e in kept],
            "users": [(uid, at.isoformat()) for at, uid in users],
        }
        self._store.set_value(_KEY, json.dumps(data))
        self._written_at = now
