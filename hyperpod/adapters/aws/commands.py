"""Running commands on a machine by Systems Manager: no open port, no key, and it works in a private subnet.

Owns the call and the wait for its end. The command travels as it is, quoted for a shell, with its input encoded.
"""

from __future__ import annotations

import base64
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Final

from hyperpod.adapters.aws.client import Aws
from hyperpod.errors import CommandError, CommandTimeout, HyperpodError, ProviderUnavailable
from hyperpod.ports.process import Completed

_POLL_S: Final = 1.0
_SHORTEST_S: Final = 30
"""The service's own least time limit."""
_ENDED: Final = frozenset({"Success", "Failed", "Cancelled", "TimedOut"})


class SsmConnection:
    """Runs commands on one machine as root."""

    def __init__(
        self,
        aws: Aws,
        instance_id: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws = aws
        self._instance_id = instance_id
        self._sleep = sleep
        self._monotonic = monotonic

    def run(self, argv: Sequence[str], *, timeout_s: float, input: str | None = None, check: bool = True) -> Completed:
        """Run a command there; see ``ports.provider.Connection.run``. Output over 24,000 characters is cut."""
        script = command_line(argv, input)
        try:
            answer = self._aws.call(
                "ssm",
                "SendCommand",
                what=f"instance {self._instance_id}",
                InstanceIds=[self._instance_id],
                DocumentName="AWS-RunShellScript",
                TimeoutSeconds=_SHORTEST_S,
                Parameters={"commands": [script], "executionTimeout": [str(max(int(timeout_s), 1))]},
            )
        except HyperpodError as error:
            if _code(error) != "InvalidInstanceId":
                raise
            raise ProviderUnavailable(
                f"{self._instance_id} is not known to Systems Manager: its agent does not run, or not yet",
                hint="the image needs amazon-ssm-agent, its role AmazonSSMManagedInstanceCore, the subnet a way to ssm",
            ) from error
        done = self._await(str(answer["Command"]["CommandId"]), argv, timeout_s)
        if check and done.code != 0:
            raise CommandError(argv, done.code, done.stderr)
        return done

    def shell_argv(self, argv: Sequence[str] = (), *, user: str = "root", interactive: bool = True) -> list[str]:
        """Return the command for the caller's terminal, by the session-manager-plugin."""
        command = ["aws", "ssm", "start-session", "--target", self._instance_id]
        command += ["--region", self._aws.region_name]
        inner = ["sudo", "--login", f"--user={user}", *argv]
        document = "AWS-StartInteractiveCommand" if interactive else "AWS-StartNonInteractiveCommand"
        return [*command, "--document-name", document, "--parameters", f"command={shlex.join(inner)}"]

    def _await(self, command_id: str, argv: Sequence[str], timeout_s: float) -> Completed:
        deadline = self._monotonic() + timeout_s
        while True:
            try:
                answer = self._aws.call(
                    "ssm",
                    "GetCommandInvocation",
                    what=f"a command on {self._instance_id}",
                    CommandId=command_id,
                    InstanceId=self._instance_id,
                )
            except HyperpodError as error:
                if _code(error) != "InvocationDoesNotExist":
                    raise
                # It is known only a moment after it was sent.
                answer = {"Status": "Pending"}
            status = str(answer.get("Status"))
            if status in _ENDED:
                break
            if self._monotonic() >= deadline:
                raise CommandTimeout(argv, timeout_s)
            self._sleep(_POLL_S)
        if status == "TimedOut":
            raise CommandTimeout(argv, timeout_s)
        if status == "Cancelled":
            raise ProviderUnavailable(f"the command on {self._instance_id} was cancelled", hint="try again")
        return Completed(
            str(answer.get("StandardOutputContent") or ""),
            str(answer.get("StandardErrorContent") or ""),
            int(answer.get("ResponseCode") or 0),
        )


def command_line(argv: Sequence[str], input: str | None) -> str:
    """Return the shell's line that runs a command with an input. Pure."""
    line = shlex.join(argv)
    if input is None:
        return f"{line} </dev/null"
    # The service's shell is sh, not bash.
    return f"printf %s {base64.b64encode(input.encode()).decode()} | base64 -d | {line}"


def _code(error: BaseException) -> str:
    return str(getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", ""))
