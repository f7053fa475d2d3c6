"""Local file systems that should be writable are.

The kernel's flag is read, nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, unknown

NAME = "readonly_fs"


@dataclass
class ReadonlyFsCheck:
    """Reads the read-only flag of the file systems below the paths."""

    about: ClassVar[About] = About(
        title="Local file systems are writable",
        reads="The read-only flag that statvfs gives for each path.",
        means="A kernel that met an error remounts a file system read-only; jobs then fail at their first write. "
        "errors=remount-ro among the mount options is only a plan, no fault.",
        does="FATAL, reboot, at once: the flag is a fact. The kernel's log says whether the disk itself is broken.",
        codes={
            "ReadOnly": "A file system that should be writable is not.",
            "MountUnreadable": "The file system did not answer.",
        },
        source="ext4(5), errors=; statvfs(3).",
    )
    paths: tuple[str, ...] = setting(
        ("/", "/tmp", "/var/spool/slurmd", "/var/log", "/run"),
        "Folders whose file systems must be writable, where they exist.",
    )
    interval_s: float = setting(15.0, "Seconds between two looks; jobs fail from the moment on at which it happens.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Ask the kernel for each path's flag."""
        findings: list[Finding] = []
        for path in self.paths:
            try:
                usage = ports.host.disk(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                findings.append(unknown(NAME, "MountUnreadable", f"{path}: {error.strerror or error}", device=path))
                continue
            if usage.is_read_only:
                text = f"{path} is mounted read-only"
                findings.append(fatal(NAME, "ReadOnly", text, action=Action.REBOOT, device=path, is_hard=True))
        return Result(tuple(findings))
