"""Kill a process just before its n-th file operation, for every n, without waiting for chance."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")


def die_at(number: int, root: Path) -> None:
    """Have this process end, as by kill -9, just before its n-th operation on a file below ``root``."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == number:
            os._exit(9)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in OPERATIONS and arguments and str(root) in str(arguments[0]):
            step()

    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        step()
        real_fsync(descriptor)

    os.fsync = fsync
    sys.addaudithook(hook)


def run_and_die_at(number: int, root: Path, action: Callable[[], object]) -> bool:
    """Run the action in a child that dies at its n-th file operation; True if it ended before that."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_at(number, root)
            action()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), f"the save failed instead of dying at operation {number}"
    return status == 0
