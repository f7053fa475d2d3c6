"""The connection to the controller, in a thread of its own.

Signing, sending, receiving and verifying can all block (munged may hang, the network may be cut); here they hold up
nothing else. Only a heartbeat under the connection's key, which the socket takes at once, leaves from the caller's
thread: waking another one each second would cost more than all checks. The thread knows frames, not what they mean.
Connections are retried for ever, with a short delay.
"""

from __future__ import annotations

import logging
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
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._is_stopping = False
        self._must_reset = False
        self._is_heard = False
        self._key = b""
        self._sealed: Sealed | None = None
        self._sending = threading.Lock()
        """Held by who sends: frames must not mix, and leave in the order in which they were sealed."""
        self._open: socket.socket | None = None
        """The present connection, as long as it may be sent on."""
        self._rest = b""
        """What the socket did not take of a frame; nothing else may be sent before it."""
        self._quiet = QuietLog(log)
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message on the present connection; it is lost when that ends. Never blocks."""
        if message.get("type") == HEARTBEAT and self._send_at_once(message):
            return
        if self._queue.qsize() < QUEUE_LIMIT:
            self._queue.put(message)
            self._wake()

    def _send_at_once(self, message: Mapping[str, Any]) -> bool:
        """Send from the caller's thread; False when that could block, or others wait to be sent before."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self._open is None or self._sealed is None or self._rest or not self._queue.empty():
                return False
            frame = pack_sealed(message, self._sealed.seal)
            try:
                taken = self._open.send(frame)
            except OSError:
                # The socket is full, or the connection has ended: its own thread finds out which.
                taken = 0
            self._rest = frame[taken:]
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
                sock.settimeout(0.0)
                with self._sending:
                    self._open, self._rest = sock, b""
                self._on_event(Connected())
                try:
                    self._serve(sock)
                    why = "closed by us"
                except (HyperpodError, OSError) as error:
                    why = str(error)
                with self._sending:
                    self._open = None
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
        while True:
            readable, _, _ = select.select([sock, self._wake_read], [], [])
            if self._wake_read in readable:
                self._drain_wake()
                self._send_queued(sock)
                if self._is_stopping or self._must_reset:
                    return
            if sock in readable:
                data = sock.recv(65536)
                if not data:
                    raise ConnectionLost("the controller closed the connection")
                buffer += data
                self._take_frames(buffer)

    def _send_queued(self, sock: socket.socket) -> None:
        with self._sending:
            try:
                if self._rest:
                    send_packed(sock, self._rest, SEND_TIMEOUT_S)
                    self._rest = b""
                while not self._queue.empty():
                    self._send(sock, self._queue.get_nowait())
            finally:
                sock.settimeout(0.0)

    def _send(self, sock: socket.socket, message: Mapping[str, Any]) -> None:
        try:
            if message.get("type") == HELLO:
                # Root alone may read the key; the controller is root.
                frame = pack({**message, SEAL: self._key.hex()}, self._munge, only_uid=0)
            elif self._sealed is not None and message.get("type") == HEARTBEAT:
                frame = pack_sealed(message, self._sealed.seal)
            else:
                frame = pack(message, self._munge)
        except MungeError as error:
            # Nothing of it was sent, so the stream is in step; the next heartbeat tries again.
            self._quiet.say(logging.WARNING, f"a message could not be signed: {error}", time.monotonic())
            return
        send_packed(sock, frame, SEND_TIMEOUT_S)

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
