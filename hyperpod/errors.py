"""The whole error tree: what went wrong, what to do next, and whether trying again can help.

Owns every exception that crosses a layer. Adapters translate foreign errors into these at the border
(``raise … from error``); nothing above an adapter sees a botocore, podman or subprocess error.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


class HyperpodError(Exception):
    """An error with one line for people and, where there is one, the next step to take.

    ``retry_after`` is None for errors that stay (permanent) and a delay for those that may pass by themselves.
    ``exit_code`` is what the command line ends with: 1 failed, 2 usage or config, 3 not found,
    4 refused by the present state, 75 try again.
    """

    exit_code = 1
    retry_after: timedelta | None = None

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HyperpodError):
    """A command was called with arguments that make no sense."""

    exit_code = 2


class ConfigError(HyperpodError):
    """A specification or configuration file is wrong; the message names file, line and path in the file."""

    exit_code = 2


class InvalidState(HyperpodError):
    """An action is refused because of what the object is doing now."""

    exit_code = 4

    def __init__(self, attempted: str, status: str, *, hint: str = "") -> None:
        super().__init__(f"cannot {attempted}: it is {status}", hint=hint)
        self.attempted = attempted
        self.status = status


class CommandError(HyperpodError):
    """A program ended with a status other than 0; ``stderr_tail`` holds its last lines."""

    def __init__(self, argv: Sequence[str], code: int, stderr_tail: str = "", *, hint: str = "") -> None:
        last = stderr_tail.strip().splitlines()[-1] if stderr_tail.strip() else "no message"
        super().__init__(f"{argv[0]} ended with status {code}: {last}", hint=hint)
        self.argv = tuple(argv)
        self.code = code
        self.stderr_tail = stderr_tail


class CommandTimeout(CommandError):
    """A program did not end within its deadline and was killed."""

    exit_code = 75
    retry_after = timedelta(seconds=5)

    def __init__(self, argv: Sequence[str], timeout_s: float) -> None:
        super().__init__(argv, -9, f"no answer within {timeout_s:g} s")
        self.timeout_s = timeout_s


class UnexpectedOutput(HyperpodError):
    """A program or file said something that its parser does not understand."""

    def __init__(self, source: str, line: str) -> None:
        super().__init__(f"{source}: not understood: {line[:200]!r}")
        self.source = source
        self.line = line


class SlurmError(HyperpodError):
    """Slurm refused a request."""


class SlurmUnavailable(SlurmError):
    """slurmctld does not answer; what it would have said is unknown, not empty."""

    exit_code = 75
    retry_after = timedelta(seconds=2)


class MungeError(HyperpodError):
    """A munge credential could not be made, or is not acceptable."""


class ClockRefused(MungeError):
    """A credential is good but for its time; ``ahead_s`` is how far its maker's clock seems to be ahead."""

    def __init__(self, message: str, *, hint: str = "", ahead_s: float = 0.0, uid: int = -1) -> None:
        super().__init__(message, hint=hint)
        self.ahead_s = ahead_s
        self.uid = uid


class ConnectionLost(HyperpodError):
    """The other end of a connection (agent, controller) does not answer, or went away."""

    exit_code = 75
    retry_after = timedelta(seconds=2)


class ProviderError(HyperpodError):
    """The provider of instances (podman, EC2, SageMaker) refused a request."""


class NotFound(ProviderError):
    """The named object does not exist (also a cluster, a node or a job)."""

    exit_code = 3


class AlreadyExists(ProviderError):
    """The object exists and differs from what was asked."""

    exit_code = 4


class AccessDenied(ProviderError):
    """The caller has no right to do this."""


class Throttled(ProviderError):
    """Too many requests; the provider asks to slow down."""

    exit_code = 75
    retry_after = timedelta(seconds=5)


class NoCapacity(ProviderError):
    """The provider has no machine of this kind now."""

    exit_code = 75
    retry_after = timedelta(seconds=60)


class QuotaExceeded(ProviderError):
    """The account may not have that many; waiting does not help, a higher quota does."""


class ProviderUnavailable(ProviderError):
    """The provider does not answer; the state of its instances is unknown."""

    exit_code = 75
    retry_after = timedelta(seconds=5)


class StoreError(HyperpodError):
    """The journal is damaged or cannot be written."""


class CheckpointError(HyperpodError):
    """A checkpoint directory cannot be used."""
