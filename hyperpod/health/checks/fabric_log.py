"""NVIDIA's fabric manager logs no error of an NVSwitch. Its log is followed from where the last look ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import ClassVar

from hyperpod.core.finding import Finding, Severity
from hyperpod.core.node import Role
from hyperpod.health.check import AT_ONCE, WORKERS, About, Damping, Facts, Ports, Result, setting, unknown
from hyperpod.health.fabric_log import NAME, classify_fabric, written_at
from hyperpod.ports.host import FileState, Host

_PART_BYTES = 1 << 18
_MOST_PARTS = 4
_HEAD_BYTES = 64
_MOST = 64
_ABSENT_S = 300.0
_AHEAD = timedelta(seconds=60)
_WORDS = (b"NVSwitch", b"topology mismatch")


@dataclass
class FabricLogCheck:
    """Reads what was added to the log, and keeps what it proves. ``clear`` may be called from another thread."""

    about: ClassVar[About] = About(
        title="The fabric manager logs no error of an NVSwitch",
        reads="What has been added to /var/log/fabricmanager.log since the last look (at the first, its last 256 KiB), "
        "a MiB at most; nothing where there is no such file.",
        means="The fabric manager tells of the same errors of NVSwitches as the kernel log (SXid), and alone of "
        "switches that are missing. The word fatal or non-fatal decides. Lines without a time, of before this boot, or "
        "of the future do not count; that a machine has no NVSwitch is no fault. What the kernel log tells too counts "
        "once, by the kernel's word.",
        does="Fatal errors and a topology that fits no machine: FATAL, REBOOT, at once; they end with the boot, or "
        "by a person's word (hyperpod clear). Others are WARN and end forget_s after the last.",
        codes={
            "SXid<N>": "An error of an NVSwitch, by its number; fatal or WARN as the line says.",
            "TopologyMismatch": "A switch is missing: those that were found fit no known machine.",
            "NoSwitch": "The machine has no NVSwitch: only in the explanation of pasted text.",
            "FabricLogUnreadable": "The log is there and cannot be read (UNKNOWN).",
        },
        source="NVIDIA's fabric manager guide; gpud reads the same log; gpu-operator 610 for machines without "
        "switches.",
    )
    path: str = setting("/var/log/fabricmanager.log", "The log; LOG_FILE_NAME in the fabric manager's configuration.")
    forget_s: float = setting(3600.0, "Seconds after which an error that is not fatal ends, as in the kernel log.")
    interval_s: float = setting(
        60.0, "Seconds between two looks whether the log has changed, one stat each; the kernel tells most at once."
    )
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = AT_ONCE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS
    _state: FileState | None = field(default=None, repr=False)
    _offset: int = field(default=0, repr=False)
    _head: bytes = field(default=b"", repr=False)
    _is_behind: bool = field(default=False, repr=False)
    _next_look: float = field(default=0.0, repr=False)
    _events: dict[tuple[str, str], Finding] = field(default_factory=dict, repr=False)

    def run(self, ports: Ports) -> Result:
        """Take in new lines."""
        host, now = ports.host, ports.host.monotonic()
        if now < self._next_look:
            return Result()
        try:
            state = host.file_state(self.path)
            if state != self._state or self._is_behind:
                self._follow(host, state, ports.facts)
        except FileNotFoundError:
            # Most machines have none; one that is being rotated comes back.
            self._next_look = 0.0 if self._state else now + _ABSENT_S
        except OSError as error:
            text = f"{self.path}: {error.strerror or error}"
            return Result((unknown(NAME, "FabricLogUnreadable", text), *self._open(ports.facts)))
        return Result(self._open(ports.facts))

    def clear(self, code: str, device: str) -> bool:
        """End one finding by a person's word."""
        return self._events.pop((code, device), None) is not None

    def _open(self, facts: Facts) -> tuple[Finding, ...]:
        oldest = facts.now - timedelta(seconds=self.forget_s)
        for key, finding in list(self._events.items()):
            if finding.severity is not Severity.FATAL and finding.since is not None and finding.since < oldest:
                self._events.pop(key, None)
        # When it was last seen is for us; since when it is there, the runner knows.
        found = list(self._events.values())
        return tuple(f if f.severity is Severity.FATAL else replace(f, since=None) for f in found)

    def _follow(self, host: Host, state: FileState, facts: Facts) -> None:
        known = self._state
        head = host.read_part(self.path, 0, _HEAD_BYTES)
        if known is None:
            self._offset = max(0, state.size_bytes - _PART_BYTES)
        elif state.inode != known.inode:
            self._finish_rotated(host, known.inode, facts)
            self._offset = 0
        elif state.size_bytes < self._offset or not head.startswith(self._head):
            # Cut, or written anew in place: with LOG_APPEND_TO_LOG=0 each start does so.
            self._offset = 0
        self._state, self._head = state, head
        self._is_behind = self._read(host, self.path, facts)

    def _finish_rotated(self, host: Host, inode: int, facts: Facts) -> None:
        old = f"{self.path}.1"
        try:
            if host.file_state(old).inode == inode:
                self._read(host, old, facts)
        except OSError:
            return

    def _read(self, host: Host, path: str, facts: Facts) -> bool:
        """Take in what stands behind the offset; return whether there is more."""
        for _ in range(_MOST_PARTS):
            part = host.read_part(path, self._offset, _PART_BYTES)
            whole = part.rfind(b"\n") + 1
            if not whole and len(part) < _PART_BYTES:
                return False
            # A line of this length is none; what is left of it is not looked at as a line either: it has no time.
            whole = whole or len(part)
            self._take(part[:whole], facts)
            self._offset += whole
        return True

    def _take(self, text: bytes, facts: Facts) -> None:
        if not any(word in text for word in _WORDS):
            return
        booted = facts.now - timedelta(seconds=facts.uptime_s)
        for line in text.split(b"\n"):
            if not any(word in line for word in _WORDS):
                continue
            words = line[:1000].decode(errors="replace")
            found, at = classify_fabric(words), written_at(words)
            if found is None or found.severity is Severity.OK or at is None:
                continue
            if not booted <= at <= facts.now + _AHEAD:
                continue
            key = (found.code, found.device)
            known = self._events.pop(key, None)
            if known is not None and known.severity is Severity.FATAL:
                self._events[key] = known
                continue
            self._events[key] = replace(found, since=at, evidence=words[:300])
            self._trim()

    def _trim(self) -> None:
        while len(self._events) > _MOST:
            harmless = (key for key, f in self._events.items() if f.severity is not Severity.FATAL)
            del self._events[next(harmless, next(iter(self._events)))]
