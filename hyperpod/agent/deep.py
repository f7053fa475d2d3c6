"""Deep checks on this node: which programs run, what they left behind, and what the node still waits for.

The controller orders them (``core.messages.DEEP``) and judges their figures, because only the comparison of nodes tells
what is slow; the findings come back from it and are kept here until the next deep check, or the end of this boot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from hyperpod.core.finding import Finding

PROGRAMS: Final = ("stress", "serve", "measure", "all_reduce")
MOST_S: Final = 86_400.0
"""No program runs longer, whatever the order says."""


@dataclass
class DeepChecks:
    """What the agent keeps of deep checks.

    Args:
        on_start: Kinds that must have been done before this boot's first job (``OnStartDeepHealthChecks``).
        boot_id, instance_id: Stamped on findings.
    """

    on_start: tuple[str, ...] = ()
    boot_id: str = ""
    instance_id: str = ""
    running: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)
    _findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)

    @property
    def wants(self) -> tuple[str, ...]:
        """Kinds that the node waits for."""
        return tuple(kind for kind in self.on_start if kind not in self._done)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the last deep checks found, by kind."""
        return tuple(f for kind in sorted(self._findings) for f in self._findings[kind])

    def judged(self, kinds: Collection[str], findings: Sequence[Finding], at: datetime) -> None:
        """Take the controller's judgement of these kinds: it replaces the one before."""
        self._done.update(kinds)
        # What was found by a check of several kinds ends when all of them have been checked anew.
        self._findings = {key: found for key, found in self._findings.items() if not set(key.split("+")) <= set(kinds)}
        stamped = tuple(
            replace(f, since=f.since or at, boot_id=self.boot_id, instance_id=self.instance_id) for f in findings
        )
        if stamped and kinds:
            self._findings["+".join(sorted(kinds))] = stamped

    def clear(self, code: str, device: str) -> bool:
        """A person says that a finding is dealt with; return whether it was open."""
        before = self.findings
        for kind, found in list(self._findings.items()):
            self._findings[kind] = tuple(f for f in found if (f.code, f.device) != (code, device))
        return self.findings != before

    def to_dict(self) -> dict[str, Any]:
        """Return what has to outlive a restart of the agent within this boot."""
        return {
            "on_start": list(self.on_start),
            "done": sorted(self._done),
            "findings": {kind: [f.to_dict() for f in found] for kind, found in self._findings.items()},
        }

    def restore(self, state: Mapping[str, Any], *, is_ready: bool) -> None:
        """Take up what ``to_dict`` gave.

        A node that was ready before the specification wanted a check is not taken out of work for it.

        Raises:
            KeyError, ValueError, TypeError: if it is not such a state.
        """
        self._done = {str(kind) for kind in state["done"]}
        if is_ready:
            self._done |= set(self.on_start) - {str(kind) for kind in state.get("on_start", self.on_start)}
        self._findings = {
            str(kind): tuple(Finding.from_dict(f) for f in found) for kind, found in state["findings"].items()
        }


@dataclass(frozen=True)
class Order:
    """One program to run."""

    key: str
    program: str
    args: Mapping[str, Any]
    timeout_s: float


def parse_order(message: Mapping[str, Any]) -> Order:
    """Read an order of the controller.

    Raises:
        KeyError, ValueError, TypeError: if it is none.
    """
    program, args = str(message["program"]), message["args"]
    if program not in PROGRAMS or not isinstance(args, Mapping):
        raise ValueError(f"unknown program {program!r}; known are {', '.join(PROGRAMS)}")
    return Order(str(message["id"]), program, args, min(MOST_S, max(0.1, float(message["timeout_s"]))))
