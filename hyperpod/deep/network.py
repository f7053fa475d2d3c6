"""The network between two nodes: one serves, the other measures bandwidth and latency. TCP, one connection.

The server takes exactly one client, from the address and with the token that the controller gave to both, and only for
as long as the measurement may take: nothing listens on a node otherwise.
"""

from __future__ import annotations

import hmac
import socket
import statistics
import time

from hyperpod.deep.result import Line

_CHUNK = 256 * 1024
_PINGS = 200
_TOKEN_BYTES = 32


def serve(address: str, port: int, peer: str, token: str, timeout_s: float) -> Line:
    """Answer one client: take in and count what it sends, and return its pings."""
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
                if host == peer and hmac.compare_digest(_exactly(client, _TOKEN_BYTES), secret):
                    client.settimeout(max(0.01, deadline - time.monotonic()))
                    return _answer(client)


def _answer(client: socket.socket) -> Line:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(b"y")
    for _ in range(_PINGS):
        client.sendall(_exactly(client, 1))
    size = int.from_bytes(_exactly(client, 8), "big")
    left = size
    buffer = bytearray(_CHUNK)
    while left:
        got = client.recv_into(buffer, min(_CHUNK, left))
        if not got:
            return Line("serve", True, detail="the other side ended early")
        left -= got
    client.sendall(b"d")
    return Line("serve", True)


def measure(peer: str, port: int, token: str, size: int, timeout_s: float) -> list[Line]:
    """Connect to the other node's server and measure: the median of the pings, and ``size`` bytes one way."""
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
            sock.sendall(size.to_bytes(8, "big"))
            chunk = memoryview(bytes(_CHUNK))
            start = time.perf_counter()
            left = size
            while left:
                sock.settimeout(max(0.01, deadline - time.monotonic()))
                left -= sock.send(chunk[: min(_CHUNK, left)])
            _exactly(sock, 1)
            took = time.perf_counter() - start
    except TimeoutError:
        return [Line("network", False, detail=f"{peer} did not take the data within {timeout_s:g} s")]
    except OSError as error:
        return [Line("network", False, detail=f"{peer}: {error.strerror or error}")]
    return [
        Line("network_latency", True, value=statistics.median(pings) * 1e6, unit="us"),
        Line("network_bandwidth", True, value=size / took / 1e6, unit="MB/s"),
    ]


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
