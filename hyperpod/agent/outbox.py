"""Messages that must reach the controller: kept until it has confirmed each, also over a restart of the agent.

Every message is appended to a journal on disk before the plugin gets its answer. Memory holds a window of the oldest;
what is beyond it waits on disk. Heartbeats are not kept: the next one says everything that the last one did.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

WINDOW = 1000
"""Messages in memory at once; some 500 bytes each."""

IN_FLIGHT = 200
"""Messages sent without a confirmation."""

RESEND_S = 5.0

COMPACT_BYTES = 4_000_000


@dataclass
class _Entry:
    message: dict[str, Any]
    sent_at: float | None = None


class Outbox:
    """A queue that forgets nothing.

    Args:
        path: The journal. Its folder must exist; when it cannot be written, messages are kept in memory only.
        prefix: Begins every message's id; must differ between two lives of the agent.
    """

    def __init__(self, path: str, prefix: str) -> None:
        self._path = path
        self._prefix = prefix
        self._count = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._on_disk_only = 0
        self._size = 0
        self._file: int | None = None
        self._open()
        self._load()

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.warning("the outbox is kept in memory only path=%s error=%s", self._path, error.strerror)

    def __len__(self) -> int:
        return len(self._entries) + self._on_disk_only

    def add(self, message: Mapping[str, Any]) -> str:
        """Keep a message until it is confirmed and return the id that it was given."""
        self._count += 1
        key = f"{self._prefix}-{self._count}"
        kept = {**message, "id": key}
        self._append({"add": kept})
        if self._file is not None and (self._on_disk_only or len(self._entries) >= WINDOW):
            self._on_disk_only += 1
        else:
            self._entries[key] = _Entry(kept)
        return key

    def confirm(self, key: object) -> bool:
        """The controller has a message; return whether it was ours to confirm."""
        if not isinstance(key, str) or key not in self._entries:
            return False
        del self._entries[key]
        self._append({"done": key})
        if not self._entries and self._on_disk_only:
            self._load()
        if not self:
            self._truncate()
        return True

    def retry_later(self, key: object, now: float) -> None:
        """The controller could not take a message now; it is sent again after the usual time."""
        if isinstance(key, str) and key in self._entries:
            self._entries[key].sent_at = now

    def due(self, now: float) -> list[dict[str, Any]]:
        """Return the messages to send now, oldest first, and count them as sent."""
        out: list[dict[str, Any]] = []
        in_flight = 0
        for entry in self._entries.values():
            if entry.sent_at is not None and now - entry.sent_at < RESEND_S:
                in_flight += 1
            elif in_flight + len(out) < IN_FLIGHT:
                entry.sent_at = now
                out.append(entry.message)
            else:
                break
        return out

    def next_resend(self) -> float | None:
        """Return when the next message that was not confirmed is due again; None when nothing waits."""
        # What was never sent waits for a confirmation of the others, which wakes everybody anyway.
        return min((e.sent_at + RESEND_S for e in self._entries.values() if e.sent_at is not None), default=None)

    def disconnected(self) -> None:
        """What was sent on the lost connection may not have arrived: it is due again."""
        for entry in self._entries.values():
            entry.sent_at = None

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        data = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            os.write(self._file, data)
            self._size += len(data)
        except OSError as error:
            log.warning("the outbox cannot be written path=%s error=%s", self._path, error.strerror)

    def _load(self) -> None:
        """Read the oldest unconfirmed messages of the journal into memory."""
        if self._file is None:
            return
        waiting: OrderedDict[str, dict[str, Any]] = OrderedDict()
        with open(self._path, "rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                    if "add" in record:
                        waiting[str(record["add"]["id"])] = dict(record["add"])
                    else:
                        waiting.pop(str(record["done"]), None)
                except (ValueError, KeyError, TypeError, RecursionError):
                    # The last line of a killed agent may be cut off; any other is a damaged one. Neither holds
                    # up the rest.
                    log.warning("a damaged line of the outbox is left out path=%s", self._path)
        for key in list(waiting)[:WINDOW]:
            self._entries.setdefault(key, _Entry(waiting[key]))
        self._on_disk_only = max(0, len(waiting) - len(self._entries))
        self._size = os.fstat(self._file).st_size
        if self._size > COMPACT_BYTES and waiting:
            self._compact(waiting)

    def _compact(self, waiting: Mapping[str, Mapping[str, Any]]) -> None:
        temporary = f"{self._path}.new"
        try:
            with open(temporary, "wb") as file:
                for message in waiting.values():
                    file.write(json.dumps({"add": message}, separators=(",", ":")).encode() + b"\n")
            os.replace(temporary, self._path)
        except OSError as error:
            log.warning("the outbox cannot be made smaller path=%s error=%s", self._path, error.strerror)
            return
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._open()

    def _truncate(self) -> None:
        if self._file is not None and self._size:
            os.ftruncate(self._file, 0)
            self._size = 0

    def close(self) -> None:
        """Release the journal; what was not confirmed stays in it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
