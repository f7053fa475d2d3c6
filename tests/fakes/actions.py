"""The agent's effects, recorded instead of carried out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hyperpod.agent.deep import Order
from hyperpod.agent.outputs import Output
from hyperpod.health.check import Check, Facts


@dataclass
class FakeActions:
    """Implements ``agent.actions.Actions``."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    replies: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    started: list[tuple[str, int, Facts]] = field(default_factory=list)
    probed: list[tuple[tuple[str, int], ...]] = field(default_factory=list)
    killed: list[tuple[tuple[int, ...] | None, str]] = field(default_factory=list)
    looked_up: list[tuple[str, str, int, float]] = field(default_factory=list)
    folders: list[int] = field(default_factory=list)
    cleaned: list[tuple[int, int]] = field(default_factory=list)
    peers_lost: list[tuple[int, str]] = field(default_factory=list)
    saved: list[dict[str, Any]] = field(default_factory=list)
    programs: list[Order] = field(default_factory=list)
    stops: int = 0
    resets: int = 0
    kernel_looks: int = 0
    searches: int = 0
    job_looks: int = 0
    fetches: int = 0
    outputs: list[Output] = field(default_factory=list)

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(dict(message))

    def reset_link(self) -> None:
        self.resets += 1

    def reply(self, client: int, lines: Sequence[str]) -> None:
        self.replies.append((client, tuple(lines)))

    def start_check(self, check: Check, run_id: int, facts: Facts) -> None:
        self.started.append((check.name, run_id, facts))

    def find_user_checks(self) -> None:
        self.searches += 1

    def find_jobs(self) -> None:
        self.job_looks += 1

    def read_kernel_log(self) -> None:
        self.kernel_looks += 1

    def start_program(self, order: Order) -> None:
        self.programs.append(order)

    def stop_programs(self) -> None:
        self.stops += 1

    def probe(self, targets: Sequence[tuple[str, int]]) -> None:
        self.probed.append(tuple(targets))

    def kill_jobs(self, job_ids: Collection[int] | None, key: str, ended_s: float | None = None) -> None:
        self.killed.append((None if job_ids is None else tuple(job_ids), key))

    def find_checkpoint(self, key: str, directory: str, uid: int, timeout_s: float) -> None:
        self.looked_up.append((key, directory, uid, timeout_s))

    def clean_shared_memory(self, job_id: int, uid: int) -> None:
        self.cleaned.append((job_id, uid))

    def read_output(self, output: Output) -> None:
        self.outputs.append(output)

    def make_job_folder(self, job_id: int) -> None:
        self.folders.append(job_id)

    def mark_peer_lost(self, job_id: int, node: str) -> None:
        self.peers_lost.append((job_id, node))

    def fetch_files(self) -> None:
        self.fetches += 1

    def save(self, state: Mapping[str, Any]) -> None:
        self.saved.append(dict(state))

    def take_sent(self, kind: str) -> list[dict[str, Any]]:
        """Return the messages of a type sent so far and forget all."""
        found = [m for m in self.sent if m["type"] == kind]
        self.sent.clear()
        return found
