"""What systemd wants to hear: READY, WATCHDOG, STOPPING (man sd_notify). A datagram each."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Speaks to the service manager; silent when there is none.

    Args:
        environment: Where NOTIFY_SOCKET and WATCHDOG_USEC are looked up.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        watchdog = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.interval_s = int(watchdog) / 3e6 if watchdog.isdigit() and int(watchdog) and is_ours else None

    def say(self, text: str) -> None:
        """Send one state; a manager that is gone is no error of ours."""
        if not self._address:
            return
        # A leading @ stands for the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(address)
                sock.send(text.encode())
        except OSError:
            return
