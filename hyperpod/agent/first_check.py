"""The wait of slurmd for the controller, where a deep check comes before the first job.

A node that registers while jobs are pending gets one at once. So its slurmd starts only when the agent has been told
that Slurm sends nothing here, or that the check is done. A controller that is away keeps it waiting: each try ends
after half a minute with a line in slurmd's log, and the service manager makes the next one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from hyperpod.errors import ConnectionLost

LIMIT_S: Final = 30.0
"""Less than slurmd.service's TimeoutStartSec, which would end the try without a word."""
PAUSE_S: Final = 0.2
_MOST: Final = 1 << 20


def wait_until_closed(
    ask: Callable[[], Mapping[str, Any]],
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    limit_s: float = LIMIT_S,
) -> str:
    """Return why slurmd may start now.

    Args:
        ask: Returns what the agent says of itself; raises OSError or ValueError while it does not answer.
        monotonic, sleep: The clock, in seconds.
        limit_s: It does not wait longer.

    Raises:
        ConnectionLost: if it may not start yet.
    """
    end = monotonic() + limit_s
    while True:
        why = "the controller has not said that Slurm sends no job here"
        try:
            told = ask()
        except (OSError, ValueError) as error:
            told = {"owes_deep": ["?"]}
            why = f"the agent does not answer ({error})"
        if not told.get("owes_deep"):
            return "no deep check is due before the first job"
        if told.get("is_closed"):
            return "Slurm sends no job to this node until its deep check is done"
        if monotonic() >= end:
            raise ConnectionLost(
                f"slurmd waits, so that no job comes before the deep check: {why}, in the last {limit_s:.0f} s",
                hint="the next try follows; look at hyperpod-controller on the head node, and here at hyperpod-agent",
            )
        sleep(PAUSE_S)


def ask_agent(path: str) -> Mapping[str, Any]:
    """Return what the agent at this socket says of itself.

    Raises:
        OSError, ValueError: if it does not answer, or not so.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(2.0)
        sock.connect(path)
        sock.sendall(b'{"v":1,"type":"health"}\n')
        received = b""
        while b"\n" not in received and len(received) < _MOST:
            data = sock.recv(65536)
            if not data:
                break
            received += data
    told = json.loads(received.partition(b"\n")[0])
    if not isinstance(told, dict):
        raise ValueError("the agent's answer is no object")
    return told
