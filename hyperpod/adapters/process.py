"""Runs programs. The only module that may start processes.

Owns deadlines and the killing of whole process groups. Must not know what it runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.ports.process import Completed

logger = logging.getLogger(__name__)

# Enough for the messages of package managers and compilers; errors carry it to the screen.
_TAIL_CHARS = 4000
# After SIGKILL a process can only stay if the kernel holds it (dead file system); then we stop waiting for it.
_REAP_S = 2.0
_MOST_OUTPUT = 4 * 1024 * 1024
_PIPE_BYTES = 65536


class Child:
    """A program that runs beside us, with pipes to it. What it says on standard error is thrown away."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def code(self) -> int | None:
        """Return how it ended (negative: the signal), or None while it is there."""
        return self._process.poll()

    def write(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            OSError: if it does not read any more.
        """
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), data)

    def read(self, timeout_s: float | None) -> bytes | None:
        """Return what comes from its standard output next; empty at its end, None when nothing came in time."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(None if timeout_s is None else max(timeout_s, 0.0) * 1000):
            return None
        return os.read(descriptor, _PIPE_BYTES)

    def kill(self) -> None:
        """Kill it and what it started. It may stay for as long as the kernel holds it; nobody waits for that."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Give the pipes back."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Processes:
    """Starts programs from argument lists, each in a process group of its own."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        check: bool = True,
        on_start: Callable[[int], None] | None = None,
    ) -> Completed:
        """Run ``argv`` to its end; see ``ports.process.ProcessRunner.run``.

        ``on_start`` is told the id of the process and of its group, for those who may have to kill it from elsewhere.
        """
        started = time.monotonic()
        process = _start(argv, env=env, user=user, has_input=input is not None)
        try:
            if on_start is not None:
                on_start(process.pid)
            data = input.encode() if input is not None else None
            if user is None:
                stdout, stderr = process.communicate(data, timeout=timeout_s)
            else:
                # A user's process is the user's to tamper with; without a bound it could fill our memory.
                stdout, stderr = _communicate_bounded(process, data, argv, timeout_s)
        except subprocess.TimeoutExpired as error:
            _kill_group(process)
            raise CommandTimeout(argv, timeout_s) from error
        except BaseException:
            # Ctrl-C and the like: nothing of ours may go on in the background.
            _kill_group(process)
            raise
        logger.debug("ran argv=%s code=%d seconds=%.3f", argv, process.returncode, time.monotonic() - started)
        done = Completed(stdout.decode(errors="replace"), stderr.decode(errors="replace"), process.returncode)
        if check and done.code != 0:
            raise CommandError(argv, done.code, (done.stderr or done.stdout)[-_TAIL_CHARS:])
        return done

    def stream(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        on_line: Callable[[str], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run ``argv``, handing every line of its output (both streams) to ``on_line`` as it comes.

        Raises:
            CommandError, CommandTimeout: As ``run`` with ``check``.
        """
        process = _start(argv, env=env, user=None, has_input=False, merge=True)
        deadline = time.monotonic() + timeout_s
        tail: list[str] = []
        pending = b""
        try:
            assert process.stdout is not None
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CommandTimeout(argv, timeout_s)
                ready, _, _ = select.select([process.stdout], [], [], left)
                if not ready:
                    raise CommandTimeout(argv, timeout_s)
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    if pending:
                        on_line(pending.decode(errors="replace"))
                    break
                # Progress bars use carriage returns; each state of the bar counts as a line.
                *lines, pending = (pending + chunk).replace(b"\r", b"\n").split(b"\n")
                for raw in lines:
                    line = raw.decode(errors="replace")
                    tail = [*tail[-40:], line]
                    on_line(line)
            code = process.wait(timeout=max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired as error:
            _kill_group(process)
            raise CommandTimeout(argv, timeout_s) from error
        except BaseException:
            _kill_group(process)
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
        if code != 0:
            raise CommandError(argv, code, "\n".join(tail)[-_TAIL_CHARS:])

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        """Start ``argv`` beside us, with pipes to its standard input and output.

        It should end when its input ends: that is how it learns that we are gone.

        Raises:
            CommandError: It could not be started (status 127).
        """
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
                env=_environment(env),
                cwd="/",
            )
        except OSError as error:
            raise CommandError(argv, 127, str(error)) from error
        return Child(process)

    def start_detached(self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> int:
        """Start ``argv`` so that it outlives us, with both outputs appended to ``log``; return its pid."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    close_fds=True,
                    cwd="/",
                    env=_environment(env),
                )
            except OSError as error:
                raise CommandError(argv, 127, str(error)) from error
        # We do not wait for it; told so, the interpreter does not complain when we end first.
        process.returncode = 0
        return process.pid

    @contextlib.contextmanager
    def hold(self, argvs: Sequence[Sequence[str]]) -> Iterator[None]:
        """Run programs beside what the caller does, on the caller's outputs, and end them with it."""
        running: list[subprocess.Popen[bytes]] = []
        try:
            for argv in argvs:
                try:
                    running.append(subprocess.Popen(list(argv), stdin=subprocess.DEVNULL))
                except OSError as error:
                    raise CommandError(argv, 127, str(error)) from error
            yield
        finally:
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(timeout=_REAP_S)
                except subprocess.TimeoutExpired:
                    process.kill()

    def dial(self, argv: Sequence[str]) -> Dialled:
        """Start a program whose input and output are a connection to somewhere."""
        ours, theirs = socket.socketpair()
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the program
        try:
            # In a session of its own: Ctrl-C is for what runs at the other end.
            process = subprocess.Popen(
                list(argv), stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=complaints, start_new_session=True
            )
        except OSError as error:
            ours.close()
            complaints.close()
            raise CommandError(argv, 127, str(error), hint=f"is {argv[0]} installed and in PATH?") from error
        finally:
            theirs.close()
        return Dialled(ours, process, complaints)

    def exec(self, argv: Sequence[str]) -> int:
        """Run ``argv`` on our own terminal (interactive) and return its exit status."""
        try:
            return subprocess.call(list(argv))
        except OSError as error:
            raise CommandError(argv, 127, str(error)) from error


@dataclass
class Dialled:
    """A connection made by a program. Close it at the end."""

    socket: socket.socket
    _process: subprocess.Popen[bytes]
    _complaints: IO[bytes]

    def complaint(self) -> str:
        """Return the last line of what the program complained of, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_REAP_S)
        self._complaints.seek(0)
        lines = self._complaints.read()[-_TAIL_CHARS:].decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        """End the connection, and the program with it."""
        self.socket.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=_REAP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._complaints.close()


def _environment(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if env is None else {**os.environ, **env}


def _users_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a user's process may see: nothing of the daemon's own, such as the socket that systemd gave it."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TZ")}
    return {**kept, **(env or {})}


def _start(
    argv: Sequence[str], *, env: Mapping[str, str] | None, user: str | None, has_input: bool, merge: bool = False
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            start_new_session=True,
            env=_environment(env) if user is None else _users_environment(env),
            user=user,
            group=_primary_group(user),
            # Without this the child would keep root's groups, and lack the user's own.
            extra_groups=_groups(user),
            cwd="/" if user is not None else None,
        )
    except (OSError, KeyError) as error:
        raise CommandError(argv, 127, str(error), hint=f"is {argv[0]} installed and in PATH?") from error


def _primary_group(user: str | None) -> int | None:
    if user is None:
        return None
    return pwd.getpwnam(user).pw_gid


def _groups(user: str | None) -> list[int] | None:
    if user is None or os.geteuid() != 0:
        # Only root may set groups; anybody else has the own ones already.
        return None
    return os.getgrouplist(user, pwd.getpwnam(user).pw_gid)


def _communicate_bounded(
    process: subprocess.Popen[bytes], data: bytes | None, argv: Sequence[str], timeout_s: float
) -> tuple[bytes, bytes]:
    """Do what ``communicate`` does, for a process whose output must not grow beyond ``_MOST_OUTPUT``.

    Raises:
        subprocess.TimeoutExpired: As ``communicate``.
        CommandError: There was more output; the process is killed by the caller's handler.
    """
    deadline = time.monotonic() + timeout_s
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                # Small: it fits into the pipe whether or not it is read.
                process.stdin.write((data or b"")[:_PIPE_BYTES])
                process.stdin.close()
        outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        poll = select.poll()
        for descriptor in outputs:
            poll.register(descriptor, select.POLLIN)
        left = set(outputs)
        while left:
            ready = poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)
            if not ready:
                raise subprocess.TimeoutExpired(list(argv), timeout_s)
            for descriptor, _ in ready:
                chunk = os.read(descriptor, _PIPE_BYTES)
                outputs[descriptor] += chunk
                if len(outputs[descriptor]) > _MOST_OUTPUT:
                    raise CommandError(argv, 1, f"it printed more than {_MOST_OUTPUT} bytes")
                if not chunk:
                    poll.unregister(descriptor)
                    left.discard(descriptor)
        process.wait(timeout=max(deadline - time.monotonic(), 0.0))
        stdout, stderr = outputs.values()
        return bytes(stdout), bytes(stderr)
    finally:
        # Also before the process is killed: a child that has left its group must not go on filling the pipes.
        process.stdout.close()
        process.stderr.close()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.communicate(timeout=_REAP_S)
    except (subprocess.TimeoutExpired, ValueError):
        logger.warning("process does not die pid=%d", process.pid)
