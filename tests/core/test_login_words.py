"""What people write to get onto a node, and how it is understood."""

from __future__ import annotations

import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.login import (
    Forward,
    Words,
    parse_forward,
    parse_since,
    parse_user,
    put_argv,
    read_words,
    remote_line,
)
from hyperpod.errors import UsageError

KNOWN = ["demo", "ml-1"]


@pytest.mark.parametrize(
    ("words", "option", "expected"),
    [
        ([], None, (None, None, ())),
        ([], "demo", ("demo", None, ())),
        (["demo"], None, ("demo", None, ())),
        (["ml-1"], None, ("ml-1", None, ())),
        (["worker-1"], None, (None, "worker-1", ())),
        (["head"], None, (None, "head", ())),
        (["i-0123456789abcdef0"], None, (None, "i-0123456789abcdef0", ())),
        (["demo", "worker-1"], None, ("demo", "worker-1", ())),
        (["other", "worker-1"], None, ("other", "worker-1", ())),
        (["ml-1", "worker-1"], None, ("ml-1", "worker-1", ())),
        (["demo", "worker-1", "ls", "/"], None, ("demo", "worker-1", ("ls", "/"))),
        (["worker-1", "ls", "/"], None, (None, "worker-1", ("ls", "/"))),
        (["worker-1"], "demo", ("demo", "worker-1", ())),
        (["demo", "worker-1"], "demo", ("demo", "worker-1", ())),
        (["demo"], "demo", ("demo", None, ())),
        (["worker-1", "ls"], "ml-1", ("ml-1", "worker-1", ("ls",))),
        (["typo"], None, ("typo", None, ())),
    ],
    ids=str,
)
def test_words_are_told_apart(
    words: list[str], option: str | None, expected: tuple[str | None, str | None, tuple[str, ...]]
) -> None:
    assert read_words(words, option, lambda: KNOWN) == Words(*expected)


def test_clusters_are_not_listed_where_the_words_are_plain() -> None:
    def forbidden() -> list[str]:
        raise AssertionError("a call that is not needed")

    assert read_words(["demo", "worker-1"], None, forbidden).cluster == "demo"
    assert read_words(["worker-1"], "demo", forbidden).node == "worker-1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8888:worker-1:80", Forward("127.0.0.1", 8888, "worker-1", 80)),
        ("localhost:8888:localhost:80", Forward("127.0.0.1", 8888, "localhost", 80)),
        ("*:8888:10.0.0.1:80", Forward("0.0.0.0", 8888, "10.0.0.1", 80)),
        ("[::1]:0:[fd00::2]:80", Forward("::1", 0, "fd00::2", 80)),
    ],
)
def test_forwards_are_read(text: str, expected: Forward) -> None:
    assert parse_forward(text) == expected


@pytest.mark.parametrize(
    "text", ["", "8888", "8888:80", "x:worker-1:80", "8888:worker-1:x", "70000:w:80", "1:w:0", "1:w:65536", "1:a b:2"]
)
def test_a_wrong_forward_is_one_line_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_forward(text)
    assert "must be [ADDRESS:]PORT:HOST:PORT" in caught.value.message
    assert caught.value.hint.startswith("-L 8888:worker-1:8888")


@pytest.mark.parametrize("name", ["", "-oProxyCommand=x", "a b", "root;id", "x" * 40, "../x"])
def test_what_cannot_be_a_login_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a login name"):
        parse_user(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", datetime(2026, 1, 2, 11, 58, 30, tzinfo=UTC)),
        ("15m", datetime(2026, 1, 2, 11, 45, tzinfo=UTC)),
        ("1d", datetime(2026, 1, 1, 12, 0, tzinfo=UTC)),
        ("999999999d", datetime(1970, 1, 1, tzinfo=UTC)),
        ("2026-01-01T03:04", datetime(2026, 1, 1, 3, 4, tzinfo=UTC)),
        ("2026-01-01 03:04:05+00:00", datetime(2026, 1, 1, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_times_are_read(text: str, expected: datetime) -> None:
    assert parse_since(text, datetime(2026, 1, 2, 12, 0, tzinfo=UTC)) == expected


@pytest.mark.parametrize("text", ["yesterday", "15", "m", "-5m", "2026-13-01"])
def test_a_wrong_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        parse_since(text, datetime(2026, 1, 2, tzinfo=UTC))


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_a_line_holds_the_words_of_its_command_unchanged(words: list[str]) -> None:
    line = shlex.split(remote_line(words))
    assert line[:2] == ["/bin/sh", "-c"]
    inner = line[2].removesuffix("; exit $?").partition("; ")[2]
    assert shlex.split(inner) == words


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_line_ends_with_the_status_of_its_command(shell: str) -> None:
    def status(*argv: str) -> int:
        return subprocess.run([shell, "-c", remote_line(argv, mark="HP=1")], timeout=10, check=False).returncode

    assert [status("true"), status("sh", "-c", "exit 7"), status("sh", "-c", "kill -15 $$")] == [0, 7, 143]


def test_a_file_is_put_by_a_shell_without_touching_another(tmp_path: Path) -> None:
    def put(data: bytes) -> str:
        done = subprocess.run(
            put_argv("jobs", "a.b.sh"), input=data, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True, timeout=10, check=True,
        )  # fmt: skip
        return done.stdout.decode().strip()

    assert [put(b"one"), put(b"two")] == [f"{tmp_path}/jobs/a.b-{n}/a.b.sh" for n in (1, 2)]
    assert (tmp_path / "jobs/a.b-1/a.b.sh").read_bytes() == b"one"
