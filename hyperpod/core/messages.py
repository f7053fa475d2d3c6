"""Words of the protocol between agent, controller and command line.

A frame is a 4-byte big-endian length and a munge credential whose payload is one JSON object. The peer's uid
comes from the credential. Every object has ``type``; requests that want an answer carry ``id`` and the answer
repeats it. docs/reference/protocol.md shows every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyperpod.core.finding import Finding
from hyperpod.core.job import TaskExit

PROTOCOL = 1
MAX_FRAME_BYTES = 1_000_000

HELLO = "hello"
HEARTBEAT = "heartbeat"
ACK = "ack"
TASK_START = "task_start"
TASK_EXIT = "task_exit"
STEP_END = "step_end"
ENV = "env"
REPLY = "reply"
QUERY = "query"
COMMAND = "command"
QUICK_CHECK = "quick_check"
KILL_JOB = "kill_job"
CLEAR = "clear"
PEER_LOST = "peer_lost"
FETCH_FILES = "fetch_files"
GOODBYE = "goodbye"
"""An orderly shutdown of a node tells the controller before slurmd stops."""


@dataclass(frozen=True)
class Heartbeat:
    """What an agent says every second: who it is and its whole set of open findings.

    ``sequence`` grows by one within one life of the agent; ``sent_at`` is epoch seconds on the node's clock.
    """

    node: str
    instance_id: str
    boot_id: str
    sequence: int
    sent_at: float
    is_ready: bool
    not_ready_because: str = ""
    findings: tuple[Finding, ...] = ()
    agent_version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the message."""
        return {
            "type": HEARTBEAT,
            "v": PROTOCOL,
            "node": self.node,
            "instance_id": self.instance_id,
            "boot_id": self.boot_id,
            "sequence": self.sequence,
            "sent_at": self.sent_at,
            "is_ready": self.is_ready,
            "not_ready_because": self.not_ready_because,
            "findings": [f.to_dict() for f in self.findings],
            "agent_version": self.agent_version,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Heartbeat:
        """Read the message.

        Raises:
            KeyError, ValueError, TypeError: if it is not a heartbeat.
        """
        return cls(
            node=str(data["node"]),
            instance_id=str(data["instance_id"]),
            boot_id=str(data["boot_id"]),
            sequence=int(data["sequence"]),
            sent_at=float(data["sent_at"]),
            is_ready=bool(data["is_ready"]),
            not_ready_because=str(data.get("not_ready_because", "")),
            findings=tuple(Finding.from_dict(f) for f in data.get("findings", ())),
            agent_version=str(data.get("agent_version", "")),
        )


def parse_task_exit(data: Mapping[str, Any]) -> TaskExit:
    """Read a ``task_exit`` message as the plugin writes it.

    Raises:
        KeyError, ValueError, TypeError: if it is not one.
    """
    code, signal = data.get("exit_code"), data.get("signal")
    return TaskExit(
        job_id=int(data["job_id"]),
        restart_count=int(data.get("restart_count") or 0),
        step_id=int(data["step_id"]),
        rank=int(data.get("rank", 0)),
        node=str(data["node"]),
        time=float(data["time"]),
        exit_code=int(code) if code is not None else None,
        signal=int(signal) if signal is not None else None,
    )
