"""The node's own name resolves to its own address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting

NAME = "name"


@dataclass
class NameCheck:
    """Resolves the node's name and compares it with the interfaces' addresses."""

    about: ClassVar[About] = About(
        title="The node's own name resolves to its own address",
        reads="The resolver (files and DNS, as configured) and the addresses of the node's interfaces.",
        means="torchrun's rendezvous hangs without a word, and gloo falls back to loopback, on a node whose name does "
        "not resolve. Name services hiccup, so one failure is none.",
        does="FATAL, drain, after two of three looks.",
        codes={
            "NameUnknown": "The node's own name does not resolve.",
            "NameElsewhere": "It resolves to an address that is not this node's.",
        },
        source="Our own judgement, from jobs that hung at their start.",
    )
    interval_s: float = setting(60.0, "Seconds between two looks; a name that worked seldom stops to.")
    deadline_s: float = 12.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = True
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Resolve and compare."""
        node = ports.facts.node
        found = ports.host.resolve(node)
        if not found:
            return Result((fatal(NAME, "NameUnknown", f"the node's own name {node} does not resolve"),))
        own = {ports.facts.address, *ports.host.own_addresses()} - {""}
        if own.isdisjoint(found):
            text = f"{node} resolves to {', '.join(found)}, which is not an address of this node"
            return Result((fatal(NAME, "NameElsewhere", text),))
        return Result()
