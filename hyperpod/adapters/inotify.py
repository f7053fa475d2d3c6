"""The kernel's notices about files (inotify), as one descriptor that can be waited on.

Python's standard library has no binding; this is the part that a reader of one file needs.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_MODIFY, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x80, 0x100, 0x200


def watch_folder(path: str) -> int:
    """Return a descriptor that becomes readable when a file in the folder is written, made, moved in or removed.

    The folder is watched, not the file: on an overlay the first write puts another file in its place, and the notices
    of the one below stay away.

    Raises:
        OSError: if the folder cannot be watched.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(_NONBLOCK_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    mask = ctypes.c_uint32(_MODIFY | _MOVED_TO | _CREATE | _DELETE)
    if libc.inotify_add_watch(descriptor, os.fsencode(path), mask) < 0:
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, os.strerror(number), path)
    return int(descriptor)


def drain(descriptor: int) -> None:
    """Take the notices away; what they say does not matter, only that there were some."""
    try:
        while os.read(descriptor, 65536):
            pass
    except BlockingIOError:
        return
