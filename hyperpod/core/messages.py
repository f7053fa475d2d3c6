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
SEAL = "seal"
"""In a hello the connection's key, in its answer True: from then on heartbeats and their ACKs are sealed with it."""

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
DEEP = "deep"
DEEP_STOP = "deep_stop"
DEEP_JUDGED = "deep_judged"
"""A deep check: run one program, stop them all, and what the figures of all nodes say of this one."""

PEER_LOST = "peer_lost"
FETCH_FILES = "fetch_files"
GOODBYE = "goodbye"
"""An orderly shutdown of a node tells the controller before slurmd stops."""


@dataclass(frozen=True)
class Heartbeat:
    """What an agent says every second: who it is and its whole set of open findings.

    ``sequence`` grows by one within one life of the agent; ``sent_at`` is epoch seconds on the node's clock. ``wants``
    are the deep checks that the node waits for before its first job; ``owes_deep`` says that there are such checks,
    also while the basic ones have not passed yet and they cannot begin.
    ``inventory`` is what the node's checks have counted; None: as told before on this connection.
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
    wants: tuple[str, ...] = ()
    owes_deep: bool = False
    inventory: Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the message."""
        told = {} if self.inventory is None else {"inventory": dict(self.inventory)}
        return told | {
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
            **({"wants": list(self.wants)} if self.wants else {}),
            **({"owes_deep": True} if self.owes_deep else {}),
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
            wants=tuple(str(kind) for kind in data.get("wants", ())),
            owes_deep=bool(data.get("owes_deep", False)),
            inventory=_parse_inventory(data.get("inventory")),
        )


def whole_job(data: Mapping[str, Any]) -> int:
    """Return the job that a report of the plugin counts for: the leader, for a component of a het job.

    Raises:
        KeyError, ValueError, TypeError: if it names no job.
    """
    return int(data.get("het_job_id") or data["job_id"])


MOST_COUNTED = 200
"""Entries of an inventory; an agent of ours has a few dozen."""


def _parse_inventory(data: Any) -> Mapping[str, str] | None:
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise ValueError("inventory must be an object")
    return {str(key)[:60]: str(value)[:200] for key, value in list(data.items())[:MOST_COUNTED]}


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
