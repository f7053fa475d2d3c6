"""What slurmd waits for where a deep check comes before the first job."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hyperpod.agent.first_check import LIMIT_S, ask_agent, wait_until_closed

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
    "the controller is away": ([OWES], "has not closed this node within 60 s", LIMIT_S),
    "the agent is away": ([OSError()], "has not closed this node within 60 s", LIMIT_S),
}


@pytest.mark.parametrize(("answers", "why", "seconds"), CASES.values(), ids=list(CASES))
def test_slurmd_waits_until_no_job_can_come_and_never_for_ever(answers: list[Any], why: str, seconds: float) -> None:
    now = [100.0]
    left = list(answers)

    def ask() -> Mapping[str, Any]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def sleep(duration_s: float) -> None:
        now[0] += duration_s

    assert why in wait_until_closed(ask, lambda: now[0], sleep)
    assert now[0] - 100.0 == pytest.approx(seconds, abs=0.25)


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
