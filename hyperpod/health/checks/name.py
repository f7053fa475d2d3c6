"""The node's own name resolves to its own address.

torchrun's rendezvous hangs without a word, and gloo falls back to loopback, on a node whose name does not resolve.
Soft: name services hiccup. No settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, fatal

NAME = "name"


@dataclass
class NameCheck:
    """Resolves the node's name and compares it with the interfaces' addresses."""

    interval_s: float = 60.0
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
