"""Looks for checkpoints as the job's user, in a process that can be given up.

The directory belongs to a user: root never follows names in it. A hung file system costs a deadline, not the
controller.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyperpod.errors import CommandError
from hyperpod.ports.checkpoints import Scan
from hyperpod.ports.process import ProcessRunner

log = logging.getLogger(__name__)

_MOST_PATH = 4096
"""PATH_MAX of Linux."""


@dataclass(frozen=True)
class CheckpointScanner:
    """Runs ``python3 -m hyperpod.checkpoint scan`` as a user. ``library`` is the folder that holds hyperpod."""

    process: ProcessRunner
    library: str
    timeout_s: float = 5.0

    def scan(self, directory: str, user: str, *, set_aside: bool) -> Scan:
        """Return the newest complete checkpoint below ``directory``; never raises.

        Args:
            directory: Absolute path; it need not exist.
            user: Login name whose rights are used; empty gives no answer.
            set_aside: Also rename half-written ones (only when nobody can be writing any more).
        """
        if not directory or not user:
            return Scan("", None, problems=("no checkpoint directory or user is known",))
        # -s, -P: nothing from the user's home or the working folder is loaded into a process on the head node.
        argv = [sys.executable, "-s", "-P", "-m", "hyperpod.checkpoint", "scan", directory, "--json"]
        argv += ["--deadline", f"{self.timeout_s * 0.8:g}"]
        argv += ["--set-aside"] if set_aside else []
        try:
            done = self.process.run(
                argv, timeout_s=self.timeout_s, user=user, env={"PYTHONPATH": self.library}, check=False
            )
            return parse_scan(json.loads(done.stdout))
        except (
            CommandError,
            ValueError,
            LookupError,
            TypeError,
            ArithmeticError,
            AttributeError,
            RecursionError,
        ) as error:
            # The process is the user's, so what it says may be anything.
            log.warning("checkpoint scan failed directory=%s error=%s", directory, error)
            return Scan("", None, problems=(str(error),))


def parse_scan(data: Mapping[str, Any]) -> Scan:
    """Read the scan's JSON answer.

    Raises:
        KeyError, ValueError, TypeError: if it is not one.
    """
    path = str(data["latest"] or "")
    if len(path) > _MOST_PATH:
        raise ValueError("the path of the newest checkpoint is too long to be one")
    step: int | None = int(data["step"]) if path and data.get("step") is not None else -1
    if not path and not data.get("certain", True):
        # "Could not look" is not "there is none".
        step = None
    return Scan(path, step, tuple(map(str, data.get("set_aside", ()))), tuple(map(str, data.get("problems", ()))))
