"""DCGM's own diagnostic, where dcgmi is installed and its host engine runs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hyperpod.adapters.process import Processes
from hyperpod.core.deep import DCGM_LIMITS_S
from hyperpod.deep.result import Line
from hyperpod.errors import CommandError, CommandTimeout, UnexpectedOutput
from hyperpod.health.parse_dcgm import DcgmResult, Verdict, parse_diag

_PROGRAM = "/usr/bin/dcgmi"
_STOPS_WITHIN_S = 10


def check_dcgm(level: int = 1, *, program: str = _PROGRAM, limit_s: float | None = None) -> list[Line]:
    """Run the diagnostic at a level from 1 to 4 and say what failed; nothing on a machine without dcgmi.

    A host engine that is away or an answer that is not understood says nothing of a GPU: the test is then skipped.

    Raises:
        ValueError: There is no such level.
    """
    if level not in DCGM_LIMITS_S:
        raise ValueError(f"there is no level {level} of DCGM's diagnostic")
    if not os.access(program, os.X_OK):
        return []
    limit_s = limit_s or DCGM_LIMITS_S[level]
    # The tests run in the host engine, and go on there when dcgmi is killed. On SIGTERM it has them stopped: so that
    # is what it gets when we are killed for a job that comes, and when the time is over. Its last words find nobody.
    argv = ["setpriv", "--pdeathsig", "TERM", "env", "--ignore-signal=PIPE"]
    argv += ["timeout", f"--kill-after={_STOPS_WITHIN_S}", f"{limit_s:g}"]
    argv += [program, "diag", "-r", str(level), "-j"]
    try:
        # The status tells of failed tests too: what counts is what is printed.
        text = Processes().run(argv, timeout_s=limit_s + 2 * _STOPS_WITHIN_S, check=False).stdout
        results = parse_diag(text)
    except (CommandError, CommandTimeout, UnexpectedOutput) as error:
        return [Line("dcgm", True, detail=f"DCGM says nothing: {error}"[:200], skipped=True)]
    failed = [result for result in results if result.verdict is Verdict.FAIL]
    if failed:
        return [Line("dcgm", False, detail=_said(failed))]
    return [Line("dcgm", True, detail=_said([r for r in results if r.verdict is Verdict.WARN]))]


def _said(results: Sequence[DcgmResult]) -> str:
    return "; ".join(f"{r.entity}, {r.test}: {r.text or r.verdict.value}" for r in results[:3])
