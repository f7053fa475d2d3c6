"""Readers of the kernel log: /dev/kmsg itself, and a regular file that stands in for it.

Both give raw records; what they mean is ``health.kmsg``'s. Neither ever blocks. Both have a descriptor to wait on: the
device its own, the file that of the kernel's notices about its folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field

from hyperpod.adapters.inotify import drain, watch_folder

_BATCH = 2000
"""Records taken in one go, so that a flood leaves room for everything else."""

_MAX_LINE = 65536


@dataclass(frozen=True)
class Batch:
    """What one look gave.

    ``was_overrun``: records were overwritten before they were read. ``was_restarted``: the file was cut or
    replaced. ``error``: the log cannot be read now. ``has_more``: there may be more right away.
    """

    records: tuple[str, ...] = ()
    was_overrun: bool = False
    was_restarted: bool = False
    error: str = ""
    has_more: bool = False


@dataclass
class KmsgReader:
    """Reads a kernel log from its beginning.

    Args:
        path: ``/dev/kmsg`` or a regular file. It may appear later.
    """

    path: str
    _fd: int = field(default=-1, init=False)
    _is_device: bool = field(default=False, init=False)
    _inode: int = field(default=0, init=False)
    _offset: int = field(default=0, init=False)
    _rest: bytes = field(default=b"", init=False)
    _notices: int = field(default=-1, init=False)

    def fileno(self) -> int:
        """Return the descriptor to wait on, or -1 when there is none: then look several times a second."""
        return self._fd if self._is_device and self._fd >= 0 else self._notices

    def read(self) -> Batch:
        """Return the records that came since the last look."""
        if self._fd < 0:
            error = self._open()
            if error:
                return Batch(error=error)
        return self._read_device() if self._is_device else self._read_file()

    def _open(self) -> str:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            found = os.fstat(self._fd)
        except OSError as error:
            self.close()
            return f"{self.path}: {error.strerror or error}"
        # A character device delivers one record for each read; /dev/null in its place ends at once like a file.
        self._is_device = stat.S_ISCHR(found.st_mode) and self.path != os.devnull
        self._inode, self._offset, self._rest = found.st_ino, 0, b""
        if stat.S_ISREG(found.st_mode) and self._notices < 0:
            # Before the first read, so that nothing falls between; without notices it is looked at more often.
            with contextlib.suppress(OSError):
                self._notices = watch_folder(os.path.dirname(os.path.abspath(self.path)))
        return ""

    def close(self) -> None:
        """Release the descriptor; the next look opens the log again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _read_device(self) -> Batch:
        records: list[str] = []
        was_overrun = False
        while len(records) < _BATCH:
            try:
                data = os.read(self._fd, 8192)
            except BlockingIOError:
                return Batch(tuple(records), was_overrun)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    was_overrun = True
                    continue
                self.close()
                return Batch(tuple(records), was_overrun, error=f"{self.path}: {error.strerror or error}")
            if not data:
                return Batch(tuple(records), was_overrun)
            records.append(data.decode(errors="replace"))
        return Batch(tuple(records), was_overrun, has_more=True)

    def _read_file(self) -> Batch:
        if self._notices >= 0:
            drain(self._notices)
        try:
            found = os.stat(self.path)
        except OSError as error:
            self.close()
            return Batch(error=f"{self.path}: {error.strerror or error}")
        was_restarted = found.st_ino != self._inode or found.st_size < self._offset
        if was_restarted:
            self.close()
            error_text = self._open()
            if error_text:
                return Batch(error=error_text)
        if found.st_size == self._offset and not was_restarted:
            return Batch()
        data = self._rest + os.pread(self._fd, 1 << 18, self._offset)
        taken = len(data) - len(self._rest)
        self._offset += taken
        lines, rest = split_records(data.decode(errors="surrogateescape"))
        # A line without an end that grows without limit is no record.
        self._rest = rest.encode(errors="surrogateescape") if len(rest) < _MAX_LINE else b""
        return Batch(tuple(lines), was_restarted=was_restarted, has_more=taken == 1 << 18)


def split_records(data: str) -> tuple[list[str], str]:
    """Cut a regular file's new text into complete records and the unfinished rest of the last line.

    Continuation lines belong to the record before; they are dropped here, as nothing is read from them.
    """
    *lines, rest = data.split("\n")
    return [line for line in lines if line and not line.startswith(" ")], rest
