"""Shared memory that a killed attempt leaves behind: the next one may trip over the names or the lost memory.

Owns which names count. Only files of the job's user with the names that training libraries give them are removed.
"""

from __future__ import annotations

import contextlib
import os
import stat

SHARED_MEMORY = "/dev/shm"

PREFIXES = (
    "nccl-",
    "torch_",
    "psm_",
    "psm2_",
    "sem.mp-",
    "sem.loky-",
    "aws-ofi-nccl",
    "vader_segment.",
    "ofi_",
    "neuron_",
)
"""NCCL, PyTorch's file system sharing, Python's multiprocessing, PSM, Open MPI, libfabric and Neuron."""


def remove_shared_memory(folder: str, uid: int) -> list[str]:
    """Remove a user's regular files with known names directly below ``folder``; return what was removed.

    Links are never followed: names are removed relative to the opened folder, after a look at the name itself.
    """
    removed = []
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        for name in sorted(os.listdir(directory)):
            if not name.startswith(PREFIXES):
                continue
            with contextlib.suppress(OSError):
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if found.st_uid == uid and stat.S_ISREG(found.st_mode):
                    os.unlink(name, dir_fd=directory)
                    removed.append(name)
    finally:
        os.close(directory)
    return removed
