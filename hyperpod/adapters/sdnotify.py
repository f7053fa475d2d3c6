"""Tell systemd how a daemon is: ready, alive, stopping. Without systemd it does nothing."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send one line such as ``READY=1`` to the service manager; never fails (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), address)
    except OSError:
        return
