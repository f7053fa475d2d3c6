"""The connection to the controller, in a thread of its own.

Signing, sending, receiving and verifying can all block (munged may hang, the network may be cut); here they hold up
nothing else. The thread knows frames, not what they mean. Connections are retried for ever, with a short delay.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hyperpod.adapters.host import contact_of
from hyperpod.adapters.seal import Seal, new_key
from hyperpod.adapters.wire import Sealed, Signer, pack, pack_sealed, send_packed, unpack
from hyperpod.agent.quiet import QuietLog
from hyperpod.core.backoff import delay_after
from hyperpod.core.messages import HEARTBEAT, HELLO, MAX_FRAME_BYTES, SEAL
from hyperpod.errors import AccessDenied, ConnectionLost, HyperpodError, MungeError
from hyperpod.ports.host import Contact

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 1.0
SEND_TIMEOUT_S = 2.0
FIRST_DELAY = timedelta(seconds=0.2)
MOST_DELAY = timedelta(seconds=2)
QUEUE_LIMIT = 2000


@dataclass(frozen=True)
class Connected:
    """The controller's port was opened."""


@dataclass(frozen=True)
class Lost:
    """A connection ended, or could not be made; ``contact`` is how the attempt ended, None for an ended one."""

    contact: Contact | None
    why: str


@dataclass(frozen=True)
class Received:
    """A message of the controller."""

    message: Mapping[str, Any]


LinkEvent = Connected | Lost | Received


class Link:
    """Keeps a connection to the controller.

    Args:
        address, port: Where the controller listens.
        munge: Signs and verifies.
        trusted: Uids whose messages are accepted.
        on_event: Called from the link's thread.
        connect: Opens a connection within a time.
    """

    def __init__(
        self,
        address: str,
        port: int,
        munge: Signer,
        trusted: Collection[int],
        on_event: Callable[[LinkEvent], None],
        connect: Callable[[tuple[str, int], float], socket.socket] = socket.create_connection,
    ) -> None:
        self._target = (address, port)
        self._connect = connect
        self._munge = munge
        self._trusted = frozenset(trusted)
        self._on_event = on_event
        self._queue: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._sock: socket.socket | None = None
        self._rest = b""
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._is_stopping = False
        self._must_reset = False
        self._is_heard = False
        self._key = b""
        self._sealed: Sealed | None = None
        self._quiet = QuietLog(log)
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message on the present connection; it is lost when that ends. Never blocks."""
        if self._queue.qsize() < QUEUE_LIMIT and not self._sent_at_once(message):
            self._queue.put(message)
            self._wake()

    def _sent_at_once(self, message: Mapping[str, Any]) -> bool:
        """Send a heartbeat if nothing is before it and the thread is not sending; return whether it is seen to."""
        if message.get("type") != HEARTBEAT or not self._queue.empty() or not self._sending.acquire(blocking=False):
            return False
        try:
            if self._sock is None or self._sealed is None or self._rest:
                return False
            frame = pack_sealed(message, self._sealed.seal)
            try:
                # The descriptor does not block, whatever time-out Python keeps for it.
                sent = os.write(self._sock.fileno(), frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                # The thread finds the end of the connection by itself.
                return True
            # Its seal is counted, so the rest of it must go out, before anything else.
            self._rest = frame[sent:]
        finally:
            self._sending.release()
        if self._rest:
            self._wake()
        return True

    def reset(self) -> None:
        """Give up the present connection and make a new one."""
        self._must_reset = True
        self._wake()

    def stop(self, timeout_s: float) -> None:
        """Send what is queued, close the connection and end the thread."""
        self._is_stopping = True
        self._wake()
        self._thread.join(timeout_s)

    def _wake(self) -> None:
        try:
            self._wake_write.send(b"!")
        except OSError:
            # The pipe is full: the thread has enough reasons to wake up.
            return

    def _run(self) -> None:
        failures = 0
        while not self._is_stopping:
            self._must_reset = False
            try:
                sock = self._connect(self._target, CONNECT_TIMEOUT_S)
            except OSError as error:
                failures += 1
                self._on_event(Lost(contact_of(error), str(error.strerror or error)))
                self._pause(delay_after(failures, first=FIRST_DELAY, most=MOST_DELAY).total_seconds())
                continue
            self._is_heard = False
            self._key, self._sealed = new_key(), None
            with sock:
                if sock.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._drop_queue()
                sock.setblocking(False)
                self._sock = sock
                self._on_event(Connected())
                try:
                    self._serve(sock)
                    why = "closed by us"
                except (HyperpodError, OSError) as error:
                    why = str(error)
                finally:
                    with self._sending:
                        self._sock, self._sealed, self._rest = None, None, b""
            self._on_event(Lost(None, why))
            # Something else may listen there; only a controller that has spoken is tried again soon.
            failures = 1 if self._is_heard else failures + 1
            self._pause(delay_after(failures, first=FIRST_DELAY, most=MOST_DELAY).total_seconds())

    def _drop_queue(self) -> None:
        """What was queued for an earlier connection is stale: the agent offers again what matters."""
        while not self._queue.empty():
            self._queue.get_nowait()

    def _pause(self, seconds: float) -> None:
        if self._is_stopping:
            return
        select.select([self._wake_read], [], [], seconds)
        self._drain_wake()

    def _drain_wake(self) -> None:
        try:
            while self._wake_read.recv(4096):
                pass
        except BlockingIOError:
            return

    def _serve(self, sock: socket.socket) -> None:
        buffer = bytearray()
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        woken = self._wake_read.fileno()
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if woken in ready:
                self._drain_wake()
                self._send(sock, None)
                while not self._queue.empty():
                    self._send(sock, self._queue.get_nowait())
                if self._is_stopping or self._must_reset:
                    return
            if sock.fileno() in ready:
                data = b""
                with contextlib.suppress(BlockingIOError):
                    data = os.read(sock.fileno(), 65536)
                    if not data:
                        raise ConnectionLost("the controller closed the connection")
                buffer += data
                self._take_frames(buffer)

    def _send(self, sock: socket.socket, message: Mapping[str, Any] | None) -> None:
        """Send the rest of a heartbeat, if there is one, and then a message, if there is one."""
        with self._sending:
            if self._rest:
                send_packed(sock, self._rest, SEND_TIMEOUT_S)
                self._rest = b""
            if message is not None:
                self._send_message(sock, message)

    def _send_message(self, sock: socket.socket, message: Mapping[str, Any]) -> None:
        try:
            if message.get("type") == HELLO:
                # Root alone may read the key; the controller is root.
                frame = pack({**message, SEAL: self._key.hex()}, self._munge, only_uid=0)
            elif self._sealed is not None and message.get("type") == HEARTBEAT:
                frame = pack_sealed(message, self._sealed.seal)
            else:
                frame = pack(message, self._munge)
            send_packed(sock, frame, SEND_TIMEOUT_S)
        except MungeError as error:
            # Nothing of it was sent, so the stream is in step; the next heartbeat tries again.
            self._quiet.say(logging.WARNING, f"a message could not be signed: {error}", time.monotonic())

    def _take_frames(self, buffer: bytearray) -> None:
        while len(buffer) >= 4:
            (length,) = struct.unpack_from(">I", buffer)
            if not 0 < length <= MAX_FRAME_BYTES:
                raise ConnectionLost(f"the other side sent a frame of {length} bytes")
            if len(buffer) < 4 + length:
                return
            body = bytes(buffer[4 : 4 + length])
            del buffer[: 4 + length]
            try:
                frame = unpack(body, self._munge, self._sealed)
            except AccessDenied as error:
                raise ConnectionLost(str(error)) from error
            except HyperpodError as error:
                self._quiet.say(logging.WARNING, f"a message was refused: {error}", time.monotonic())
                continue
            if frame.uid not in self._trusted:
                text = f"a message was refused: signed by uid {frame.uid}"
                self._quiet.say(logging.WARNING, text, time.monotonic())
                continue
            self._is_heard = True
            if self._sealed is None and frame.message.get(SEAL) is True:
                self._sealed = Sealed(Seal(self._key, is_agent=True), frame.uid, frame.gid)
            self._on_event(Received(frame.message))
