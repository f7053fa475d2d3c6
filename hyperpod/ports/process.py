"""Running programs, as a port: what every adapter that needs a command line asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Completed:
    """What a program left behind. ``code`` is its exit status, negative for the signal that ended it."""

    stdout: str
    stderr: str
    code: int


class ProcessRunner(Protocol):
    """Runs one program to its end, within a deadline. Never through a shell."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        check: bool = True,
    ) -> Completed:
        """Run ``argv`` and return its output.

        Args:
            argv: Program and arguments. The program is looked up in PATH.
            timeout_s: Deadline in seconds; past it the whole process group is killed.
            input: Text for its standard input; without it standard input is empty.
            env: Variables added to (and overriding) the caller's environment.
            user: Login name to run as; needs root.
            check: Whether a status other than 0 is an error.
        Raises:
            CommandError: Ended with another status (``check`` only), or could not be started (status 127).
            CommandTimeout: Did not end in time.
        """
        ...


class Running(Protocol):
    """A program that runs beside us."""

    def code(self) -> int | None:
        """Return how it ended (negative: the signal), or None while it is there."""
        ...

    def write(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            OSError: if it does not read any more.
        """
        ...

    def read(self, timeout_s: float | None) -> bytes | None:
        """Return what comes from its standard output next; empty at its end, None when nothing came in time."""
        ...

    def kill(self) -> None:
        """Kill it; nobody waits until it is gone."""
        ...

    def close(self) -> None:
        """Give the pipes back."""
        ...


class Starter(Protocol):
    """Starts programs that run beside us."""

    def start(self, argv: Sequence[str]) -> Running:
        """Start ``argv`` with pipes to its standard input and output.

        Raises:
            CommandError: It could not be started (status 127).
        """
        ...


class Programs(ProcessRunner, Starter, Protocol):
    """Both."""
