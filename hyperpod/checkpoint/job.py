"""What a training script asks about its own attempt: all of it from the environment, all of it optional.

Outside a job armed with ``--auto-resume`` every answer is the one of a first, undisturbed attempt.
"""

from __future__ import annotations

import os
import signal


def resume_from() -> str:
    """Return the checkpoint to load, or '' on the first attempt: one code path for both."""
    return os.environ.get("HYPERPOD_RESUME_FROM", "")


def checkpoint_dir(default: str = "") -> str:
    """Return the directory to save to, as the job's submission or the cluster's default named it."""
    return os.environ.get("HYPERPOD_CHECKPOINT_DIR", "") or default


def attempt() -> int:
    """Return which run of the job this is, from 1."""
    text = os.environ.get("HYPERPOD_ATTEMPT", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else 1


def previous_failure() -> str:
    """Return in one line why the attempt before ended, '' on the first."""
    return os.environ.get("HYPERPOD_PREVIOUS_FAILURE", "")


def peer_lost() -> bool:
    """Say whether a node or rank of this job was lost: nothing collective will ever end again.

    Cheap enough to ask in every step (one stat of a local file).
    """
    path = os.environ.get("HYPERPOD_PEER_LOST", "")
    return bool(path) and os.path.exists(path)


class WarningFlag:
    """Becomes set when the signal has come; stays set until ``clear``."""

    def __init__(self) -> None:
        self._is_set = False

    @property
    def is_set(self) -> bool:
        """Whether the signal has come."""
        return self._is_set

    def clear(self) -> None:
        """Forget the signal, after the save it asked for."""
        self._is_set = False

    def _handle(self, signum: int, frame: object) -> None:
        # Nothing else: a save inside a handler would cut into a step, a save or a collective under way.
        self._is_set = True


def install_warning_flag(signum: int = signal.SIGUSR1) -> WarningFlag:
    """Have a signal set a flag that the training loop looks at between two steps.

    Use with ``#SBATCH --signal=USR1@120``: Slurm then warns 120 s before the time limit. Must be called from the
    main thread. With several ranks, exchange the flag before acting on it: they may see it a step apart.
    """
    flag = WarningFlag()
    signal.signal(signum, flag._handle)
    return flag
