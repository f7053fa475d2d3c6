"""Explains pasted text: log lines of any prefix style, and output of tools, by the agent's own parsers and rules.

Pure: lines in, records out, in one pass and with bounded memory. Owns which part of a text goes to which explainer;
each explainer owns what its lines mean.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice
from typing import Protocol

from hyperpod.health import explain_links, explain_raid, explain_slurm, parse_dcgm, parse_links, parse_nvidia_smi
from hyperpod.health.explain_dcgm import DcgmExplainer
from hyperpod.health.explain_gpu import GpuExplainer
from hyperpod.health.explain_links import LinkExplainer, SysfsExplainer
from hyperpod.health.explain_log import KERNELISH, LogExplainer, of_the_past
from hyperpod.health.explain_neuron import NeuronExplainer
from hyperpod.health.explain_raid import RaidExplainer
from hyperpod.health.explain_slurm import SlurmExplainer
from hyperpod.health.journal_fields import JournalFields, begins_entry
from hyperpod.health.log_lines import LogLine, Writer, cleaned_line, parse_journal_entry, parse_log_line
from hyperpod.health.record import Record, Word

_SAMPLE_LINES = 400
"""So many lines are looked at before the first is judged: whether bare lines are the kernel's shows in the others."""

_HELD_RECORDS = 2000
"""So many records wait for whether the text goes on with a later boot, which makes them records of the past."""

_BLOCK_LINES = 200_000
_BLOCK_BYTES = 16 << 20
"""A JSON document over several lines that is longer than this is not collected."""


_WORDS = (
    b"Xid NVRM GPU nvidia NVIDIA NVSMI NVSwitch NVML knvlink Hardware mce EDAC AER DPC PCIe rror EXT4 XFS BTRFS "
    b"emount oom emory locked hung_task lockup LOCKUP stall BUG Oops protection panic ustre LBUG nfs ptlrpc lockd "
    b"NEURON NRT Neuron neuron nrt DMA mlx5 efa ena nvme md/ RAID SATA segfault NETDEV ink BERT CA infiniband "
    b"nfiniband hca_id Settings NIC /sys/ /proc/ NodeName REASON eason respond reboot STEPD Action: gres/ hyperpod: "
    b"rolog pilog complete uplicate evice Diagnostic Health -- Linux root=/dev fabric eset index bus_id uuid task "
    b"Low emapped ECC abric Recovery NMGR TDRV opcode ibpanic ibwarn iberror IB Cannot netlink data counters: "
    b"Personalities __CURSOR= ;b= Unable Internal journal NFS"
)
_WORTH_READING = re.compile(b"|".join(re.escape(word) for word in _WORDS.split()))
"""Every line with a meaning, and every first line of a tool's output, holds one of these. Most lines of a long log
don't: they are passed over before anything else is done."""


class Kind(StrEnum):
    """What a text is."""

    AUTO = "auto"
    KMSG = "kmsg"
    NVIDIA_SMI = "nvidia-smi"
    DCGM = "dcgm"
    NEURON_MONITOR = "neuron-monitor"
    NEURON_LS = "neuron-ls"
    NEURON_RUNTIME = "neuron-runtime"
    IBSTAT = "ibstat"
    PERFQUERY = "perfquery"
    ETHTOOL = "ethtool"
    SLURM_REASON = "slurm-reason"
    SLURM_LOG = "slurm-log"
    FABRIC_MANAGER = "fabric-manager"
    SYSFS = "sysfs"
    MDSTAT = "mdstat"


@dataclass(frozen=True)
class Options:
    """What the text itself cannot prove.

    Attributes:
        kind: What the text is; AUTO: found out line by line.
        boot_id: The boot that counts, where lines say of which they are.
        assume_kernel: Lines without any prefix were written by the kernel.
        root_devices: Devices below the root file system.
    """

    kind: Kind = Kind.AUTO
    boot_id: str = ""
    assume_kernel: bool = False
    root_devices: tuple[str, ...] = ()


class _Block(Protocol):
    def feed(self, number: int, text: str) -> list[Record]: ...

    def end(self) -> list[Record]: ...


_BLOCK_START = re.compile(r"^\s*(?:[{\[]|\[?\{\s*\"[^\"]*\"\s*:\s*[\[{]?)\s*$")
_PREFIXED = re.compile(
    r"\[ *\d+\.\d|\[[A-Z][a-z]{2} |<\d|\d{1,4},\d+,\d+,|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\d{4}-\d\d-\d\dT"
)
"""How lines of logs begin, and no line of a tool that we know."""

_JOURNAL_CUT = re.compile(r'"_TRANSPORT"\s*:\s*"(?P<transport>\w+)"')
_MESSAGE_CUT = re.compile(r'"MESSAGE"\s*:\s*"(?P<text>(?:[^"\\]|\\.)*)')
_NEURON_CUT = re.compile(r'"(?:neuron_runtime_data|neuron_hardware_info|neuron_hw_counters)"')


@dataclass
class _Collector:
    """A JSON document over several lines, until its brackets close."""

    start: int
    lines: list[str] = field(default_factory=list)
    depth: int = 0
    in_string: bool = False
    size: int = 0

    def take(self, text: str) -> bool:
        """Add a line; True when the document is complete."""
        self.lines.append(text)
        self.size += len(text)
        is_escaped = False
        for char in text:
            if self.in_string:
                if is_escaped:
                    is_escaped = False
                elif char == "\\":
                    is_escaped = True
                elif char == '"':
                    self.in_string = False
            elif char == '"':
                self.in_string = True
            elif char in "{[":
                self.depth += 1
            elif char in "}]":
                self.depth -= 1
        return self.depth <= 0

    @property
    def is_too_long(self) -> bool:
        return len(self.lines) > _BLOCK_LINES or self.size > _BLOCK_BYTES


class Explainer:
    """Takes lines one by one, gives records. ``explain`` is the loop around it.

    A record comes out some time after its line: what follows may show that the line is of an earlier boot.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._neuron = NeuronExplainer()
        self._slurm = SlurmExplainer()
        self._gpu = GpuExplainer()
        self._dcgm = DcgmExplainer()
        self._links = LinkExplainer()
        self._sysfs = SysfsExplainer()
        self._raid = RaidExplainer()
        self._log = LogExplainer(
            boot_id=options.boot_id,
            assume_kernel=options.assume_kernel or options.kind is Kind.KMSG,
            root_devices=options.root_devices,
            neuron=self._neuron,
            slurm=self._slurm,
        )
        self._current: _Block | None = None
        self._collector: _Collector | None = None
        self._entry: JournalFields | None = None
        self._held: deque[Record] = deque()

    def look_at(self, sample: Iterable[str]) -> None:
        """Decide from the text's beginning whether bare lines are the kernel's.

        They are when nearly everything is: a paste of kernel lines without their prefixes. Among the output of a
        program they are not, because programs can print anything.
        """
        if self._log.assume_kernel or self._options.kind is not Kind.AUTO:
            return
        bare = others = 0
        for text in sample:
            line = parse_log_line(text)
            if not line.text.strip() or line.writer is Writer.KERNEL or self._is_tool(text):
                continue
            if line.writer is Writer.NOBODY and KERNELISH.match(line.text):
                bare += 1
            elif not (line.writer is Writer.NOBODY and line.text.startswith("    ")):
                others += 1
        self._log.assume_kernel = bare > 0 and bare >= others

    @staticmethod
    def _is_tool(text: str) -> bool:
        return (
            parse_nvidia_smi.is_start(text)
            or parse_links.is_start(text)
            or explain_slurm.is_start(text)
            or explain_links.is_sysfs(text)
            or explain_raid.is_start(text)
            or begins_entry(text)
            or text.startswith(("|", "+--", "$ ", "# ", "```", "-- "))
        )

    def passes_over(self, raw: bytes) -> bool:
        """True for a line that means nothing whatever came before."""
        is_idle = self._current is None and self._collector is None and self._entry is None
        if not is_idle or self._options.kind not in (Kind.AUTO, Kind.KMSG):
            return False
        # Arrays of /proc/mdstat begin with their names.
        return raw.lstrip()[:1] not in (b"{", b"[") and raw[:2] != b"md" and _WORTH_READING.search(raw) is None

    def feed(self, number: int, text: str) -> list[Record]:
        """Take one cleaned line, and return the records that nothing can change any more."""
        self._held.extend(self._feed(number, text))
        self._look_back()
        return [self._held.popleft() for _ in range(len(self._held) - _HELD_RECORDS)]

    def _look_back(self) -> None:
        """See which of the records that wait are of an earlier boot."""
        if not self._log.over:
            return
        later = dict(self._log.over)
        self._log.over.clear()
        self._held = deque(of_the_past(r, later[r.boot]) if r.boot in later else r for r in self._held)

    def _feed(self, number: int, text: str) -> list[Record]:
        if self._collector is not None:
            return self._collect(number, text)
        if self._entry is not None and self._entry.take(number, text):
            return []
        out = self._end_entry()
        if begins_entry(text):
            self._entry = JournalFields.begun(number, text)
            return out
        return out + self._line(number, text) if text.strip() else out

    def _end_entry(self) -> list[Record]:
        entry, self._entry = self._entry, None
        line = entry.entry() if entry is not None else None
        return self._leave() + self._log.feed(entry.line, line) if entry is not None and line is not None else []

    def _line(self, number: int, text: str) -> list[Record]:
        kind = self._options.kind
        if kind is Kind.AUTO or kind in (Kind.DCGM, Kind.NEURON_MONITOR, Kind.NEURON_LS, Kind.KMSG):
            out = self._json(number, text)
            if out is not None:
                return out
        return self._auto(number, text) if kind is Kind.AUTO else self._told(kind, number, text)

    def end(self) -> list[Record]:
        """Say what could only be said when all was read."""
        out = self._end_entry()
        if self._collector is not None:
            out += self._give_up()
        blocks = (self._gpu, self._dcgm, self._links, self._sysfs, self._raid, self._slurm, self._neuron, self._log)
        for explainer in blocks:
            out += explainer.end()
        self._look_back()
        return sorted([*self._held, *out], key=lambda record: record.line)

    def _told(self, kind: Kind, number: int, text: str) -> list[Record]:
        if kind is Kind.NVIDIA_SMI:
            return self._gpu.feed(number, text)
        if kind is Kind.DCGM:
            return self._dcgm.feed(number, text)
        if kind in (Kind.IBSTAT, Kind.PERFQUERY, Kind.ETHTOOL):
            return self._links.feed(number, text)
        if kind is Kind.SYSFS:
            return self._sysfs.feed(number, text)
        if kind is Kind.MDSTAT:
            return self._raid.feed(number, text)
        if kind is Kind.SLURM_REASON:
            return self._slurm.feed(number, text, is_reason=True)
        if kind is Kind.SLURM_LOG:
            return self._slurm.log(number, parse_log_line(text).text)
        if kind is Kind.NEURON_RUNTIME:
            return self._neuron.runtime(number, text)
        if kind is Kind.FABRIC_MANAGER:
            return self._log.fabric_manager(number, text)
        if kind in (Kind.NEURON_MONITOR, Kind.NEURON_LS):
            why = f"no report of {kind.value} is understood in this line"
            return [Record(number, "neuron", "NeuronToolFailed", "", Word.UNKNOWN, why)]
        return self._log.feed(number, parse_log_line(text))

    def _auto(self, number: int, text: str) -> list[Record]:
        """Give a line to the explainer that it belongs to."""
        if _PREFIXED.match(text) and not parse_dcgm.is_lost(text):
            # Most lines of a log: no tool's output begins so.
            line = parse_log_line(text)
            if line.style:
                return self._leave() + self._log.feed(number, line)
        if parse_nvidia_smi.is_start(text) or text.lstrip().startswith("<nvidia_smi_log"):
            return self._enter(self._gpu, number, text)
        if parse_dcgm.is_table_start(text):
            return self._enter(self._dcgm, number, text)
        if parse_dcgm.is_lost(text):
            return self._dcgm.feed(number, text)
        if parse_links.is_start(text) or explain_links.is_failure(text):
            return self._enter(self._links, number, text)
        if explain_slurm.is_start(text):
            return self._enter(self._slurm, number, text)
        if explain_raid.is_start(text):
            return self._enter(self._raid, number, text)
        if explain_links.is_sysfs(text):
            return self._sysfs.feed(number, text)
        line = parse_log_line(text)
        if line.style or line.writer is not Writer.NOBODY:
            return self._leave() + self._log.feed(number, line)
        if self._current is not None:
            out = self._current.feed(number, text)
            if out or not (KERNELISH.match(line.text) or explain_slurm.is_plain(text)):
                return out or ([] if self._current is self._gpu else self._log.feed(number, line))
        if explain_slurm.is_plain(text):
            return self._slurm.feed(number, text, is_reason=True)
        return self._log.feed(number, line)

    def _enter(self, explainer: _Block, number: int, text: str) -> list[Record]:
        out: list[Record] = []
        if self._current is not None and self._current is not explainer:
            out += self._current.end()
        self._current = explainer
        return out + explainer.feed(number, text)

    def _leave(self) -> list[Record]:
        """A line of a log ends a tool's output."""
        left, self._current = self._current, None
        return left.end() if left is not None else []

    # --- JSON -----------------------------------------------------------------------------------------------------

    def _json(self, number: int, text: str) -> list[Record] | None:
        stripped = text.strip()
        if not stripped.startswith(("{", "[")):
            return None
        if _BLOCK_START.match(stripped):
            self._collector = _Collector(number)
            self._collector.take(text)
            return []
        if stripped.startswith("{") or stripped.startswith("[{") or stripped == "[]":
            out = self._document(number, stripped)
            if out is not None:
                return out
            if stripped.startswith("{") and not stripped.endswith("}"):
                return self._cut(number, stripped)
        return None

    def _document(self, number: int, text: str) -> list[Record] | None:
        """Explain a whole JSON document; None when it is none that is known."""
        kind = self._options.kind
        if kind in (Kind.AUTO, Kind.NEURON_MONITOR):
            found = self._neuron.monitor(number, text)
            if found is not None:
                return found
        if kind in (Kind.AUTO, Kind.DCGM):
            found = self._dcgm.block(number, text)
            if found is not None:
                return found
        if kind in (Kind.AUTO, Kind.NEURON_LS) and (kind is Kind.NEURON_LS or '"neuron_device' in text):
            found = self._neuron.ls(number, text)
            if found is not None:
                return found
        if kind in (Kind.DCGM, Kind.NEURON_LS, Kind.NEURON_MONITOR):
            why = f"no document of {kind.value} is understood here"
            check = "dcgm" if kind is Kind.DCGM else "neuron"
            return [Record(number, check, "ToolFailed", "", Word.UNKNOWN, why)]
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return None
        line = parse_journal_entry(data) if isinstance(data, dict) else None
        return self._log.feed(number, line) if line is not None else None

    def _cut(self, number: int, text: str) -> list[Record] | None:
        """Explain a JSON line that is cut off."""
        if _NEURON_CUT.search(text):
            why = "the report is cut off"
            return [Record(number, "neuron", "NeuronToolFailed", "", Word.UNKNOWN, why)]
        transport, message = _JOURNAL_CUT.search(text), _MESSAGE_CUT.search(text)
        if transport and message:
            writer = Writer.KERNEL if transport["transport"] == "kernel" else Writer.PROGRAM
            return self._log.feed(number, LogLine(message["text"], writer, transport["transport"], style="journal"))
        return None

    def _collect(self, number: int, text: str) -> list[Record]:
        collector = self._collector
        assert collector is not None
        line = parse_log_line(text) if not text[:1].isspace() and text[:1] not in '{}[]"' else None
        if (line is not None and line.style) or collector.is_too_long:
            return [*self._give_up(), *self._feed(number, text)]
        if not collector.take(text):
            return []
        self._collector = None
        document = "\n".join(collector.lines)
        found = self._document(collector.start, document)
        if found is None and document.lstrip().startswith("["):
            found = self._list(collector.start, document)
        return found if found is not None else self._plain(collector)

    def _list(self, number: int, document: str) -> list[Record] | None:
        try:
            entries = json.loads(document)
        except (ValueError, RecursionError):
            return None
        out: list[Record] = []
        for entry in entries:
            line = parse_journal_entry(entry) if isinstance(entry, dict) else None
            if line is not None:
                out += self._log.feed(number, line)
        return out

    def _plain(self, collector: _Collector) -> list[Record]:
        """What looked like JSON was none: its lines are lines like others."""
        kind = self._options.kind
        out: list[Record] = []
        for offset, text in enumerate(collector.lines):
            if text.strip():
                number = collector.start + offset
                out += self._auto(number, text) if kind is Kind.AUTO else self._told(kind, number, text)
        return out

    def _give_up(self) -> list[Record]:
        collector, self._collector = self._collector, None
        assert collector is not None
        text = "\n".join(collector.lines[:50])
        if _NEURON_CUT.search(text):
            why = "the report is cut off"
            return [Record(collector.start, "neuron", "NeuronToolFailed", "", Word.UNKNOWN, why)]
        if "DCGM" in text or '"Overall Health"' in text:
            return [Record(collector.start, "dcgm", "ToolFailed", "", Word.UNKNOWN, "the document is cut off")]
        return self._plain(collector)


def explain(lines: Iterable[bytes | str], options: Options | None = None) -> Iterator[Record]:
    """Explain a text.

    Args:
        lines: Its lines, in any encoding, with or without their ends. They are read once, one after the other.
        options: What the text cannot prove.
    Yields:
        A record for every event, in the order in which they are understood.
    """
    explainer = Explainer(options or Options())
    source = iter(lines)
    sample = list(islice(source, _SAMPLE_LINES))
    explainer.look_at(cleaned_line(raw) for raw in sample)
    for number, raw in enumerate(chain(sample, source), 1):
        if not explainer.passes_over(raw if isinstance(raw, bytes) else raw.encode(errors="replace")):
            yield from explainer.feed(number, cleaned_line(raw))
    yield from explainer.end()
