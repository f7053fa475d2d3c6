"""Agents in memory: every machine that runs sends its heartbeat; what is sent to agents is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperpod.controller.memory import Inbox, Report
from hyperpod.core import messages as words
from hyperpod.core.finding import Finding
from hyperpod.core.messages import Heartbeat
from tests.fakes.clock import FakeClock
from tests.fakes.provider import FakeMachines


class FakeAgents:
    """Implements ``controller.world.Agents``, and plays the agents' own side.

    ``findings`` are what each node's agent believes, ``inventories`` what its checks have counted, ``mute`` the nodes
    that are cut off, ``owes`` the deep checks that each waits for before its first job, ``sent`` the messages that the
    controller sent.
    """

    def __init__(self, machines: FakeMachines, clock: FakeClock) -> None:
        self.machines = machines
        self.clock = clock
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self.findings: dict[str, tuple[Finding, ...]] = {}
        self.inventories: dict[str, dict[str, str]] = {}
        self.mute: set[str] = set()
        self.not_ready: set[str] = set()
        self.owes: dict[str, tuple[str, ...]] = {}
        self._sequence = 0

    def send(self, node: str, message: Mapping[str, Any]) -> bool:
        self.sent.append((node, message))
        if message["type"] == words.DEEP_JUDGED and self.is_speaking(node):
            self.owes[node] = tuple(kind for kind in self.owes.get(node, ()) if kind not in message["kinds"])
            self.findings[node] = tuple(Finding.from_dict(f) for f in message["findings"])
        return self.is_speaking(node)

    def is_speaking(self, node: str) -> bool:
        """Say whether the node's agent lives and can be heard."""
        return node not in self.mute and self.machines.is_ready(node)

    def beat(self, inbox: Inbox) -> None:
        """Have every living agent send its heartbeat."""
        self._sequence += 1
        for node, machine in self.machines.machines.items():
            if not self.is_speaking(node):
                continue
            beat = Heartbeat(
                node=node,
                instance_id=machine.instance.id,
                boot_id=machine.boot_id,
                sequence=self._sequence,
                sent_at=self.clock.now().timestamp(),
                is_ready=node not in self.not_ready and not self.owes.get(node),
                wants=() if node in self.not_ready else self.owes.get(node, ()),
                owes_deep=bool(self.owes.get(node)),
                findings=self.findings.get(node, ()),
                inventory=self.inventories.get(node),
            )
            inbox.put(Report(words.HEARTBEAT, self.clock.now(), beat.to_dict()))

    def goodbye(self, node: str, inbox: Inbox) -> None:
        """Announce an orderly shutdown."""
        inbox.put(Report(words.GOODBYE, self.clock.now(), {"type": words.GOODBYE, "node": node}))

    def task_exit(self, inbox: Inbox, job_id: int, **fields: Any) -> None:
        """Report a task's end."""
        data = {"job_id": job_id, "step_id": 0, "rank": 0, "node": "", "time": self.clock.now().timestamp(), **fields}
        inbox.put(Report(words.TASK_EXIT, self.clock.now(), data))
