"""Logins on nodes, as a port: where a node is, how it proves who it is, and what a session can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hyperpod.core.login import Forward


@dataclass(frozen=True)
class SshTarget:
    """A node to log in to.

    Attributes:
        name: The node, for people.
        address: Where its sshd listens, as seen from here, or from ``jump``.
        user: As whom.
        host_key: The key that its cluster made for it, ``ssh-ed25519 AAAA…``; another one is refused.
        key_files: Private keys to offer.
        key_texts: The same, not in a file.
        use_agent: Offer also what the caller's ssh agent and ~/.ssh have.
        through_root: root has the same keys: a user who has none of them is reached by way of root.
        proxy: A command whose input and output are the connection.
        jump: The node to go through.
        hint: What to do when it cannot be reached.
    """

    name: str
    address: str
    user: str
    host_key: str
    port: int = 22
    key_files: tuple[Path, ...] = ()
    key_texts: tuple[str, ...] = field(default=(), repr=False)
    use_agent: bool = False
    through_root: bool = False
    proxy: tuple[str, ...] = ()
    jump: SshTarget | None = None
    hint: str = ""


@dataclass(frozen=True)
class Answer:
    """What a command on a node wrote and how it ended."""

    stdout: bytes
    stderr: bytes
    code: int

    @property
    def text(self) -> str:
        """Its output as text."""
        return self.stdout.decode(errors="replace")

    @property
    def trouble(self) -> str:
        """The last line of what it complained of."""
        lines = (self.stderr or self.stdout).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self.code}"


class Session(Protocol):
    """A login on a node as one user. Close it at the end.

    Every method raises ``ConnectionLost`` when the node has gone away.
    """

    def ask(self, argv: Sequence[str], *, timeout_s: float, input: bytes = b"") -> Answer:
        """Run a short command and return what it wrote."""
        ...

    def put(self, folder: str, name: str, data: bytes) -> str:
        """Write a file into a new folder below the user's ``folder`` and return its path; nothing is overwritten."""
        ...


class SshSession(Session, Protocol):
    """What ssh can do besides."""

    def attach(self, argv: Sequence[str]) -> int:
        """Run a command with the caller's input and outputs and return its exit status."""
        ...

    def interact(self, argv: Sequence[str] = ()) -> int:
        """Open a shell, or run a command, on the caller's terminal and return its exit status."""
        ...

    def forward(self, wish: Forward) -> int:
        """Make a port here lead to one there, until the session ends; return the port."""
        ...

    def wait(self) -> None:
        """Wait until the connection ends."""
        ...

    def close(self) -> None: ...
