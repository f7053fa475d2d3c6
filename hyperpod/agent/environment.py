"""The environment of an attempt while the controller is away, and how it is written for the plugin. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hyperpod.agent.jobs import KnownJob

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def lines_of(variables: Mapping[str, object]) -> tuple[str, ...]:
    """Return KEY=value lines; a value's line breaks become blanks, and what is no name is left out."""
    out = []
    for name, value in variables.items():
        if NAME.match(name):
            text = "".join(" " if c in "\n\r\0" else c for c in str(value))
            out.append(f"{name}={text}")
    return tuple(out)


def peer_lost_path(jobs_dir: str, job_id: int) -> str:
    """Return the path of the file that appears when a peer of the job is lost."""
    return f"{jobs_dir}/{job_id}/peer_lost"


IF_RESTARTED = "HYPERPOD_IF_RESTARTED"
"""Newest good checkpoint, for a plugin that learns only later whether this is a restart; see spank_plugin/remote.c."""


def fallback_of_script(job: KnownJob, checkpoint: str) -> dict[str, str]:
    """Build the environment of a batch script from what this node knows by itself.

    slurmstepd tells its restart count only to the task, after this was asked: the plugin decides then.
    """
    return {"HYPERPOD_CHECKPOINT_DIR": job.checkpoint_dir, IF_RESTARTED: checkpoint}


def fallback(job: KnownJob, resume_from: str) -> dict[str, str]:
    """Build the environment from what this node knows by itself.

    Args:
        job: The job, with the attempt's restart count.
        resume_from: Newest good checkpoint, empty when there is none or it could not be looked for.
    """
    is_first = job.restart_count == 0
    return {
        "HYPERPOD_ATTEMPT": str(job.restart_count + 1),
        "HYPERPOD_RESUME_FROM": "" if is_first else resume_from,
        "HYPERPOD_PREVIOUS_FAILURE": "" if is_first else "unknown: the controller did not answer",
        "HYPERPOD_CHECKPOINT_DIR": job.checkpoint_dir,
    }
