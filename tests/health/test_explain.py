"""Explaining pasted text: what it does with bad input, and that its memory stays flat. What it says: the corpus."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.health.checks.kernel_log import KernelLog
from hyperpod.health.explain import Explainer, Kind, Options, explain
from hyperpod.health.log_lines import Writer, cleaned_line, parse_log_line
from hyperpod.health.record import Word
from hyperpod.health.registry import codes, is_code
from tests.health.labelled import flood, load

XID79 = "[ 1234.567890] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


def words(*lines: str | bytes, **options: object) -> list[str]:
    return [f"{r.line}:{r.verdict.value} {r.code}" for r in explain(lines, Options(**options))]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", Kind)
def test_no_bytes_can_break_it(kind: Kind) -> None:
    bad = [b"\xff\xfe\x00" * 50, b"", b"\n", b"{", b"[[[[", b'{"a":' * 2000, b"| \x00 |", b"<gpu id=", b"== ", b"\x1b["]
    list(explain(bad * 3, Options(kind)))


@given(st.lists(st.one_of(st.binary(max_size=80), st.text(max_size=80)), max_size=8), st.sampled_from(list(Kind)))
def test_no_text_can_break_it(lines: list[bytes | str], kind: Kind) -> None:
    for record in explain(lines, Options(kind)):
        json.dumps(record.to_dict())
        assert 1 <= record.line <= len(lines)


@given(st.text(max_size=100))
def test_no_text_of_a_kernel_line_can_break_it(text: str) -> None:
    list(explain([f"[ 1.0] NVRM: Xid (PCI:0000:9b:00): {text}", f"[ 1.0] {text}", f'{{"MESSAGE":"{text}"}}']))


def test_a_line_of_a_megabyte_is_read_from_its_beginning() -> None:
    assert words(XID79 + "x" * 1_000_000, "y" * 1_000_000) == ["1:reboot Xid79"]


def test_a_fault_behind_much_else_has_its_line_number() -> None:
    lines = [f"May  1 10:02:11 host systemd[1]: Started session {n}." for n in range(5000)]
    assert words(*lines, XID79) == ["5001:reboot Xid79"]


def test_an_unfinished_document_does_not_swallow_the_log_behind_it() -> None:
    assert words("{", '  "some": "thing",', XID79) == ["3:reboot Xid79"]


def test_output_of_two_tools_and_a_log_in_one_text_are_all_understood() -> None:
    found = words(
        "$ nvidia-smi -q",
        "GPU 00000000:9B:00.0",
        "    Remapped Rows",
        "        Remapping Failure Occurred        : Yes",
        "$ ibstat",
        "CA 'mlx5_3'",
        "\tPort 1:",
        "\t\tState: Down",
        "\t\tPhysical state: Disabled",
        "$ dmesg",
        XID79,
    )
    assert found == ["4:replace RemapFailed", "8:warn LinkDown", "11:reboot Xid79"]


def test_equal_addresses_on_two_hosts_are_two_gpus() -> None:
    first = "May  1 10:02:11 a kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    assert words(first, first.replace(" a ", " b ").replace("10:02", "10:42")) == ["1:reboot Xid79", "2:reboot Xid79"]


def test_what_is_assumed_stands_in_the_reason() -> None:
    (record,) = explain([XID79.partition("] ")[2]])
    assert "does not prove it" in record.reason
    (record,) = explain([XID79])
    assert "prove" not in record.reason


def test_what_is_waited_for_stands_in_the_reason() -> None:
    (record,) = explain(["[1.0] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:77]"])
    assert record.verdict is Word.WARN
    assert "2 within 10 minutes" in record.reason


@pytest.mark.parametrize(
    ("text", "writer"),
    [
        ("3,1,1,-;x", Writer.KERNEL),
        ("12,1,1,-;x", Writer.PROGRAM),
        ("[    1.0] x", Writer.KERNEL),
        ("x", Writer.NOBODY),
        ("May  1 10:02:11 h kernel: x", Writer.KERNEL),
        ("May  1 10:02:11 h kernel[1]: x", Writer.PROGRAM),
        ("May 32 10:02:11 h kernel: x", Writer.KERNEL),
        ("<3>x", Writer.KERNEL),
        ("<11>x", Writer.PROGRAM),
    ],
)
def test_the_writer_of_a_line_is_known_by_its_prefix(text: str, writer: Writer) -> None:
    line = parse_log_line(cleaned_line(text))
    assert (line.writer, line.text) == (writer, "x")


def _faults(count: int) -> Iterator[str]:
    for n in range(count):
        code = (79, 45, 31, 63, 119, 74)[n % 6]
        yield f"[{n * 0.01:.6f}] NVRM: Xid (PCI:0000:{n % 256:02x}:00): {code}, pid={n}, name=a, link {n % 99}(0x10000)"


def _size(value: object) -> int:
    return len(pickle.dumps(value))


def test_memory_stays_flat_over_many_events() -> None:
    explainer = Explainer(Options())
    sizes = []
    for number, text in enumerate(_faults(9000), 1):
        explainer.feed(number, text)
        if number % 3000 == 0:
            sizes.append(_size(explainer))
    assert sizes[-1] < sizes[0] * 1.5


def test_the_agents_memory_stays_flat_over_a_flood_of_fault_lines() -> None:
    # As floods are: most records repeat the one before. The benchmark health-corpus does this with 10^6 lines.
    log = KernelLog(boot_id="b1")
    sizes = []
    for sequence, text in enumerate(flood(24_000), 1):
        log.feed(f"3,{sequence},{sequence * 1000},-;{text}\n", 1.0)
        if sequence % 8_000 == 0:
            sizes.append(_size(log))
    assert log.lines == 24_000
    assert len(log.findings) <= 64
    assert sizes[-1] < sizes[0] * 1.2


def test_a_flood_of_one_line_is_counted_and_reported_in_steps() -> None:
    log = KernelLog(boot_id="b1")
    changes = sum(log.feed(f"3,{n},{n * 1000},-;{XID79.partition('] ')[2]}\n", 1.0) for n in range(1, 10_001))
    assert changes <= 5
    assert len(log.findings) == 1


def test_a_long_line_and_bad_bytes_do_not_trouble_the_agent() -> None:
    log = KernelLog(boot_id="b1")
    bad = b"NVRM: Xid (PCI:0000:9b:00): 79, name=\xff\xfe".decode("utf-8", errors="replace") + "x" * 1_000_000
    assert log.feed(f"3,1,1000,-;{bad}\n", 1.0)
    assert len(log.findings[0].evidence) <= 300
    assert _size(log) < 3_000_000


_OF_OTHERS = {"neuron_runtime", "slurm", "slurm_log", "slurm_reason", "sysfs"}
"""What the controller judges, or what only a person reads."""

_OF_TEXT = {"ToolFailed", "HostEngineLost", "FanUnread", "NeuronProgramErrors"}
"""What a text may say and a check sees otherwise: the tool itself failed, or a program."""


def test_what_asks_for_something_has_a_code_of_the_agents_check() -> None:
    for entry in load():
        for record in explain(entry.text.splitlines(keepends=True), entry.options):
            if record.verdict is Word.OK or record.check in _OF_OTHERS or record.code in _OF_TEXT:
                continue
            assert is_code(record.code, codes(record.check)), f"{entry.name}: {record.check}/{record.code}"
