"""Shells and commands on HyperPod nodes through Session Manager: the only way in without a route of one's own.

Owns the command lines. The session-manager-plugin does the work; HyperPod knows no SendCommand, so a command is run
as an interactive one, too.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hyperpod.adapters.aws.client import Aws
from hyperpod.core.login import put_argv
from hyperpod.errors import CommandError, UsageError
from hyperpod.ports.login import Answer
from hyperpod.ports.process import Completed, ProcessRunner

PLUGIN: Final = "session-manager-plugin"
_RUN_DOCUMENT: Final = "AWS-StartInteractiveCommand"
SSH_DOCUMENT: Final = "AWS-StartSSHSession"
FORWARD_DOCUMENT: Final = "AWS-StartPortForwardingSession"
_LONGEST_LINE: Final = 60_000
"""A parameter of a session holds 65,535 characters."""
_STATUS: Final = re.compile(r"^hyperpod-status:(\d+)\s*$", re.MULTILINE)
_BANNER: Final = re.compile(r"^(Starting session with SessionId:|Exiting session with sessionId:|Cannot perform start)")


def check_plugin(which: Callable[[str], str | None] = shutil.which) -> None:
    """Make sure that the programs are here.

    Raises:
        UsageError: with where to get what is missing.
    """
    for program, hint in (
        ("aws", "install the AWS CLI version 2"),
        (
            PLUGIN,
            "https://docs.aws.amazon.com/systems-manager/latest/userguide/"
            "session-manager-working-with-install-plugin.html",
        ),
    ):
        if which(program) is None:
            raise UsageError(f"{program} is not installed, and nodes are reached through it", hint=hint)


def has_plugin(which: Callable[[str], str | None] = shutil.which) -> bool:
    """Say whether sessions can be opened from here."""
    return which("aws") is not None and which(PLUGIN) is not None


def shell_argv(target: str, aws: Aws, argv: Sequence[str] = (), user: str = "root") -> list[str]:
    """Return the command that opens a shell on a node, or runs a program there, on the caller's terminal."""
    base = ["aws", "ssm", "start-session", "--target", target, "--region", aws.region_name]
    if aws.profile:
        base += ["--profile", aws.profile]
    if not argv:
        if user == "root":
            return base
        argv = ["su", "--login", user]
    elif user != "root":
        argv = ["runuser", "-u", user, "--", *argv]
    parameters = json.dumps({"command": [shlex.join(argv)]})
    return [*base, "--document-name", _RUN_DOCUMENT, "--parameters", parameters]


def proxy_words(target: str, aws: Aws, port: str = "22") -> list[str]:
    """Return the command whose input and output are a connection to a node's ssh server."""
    base = ["aws", "ssm", "start-session", "--target", target, "--region", aws.region_name]
    profile = ["--profile", aws.profile] if aws.profile else []
    return [*base, *profile, "--document-name", SSH_DOCUMENT, "--parameters", f"portNumber={port}"]


def proxy_command(target: str, aws: Aws) -> str:
    """Return the ProxyCommand by which plain ssh reaches a node."""
    return shlex.join(proxy_words(target, aws, "")) + "%p"


def forward_argv(target: str, aws: Aws, port: int, listen_port: int) -> list[str]:
    """Return the command that makes a port here lead to one of a node, until it is ended."""
    base = ["aws", "ssm", "start-session", "--target", target, "--region", aws.region_name]
    profile = ["--profile", aws.profile] if aws.profile else []
    parameters = json.dumps({"portNumber": [str(port)], "localPortNumber": [str(listen_port)]})
    return [*base, *profile, "--document-name", FORWARD_DOCUMENT, "--parameters", parameters]


@dataclass(frozen=True)
class SessionConnection:
    """Implements ``ports.provider.Connection`` with Session Manager."""

    target: str
    aws: Aws
    processes: ProcessRunner

    def run(self, argv: Sequence[str], *, timeout_s: float, input: str | None = None, check: bool = True) -> Completed:
        """Run a command on the node; its two outputs come as one.

        Raises:
            UsageError: There is input; a session has no way to end it.
            CommandError, CommandTimeout: As ``ProcessRunner.run``.
        """
        if input is not None:
            raise UsageError("a command on a HyperPod node cannot be given input")
        check_plugin()
        script = f"{shlex.join(argv)} 2>&1; s=$?; echo; echo hyperpod-status:$s"
        local = shell_argv(self.target, self.aws, ["bash", "-c", script])
        done = self.processes.run(local, timeout_s=timeout_s)
        text = done.stdout.replace("\r\n", "\n")
        status = _STATUS.search(text)
        if status is None:
            raise CommandError(local, done.code or 1, text[-2000:] or "the session ended without the command's status")
        lines = text[: status.start()].splitlines()
        said = "\n".join(line for line in lines if not _BANNER.match(line)).strip("\n")
        code = int(status[1])
        if check and code != 0:
            raise CommandError(argv, code, said[-4000:])
        return Completed(f"{said}\n" if said else "", "", code)

    def shell_argv(self, argv: Sequence[str] = (), *, user: str = "root", interactive: bool = True) -> list[str]:
        """Return the local command for a shell, or for ``argv``, on the caller's terminal."""
        check_plugin()
        return shell_argv(self.target, self.aws, argv, user)


@dataclass(frozen=True)
class ManagedSession:
    """Implements ``ports.login.Session`` with Session Manager: every command is a session of its own."""

    connection: SessionConnection
    user: str

    def ask(self, argv: Sequence[str], *, timeout_s: float, input: bytes = b"") -> Answer:
        """Run a short command; see the port. Its two outputs come as one."""
        line = shlex.join(argv)
        if input:
            line = f"printf %s {base64.b64encode(input).decode()} | base64 -d | {line}"
        if len(line) > _LONGEST_LINE:
            raise UsageError(
                f"{len(input)} bytes are too many for Session Manager", hint="keep what is long in a file of /fsx"
            )
        # A session is root's.
        words = ["/bin/sh", "-c", line] if self.user == "root" else ["runuser", "-l", self.user, "-c", line]
        done = self.connection.run(words, timeout_s=timeout_s, check=False)
        return Answer(done.stdout.encode(), b"", done.code)

    def put(self, folder: str, name: str, data: bytes) -> str:
        """Write a file into a new folder; see the port."""
        answer = self.ask(put_argv(folder, name), timeout_s=60.0, input=data)
        if answer.code != 0:
            raise CommandError(["sh"], answer.code, answer.trouble)
        return answer.text.strip().splitlines()[-1]
