"""The agent's unix socket: rights, many clients, clients that misbehave."""

from __future__ import annotations

import json
import os
import selectors
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperpod.agent import server as server_module
from hyperpod.agent.server import IDLE_S, SocketServer


class Stage:
    """A server with its selector; requests are answered when a test says so."""

    def __init__(self, folder: Path, allowed: tuple[int, ...]) -> None:
        self.path = str(folder / "run" / "agent.sock")
        self.selector = selectors.DefaultSelector()
        self.requests: list[tuple[int, dict[str, Any]]] = []
        self.answers_at_once = True
        self.server = SocketServer(self.path, self.selector, self._on_request, allowed=allowed)

    def _on_request(self, client: int, request: dict[str, Any]) -> None:
        self.requests.append((client, request))
        if self.answers_at_once:
            self.server.reply(client, (f"N={request.get('n', 0)}",))

    def turn(self, now: float = 0.0, rounds: int = 5) -> None:
        """Handle what has come in; everything is local, so nothing is waited for."""
        for _ in range(rounds):
            for key, mask in self.selector.select(0):
                key.data(mask, now)

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(self.path)
        client.setblocking(False)
        return client


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, (os.getuid(),))
    yield made
    made.server.close()
    made.selector.close()


def send(client: socket.socket, *requests: object) -> None:
    client.sendall(b"".join(json.dumps(r).encode() + b"\n" for r in requests))


def test_the_socket_is_roots_only_in_a_folder_that_all_may_enter(stage: Stage) -> None:
    assert stat.S_IMODE(os.stat(stage.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(stage.path)).st_mode) & 0o755 == 0o755


def test_an_answer_is_lines_ended_by_a_dot(stage: Stage) -> None:
    with stage.connect() as client:
        send(client, {"n": 1})
        stage.turn()
        assert client.recv(100) == b"N=1\n.\n"


def test_a_request_in_pieces_is_one_request(stage: Stage) -> None:
    with stage.connect() as client:
        for piece in (b'{"n"', b": 2", b"}\n"):
            client.sendall(piece)
            stage.turn()
        assert client.recv(100) == b"N=2\n.\n"


def test_two_requests_at_once_get_two_answers(stage: Stage) -> None:
    with stage.connect() as client:
        send(client, {"n": 1}, {"n": 2})
        stage.turn()
        assert client.recv(100) == b"N=1\n.\nN=2\n.\n"


def test_a_message_of_a_client_that_does_not_wait_counts(stage: Stage) -> None:
    with stage.connect() as client:
        send(client, {"n": 3})
    stage.turn()
    assert [request for _, request in stage.requests] == [{"n": 3}]
    assert len(stage.selector.get_map()) == 1


@pytest.mark.parametrize("text", [b"nonsense\n", b"[]\n", b"\n", b"\xff\xfe\n", b"[" * 30000 + b"\n", b"null\n"])
def test_nonsense_gets_an_empty_answer_and_the_next_request_works(stage: Stage, text: bytes) -> None:
    with stage.connect() as client:
        client.sendall(text)
        stage.turn()
        assert client.recv(100) == b".\n"
        send(client, {"n": 4})
        stage.turn()
        assert client.recv(100) == b"N=4\n.\n"


def test_a_request_without_an_end_is_given_up(stage: Stage) -> None:
    with stage.connect() as client:
        client.sendall(b"x" * 50_000)
        stage.turn()
        client.sendall(b"x" * 50_000)
        stage.turn()
        assert client.recv(100) == b""


def test_another_user_is_turned_away(tmp_path: Path) -> None:
    stage = Stage(tmp_path, (os.getuid() + 1,))
    with stage.connect() as client:
        stage.turn()
        assert client.recv(100) == b""
    assert stage.requests == []
    stage.server.close()


def test_256_clients_at_once_all_get_their_answer(stage: Stage) -> None:
    clients = []
    for number in range(256):
        client = stage.connect()
        send(client, {"n": number})
        clients.append(client)
    stage.turn()
    assert [client.recv(100) for client in clients] == [b"N=%d\n.\n" % number for number in range(256)]
    for client in clients:
        client.close()
    stage.turn()
    assert len(stage.selector.get_map()) == 1


def test_a_client_that_waits_does_not_hold_up_others(stage: Stage) -> None:
    stage.answers_at_once = False
    with stage.connect() as slow, stage.connect() as quick:
        send(slow, {"n": 1})
        stage.turn()
        stage.answers_at_once = True
        send(quick, {"n": 2})
        stage.turn()
        assert quick.recv(100) == b"N=2\n.\n"
        stage.server.reply(stage.requests[0][0], ("late",))
        assert slow.recv(100) == b"late\n.\n"


def test_an_answer_for_a_client_that_is_gone_is_dropped(stage: Stage) -> None:
    stage.answers_at_once = False
    with stage.connect() as client:
        send(client, {"n": 1})
        stage.turn()
    stage.turn()
    stage.server.reply(stage.requests[0][0], ("late",))
    stage.server.reply(stage.requests[0][0], ("again",))
    stage.server.reply(12345, ())
    assert len(stage.selector.get_map()) == 1


def test_a_client_that_never_reads_does_not_stop_the_agent(stage: Stage) -> None:
    with stage.connect() as client:
        stage.answers_at_once = False
        send(client, {"n": 1})
        stage.turn()
        stage.server.reply(stage.requests[0][0], ("x" * 10_000_000,))
        stage.turn()
        stage.server.expire(IDLE_S + 1.0)
    assert len(stage.selector.get_map()) == 1


def test_a_socket_left_by_an_earlier_agent_is_replaced(stage: Stage, tmp_path: Path) -> None:
    second = Stage(tmp_path, (os.getuid(),))
    with second.connect() as client:
        send(client, {"n": 5})
        second.turn()
        assert client.recv(100) == b"N=5\n.\n"
    second.server.close()


def test_clients_leave_descriptors_for_everything_else() -> None:
    # 1024 is what a daemon has unless somebody says otherwise; at the limit accept, checks and the watchdog fail.
    assert server_module.MAX_CLIENTS <= 1024 // 2 + 100
