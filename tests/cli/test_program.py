"""The program as a whole: its help, its errors, what it imports, and how it renders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from answers import job, node, status
from surroundings import Fakes, on_node

from hyperpod import __version__
from hyperpod.cli import ask, render
from hyperpod.cli.app import create_app
from hyperpod.cli.ask import Controller, error_from, parse_reply, reply_of, result_of
from hyperpod.errors import AccessDenied, ConnectionLost, HyperpodError, InvalidState, NotFound


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    if path and command.invoke_without_command:
        yield path, command
    for name, child in command.commands.items():
        yield from _commands(child, (*path, name))


COMMANDS = dict(_commands(typer.main.get_command(create_app())))


def test_all_commands_are_there() -> None:
    names = {" ".join(path) for path in COMMANDS}
    assert names >= {
        "create-cluster", "list-clusters", "describe-cluster", "list-nodes", "update-cluster", "replace-node",
        "reboot-node", "drain", "undrain", "ssh", "delete-cluster", "validate", "config show", "health", "jobs",
        "run", "submit", "logs", "rehearse", "health deep", "health offenders",
        "job show", "events", "status", "why", "breaker reset", "inject", "provider-serve",
        "version", "doctor",
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(fakes: Fakes, path: tuple[str, ...]) -> None:
    result = fakes.run(*path, "--help")
    assert (result.code, result.err) == (0, "")
    assert "Example" in result.out
    assert f"hyperpod {' '.join(path)}" in result.out.partition("Example")[2]
    assert "\x1b" not in result.out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_result_comes_as_json_too(path: tuple[str, ...]) -> None:
    options = {option for parameter in COMMANDS[path].params for option in parameter.opts}
    # What others write is passed on as it is.
    assert "--output" in options or path in {("ssh",), ("run",), ("logs",), ("provider-serve",)}


def test_the_program_alone_shows_its_help(fakes: Fakes) -> None:
    result = fakes.run()
    assert "Usage: hyperpod" in result.out + result.err
    assert "create-cluster" in result.out + result.err


def test_the_version(fakes: Fakes) -> None:
    assert fakes.run("--version").out == f"hyperpod {__version__}\n"
    assert fakes.run("version", "-o", "json").json["version"] == __version__


@pytest.mark.parametrize(
    ("argv", "complaint", "hint"),
    [
        (["staus"], "No such command 'staus'", "hyperpod --help"),
        (["status", "--wach"], "No such option", "hyperpod status --help"),
        (["job", "show"], "Missing argument", "hyperpod job show --help"),
        (["jobs", "-o", "xml"], "xml", "hyperpod jobs --help"),
        (["status", "demo"], "extra argument", "--cluster NAME names the cluster; hyperpod status --help"),
        (["events", "--limit", "0"], "--limit", "hyperpod events --help"),
    ],
)
def test_a_mistake_of_usage_is_one_line_and_a_hint(fakes: Fakes, argv: list[str], complaint: str, hint: str) -> None:
    result = fakes.run(*argv)
    assert (result.code, result.out) == (2, "")
    first, second = result.err.splitlines()
    assert first.startswith("error: ")
    assert complaint in first
    assert second == f"hint: {hint}"


def test_an_interrupt_says_that_it_is_safe_to_run_again(fakes: Fakes) -> None:
    fakes.machines.error = KeyboardInterrupt()  # type: ignore[assignment]
    result = fakes.run("list-clusters")
    assert result.code == 130
    assert result.err == "interrupted: nothing is lost, it is safe to run the same command again\n"


def test_a_mistake_of_ours_is_one_line_and_debug_shows_the_traceback(fakes: Fakes) -> None:
    fakes.machines.error = ZeroDivisionError("by zero")
    result = fakes.run("list-clusters")
    assert result.code == 1
    assert result.err.splitlines()[0] == "error: ZeroDivisionError: by zero"
    assert "Traceback" not in result.err
    result = fakes.run("list-clusters", "--debug")
    assert "Traceback" in result.err
    assert result.code == 1


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (OSError(28, "No space left on device"), "error: no disk space: "),
        (PermissionError(13, "Permission denied", "/var/lib/hyperpod/x"), "error: no right to use /var/lib/hyperpod/x"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "error: /x: No such file or directory"),
    ],
)
def test_errors_of_the_system_are_told_plainly(fakes: Fakes, error: OSError, first: str) -> None:
    fakes.machines.error = error
    result = fakes.run("list-clusters")
    assert result.code == 1
    assert result.err.startswith(first)


def test_a_message_of_many_lines_stays_together(fakes: Fakes) -> None:
    fakes.machines.error = NotFound("first\nsecond", hint="third")
    assert fakes.run("list-clusters").err == "error: first\n       second\nhint: third\n"


def test_help_and_questions_import_nothing_slow() -> None:
    """The same program runs on nodes, where the cloud's libraries are missing and every start counts."""
    slow = ("boto3", "botocore", "paramiko", "yaml", "asyncio", "hyperpod.core.spec")
    code = (
        "import sys; from hyperpod.cli.app import main; main(['--help']); main(['status', '--help']); "
        f"print([m for m in {slow} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_late_command_without_its_library_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, fakes: Fakes) -> None:
    monkeypatch.delitem(sys.modules, "hyperpod.cli.spec", raising=False)
    monkeypatch.delitem(sys.modules, "hyperpod.adapters.aws.model", raising=False)
    monkeypatch.setitem(sys.modules, "botocore", None)
    result = fakes.run("validate", "x.yaml", "--some-option")
    assert result.code == 1
    assert "needs the Python library botocore" in result.err


# --- the question behind the commands ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [NotFound, AccessDenied, ConnectionLost, HyperpodError])
def test_an_error_crosses_the_wire_in_its_own_class(kind: type[HyperpodError]) -> None:
    back = error_from(reply_of(kind("what", hint="do")))
    assert type(back) is kind
    assert (str(back), back.message, back.hint, back.exit_code) == ("what", "what", "do", kind.exit_code)


def test_an_error_with_its_own_arguments_crosses_the_wire_too() -> None:
    back = error_from(reply_of(InvalidState("undrain worker-1", "replacing")))
    assert type(back) is InvalidState
    assert back.message == "cannot undrain worker-1: it is replacing"


@pytest.mark.parametrize("name", ["Nonsense", "annotations", "", "timedelta"])
def test_an_error_of_an_unknown_name_is_a_plain_one(name: str) -> None:
    assert type(error_from({"ok": False, "error": name, "message": "x"})) is HyperpodError


def test_a_result_is_returned_and_a_message_carries_question_and_arguments() -> None:
    seen: list[tuple[dict[str, Any], float]] = []

    def send(message: Any, timeout_s: float) -> dict[str, Any]:
        seen.append((message, timeout_s))
        return {"ok": True, "result": [1]}

    assert Controller(send).query("jobs", running=True) == [1]
    assert seen[0][0] == {"type": "query", "what": "jobs", "args": {"running": True}}
    assert result_of({"ok": True}) is None


@pytest.mark.parametrize("text", ["", "Traceback\nImportError: x", "[1]"])
def test_what_is_no_reply_is_told_with_its_last_line(text: str) -> None:
    with pytest.raises(ConnectionLost) as caught:
        parse_reply(text, "head-1")
    assert (text.splitlines() or ["no answer"])[-1] in caught.value.message


def test_ask_prints_errors_as_replies(fakes: Fakes, tmp_path: Path) -> None:
    missing = fakes.run("ask", json.dumps({"type": "query"}), "1")
    assert missing.code == 0
    assert missing.json["error"] == "ConfigError"
    assert fakes.run("ask", "{", "1").json["error"] == "UsageError"
    assert fakes.run("ask", "[]", "1").json["error"] == "UsageError"
    assert fakes.run("ask").json["error"] == "UsageError"


def test_a_damaged_agent_configuration_is_named(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    fakes.place.node_controller = lambda path: Controller(ask.send_by_agent_config(path))
    fakes.place.agent_config.write_text("{")
    result = fakes.run("status")
    assert result.code == 2
    assert "agent.json: not JSON" in result.err


# --- rendering --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.04, "0.0 s"), (9.96, "10.0 s"), (42, "42 s"), (720, "12 min"), (9000, "2.5 h"), (259200, "3.0 d")],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert render.duration(seconds) == text


def test_tables_fit_100_columns_without_cutting_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    reason = (
        "hyperpod:kernel_log/Xid79 the GPU at 0000:65:00 has fallen off the bus [node] (i-0000000000000000b, boot 1)"
    )
    nodes = [node("worker-12", "drained (person)", reason=reason, jobs=[4211]), node("worker-3", "in use")]
    jobs = [job(4211, nodes=["worker-12", "worker-3"], verdict="NoProgress", verdict_message="failed twice " * 8)]
    render.print_result(*render.status_screen(status(nodes=nodes, jobs=jobs)))
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if not line.startswith(("breaker", "budget", "note"))]
    assert max(map(len, table)) <= 100
    text = "\n".join(table)
    for whole in ("worker-12", "drained (person)", "i-0000000000000000b", "4211", "worker-12,worker-3", "step_400"):
        assert whole in text


def test_without_a_terminal_lines_are_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    render.print_result(render.table(("A", "WHY"), [("x", "word " * 100)]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert not any(line.endswith(" ") for line in lines)


def test_a_path_or_mark_up_in_a_cell_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_result(render.table(("A",), [("[red]x[/red] :smile:",)]))
    assert capsys.readouterr().out == "A\n[red]x[/red] :smile:\n"
