"""From lines of the kernel log to events: what belongs together, what must be seen twice, what comes back. Pure.

Owns everything that needs more than one line. Both the agent and the explanation of pasted text use it, so that they
say the same. Time is given by the caller; a text without times proves no order of minutes, so nothing that needs a
window is counted there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from hyperpod.core.finding import Action, Severity, Whose
from hyperpod.health.kernel import DAY_S, GPU_NAMED, Verdict, classify
from hyperpod.health.pci_name import device_of

_K = TypeVar("_K")
_V = TypeVar("_V")

AGAIN_QUIET_S = 180.0
"""Lines of one fault come in bursts; after this long without one, the next is a second event."""

_ONE_EVENT_S = 5.0
_ONE_EVENT_LINES = 6
"""Lines that lie this close are one event: by time, or by position where the text has no times."""

_STACK_S = 2.0
_STACK_LINES = 40
"""A hung task's stack follows its headline this closely."""

_STACK_MODULES = {
    **dict.fromkeys(("[nvidia]", "[nvidia_uvm]"), "Nvidia"),
    **dict.fromkeys(("[lustre]", "[ptlrpc]", "[osc]", "[mdc]", "[obdclass]"), "Lustre"),
    **dict.fromkeys(("[nfs]", "[nfsv3]", "[nfsv4]", "[sunrpc]"), "Nfs"),
}

_NAPI_RECORDS = 150
"""A soft lockup within the network driver shows itself this many records later at most."""

_MOST = 512
"""Devices and codes remembered at once; the oldest go first."""


@dataclass(frozen=True)
class Judged:
    """One event: its verdict as the line gives it, and what holds of it at this point.

    ``note`` says what was counted, and what would change it.
    """

    verdict: Verdict
    severity: Severity
    action: Action
    note: str = ""


@dataclass
class _Seen:
    at: float | None
    line: int
    boot: int
    first_at: float | None
    is_again: bool = False


class KernelEvents:
    """The memory that judging one line after the other needs. It stays small whatever is fed.

    ``jobs`` are those that run on the node while lines are fed; empty while that is not known.

    Args:
        root_devices: Devices below the root file system.
        overrides: Severity by code, for sites that know better.
        is_needed: Says of a PCI address whether a job needs what is there; None: everything is needed.
    """

    def __init__(
        self,
        root_devices: Collection[str] = (),
        overrides: Mapping[str, Severity] | None = None,
        is_needed: Callable[[str], bool] | None = None,
    ) -> None:
        self._is_needed = is_needed
        self.root_devices = tuple(root_devices)
        self.jobs: frozenset[int] = frozenset()
        self._failed: OrderedDict[tuple[str, str, str], tuple[float, frozenset[int]]] = OrderedDict()
        self._overrides = dict(overrides or {})
        self._boot = 0
        self._windows: OrderedDict[tuple[str, str], deque[tuple[float, int]]] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()
        self._merged: OrderedDict[str, tuple[str, float | None, int]] = OrderedDict()
        self._down: OrderedDict[str, float] = OrderedDict()
        self._decided: OrderedDict[str, tuple[float | None, int, Action]] = OrderedDict()
        self._gpu: tuple[str, float | None, int] = ("", None, 0)
        self._hung: tuple[str, float | None, int] = ("", None, 0)
        self._lockup_line = -_NAPI_RECORDS - 1
        self._bert: tuple[float | None, int] | None = None
        self._lines = 0
        self._memory: tuple[str, tuple[Verdict, ...]] = ("", ())

    def new_boot(self) -> None:
        """The machine has booted: what was counted is over, what comes back now has survived a reboot."""
        self._boot += 1
        self._windows.clear()
        self._merged.clear()
        self._down.clear()
        self._decided.clear()
        self._gpu, self._hung, self._bert = ("", None, 0), ("", None, 0), None
        self._lockup_line = -_NAPI_RECORDS - 1

    def feed(self, text: str, at: float | None) -> list[Judged]:
        """Take one record of the kernel and return the events that it completes.

        Args:
            text: The record's text; one with line breaks is several lines.
            at: Seconds on any clock that goes on from record to record; None when the text has no times.
        """
        out: list[Judged] = []
        for line in text.split("\n") if "\n" in text else (text,):
            self._lines += 1
            out += self._one(line.strip() if line.startswith((" ", "\t")) else line, at)
        return out

    def is_stack_line(self) -> bool:
        """True while lines of a stack are expected, which say nothing by themselves."""
        return bool(self._hung[0]) and self._lines - self._hung[2] <= _STACK_LINES

    def _one(self, line: str, at: float | None) -> list[Judged]:
        out = self._stack(line, at)
        if line.startswith("BERT: Error records from previous boot"):
            self._bert = (at, self._lines)
        for verdict in self._classified(line):
            judged = self._judge(self._completed(verdict, line, at), at)
            if judged is not None:
                out.append(judged)
            if verdict.unit and self.jobs and at is not None:
                out += self._under_another_job(verdict, at)
        return out

    def _under_another_job(self, verdict: Verdict, at: float) -> list[Judged]:
        """Say when the same unit of a GPU fails under a second job: then it may be no program's fault."""
        key = (verdict.code, verdict.device, verdict.unit)
        then, before = self._failed.get(key, (at, self.jobs))
        is_other = not before & self.jobs and 0 <= at - then <= DAY_S
        if not is_other and at - then <= DAY_S and before & self.jobs:
            # The first job stands until it is known to be another, or too long ago.
            _put(self._failed, key, (at, before & self.jobs))
            return []
        _put(self._failed, key, (at, self.jobs))
        if not is_other:
            return []
        where = f"GPU {verdict.device}" + ("" if verdict.unit == verdict.device else f", {verdict.unit}")
        jobs = f"{_named(before)}, now {_named(self.jobs)}"
        text = f"{where}: Xid {verdict.code[3:]} again within 24 h under another job ({jobs}): the GPU is suspect"
        suspect = Verdict("GpuSuspect", Severity.WARN, text, device=verdict.device)
        return [Judged(suspect, suspect.severity, suspect.action)]

    def _classified(self, text: str) -> tuple[Verdict, ...]:
        # Floods repeat one line; it is understood once.
        if text != self._memory[0]:
            self._memory = (text, classify(text, root_devices=self.root_devices))
        return self._memory[1]

    def _stack(self, line: str, at: float | None) -> list[Judged]:
        """Remember lines that open an event of several records, and read a stack."""
        named = GPU_NAMED.match(line)
        if named:
            self._gpu = (device_of(named["pci"]), at, self._lines)
        if self._lines - self._lockup_line <= _NAPI_RECORDS and "mlx5" in line and "napi" in line:
            self._lockup_line = -_NAPI_RECORDS - 1
            message = "a CPU is locked up in the network card's driver"
            verdict = Verdict("SoftLockupNetwork", Severity.FATAL, message, Action.REBOOT)
            return [Judged(verdict, verdict.severity, verdict.action)]
        if self._hung[0] and self._is_close(at, self._hung[1], self._hung[2], _STACK_S, _STACK_LINES):
            for module, code in _STACK_MODULES.items():
                if module in line:
                    # What waits for a file server is the server's, whichever node the task is on.
                    whose = Whose.NODE if code == "Nvidia" else Whose.SITE
                    text = f"{self._hung[0]}, in the module {module.strip('[]')}"
                    verdict = Verdict(f"HungTask{code}", Severity.WARN, text, whose=whose)
                    self._hung = ("", None, 0)
                    return [Judged(verdict, Severity.WARN, Action.NONE)]
        return []

    def _is_close(self, at: float | None, then: float | None, line: int, within_s: float, lines: int) -> bool:
        if at is not None and then is not None:
            return -1.0 <= at - then <= within_s
        return self._lines - line <= lines

    def _completed(self, verdict: Verdict, line: str, at: float | None) -> Verdict:
        if verdict.code == "HungTask":
            self._hung = (verdict.message, at, self._lines)
        if verdict.code == "SoftLockup":
            self._lockup_line = self._lines
        if verdict.code == "Xid79" and not verdict.device and self._gpu[0]:
            device, then, number = self._gpu
            if self._is_close(at, then, number, _ONE_EVENT_S, _ONE_EVENT_LINES):
                verdict = replace(verdict, device=device, message=f"GPU {device} has fallen off the bus")
        is_before = self._bert is not None and self._is_close(at, *self._bert, _ONE_EVENT_S, _STACK_LINES)
        if is_before and verdict.code.startswith("HardwareError") and not line.startswith("{"):
            message = "the firmware reports a hardware error of the boot before"
            verdict = Verdict("HardwareErrorBefore", Severity.WARN, message)
        if verdict.code == "PcieFatal" and self._is_needed is not None and not self._is_needed(verdict.device):
            message = f"{verdict.message}, a port with nothing below it that a job needs"
            verdict = Verdict("PcieUncorrected", Severity.WARN, message, device=verdict.device)
        override = self._overrides.get(verdict.code)
        if override is not None:
            action = verdict.action if override is Severity.FATAL else Action.NONE
            if override is Severity.FATAL and action is Action.NONE:
                action = Action.DRAIN
            verdict = replace(verdict, severity=override, action=action, times=1, again=Action.NONE)
        gpu = verdict.device.partition(" ")[0]
        decided = self._decided.get(gpu)
        if (
            decided
            and verdict.severity is Severity.FATAL
            and verdict.code.startswith("Xid")
            and verdict.code != "Xid154"
        ):
            then, number, action = decided
            if self._is_close(at, then, number, _ONE_EVENT_S, _ONE_EVENT_LINES):
                verdict = replace(verdict, action=action, again=Action.NONE)
        return verdict

    def _judge(self, verdict: Verdict, at: float | None) -> Judged | None:
        key = (verdict.code, verdict.device)
        if verdict.merges and self._is_merged(verdict, at):
            return None
        if verdict.code == "Xid154":
            self._decide(verdict, at)
        if verdict.code in ("LinkDown", "LinkUp"):
            return self._linked(verdict, at)
        note = verdict.unless
        if verdict.times > 1:
            severity, action, counted = self._weighed(verdict, key, at)
            return Judged(verdict, severity, action, "; ".join(filter(None, (counted, note if counted else ""))))
        if verdict.again is not Action.NONE and verdict.severity is Severity.FATAL:
            action, again = self._came_back(verdict, key, at)
            return Judged(verdict, verdict.severity, action, "; ".join(filter(None, (again, note))))
        return Judged(verdict, verdict.severity, verdict.action, note)

    def _is_merged(self, verdict: Verdict, at: float | None) -> bool:
        """True when the line tells once more of an event that was told of just before."""
        before = self._merged.get(verdict.merges)
        is_same = before is not None and (
            before[0] == verdict.device or not verdict.device or (not before[0] and verdict.merges != "memcg")
        )
        if before is not None and is_same and self._is_close(at, before[1], before[2], _ONE_EVENT_S, _ONE_EVENT_LINES):
            self._merged[verdict.merges] = (before[0] or verdict.device, at, self._lines)
            return True
        _put(self._merged, verdict.merges, (verdict.device, at, self._lines))
        return False

    def _weighed(self, verdict: Verdict, key: tuple[str, str], at: float | None) -> tuple[Severity, Action, str]:
        """Apply the verdict's rate; the note is empty when it was reached."""
        rule = f"counts from {verdict.times} within {_span(verdict.within_s)} on"
        if at is None:
            if verdict.count >= verdict.times:
                return verdict.severity, verdict.action, ""
            return verdict.below, Action.NONE, f"{rule}; the text has no times, so this one stands alone"
        window = self._windows.get(key)
        if window is None:
            window = deque(maxlen=verdict.times)
            _put(self._windows, key, window)
        if window and verdict.fold_s and 0 <= at - window[-1][0] <= verdict.fold_s:
            window[-1] = (at, window[-1][1])
        else:
            window.append((at, verdict.count))
        while window and not -1.0 <= at - window[0][0] <= verdict.within_s:
            window.popleft()
        total = sum(count for _, count in window)
        if total >= verdict.times:
            return verdict.severity, verdict.action, ""
        return verdict.below, Action.NONE, f"{rule}, this is number {total}"

    def _came_back(self, verdict: Verdict, key: tuple[str, str], at: float | None) -> tuple[Action, str]:
        """A reboot is tried once: what comes back within a day, or after a boot, asks for more."""
        seen = self._seen.get(key)
        word = verdict.again.value.lower()
        if seen is None:
            _put(self._seen, key, _Seen(at, self._lines, self._boot, at))
            return verdict.action, f"{word} when it comes a second time within 24 h"
        has_times = at is not None and seen.at is not None
        gap = (at or 0.0) - (seen.at or 0.0)
        is_recent = not has_times or gap <= DAY_S
        is_second = seen.boot != self._boot or (has_times and (gap > AGAIN_QUIET_S or gap < -1.0))
        if not is_recent:
            seen.is_again = False
        elif is_second:
            seen.is_again = True
        seen.at, seen.line, seen.boot = at, self._lines, self._boot
        if seen.is_again:
            return verdict.again, "the second time within 24 h"
        return verdict.action, f"{word} when it comes a second time within 24 h"

    def _linked(self, verdict: Verdict, at: float | None) -> Judged:
        device = verdict.device
        if verdict.code == "LinkDown":
            severity, action, note = self._weighed(verdict, ("LinkDown", device), at)
            if at is not None:
                _put(self._down, device, at)
            note = note and f"an outage of 30 s, or two within 5 min, is a flap; {note}"
            return Judged(verdict, severity, action, note)
        since = self._down.pop(device, None)
        if since is not None and at is not None and at - since >= 30.0:
            verdict = replace(verdict, code="LinkFlap", severity=Severity.WARN)
            verdict = replace(verdict, message=f"the link of {device} was down for {at - since:.0f} s")
            return Judged(verdict, Severity.WARN, Action.NONE)
        return Judged(verdict, Severity.OK, Action.NONE)

    def _decide(self, verdict: Verdict, at: float | None) -> None:
        """The driver's own recovery action (Xid 154) outweighs the table for the same GPU."""
        if verdict.severity is Severity.FATAL:
            _put(self._decided, verdict.device, (at, self._lines, verdict.action))
        elif verdict.severity is Severity.OK:
            self._decided.pop(verdict.device, None)
            for known in [k for k in self._windows if k[0].startswith("Xid") and k[1].startswith(verdict.device)]:
                del self._windows[known]


def _put(memory: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > _MOST:
        memory.popitem(last=False)


def _named(jobs: Collection[int]) -> str:
    return ", ".join(str(job) for job in sorted(jobs)[:4])


def _span(seconds: float) -> str:
    for size, one, many in ((DAY_S, "24 h", "days"), (3600.0, "an hour", "hours"), (60.0, "a minute", "minutes")):
        if seconds == size:
            return one
        if seconds > size and seconds % size == 0:
            return f"{seconds / size:.0f} {many}"
    return f"{seconds:.0f} s"
