"""What checks need to know of slurm.conf."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hyperpod.ports.host import Host

PATHS = (
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/etc/slurm/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
)
"""Where a node's Slurm reads its configuration: a configless one from its cache."""

_OVERRIDES = re.compile(r"^\s*SlurmdParameters\s*=\s*\S*\bconfig_overrides\b", re.IGNORECASE | re.MULTILINE)


def figures_are_declared(host: Host) -> bool:
    """True when slurm.conf tells Slurm to believe its figures whatever the machine has (``config_overrides``).

    Sites do so on purpose, to share a machine between several nodes; comparing with the machine means nothing then.
    """
    for path in PATHS:
        try:
            return declares_figures(host.read_text(path, 1 << 20))
        except OSError:
            continue
    return False


def declares_figures(text: str) -> bool:
    """True when this slurm.conf says ``config_overrides``."""
    return _OVERRIDES.search(text) is not None


def node_line(text: str, node: str) -> Mapping[str, str]:
    """Return the words of the line that configures a node, with those of the ``DEFAULT`` lines before it.

    Empty when no line names it. Files that are included are not read.
    """
    found: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = dict(re.findall(r"(\w+)\s*=\s*(\S+)", line.partition("#")[0]))
        keys = {key.lower(): value for key, value in words.items()}
        names = keys.pop("nodename", "")
        if not names:
            continue
        if names.upper() == "DEFAULT":
            defaults.update(keys)
        elif names_node(names, node):
            found = {**defaults, **keys}
    return found


def names_node(pattern: str, node: str) -> bool:
    """Say whether a list of node names, as ``worker-[1-4,7],head``, holds a node."""
    return any(_part_names(part, node) for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", pattern))


def _part_names(part: str, node: str) -> bool:
    pieces = re.split(r"\[([^\]]*)\]", part)
    expression = "".join(r"(\d+)" if at % 2 else re.escape(piece) for at, piece in enumerate(pieces))
    match = re.fullmatch(expression, node)
    if match is None:
        return False
    return all(_in_ranges(number, ranges) for number, ranges in zip(match.groups(), pieces[1::2], strict=True))


def _in_ranges(number: str, ranges: str) -> bool:
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        last = last or first
        # Ranges keep their leading zeros: node[01-10] has no node1.
        is_padded = len(first) == len(last) and first.startswith("0")
        if not (first.isdigit() and last.isdigit()) or (is_padded and len(number) != len(first)):
            continue
        if not is_padded and len(number) > 1 and number.startswith("0"):
            continue
        if int(first) <= int(number) <= int(last):
            return True
    return False
