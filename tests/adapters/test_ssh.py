"""Logins by ssh against a server in this process: host keys, users, commands, files, ports."""

from __future__ import annotations

import os
import pty
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.ssh import ParamikoSession, open_session
from hyperpod.core.login import Forward
from hyperpod.errors import (
    AccessDenied,
    CommandTimeout,
    ConnectionLost,
    HyperpodError,
    InvalidState,
    NotFound,
    UsageError,
)
from hyperpod.ports.login import SshTarget
from tests.fakes.sshd import Sshd, make_key


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    (tmp_path / "far").mkdir()
    server = Sshd(tmp_path / "far", "root", "ubuntu")
    yield server
    server.close()


def target(sshd: Sshd, user: str = "ubuntu", **changes: Any) -> SshTarget:
    base = SshTarget(
        "worker-1", "127.0.0.1", user, sshd.public_key, port=sshd.port, key_texts=(sshd.client_text,), hint="reboot it"
    )
    return replace(base, **changes)


@pytest.fixture
def session(sshd: Sshd) -> Iterator[ParamikoSession]:
    with open_session(target(sshd), timeout_s=5) as opened:
        yield opened


# --- who is there -----------------------------------------------------------------------------------------------


def test_another_host_key_than_the_clusters_is_refused_before_any_login(sshd: Sshd) -> None:
    other = make_key()[1]
    with pytest.raises(InvalidState) as caught:
        open_session(target(sshd, host_key=f"ssh-ed25519 {other.get_base64()}"), timeout_s=5)

    assert "cannot log in to worker-1: it is showing another host key (ssh-ed25519 SHA256:" in caught.value.message
    assert caught.value.exit_code == 4


def test_a_host_whose_key_nobody_knows_is_refused(sshd: Sshd) -> None:
    with pytest.raises(InvalidState, match="its cluster does not know"):
        open_session(target(sshd, host_key=""), timeout_s=5)


def test_a_user_that_the_key_is_not_of_is_refused_in_one_line(sshd: Sshd) -> None:
    with pytest.raises(AccessDenied) as caught:
        open_session(target(sshd, "alice"), timeout_s=5)

    assert caught.value.message.startswith("worker-1 does not let alice in")
    assert "\n" not in caught.value.message


def test_an_unknown_user_is_not_found_where_root_can_tell(sshd: Sshd) -> None:
    with pytest.raises(NotFound, match="there is no user nobody-at-all on worker-1"):
        open_session(target(sshd, "nobody-at-all", through_root=True), timeout_s=5)


def test_a_user_without_the_clusters_key_is_reached_by_way_of_root(sshd: Sshd) -> None:
    # The name exists on every machine; the server lets only root and ubuntu in.
    with open_session(target(sshd, "daemon", through_root=True), timeout_s=5) as session, suppress(HyperpodError):
        session.ask(["true"], timeout_s=5)

    assert sshd.commands[-1].startswith("runuser -l daemon -c ")


def test_without_any_key_the_line_says_how_to_name_one(sshd: Sshd) -> None:
    with pytest.raises(AccessDenied, match="there is no key to log in to worker-1 with"):
        open_session(target(sshd, key_texts=()), timeout_s=5)


@pytest.mark.parametrize(
    ("text", "message"), [("no key", "is not a private key"), (None, "cannot be read")], ids=["damaged", "missing"]
)
def test_a_key_file_that_is_none_is_named(sshd: Sshd, tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message):
        open_session(target(sshd, key_texts=(), key_files=(path,)), timeout_s=5)


def test_an_encrypted_key_is_the_agents_business(sshd: Sshd, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    path = tmp_path / "key"
    secret = BestAvailableEncryption(b"words")
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, secret))
    with pytest.raises(AccessDenied, match="is encrypted") as caught:
        open_session(target(sshd, key_texts=(), key_files=(path,)), timeout_s=5)
    assert caught.value.hint == f"add it to the agent: ssh-add {path}"


def test_where_nobody_listens_is_a_matter_of_trying_again(sshd: Sshd) -> None:
    sshd.close()
    with pytest.raises(ConnectionLost, match="cannot be reached: connection refused") as caught:
        open_session(target(sshd), timeout_s=5)

    assert (caught.value.exit_code, caught.value.hint) == (75, "reboot it")


def test_what_is_no_ssh_server_is_said_to_be_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        place = SshTarget("head-1", "127.0.0.1", "root", "ssh-ed25519 AAAA", port=listener.getsockname()[1])
        with pytest.raises(ConnectionLost, match="no ssh server answers on head-1"):
            open_session(place, timeout_s=5)


def test_a_command_can_be_the_connection_and_its_complaint_is_told(sshd: Sshd) -> None:
    relay = (
        f"import os,socket,threading;s=socket.create_connection(('127.0.0.1',{sshd.port}));"
        "threading.Thread(target=lambda:[s.sendall(b) for b in iter(lambda:os.read(0,65536),b'')],daemon=True).start();"
        "[os.write(1,b) for b in iter(lambda:s.recv(65536),b'')]"
    )
    with open_session(target(sshd, port=1, proxy=("python3", "-S", "-c", relay)), timeout_s=5) as session:
        assert session.ask(["echo", "hi"], timeout_s=5).text == "hi\n"

    with pytest.raises(ConnectionLost, match="no ssh server answers on worker-1: TargetNotConnected"):
        open_session(target(sshd, proxy=("sh", "-c", "echo TargetNotConnected >&2; exit 1")), timeout_s=5)


def test_a_node_behind_another_is_reached_through_it(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "entrance").mkdir()
    entrance = Sshd(tmp_path / "entrance", "root")
    jump = replace(target(entrance, "root"), name="head-1")
    with open_session(target(sshd, jump=jump), timeout_s=5) as session:
        assert session.ask(["pwd"], timeout_s=5).text == f"{tmp_path}/far\n"
    entrance.close()


# --- commands ---------------------------------------------------------------------------------------------------

WORDS = ["a b", "$HOME", "'", '"', "*", "; exit 9", "\\", "ü", "--", ""]


def test_the_words_of_a_command_arrive_as_they_are(session: ParamikoSession) -> None:
    answer = session.ask(["printf", "%s\\n", *WORDS], timeout_s=5)
    assert answer.text.split("\n")[:-1] == WORDS


def test_input_outputs_and_status_are_kept_apart(session: ParamikoSession) -> None:
    answer = session.ask(["sh", "-c", "cat; echo bad >&2; exit 7"], timeout_s=5, input=b"\x00\xffdata")
    assert (answer.stdout, answer.stderr, answer.code, answer.trouble) == (b"\x00\xffdata", b"bad\n", 7, "bad")


def test_a_command_killed_by_a_signal_has_the_shells_status(session: ParamikoSession) -> None:
    assert session.ask(["sh", "-c", "kill -9 $$"], timeout_s=5).code == 137


def test_a_command_that_takes_too_long_is_given_up(session: ParamikoSession) -> None:
    with pytest.raises(CommandTimeout):
        session.ask(["sleep", "5"], timeout_s=0.2)


def test_a_machine_that_dies_under_a_command_is_lost_and_not_a_status(session: ParamikoSession, sshd: Sshd) -> None:
    threading.Timer(0.2, sshd.cut).start()
    with pytest.raises(ConnectionLost, match="the connection to worker-1 was lost"):
        session.attach(["sleep", "5"])


def test_attach_passes_input_both_outputs_and_the_status(
    session: ParamikoSession, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.write(write, b"typed")
    os.close(write)
    with os.fdopen(read) as source:
        monkeypatch.setattr("sys.stdin", source)
        code = session.attach(["sh", "-c", "cat; echo bad >&2; exit 3"])

    assert code == 3
    assert capfd.readouterr() == ("typed", "bad\n")


def test_a_million_bytes_arrive_whole(session: ParamikoSession) -> None:
    assert session.ask(["wc", "-c"], timeout_s=20, input=bytes(3_000_000)).text.strip() == "3000000"
    assert len(session.ask(["head", "-c", "3000000", "/dev/zero"], timeout_s=20).stdout) == 3_000_000


def test_ctrl_c_reaches_the_command_and_its_status_comes_back(session: ParamikoSession) -> None:
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), 2))
    timer.start()
    script = "trap 'exit 6' INT; while :; do sleep 0.05; done"
    assert session.attach(["sh", "-c", script]) == 6
    timer.join()


def test_a_terminal_is_raw_meanwhile_has_its_size_and_is_as_before_afterwards(
    session: ParamikoSession, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (33, 101))
    before = termios.tcgetattr(theirs)
    with os.fdopen(theirs, "r+b", buffering=0) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr("sys.stdout", terminal)
        os.write(ours, b"hello")
        code = session.interact(["sh", "-c", "head -c 5 >/dev/null; exit 4"])
        after = termios.tcgetattr(theirs)
    os.close(ours)

    assert (code, after, sshd.sizes) == (4, before, [(101, 33)])


# --- files ------------------------------------------------------------------------------------------------------


def test_a_file_is_put_into_a_new_folder_and_never_over_another(session: ParamikoSession, sshd: Sshd) -> None:
    first = session.put("jobs/mine", "train.sh", b"#!/bin/sh\n")
    second = session.put("jobs/mine", "train.sh", b"other")

    assert [Path(p).relative_to(sshd.home).as_posix() for p in (first, second)] == [
        "jobs/mine/train-1/train.sh", "jobs/mine/train-2/train.sh",
    ]  # fmt: skip
    assert (Path(first).read_bytes(), Path(second).read_bytes()) == (b"#!/bin/sh\n", b"other")
    assert Path(first).stat().st_mode & 0o777 == 0o700


# --- ports ------------------------------------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[int]:
    """A server which says back what it hears, once the other side has said all."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                line, _ = listener.accept()
                with line:
                    data = b""
                    while chunk := line.recv(65536):
                        data += chunk
                    line.sendall(data[::-1])

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def through(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := line.recv(65536):
            answer += chunk
        return answer


def test_a_forwarded_port_carries_several_connections_to_their_ends(session: ParamikoSession, echo: int) -> None:
    port = session.forward(Forward("127.0.0.1", 0, "127.0.0.1", echo))
    for size in (5, 300_000):
        data = os.urandom(size)
        assert through(port, data) == data[::-1]


def test_a_port_that_leads_nowhere_is_said_and_does_not_end_the_session(sshd: Sshd) -> None:
    told: list[str] = []
    with open_session(target(sshd), timeout_s=5, tell=told.append) as session:
        port = session.forward(Forward("127.0.0.1", 0, "127.0.0.1", 1))
        assert through(port, b"") == b""
        assert session.ask(["true"], timeout_s=5).code == 0

    assert "worker-1 cannot reach 127.0.0.1:1" in told[0]


def test_a_taken_port_is_one_clear_line(session: ParamikoSession, echo: int) -> None:
    with pytest.raises(UsageError, match=f"port {echo} of 127.0.0.1 cannot be used: address already in use"):
        session.forward(Forward("127.0.0.1", echo, "worker-1", 80))


def test_waiting_ends_when_the_connection_does(session: ParamikoSession, sshd: Sshd) -> None:
    threading.Timer(0.1, sshd.cut).start()
    began = time.monotonic()
    with pytest.raises(ConnectionLost):
        session.wait()
    assert time.monotonic() - began < 5
