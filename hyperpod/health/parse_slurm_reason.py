"""What the reasons that Slurm itself gives for a node mean. Pure: a text in, a meaning out.

Owns Slurm's own texts only. A reason that a person has typed is nobody's to interpret, and one of ours says itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hyperpod.core.finding import Action, Severity, Whose


@dataclass(frozen=True)
class SlurmReason:
    """What a reason says.

    Attributes:
        code: CamelCase reason.
        severity, action, whose: As for a finding.
        message: One sentence for people.
        times: So many looks, a minute apart, must see it before it counts as more than WARN.
    """

    code: str
    severity: Severity
    action: Action
    whose: Whose
    message: str
    times: int = 1


_W, _F = Severity.WARN, Severity.FATAL
_NODE, _SITE, _USER = Whose.NODE, Whose.SITE, Whose.USER

_REASONS: tuple[tuple[re.Pattern[str], SlurmReason], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning)
    for pattern, meaning in (
        (
            r"not responding\b",
            SlurmReason(
                "SlurmdSilent", _W, Action.NONE, _NODE,
                "slurmctld does not hear this node's slurmd; whether the machine is dead is decided by its agent",
            ),
        ),
        (
            r"node unexpectedly rebooted\b",
            SlurmReason(
                "UnexpectedReboot", _W, Action.NONE, _NODE,
                "the node came back with another boot time than slurmctld knew",
            ),
        ),
        (
            r"kill task failed\b",
            SlurmReason(
                "KillTaskFailed", _W, Action.NONE, _NODE,
                "a job's processes could not be killed: those that hang in the kernel cost a reboot "
                "(leftovers/ProcessesStuck); without one, look at the epilog",
            ),
        ),
        (
            r"prolog error\b",
            SlurmReason("PrologFailed", _W, Action.NONE, _SITE, "the prolog failed on this node: read its log"),
        ),
        (
            r"epilog error\b",
            SlurmReason("EpilogFailed", _W, Action.NONE, _SITE, "the epilog failed on this node: read its log"),
        ),
        (
            r"batch job complete failure\b",
            SlurmReason(
                "BatchCompleteFailed", _W, Action.NONE, _NODE,
                "slurmd could not end a batch job as it should: full spool, lost credential or no memory",
            ),
        ),
        (
            r"(?:batch )?(?:job )?launch failure\b",
            SlurmReason("LaunchFailed", _W, Action.NONE, _NODE, "slurmd could not start a job: read slurmd's log"),
        ),
        (
            r"gres/\S+ count (?:reported lower than configured|too low)\b",
            SlurmReason(
                "GresMissing", _F, Action.REBOOT, _NODE,
                "slurmd counts fewer accelerators than configured", times=2,
            ),
        ),
        (
            r"low realmemory\b",
            SlurmReason("LowMemory", _F, Action.REBOOT, _NODE, "slurmd counts less memory than configured", times=2),
        ),
        (
            r"low (?:cpus|socket\S*(?: count)?)\b",
            SlurmReason("LowCpus", _F, Action.REBOOT, _NODE, "slurmd counts fewer processors than configured", times=2),
        ),
        (
            r"low tmpdisk\b",
            SlurmReason("LowTmpDisk", _W, Action.NONE, _NODE, "slurmd counts less temporary disk than configured"),
        ),
        (
            r"duplicate jobid\b",
            SlurmReason("DuplicateJob", _W, Action.NONE, _NODE, "slurmd has a job under a number that is in use"),
        ),
    )
)  # fmt: skip

_FIGURES = re.compile(r"\(([^()]{1,60})\)")


def parse_slurm_reason(reason: str) -> SlurmReason | None:
    """Return what a reason means, or None when it is not one of Slurm's own that we know.

    Args:
        reason: The text, with or without ``[user@time]`` at its end. Only its beginning decides: Slurm appends
            ": Not responding" to what a person has typed.
    """
    text = reason.strip()
    for pattern, meaning in _REASONS:
        if pattern.match(text):
            figures = _FIGURES.search(text)
            if figures is None or meaning.times == 1:
                return meaning
            return SlurmReason(
                meaning.code,
                meaning.severity,
                meaning.action,
                meaning.whose,
                f"{meaning.message} ({figures[1]})",
                meaning.times,
            )
    return None
