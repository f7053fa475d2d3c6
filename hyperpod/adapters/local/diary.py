"""What was done to a cluster on purpose and still has to be undone, kept so that the next call can when one is killed.

Owns the files ``rehearsal.json`` and ``injected.json`` in the cluster's folder, and their locks: one rehearsal a
cluster at a time, held while it lasts; any number of ``inject --for``, each of which holds its diary for a moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from hyperpod.adapters.local.home import write_json
from hyperpod.errors import InvalidState, NotFound


class Trace(NamedTuple):
    """One fault. ``until`` is when it is to be undone, in seconds of the epoch; 0: when its rehearsal is over."""

    node: str
    fault: str
    argument: str
    until: float = 0.0


@dataclass
class Traces:
    """What is to be undone: faults, and the rehearsal's job with its folder."""

    faults: list[Trace] = field(default_factory=list)
    job: int = 0
    folder: str = ""

    def __bool__(self) -> bool:
        return bool(self.faults or self.job or self.folder)


class Diary:
    """A diary of one cluster, by default that of its rehearsals. Every change is on disk before it is made."""

    def __init__(self, folder: Path, name: str = "rehearsal") -> None:
        self._path = folder / f"{name}.json"
        self._lock = folder / f".{name}.lock"
        self.traces = Traces()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is written there; needs no lock."""
        return not self._path.exists()

    @contextlib.contextmanager
    def opened(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the diary; what earlier calls have left is in ``traces``.

        Args:
            wait: Wait for whoever holds it now.

        Raises:
            InvalidState: Another rehearsal runs on this cluster.
            NotFound: There is no such cluster.
        """
        try:
            lock = self._lock.open("w")
        except FileNotFoundError as error:
            raise NotFound(f"no cluster {self._lock.parent.name} on this machine") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                name = self._lock.parent.name
                raise InvalidState(f"rehearse on {name}", "being rehearsed on already") from error
            self.traces = self._read()
            yield

    def note_fault(self, trace: Trace) -> None:
        """A fault is about to be caused."""
        if trace not in self.traces.faults:
            self.traces.faults.append(trace)
            self._write()

    def forget_fault(self, trace: Trace) -> None:
        """A fault has been undone."""
        with contextlib.suppress(ValueError):
            self.traces.faults.remove(trace)
            self._write()

    def note_job(self, job: int, folder: str) -> None:
        """A folder is about to be made, or its job has been submitted; 0 and nothing: they are gone."""
        self.traces.job, self.traces.folder = job, folder
        self._write()

    def _write(self) -> None:
        if self.traces:
            write_json(self._path, asdict(self.traces), 0o600)
        else:
            self._path.unlink(missing_ok=True)

    def _read(self) -> Traces:
        try:
            data = json.loads(self._path.read_text())
            faults = [_trace(*entry) for entry in data["faults"]]
            return Traces(faults, int(data["job"]), str(data["folder"]))
        except FileNotFoundError:
            return Traces()
        except (OSError, ValueError, KeyError, TypeError):
            # Written whole or not at all; one that cannot be read was changed by a person, and says nothing.
            return Traces()


def _trace(node: object, fault: object, argument: object, until: object = 0.0) -> Trace:
    return Trace(str(node), str(fault), str(argument), float(str(until)))
