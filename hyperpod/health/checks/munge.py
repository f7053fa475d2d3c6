"""Munge works, and the clock agrees with the head node's.

A credential is made and decoded here; that it is accepted by the head node is shown by the controller's answers,
which also carry its time. Settings: ``warn_offset_s`` (1: schedulers and logs suffer), ``fatal_offset_s`` (60: munge
itself refuses at 300 s, and a credential lives 60 s). Without an answer of the controller the offset is unknown,
which is no fault of this node.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod.core.finding import Finding
from hyperpod.core.node import Role
from hyperpod.errors import MungeError
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, fatal, warn

NAME = "munge"
_PAYLOAD = b"hyperpod health"


@dataclass
class MungeCheck:
    """Encodes and decodes a credential and compares clocks."""

    warn_offset_s: float = 1.0
    fatal_offset_s: float = 60.0
    interval_s: float = 30.0
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = True
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Make the round trip and judge the offset."""
        findings: list[Finding] = []
        try:
            decoded = ports.munge.decode(ports.munge.encode(_PAYLOAD))
            if decoded.payload != _PAYLOAD:
                findings.append(fatal(NAME, "MungeFailed", "munge gave back something else than it was given"))
        except MungeError as error:
            findings.append(fatal(NAME, "MungeFailed", f"munge does not work: {error}"))
        offset = ports.facts.clock_offset_s
        if offset is None:
            return Result(tuple(findings), not_ready="the controller has not answered yet")
        if abs(offset) > self.warn_offset_s:
            direction = "behind" if offset > 0 else "ahead of"
            text = f"the clock is {abs(offset):.1f} s {direction} the head node's"
            is_fatal = abs(offset) > self.fatal_offset_s
            findings.append((fatal if is_fatal else warn)(NAME, "ClockOffset", text))
        return Result(tuple(findings))
