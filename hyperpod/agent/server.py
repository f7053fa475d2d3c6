"""The agent's unix socket: the plugin, ``hyperpod health`` and ``hyperpod-agent goodbye`` speak here.

One request is one line of JSON; an answer is lines ended by a line ".". Only root is heard (SO_PEERCRED). Nothing that
a client sends, leaves out or never reads can hold up the agent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

MAX_LINE = 65536
MAX_CLIENTS = 600
"""Below the 1024 descriptors that a process usually has: what is left is for the link, the checks and the watchdog."""
IDLE_S = 30.0

Handler = Callable[[int, dict[str, Any]], None]


@dataclass
class _Client:
    sock: socket.socket
    since: float
    received: bytes = b""
    to_send: bytes = b""
    is_ended: bool = False
    waiting: int = 0


class SocketServer:
    """Serves the socket within the agent's loop.

    Args:
        path: Where to listen. The folder is made when it is missing; a socket left by an earlier agent is replaced.
        selector: The loop's; events come with ``self.on_event`` as data.
        on_request: Called with the client's number and a request; must lead to one ``reply``.
        allowed: Uids that are heard.
    """

    def __init__(
        self,
        path: str,
        selector: selectors.BaseSelector,
        on_request: Handler,
        *,
        allowed: Collection[int] = (0,),
    ) -> None:
        self._path = path
        self._selector = selector
        self._on_request = on_request
        self._allowed = frozenset(allowed)
        self._clients: dict[int, _Client] = {}
        self._next = 0
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        # Bound under another name and moved, so that nobody ever sees it with wrong rights, nor a moment without it.
        temporary = f"{path}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._listener.bind(temporary)
        os.chmod(temporary, 0o600)
        self._listener.listen(1024)
        os.rename(temporary, path)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, mask: int, now: float) -> None:
        for _ in range(256):
            try:
                sock, _address = self._listener.accept()
            except OSError:
                # None left, or no descriptors left; the queue keeps the others.
                return
            uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if uid not in self._allowed or len(self._clients) >= MAX_CLIENTS:
                log.warning("a client was turned away uid=%d clients=%d", uid, len(self._clients))
                sock.close()
                continue
            sock.setblocking(False)
            self._next += 1
            number = self._next
            self._clients[number] = _Client(sock, now)
            self._selector.register(sock, selectors.EVENT_READ, lambda m, t, n=number: self._ready(n, m, t))

    def _ready(self, number: int, mask: int, now: float) -> None:
        client = self._clients.get(number)
        if client is None:
            return
        if mask & selectors.EVENT_READ:
            self._receive(number, client)
        if mask & selectors.EVENT_WRITE and number in self._clients:
            self._flush(number, client)

    def _receive(self, number: int, client: _Client) -> None:
        try:
            data = client.sock.recv(MAX_LINE)
        except BlockingIOError:
            return
        except OSError:
            self._drop(number)
            return
        client.received += data
        if not data:
            client.is_ended = True
        while b"\n" in client.received:
            line, _, client.received = client.received.partition(b"\n")
            self._request(number, client, line)
            if number not in self._clients:
                return
        if len(client.received) > MAX_LINE:
            log.warning("a request was too long")
            self._drop(number)
        elif client.is_ended:
            self._flush(number, client)

    def _request(self, number: int, client: _Client, line: bytes) -> None:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        client.waiting += 1
        if not isinstance(request, dict):
            log.warning("a request was not understood text=%r", line[:100])
            self.reply(number, ())
            return
        self._on_request(number, request)

    def reply(self, number: int, lines: Sequence[str]) -> None:
        """Answer a client's oldest request; nothing happens when it is gone."""
        client = self._clients.get(number)
        if client is None:
            return
        client.waiting -= 1
        text = "".join(f"{line}\n" for line in lines) + ".\n"
        client.to_send += text.encode(errors="surrogateescape")
        self._flush(number, client)

    def _flush(self, number: int, client: _Client) -> None:
        if client.to_send:
            try:
                sent = client.sock.send(client.to_send, socket.MSG_NOSIGNAL)
                client.to_send = client.to_send[sent:]
            except BlockingIOError:
                pass
            except OSError:
                self._drop(number)
                return
        if client.is_ended and not client.to_send and client.waiting <= 0:
            self._drop(number)
            return
        mask = 0 if client.is_ended else selectors.EVENT_READ
        if client.to_send:
            mask |= selectors.EVENT_WRITE
        is_registered = client.sock in self._selector.get_map()
        handler = lambda m, t, n=number: self._ready(n, m, t)  # noqa: E731
        if mask and is_registered:
            self._selector.modify(client.sock, mask, handler)
        elif mask:
            self._selector.register(client.sock, mask, handler)
        elif is_registered:
            self._selector.unregister(client.sock)

    def _drop(self, number: int) -> None:
        client = self._clients.pop(number)
        if client.sock in self._selector.get_map():
            self._selector.unregister(client.sock)
        client.sock.close()

    def expire(self, now: float) -> None:
        """Close connections that have been open for too long."""
        for number in [n for n, c in self._clients.items() if now - c.since > IDLE_S]:
            self._drop(number)

    def close(self) -> None:
        """Stop listening and remove the socket; a second call does nothing."""
        if self._listener.fileno() < 0:
            return
        for number in list(self._clients):
            self._drop(number)
        self._selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
