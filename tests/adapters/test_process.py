"""Running programs: deadlines, whole process groups, and errors that say what happened."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from hyperpod.adapters.process import Processes
from hyperpod.errors import CommandError, CommandTimeout


def test_returns_both_outputs_and_the_status() -> None:
    done = Processes().run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10, check=False)

    assert (done.stdout, done.stderr, done.code) == ("out\n", "err\n", 3)


def test_a_status_other_than_zero_is_an_error_with_the_last_lines() -> None:
    with pytest.raises(CommandError) as caught:
        Processes().run(["sh", "-c", "echo first >&2; echo the reason >&2; exit 7"], timeout_s=10)

    assert caught.value.code == 7
    assert "the reason" in caught.value.message


def test_input_reaches_the_program_and_without_it_there_is_none() -> None:
    assert Processes().run(["cat"], timeout_s=10, input="hällo").stdout == "hällo"
    assert Processes().run(["cat"], timeout_s=10).stdout == ""


def test_variables_are_added_to_the_environment() -> None:
    done = Processes().run(["sh", "-c", "echo $HP_TEST; command -v sh"], timeout_s=10, env={"HP_TEST": "x"})

    assert done.stdout.splitlines()[0] == "x"


def test_arguments_are_never_read_by_a_shell() -> None:
    assert Processes().run(["echo", "$(id) `id` ; id"], timeout_s=10).stdout == "$(id) `id` ; id\n"


def test_output_that_is_no_text_does_not_end_the_reader() -> None:
    assert "�" in Processes().run(["printf", "\\377"], timeout_s=10).stdout


def test_a_missing_program_is_an_error_with_a_hint() -> None:
    with pytest.raises(CommandError) as caught:
        Processes().run(["hyperpod-no-such-program"], timeout_s=10)

    assert caught.value.code == 127
    assert "installed" in caught.value.hint


def test_an_unknown_user_is_an_error() -> None:
    with pytest.raises(CommandError):
        Processes().run(["true"], timeout_s=10, user="no-such-user-here")


def test_the_deadline_ends_the_program_and_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    began = time.monotonic()

    with pytest.raises(CommandTimeout):
        Processes().run(["sh", "-c", f"sleep 60 & echo $! > {pid_file}; wait"], timeout_s=0.3)

    assert time.monotonic() - began < 5
    assert _is_gone(int(pid_file.read_text()))


def test_lines_come_one_by_one_also_those_of_a_progress_bar() -> None:
    seen: list[str] = []

    Processes().stream(["printf", "a\\nb\\rc\\nlast"], timeout_s=10, on_line=seen.append)

    assert seen == ["a", "b", "c", "last"]


def test_a_streamed_program_that_fails_is_an_error_with_its_last_lines() -> None:
    with pytest.raises(CommandError) as caught:
        Processes().stream(["sh", "-c", "echo E: no space; exit 4"], timeout_s=10, on_line=lambda _line: None)

    assert (caught.value.code, "no space" in caught.value.stderr_tail) == (4, True)


def test_a_streamed_program_has_a_deadline_too() -> None:
    with pytest.raises(CommandTimeout):
        Processes().stream(["sleep", "60"], timeout_s=0.2, on_line=lambda _line: None)


def test_a_detached_program_outlives_its_starter_in_a_session_of_its_own(tmp_path: Path) -> None:
    pid = Processes().start_detached(
        ["sh", "-c", "echo started; echo $HP_TEST"], log=tmp_path / "x/log", env={"HP_TEST": "v"}
    )
    os.waitpid(pid, 0)

    assert (tmp_path / "x/log").read_text() == "started\nv\n"


def _is_gone(pid: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        os.sched_yield()
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_users_process_has_the_users_groups_and_nothing_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setattr(os, "getgrouplist", lambda _user, group: [group, 54321])
    script = "id -G; pwd; echo ${NOTIFY_SOCKET-unset} $HP_TEST"

    done = Processes().run(["sh", "-c", script], timeout_s=10, user="nobody", env={"HP_TEST": "x"})

    nobody = pwd.getpwnam("nobody").pw_gid
    assert done.stdout.splitlines() == [f"{nobody} 54321", "/", "unset x"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_users_process_cannot_fill_our_memory() -> None:
    with pytest.raises(CommandError, match="printed more than"):
        Processes().run(["cat", "/dev/zero"], timeout_s=10, user="nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_users_process_is_given_input_and_a_deadline_as_any_other() -> None:
    assert Processes().run(["cat"], timeout_s=10, user="nobody", input="text").stdout == "text"
    with pytest.raises(CommandTimeout):
        # Its child leaves the process group and keeps the pipe.
        Processes().run(["sh", "-c", "setsid sleep 3 & sleep 3"], timeout_s=0.2, user="nobody")


def test_a_held_program_runs_beside_and_ends_with_the_caller(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    with Processes().hold([["sh", "-c", f"echo $$ >{mark}.new; mv {mark}.new {mark}; exec sleep 60"]]):
        deadline = time.monotonic() + 10
        while not mark.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pid = int(mark.read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_dialled_program_is_a_connection_and_tells_what_it_complained_of() -> None:
    line = Processes().dial(["sh", "-c", "read word; echo got $word; echo bad luck >&2"])
    line.socket.sendall(b"hello\n")
    assert line.socket.recv(100) == b"got hello\n"
    assert line.socket.recv(100) == b""
    assert line.complaint() == "bad luck"
    line.close()
    with pytest.raises(CommandError, match="is-not-there"):
        Processes().dial(["is-not-there"])
