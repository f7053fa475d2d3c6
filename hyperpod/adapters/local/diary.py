"""What a rehearsal has done to a cluster and still has to undo, kept so that the next one can when this one is killed.

Owns the file ``rehearsal.json`` in the cluster's folder and its lock: one rehearsal a cluster at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hyperpod.adapters.local.home import write_json
from hyperpod.errors import InvalidState, NotFound


@dataclass
class Traces:
    """What is to be undone: faults as (node, fault, argument), and the rehearsal's job with its folder."""

    faults: list[tuple[str, str, str]] = field(default_factory=list)
    job: int = 0
    folder: str = ""

    def __bool__(self) -> bool:
        return bool(self.faults or self.job or self.folder)


class Diary:
    """The diary of one cluster's rehearsals. Every change is on disk before it is made."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rehearsal.json"
        self._lock = folder / ".rehearsal.lock"
        self.traces = Traces()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the diary; what an earlier rehearsal has left is in ``traces``.

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
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                name = self._lock.parent.name
                raise InvalidState(f"rehearse on {name}", "being rehearsed on already") from error
            self.traces = self._read()
            yield

    def note_fault(self, node: str, fault: str, argument: str) -> None:
        """A fault is about to be caused."""
        if (node, fault, argument) not in self.traces.faults:
            self.traces.faults.append((node, fault, argument))
            self._write()

    def forget_fault(self, node: str, fault: str, argument: str) -> None:
        """A fault has been undone."""
        with contextlib.suppress(ValueError):
            self.traces.faults.remove((node, fault, argument))
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
            faults = [(str(node), str(fault), str(argument)) for node, fault, argument in data["faults"]]
            return Traces(faults, int(data["job"]), str(data["folder"]))
        except FileNotFoundError:
            return Traces()
        except (OSError, ValueError, KeyError, TypeError):
            # Written whole or not at all; one that cannot be read was changed by a person, and says nothing.
            return Traces()
