"""``hyperpod health``: what it prints and with which code it ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from hyperpod.cli.health import AgentSilent, ask, register
from hyperpod.core.finding import Finding, Severity

ANSWER: dict[str, Any] = {
    "node": "worker-1",
    "role": "worker",
    "instance_id": "i-0123456789abcdef0",
    "is_connected": True,
    "heard_s_ago": 0.3,
    "clock_offset_s": 0.002,
    "is_ready": True,
    "not_ready_because": "",
    "waiting_reports": 0,
    "findings": [],
    "checks": [{"name": "disk", "runs": 3, "is_running": False, "hangs": False, "last_problem": ""}],
    "kernel_lines": 12,
}

Serve = Callable[[bytes], str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """An agent that gives one answer, whatever it is asked."""
    path = str(tmp_path / "agent.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    answers: list[bytes] = []

    def work() -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client:
            client.recv(1000)
            client.sendall(answers[0])

    thread = threading.Thread(target=work, daemon=True)

    def start(answer: bytes) -> str:
        answers.append(answer)
        thread.start()
        return path

    yield start
    listener.close()


def run(path: str, *arguments: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)  # a program of one command would take no command's name
    register(app)
    return CliRunner().invoke(app, ["health", "--socket", path, *arguments])


def with_findings(*findings: Finding, **changes: Any) -> bytes:
    return json.dumps({**ANSWER, "findings": [f.to_dict() for f in findings], **changes}).encode() + b"\n.\n"


def test_a_healthy_node_is_ok(serve: Serve) -> None:
    result = run(serve(with_findings()))
    assert result.exit_code == 0
    assert result.stdout.startswith("OK worker-1 (worker, i-0123456789abcdef0), ready\n")
    assert "disk" in result.stdout


@pytest.mark.parametrize("severity", list(Severity))
def test_the_exit_code_is_that_of_the_worst_finding(serve: Serve, severity: Severity) -> None:
    finding = Finding("disk", "DiskFull", severity, "/ has 1 % free", device="/")
    result = run(serve(with_findings(finding)))
    assert result.exit_code == int(severity)
    assert "disk/DiskFull" in result.stdout
    assert "/ has 1 % free" in result.stdout


def test_a_node_that_is_not_ready_is_a_warning_with_the_reason(serve: Serve) -> None:
    result = run(serve(with_findings(is_ready=False, not_ready_because="slurmd is not running yet")))
    assert result.exit_code == 1
    assert "not ready: slurmd is not running yet" in result.stdout


def test_json_is_the_agents_answer_with_the_verdict(serve: Serve) -> None:
    result = run(serve(with_findings()), "--output", "json")
    answer = json.loads(result.stdout)
    assert (answer["severity"], answer["node"], answer["kernel_lines"]) == ("OK", "worker-1", 12)


def test_no_agent_is_unknown_and_says_where_to_look(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none.sock"))
    assert isinstance(result.exception, AgentSilent)
    assert result.exception.exit_code == 3
    assert "there is no agent here" in result.exception.message
    assert "systemctl status hyperpod-agent" in result.exception.hint


@pytest.mark.parametrize("answer", [b"nonsense\n.\n", b".\n", b"{}\n.\n", b"half an answer"])
def test_an_answer_that_makes_no_sense_is_unknown(serve: Serve, answer: bytes) -> None:
    result = run(serve(answer))
    assert isinstance(result.exception, AgentSilent)


def test_a_dead_socket_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
    with pytest.raises(AgentSilent, match="does not answer"):
        ask(str(path), {"type": "health"})
