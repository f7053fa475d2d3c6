"""Keeps tests inside this machine: whoever asks for another address than loopback is refused at once."""

from __future__ import annotations

import socket
from typing import Any

import pytest

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def forbid_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse names and addresses outside; boto3 meets it as an endpoint that cannot be reached."""
    real = socket.getaddrinfo

    def only_loopback(host: Any, *args: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in (*_LOOPBACK, None):
            raise socket.gaierror(socket.EAI_NONAME, f"tests reach nothing outside: {name}")
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", only_loopback)
