"""The labelled corpus in ``corpus/*.txt``: reading it, and the confusion table of what is said of it.

An entry begins with ``==`` and what is expected: ``LINE:VERDICT CODE DEVICE`` for each record, in order, separated by
semicolons (line 1 when left out; nothing: no record). ``~`` marks a look-alike. Options of the command stand behind
``|``; ``%escaped`` means that the text holds Python's escapes. The text is everything up to the next ``==``.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyperpod.health.explain import Kind, Options, explain
from hyperpod.health.record import Record, Word

FOLDER = Path(__file__).parent / "corpus"
FAULTS = frozenset({Word.REBOOT, Word.REPLACE})

Expected = tuple[int, str, str, str]


@dataclass(frozen=True)
class Entry:
    """One text and what is to be said of it."""

    name: str
    text: bytes
    expected: tuple[Expected, ...]
    is_look_alike: bool
    options: Options


def load() -> list[Entry]:
    """Read every entry."""
    return [entry for path in sorted(FOLDER.glob("*.txt")) for entry in _of_file(path)]


def _of_file(path: Path) -> list[Entry]:
    parts = re.split(r"^==(?=[ \n])", path.read_text(), flags=re.MULTILINE)[1:]
    return [_entry(f"{path.stem}-{number}", *part.split("\n", 1)) for number, part in enumerate(parts, 1)]


def _entry(name: str, head: str, text: str) -> Entry:
    wanted, _, words = head.partition("|")
    options = shlex.split(words)
    is_look_alike = "~" in wanted
    expected = []
    for item in filter(None, (part.strip() for part in wanted.replace("~", "").split(";"))):
        found = re.fullmatch(r"(?:(?P<line>\d+):)?(?P<verdict>\w+) (?P<code>\w+)(?: (?P<device>.+))?", item)
        assert found, f"{name}: {item!r}"
        expected.append((int(found["line"] or 1), found["verdict"], found["code"], found["device"] or ""))
    raw = text.encode()
    if "%escaped" in options:
        raw = text.encode().decode("unicode_escape").encode("latin-1")
    return Entry(name, raw, tuple(expected), is_look_alike, _options(options))


def _options(words: Sequence[str]) -> Options:
    def value(name: str) -> str:
        return words[words.index(name) + 1] if name in words else ""

    roots = (value("--root-device"),) if "--root-device" in words else ()
    kind = Kind(value("--kind") or "auto")
    return Options(kind, value("--boot-id"), "--assume-kernel" in words, roots)


def said(entry: Entry) -> tuple[Expected, ...]:
    """Return what is said of an entry, in the form of ``expected``."""
    records = list(explain(entry.text.splitlines(keepends=True), entry.options))
    return tuple(_plain(record) for record in sorted(records, key=lambda r: r.line))


def _plain(record: Record) -> Expected:
    return (record.line, record.verdict.value, record.code, record.device)


@dataclass
class Confusion:
    """Counts over all lines of the corpus; a fault is a line that asks for a reboot or a replacement."""

    pairs: Counter[tuple[str, str]]
    hits: int = 0
    misses: int = 0
    false_alarms: int = 0
    right_silence: int = 0

    @property
    def precision(self) -> float:
        return self.hits / max(1, self.hits + self.false_alarms)

    @property
    def recall(self) -> float:
        return self.hits / max(1, self.hits + self.misses)

    @property
    def exact(self) -> float:
        return sum(n for (a, b), n in self.pairs.items() if a == b) / max(1, self.pairs.total())


def confusion(found: Sequence[tuple[Entry, tuple[Expected, ...]]]) -> Confusion:
    """Compare what was said with what was expected, line by line: the worst verdict of each line."""
    out = Confusion(Counter())
    for entry, records in found:
        for number in range(1, max(1, entry.text.rstrip(b"\n").count(b"\n") + 1) + 1):
            wanted, got = _worst(entry.expected, number), _worst(records, number)
            out.pairs[wanted, got] += 1
            is_fault, is_called = Word(wanted) in FAULTS if wanted else False, Word(got) in FAULTS if got else False
            out.hits += is_fault and is_called
            out.misses += is_fault and not is_called
            out.false_alarms += is_called and not is_fault
            out.right_silence += not is_called and not is_fault
    return out


_ORDER = ("", "ok", "app", "unknown", "warn", "reboot", "replace")


def _worst(records: Sequence[Expected], line: int) -> str:
    return max((r[1] for r in records if r[0] == line), key=_ORDER.index, default="")


def grep_for_xid(entry: Entry) -> tuple[Expected, ...]:
    """What people do without all this: every line with the word Xid in it is a fault."""
    lines = entry.text.decode(errors="replace").split("\n")
    return tuple((n, "reboot", "Xid", "") for n, line in enumerate(lines, 1) if re.search("Xid", line))


def flood(count: int) -> Iterator[str]:
    """Yield kernel lines as in a flood: new ones, each 25 times, of many devices."""
    for n in range(-(-count // 25)):
        text = f"NVRM: Xid (PCI:0000:{n % 256:02x}:00): {(79, 45, 31, 74)[n % 4]}, pid={n}, name=a"
        yield from (text for _ in range(min(25, count - n * 25)))


def table(result: Confusion) -> str:
    """Return the confusion table: expected verdicts down, given ones across."""
    names = [name for name in _ORDER if any(name in pair for pair in result.pairs)]
    shown = {name: name or "nothing" for name in names}
    head = f"{'expected':<10}" + "".join(f"{shown[name]:>9}" for name in names)
    rows = [f"{shown[a]:<10}" + "".join(f"{result.pairs[a, b] or '.':>9}" for b in names) for a in names]
    return "\n".join([head, *rows])
