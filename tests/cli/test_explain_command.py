"""``hyperpod health explain``: where the text comes from, the two forms of the result, and its exit status."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from hyperpod.cli.explain import kind_of
from hyperpod.cli.health import register
from hyperpod.errors import HyperpodError, NotFound, UsageError
from hyperpod.health.explain import Kind

XID79 = "[ 1234.567890] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
XID45 = "[ 1234.6] NVRM: Xid (PCI:0000:9b:00): 45, pid=7, name=a, Ch 00000008\n"


def run(*arguments: str, text: str | bytes = "") -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return CliRunner().invoke(app, ["health", "explain", *arguments], input=text)


def test_a_bad_log_is_explained_with_status_0() -> None:
    result = run(text=XID79)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split() == ["LINE", "VERDICT", "FINDING", "DEVICE", "WHY"]
    assert result.stdout.splitlines()[1].split()[:4] == ["1", "reboot", "kernel_log/Xid79", "0000:9b:00.0"]


def test_json_is_one_array_of_records() -> None:
    result = run("-", "--output", "json", text=XID79 + XID45)
    records = json.loads(result.stdout)
    assert [(r["line"], r["verdict"]) for r in records] == [(1, "reboot"), (2, "app")]
    assert list(records[0]) == ["line", "check", "code", "device", "verdict", "reason"]


def test_nothing_found_is_an_empty_array() -> None:
    assert json.loads(run("--output", "json", text="all is well\n").stdout) == []
    assert json.loads(run("--output", "json").stdout) == []


def test_repeats_are_counted_in_the_table_and_kept_in_json() -> None:
    assert "99 more like this, until line 100" in run(text=XID45 * 100).stdout
    assert len(json.loads(run("-o", "json", text=XID45 * 100).stdout)) == 100


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(XID79)
    assert "Xid79" in run(str(tmp_path / "log")).stdout


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_a_log_that_was_rotated_into_a_packed_file_is_read(tmp_path: Path, module: Any) -> None:
    path = tmp_path / "kern.log.2.packed"
    path.write_bytes(module.compress(XID79.encode()))
    assert "Xid79" in run(str(path)).stdout


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_a_damaged_packed_log_is_one_clear_error(tmp_path: Path, module: Any) -> None:
    path = tmp_path / "kern.log.2.packed"
    path.write_bytes(module.compress(XID79.encode() * 1000)[:-12] + b"x")
    assert isinstance(run(str(path)).exception, UsageError)


@pytest.mark.parametrize(("begin", "program"), [(b"LPKSHHRH\0", "journalctl"), (b"\x28\xb5\x2f\xfd\0", "zstdcat")])
def test_what_is_no_text_names_the_program_that_makes_it_text(tmp_path: Path, begin: bytes, program: str) -> None:
    path = tmp_path / "system.journal"
    path.write_bytes(begin + bytes(1000))
    error = run(str(path)).exception
    assert isinstance(error, UsageError)
    assert error.hint.startswith(program)


@pytest.mark.parametrize(("name", "kind"), [("", UsageError), ("missing", NotFound)])
def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path, name: str, kind: type[HyperpodError]) -> None:
    result = run(str(tmp_path / name))
    assert isinstance(result.exception, kind)
    assert str(tmp_path) in result.exception.message


def test_escape_sequences_of_a_log_do_not_reach_the_terminal() -> None:
    result = run(text="[1.0] EXT4-fs error (device sd\x1b[31ma\u202e): x\n")
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout


def test_a_kind_has_more_than_one_name() -> None:
    assert kind_of("dmesg") is Kind.KMSG
    assert kind_of("nvidia_smi") is Kind.NVIDIA_SMI
    with pytest.raises(UsageError) as error:
        kind_of("runes")
    assert "nvidia-smi" in error.value.hint


def test_options_say_what_the_text_cannot_prove() -> None:
    text = "loss 1.0\nloss 2.0\nloss 3.0\n" + XID79.partition("] ")[2]
    assert "reboot" not in run(text=text).stdout
    assert "reboot" in run("--assume-kernel", text=text).stdout
    scratch = "[1.0] EXT4-fs error (device nvme4n1): bad\n"
    assert "replace" in run("--root-device", "/dev/nvme4n1", text=scratch).stdout
