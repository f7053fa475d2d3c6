"""Frames over socket pairs: signed, bounded, and never waited for without a deadline."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hyperpod.adapters.munge import Credential, Munge
from hyperpod.adapters.wire import pack, read_frame, recv_frame, request, send_frame, unpack, write_frame
from hyperpod.core.messages import MAX_FRAME_BYTES
from hyperpod.errors import AccessDenied, ConnectionLost, HyperpodError, MungeError, UnexpectedOutput
from tests.fakes.munged import MUNGED, running_munged


class PlainSigner:
    """Signs by putting a uid before the payload; enough to see what framing does with it."""

    def __init__(self, uid: int = 0) -> None:
        self.uid = uid

    def encode(self, payload: bytes, *, only_uid: int | None = None) -> bytes:
        return b"%d:" % self.uid + payload

    def decode(self, credential: bytes) -> Credential:
        uid, found, payload = credential.partition(b":")
        if not found or not uid.isdigit():
            raise MungeError("cannot accept a credential: Invalid credential")
        return Credential(payload, int(uid), int(uid))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_a_message_arrives_with_its_writers_uid(pair: tuple[socket.socket, socket.socket]) -> None:
    send_frame(pair[0], {"type": "hello", "name": "wörker-1"}, PlainSigner(1000))
    frame = recv_frame(pair[1], PlainSigner())
    assert (frame.message, frame.uid) == ({"type": "hello", "name": "wörker-1"}, 1000)


def test_messages_sent_at_once_are_kept_apart(pair: tuple[socket.socket, socket.socket]) -> None:
    for number in range(5):
        send_frame(pair[0], {"n": number}, PlainSigner())
    assert [recv_frame(pair[1], PlainSigner()).message["n"] for _ in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 0xFFFFFFFF])
def test_a_length_out_of_bounds_is_refused_before_its_body(
    pair: tuple[socket.socket, socket.socket], length: int
) -> None:
    pair[0].sendall(struct.pack(">I", length))
    with pytest.raises(UnexpectedOutput, match=f"frame length {length}"):
        recv_frame(pair[1], PlainSigner())


def test_a_message_over_the_limit_is_not_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(MungeError, match="over the limit"):
        send_frame(pair[0], {"text": "x" * MAX_FRAME_BYTES}, PlainSigner())


@pytest.mark.parametrize("sent", [b"", b"\0\0", struct.pack(">I", 9) + b"0:{"])
def test_a_connection_closed_early_is_said(pair: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    pair[0].sendall(sent)
    pair[0].close()
    with pytest.raises(ConnectionLost, match="closed the connection"):
        recv_frame(pair[1], PlainSigner())


def test_a_silent_peer_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"\0\0")
    with pytest.raises(ConnectionLost, match="could not receive in time"):
        recv_frame(pair[1], PlainSigner(), timeout_s=0.02)


def test_a_peer_that_does_not_read_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with pytest.raises(ConnectionLost, match="could not send in time"):
        send_frame(pair[0], {"text": "x" * 900_000}, PlainSigner(), timeout_s=0.02)


@pytest.mark.parametrize("payload", [b"", b"[]", b"7", b"{", b"\xff", b"[" * 100_000])
def test_a_payload_that_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(UnexpectedOutput, match="message from the network"):
        unpack(b"0:" + payload, PlainSigner())


def test_a_bad_signature_is_refused() -> None:
    with pytest.raises(MungeError):
        unpack(b"nonsense", PlainSigner())


# --- request ----------------------------------------------------------------------------------------------------


def answering(
    pair: tuple[socket.socket, socket.socket], signer: PlainSigner, answers: Callable[[dict[str, Any]], list[Any]]
) -> threading.Thread:
    def serve() -> None:
        asked = recv_frame(pair[1], signer).message
        for answer in answers(asked):
            send_frame(pair[1], answer, signer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_request_returns_the_answer_to_its_own_question(pair: tuple[socket.socket, socket.socket]) -> None:
    thread = answering(pair, PlainSigner(0), lambda asked: [{"type": "ack"}, {"id": asked["id"], "echo": asked["q"]}])
    answer = request("head", 6830, {"q": 5}, PlainSigner(1000), connect=lambda address, timeout_s: pair[0])
    thread.join()
    assert answer["echo"] == 5


def test_request_refuses_an_answer_of_an_ordinary_user(pair: tuple[socket.socket, socket.socket]) -> None:
    thread = answering(pair, PlainSigner(1000), lambda asked: [{"id": asked["id"]}])
    with pytest.raises(AccessDenied, match="signed by uid 1000"):
        request("head", 6830, {}, PlainSigner(), trusted={0, 64030}, connect=lambda address, timeout_s: pair[0])
    thread.join()


def test_request_says_where_nobody_answers() -> None:
    def refuse(address: tuple[str, int], timeout_s: float) -> socket.socket:
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(ConnectionLost, match=r"10\.0\.0\.2 port 6830 does not answer: Connection refused") as caught:
        request("10.0.0.2", 6830, {}, PlainSigner(), connect=refuse)
    assert caught.value.exit_code == 75


# --- asyncio ----------------------------------------------------------------------------------------------------


async def read_all(data: bytes, signer: PlainSigner, **limits: float) -> list[Any]:
    """Feed bytes and the end of the connection to a reader; return messages until the end or the first error."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    found: list[Any] = []
    while True:
        try:
            frame = await read_frame(reader, signer, **limits)
        except HyperpodError as error:
            return [*found, type(error)]
        if frame is None:
            return found
        found.append(frame.message)


def test_the_async_reader_gives_messages_until_the_connection_ends() -> None:
    data = pack({"n": 1}, PlainSigner()) + pack({"n": 2}, PlainSigner())
    assert asyncio.run(read_all(data, PlainSigner())) == [{"n": 1}, {"n": 2}]


def test_the_async_reader_says_what_was_wrong() -> None:
    good = pack({"n": 1}, PlainSigner())
    assert asyncio.run(read_all(good + good[:-1], PlainSigner())) == [{"n": 1}, ConnectionLost]
    assert asyncio.run(read_all(good + good[:2], PlainSigner())) == [{"n": 1}, ConnectionLost]
    assert asyncio.run(read_all(struct.pack(">I", MAX_FRAME_BYTES + 1), PlainSigner())) == [UnexpectedOutput]
    assert asyncio.run(read_all(struct.pack(">I", 3) + b"???", PlainSigner())) == [MungeError]


def test_the_async_reader_gives_up_a_slow_sender() -> None:
    async def scenario() -> None:
        reader = asyncio.StreamReader()
        with pytest.raises(ConnectionLost, match=r"silent for 0\.01 s"):
            await read_frame(reader, PlainSigner(), idle_timeout_s=0.01)
        reader.feed_data(b"\0\0")
        with pytest.raises(ConnectionLost, match="could not receive in time"):
            await read_frame(reader, PlainSigner(), frame_timeout_s=0.01)

    asyncio.run(scenario())


def test_the_async_writer_and_reader_understand_each_other(pair: tuple[socket.socket, socket.socket]) -> None:
    async def scenario() -> None:
        _, writer = await asyncio.open_connection(sock=pair[0])
        reader, back = await asyncio.open_connection(sock=pair[1])
        await asyncio.gather(*(write_frame(writer, {"n": n, "x": "y" * 1000}, PlainSigner(7)) for n in range(20)))
        frames = [await read_frame(reader, PlainSigner()) for _ in range(20)]
        assert sorted(f.message["n"] for f in frames if f) == list(range(20))
        assert {f.uid for f in frames if f} == {7}
        writer.close()
        assert await read_frame(reader, PlainSigner()) is None
        back.close()
        with pytest.raises(ConnectionLost):
            await write_frame(writer, {"n": 0}, PlainSigner())

    asyncio.run(scenario())


@pytest.mark.skipif(MUNGED is None, reason="munged is not installed")
def test_frames_travel_with_real_credentials(
    pair: tuple[socket.socket, socket.socket], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_munged(tmp_path_factory.mktemp("munge")) as path:
        munge = Munge(path)
        frame = pack({"type": "hello"}, munge)
        pair[0].sendall(frame + frame)
        assert recv_frame(pair[1], munge).message == {"type": "hello"}
        with pytest.raises(MungeError, match="used before"):
            recv_frame(pair[1], munge)
        assert json.loads(munge.decode(munge.encode(b'{"a":1}')).payload) == {"a": 1}
