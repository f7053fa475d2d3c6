"""How much may be out of service and under repair at once, and when one cause stops repairs. Only computes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hyperpod.core.finding import Action, Severity, Whose
from hyperpod.core.node import (
    Availability,
    NodeView,
    Repair,
    RepairStatus,
)
from hyperpod.core.notices import is_announced_cause
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.snapshot import PastRepair

_MACHINE_PHASES = (RepairStatus.FENCING, RepairStatus.REBOOTING, RepairStatus.REPLACING, RepairStatus.CHECKING)


@dataclass
class Budget:
    """Counts what is out of service and under repair while a plan is made."""

    workers: int
    unhealthy: int
    under_repair: int
    hit: dict[str, set[str]]
    policy: RepairPolicy

    def allows_unhealthy(self, node: NodeView) -> bool:
        # A node that is down already has been counted.
        others = self.unhealthy - (1 if node.availability is Availability.DOWN else 0)
        return others < unhealthy_limit(self.workers, self.policy)

    def allows_repair(self) -> bool:
        return self.under_repair < self.policy.max_parallel_repaired

    def is_broken_by(self, cause: str) -> bool:
        """Say whether too many nodes had this cause, those of the plan being made included."""
        return _is_countable(cause) and 0 < self.policy.breaker_nodes <= len(self.hit[cause])

    def begin(self, node: NodeView, cause: str) -> None:
        self.unhealthy += 0 if node.availability is Availability.DOWN else 1
        self.hit[cause].add(node.name)


def _is_countable(cause: str) -> bool:
    """What people ask for, and what the provider has announced, is no sign of a site problem."""
    return not cause.startswith("admin/") and not is_announced_cause(cause)


def open_breakers(
    history: tuple[PastRepair, ...], policy: RepairPolicy, now: datetime, reset_at: datetime | None
) -> Mapping[str, tuple[str, ...]]:
    """Return the causes seen on too many nodes within the window, each with those nodes.

    Pure. One cause on ``breaker_nodes`` different nodes is a site problem (a broken prolog, a full shared disk, a
    wrong setting), which taking more nodes away only makes worse.
    """
    if policy.breaker_nodes <= 0:
        return {}
    hit = hit_nodes(history, policy, now, reset_at)
    return {
        cause: tuple(sorted(names))
        for cause, names in hit.items()
        if _is_countable(cause) and len(names) >= policy.breaker_nodes
    }


def widespread_causes(nodes: Sequence[NodeView], workers: int, policy: RepairPolicy) -> Mapping[str, tuple[str, ...]]:
    """Return what is wrong with so many nodes at once that it is no fault of theirs, each cause with those nodes.

    Pure. What a check itself calls the site's is widespread on ``breaker_nodes`` nodes. What it calls the node's is on
    more than half of the fleet, never fewer than ``breaker_nodes``: a driver, a setting, the network, or we ourselves.
    ``nodes`` may leave out those without findings. Nodes in repair do not count: they have been judged one by one, and
    the breaker counts them.
    """
    if policy.breaker_nodes <= 0:
        return {}
    sites: dict[str, set[str]] = defaultdict(set)
    own: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        if node.repair is not None:
            continue
        for f in node.findings:
            if f.severity is Severity.FATAL and f.whose is not Whose.USER:
                (sites if f.whose is Whose.SITE else own)[f"{f.check}/{f.code}"].add(node.name)
    least = max(policy.breaker_nodes, 2)
    found = {cause: names for cause, names in sites.items() if len(names) >= least}
    found |= {cause: names for cause, names in own.items() if len(names) >= least and len(names) * 2 > workers}
    return {cause: tuple(sorted(names)) for cause, names in sorted(found.items())}


def hit_nodes(
    history: tuple[PastRepair, ...], policy: RepairPolicy, now: datetime, reset_at: datetime | None
) -> dict[str, set[str]]:
    since = now - timedelta(seconds=policy.breaker_window_s)
    if reset_at is not None and reset_at > since:
        since = reset_at
    nodes: dict[str, set[str]] = defaultdict(set)
    for past in history:
        if past.at > since:
            nodes[past.cause].add(past.node)
    return nodes


def is_machine_work(repair: Repair | None) -> bool:
    """Say whether a machine is being fenced, rebooted, replaced or checked after that: what the budget counts."""
    return repair is not None and repair.status in _MACHINE_PHASES and repair.action is not Action.NONE


def unhealthy_limit(workers: int, policy: RepairPolicy) -> int:
    """Return how many workers may be out of service before repairs stop; at least one."""
    return max(1, math.floor(workers * policy.max_unhealthy_percentage / 100))
