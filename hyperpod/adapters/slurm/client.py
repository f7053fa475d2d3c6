"""Slurm through its command line tools; implements ``ports.slurm.Slurm``.

Owns deadlines, retries and the translation of Slurm's messages. Command lines come from commands.py, answers go
through parse.py. Reads that fail quickly are tried twice; writes are never repeated here, because a request whose
answer was lost may have been carried out: the caller looks again and decides anew.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from hyperpod.adapters.slurm import commands, parse
from hyperpod.core.job import JobView
from hyperpod.core.node import Availability
from hyperpod.errors import (
    AccessDenied,
    CommandError,
    CommandTimeout,
    HyperpodError,
    InvalidState,
    NotFound,
    SlurmError,
    SlurmUnavailable,
    UnexpectedOutput,
)
from hyperpod.ports.process import ProcessRunner
from hyperpod.ports.slurm import NodeState

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S = 5.0
"""The tools themselves wait 9 to 18 s for a slurmctld that is away (24.11.5, MessageTimeout 10 s)."""

# Messages of 24.11.5 (src/common/slurm_errno.c), seen or read; matched anywhere in the tool's last lines.
_UNAVAILABLE = re.compile(
    r"Unable to contact slurm controller|Socket timed out|connect failure|Connection refused|Connection timed out"
    r"|Unexpected message received|Zero Bytes were transmitted|Transport endpoint is not connected"
    r"|Message receive failure|Message send failure|Communications? (?:connection|shutdown) failure"
    r"|slurmctld.*not responding|Slurm backup controller in standby|Insane message length"
    r"|Protocol authentication error|auth[/_]munge|Resource temporarily unavailable|Slurm controller is.*reconfigur",
    re.IGNORECASE,
)
_NO_JSON = re.compile(
    r"unrecognized option|invalid option|serializer|data_parser|unable to (?:load|find).*plugin", re.IGNORECASE
)
_GONE = re.compile(
    r"Invalid job id|Invalid node name|Invalid partition name|Unable to find|not found|Invalid job/step", re.IGNORECASE
)
_DENIED = re.compile(r"Access/permission denied|permission denied", re.IGNORECASE)
_SOON = re.compile(r"try again later|in transition|currently in progress", re.IGNORECASE)
_NOT_PENDING = re.compile(r"no longer pending", re.IGNORECASE)
_IS_PENDING = re.compile(r"is pending execution", re.IGNORECASE)
_IS_HELD = re.compile(r"in held state", re.IGNORECASE)
_IS_OVER = re.compile(r"already (?:completing|completed|finished|done)|has already", re.IGNORECASE)
_BAD_STATE = re.compile(r"Invalid node state", re.IGNORECASE)
_DISABLED = re.compile(r"presently disabled", re.IGNORECASE)

_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def read_file(path: Path, limit_bytes: int) -> bytes:
    """Read at most ``limit_bytes + 1`` bytes of a file."""
    with path.open("rb") as file:
        return file.read(limit_bytes + 1)


class SlurmCli:
    """Asks and tells slurmctld through ``scontrol``, ``squeue`` and ``scancel``.

    Args:
        processes: Runs the tools.
        state_dir: slurmctld's StateSaveLocation, for the environments saved with batch jobs.
        deadline_s: Longest wait for one tool.
        read_bytes: Reads a file up to a limit.
    """

    def __init__(
        self,
        processes: ProcessRunner,
        *,
        state_dir: Path = Path("/var/spool/slurmctld"),
        deadline_s: float = DEADLINE_S,
        read_bytes: Callable[[Path, int], bytes] = read_file,
    ) -> None:
        self._processes = processes
        self._state_dir = state_dir
        self._deadline_s = deadline_s
        self._read_bytes = read_bytes
        self._has_json = True
        self._array_of: dict[int, int | None] = {}
        self._bad_environments: set[int] = set()

    # --- reads --------------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[NodeState, ...]:
        """Return every node of the cluster, hidden partitions included."""
        return self._ask(
            commands.show_nodes(), parse.parse_nodes, commands.show_nodes(json=False), parse.parse_nodes_text
        )

    def node(self, name: str) -> NodeState:
        """Return one node.

        Raises:
            NotFound: if slurmctld does not know it (its JSON answer is an empty list then).
        """
        found = self._ask(
            commands.show_node(name), parse.parse_nodes, commands.show_node(name, json=False), parse.parse_nodes_text
        )
        for state in found:
            if state.name == name:
                return state
        raise NotFound(f"Slurm does not know a node {name}")

    def jobs(self) -> tuple[JobView, ...]:
        """Return every job that slurmctld remembers; array tasks and het components one by one.

        Tasks of an array that have not been started yet share one view with the id of the array and no task id.
        """
        found = self._ask(commands.show_jobs(), parse.parse_jobs, commands.show_jobs(json=False), parse.parse_jobs_text)
        self._array_of = {job.job_id: job.array_job_id for job in found}
        return found

    def job(self, job_id: int) -> JobView | None:
        """Return one job, or None when slurmctld answers that it does not know it."""
        try:
            found = self._ask(
                commands.show_job(job_id),
                parse.parse_jobs,
                commands.show_job(job_id, json=False),
                parse.parse_jobs_text,
            )
        except NotFound:
            return None
        return next((job for job in found if job.job_id == job_id), None)

    def partitions(self) -> Mapping[str, tuple[str, ...]]:
        """Return the expanded node names of every partition, hidden ones included."""
        return self._ask(
            commands.show_partitions(),
            parse.parse_partitions,
            commands.show_partitions(json=False),
            parse.parse_partitions_text,
        )

    def saved_environment(self, job_id: int) -> Mapping[str, str] | None:
        """Return the environment stored with a batch job, or None when it is not there to read.

        A task of an array has the environment of its array. A file that is damaged or too large counts as not
        there and is logged once, so that one user's job cannot stop the watch over the others.
        """
        try:
            saved = self._environment_file(job_id)
            array = self._array(job_id) if saved is None else None
            if array is not None:
                saved = self._environment_file(array)
            return parse.parse_environment(saved) if saved is not None else None
        except (OSError, UnexpectedOutput) as error:
            if job_id not in self._bad_environments:
                self._bad_environments.add(job_id)
                logger.warning("saved environment not readable job=%d error=%s", job_id, error)
            return None

    def _environment_file(self, job_id: int) -> bytes | None:
        path = self._state_dir / f"hash.{job_id % 10}" / f"job.{job_id}" / "environment"
        try:
            return self._read_bytes(path, parse.MAX_ENVIRONMENT_BYTES)
        except FileNotFoundError:
            return None

    def _array(self, job_id: int) -> int | None:
        if job_id not in self._array_of:
            found = self.job(job_id)
            return found.array_job_id if found is not None else None
        return self._array_of[job_id]

    # --- nodes --------------------------------------------------------------------------------------------------

    def set_down(self, node: str, reason: str) -> None:
        """Mark a node DOWN and DRAIN: its jobs are requeued at once and it does not come back by itself.

        Drained first, so that no instant is left in which a live slurmd registers and takes the job back.
        """
        self._tell(commands.set_node_state(node, "drain", reason))
        self._tell(commands.set_node_state(node, "down", reason))

    def drain(self, node: str, reason: str) -> None:
        """Keep new work away from a node; running jobs stay."""
        self._tell(commands.set_node_state(node, "drain", reason))

    def undrain(self, node: str) -> None:
        """Allow work again; a node in service stays as it is."""
        before = self.node(node)
        if not before.is_drained and before.availability is not Availability.DOWN:
            return
        try:
            self._tell(commands.set_node_state(node, "resume"))
        except InvalidState:
            # Before its first registration slurmctld knows no state to return to, but can drop the drain.
            after = self.node(node)
            if after.is_drained:
                self._tell(commands.set_node_state(node, "undrain"))

    def update_address(self, node: str, address: str) -> None:
        """Tell slurmctld a new address for a node."""
        self._tell(commands.set_node_address(node, address))

    def set_partition_nodes(self, partition: str, nodes: Sequence[str]) -> None:
        """Set the members of a partition."""
        self._tell(commands.set_partition_nodes(partition, nodes))

    # --- jobs ---------------------------------------------------------------------------------------------------

    def allow_requeue(self, job_id: int) -> None:
        """Let a job be requeued although it was submitted with ``--no-requeue``."""
        self._tell(commands.set_job(job_id, "requeue", "1"))

    def forbid_requeue(self, job_id: int) -> None:
        """Have Slurm end a job whose node dies, instead of requeueing it by itself."""
        self._tell(commands.set_job(job_id, "requeue", "0"))

    def requeue(self, job_id: int) -> None:
        """Put a running or ended job back in the queue; a pending one stays as it is."""
        self._tell(commands.requeue(job_id), already=_IS_PENDING)

    def start_now(self, job_id: int) -> None:
        """Set a pending job's begin time to now; one that has started already is content.

        Slurm loses the request while the job is still COMPLETING: repeat it until the job is seen without.
        """
        self._tell(commands.set_job(job_id, "starttime", "now"), already=_NOT_PENDING)

    def set_excluded(self, job_id: int, nodes: Sequence[str]) -> None:
        """Set the nodes that a pending job must not get (the whole list; empty clears it).

        Raises:
            InvalidState: if the job is not pending any more.
        """
        self._tell(commands.set_job(job_id, "excnodelist", ",".join(nodes)))

    def set_top_priority(self, job_id: int) -> None:
        """Give a pending job its place at the head of its queue.

        Raises:
            InvalidState: if the job is held; a hold is lifted by ``release`` only.
        """
        self._tell(commands.set_job(job_id, "priority", str(commands.TOP_PRIORITY)), already=_NOT_PENDING)

    def release(self, job_id: int) -> None:
        """Release a job that Slurm holds; one that is not held stays as it is."""
        self._tell(commands.release(job_id), already=_NOT_PENDING)

    def kill_step(self, job_id: int, step_id: int) -> None:
        """Kill one step of a running job with SIGKILL, or the batch script for step -5."""
        self._tell(commands.kill_step(job_id, step_id), already=_IS_OVER)

    # --- plumbing -----------------------------------------------------------------------------------------------

    def _ask(
        self, argv: list[str], parser: Callable[[str], T], text_argv: list[str], text_parser: Callable[[str], T]
    ) -> T:
        for is_last in (False, True):
            try:
                if self._has_json:
                    try:
                        return parser(self._run(argv))
                    except CommandError as error:
                        if isinstance(error, CommandTimeout) or not _NO_JSON.search(error.stderr_tail):
                            raise
                        logger.info("%s has no JSON, its text is read instead: %s", argv[0], error.message)
                        self._has_json = False
                return text_parser(self._run(text_argv))
            except CommandTimeout as error:
                # The deadline is used up; a second wait would only delay the tick.
                raise SlurmUnavailable(f"{argv[0]} gave no answer within {self._deadline_s:g} s") from error
            except CommandError as error:
                problem = _translated(error)
                if is_last or not isinstance(problem, SlurmUnavailable):
                    raise problem from error
            except SlurmUnavailable:
                if is_last:
                    raise
        raise AssertionError("unreachable")

    def _tell(self, argv: list[str], *, already: re.Pattern[str] | None = None) -> None:
        try:
            self._run(argv)
        except CommandTimeout as error:
            raise SlurmUnavailable(f"{argv[0]} gave no answer within {self._deadline_s:g} s; it may be done") from error
        except CommandError as error:
            if already is not None and already.search(error.stderr_tail):
                return
            raise _translated(error) from error

    def _run(self, argv: list[str]) -> str:
        return self._processes.run(argv, timeout_s=self._deadline_s, env=_ENVIRONMENT).stdout


def _translated(error: CommandError) -> HyperpodError:
    """Return what a tool's message means."""
    lines = [line.strip() for line in error.stderr_tail.splitlines() if line.strip()]
    told = lines[0] if lines else f"no message, status {error.code}"
    asked = " ".join(error.argv)
    text = "\n".join(lines)
    if error.code == 127:
        return SlurmUnavailable(f"{error.argv[0]} cannot be started: {told}", hint="install slurm-client")
    if _UNAVAILABLE.search(text):
        return SlurmUnavailable(f"slurmctld does not answer: {told}")
    if _GONE.search(text):
        return NotFound(f"{told} ({asked})")
    if _DENIED.search(text):
        return AccessDenied(f"Slurm refused: {told} ({asked})", hint="only root and SlurmUser may do this")
    if _NOT_PENDING.search(text):
        return InvalidState(asked, "no longer pending")
    if _IS_HELD.search(text):
        return InvalidState(asked, "held")
    if _BAD_STATE.search(text):
        return InvalidState(asked, "in a state that does not allow it")
    if _DISABLED.search(text):
        return InvalidState(asked, "not allowed to be requeued", hint="allow_requeue first")
    refused = SlurmError(f"Slurm refused: {told} ({asked})")
    if _SOON.search(text):
        refused.retry_after = timedelta(seconds=1)
    return refused
