"""What lines of a log mean: the kernel's by the agent's own rules, and a few of programs. Pure: lines in, records out.

Only what the kernel wrote counts. A line that looks like the kernel's and was written by a program is shown as ``ok``
with that reason, so that nobody wonders why it did not count.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace

from hyperpod.core.finding import Action, Severity
from hyperpod.health.explain_neuron import NeuronExplainer
from hyperpod.health.explain_slurm import SlurmExplainer
from hyperpod.health.fabric_log import classify_fabric, is_fabric_line
from hyperpod.health.kernel import classify, explain_benign
from hyperpod.health.kernel_events import Judged, KernelEvents
from hyperpod.health.log_lines import LogLine, Writer
from hyperpod.health.record import Record, Word, sentence, word_of

CHECK = "kernel_log"
_MOST_HOSTS = 64
_CLOCK_BACK_S = 60.0
_MOST_BOOTS = 4096
_HALF_A_YEAR_S = 183 * 86400.0

USUAL_ROOTS = (
    *(f"{disk}{part}" for disk in ("sda", "vda", "xvda") for part in ("", *range(1, 10))),
    *(f"nvme0n1{part}" for part in ("", *(f"p{n}" for n in range(1, 10)))),
    "dm-0",
)
"""Where the root file system is on nearly every machine; the agent knows, a text does not say."""

_ROOT = re.compile(r"\bKernel command line: .*\broot=/dev/(?P<dev>[\w/-]+)")
_BOOT = re.compile(r"^-- (?:Boot (?P<boot>[0-9a-f]{32})|Reboot) --$")
_FABRIC_PROGRAMS = frozenset({"nv-fabricmanager", "nvidia-fabricmanager"})

KERNELISH = re.compile(
    r"^(?:\[ *\d+\.\d+\] )?(?:Linux version \d|NVRM|Xid \(PCI:|nvidia|mlx5_core |EXT4-fs|XFS \(|BTRFS|EDAC |mce: |"
    r"pcieport |"
    r"(?:\{\d+\})?\[Hardware Error\]|watchdog: |NMI |INFO: (?:task|rcu)|rcu: |BUG: |Oops|general protection|"
    r"Kernel panic|Unable to handle kernel|Internal error: |Aborting journal|NFS: |"
    r"Out of memory: |Memory cgroup|oom-kill:|Lustre|nfs: |lockd: |efa |ena |nvme |md[/:]|neuron:|"
    r"NEURON_HW_ERR|blk_update|print_req|I/O error, dev|Buffer I/O|critical medium|NETDEV|Memory failure|BERT: |ata\d|"
    r"[\w./-]+\[\d+\]: segfault|Call Trace|RIP: |Code: |Modules linked|CPU: \d|Hardware name: |"
    r" *(?:\? )?[\w.]+\+0x[0-9a-f]+|[\w-]+ [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)"
)
"""How lines of the kernel begin that say something of health."""


@dataclass
class _Log:
    """What is remembered of one log: of one host, with one kind of time.

    ``number`` is that of its present boot; ``order`` is above 0 while times rise, below while they fall.
    """

    events: KernelEvents
    number: int
    boot: str = ""
    last_at: float | None = None
    order: int = 0


def of_the_past(record: Record, later: int) -> Record:
    """Return the record of a line that stands in a boot before another one, which begins in the line ``later``."""
    if record.verdict is Word.OK:
        return record
    reason = f"of an earlier boot, line {later} shows a later one: does not count"
    return replace(record, verdict=Word.OK, reason=sentence(reason, f"it says: {record.reason}"))


class LogExplainer:
    """Explains lines of logs.

    ``over`` holds the boots that were found to be of the past since somebody last emptied it: the number in
    ``Record.boot``, and the line that begins a later one.

    Args:
        boot_id: Only lines of this boot count, where the text says of which boot a line is.
        assume_kernel: Lines without any prefix were written by the kernel.
        root_devices: Devices below the root file system; empty: the usual ones.
        neuron: Explains statuses of the Neuron runtime, and knows whose counters rose.
        slurm: Explains lines of Slurm's logs.
    """

    def __init__(
        self,
        *,
        boot_id: str = "",
        assume_kernel: bool = False,
        root_devices: Collection[str] = (),
        neuron: NeuronExplainer | None = None,
        slurm: SlurmExplainer | None = None,
    ) -> None:
        self._boot_id = boot_id.replace("-", "").lower()
        self.assume_kernel = assume_kernel
        self._roots = tuple(root_devices)
        self._has_learned_root = bool(root_devices)
        self._neuron = neuron or NeuronExplainer()
        self._slurm = slurm or SlurmExplainer()
        self.over: list[tuple[int, int]] = []
        self._logs: OrderedDict[tuple[str, str], _Log] = OrderedDict()
        self._number = 0
        self._past: OrderedDict[int, int] = OrderedDict()
        self._boot = ""
        self._reboots = 0
        self._last = LogLine("")

    def feed(self, number: int, line: LogLine) -> list[Record]:
        """Take one line without its prefixes."""
        marker = _BOOT.match(line.text)
        if marker:
            self._boot = marker["boot"] or ""
            self._reboots += not self._boot
            self._last = line
            return []
        line = self._owned(line)
        self._last = line
        if line.writer is Writer.NOBODY and line.text.startswith("Xid (PCI:"):
            # What "grep -o" leaves of the kernel's line.
            line = replace(line, text=f"NVRM: {line.text}")
        if line.writer is Writer.KERNEL:
            return self._kernel(number, line, "")
        if line.writer is Writer.NOBODY and self.assume_kernel and KERNELISH.match(line.text):
            return self._kernel(number, line, "taken as the kernel's, the line does not prove it")
        out = self._program(number, line)
        return out or self._not_kernels(number, line)

    def end(self) -> list[Record]:
        """Nothing is left."""
        return []

    def _owned(self, line: LogLine) -> LogLine:
        """A bare, indented line behind a record of the kernel is its continuation: dmesg prints them so."""
        is_indented = line.text.startswith("    ") and not line.style
        if is_indented and self._last.writer is Writer.KERNEL and line.writer is Writer.NOBODY:
            last = self._last
            return replace(last, text=line.text.strip())
        return line

    def _kernel(self, number: int, line: LogLine, assumed: str) -> list[Record]:
        boot = (line.boot or self._boot).replace("-", "").lower()
        if self._boot_id and boot and boot != self._boot_id:
            return [
                replace(
                    record, verdict=Word.OK, reason=f"of another boot ({boot[:8]}), does not count: {record.reason}"
                )
                for record in self._alone(number, line.text)
            ]
        root = _ROOT.search(line.text) if "root=/dev" in line.text else None
        if root:
            self._roots, self._has_learned_root = (root["dev"].rpartition("/")[2],), True
            for known in self._logs.values():
                known.events.root_devices = self._roots
        found = self._log_of(number, line, boot)
        out: list[Record] = []
        on = f"on {line.host}" if line.host and len({host for host, _ in self._logs}) > 1 else ""
        for text in line.text.split("\n") if "\n" in line.text else (line.text,):
            judged = found.events.feed(text, line.at_s)
            out += [self._record(number, item, assumed, on) for item in judged]
            if not judged and (benign := explain_benign(text.strip())):
                out.append(Record(number, CHECK, benign[0], "", Word.OK, sentence(benign[1], assumed, on)))
        out = [replace(record, boot=found.number) for record in out]
        later = self._past.get(found.number)
        return out if later is None else [of_the_past(record, later) for record in out]

    def _record(self, number: int, judged: Judged, *notes: str) -> Record:
        verdict = judged.verdict
        word = word_of(judged.severity, judged.action, verdict.whose)
        reason = verdict.message
        is_asked = verdict.code == "NeuronHardwareError" and verdict.action is Action.REPLACE
        if is_asked and verdict.device in self._neuron.risen:
            reason = sentence(reason, "an error counter of the device rose too", *notes)
            return Record(number, CHECK, verdict.code, verdict.device, Word.REPLACE, reason)
        drained = ""
        if judged.severity is Severity.FATAL and judged.action is Action.DRAIN:
            drained = "the node is drained, the machine stays"
        if verdict.code in ("FileSystemError", "DiskError") and not self._has_learned_root:
            which = "taken for the root disk" if word is Word.REPLACE else "taken for a scratch disk"
            drained = f"{which} by its name (--root-device says which it is)"
        return Record(number, CHECK, verdict.code, verdict.device, word, sentence(reason, judged.note, drained, *notes))

    def _log_of(self, number: int, line: LogLine, boot: str) -> _Log:
        """Return what is remembered of the log that a line belongs to, and see whether another boot begins."""
        key = (line.host, line.clock)
        boot = boot or (f"after reboot {self._reboots}" if self._reboots else "")
        log = self._logs.get(key)
        if log is None:
            self._number += 1
            log = self._logs[key] = _Log(KernelEvents(self._roots or USUAL_ROOTS), self._number, boot)
            while len(self._logs) > _MOST_HOSTS:
                self._logs.popitem(last=False)
        elif self._is_other_boot(log, line, boot):
            log.events.new_boot()
            self._divide(number, log, line)
            log.last_at, log.order, log.boot = None, 0, boot or log.boot
        elif line.clock == "boot" and line.at_s is not None and line.at_s < (log.last_at or 0.0) - _CLOCK_BACK_S:
            # Another boot, or another excerpt: which of the two is the later one is not said.
            log.events.new_boot()
        log.boot = boot or log.boot
        if line.at_s is not None:
            step = line.at_s - (line.at_s if log.last_at is None else log.last_at)
            log.order = max(-100, min(100, log.order + (step > 0) - (step < 0)))
            log.last_at = line.at_s
        return log

    @staticmethod
    def _is_other_boot(log: _Log, line: LogLine, boot: str) -> bool:
        if boot and log.boot != boot and (log.boot or boot.startswith("after ")):
            return True
        return line.text.startswith("Linux version ") and (line.clock != "boot" or (line.at_s or 0.0) < 1.0)

    def _divide(self, number: int, log: _Log, line: LogLine) -> None:
        """One boot ends here and another begins; the earlier one's lines are of the past.

        The earlier one stands above, unless the text is turned around (``journalctl -r``), which its times show.
        """
        is_turned = log.order < 0
        if line.clock in ("wall", "year") and line.at_s is not None and log.last_at is not None:
            # Without a year December comes before January.
            is_turned = -_HALF_A_YEAR_S < line.at_s - log.last_at < 0
        above = log.number
        self._number += 1
        log.number = self._number
        if is_turned:
            self._past[log.number] = number
        elif not (self._boot_id and log.boot == self._boot_id):
            self._past[above] = number
            self.over.append((above, number))
        while len(self._past) > _MOST_BOOTS:
            self._past.popitem(last=False)

    def _alone(self, number: int, text: str) -> list[Record]:
        """Explain one text without any memory."""
        out = []
        for part in text.split("\n"):
            for verdict in classify(part.strip(), root_devices=USUAL_ROOTS):
                word = word_of(verdict.severity, verdict.action, verdict.whose)
                out.append(Record(number, CHECK, verdict.code, verdict.device, word, verdict.message))
        return out

    def _not_kernels(self, number: int, line: LogLine) -> list[Record]:
        who = f"written by {line.program}" if line.program else "nothing proves that the kernel wrote it"
        how = "not by the kernel: does not count" if line.program else "(--assume-kernel says so): does not count"
        if line.writer is Writer.PROGRAM and not line.program:
            who, how = "its priority says that a program wrote it", "does not count"
        return [
            replace(record, verdict=Word.OK, reason=f"{who}, {how}; it says: {record.reason}"[:400])
            for record in self._alone(number, line.text)
        ]

    def _program(self, number: int, line: LogLine) -> list[Record]:
        text = line.text
        is_fabric = line.program in _FABRIC_PROGRAMS or is_fabric_line(text)
        if is_fabric and (out := self.fabric_manager(number, text)):
            return out
        if out := self._neuron.runtime(number, text):
            return out
        if line.program in ("", "slurmctld", "slurmd", "slurmstepd", "error"):
            return self._slurm.log(number, text)
        return []

    def fabric_manager(self, number: int, text: str) -> list[Record]:
        """Explain a line of NVIDIA's fabric manager."""
        found = classify_fabric(text)
        if found is None:
            return []
        word = word_of(found.severity, found.action, found.whose)
        return [Record(number, found.check, found.code, found.device, word, found.message)]
