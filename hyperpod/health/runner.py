"""The runner: when each check runs, how long it may take, and which of its findings count.

Owns rhythm, deadlines and damping for all checks, so that no check has any of it. It starts nothing by itself:
``due`` says what to start, ``finished`` takes the results, ``tick`` finds runs that hang. Time is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hyperpod.core.finding import Action, Finding, Severity, is_announced, observed
from hyperpod.health.check import Check, Result

Key = tuple[str, str, str]

CHECK_HANGS = "CheckHangs"
CHECK_FAILED = "CheckFailed"

_FAST_S = 1.0
"""Basic checks that have not passed yet are repeated this often, so that a booting node is ready soon."""

_EARLY = 0.1
"""A check may start by this share of its interval before its time, together with others."""

_SPREAD = 0.618034
"""First runs are spread over each check's interval by this share, so that they do not all fall on one moment."""


@dataclass
class _Slot:
    check: Check
    observe_only: bool
    next_at: float
    started_at: float | None = None
    ran_at: float = -1e9
    run_id: int = 0
    hangs: bool = False
    runs: int = 0
    history: deque[frozenset[Key]] = field(default_factory=deque)
    open: dict[Key, Finding] = field(default_factory=dict)
    last: Result | None = None
    inventory: Mapping[str, str] = field(default_factory=dict)
    has_passed: bool = False

    @property
    def early_s(self) -> float:
        """So much before its time it may start when others do."""
        return _EARLY * self.check.interval_s if self.runs else 0.0


@dataclass(frozen=True)
class CheckState:
    """What the runner knows of one check, for people."""

    name: str
    runs: int
    is_running: bool
    hangs: bool
    last_problem: str


class Runner:
    """Schedules checks and keeps the set of their open findings.

    Args:
        checks: The checks of this node.
        observe_only: Names of checks whose findings may not take the node out of service.
        overrides: Severity by code, by check, in place of the checks' own.
        boot_id, instance_id: Stamped on every finding.
        start: Monotonic time at which the agent started.
    """

    def __init__(
        self,
        checks: Sequence[Check],
        *,
        observe_only: Collection[str] = (),
        overrides: Mapping[str, Mapping[str, Severity]] | None = None,
        boot_id: str = "",
        instance_id: str = "",
        start: float = 0.0,
    ) -> None:
        self._boot_id = boot_id
        self._instance_id = instance_id
        self._overrides = overrides or {}
        self._slots: dict[str, _Slot] = {}
        self._extra: frozenset[str] = frozenset()
        self._forget()
        for index, check in enumerate(checks):
            self._add(index, check, check.name in observe_only, start)

    def _forget(self) -> None:
        """Some slot has changed: work out anew what is asked every second and seldom changes."""
        self._found: tuple[Finding, ...] | None = None
        self._counted: dict[str, str] | None = None
        self._deadline: float | None = None

    def _add(self, index: int, check: Check, observe_only: bool, start: float) -> None:
        offset = 0.0 if check.is_basic else (index * _SPREAD % 1.0) * check.interval_s
        slot = _Slot(check, observe_only, start + offset)
        slot.history = deque(maxlen=check.damping.of)
        self._slots[check.name] = slot
        self._forget()

    def set_extra(self, checks: Sequence[Check], observe_only: Collection[str], now: float) -> bool:
        """Take these as the checks that come and go beside the fixed ones; return whether open findings changed.

        One that is as before keeps its history and its open findings.
        """
        changed = False
        wanted = {c.name: c for c in checks if c.name in self._extra or c.name not in self._slots}
        for name in self._extra:
            slot = self._slots[name]
            is_same = slot.check == wanted.get(name) and slot.observe_only == (name in observe_only)
            if not is_same:
                changed = changed or bool(slot.open)
                del self._slots[name]
                self._forget()
        for index, (name, check) in enumerate(wanted.items()):
            if name not in self._slots:
                self._add(index, check, name in observe_only, now)
        self._extra = frozenset(wanted)
        return changed

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all checks, in the registry's order."""
        return tuple(self._slots)

    @property
    def quick_names(self) -> tuple[str, ...]:
        """Names of the checks that run when a job has failed."""
        return tuple(name for name, slot in self._slots.items() if slot.check.is_quick)

    @property
    def job_start_names(self) -> tuple[str, ...]:
        """Names of the checks that run when a job's first task comes to this node."""
        return tuple(name for name, slot in self._slots.items() if getattr(slot.check, "is_job_start", False))

    @property
    def job_end_names(self) -> tuple[str, ...]:
        """Names of the checks that run when a job's last step has left this node."""
        return tuple(name for name, slot in self._slots.items() if getattr(slot.check, "is_job_end", False))

    def due(self, now: float) -> tuple[tuple[Check, int], ...]:
        """Return the checks to start now, each with the id of its run, and count them as started.

        A check whose last run has not come back is never started a second time.
        """
        if self._is_early(now):
            return ()
        slots = self._slots.values()
        if any(s.next_at <= now and s.started_at is None for s in slots):
            # What would be due soon goes with it: an agent that is awake does more work for its money.
            return self._start([s for s in slots if s.next_at <= now + s.early_s], now)
        return ()

    def force(self, names: Collection[str], now: float, *, gap_s: float = 0.0) -> tuple[tuple[Check, int], ...]:
        """Start the named checks now, whatever their rhythm; those that are running already are left out.

        With ``gap_s`` those too that were started less than this time ago.
        """
        slots = [s for name, s in self._slots.items() if name in names]
        return self._start([s for s in slots if gap_s <= 0 or now - s.ran_at >= gap_s], now)

    def _start(self, slots: Sequence[_Slot], now: float) -> tuple[tuple[Check, int], ...]:
        started = []
        for slot in slots:
            if slot.started_at is not None:
                continue
            self._forget()
            slot.run_id += 1
            slot.started_at = slot.ran_at = now
            is_waiting = slot.check.is_basic and not slot.has_passed
            slot.next_at = now + (min(_FAST_S, slot.check.interval_s) if is_waiting else slot.check.interval_s)
            started.append((slot.check, slot.run_id))
        return tuple(started)

    def finished(self, name: str, run_id: int, result: Result | BaseException, now: float, at: datetime) -> bool:
        """Take a run's result and return whether the open findings changed.

        An exception is UNKNOWN: the check could not tell, which neither opens nor closes its other findings.
        """
        slot = self._slots.get(name)
        if slot is None or slot.started_at is None or run_id != slot.run_id:
            return False
        self._forget()
        slot.started_at = None
        slot.runs += 1
        before = dict(slot.open)
        if slot.hangs:
            slot.hangs = False
            slot.open.pop((name, CHECK_HANGS, ""), None)
            slot.next_at = min(slot.next_at, now + _FAST_S)
        if isinstance(result, BaseException):
            message = f"the check {name} failed: {type(result).__name__}: {result}"
            result = Result((Finding(name, CHECK_FAILED, Severity.UNKNOWN, message[:300]),))
        else:
            result = self._overridden(name, result)
            # A check that is only observed must not keep a node from its first job either.
            why = result.not_ready if slot.observe_only else result.why_not_ready
            if not slot.has_passed and not why:
                slot.has_passed = True
                if slot.check.is_basic:
                    slot.next_at = now + slot.check.interval_s
        slot.last = result
        if not any(f.severity is Severity.UNKNOWN for f in result.findings):
            # A check that could not tell has counted nothing: what it saw last still holds.
            slot.inventory = result.inventory
        self._damp(slot, result, at)
        return before != slot.open

    def _overridden(self, name: str, result: Result) -> Result:
        words = self._overrides.get(name)
        if not words:
            return result
        return replace(result, findings=tuple(overridden(f, words.get(f.code)) for f in result.findings))

    def _damp(self, slot: _Slot, result: Result, at: datetime) -> None:
        present = {f.key: f for f in result.findings}
        slot.history.append(frozenset(present))
        # Not being able to look at one part says nothing about the others.
        blind = {f.device for f in result.findings if f.severity is Severity.UNKNOWN}
        damping = slot.check.damping
        for key, finding in present.items():
            seen = sum(key in run for run in slot.history)
            # UNKNOWN is shown at once: it harms nobody, and hiding it would look like health.
            counts_at_once = finding.is_hard or finding.severity is Severity.UNKNOWN
            if key in slot.open or counts_at_once or seen >= damping.needed:
                slot.open[key] = self._stamped(finding, slot, at)
        for key in [k for k in slot.open if k not in present]:
            if slot.open[key].severity is Severity.UNKNOWN:
                del slot.open[key]
                continue
            recent = list(slot.history)[-damping.needed :]
            is_gone = len(recent) >= damping.needed and not any(key in run for run in recent)
            if is_gone and not blind & {"", key[2]}:
                del slot.open[key]

    def _stamped(self, finding: Finding, slot: _Slot, at: datetime) -> Finding:
        known = slot.open.get(finding.key)
        since = known.since if known is not None else finding.since or at
        if slot.observe_only:
            finding = observed(finding)
        return replace(finding, since=since, boot_id=self._boot_id, instance_id=self._instance_id)

    def tick(self, now: float, at: datetime) -> bool:
        """Report runs that are past their deadline and return whether the open findings changed."""
        if self._is_early(now):
            return False
        changed = False
        for slot in self._slots.values():
            if slot.started_at is None or slot.hangs or now - slot.started_at <= slot.check.deadline_s:
                continue
            slot.hangs = changed = True
            self._forget()
            finding = self._hanging(slot, now)
            slot.open[finding.key] = self._stamped(finding, slot, at)
            slot.last = Result((finding,))
        return changed

    def _hanging(self, slot: _Slot, now: float) -> Finding:
        name = slot.check.name
        took = now - (slot.started_at or now)
        message = f"the check {name} does not come back (started {took:.0f} s ago, at most {slot.check.deadline_s:g} s)"
        return Finding(name, CHECK_HANGS, Severity.UNKNOWN, message)

    def findings(self) -> tuple[Finding, ...]:
        """Return every open finding, in the registry's order."""
        if self._found is None:
            self._found = tuple(f for slot in self._slots.values() for f in slot.open.values())
        return self._found

    def clear(self, code: str, device: str) -> bool:
        """End findings by a person's word, of checks that cannot see for themselves that something is over."""
        was_open = False
        for slot in self._slots.values():
            clear = getattr(slot.check, "clear", None)
            if clear is not None and clear(code, device):
                slot.open.pop((slot.check.name, code, device), None)
                slot.history.clear()
                self._forget()
                was_open = True
        return was_open

    def inventory(self) -> dict[str, str] | None:
        """Return what all checks have counted, in words that can be compared between machines of a group.

        None until each has run once: after the agent's restart half an inventory would look like a loss.
        """
        if self._counted is None:
            if any(slot.runs == 0 and not slot.hangs for name, slot in self._slots.items() if name not in self._extra):
                return None
            self._counted = {key: value for slot in self._slots.values() for key, value in slot.inventory.items()}
        return self._counted

    def suspicions(self, names: Collection[str]) -> tuple[Finding, ...]:
        """Return what the last runs of these checks saw that damping has not opened yet."""
        return tuple(
            replace(
                observed(f) if slot.observe_only else f,
                boot_id=self._boot_id,
                instance_id=self._instance_id,
            )
            for name, slot in self._slots.items()
            if name in names and slot.last is not None
            for f in slot.last.findings
            if f.key not in slot.open
        )

    def running(self, names: Collection[str]) -> tuple[str, ...]:
        """Return those of the named checks whose run has not come back."""
        return tuple(n for n, slot in self._slots.items() if n in names and slot.started_at is not None)

    def why_not_ready(self) -> str:
        """Return why the node must not take its first job of this boot; empty when every basic check has passed."""
        for name, slot in self._slots.items():
            if not slot.check.is_basic or slot.has_passed:
                continue
            if slot.last is None:
                return f"the check {name} has not run yet"
            return slot.last.why_not_ready
        return ""

    def next_deadline(self) -> float | None:
        """Return the next moment at which ``due`` or ``tick`` has something to do; None without checks."""
        if self._deadline is None:
            times = [
                slot.next_at if slot.started_at is None else slot.started_at + slot.check.deadline_s + 0.001
                for slot in self._slots.values()
                if not slot.hangs
            ]
            self._deadline = min(times, default=None)
        return self._deadline

    def _is_early(self, now: float) -> bool:
        deadline = self.next_deadline()
        return deadline is not None and now < deadline

    def states(self) -> tuple[CheckState, ...]:
        """Return what is known of each check, for ``hyperpod health``."""
        return tuple(
            CheckState(
                name=name,
                runs=slot.runs,
                is_running=slot.started_at is not None,
                hangs=slot.hangs,
                last_problem=slot.last.why_not_ready if slot.last else "",
            )
            for name, slot in self._slots.items()
        )


def overridden(finding: Finding, severity: Severity | None) -> Finding:
    """Return a finding with the severity that the site gives to its code. UNKNOWN stays: nothing was seen."""
    if severity is None or finding.severity is Severity.UNKNOWN:
        return finding
    if finding.severity is severity and not is_announced(finding):
        return finding
    action = Action.NONE
    if severity is Severity.FATAL:
        action = finding.action if finding.action is not Action.NONE else Action.DRAIN
    return replace(finding, severity=severity, action=action)
