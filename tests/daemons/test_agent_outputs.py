"""The end of a failed job's output on a node with Neuron devices."""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hyperpod.adapters.process import Processes
from hyperpod.agent.loop import OUTPUT_BYTES, OUTPUT_SETTLE_S, end_of_output
from hyperpod.agent.outputs import KEPT_S, JobOutputs, Output, parse_output
from hyperpod.core.finding import Action, Severity
from hyperpod.errors import CommandError, CommandTimeout

AT = datetime(2025, 1, 1, tzinfo=UTC)
LINE = "2025-Jan-01 00:00:00.0001 4242:4311 ERROR  NRT:nrt_infodump nd3 status=1202 (NRT_EXEC_HW_ERR_NC_UE)\n"

TEXTS: dict[str, tuple[str, list[str]]] = {
    "a core failed": (LINE, ["Nrt1202 [nd3]"]),
    "said on every rank": (LINE * 500, ["Nrt1202 [nd3]"]),
    "two devices": (LINE + LINE.replace("nd3", "nd4"), ["Nrt1202 [nd3]", "Nrt1202 [nd4]"]),
    "without a device": ("nrt_execute failed with status 1201\n", ["Nrt1201"]),
    "a time-out": ("NRT: execution timed out, NRT_TIMEOUT\n", ["Nrt5"]),
    "the program's own": ("nrt_execute status=1003 numerical error\n", []),
    "a five that is something else": ("neuron: epoch 3, status=5\n", []),
    "a number that is not the runtime's": ("loss 1202, error code 1202\n", []),
    "nothing": ("", []),
    "bytes that are no text": ("\ufffd\ufffd\0NRT status=12021\n\r\x1b[31m", []),
    "an endless line": ("neuron " + "x" * 60_000 + " status=1202", []),
    "more than anybody needs": ("".join(LINE.replace("nd3", f"nd{n}") for n in range(9)), [
        f"Nrt1202 [nd{n}]" for n in range(4)]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=list(TEXTS))
def test_statuses_of_the_runtime_are_hints_and_never_more(text: str, expected: list[str]) -> None:
    outputs = JobOutputs("boot-1", "i-1")
    assert outputs.took(7, text, 100.0, AT) is bool(expected)
    found = outputs.findings
    assert [f.code + (f" [{f.device}]" if f.device else "") for f in found] == expected
    assert {(f.severity, f.action, f.is_hard, f.job_id, f.boot_id) for f in found} <= {
        (Severity.WARN, Action.NONE, False, 7, "boot-1")
    }


def test_users_words_are_not_repeated() -> None:
    outputs = JobOutputs("boot-1", "i-1")
    outputs.took(7, "NRT status=1202 my secret token\n", 100.0, AT)
    assert "secret" not in str(outputs.findings[0].to_dict())


def test_findings_end_after_a_while_and_are_few() -> None:
    outputs = JobOutputs("boot-1", "i-1")
    for job_id in range(40):
        outputs.took(job_id, LINE, 100.0, AT)
    assert [f.job_id for f in outputs.findings] == list(range(24, 40))
    assert not outputs.forget(100.0 + KEPT_S)
    assert outputs.forget(101.0 + KEPT_S)
    assert outputs.findings == ()
    assert not outputs.forget(102.0 + KEPT_S)


@pytest.mark.parametrize(
    "data",
    [
        None,
        "x",
        {},
        {"job_id": "7", "uid": 0, "path": "/a"},
        {"job_id": 7, "uid": True, "path": "/a"},
        {"job_id": 7, "uid": -1, "path": "/a"},
        {"job_id": 7, "uid": 1000, "path": "a"},
        {"job_id": 7, "uid": 1000, "path": "/a\0b"},
        {"job_id": 7, "uid": 1000, "path": None},
    ],
)
def test_an_order_that_cannot_be_meant_is_left_out(data: object) -> None:
    assert parse_output(data) is None


# --- reading --------------------------------------------------------------------------------------------------------


def read(path: Path, uid: int | None = None) -> str:
    pauses: list[float] = []
    text = end_of_output(Processes(), Output(7, os.getuid() if uid is None else uid, str(path)), pauses.append)
    assert pauses == [OUTPUT_SETTLE_S]
    return text


def test_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "-slurm 7.out"
    log.write_text("x" * 200_000 + LINE)
    text = read(log)
    assert (len(text), text.endswith(LINE)) == (OUTPUT_BYTES, True)


def test_a_pipe_in_the_files_place_holds_up_its_reader_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod.agent.loop.OUTPUT_TIMEOUT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CommandTimeout):
        read(tmp_path / "pipe")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_link_shows_no_more_than_the_user_may_see(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    (tmp_path / "out").symlink_to("/etc/shadow")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    with pytest.raises(CommandError, match="Permission denied"):
        read(tmp_path / "out", nobody)


def test_a_user_that_is_not_known_reads_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        end_of_output(Processes(), Output(7, 4_000_000_000 - 7, str(tmp_path)), lambda _: None)
