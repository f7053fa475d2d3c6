"""The podman command line: argument lists in, containers as values out, its errors as ours.

Knows nothing of clusters. Every call has a deadline.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hyperpod.errors import (
    AccessDenied,
    AlreadyExists,
    CommandError,
    CommandTimeout,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    UnexpectedOutput,
)
from hyperpod.ports.process import Completed, ProcessRunner

# Starting containers competes with boots of others for the cores of a small machine.
_TIMEOUT_S = 60.0
# crun refuses a host with both cgroup hierarchies.
_PODMAN = ("podman", "--runtime", "runc")


@dataclass(frozen=True)
class Container:
    """A container as ``podman ps`` shows it. ``state`` is podman's word."""

    id: str
    name: str
    state: str
    exit_code: int
    pid: int
    created_at: datetime
    labels: Mapping[str, str]


class Podman:
    """Runs podman. Errors are translated here, once."""

    def __init__(self, processes: ProcessRunner) -> None:
        self._processes = processes

    def run(self, *arguments: str, timeout_s: float = _TIMEOUT_S) -> str:
        """Run a podman command and return its output.

        Raises:
            ProviderError: Or one of its kin, by what podman said.
        """
        try:
            return self._processes.run([*_PODMAN, *arguments], timeout_s=timeout_s).stdout
        except CommandTimeout as error:
            raise ProviderUnavailable(f"podman {arguments[0]} did not answer within {timeout_s:g} s") from error
        except CommandError as error:
            raise translate(error) from error

    def containers(self, *filters: str) -> tuple[Container, ...]:
        """Return containers in any state that have all these labels (``key=value``); one podman call."""
        arguments = ["ps", "--all", "--format", "json"]
        for label in filters:
            arguments += ["--filter", f"label={label}"]
        return parse_containers(self.run(*arguments))

    def networks(self) -> list[dict[str, Any]]:
        """Return podman's networks as it describes them."""
        names = self.run("network", "ls", "-q").split()
        if not names:
            return []
        try:
            text = self.run("network", "inspect", *names)
        except NotFound:
            # One of them went away in between.
            return self.networks()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnexpectedOutput("podman network inspect", text) from error
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise UnexpectedOutput("podman network inspect", text)
        return found

    def exec(
        self, container: str, argv: Sequence[str], *, timeout_s: float, input: str | None = None, check: bool = True
    ) -> Completed:
        """Run a command in a container as root; its own failure is a CommandError, podman's a ProviderError."""
        prefix = [*_PODMAN, "exec", *(["-i"] if input is not None else []), container]
        done = self._processes.run([*prefix, *argv], timeout_s=timeout_s, input=input, check=False)
        # 125 is podman's own failure; everything else comes from the command.
        if done.code == 125 or (done.code == 255 and "container state improper" in done.stderr):
            raise translate(CommandError(["podman", "exec", container], done.code, done.stderr))
        if check and done.code != 0:
            raise CommandError(argv, done.code, done.stderr or done.stdout)
        return done


def parse_containers(text: str) -> tuple[Container, ...]:
    """Read the output of ``podman ps --format json``.

    Raises:
        UnexpectedOutput: It is something else.
    """
    try:
        rows = json.loads(text or "[]") or []
        return tuple(
            Container(
                id=row["Id"],
                name=row["Names"][0],
                state=str(row["State"]).lower(),
                exit_code=int(row.get("ExitCode") or 0),
                pid=int(row.get("Pid") or 0),
                created_at=_created(row),
                labels=row.get("Labels") or {},
            )
            for row in rows
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise UnexpectedOutput("podman ps", text[:200]) from error


def _created(row: Mapping[str, Any]) -> datetime:
    created = row["Created"]
    if isinstance(created, int | float):
        return datetime.fromtimestamp(created, UTC)
    return datetime.fromisoformat(str(created).replace("Z", "+00:00")).astimezone(UTC)


def translate(error: CommandError) -> ProviderError:
    """Return our error for what podman said."""
    text = error.stderr_tail
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    last = (lines or ["no message"])[-1].removeprefix("Error: ")
    lower = text.lower()
    if error.code == 127 and error.argv and error.argv[0] == "podman" and "no such file" in lower:
        return ProviderError("podman is not installed", hint="hyperpod doctor --fix")
    if "no such container" in lower or "no such network" in lower or "network not found" in lower:
        return NotFound(last)
    if "already in use" in lower or "already exists" in lower or "already used" in lower:
        return AlreadyExists(last)
    if "no space left" in lower:
        return NoCapacity("no disk space left for podman", hint="free space below /var/lib/containers")
    if "cannot allocate memory" in lower:
        return NoCapacity("not enough memory to start a node", hint="fewer nodes, or delete another cluster")
    if "rlimit" in lower:
        return ProviderError(f"podman cannot set resource limits: {last}", hint="hyperpod doctor")
    if "permission denied" in lower or "must be root" in lower or "operation not permitted" in lower:
        return AccessDenied(f"podman: {last}", hint="local clusters need root: run as root or with sudo")
    if "netavark" in lower or "iptables" in lower:
        return ProviderError(f"podman cannot set up the network: {last}", hint="hyperpod doctor --fix")
    return ProviderError(f"podman: {last}", hint="hyperpod doctor")


def ulimits() -> list[str]:
    """Return podman options that keep its default limits below what this machine lets anybody raise."""
    options = []
    # podman lowers its own limit of processes to the kernel's highest pid and cannot go above it afterwards.
    for name, kind, most in (("nofile", resource.RLIMIT_NOFILE, 1048576), ("nproc", resource.RLIMIT_NPROC, _pid_max())):
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(hard, most)
        options += ["--ulimit", f"{name}={limit}:{limit}"]
    return options


def _pid_max() -> int:
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_text())
    except (OSError, ValueError):
        return 32768
