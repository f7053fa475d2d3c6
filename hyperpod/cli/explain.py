"""``hyperpod health explain``: what pasted log text or a tool's output means for a node, line by line.

Owns reading the text and printing the records. Asks nobody and needs no cluster, so it works anywhere.
"""

from __future__ import annotations

import importlib
import json
import lzma
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from io import BufferedReader
from typing import Annotated, BinaryIO, cast

import typer

from hyperpod.cli.options import OutputOption, examples
from hyperpod.cli.render import Output, printable, say
from hyperpod.errors import NotFound, UsageError
from hyperpod.health.explain import Kind, Options, explain
from hyperpod.health.record import Record, Word

_LINE_BYTES = 1 << 17
"""What is longer is cut; the rest of the line is passed over."""

_ALIASES = {
    "kernel": Kind.KMSG,
    "dmesg": Kind.KMSG,
    "journal": Kind.KMSG,
    "journald": Kind.KMSG,
    "journalctl": Kind.KMSG,
    "syslog": Kind.KMSG,
    "xid": Kind.KMSG,
    "smi": Kind.NVIDIA_SMI,
    "dcgmi": Kind.DCGM,
    "ibv_devinfo": Kind.IBSTAT,
    "ibstatus": Kind.IBSTAT,
    "sinfo": Kind.SLURM_REASON,
    "slurm": Kind.SLURM_REASON,
    "scontrol": Kind.SLURM_REASON,
    "slurmctld": Kind.SLURM_LOG,
    "slurmd": Kind.SLURM_LOG,
    "neuron": Kind.NEURON_MONITOR,
    "nrt": Kind.NEURON_RUNTIME,
    "fabricmanager": Kind.FABRIC_MANAGER,
}

EXPLAIN_HELP = """Say what log text or the output of a tool means for a node.

Takes kernel logs in any prefix style (raw /dev/kmsg, dmesg, journald, syslog, JSON), output of nvidia-smi, dcgmi,
neuron-monitor, neuron-ls, ibstat, perfquery, ethtool, sinfo -R and scontrol show node, /proc/mdstat, and lines
/sys/path:value. What it is, is found out line by line. Lines of a boot before a later one are ok: they no longer count.
Every event gives one record: line, check, code, device, verdict, reason. The rules are those of
the agent; how many looks it waits for stands in the reason.

Verdicts: ok (nothing to do), app (the job's own fault), warn (look at it, or keep work away; the machine stays),
reboot, replace, unknown (the tool failed, nothing is said of the hardware). Lines without a meaning for health give
nothing. With --output json the result is one array of records.

Exit status 0 when the text was explained, however bad it is.
"""

_EXAMPLES = examples(
    "hyperpod health explain /var/log/kern.log",
    "sudo dmesg -T | hyperpod health explain",
    "hyperpod health explain --kind slurm-reason --output json reasons.txt",
)


def kind_of(word: str) -> Kind:
    """Return the kind that a word names.

    Raises:
        UsageError: when there is none; names all of them.
    """
    lower = word.strip().lower().replace("_", "-")
    for known in (lower, lower.replace("-", "_")):
        if known in _ALIASES:
            return _ALIASES[known]
    try:
        return Kind(lower)
    except ValueError:
        known_kinds = ", ".join(kind.value for kind in Kind)
        raise UsageError(f"--kind {word}: there is no such kind", hint=f"kinds are {known_kinds}") from None


def register(group: typer.Typer) -> None:
    """Add the command to the group ``health``."""

    @group.command("explain", help=EXPLAIN_HELP, epilog=_EXAMPLES)
    def explain_command(
        file: Annotated[str, typer.Argument(metavar="[FILE]", help="File with the text; - or nothing: stdin.")] = "-",
        kind: Annotated[
            str, typer.Option("--kind", metavar="KIND", help="What the text is: " + ", ".join(Kind) + ".")
        ] = Kind.AUTO.value,
        output: OutputOption = Output.TABLE,
        boot_id: Annotated[
            str, typer.Option("--boot-id", metavar="ID", help="Only this boot counts, where lines say theirs.")
        ] = "",
        assume_kernel: Annotated[
            bool, typer.Option("--assume-kernel", help="Lines without any prefix were written by the kernel.")
        ] = False,
        root_device: Annotated[
            list[str] | None,
            typer.Option(
                "--root-device", metavar="DEVICE", help="Disk or partition of the root file system. May be repeated."
            ),
        ] = None,
    ) -> None:
        roots = tuple(device.removeprefix("/dev/") for device in root_device or ())
        options = Options(kind_of(kind), boot_id, assume_kernel, roots)
        with ExitStack() as stack:
            stream = _opened(file, stack)
            lines = _Lines(stream, file)
            show = _print_json if output is Output.JSON else _print_table
            counts = show(explain(lines, options))
        _say_summary(lines.count, counts)


class _Lines:
    """The lines of a stream, counted; parts of a line behind its first 128 KiB are left out."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            while line := self._stream.readline(_LINE_BYTES):
                self.count += 1
                rest = line
                while not rest.endswith(b"\n"):
                    rest = self._stream.readline(_LINE_BYTES)
                    if not rest:
                        break
                yield line
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise UsageError(f"{self._name}: {getattr(error, 'strerror', None) or error}") from error


def _opened(file: str, stack: ExitStack) -> BinaryIO:
    if file != "-":
        try:
            opened = stack.enter_context(open(file, "rb"))  # noqa: SIM115 - the stack closes it
            begin = opened.peek(8)
        except FileNotFoundError as error:
            raise NotFound(f"{file}: {error.strerror}") from error
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror or error}") from error
    else:
        if sys.stdin.isatty():
            raise UsageError("there is no text", hint="give a file, or pipe one in: dmesg | hyperpod health explain")
        if not isinstance(sys.stdin.buffer, BufferedReader):
            return sys.stdin.buffer
        opened = sys.stdin.buffer
        begin = opened.peek(8)
    for magic, command in _FOREIGN.items():
        if begin.startswith(magic):
            raise UsageError(f"{file}: is no text", hint=f"{command} {file} | hyperpod health explain")
    for magic, module in _PACKED.items():
        if begin.startswith(magic):
            return cast(BinaryIO, stack.enter_context(importlib.import_module(module).open(opened, "rb")))
    return opened


_PACKED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "lzma", b"BZh": "bz2"}
"""Logs are rotated into these."""

_FOREIGN = {b"\x28\xb5\x2f\xfd": "zstdcat", b"LPKSHHRH": "journalctl -o short-monotonic --file"}
"""What is not read here, and the program that makes text of it."""


def _print_json(records: Iterable[Record]) -> Counter[Word]:
    """Print one JSON array, a record a line, as they come: a text of any length needs no memory."""
    counts: Counter[Word] = Counter()
    sys.stdout.write("[")
    before = "\n"
    for record in records:
        sys.stdout.write(f"{before}{json.dumps(record.to_dict())}")
        before = ",\n"
        counts[record.verdict] += 1
    sys.stdout.write("\n]\n" if counts.total() else "]\n")
    return counts


def _print_table(records: Iterable[Record]) -> Counter[Word]:
    """Print one line a record; what only repeats the record before is counted."""
    counts: Counter[Word] = Counter()
    before: Record | None = None
    repeats, last = 0, 0

    def end_repeats() -> None:
        if repeats:
            sys.stdout.write(f"{'':>7}  {repeats} more like this, until line {last}\n")

    for record in records:
        if not counts.total():
            sys.stdout.write(f"{'LINE':>7}  {'VERDICT':<8} {'FINDING':<34} {'DEVICE':<20} WHY\n")
        counts[record.verdict] += 1
        is_same = before is not None and (record.code, record.device, record.verdict, record.reason) == (
            before.code,
            before.device,
            before.verdict,
            before.reason,
        )
        if is_same:
            repeats, last = repeats + 1, record.line
            continue
        end_repeats()
        repeats, before = 0, record
        finding = printable(f"{record.check}/{record.code}")
        device = printable(record.device or "-")
        text = f"{record.line:>7}  {record.verdict.value:<8} {finding:<34} {device:<20} {printable(record.reason)}"
        sys.stdout.write(text.rstrip() + "\n")
    end_repeats()
    return counts


def _say_summary(lines: int, counts: Counter[Word]) -> None:
    if not lines:
        say("there is nothing to explain: the text is empty")
    elif not counts.total():
        say(f"nothing in {lines} lines has a meaning for health")
    else:
        parts = ", ".join(f"{counts[word]} {word.value}" for word in reversed(Word) if counts[word])
        say(f"{counts.total()} events in {lines} lines: {parts}")
