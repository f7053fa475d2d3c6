"""What slurmd waits for where a deep check comes before the first job."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hyperpod.agent.__main__ import main
from hyperpod.agent.first_check import LIMIT_S, ask_agent, wait_until_closed
from hyperpod.errors import ConnectionLost

OWES = {"owes_deep": ["InstanceStress"], "is_closed": False}
CLOSED = {**OWES, "is_closed": True}
DONE: dict[str, Any] = {"owes_deep": [], "is_closed": False}
CASES: dict[str, tuple[list[Any], str, float]] = {
    "no check is wanted": ([{}], "no deep check is due", 0.0),
    "it is done already": ([DONE], "no deep check is due", 0.0),
    "jobs are kept away": ([CLOSED], "sends no job", 0.0),
    "after a moment": ([OWES, OWES, CLOSED], "sends no job", 0.4),
    "the agent starts late": ([FileNotFoundError(), OSError(), OWES, CLOSED], "sends no job", 0.6),
    "an answer that is none": ([ValueError("not JSON"), CLOSED], "sends no job", 0.2),
}


def wait(answers: list[Any]) -> tuple[str, float]:
    """Return what came of the wait, and how long it took."""
    now = [100.0]
    left = list(answers)

    def ask() -> Mapping[str, Any]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def sleep(duration_s: float) -> None:
        now[0] += duration_s

    try:
        told = wait_until_closed(ask, lambda: now[0], sleep)
    except ConnectionLost as error:
        told = f"ConnectionLost: {error.message}"
    return told, now[0] - 100.0


@pytest.mark.parametrize(("answers", "why", "seconds"), CASES.values(), ids=list(CASES))
def test_slurmd_starts_when_no_job_can_come(answers: list[Any], why: str, seconds: float) -> None:
    told, took = wait(answers)
    assert why in told
    assert took == pytest.approx(seconds, abs=0.25)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (OWES, "the controller has not said that Slurm sends no job here, in the last 30 s"),
        ({"owes_deep": ["InstanceStress"]}, "the controller has not said"),
        (OSError("refused"), "the agent does not answer (refused)"),
        (ValueError("not JSON"), "the agent does not answer"),
    ],
    ids=["the controller is away", "nothing is said", "the agent is away", "the agent is broken"],
)
def test_slurmd_does_not_start_while_a_job_could_come(answer: Any, why: str) -> None:
    told, took = wait([answer])
    assert told.startswith("ConnectionLost: slurmd waits, so that no job comes before the deep check")
    assert why in told
    assert took == pytest.approx(LIMIT_S, abs=0.25)


def test_a_try_that_fails_ends_with_a_status_that_keeps_slurmd_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> str:
        raise ConnectionLost("slurmd waits", hint="look there")

    monkeypatch.setattr("hyperpod.agent.__main__.wait_until_closed", refuse)
    config = tmp_path / "agent.json"
    config.write_text(
        json.dumps(
            {"cluster": "demo", "node": "worker-1", "group": "worker", "role": "worker", "head_address": "10.0.0.1"}
        )
    )
    assert main(["first-check", "--config", str(config)]) != 0
    assert "slurmd waits" in capsys.readouterr().err


def test_the_unit_of_slurmd_needs_the_check_to_succeed_and_tries_again() -> None:
    scripts = Path(__file__).parents[2] / "lifecycle_scripts"
    hold = (scripts / "steps" / "90_services.sh").read_text()
    assert "ExecStartPre=/opt/hyperpod/bin/hyperpod-agent first-check" in hold
    unit = (scripts / "units" / "slurmd.service.d" / "hyperpod.conf").read_text().splitlines()
    assert {"Restart=always", "StartLimitIntervalSec=0"} <= set(unit)
    (limit,) = (line.partition("=")[2] for line in unit if line.startswith("TimeoutStartSec="))
    assert int(limit) > LIMIT_S, "a try that systemd ends says nothing"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (json.dumps(CLOSED).encode() + b"\n.\n", CLOSED),
        (b"[]\n.\n", ValueError),
        (b"nonsense\n", ValueError),
        (b"", ValueError),
    ],
)
def test_the_agent_is_asked_over_its_socket(tmp_path: Path, answer: bytes, expected: Any) -> None:
    path = str(tmp_path / "agent.sock")
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                asked.append(client.recv(1000))
                client.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        if isinstance(expected, dict):
            assert ask_agent(path) == expected
        else:
            with pytest.raises(expected):
                ask_agent(path)
        server.join(5)
    assert json.loads(asked[0]) == {"v": 1, "type": "health"}
