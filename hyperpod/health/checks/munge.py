"""Munge works, and the clock agrees with the head node's.

A credential is made and decoded here; that it is accepted by the head node is shown by the controller's answers,
which also carry its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Finding
from hyperpod.core.node import Role
from hyperpod.errors import MungeError
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, warn

NAME = "munge"
_PAYLOAD = b"hyperpod health"


@dataclass
class MungeCheck:
    """Encodes and decodes a credential and compares clocks."""

    about: ClassVar[About] = About(
        title="Munge works, and the clock agrees with the head node's",
        reads="One credential made and decoded by the local munged; the time in the controller's answers.",
        means="Slurm refuses everything from a node whose munge fails or whose clock is far off. Without an answer of "
        "the controller the offset is not known, which is no fault of this node.",
        does="FATAL, drain, when munge fails or the clock is off by more than fatal_offset_s; a smaller offset is "
        "WARN.",
        codes={
            "MungeFailed": "A credential could not be made or decoded, or came back changed.",
            "ClockOffset": "The clock differs from the head node's.",
        },
        source="munge(7): credentials live 300 s; a node 60 s off still works and has no room left.",
    )
    warn_offset_s: float = setting(
        1.0, "Seconds from which the offset is WARN; logs and schedules of a cluster agree better than this."
    )
    fatal_offset_s: float = setting(
        60.0, "Seconds from which it is FATAL; munge itself refuses at 300 s, so this leaves time to act."
    )
    interval_s: float = setting(30.0, "Seconds between two looks; clocks drift slowly, and munged rarely dies.")
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
