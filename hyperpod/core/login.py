"""What people write to get onto a node: which cluster and node, what to forward, which command, and since when.

Pure. Owns how these are read and how a command is quoted for the far shell; connects to nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from hyperpod.errors import UsageError

_FORWARD: Final = re.compile(
    r"(?:(?P<bind>\[[0-9a-fA-F:.]+\]|[^:\[\]\s]*):)?(?P<port>\d+):(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+):(?P<to>\d+)"
)
_NODE: Final = re.compile(r"head|i-[0-9a-f]{8,17}|[a-zA-Z0-9](-*[a-zA-Z0-9])*-[1-9][0-9]{0,5}")
_USER: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,31}")
_AGO: Final = re.compile(r"(?P<number>\d{1,9})(?P<unit>[smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LOOPBACK: Final = "127.0.0.1"
# Where HyperPod puts Slurm; a shell that is not a login shell does not look there.
_PATH: Final = 'PATH="$PATH:/opt/slurm/bin:/opt/slurm/sbin"'


@dataclass(frozen=True)
class Forward:
    """A port here that leads to a port as the node sees it. ``listen_port`` 0 takes a free one."""

    listen_host: str
    listen_port: int
    host: str
    port: int


@dataclass(frozen=True)
class Words:
    """What the words of a command mean; None where nothing was said."""

    cluster: str | None
    node: str | None
    argv: tuple[str, ...]


def read_words(words: Sequence[str], option: str | None, known: Callable[[], Sequence[str]]) -> Words:
    """Tell apart ``[CLUSTER] [NODE] [COMMAND...]``.

    A first word that names a cluster is one; ``--cluster`` says it beyond doubt.

    Args:
        words: Without what stands behind ``--``.
        option: ``--cluster``.
        known: Lists the clusters; only called when the words alone do not tell.
    """
    if not words:
        return Words(option, None, ())
    first, rest = words[0], tuple(words[1:])
    if option:
        if first == option:
            return Words(option, rest[0] if rest else None, rest[1:])
        return Words(option, first, rest)
    if rest and is_node_word(rest[0]) and not is_node_word(first):
        return Words(first, rest[0], rest[1:])
    if first in known() or not is_node_word(first):
        return Words(first, rest[0] if rest else None, rest[1:])
    return Words(None, first, rest)


def is_node_word(text: str) -> bool:
    """Say whether a word can name a node: its name, ``head``, or the id of its machine."""
    return _NODE.fullmatch(text) is not None


def parse_forward(text: str) -> Forward:
    """Read ``[ADDRESS:]PORT:HOST:PORT``; the address is this machine's own unless it is said.

    Raises:
        UsageError: It has another form, or a port cannot be one.
    """
    match = _FORWARD.fullmatch(text)
    ports = [int(match["port"]), int(match["to"])] if match else []
    if match is None or not (0 <= ports[0] < 65536 and 1 <= ports[1] < 65536):
        raise UsageError(
            f"-L {text[:80]}: must be [ADDRESS:]PORT:HOST:PORT with ports up to 65535",
            hint="-L 8888:worker-1:8888 makes localhost:8888 lead to port 8888 of worker-1",
        )
    bind = (match["bind"] or _LOOPBACK).strip("[]")
    bind = {"localhost": _LOOPBACK, "*": "0.0.0.0"}.get(bind, bind)
    return Forward(bind, ports[0], match["host"].strip("[]"), ports[1])


def parse_user(text: str) -> str:
    """Return a login name as it is.

    Raises:
        UsageError: It cannot be one.
    """
    if not _USER.fullmatch(text):
        raise UsageError(f"{text[:80]!r} is not a login name", hint="for example --user ubuntu")
    return text


def parse_since(text: str, now: datetime) -> datetime:
    """Read a time: how long ago (``90s``, ``15m``, ``2h``, ``1d``) or when (``2026-01-02T15:04``, UTC).

    Raises:
        UsageError: It is neither.
    """
    match = _AGO.fullmatch(text.strip())
    if match:
        try:
            return now - timedelta(seconds=int(match["number"]) * _SECONDS[match["unit"]])
        except OverflowError:
            return datetime(1970, 1, 1, tzinfo=UTC)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            f"--since {text[:40]}: must be a duration such as 15m, or a time such as 2026-01-02T15:04",
            hint="durations end with s, m, h or d; times are UTC unless they say their zone",
        ) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def remote_line(argv: Sequence[str], *, mark: str = "") -> str:
    """Return the line for the far shell, whichever it is, that runs ``argv`` as it stands.

    The line lives as long as the command, so that a command killed by a signal has an exit status, 128 and more.

    Args:
        argv: The command; its words reach it unchanged.
        mark: ``NAME=VALUE`` for its environment, by which its processes can be found.
    """
    marked = f"export {mark}; " if mark else ""
    return shlex.join(["/bin/sh", "-c", f"{_PATH}; {marked}{shlex.join(argv)}; exit $?"])


_PUT: Final = """set -eu
umask 077
cd
mkdir -p -- "$1"
cd -- "$1"
n=1
while ! mkdir -- "$2-$n" 2>/dev/null; do
  [ -e "$2-$n" ] || { echo "$1: permission denied" >&2; exit 1; }
  n=$((n + 1))
done
cd -- "$2-$n"
cat >"$3"
chmod 700 -- "$3"
printf '%s/%s\\n' "$(pwd)" "$3"
"""


def put_argv(folder: str, name: str) -> list[str]:
    """Return the command that writes its input into a file of a new folder, and prints the file's path.

    Args:
        folder: Below the user's home, or absolute. The new one in it is named after the file, with a number.
        name: The file's name, without folders.
    """
    return ["/bin/sh", "-c", _PUT, "sh", folder, name.rpartition(".")[0] or name, name]


def lines_since(lines: Sequence[str], after: datetime | None) -> list[str]:
    """Return the lines of a birth's log that are not older than ``after``.

    A line without a time belongs to the last one before it that has one. A log without any times is returned whole.
    """
    if after is None:
        return list(lines)
    has_times = False
    for index, line in enumerate(lines):
        at = _time_of(line)
        has_times = has_times or at is not None
        if at is not None and at >= after:
            return list(lines[index:])
    return [] if has_times else list(lines)


def _time_of(line: str) -> datetime | None:
    try:
        return datetime.strptime(line.partition(" ")[0], "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
