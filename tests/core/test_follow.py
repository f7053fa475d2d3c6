"""Following a job: what Slurm's text means, when it is over, and how a growing file is put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.follow import OVERLAP, Reader, is_settled, parse_job

LINE = (
    "JobId={id} JobName=a b=c {more}JobState={state} Reason=None Requeue=1 Restarts={restarts} ExitCode={code} "
    "NodeList=worker-1 Command=/home/x/t.sh WorkDir=/home/x StdErr=/home/x/s.out StdIn=/dev/null "
    "StdOut=/home/x/my out.txt "
)


def line(state: str, code: str = "0:0", *, identity: int = 1, restarts: int = 0, more: str = "") -> str:
    return LINE.format(id=identity, state=state, code=code, restarts=restarts, more=more)


@pytest.mark.parametrize(
    ("state", "code", "is_final", "status"),
    [
        ("COMPLETED", "0:0", True, 0),
        ("FAILED", "3:0", True, 3),
        ("FAILED", "0:9", True, 137),
        ("TIMEOUT", "0:0", True, 1),
        ("CANCELLED", "0:15", True, 143),
        ("NODE_FAIL", "0:0", True, 1),
        ("RUNNING", "0:0", False, 1),
        ("COMPLETING", "3:0", False, 3),
        ("PENDING", "0:0", False, 1),
    ],
)
def test_a_state_has_an_exit_status(state: str, code: str, is_final: bool, status: int) -> None:
    look = parse_job(line(state, code))
    assert look is not None
    assert (look.is_final, look.status, look.output) == (is_final, status, "/home/x/my out.txt")


def test_an_array_is_over_when_all_of_it_is_and_ends_as_its_worst() -> None:
    running = parse_job("\n".join([line("COMPLETED", more="ArrayTaskId=1 "), line("RUNNING", identity=2)]))
    failed = parse_job("\n".join([line("COMPLETED"), line("FAILED", "4:0", identity=2, more="ArrayTaskId=2 ")]))
    assert running is not None
    assert failed is not None
    assert (running.state, running.is_array) == ("RUNNING", True)
    assert (failed.state, failed.status) == ("FAILED", 4)


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id specified", "slurm_load_jobs error: x"])
def test_text_about_no_job_is_none(text: str) -> None:
    assert parse_job(text) is None


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, True),
        ({"armed_by": "", "verdict": ""}, True),
        ({"armed_by": "job", "verdict": ""}, False),
        ({"armed_by": "job", "verdict": "Completed"}, True),
    ],
)
def test_an_armed_job_is_over_only_when_the_controller_says_so(shown: dict[str, str] | None, expected: bool) -> None:
    assert is_settled(shown) is expected


@given(st.lists(st.binary(max_size=2 * OVERLAP), max_size=8), st.lists(st.binary(max_size=2 * OVERLAP), max_size=8))
def test_a_file_is_read_whole_and_once_also_when_it_is_begun_anew(first: list[bytes], second: list[bytes]) -> None:
    reader, got = Reader(), b""
    for parts, mark in ((first, b"first:"), (second, b"second:")):
        file = mark
        for part in [*parts, b""]:
            file += part
            for _ in range(2):
                got += reader.take(file[reader.start :])
    assert got == b"first:" + b"".join(first) + b"second:" + b"".join(second)
