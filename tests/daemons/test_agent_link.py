"""The link to the controller over socket pairs: what arrives, what is refused, what a lost connection does."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hyperpod.adapters.munge import Credential
from hyperpod.adapters.seal import Seal
from hyperpod.adapters.wire import Frame, Sealed, pack, pack_sealed, recv_frame, unpack
from hyperpod.agent.link import Connected, Link, LinkEvent, Lost, Received
from hyperpod.errors import MungeError
from hyperpod.ports.host import Contact

WAIT_S = 5.0
"""Longest wait for another thread; it is never used up unless the test fails."""


class PlainSigner:
    """Signs by writing a uid before the payload."""

    def __init__(self, uid: int = 0) -> None:
        self.uid = uid
        self.is_broken = False
        self.is_hanging = threading.Event()

    def encode(self, payload: bytes, *, only_uid: int | None = None) -> bytes:
        while self.is_hanging.is_set():
            time.sleep(0.001)
        if self.is_broken:
            raise MungeError("munged is away")
        return b"%d:" % self.uid + payload

    def decode(self, credential: bytes) -> Credential:
        uid, found, payload = credential.partition(b":")
        if not found or not uid.isdigit():
            raise MungeError("forged")
        return Credential(payload, int(uid), int(uid))


class Stage:
    """A link whose connections are given by the test: sockets, or errors."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
        self.offers: queue.SimpleQueue[socket.socket | OSError] = queue.SimpleQueue()
        self.signer = PlainSigner()
        self.link = Link("10.0.0.2", 6830, self.signer, {0, 64}, self.events.put, connect=self._connect)

    def _connect(self, target: tuple[str, int], timeout_s: float) -> socket.socket:
        offer = self.offers.get(timeout=WAIT_S)
        if isinstance(offer, OSError):
            raise offer
        return offer

    def accept(self) -> socket.socket:
        """Let the link connect and return the controller's end."""
        ours, theirs = socket.socketpair()
        self.offers.put(theirs)
        assert isinstance(self.next(), Connected)
        return ours

    def next(self) -> LinkEvent:
        return self.events.get(timeout=WAIT_S)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    made.link.start()
    yield made
    made.offers.put(OSError("the test is over"))
    made.link.stop(0.0)


def test_messages_are_sent_in_order(stage: Stage) -> None:
    with stage.accept() as controller:
        for number in range(3):
            stage.link.send({"n": number})
        assert [recv_frame(controller, stage.signer).message["n"] for _ in range(3)] == [0, 1, 2]


def _agree(stage: Stage, controller: socket.socket) -> Sealed:
    """Let the link say hello, answer it as a controller does, and return the controller's end of the key."""
    stage.link.send({"type": "hello", "id": "1"})
    hello = recv_frame(controller, stage.signer).message
    controller.sendall(pack({"type": "reply", "id": "1", "seal": True}, stage.signer))
    assert isinstance(stage.next(), Received)
    return Sealed(Seal(bytes.fromhex(hello["seal"]), is_agent=False), 0, 0)


def test_heartbeats_are_sealed_once_the_controller_has_taken_the_key(stage: Stage) -> None:
    with stage.accept() as controller:
        sealed = _agree(stage, controller)
        for number in range(3):
            stage.link.send({"type": "heartbeat", "n": number})
            frame = _receive(controller, stage, sealed)
            assert (frame.message["n"], frame.is_sealed) == (number, True)
        stage.link.send({"type": "task_exit"})
        assert not _receive(controller, stage, sealed).is_sealed


def test_heartbeats_that_the_socket_takes_in_part_arrive_whole_and_in_order(stage: Stage) -> None:
    with stage.accept() as controller:
        sealed = _agree(stage, controller)
        for number in range(20):
            stage.link.send({"type": "heartbeat", "n": number, "much": "x" * 60_000})
            if number % 5 == 4:
                stage.link.send({"type": "task_exit", "n": number})
        frames = [_receive(controller, stage, sealed) for _ in range(24)]
        beats = [f.message["n"] for f in frames if f.is_sealed]
        assert beats == list(range(20))
        # What was said before a report arrives before it: nothing overtakes.
        for report in (frame for frame in frames if not frame.is_sealed):
            before = frames[: frames.index(report)]
            assert max(f.message["n"] for f in before if f.is_sealed) == report.message["n"]


def test_a_heartbeat_has_left_when_nothing_waits_before_it_and_else_comes_after_it(stage: Stage) -> None:
    with stage.accept() as controller:
        sealed = _agree(stage, controller)
        stage.link.send({"type": "heartbeat", "n": 1})
        assert controller.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        assert _receive(controller, stage, sealed).message["n"] == 1
        stage.signer.is_hanging.set()
        stage.link.send({"type": "task_exit"})
        stage.link.send({"type": "heartbeat", "n": 2})
        stage.signer.is_hanging.clear()
        assert [_receive(controller, stage, sealed).is_sealed for _ in range(2)] == [False, True]


def test_heartbeats_are_signed_by_munge_where_the_controller_takes_no_key(stage: Stage) -> None:
    with stage.accept() as controller:
        stage.link.send({"type": "hello"})
        recv_frame(controller, stage.signer)
        controller.sendall(pack({"type": "reply", "ok": True}, stage.signer))
        stage.next()
        stage.link.send({"type": "heartbeat"})
        assert recv_frame(controller, stage.signer).message == {"type": "heartbeat"}


def test_sealed_answers_come_as_events(stage: Stage) -> None:
    with stage.accept() as controller:
        sealed = _agree(stage, controller)
        controller.sendall(pack_sealed({"type": "ack", "n": 1}, sealed.seal))
        assert stage.next() == Received({"type": "ack", "n": 1})


def test_a_wrong_seal_ends_the_connection_and_the_next_has_another_key(stage: Stage) -> None:
    with stage.accept() as controller:
        sealed = _agree(stage, controller)
        frame = pack_sealed({"type": "ack"}, sealed.seal)
        controller.sendall(frame)
        stage.next()
        controller.sendall(frame)
        lost = stage.next()
        assert isinstance(lost, Lost)
        assert "wrong seal" in lost.why
    with stage.accept() as controller:
        stage.link.send({"type": "hello"})
        key = recv_frame(controller, stage.signer).message["seal"]
        assert sealed.seal.wrap(b"") != Seal(bytes.fromhex(key), is_agent=False).wrap(b"")


def _receive(sock: socket.socket, stage: Stage, sealed: Sealed) -> Frame:
    length = int.from_bytes(_exactly(sock, 4), "big")
    return unpack(_exactly(sock, length), stage.signer, sealed)


def _exactly(sock: socket.socket, size: int) -> bytes:
    sock.settimeout(WAIT_S)
    found = b""
    while len(found) < size:
        part = sock.recv(size - len(found))
        assert part, "the connection ended within a frame"
        found += part
    return found


def test_messages_of_the_controller_come_as_events(stage: Stage) -> None:
    with stage.accept() as controller:
        data = pack({"type": "ack"}, stage.signer) + pack({"type": "reply"}, PlainSigner(64))
        for byte in range(len(data)):
            controller.sendall(data[byte : byte + 1])
        assert [stage.next(), stage.next()] == [Received({"type": "ack"}), Received({"type": "reply"})]


@pytest.mark.parametrize(
    "frame",
    [
        pack({"type": "kill_job", "job_id": 1}, PlainSigner(1000)),
        b"\0\0\0\x03abc",
        b"\0\0\0\x03" + b"0:3",
        b"\0\0\0\x04" + b"0:[]",
    ],
)
def test_messages_of_others_and_nonsense_are_refused_and_the_link_lives(stage: Stage, frame: bytes) -> None:
    with stage.accept() as controller:
        controller.sendall(frame + pack({"type": "ack"}, stage.signer))
        assert stage.next() == Received({"type": "ack"})


@pytest.mark.parametrize("length", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_a_frame_of_impossible_length_ends_the_connection(stage: Stage, length: bytes) -> None:
    with stage.accept() as controller:
        controller.sendall(length)
        lost = stage.next()
        assert isinstance(lost, Lost)
        assert "frame of" in lost.why


def test_a_closed_connection_is_told_and_made_anew(stage: Stage) -> None:
    stage.accept().close()
    assert stage.next() == Lost(None, "the controller closed the connection")
    with stage.accept():
        pass


@pytest.mark.parametrize(
    ("error", "contact"),
    [
        (ConnectionRefusedError(111, "Connection refused"), Contact.REFUSED),
        (TimeoutError("timed out"), Contact.SILENT),
        (OSError(113, "No route to host"), Contact.SILENT),
    ],
)
def test_how_an_attempt_ended_is_told(stage: Stage, error: OSError, contact: Contact) -> None:
    stage.offers.put(error)
    lost = stage.next()
    assert isinstance(lost, Lost)
    assert lost.contact is contact
    with stage.accept():
        pass


def test_a_message_that_cannot_be_signed_does_not_end_the_connection(stage: Stage) -> None:
    with stage.accept() as controller:
        stage.signer.is_broken = True
        stage.link.send({"n": 1})
        stage.signer.is_broken = False
        stage.link.send({"n": 2})
        numbers = [recv_frame(controller, stage.signer).message["n"]]
        assert numbers[-1] in (1, 2)


def test_a_reset_gives_the_connection_up(stage: Stage) -> None:
    with stage.accept() as controller:
        stage.link.reset()
        assert stage.next() == Lost(None, "closed by us")
        controller.settimeout(WAIT_S)
        assert controller.recv(1) == b""


def test_what_was_queued_for_an_earlier_connection_is_dropped(stage: Stage) -> None:
    stage.link.send({"n": "stale"})
    with stage.accept() as controller:
        stage.link.send({"n": "new"})
        assert recv_frame(controller, stage.signer).message["n"] == "new"


def test_stopping_sends_the_last_words() -> None:
    stage = Stage()
    stage.link.start()
    with stage.accept() as controller:
        stage.link.send({"type": "goodbye"})
        stage.link.stop(WAIT_S)
        assert recv_frame(controller, stage.signer).message == {"type": "goodbye"}
