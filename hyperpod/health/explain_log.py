"""What lines of a log mean: the kernel's by the agent's own rules, and a few of programs. Pure: lines in, records out.

Only what the kernel wrote counts. A line that looks like the kernel's and was written by a program is shown as ``ok``
with that reason, so that nobody wonders why it did not count.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace

from hyperpod.core.finding import Action, Severity
from hyperpod.health.explain_neuron import NeuronExplainer
from hyperpod.health.explain_slurm import SlurmExplainer
from hyperpod.health.kernel import classify, explain_benign
from hyperpod.health.kernel_events import Judged, KernelEvents
from hyperpod.health.log_lines import LogLine, Writer
from hyperpod.health.record import Record, Word, sentence, word_of

CHECK = "kernel_log"
_MOST_HOSTS = 64
_CLOCK_BACK_S = 60.0

USUAL_ROOTS = (
    *(f"{disk}{part}" for disk in ("sda", "vda", "xvda") for part in ("", *range(1, 10))),
    *(f"nvme0n1{part}" for part in ("", *(f"p{n}" for n in range(1, 10)))),
    "dm-0",
)
"""Where the root file system is on nearly every machine; the agent knows, a text does not say."""

_ROOT = re.compile(r"\bKernel command line: .*\broot=/dev/(?P<dev>[\w/-]+)")
_BOOT = re.compile(r"^-- (?:Boot (?P<boot>[0-9a-f]{32})|Reboot) --$")
_FABRIC = re.compile(
    r"detected NVSwitch (?P<word>fatal|non-fatal) error (?P<code>\d+)(?:.* pci bus id (?P<bus>[0-9a-fA-F:.]+))?"
)
_TOPOLOGY = re.compile(r"number of NVSwitches don't match with any supported system topology|topology mismatch")
_NO_SWITCH = re.compile(r"NV_WARN_NOTHING_TO_DO")
_FABRIC_LOG = re.compile(r"^\[[A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d\] \[[A-Z]+\] (?:\[tid \d+\] )?")
_FABRIC_PROGRAMS = frozenset({"nv-fabricmanager", "nvidia-fabricmanager"})

KERNELISH = re.compile(
    r"^(?:\[ *\d+\.\d+\] )?(?:NVRM|Xid \(PCI:|nvidia|mlx5_core |EXT4-fs|XFS \(|BTRFS|EDAC |mce: |pcieport |"
    r"(?:\{\d+\})?\[Hardware Error\]|watchdog: |NMI |INFO: (?:task|rcu)|rcu: |BUG: |Oops|general protection|"
    r"Kernel panic|Out of memory: |Memory cgroup|oom-kill:|Lustre|nfs: |lockd: |efa |ena |nvme |md[/:]|neuron:|"
    r"NEURON_HW_ERR|blk_update|print_req|I/O error, dev|Buffer I/O|critical medium|NETDEV|Memory failure|BERT: |ata\d|"
    r"[\w./-]+\[\d+\]: segfault|Call Trace|RIP: |Code: |Modules linked|CPU: \d|Hardware name: |"
    r" *(?:\? )?[\w.]+\+0x[0-9a-f]+|[\w-]+ [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)"
)
"""How lines of the kernel begin that say something of health."""


class LogExplainer:
    """Explains lines of logs.

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
        self._events: OrderedDict[tuple[str, str], KernelEvents] = OrderedDict()
        self._boots: dict[tuple[str, str], str] = {}
        self._last_at: dict[tuple[str, str], float] = {}
        self._boot = ""
        self._last = LogLine("")

    def feed(self, number: int, line: LogLine) -> list[Record]:
        """Take one line without its prefixes."""
        marker = _BOOT.match(line.text)
        if marker:
            self._boot = marker["boot"] or ""
            self._new_boot()
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
            for events in self._events.values():
                events.root_devices = self._roots
        events = self._events_of(line, boot)
        out: list[Record] = []
        on = f"on {line.host}" if line.host and len({host for host, _ in self._events}) > 1 else ""
        for text in line.text.split("\n") if "\n" in line.text else (line.text,):
            judged = events.feed(text, line.at_s)
            out += [self._record(number, item, assumed, on) for item in judged]
            if not judged and (benign := explain_benign(text.strip())):
                out.append(Record(number, CHECK, benign[0], "", Word.OK, sentence(benign[1], assumed, on)))
        return out

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

    def _events_of(self, line: LogLine, boot: str) -> KernelEvents:
        key = (line.host, line.clock)
        events = self._events.get(key)
        if events is None:
            events = self._events[key] = KernelEvents(self._roots or USUAL_ROOTS)
            while len(self._events) > _MOST_HOSTS:
                old, _ = self._events.popitem(last=False)
                self._boots.pop(old, None)
                self._last_at.pop(old, None)
        last = self._last_at.get(key)
        is_back = (
            line.clock == "boot" and last is not None and line.at_s is not None and line.at_s < last - _CLOCK_BACK_S
        )
        is_first = line.text.startswith("Linux version ") and last is not None
        if (boot and self._boots.get(key, boot) != boot) or is_back or is_first:
            events.new_boot()
        if boot:
            self._boots[key] = boot
        if line.at_s is not None:
            self._last_at[key] = line.at_s
        return events

    def _new_boot(self) -> None:
        for events in self._events.values():
            events.new_boot()
        self._boots.clear()
        self._last_at.clear()

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
        is_fabric = line.program in _FABRIC_PROGRAMS or _FABRIC_LOG.match(text) is not None
        if is_fabric and (out := self.fabric_manager(number, text)):
            return out
        if out := self._neuron.runtime(number, text):
            return out
        if line.program in ("", "slurmctld", "slurmd", "slurmstepd", "error"):
            return self._slurm.log(number, text)
        return []

    def fabric_manager(self, number: int, text: str) -> list[Record]:
        """Explain a line of NVIDIA's fabric manager."""
        found = _FABRIC.search(text)
        if found:
            device = (found["bus"] or "").lower().partition(".")[0]
            device = f"{device[-10:]}" if len(device) >= 10 else device
            code = f"SXid{found['code']}"
            if found["word"] == "fatal":
                why = f"fatal error {found['code']} of an NVSwitch: all GPUs of the node"
                return [Record(number, "fabric_manager", code, device, Word.REBOOT, why)]
            why = f"error {found['code']} of an NVSwitch, not fatal"
            return [Record(number, "fabric_manager", code, device, Word.WARN, why)]
        if _TOPOLOGY.search(text):
            why = "the NVSwitches that were found fit no known machine: one is missing"
            return [Record(number, "fabric_manager", "TopologyMismatch", "", Word.REBOOT, why)]
        if _NO_SWITCH.search(text):
            why = "this machine has no NVSwitch: no fault"
            return [Record(number, "fabric_manager", "NoSwitch", "", Word.OK, why)]
        return []
