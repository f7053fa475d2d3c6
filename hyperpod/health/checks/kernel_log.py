"""Reads the kernel log and keeps the findings that it proves.

Event driven: the agent calls ``feed`` with raw records as they come. Settings stand in ``Limits``; the severity of
codes may be overridden as for every check (``{"Xid94": "fatal", "PcieFatal": "warn"}``), for sites that know better.

Only records of facility 0 count. Equal lines are counted, not reported again: a finding's message names its count
in steps of ten times, so that 100,000 lines in a minute are five changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from hyperpod.core.finding import Finding, Severity, observed, strongest_action
from hyperpod.health.check import About, setting
from hyperpod.health.kernel import Verdict
from hyperpod.health.kernel_codes import KERNEL_CODES
from hyperpod.health.kernel_events import Judged, KernelEvents
from hyperpod.health.kmsg import Position, parse_record

NAME = "kernel_log"

_NOW_S = 60.0

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Limits:
    """The settings of this check; ``KernelLog`` takes them by their names."""

    forget_s: float = setting(
        3600.0,
        "Seconds without a repeat after which WARN and OK findings end. FATAL ones end with the boot: the machine has "
        "not become better by silence.",
    )
    limit: int = setting(64, "Findings kept at once, so that memory stays flat; the oldest harmless ones go first.")


@dataclass
class _Event:
    finding: Finding
    count: int
    last_at: float
    reported: int = 1


class KernelLog:
    """The kernel log's part of a node's findings. ``jobs`` are those that run here now, as far as is known.

    Args:
        boot_id, instance_id: Stamped on findings; the position of another boot is void.
        booted_at: Start of this boot on the kernel's clock, in seconds.
        wall_clock_zero: The moment that is 0 on the kernel's clock.
        root_devices: Devices below the root file system.
        is_needed: Says of a PCI address whether a job needs what is there; asked only when a fatal error is logged.
    """

    about: ClassVar[About] = About(
        title="What the kernel logs about hardware, drivers and file systems",
        reads="/dev/kmsg from the boot's beginning; only records that the kernel itself wrote (facility 0).",
        means="Drivers say here first what breaks. Words decide, not parts of words: Nonfatal is not Fatal, an SXid is "
        "not an Xid, and a program may be called Xid. Records of an earlier boot never count. A flood of equal lines "
        "is one finding with a count.",
        does="By code: hard facts drain the node at once and ask for a reboot or a replacement; what applications do "
        "(Xid 13, 31, 43, 45, a job out of memory) is evidence and never drains. WARN ends an hour after the last "
        "repeat, FATAL with the boot or with the driver's own word (Xid 154 to None).",
        codes=KERNEL_CODES,
        source="NVIDIA's Xid catalogue and driver sources; the kernel's own sources; our judgement where it is marked.",
    )

    def __init__(
        self,
        *,
        boot_id: str,
        instance_id: str = "",
        booted_at: float = 0.0,
        wall_clock_zero: datetime = _EPOCH,
        root_devices: Collection[str] = (),
        forget_s: float = 3600.0,
        overrides: Mapping[str, str] | None = None,
        limit: int = 64,
        observe_only: bool = False,
        is_needed: Callable[[str], bool] | None = None,
    ) -> None:
        self._instance_id = instance_id
        self._booted_at = booted_at
        self._zero = wall_clock_zero
        self._forget_s = forget_s
        by_code = {code: Severity[word.upper()] for code, word in (overrides or {}).items()}
        self._kernel = KernelEvents(root_devices, by_code, is_needed)
        self._limit = limit
        self._observe_only = observe_only
        self.position = Position(boot_id)
        self.lines = 0
        self.jobs: frozenset[int] = frozenset()
        self._events: dict[tuple[str, str], _Event] = {}

    def feed(self, raw: str, now: float) -> bool:
        """Take one raw record and return whether the findings changed.

        Args:
            raw: The record as /dev/kmsg gives it.
            now: Seconds on the kernel's clock, for records that carry no time.
        """
        record = parse_record(raw)
        if record is None or not self.position.is_new(record, self._booted_at):
            return False
        self.position = self.position.after(record)
        self.lines += 1
        if not record.is_kernels:
            return False
        at = record.at_s or now
        # Which jobs ran while older lines were written is not known.
        self._kernel.jobs = self.jobs if now - at < _NOW_S else frozenset()
        changed = False
        for judged in self._kernel.feed(record.text, at):
            changed = self._take(judged, record.text, at) or changed
        return changed

    def _take(self, judged: Judged, text: str, at: float) -> bool:
        verdict, severity, action = judged.verdict, judged.severity, judged.action
        if verdict.closes:
            return self._close(verdict)
        if verdict.code == "LinkUp":
            return False
        if verdict.code.startswith("HungTask") and verdict.code != "HungTask":
            # The stack has told what it waits for: that says more than the headline before it.
            self._events.pop(("HungTask", ""), None)
        key = (verdict.code, verdict.device)
        event = self._events.get(key)
        if event is None:
            since = self._zero + timedelta(seconds=at)
            finding = Finding(
                NAME,
                verdict.code,
                severity,
                verdict.message,
                action,
                since=since,
                boot_id=self.position.boot_id,
                instance_id=self._instance_id,
                device=verdict.device,
                whose=verdict.whose,
                is_hard=severity is Severity.FATAL,
                evidence=text[:300],
                job_id=verdict.job_id,
            )
            self._events[key] = _Event(finding, verdict.count, at)
            self._decide(verdict)
            self._trim()
            return True
        event.count += verdict.count
        event.last_at = at
        is_worse = (severity is Severity.FATAL) and event.finding.severity is not Severity.FATAL
        is_new_word = verdict.code == "Xid154" and event.finding.message.partition(" (seen ")[0] != verdict.message
        is_step = event.count >= event.reported * 10
        asked = replace(event.finding, severity=severity, action=action)
        is_stronger = action is not event.finding.action and strongest_action((event.finding, asked)) is action
        if not (is_worse or is_new_word or is_step or is_stronger or severity > event.finding.severity):
            return False
        if is_step:
            event.reported = 10 ** (len(str(event.count)) - 1)
        message = verdict.message + (f" (seen {event.reported} times)" if event.reported > 1 else "")
        if event.finding.severity is Severity.FATAL and not is_new_word and not is_stronger:
            severity, action = event.finding.severity, event.finding.action
        event.finding = replace(
            event.finding, severity=severity, action=action, message=message, is_hard=severity is Severity.FATAL
        )
        self._decide(verdict)
        return True

    def _decide(self, verdict: Verdict) -> None:
        """The driver's own recovery action (Xid 154) outweighs the table for the same GPU."""
        if verdict.code != "Xid154" or verdict.severity is not Severity.FATAL:
            return
        for (code, device), event in self._events.items():
            is_its = device.partition(" ")[0] == verdict.device
            if is_its and code.startswith("Xid") and event.finding.severity is Severity.FATAL:
                event.finding = replace(event.finding, action=verdict.action)

    def _close(self, verdict: Verdict) -> bool:
        # A GPU's links ("0000:9b:00.0 link 3") end with the GPU's trouble.
        closed = [
            k
            for k in self._events
            if (k[1] == verdict.device or k[1].startswith(f"{verdict.device} link "))
            and k[0].startswith(verdict.closes)
        ]
        for key in closed:
            del self._events[key]
        return bool(closed)

    def _trim(self) -> None:
        while len(self._events) > self._limit:
            rank = {Severity.OK: 0, Severity.WARN: 1, Severity.UNKNOWN: 2, Severity.FATAL: 3}
            key = min(self._events, key=lambda k: (rank[self._events[k].finding.severity], self._events[k].last_at))
            del self._events[key]

    def overrun(self, now: float) -> bool:
        """The kernel overwrote records before they were read: what they said is unknown."""
        verdict = Verdict("LinesLost", Severity.UNKNOWN, "the kernel wrote faster than we read; lines were lost")
        return self._take(Judged(verdict, verdict.severity, verdict.action), "", now)

    def unreadable(self, why: str, now: float) -> bool:
        """The log cannot be read at all."""
        verdict = Verdict("LogUnreadable", Severity.UNKNOWN, why)
        return self._take(Judged(verdict, verdict.severity, verdict.action), "", now)

    def readable(self) -> bool:
        """The log can be read again."""
        return self._events.pop(("LogUnreadable", ""), None) is not None

    def forget(self, now: float) -> bool:
        """End harmless findings that have not been repeated; return whether there were some."""
        old = [
            key
            for key, event in self._events.items()
            if event.finding.severity is not Severity.FATAL and now - event.last_at > self._forget_s
        ]
        for key in old:
            del self._events[key]
        return bool(old)

    def clear(self, code: str, device: str = "") -> bool:
        """End one finding by a person's word; a PCI address may be given without its function, as NVIDIA writes it."""
        named = next((d for d in (device, f"{device}.0") if (code, d) in self._events), device)
        return self._events.pop((code, named), None) is not None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every open finding, oldest first."""
        found = tuple(event.finding for event in self._events.values())
        if self._observe_only:
            return tuple(observed(f) for f in found)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return what has to outlive a restart of the agent: position and open findings."""
        return {
            "boot_id": self.position.boot_id,
            "sequence": self.position.sequence,
            "at_s": self.position.at_s,
            "events": [
                {"finding": e.finding.to_dict(), "count": e.count, "last_at": e.last_at, "reported": e.reported}
                for e in self._events.values()
            ],
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take up what ``to_dict`` gave; the state of another boot is ignored.

        Raises:
            KeyError, ValueError, TypeError: if it is not such a state.
        """
        if data["boot_id"] != self.position.boot_id:
            return
        events = {}
        for item in data["events"]:
            finding = Finding.from_dict(item["finding"])
            event = _Event(finding, int(item["count"]), float(item["last_at"]), int(item["reported"]))
            events[(finding.code, finding.device)] = event
        self.position = Position(self.position.boot_id, int(data["sequence"]), float(data["at_s"]))
        self._events = events

    def restart_file(self) -> None:
        """The file that stands in for /dev/kmsg was replaced or cut: its numbers begin anew, its time goes on."""
        if self.position.at_s:
            # The tolerance of Position.is_new is for the boot's beginning; here the last time read is exact.
            self._booted_at = max(self._booted_at, self.position.at_s + 0.500001)
        self.position = replace(self.position, sequence=-1)
