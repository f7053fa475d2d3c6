"""Room on the disks that the node needs: bytes and inodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.ports.host import DiskUsage

NAME = "disk"
_MOUNTS_EVERY_S = 300.0


@dataclass
class DiskCheck:
    """Compares free bytes and inodes with limits."""

    about: ClassVar[About] = About(
        title="There is room on the disks that the node needs",
        reads="statvfs of each path: free bytes and free inodes.",
        means="A full spool refuses launches within milliseconds and would eat the queue; a full root breaks "
        "everything. /tmp and local scratch disks are the users' to fill, and their findings say so.",
        does="WARN below warn_percent; FATAL, drain, below fatal_percent or fatal_bytes; undrained when there is "
        "room. A full /tmp or scratch disk is the users' and drains nothing.",
        codes={
            "DiskFull": "Few bytes are free.",
            "InodesUsed": "Few inodes are free.",
            "DiskUnreadable": "The file system did not answer.",
        },
        source="Our own judgement; NHC's check_fs_free and check_fs_ifree look at the same.",
    )
    paths: tuple[str, ...] = setting(
        ("/", "/tmp", "/var/spool/slurmd", "/var/log"), "Folders that are looked at where they exist."
    )
    scratch: tuple[str, ...] = setting(
        ("/scratch", "/local_scratch", "/opt/dlami/nvme", "/opt/sagemaker", "/mnt/nvme"),
        "Local disks for jobs, where such a disk is mounted: full ones are the users' and drain nothing.",
    )
    warn_percent: float = setting(10.0, "Share free below which it is WARN; the last tenth fills fast.")
    fatal_percent: float = setting(
        2.0, "Share free below which it is FATAL; what is left is the reserve of the system's own writes."
    )
    fatal_bytes: int = setting(
        200_000_000,
        "Bytes free below which it is FATAL, whatever the share: slurmd cannot write job scripts. Disks of less than "
        "ten times this are judged by the share only.",
    )
    interval_s: float = setting(30.0, "Seconds between two looks; a job can fill a disk within minutes.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE
    _mounted: tuple[str, ...] = field(default=(), repr=False)
    _next_mounts: float = field(default=0.0, repr=False)

    def run(self, ports: Ports) -> Result:
        """Look at each path once."""
        findings: list[Finding] = []
        mounted = self._scratch(ports)
        for path in (*self.paths, *mounted):
            try:
                usage = ports.host.disk(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                findings.append(unknown(NAME, "DiskUnreadable", f"{path}: {error.strerror or error}", device=path))
                continue
            findings += self._judge(path, usage, Whose.USER if path == "/tmp" or path in mounted else Whose.NODE)
        return Result(tuple(findings))

    def _scratch(self, ports: Ports) -> tuple[str, ...]:
        """Return the scratch folders that are mounts of their own; looked up again every few minutes."""
        now = ports.host.monotonic()
        if self.scratch and now >= self._next_mounts:
            self._next_mounts = now + _MOUNTS_EVERY_S
            # Only disks of this machine: a mount of a server may hang, and shared_fs looks at those.
            found = {mount.path for mount in ports.host.mounts() if mount.source.startswith("/dev/")}
            self._mounted = tuple(path for path in self.scratch if path in found and path not in self.paths)
        return self._mounted

    def _judge(self, path: str, usage: DiskUsage, whose: Whose) -> list[Finding]:
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
