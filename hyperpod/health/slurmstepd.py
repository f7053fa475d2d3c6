"""How Slurm's step daemon names the job that it serves. Pure."""

from __future__ import annotations

import re

from hyperpod.ports.host import Process

_TITLE = re.compile(r"^slurmstepd: \[(?P<job>\d+)\.(?P<step>[\w+.]+)\]")


def job_of(process: Process) -> int | None:
    """Return the job that a step daemon serves; None for any other process.

    Titles are the process's own to write: only root's is believed.
    """
    match = _TITLE.match(process.title) if process.uid == 0 and process.name.startswith("slurmstepd") else None
    return int(match["job"]) if match else None
