"""Room on the disks that the node needs: bytes and inodes.

Settings: ``paths`` (checked where they exist: ``/``, ``/tmp``, slurmd's spool, the logs), ``warn_percent`` (10 free),
``fatal_percent`` (2 free), ``fatal_bytes`` (200 MB: below it slurmd cannot write job scripts, whatever the
percentage; on disks of less than ten times that, only the percentage counts). FATAL asks for a drain: a full spool
refuses launches within milliseconds and would eat the queue. /tmp is the users' to fill, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod.core.finding import Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, fatal, unknown, warn
from hyperpod.ports.host import DiskUsage

NAME = "disk"


@dataclass
class DiskCheck:
    """Compares free bytes and inodes with limits."""

    paths: tuple[str, ...] = ("/", "/tmp", "/var/spool/slurmd", "/var/log")
    warn_percent: float = 10.0
    fatal_percent: float = 2.0
    fatal_bytes: int = 200_000_000
    interval_s: float = 30.0
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Look at each path once."""
        findings: list[Finding] = []
        for path in self.paths:
            try:
                usage = ports.host.disk(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                findings.append(unknown(NAME, "DiskUnreadable", f"{path}: {error.strerror or error}", device=path))
                continue
            findings += self._judge(path, usage)
        return Result(tuple(findings))

    def _judge(self, path: str, usage: DiskUsage) -> list[Finding]:
        whose = Whose.USER if path == "/tmp" else Whose.NODE
        out = []
        is_small = usage.total_bytes < 10 * self.fatal_bytes
        percent = usage.free_percent
        if percent < self.warn_percent or (not is_small and usage.free_bytes < self.fatal_bytes):
            text = f"{path} has {percent:.1f} % free ({usage.free_bytes // 1_000_000} MB)"
            is_full = percent < self.fatal_percent or (not is_small and usage.free_bytes < self.fatal_bytes)
            out.append((fatal if is_full else warn)(NAME, "DiskFull", text, device=path, whose=whose))
        inodes = usage.free_inodes_percent
        if inodes < self.warn_percent:
            text = f"{path} has {inodes:.1f} % of its inodes free ({usage.free_inodes})"
            is_full = inodes < self.fatal_percent
            out.append((fatal if is_full else warn)(NAME, "InodesUsed", text, device=path, whose=whose))
        return out
