"""Faults of a node's machine: counters of its device tree, its link, its memory and processors, its daemons.

Owns what is done inside a node for them; ``faults`` owns the list of faults, their arguments and the nodes. What goes
on by itself (a flapping link, a hog) runs as a unit of the node's systemd, so that it can be stopped by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hyperpod.errors import UsageError

SYSFS = "/run/hyperpod/sysfs"
"""The node's own device tree, which its checks read instead of the machine's. Gone after a reboot."""

BEFORE = "/run/hyperpod/sysfs-before"
"""What its files said before they were changed."""

_LOSS = "hyperpod-loss"

DAEMONS = {
    "slurmd": "slurmd.service",
    "munged": "munge.service",
    "hyperpod-agent": "hyperpod-agent.service",
    "sshd": "ssh.service",
}

# What a file said before the last change is kept; one that was not there leaves a mark. A change to what it says
# already is none, so that injecting twice is the same as once.
_PUT = (
    'file="$1/$3"; kept="$2/$3"; mkdir -p "${file%/*}" "${kept%/*}" || exit 1; '
    'if [ ! -e "$file" ]; then rm -f "$kept"; : >"$kept.new"; '
    'elif [ "$(cat "$file")" != "$4" ]; then rm -f "$kept.new"; cp "$file" "$kept"; fi; '
    'printf "%s\\n" "$4" >"$file.writing" && mv "$file.writing" "$file"'
)
_TAKE_BACK = (
    'cd "$2" 2>/dev/null || exit 0; '
    'find . -type f | while IFS= read -r kept; do name="${kept#./}"; plain="${name%.new}"; '
    'if [ -n "$3" ] && [ "$plain" != "$3" ]; then continue; fi; '
    'if [ "$plain" != "$name" ]; then rm -f "$1/$plain"; else cp "$kept" "$1/$name"; fi; rm -f "$kept"; done'
)

# Addresses stay when a link goes down, routes do not.
_FLAP = (
    "route=$(ip route show default | head -n 1); "
    'mend() { ip link set dev eth0 up; [ -z "$route" ] || ip route replace $route; }; '
    'trap "mend; exit 0" TERM INT; '
    'while :; do ip link set dev eth0 down; sleep "$1" & wait $!; mend; sleep "$2" & wait $!; done'
)
_HOG = 'n=0; while [ "$n" -lt "$1" ]; do (while :; do :; done) & n=$((n + 1)); done; wait'
_EAT = (
    "import sys, time\nkept = []\nfor _ in range(int(sys.argv[1])):\n    kept.append(b'x' * 1048576)\ntime.sleep(1e9)\n"
)

Exec = Callable[..., str]
"""Runs a program in the node: ``exec(*argv, check=True)`` returns its output."""


def put_value(run: Exec, argument: str) -> str:
    """Put a value into a file of the node's own device tree.

    Raises:
        UsageError: The argument is not PATH=VALUE, or the path leaves the tree.
    """
    path, value = path_and_value(argument)
    run("sh", "-c", _PUT, "put", SYSFS, BEFORE, path, value)
    return f"{path} says {value!r}"


def path_and_value(argument: str) -> tuple[str, str]:
    """Return path and value of ``PATH=VALUE``.

    Raises:
        UsageError: It is not of this form, or the path leaves the tree.
    """
    path, found, value = argument.partition("=")
    if not found:
        raise UsageError("a file of the device tree and its value are needed", hint="PATH=VALUE, or --path and --value")
    if not value.isprintable():
        raise UsageError("a value is one line of printable text")
    return checked_path(path), value


def take_values_back(run: Exec, argument: str) -> None:
    """Restore a file of the device tree, or all of them when none is named."""
    path = argument.partition("=")[0]
    run("sh", "-c", _TAKE_BACK, "undo", SYSFS, BEFORE, checked_path(path) if path else "")


def checked_path(path: str) -> str:
    """Return a path below the device tree without a slash at its ends.

    Raises:
        UsageError: It leaves the tree, or names nothing.
    """
    clean = path.removeprefix("/sys/").strip("/")
    if not clean or not clean.isprintable() or {"..", ".", ""} & set(clean.split("/")):
        raise UsageError(
            f"a file below /sys must be named, got {path!r}", hint="e.g. class/infiniband/mlx5_0/ports/1/state"
        )
    return clean


def flap_link(run: Exec, argument: str) -> str:
    """Have the node's link go down and come up again and again."""
    down_s, up_s = flap_times(argument)
    start_unit(run, "hyperpod-fault-flap", "sh", "-c", _FLAP, "flap", f"{down_s:g}", f"{up_s:g}")
    return f"its link is down for {down_s:g} s and up for {up_s:g} s, again and again"


def flap_times(argument: str) -> tuple[float, float]:
    """Return the seconds for which a flapping link is down, and up.

    Raises:
        UsageError: They are none.
    """
    down, _, up = argument.partition(",")
    return _seconds(down), _seconds(up or down)


def hog_processors(run: Exec, argument: str) -> str:
    """Have so many loops run on the node."""
    start_unit(run, "hyperpod-fault-hog", "sh", "-c", _HOG, "hog", str(loop_count(argument)))
    return f"{argument} loops take its processors"


def loop_count(argument: str) -> int:
    """Return a number of loops.

    Raises:
        UsageError: It is none.
    """
    if not is_number(argument) or not 0 < int(argument) <= 1024:
        raise UsageError(f"a number of processors is needed, 1 to 1024, got {argument!r}")
    return int(argument)


def is_number(text: str) -> bool:
    """Say whether a text is a whole number in plain digits, which ``int`` takes."""
    return text.isascii() and text.isdigit() and len(text) <= 12


def eat_memory(run: Exec, argument: str) -> str:
    """Have a process hold so much memory."""
    mib = size_mib(argument)
    start_unit(run, "hyperpod-fault-memory", "/usr/bin/python3", "-c", _EAT, str(mib))
    return f"a process holds {mib} MiB of its memory"


def size_mib(argument: str) -> int:
    """Return a size in MiB.

    Raises:
        UsageError: It is none.
    """
    match = re.fullmatch(r"([0-9]{1,6})([MG])i?B?", argument)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"a size is needed, like 512M or 4G, got {argument!r}")
    return int(match[1]) * (1024 if match[2] == "G" else 1)


def freeze_daemon(run: Exec, argument: str) -> str:
    """Stop a daemon's process in mid-air; its unit stays active."""
    run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", unit_of(argument))
    return f"{argument} stands still"


def thaw_daemon(run: Exec, argument: str) -> None:
    """Let a daemon go on."""
    run("systemctl", "kill", "--kill-whom=main", "--signal=CONT", unit_of(argument), check=False)


def unit_of(daemon: str) -> str:
    """Return the unit of a daemon.

    Raises:
        UsageError: It is none that can be frozen.
    """
    if daemon not in DAEMONS:
        raise UsageError(f"unknown daemon {daemon!r}; known are {', '.join(DAEMONS)}")
    return DAEMONS[daemon]


def start_unit(run: Exec, unit: str, *argv: str) -> None:
    """Run a program as a unit of the node, in place of an earlier one of the same name."""
    stop_unit(run, unit)
    run("systemd-run", f"--unit={unit}", "--collect", "--property=OOMScoreAdjust=500", "--", *argv)


def stop_unit(run: Exec, unit: str) -> None:
    """End such a program."""
    run("systemctl", "stop", f"{unit}.service", check=False)


def loss_rules(percent: str) -> Sequence[Sequence[str]]:
    """Return the packet filter's rules that lose this share of what comes and goes.

    Raises:
        UsageError: It is no share.
    """
    try:
        share = float(percent.removesuffix("%")) / 100
    except ValueError as error:
        raise UsageError(f"a share of packets in percent is needed, got {percent!r}") from error
    if not 0 < share <= 1:
        raise UsageError(f"a share of packets is more than 0 and at most 100 percent, got {percent!r}")
    return [
        [
            chain, "!", direction, "lo", "-m", "statistic", "--mode", "random", "--probability", f"{share:.4f}",
            "-m", "comment", "--comment", _LOSS, "-j", "DROP",
        ]
        for chain, direction in (("INPUT", "-i"), ("OUTPUT", "-o"))
    ]  # fmt: skip


def lost_rules(listing: str) -> Sequence[Sequence[str]]:
    """Return the rules of ``loss_rules`` in the output of ``iptables -S``, whatever their share."""
    found = []
    for line in listing.splitlines():
        words = line.split()
        if words[:1] == ["-A"] and (_LOSS in words or f'"{_LOSS}"' in words):
            found.append([word.strip('"') for word in words[1:]])
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError as error:
        raise UsageError(f"seconds down and up are needed, like 5,10, got {text!r}") from error
    if not 0.1 <= seconds <= 3600:
        raise UsageError(f"seconds from 0.1 to 3600 are needed, got {text!r}")
    return seconds
