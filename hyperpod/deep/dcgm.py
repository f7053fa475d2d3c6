"""DCGM's own short diagnostic, where dcgmi is installed and its host engine runs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hyperpod.adapters.process import Processes
from hyperpod.deep.result import Line
from hyperpod.errors import CommandError, CommandTimeout, UnexpectedOutput
from hyperpod.health.parse_dcgm import DcgmResult, Verdict, parse_diag

_PROGRAM = "/usr/bin/dcgmi"
_LIMIT_S = 90.0
"""The first level takes seconds. The longer ones go on in the host engine when a job wants the node back: not here."""


def check_dcgm(program: str = _PROGRAM, limit_s: float = _LIMIT_S) -> list[Line]:
    """Run the first level and say what failed; nothing on a machine without dcgmi.

    A host engine that is away or an answer that is not understood says nothing of a GPU: the test is then skipped.
    """
    if not os.access(program, os.X_OK):
        return []
    try:
        # The status tells of failed tests too: what counts is what is printed.
        text = Processes().run([program, "diag", "-r", "1", "-j"], timeout_s=limit_s, check=False).stdout
        results = parse_diag(text)
    except (CommandError, CommandTimeout, UnexpectedOutput) as error:
        return [Line("dcgm", True, detail=f"DCGM says nothing: {error}"[:200], skipped=True)]
    failed = [result for result in results if result.verdict is Verdict.FAIL]
    if failed:
        return [Line("dcgm", False, detail=_said(failed))]
    return [Line("dcgm", True, detail=_said([r for r in results if r.verdict is Verdict.WARN]))]


def _said(results: Sequence[DcgmResult]) -> str:
    return "; ".join(f"{r.entity}, {r.test}: {r.text or r.verdict.value}" for r in results[:3])
