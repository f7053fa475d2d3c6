"""The partition lines of slurm.conf on the head node, kept as the controller has set them at run time.

slurmctld forgets what ``scontrol update partitionname`` did when it is restarted; the file must say the same.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
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


def save_partition_nodes(path: str, partition: str, nodes: Sequence[str]) -> None:
    """Write a partition's node list into slurm.conf, atomically; the file's owner and mode stay.

    Raises:
        SlurmError: if the file cannot be read or written.
    """
    target = Path(path).resolve()
    try:
        before = target.read_text()
        after = with_partition_nodes(before, partition, nodes)
        if after == before:
            return
        mode = target.stat()
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".slurm.conf.")
        with os.fdopen(handle, "w") as file:
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode.st_mode & 0o7777)
            os.fchown(file.fileno(), mode.st_uid, mode.st_gid)
        os.replace(name, target)
    except OSError as error:
        raise SlurmError(f"cannot write {target}: {error.strerror}") from error
