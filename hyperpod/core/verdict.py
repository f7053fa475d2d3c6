"""Verdicts: who ended an attempt of a job, and the evidence for it, as plain values.

Owns the records; ``core.attribution`` makes them. Must not know how evidence is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Who is to blame."""

    NODE = "node"
    APPLICATION = "application"
    UNKNOWN = "unknown"


class Method(StrEnum):
    """How a piece of evidence was found. Two that agree are independent witnesses."""

    FACT = "fact"
    EXITS = "exits"
    FINDINGS = "findings"
    PEERS = "peers"
    HISTORY = "history"
    SITE = "site"


ELSEWHERE = "elsewhere"
"""Key of the evidence that the same failure came on a disjoint set of machines."""


@dataclass(frozen=True)
class Evidence:
    """One thing that points at somebody.

    Attributes:
        when: When it was first seen, on the head node's clock; None when that is not known.
        node: The node that it is about; empty for none in particular.
        what: Sentence for people.
        weight: From 0 to 1: how much it says alone.
        method: How it was found.
        points_to: NODE (the node named), APPLICATION, or UNKNOWN (the site, or nobody).
        key: What it is, for comparison over nodes: ``check/code`` of a finding, else a word of its own.
    """

    when: datetime | None
    node: str
    what: str
    weight: float
    method: Method = Method.FINDINGS
    points_to: Kind = Kind.NODE
    key: str = ""

    @property
    def identity(self) -> tuple[Method, str, str]:
        """What makes two pieces the same one, seen twice."""
        return (self.method, self.node, self.key)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "when": self.when.isoformat() if self.when else None,
            "node": self.node,
            "what": self.what,
            "weight": self.weight,
            "method": self.method.value,
            "points_to": self.points_to.value,
            "key": self.key,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Evidence:
        """Build it from ``to_dict``'s output."""
        when = data.get("when")
        return cls(
            when=datetime.fromisoformat(when) if when else None,
            node=str(data["node"]),
            what=str(data["what"]),
            weight=float(data["weight"]),
            method=Method(data["method"]),
            points_to=Kind(data["points_to"]),
            key=str(data["key"]),
        )


@dataclass(frozen=True)
class Verdict:
    """Who ended an attempt.

    Attributes:
        kind: Who is to blame.
        reason: ``node X, because …``, ``application, because …`` or ``unknown, because …``.
        nodes: Nodes to blame; empty unless ``kind`` is NODE.
        score: From 0 to 1: how sure it is.
        may_drain: True for a hard fact, or when two independent methods agree; else a node is only kept from the next
            attempt of this one job.
        suspects: How much points at each node of the attempt, from 0 to 1; what adds up over attempts and jobs.
        evidence: What it rests on, the weightiest first.
    """

    kind: Kind
    reason: str
    nodes: tuple[str, ...] = ()
    score: float = 0.0
    may_drain: bool = False
    suspects: Mapping[str, float] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()

    @property
    def is_elsewhere(self) -> bool:
        """True when the same failure on machines that have nothing in common convicts the application."""
        return self.kind is Kind.APPLICATION and any(e.key == ELSEWHERE for e in self.evidence)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "kind": self.kind.value,
            "reason": self.reason,
            "nodes": list(self.nodes),
            "score": self.score,
            "may_drain": self.may_drain,
            "suspects": dict(self.suspects),
            "evidence": [e.to_dict() for e in self.evidence],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Build it from ``to_dict``'s output."""
        return cls(
            kind=Kind(data["kind"]),
            reason=str(data["reason"]),
            nodes=tuple(data["nodes"]),
            score=float(data["score"]),
            may_drain=bool(data["may_drain"]),
            suspects={str(name): float(weight) for name, weight in data["suspects"].items()},
            evidence=tuple(Evidence.from_dict(e) for e in data["evidence"]),
        )
