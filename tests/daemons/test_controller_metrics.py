"""The metrics' port: readers that stay for ever do not pile up."""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from socketserver import ThreadingMixIn

import pytest

from hyperpod.controller.metrics import MetricsServer


def test_the_oldest_reader_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadingMixIn, "process_request", lambda *_: None)
    server = MetricsServer.__new__(MetricsServer)
    server._open, server._guard = OrderedDict(), threading.Lock()
    pairs = [socket.socketpair() for _ in range(server.most + 1)]
    try:
        for ours, _ in pairs:
            server.process_request(ours, None)

        assert pairs[0][1].recv(1) == b"", "the first one was ended"
        pairs[1][1].setblocking(False)
        with pytest.raises(BlockingIOError):
            pairs[1][1].recv(1)
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
