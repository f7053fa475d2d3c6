"""A second opinion on a silent machine: does anybody work there?

A frozen machine still completes TCP handshakes (the kernel does that), so an answer from a program is asked for:
sshd's banner. A refused port shows a living kernel; then slurmd's port decides.
"""

from __future__ import annotations

import socket
import time

SSH_PORT = 22
SLURMD_PORT = 6818


def is_working(address: str, timeout_s: float = 1.0, ssh_port: int = SSH_PORT, slurmd_port: int = SLURMD_PORT) -> bool:
    """Return whether sshd speaks on the machine, or, without an sshd, slurmd's port is open. At most ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    try:
        with socket.create_connection((address, ssh_port), timeout=timeout_s) as sock:
            sock.settimeout(max(deadline - time.monotonic(), 0.05))
            return sock.recv(4) == b"SSH-"
    except ConnectionRefusedError:
        try:
            with socket.create_connection((address, slurmd_port), timeout=max(deadline - time.monotonic(), 0.05)):
                return True
        except OSError:
            return False
    except OSError:
        return False
