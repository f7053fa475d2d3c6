"""Frames between agent, controller and command line: a 4-byte big-endian length and a munge credential.

Owns framing, size limits and deadlines. Must not know what a message means: see core/messages.py. The peer's
uid in every received frame comes from its credential, never from what the message says. On a connection whose ends have
exchanged a key, a frame may be sealed with that instead (``adapters.seal``); its uid is that of the exchange.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hyperpod.adapters.munge import Credential
from hyperpod.adapters.seal import MARK, Seal
from hyperpod.core.messages import MAX_FRAME_BYTES
from hyperpod.errors import AccessDenied, ConnectionLost, MungeError, UnexpectedOutput

# asyncio costs 7 MB of memory; it is loaded only by those who use it, and the agent does not.
if TYPE_CHECKING:
    import asyncio

_HEADER = struct.Struct(">I")

_to_json = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: ``json.dumps`` makes an encoder each time, and an agent says something every second."""

T = TypeVar("T")


class Signer(Protocol):
    """What framing needs of munge."""

    def encode(self, payload: bytes, *, only_uid: int | None = None) -> bytes: ...

    def decode(self, credential: bytes) -> Credential: ...


@dataclass(frozen=True)
class Frame:
    """One received message and who signed it; sealed ones come from whoever gave the connection's key."""

    message: dict[str, Any]
    uid: int
    gid: int
    is_sealed: bool = False


@dataclass(frozen=True)
class Sealed:
    """A connection's key, and who gave it."""

    seal: Seal
    uid: int
    gid: int


def pack(message: Mapping[str, Any], munge: Signer, *, only_uid: int | None = None) -> bytes:
    """Return the frame of a message, signed by this process's user.

    Args:
        message: What to say.
        munge: Signs it.
        only_uid: The one user who can read it; None: whoever has a machine of the cluster.
    Raises:
        MungeError: if munge fails or the frame would be over ``MAX_FRAME_BYTES``.
    """
    credential = munge.encode(_to_json(message).encode(), only_uid=only_uid)
    if len(credential) > MAX_FRAME_BYTES:
        raise MungeError(f"a frame of {len(credential)} bytes is over the limit of {MAX_FRAME_BYTES} bytes")
    return _HEADER.pack(len(credential)) + credential


def pack_sealed(message: Mapping[str, Any], seal: Seal) -> bytes:
    """Return the next sealed frame of a connection; frames must be sent in the order in which they were made."""
    body = seal.wrap(_to_json(message).encode())
    return _HEADER.pack(len(body)) + body


def unpack(body: bytes, munge: Signer, sealed: Sealed | None = None) -> Frame:
    """Verify a frame's body and read its message.

    Args:
        body: The frame without its length.
        munge: Verifies credentials.
        sealed: The connection's key; None: only credentials are accepted.
    Raises:
        MungeError: if the credential is not acceptable.
        AccessDenied: if the seal is wrong; the connection must end then.
        UnexpectedOutput: if its payload is not a JSON object.
    """
    if sealed is not None and body[:1] == MARK:
        return Frame(_message(sealed.seal.unwrap(body)), sealed.uid, sealed.gid, is_sealed=True)
    found = munge.decode(body)
    return Frame(_message(found.payload), found.uid, found.gid)


def _message(payload: bytes) -> dict[str, Any]:
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise UnexpectedOutput("message from the network", payload[:200].decode(errors="replace")) from error
    if not isinstance(message, dict):
        raise UnexpectedOutput("message from the network", payload[:200].decode(errors="replace"))
    return message


def _body_length(header: bytes, most: int = MAX_FRAME_BYTES) -> int:
    """Return the length that a header announces, refused before anything is read when it is out of bounds."""
    length: int = _HEADER.unpack(header)[0]
    if not 0 < length <= most:
        raise UnexpectedOutput("message from the network", f"frame length {length}, at most {most}")
    return length


# --- blocking sockets -------------------------------------------------------------------------------------------


def send_frame(sock: socket.socket, message: Mapping[str, Any], munge: Signer, timeout_s: float = 5.0) -> None:
    """Send one message within ``timeout_s``.

    Raises:
        ConnectionLost: if the peer is gone or does not read in time.
        MungeError: if munge fails.
    """
    send_packed(sock, pack(message, munge), timeout_s)


def send_packed(sock: socket.socket, frame: bytes, timeout_s: float = 5.0) -> None:
    """Send one frame within ``timeout_s``.

    Raises:
        ConnectionLost: if the peer is gone or does not read in time.
    """
    _within(sock, time.monotonic() + timeout_s, "send", lambda: sock.sendall(frame))


def recv_frame(sock: socket.socket, munge: Signer, timeout_s: float = 5.0) -> Frame:
    """Receive one message within ``timeout_s``, however slowly its bytes come.

    Raises:
        ConnectionLost: if the peer closes the connection or is too slow.
        MungeError: if the credential is not acceptable.
        UnexpectedOutput: if the bytes are not a frame.
    """
    deadline = time.monotonic() + timeout_s
    header = _recv_exactly(sock, _HEADER.size, deadline)
    return unpack(_recv_exactly(sock, _body_length(header), deadline), munge)


def _recv_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        wanted = min(65536, size - len(parts))
        part = _within(sock, deadline, "receive", partial(sock.recv, wanted))
        if not part:
            raise ConnectionLost("the other side closed the connection")
        parts += part
    return bytes(parts)


def _within(sock: socket.socket, deadline: float, what: str, call: Callable[[], T]) -> T:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise ConnectionLost(f"could not {what} in time")
    sock.settimeout(remaining_s)
    try:
        return call()
    except TimeoutError as error:
        raise ConnectionLost(f"could not {what} in time") from error
    except OSError as error:
        raise ConnectionLost(f"could not {what}: {error.strerror or error}") from error


def trusted_uids() -> frozenset[int]:
    """Return the uids whose word counts as the cluster's own: root and, where it exists, SlurmUser ``slurm``."""
    try:
        return frozenset({0, pwd.getpwnam("slurm").pw_uid})
    except KeyError:
        return frozenset({0})


def request(
    address: str,
    port: int,
    message: Mapping[str, Any],
    munge: Signer,
    timeout_s: float = 5.0,
    *,
    trusted: Collection[int] | None = None,
    connect: Callable[[tuple[str, int], float], socket.socket] = socket.create_connection,
) -> dict[str, Any]:
    """Ask the controller one question and return its answer.

    Args:
        address: Host name or IP address of the head node.
        port: The controller's TCP port.
        message: The question; an ``id`` is added when it has none, and frames with another id are passed over.
        munge: Signs the question and verifies the answer.
        timeout_s: Deadline of it all, connection included.
        trusted: Uids that may answer; None means root and ``slurm``.
        connect: Opens the connection.
    Raises:
        ConnectionLost: if nobody answers in time.
        AccessDenied: if somebody else than the controller answers.
        MungeError, UnexpectedOutput: as ``recv_frame``.
    """
    accepted = trusted_uids() if trusted is None else trusted
    asked = {"id": os.urandom(16).hex(), **message}
    deadline = time.monotonic() + timeout_s
    try:
        sock = connect((address, port), timeout_s)
    except OSError as error:
        raise ConnectionLost(
            f"the controller at {address} port {port} does not answer: {error.strerror or error}",
            hint="on the head node: systemctl status hyperpod-controller",
        ) from error
    with sock:
        send_frame(sock, asked, munge, deadline - time.monotonic())
        while True:
            frame = recv_frame(sock, munge, deadline - time.monotonic())
            if frame.uid not in accepted:
                raise AccessDenied(
                    f"the answer from {address} port {port} was signed by uid {frame.uid}, not by the controller"
                )
            if frame.message.get("id") == asked["id"]:
                return frame.message


# --- asyncio ----------------------------------------------------------------------------------------------------


async def read_frame(
    reader: asyncio.StreamReader,
    munge: Signer,
    *,
    idle_timeout_s: float | None = None,
    frame_timeout_s: float = 10.0,
    max_bytes: int = MAX_FRAME_BYTES,
    sealed: Sealed | None = None,
) -> Frame | None:
    """Read the next message, or None when the peer has closed the connection between two messages.

    munged is asked in a thread, so that a slow one does not stop the event loop.

    Args:
        reader: The stream.
        munge: Verifies the frame.
        idle_timeout_s: How long to wait for a message to begin; None: as long as the connection lives.
        frame_timeout_s: How long a message may take once it has begun.
        max_bytes: Largest frame that is accepted.
        sealed: The connection's key, once its ends have exchanged one.
    Raises:
        ConnectionLost: if the peer goes away within a message or is too slow.
        MungeError: if the credential is not acceptable; the stream is still in step.
        AccessDenied: if a seal is wrong; close the connection then.
        UnexpectedOutput: if the bytes are not a frame; close the connection then.
    """
    import asyncio

    try:
        async with asyncio.timeout(idle_timeout_s):
            first = await reader.read(1)
    except TimeoutError as error:
        raise ConnectionLost(f"the other side was silent for {idle_timeout_s:g} s") from error
    except OSError as error:
        raise ConnectionLost(f"could not receive: {error.strerror or error}") from error
    if not first:
        return None
    try:
        async with asyncio.timeout(frame_timeout_s):
            header = first + await reader.readexactly(_HEADER.size - 1)
            body = await reader.readexactly(_body_length(header, max_bytes))
    except TimeoutError as error:
        raise ConnectionLost("could not receive in time") from error
    except asyncio.IncompleteReadError as error:
        raise ConnectionLost("the other side closed the connection in the middle of a message") from error
    except OSError as error:
        raise ConnectionLost(f"could not receive: {error.strerror or error}") from error
    if sealed is not None and body[:1] == MARK:
        return unpack(body, munge, sealed)
    return await asyncio.to_thread(unpack, body, munge)


async def write_frame(
    writer: asyncio.StreamWriter,
    message: Mapping[str, Any],
    munge: Signer,
    *,
    timeout_s: float = 5.0,
    only_uid: int | None = None,
    seal: Seal | None = None,
) -> None:
    """Write one message, sealed where a seal is given, and wait until the peer has room for it.

    The frame is handed to the writer in one piece, so that several tasks may write to one connection.

    Raises:
        ConnectionLost: if the peer is gone or does not read in time.
        MungeError: if munge fails.
    """
    import asyncio

    frame = b"" if seal else await asyncio.to_thread(partial(pack, message, munge, only_uid=only_uid))
    if writer.is_closing():
        raise ConnectionLost("the connection is closed")
    if seal is not None:
        # Made and written without a pause between, or the order on the wire would not be that of the seals.
        frame = pack_sealed(message, seal)
    try:
        writer.write(frame)
        async with asyncio.timeout(timeout_s):
            await writer.drain()
    except TimeoutError as error:
        raise ConnectionLost("could not send in time") from error
    except OSError as error:
        raise ConnectionLost(f"could not send: {error.strerror or error}") from error
