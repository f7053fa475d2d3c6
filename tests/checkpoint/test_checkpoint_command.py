"""``python3 -m hyperpod.checkpoint``, as the controller and as people call it; and what a job asks about itself."""

from __future__ import annotations

import json
import os
import pwd
import signal
import sys
from pathlib import Path

import pytest

from hyperpod import checkpoint
from hyperpod.checkpoint.__main__ import main, report
from tests.checkpoint import builders


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_one_call_finds_sets_aside_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (100, 200):
        builders.step_folder(tmp_path / f"step_{step}")
    builders.truncate(builders.step_folder(tmp_path / "step_300") / "model.pt")
    code, answer = run(capsys, "scan", "--set-aside", "--deadline", "20", str(tmp_path))
    assert code == 0
    assert (answer["latest"], answer["step"], answer["certain"]) == (str(tmp_path / "step_200"), 200, True)
    assert len(answer["set_aside"]) == 1
    assert answer["problems"][0].startswith("step_300: model.pt is a truncated zip archive")
    assert answer["total_bytes"] > 0
    assert answer["unchecked"] == 1


def test_a_missing_directory_is_an_empty_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "scan", "--set-aside", str(tmp_path / "gone"))
    assert (code, answer["latest"], answer["step"], answer["certain"]) == (0, "", None, True)
    assert (answer["set_aside"], answer["problems"], answer["total_bytes"]) == ([], [], 0)


def test_a_directory_that_cannot_be_listed_is_not_called_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    code, answer = run(capsys, "scan", str(tmp_path / "file"))
    assert (code, answer["latest"], answer["certain"]) == (75, "", False)
    assert "Not a directory" in answer["problems"][0]


def test_a_newer_one_that_cannot_be_read_makes_the_answer_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.step_folder(tmp_path / "step_1")
    builders.step_folder(tmp_path / "step_2")
    real_scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).rstrip("/").endswith("step_2"):
            raise OSError(5, "Input/output error", path)
        return real_scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    answer = report(str(tmp_path), set_aside=True)
    assert (answer["latest"], answer["certain"], answer["set_aside"]) == (str(tmp_path / "step_1"), False, [])
    assert answer["problems"] == ["step_2: cannot read step_2: Input/output error"]


def test_a_slow_disk_is_given_up_at_the_deadline_and_nothing_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.truncate(builders.step_folder(tmp_path / "step_2") / "model.pt")
    builders.step_folder(tmp_path / "step_1")

    def expire(path: str, name: str | None = None) -> None:
        os.kill(os.getpid(), signal.SIGALRM)

    monkeypatch.setattr("hyperpod.checkpoint.layouts.check_file", expire)
    before = signal.getsignal(signal.SIGALRM)
    try:
        answer = report(str(tmp_path), set_aside=True, deadline_s=50)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (answer["latest"], answer["timed_out"], answer["certain"], answer["set_aside"]) == ("", True, False, [])
    assert answer["problems"] == ["not finished within 50 s"]
    assert sorted(os.listdir(tmp_path)) == ["step_1", "step_2"]


def test_names_that_are_not_utf8_come_back_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(root)
    directory = os.fsdecode(root)
    builders.step_folder(Path(directory) / "step_1")
    os.mkdir(os.fsencode(directory) + b"/step_2\xff")
    code, answer = run(capsys, "scan", directory)
    assert (code, answer["latest"]) == (0, directory + "/step_1")
    assert main(["latest", directory]) == 0
    assert capsys.readouterr().out.endswith("/step_1\n")


def test_latest_prints_a_path_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latest", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    builders.step_folder(tmp_path / "step_1")
    assert main(["latest", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'step_1'}\n"


def test_prune_only_says_what_it_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in range(3):
        builders.step_folder(tmp_path / f"step_{step}")
    assert main(["prune", str(tmp_path), "--keep", "2"]) == 0
    assert capsys.readouterr().out == f"would delete {tmp_path / 'step_0'}\n"
    assert main(["prune", str(tmp_path), "--keep", "2", "--yes"]) == 0
    assert capsys.readouterr().out == f"deleted {tmp_path / 'step_0'}\n"
    assert sorted(os.listdir(tmp_path)) == ["step_1", "step_2"]


def test_set_aside_and_usage_have_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step_1").mkdir()
    assert main(["set-aside", str(tmp_path)]) == 0
    assert ".incomplete-" in capsys.readouterr().out
    code, answer = run(capsys, "usage", str(tmp_path))
    assert (code, answer["checkpoints"], answer["set_aside"]) == (0, 0, 1)


def test_only_the_newest_of_many_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(50):
        builders.step_folder(tmp_path / f"step_{step}")
    opened = []
    monkeypatch.setattr("hyperpod.checkpoint.layouts.check_file", lambda path: opened.append(path))
    answer = report(str(tmp_path), set_aside=True)
    assert answer["step"] == 49
    assert {os.path.dirname(path) for path in opened} == {str(tmp_path / "step_49")}


# -- the job's own view ----------------------------------------------------------------------------------------------


def test_outside_an_armed_job_it_is_a_first_undisturbed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HYPERPOD_"):
            monkeypatch.delenv(name)
    assert checkpoint.resume_from() == ""
    assert checkpoint.attempt() == 1
    assert checkpoint.previous_failure() == ""
    assert checkpoint.checkpoint_dir("here") == "here"
    assert not checkpoint.peer_lost()


def test_in_a_later_attempt_it_reads_what_it_was_handed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_RESUME_FROM", "/fsx/step_4")
    monkeypatch.setenv("HYPERPOD_ATTEMPT", "3")
    monkeypatch.setenv("HYPERPOD_CHECKPOINT_DIR", "/fsx")
    monkeypatch.setenv("HYPERPOD_PREVIOUS_FAILURE", "node worker-1 was lost")
    monkeypatch.setenv("HYPERPOD_PEER_LOST", str(tmp_path / "lost"))
    assert (checkpoint.resume_from(), checkpoint.attempt()) == ("/fsx/step_4", 3)
    assert checkpoint.checkpoint_dir("here") == "/fsx"
    assert checkpoint.previous_failure() == "node worker-1 was lost"
    assert not checkpoint.peer_lost()
    (tmp_path / "lost").touch()
    assert checkpoint.peer_lost()


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "²"])
def test_a_strange_attempt_number_counts_as_the_first(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HYPERPOD_ATTEMPT", text)
    assert checkpoint.attempt() == 1


def test_the_warning_signal_only_sets_a_flag() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        flag = checkpoint.install_warning_flag()
        assert not flag.is_set
        os.kill(os.getpid(), signal.SIGUSR1)
        assert flag.is_set
        flag.clear()
        assert not flag.is_set
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_importing_it_loads_nothing_but_the_standard_library() -> None:
    import subprocess

    code = (
        "import sys; before = set(sys.modules)\n"
        "from hyperpod.checkpoint import save_atomically, scan, prune\n"
        "import hyperpod.checkpoint.__main__\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'hyperpod'}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=os.getcwd())
    assert shown.stdout.strip() == "[]"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of several users")
@pytest.mark.parametrize("planted", ["folder", "below", "link"])
def test_a_folder_that_carries_the_users_name_and_is_anothers_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    user, other = pwd.getpwnam("nobody").pw_uid, 54321
    monkeypatch.setattr(os, "geteuid", lambda: user)
    own = tmp_path / "nobody"
    builders.step_folder(own / "run" / "step_9")
    broken = builders.step_folder(own / "run" / "step_10")
    builders.truncate(broken / "model.pt")
    for path in (own, own / "run"):
        os.chown(path, user, user)
    assert report(str(own / "run"))["latest"] == str(own / "run" / "step_9"), "the user's own is offered"

    if planted == "link":
        own.rename(tmp_path / "elsewhere")
        own.symlink_to(tmp_path / "elsewhere")
        os.chown(own, other, other, follow_symlinks=False)
    else:
        os.chown(own if planted == "folder" else own / "run", other, other)
    answer = report(str(own / "run"), set_aside=True)

    assert (answer["latest"], answer["certain"], answer["set_aside"]) == ("", False, [])
    assert "is not yours" in answer["problems"][0]
    assert (own / "run" / "step_10").exists()


def test_a_team_folder_without_the_users_name_is_the_users_own_choice(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / "team" / "step_9")

    assert report(str(tmp_path / "team"))["step"] == 9
