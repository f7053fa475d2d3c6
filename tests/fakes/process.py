"""A process runner that runs nothing: replies are scripted, calls are recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hyperpod.errors import CommandError
from hyperpod.ports.process import Completed

Reply = Completed | Exception | Callable[[Sequence[str]], Completed]


class FakeChild:
    """A program that runs beside us: what it will print, and what was written to it.

    ``says`` holds its output piece by piece: None for a read that comes to nothing, empty bytes for its end.
    """

    def __init__(self, *says: bytes | None, dies: bool = True) -> None:
        self.says = list(says)
        self.dies = dies
        self.written: list[bytes] = []
        self.is_killed = False
        self.status: int | None = None

    def code(self) -> int | None:
        return self.status

    def write(self, data: bytes) -> None:
        if self.status is not None:
            raise BrokenPipeError(32, "Broken pipe")
        self.written.append(data)

    def read(self, timeout_s: float | None) -> bytes | None:
        piece = self.says.pop(0) if self.says else b""
        if piece == b"" and self.status is None:
            self.status = 0
        return piece

    def kill(self) -> None:
        self.is_killed = True
        if self.dies and self.status is None:
            self.status = -9

    def close(self) -> None:
        return


class FakeProcesses:
    """Answers commands by the longest matching prefix of their arguments; unknown commands succeed silently.

    ``replies`` maps a prefix (tuple of arguments) to one reply or to a list of replies used in turn, the last
    one for ever.
    """

    def __init__(self, replies: Mapping[tuple[str, ...], Reply | list[Reply]] | None = None) -> None:
        self.replies: dict[tuple[str, ...], list[Reply]] = {}
        for prefix, reply in (replies or {}).items():
            self.on(*prefix, reply=reply)
        self.calls: list[list[str]] = []
        self.inputs: list[str | None] = []
        self.detached: list[list[str]] = []
        self.children: list[FakeChild] = []
        self.started: list[FakeChild] = []

    def on(self, *prefix: str, reply: Reply | list[Reply] | str) -> None:
        """Set the reply for commands which begin with ``prefix``; a string is their output."""
        if isinstance(reply, str):
            reply = Completed(reply, "", 0)
        self.replies[prefix] = list(reply) if isinstance(reply, list) else [reply]

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
        assert timeout_s > 0
        self.calls.append(list(argv))
        self.inputs.append(input)
        reply = self._reply(argv)
        if isinstance(reply, Exception):
            raise reply
        done = reply(argv) if callable(reply) else reply
        if check and done.code != 0:
            raise CommandError(argv, done.code, done.stderr)
        return done

    def start(self, argv: Sequence[str]) -> FakeChild:
        """Start the next of ``children``; without one it cannot be started."""
        self.calls.append(list(argv))
        if not self.children:
            raise CommandError(argv, 127, "No such file or directory")
        child = self.children.pop(0)
        self.started.append(child)
        return child

    def stream(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        on_line: Callable[[str], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        for line in self.run(argv, timeout_s=timeout_s).stdout.splitlines():
            on_line(line)

    def start_detached(self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> int:
        self.detached.append(list(argv))
        return 4242

    def commands(self, *prefix: str) -> list[list[str]]:
        """Return the recorded commands which begin with ``prefix``."""
        return [call for call in self.calls if tuple(call[: len(prefix)]) == prefix]

    def _reply(self, argv: Sequence[str]) -> Reply:
        for length in range(len(argv), 0, -1):
            found = self.replies.get(tuple(argv[:length]))
            if found:
                return found.pop(0) if len(found) > 1 else found[0]
        return Completed("", "", 0)
