"""What DCGM says of the GPUs, after a job has failed and only when that is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.errors import CommandError, CommandTimeout, UnexpectedOutput
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.parse_dcgm import DcgmResult, Verdict, parse_health

NAME = "dcgm"

_NEVER_S = 10 * 365 * 86400.0


@dataclass
class DcgmCheck:
    """Runs ``dcgmi health -c -j`` once."""

    about: ClassVar[About] = About(
        title="DCGM finds the GPUs healthy",
        reads="`dcgmi health -c -j`, of a host engine that already runs with its watches set (`dcgmi health -s a`).",
        means="DCGM watches much of what the other GPU checks read, with limits of its own. A host engine that is away "
        "or busy, watches that are not set, an answer that is not understood: the tool failed, nothing is said of the "
        "GPUs. Restarts of host engines have had whole nodes replaced elsewhere.",
        does="Off unless `is_wanted`. It starts a process, so it never runs by the clock: only after a failure, as "
        "evidence. What failed in two such runs is FATAL, REBOOT; warnings are WARN.",
        codes={
            "DcgmFailure": "DCGM says that a part of a GPU or switch has failed.",
            "DcgmWarning": "DCGM warns of a part.",
            "DcgmUnusable": "DCGM could not be asked, or its answer is not understood.",
        },
        source="dcgmi of DCGM 3 and 4; practice of other monitors (containers-roadmap 2555, EKS-NMA 266).",
    )
    is_wanted: bool = setting(False, "Ask DCGM after a failure. Off: NVML is asked anyway, a host engine is slow.")
    program: str = setting("/usr/bin/dcgmi", "Where dcgmi is; a node without it says nothing.")
    timeout_s: float = setting(1.8, "Seconds for the answer: the checks after a failure have two together.")
    interval_s: float = setting(_NEVER_S, "Not run by the clock: ten years.")
    deadline_s: float = 4.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS

    def run(self, ports: Ports) -> Result:
        """Ask, and take what it says as a finding for each part."""
        if not self.is_wanted:
            return Result()
        try:
            ports.host.read_bytes(self.program, 4)
        except OSError:
            return Result()
        try:
            complaints = parse_health(ports.host.run([self.program, "health", "-c", "-j"], self.timeout_s))
        except (CommandError, CommandTimeout, UnexpectedOutput) as error:
            return Result((unknown(NAME, "DcgmUnusable", f"DCGM cannot be asked: {error}"),))
        return Result(tuple(finding for item in complaints if (finding := judge_result(item)) is not None))


def judge_result(item: DcgmResult) -> Finding | None:
    """Return what DCGM's word about a part asks for; None when it is content."""
    if item.verdict in (Verdict.PASS, Verdict.SKIP):
        return None
    device = " ".join(filter(None, (item.entity, item.test)))
    text = f"DCGM: {', '.join(filter(None, (item.entity, item.test)))}: {item.text or item.verdict.value}"
    if item.verdict is Verdict.FAIL:
        return fatal(NAME, "DcgmFailure", text, action=Action.REBOOT, device=device)
    return warn(NAME, "DcgmWarning", text, device=device)
