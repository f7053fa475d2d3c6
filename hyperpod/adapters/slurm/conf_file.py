"""The lines of slurm.conf on the head node that the controller changes at run time: partitions' members, addresses.

slurmctld forgets what ``scontrol update`` did when it is restarted; the file must say the same.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hyperpod.errors import SlurmError


def with_partition_nodes(text: str, partition: str, nodes: Sequence[str]) -> str:
    """Return slurm.conf's text with another node list for one partition; unchanged when it has no such line."""
    line = re.compile(rf"^(PartitionName={re.escape(partition)})(?=\s|$)(.*)$", re.MULTILINE | re.IGNORECASE)

    def changed(match: re.Match[str]) -> str:
        rest = re.sub(r"\s+Nodes=\S*", "", match.group(2), flags=re.IGNORECASE)
        members = f" Nodes={','.join(nodes)}" if nodes else ""
        return f"{match.group(1)}{members}{rest}"

    return line.sub(changed, text)


def with_node_address(text: str, node: str, address: str) -> str:
    """Return slurm.conf's text with another address for one node; unchanged when no line is about this node alone."""
    line = re.compile(rf"^(NodeName={re.escape(node)})(?=\s)(.*)$", re.MULTILINE | re.IGNORECASE)

    def changed(match: re.Match[str]) -> str:
        rest = re.sub(r"\s+NodeAddr=\S*", "", match.group(2), flags=re.IGNORECASE)
        return f"{match.group(1)} NodeAddr={address}{rest}"

    return line.sub(changed, text)


def save_partition_nodes(path: str, partition: str, nodes: Sequence[str]) -> None:
    """Write a partition's node list into slurm.conf, atomically; the file's owner and mode stay.

    Raises:
        SlurmError: if the file cannot be read or written.
    """
    _change(path, lambda text: with_partition_nodes(text, partition, nodes))


def save_node_address(path: str, node: str, address: str) -> None:
    """Write a node's address into slurm.conf, atomically; the file before stays beside it as ``.last-good``.

    Raises:
        SlurmError: if the file cannot be read or written.
    """
    _change(path, lambda text: with_node_address(text, node, address), is_kept=True)


def _change(path: str, change: Callable[[str], str], *, is_kept: bool = False) -> None:
    target = Path(path).resolve()
    try:
        before = target.read_text()
        after = change(before)
        if after == before:
            return
        if is_kept:
            _write(target.with_name(f"{target.name}.last-good"), before, target)
        _write(target, after, target)
    except OSError as error:
        raise SlurmError(f"cannot write {target}: {error.strerror}") from error


def _write(target: Path, text: str, like: Path) -> None:
    mode = like.stat()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".slurm.conf.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), mode.st_mode & 0o7777)
        os.fchown(file.fileno(), mode.st_uid, mode.st_gid)
    os.replace(name, target)
