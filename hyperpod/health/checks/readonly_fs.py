"""Local file systems that should be writable are.

A kernel that met an error remounts a file system read-only; jobs then fail at their first write. Settings: ``paths``
(the mounts that hold these are looked at). Hard for the root file system and slurmd's spool: one look tells the
truth. The kernel's flag is read, nothing is written: ``errors=remount-ro`` in the options is only a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, fatal, unknown

NAME = "readonly_fs"


@dataclass
class ReadonlyFsCheck:
    """Reads the read-only flag of the file systems below the paths."""

    paths: tuple[str, ...] = ("/", "/tmp", "/var/spool/slurmd", "/var/log", "/run")
    interval_s: float = 15.0
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
