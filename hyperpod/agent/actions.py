"""What the agent's mind may have done for it: the effects, as a port. The loop carries them out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from hyperpod.agent.deep import Order
from hyperpod.agent.outputs import Output
from hyperpod.health.check import Check, Facts


class Actions(Protocol):
    """Effects. None of them blocks; answers come back as events."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send to the controller on the present connection."""
        ...

    def reset_link(self) -> None:
        """Make a new connection to the controller."""
        ...

    def reply(self, client: int, lines: Sequence[str]) -> None:
        """Answer a client of the socket."""
        ...

    def start_check(self, check: Check, run_id: int, facts: Facts) -> None:
        """Run a check apart; its result comes as ``on_check``."""
        ...

    def find_user_checks(self) -> None:
        """Look for checks that users bring; what is found comes as ``on_user_checks``."""
        ...

    def find_jobs(self) -> None:
        """Look which jobs have processes here; what is found comes as ``on_jobs``."""
        ...

    def read_kernel_log(self) -> None:
        """Take in what the kernel log holds right now."""
        ...

    def start_program(self, order: Order) -> None:
        """Run a deep check's program, unless a job is here; its end comes as ``on_program``."""
        ...

    def stop_programs(self) -> None:
        """Kill every deep check's program at once; each still ends with ``on_program``."""
        ...

    def probe(self, targets: Sequence[tuple[str, int]]) -> None:
        """Try connections; each answer comes as ``on_probe``."""
        ...

    def kill_jobs(self, job_ids: Collection[int] | None, key: str, ended_s: float | None = None) -> None:
        """Kill the processes of these jobs (None: those to be fenced); the outcome comes as ``on_killed``.

        With ``ended_s`` only what was started before that many seconds ago, slurmstepd included.
        """
        ...

    def find_checkpoint(self, key: str, directory: str, uid: int, timeout_s: float) -> None:
        """Look for the newest good checkpoint as a user; the answer comes as ``on_checkpoint``."""
        ...

    def read_output(self, output: Output) -> None:
        """Read the end of a failed job's output with its user's rights, where the machine has Neuron devices; it comes
        as ``on_output``."""
        ...

    def make_job_folder(self, job_id: int) -> None:
        """Make a job's folder, empty of what an earlier attempt left."""
        ...

    def clean_shared_memory(self, job_id: int, uid: int) -> None:
        """Remove what an earlier attempt left in /dev/shm, unless another job of the user may use it."""
        ...

    def mark_peer_lost(self, job_id: int, node: str) -> None:
        """Make the file appear that tells a training that a peer is lost."""
        ...

    def fetch_files(self) -> None:
        """Take over the cluster's files anew: names and host keys."""
        ...

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep what has to outlive a restart."""
        ...
