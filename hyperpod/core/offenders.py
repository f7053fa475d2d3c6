"""Repeat offenders: machines that fail more often than chance allows at the fleet's rate. Only computes.

Owns the account of faults against exposure. Faults are counted by physical identity: a GPU's own number where the
finding has it, else the machine's instance id, never the node's name, which outlives the machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

WINDOW = timedelta(days=28)

PRIOR_RATE = 6.5 / 1000
"""Faults per node and day in published fleets; what is believed before the own fleet has taught better."""

PRIOR_NODE_DAYS = 2000.0
"""How much the prior weighs: as much as 70 nodes seen over the whole window."""

FALSE_ALARMS = 0.1
"""Machines of a fleet that would be called offenders by chance alone, in one window."""

LEAST_FAULTS = 3
"""Fewer are never significant: in a fleet of two nodes chance alone would make two look so."""

SAME_FAULT = timedelta(hours=1)
"""The same cause on the same device again within this time is the same fault."""

_DEVICE = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:serial|SN)[:=]\S+", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """One fault of a machine. ``identity`` is the physical part's, ``machine`` the instance it was in then."""

    identity: str
    machine: str
    node: str
    cause: str
    at: datetime


@dataclass(frozen=True)
class Exposure:
    """How long a machine has been seen: from when to when."""

    machine: str
    node: str
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class Offender:
    """A machine that fails too often.

    ``tail`` is how likely so many faults are by chance, ``expected`` how many the fleet's rate lets expect.
    """

    identity: str
    machine: str
    node: str
    faults: int
    days: float
    expected: float
    tail: float
    causes: tuple[str, ...]
    is_significant: bool

    @property
    def sentence(self) -> str:
        """The figures, for people."""
        return (
            f"{self.faults} faults in {self.days:.0f} days where {self.expected:.2f} are expected "
            f"(chance {self.tail:.1g}): {', '.join(self.causes[:4])}"
        )


def identity_of(device: str, machine: str) -> str:
    """Return the physical identity of a faulty part: its own number where its name has one, else the machine's id."""
    match = _DEVICE.search(device)
    return match.group(0) if match else machine


def is_same_fault(before: Fault, after: Fault) -> bool:
    """Say whether two faults are one that is told twice."""
    return before.identity == after.identity and before.cause == after.cause and abs(after.at - before.at) <= SAME_FAULT


def poisson_tail(count: int, mean: float) -> float:
    """Return the probability of ``count`` events or more where ``mean`` are expected.

    The terms from ``count`` on are added up, not the others taken from one: that would leave nothing of a small tail.
    """
    if count <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    term = math.exp(-mean + count * math.log(mean) - math.lgamma(count + 1))
    total, k = 0.0, count
    while k <= mean or term > total * 1e-12:
        total += term
        k += 1
        term *= mean / k
    return min(total, 1.0)


def fleet_rate(faults: int, node_days: float) -> float:
    """Return faults per node and day: the fleet's own, blended with the prior by how long it has been seen."""
    return (PRIOR_RATE * PRIOR_NODE_DAYS + faults) / (PRIOR_NODE_DAYS + node_days)


def find_offenders(faults: Iterable[Fault], exposures: Iterable[Exposure], now: datetime) -> tuple[Offender, ...]:
    """Compare each machine's faults with what its time in service lets expect at the rate of the others.

    Pure; the likeliest offender first. A machine's own faults do not count in the rate that it is measured by.

    Args:
        faults: Of any age; those older than ``WINDOW`` are left out.
        exposures: Every machine seen, those without a fault included. One seen shorter than a day counts as a day.
    """
    since = now - WINDOW
    days: dict[str, float] = {}
    where: dict[str, str] = {}
    for e in exposures:
        seen = min(e.last_at, now) - max(e.first_at, since)
        if seen >= timedelta(0):
            days[e.machine] = max(seen / timedelta(days=1), 1.0)
            where[e.machine] = e.node
    by_identity: dict[str, list[Fault]] = {}
    for fault in faults:
        if since <= fault.at <= now:
            by_identity.setdefault(fault.identity, []).append(fault)
    total, node_days = sum(len(f) for f in by_identity.values()), sum(days.values())
    fleet = max(len(days), 1)
    found = []
    for identity, own in by_identity.items():
        own.sort(key=lambda f: (f.at, f.cause, f.machine))
        newest = own[-1]
        # A part that moved was exposed in every machine that it was in.
        exposed = min(sum(days.get(m, 1.0) for m in {f.machine for f in own}), WINDOW / timedelta(days=1))
        rate = fleet_rate(total - len(own), max(node_days - exposed, 0.0))
        expected = rate * exposed
        tail = poisson_tail(len(own), expected)
        found.append(
            Offender(
                identity=identity,
                machine=newest.machine,
                node=where.get(newest.machine, newest.node),
                faults=len(own),
                days=exposed,
                expected=expected,
                tail=tail,
                causes=tuple(dict.fromkeys(f.cause for f in reversed(own))),
                is_significant=len(own) >= LEAST_FAULTS and tail * fleet <= FALSE_ALARMS,
            )
        )
    return tuple(sorted(found, key=lambda o: (o.tail, o.node, o.identity)))


def significant(offenders: Iterable[Offender], machines: Mapping[str, str]) -> Mapping[str, Offender]:
    """Return the offenders by instance id that are in service now. ``machines`` are instance ids by node name."""
    present = set(machines.values())
    return {o.machine: o for o in offenders if o.is_significant and o.machine in present}
