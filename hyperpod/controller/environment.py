"""The environment of an attempt: what the plugin sets before the first task of a job starts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from hyperpod.controller.loop import ENV_GIVEN
from hyperpod.controller.memory import Report
from hyperpod.controller.observe import checkpoint_dir
from hyperpod.controller.world import World
from hyperpod.core.job import BATCH_STEP, JobRecord, JobView
from hyperpod.errors import HyperpodError
from hyperpod.ports.checkpoints import Scan

DEADLINE_S = 1.2
"""The plugin waits 1.5 s at most; past that a job would be delayed by us."""

NOTHING = Scan("", None, problems=("the checkpoint directory did not answer in time",))


class Environments:
    """Answers "which environment does this attempt get?", once for each attempt however many nodes ask."""

    def __init__(self, world: World, start: Callable[[Callable[[], None]], None]) -> None:
        self._world = world
        self._start = start
        self._lock = threading.Lock()
        self._scans: dict[tuple[int, int, str], Future[Scan]] = {}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables for an attempt; empty for a job that is not armed. Takes at most ``DEADLINE_S``."""
        job_id = int(asked["job_id"])
        record = self._world.store.job(job_id)
        armed_by = str(asked.get("armed_by") or "")
        wants = str(asked.get("auto_resume") or "")
        is_armed = wants != "0" and (bool(armed_by and wants) or (record is not None and record.is_armed))
        if not is_armed:
            return {}
        view = self._view(asked) if record is None or _is_batch(asked) else None
        # For a batch script slurmstepd does not know the restart count (Slurm 24.11); slurmctld does.
        restart_count = max(int(asked.get("restart_count") or 0), view.restart_count if view else 0)
        directory = self._directory(record, asked, view)
        variables = {
            "HYPERPOD_ATTEMPT": str(restart_count + 1),
            "HYPERPOD_RESUME_FROM": "",
            "HYPERPOD_PREVIOUS_FAILURE": "",
            "HYPERPOD_CHECKPOINT_DIR": directory,
        }
        report: dict[str, Any] = {**asked, "armed_by": armed_by or (record.armed_by if record else "")}
        report.update(checkpoint_dir=directory, restart_count=restart_count)
        if restart_count > 0:
            scan, is_first = self._scan(job_id, restart_count, directory, record)
            variables["HYPERPOD_RESUME_FROM"] = scan.path
            variables["HYPERPOD_PREVIOUS_FAILURE"] = _previous_failure(record, restart_count)
            step = scan.step if scan.step is not None else -1
            report.update(resume_from=scan.path, resume_step=step)
            if is_first:
                # Told once, however many nodes ask.
                report.update(set_aside=scan.set_aside, problems=scan.problems if not scan.path else ())
        self._world.inbox.put(Report(ENV_GIVEN, self._world.clock.now(), report))
        return variables

    def _view(self, asked: Mapping[str, Any]) -> JobView | None:
        try:
            return self._world.slurm.job(int(asked["job_id"]))
        except HyperpodError:
            return None

    def _directory(self, record: JobRecord | None, asked: Mapping[str, Any], view: JobView | None) -> str:
        named = str(asked.get("checkpoint_dir") or "")
        if named.startswith("/"):
            return named
        if record is not None:
            return record.checkpoint_dir
        # Neither named nor known: no directory is better than one that the next attempt would not look into.
        return checkpoint_dir(self._world, view, "") if view is not None else ""

    def _scan(self, job_id: int, restart_count: int, directory: str, record: JobRecord | None) -> tuple[Scan, bool]:
        """Return the answer of the attempt's one scan, and whether this question began it."""
        key = (job_id, restart_count, directory)
        with self._lock:
            future = self._scans.get(key)
            is_first = future is None
            if future is None:
                future = self._scans[key] = Future()
                for old in [k for k in self._scans if k[0] == job_id and k[1] < restart_count]:
                    del self._scans[old]
                user = record.user if record else ""
                self._start(lambda: self._run(future, directory, user))
        try:
            return future.result(timeout=DEADLINE_S), is_first
        except FutureTimeout:
            return NOTHING, is_first

    def _run(self, future: Future[Scan], directory: str, user: str) -> None:
        try:
            # The old attempt is dead by now, so whatever is half-written stays so and may be moved aside.
            future.set_result(self._world.checkpoints.scan(directory, user, set_aside=True))
        except Exception as error:  # noqa: BLE001 - the waiting threads get the error, whatever it is
            future.set_exception(error)


def _is_batch(asked: Mapping[str, Any]) -> bool:
    return int(asked.get("step_id", BATCH_STEP)) == BATCH_STEP


def _previous_failure(record: JobRecord | None, restart_count: int) -> str:
    if record is None:
        return ""
    ended = [a for a in record.attempts if a.restart_count < restart_count]
    if not ended:
        return ""
    last = ended[-1]
    cause = last.cause.value if last.cause else "Unknown"
    return f"{cause}: {last.message}".replace("\n", " ")[:400]
