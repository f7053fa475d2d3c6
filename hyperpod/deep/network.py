"""The network between two nodes: one serves, the other measures bandwidth and latency. TCP, one connection.

The server takes exactly one client, from the address and with the token that the controller gave to both, and only for
as long as the measurement may take: nothing listens on a node otherwise.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import statistics
import time

from hyperpod.deep.result import Line

_CHUNK = 256 * 1024
_PINGS = 200
_PROBE_SHARE = 256
"""A first look sends this part of the data, and at least a chunk, to see how much the link takes in ``MOST_S``."""

MOST_S = 2.0
"""Seconds of data each way at most: a link at a hundredth of its speed must not take a hundred times as long."""

_TOKEN_BYTES = 32


def serve(address: str, port: int, peer: str, token: str, timeout_s: float) -> Line:
    """Answer one client: return its pings, take in what it sends and send as much back, twice."""
    secret = bytes.fromhex(token)
    deadline = time.monotonic() + timeout_s
    with socket.create_server((address, port), backlog=4) as listener:
        while True:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                client, (host, _) = listener.accept()
            except TimeoutError:
                return Line("serve", True, detail="nobody came")
            with client:
                client.settimeout(max(0.01, min(2.0, deadline - time.monotonic())))
                if host != peer or not _knows(client, secret):
                    continue
                client.settimeout(max(0.01, deadline - time.monotonic()))
                # What goes wrong from here is the link's, and the client tells it.
                with contextlib.suppress(OSError):
                    _answer(client)
                return Line("serve", True)


def _knows(client: socket.socket, secret: bytes) -> bool:
    try:
        return hmac.compare_digest(_exactly(client, _TOKEN_BYTES), secret)
    except OSError:
        return False


def _answer(client: socket.socket) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(b"y")
    for _ in range(_PINGS):
        client.sendall(_exactly(client, 1))
    for _ in range(2):
        size = int.from_bytes(_exactly(client, 8), "big")
        _take(client, size)
        client.sendall(b"d")
        _give(client, size)


def measure(peer: str, port: int, token: str, size: int, timeout_s: float) -> list[Line]:
    """Connect to the other node's server and measure latency, and bandwidth with up to ``size`` bytes each way.

    A cable, or a port, is often bad in one direction only, so the slower one is the figure. Of the pings the fastest
    tenth counts: what makes the others wait is the processors' work, not the network's.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with _connect(peer, port, deadline) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(bytes.fromhex(token))
            _exactly(sock, 1)
            pings = []
            for _ in range(_PINGS):
                start = time.perf_counter()
                sock.sendall(b"p")
                _exactly(sock, 1)
                pings.append(time.perf_counter() - start)
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            probe = min(size, max(_CHUNK, size // _PROBE_SHARE))
            slower_s = max(_both_ways(sock, probe))
            size = max(probe, min(size, int(probe * MOST_S / slower_s)))
            there_s, back_s = _both_ways(sock, size)
    except TimeoutError:
        return [Line("network", False, detail=f"{peer} did not take the data within {timeout_s:g} s")]
    except OSError as error:
        return [Line("network", False, detail=f"{peer}: {error.strerror or error}")]
    return [
        Line("network_latency", True, value=statistics.quantiles(pings, n=10)[0] * 1e6, unit="us"),
        Line(
            "network_bandwidth",
            True,
            value=size / max(there_s, back_s) / 1e6,
            unit="MB/s",
            detail=f"there {size / there_s / 1e6:.0f}, back {size / back_s / 1e6:.0f}",
        ),
    ]


def _both_ways(sock: socket.socket, size: int) -> tuple[float, float]:
    """Return the seconds that so many bytes take there and back."""
    sock.sendall(size.to_bytes(8, "big"))
    start = time.perf_counter()
    _give(sock, size)
    _exactly(sock, 1)
    turned = time.perf_counter()
    _take(sock, size)
    return turned - start, time.perf_counter() - turned


def _give(sock: socket.socket, size: int) -> None:
    chunk = memoryview(bytes(_CHUNK))
    left = size
    while left:
        left -= sock.send(chunk[: min(_CHUNK, left)])


def _take(sock: socket.socket, size: int) -> None:
    buffer = bytearray(_CHUNK)
    left = size
    while left:
        got = sock.recv_into(buffer, min(_CHUNK, left))
        if not got:
            raise ConnectionResetError(104, "the other side closed the connection")
        left -= got


def _connect(peer: str, port: int, deadline: float) -> socket.socket:
    """Connect; the server may need a moment to start, so a refusal is tried again."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        try:
            return socket.create_connection((peer, port), timeout=left)
        except ConnectionRefusedError:
            if deadline - time.monotonic() < 0.05:
                raise
            time.sleep(0.05)


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise ConnectionResetError(104, "the other side closed the connection")
        parts += part
    return bytes(parts)
