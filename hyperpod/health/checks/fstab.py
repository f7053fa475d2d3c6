"""What /etc/fstab says is mounted is mounted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.sysfs import shares_kernel
from hyperpod.ports.host import FileState, Host

NAME = "fstab"
_PATH = "/etc/fstab"

_BY_CHOICE = frozenset({"noauto", "nofail", "nobootwait"})
"""Options by which a boot may go without the file system: its absence is no fault."""

_DEVICES = ("/dev/", "UUID=", "LABEL=", "PARTUUID=", "PARTLABEL=", "ID=")
_MOST_LINKS = 16


@dataclass(frozen=True)
class Entry:
    """A file system that has to be mounted."""

    source: str
    path: str
    type: str


@dataclass
class FstabCheck:
    """Compares /etc/fstab with the mount table."""

    about: ClassVar[About] = About(
        title="What /etc/fstab says is mounted",
        reads="/etc/fstab, once and when it has changed, and the mount table (/proc/self/mounts).",
        means="Where a file system of fstab is not mounted, jobs miss their data or fill the root file system unseen. "
        "Only the mount point is compared: bind mounts, labels and aliases of servers show another source there. No "
        "fault: noauto and nofail, swap, an automount that waits for its first use, and on a node that shares its "
        "kernel (a container) entries of devices, which systemd leaves out too. The cluster's shared file systems are "
        "left to shared_fs.",
        does="FATAL, drain after two looks of three; within grace_s of the boot the node only does not take its first "
        "job. What jobs do not need (warn_below) is WARN.",
        codes={
            "FstabNotMounted": "An entry without noauto or nofail is not mounted.",
            "FstabNotUnderstood": "A line of fstab is no entry: what it was to mount is not mounted (WARN).",
            "FstabUnreadable": "fstab or the mount table could not be read (UNKNOWN).",
        },
        source="fstab(5), systemd-fstab-generator(8); NHC and GCM compare fstab with the mounts too.",
    )
    warn_below: tuple[str, ...] = setting(
        ("/boot", "/efi"),
        "Folders at or below which a missing mount is WARN: the boot's own files, which no job reads.",
    )
    grace_s: float = setting(
        300.0, "Seconds after the boot in which a mount may still come: a file server can take minutes."
    )
    interval_s: float = setting(60.0, "Seconds between two looks at the mount table.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = True
    roles: frozenset[Role] = EVERYWHERE
    _read: FileState | None = field(default=None, repr=False)
    _entries: tuple[Entry, ...] = field(default=(), repr=False)
    _bad_lines: tuple[int, ...] = field(default=(), repr=False)

    def run(self, ports: Ports) -> Result:
        """Report entries that are not mounted."""
        host = ports.host
        try:
            self._look_at(host)
            own = [entry for entry in self._entries if self._is_wanted(ports, entry)]
            # Without an entry nothing is read.
            mounted = {mount.path for mount in host.mounts()} if own else set()
        except OSError as error:
            text = f"{error.filename or _PATH}: {error.strerror or error}"
            return Result((unknown(NAME, "FstabUnreadable", text),))
        findings: list[Finding] = [
            warn(NAME, "FstabNotUnderstood", f"line {line} of {_PATH} is no entry", device=f"line {line}")
            for line in self._bad_lines
        ]
        missing = []
        for entry in own:
            if entry.path in mounted or resolved(host, entry.path) in mounted:
                continue
            text = f"{entry.path} is not mounted, {_PATH} has it from {entry.source} ({entry.type})"
            if any(_is_below(entry.path, folder) for folder in self.warn_below):
                findings.append(warn(NAME, "FstabNotMounted", text, device=entry.path))
            else:
                missing.append(fatal(NAME, "FstabNotMounted", text, action=Action.DRAIN, device=entry.path))
        if missing and ports.facts.uptime_s < self.grace_s:
            return Result(tuple(findings), not_ready=f"{missing[0].device} is not mounted yet")
        return Result((*findings, *missing))

    def _look_at(self, host: Host) -> None:
        try:
            state = host.file_state(_PATH)
            if state == self._read:
                return
            text = host.read_text(_PATH, 1 << 20)
        except FileNotFoundError:
            self._read, self._entries, self._bad_lines = None, (), ()
            return
        self._entries, self._bad_lines = parse_fstab(text)
        self._read = state

    def _is_wanted(self, ports: Ports, entry: Entry) -> bool:
        if entry.path in {mount.rstrip("/") for mount in ports.facts.shared_mounts}:
            return False
        return not (entry.source.startswith(_DEVICES) and shares_kernel(ports))


def parse_fstab(text: str) -> tuple[tuple[Entry, ...], tuple[int, ...]]:
    """Return what has to be mounted after a boot, each mount point once, and the numbers of lines that are no entry."""
    found: dict[str, Entry] = {}
    bad = []
    for number, line in enumerate(text.splitlines(), 1):
        words = [_unescaped(word) for word in line.split()]
        if not words or words[0].startswith("#"):
            continue
        source, path, kind, options = (*words, "", "", "")[:4]
        if path in ("none", "swap") or kind in ("swap", "ignore"):
            continue
        if not path.startswith("/") or not kind:
            bad.append(number)
        elif not _BY_CHOICE & set(options.split(",")):
            path = path.rstrip("/") or "/"
            found[path] = Entry(source, path, kind)
    return tuple(found.values()), tuple(bad)


def resolved(host: Host, path: str) -> str:
    """Return a path without symbolic links, as the kernel writes it into the mount table."""
    done, todo = "", [part for part in path.split("/") if part]
    links = 0
    while todo:
        part = todo.pop(0)
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        try:
            target = host.read_link(f"{done}/{part}")
        except OSError:
            done = f"{done}/{part}"
            continue
        links += 1
        if links > _MOST_LINKS:
            return path
        if target.startswith("/"):
            done = ""
        todo = [piece for piece in target.split("/") if piece not in ("", ".")] + todo
    return done or "/"


def _is_below(path: str, folder: str) -> bool:
    return path == folder.rstrip("/") or path.startswith(f"{folder.rstrip('/')}/")


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), word)
