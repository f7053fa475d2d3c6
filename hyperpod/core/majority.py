"""Nodes that differ from their own group: the judge of what machines should have where no table says it. Pure.

Machines of a group are equal, so what most of them count is what there should be. One that counts less has lost
something; one with another driver was set up differently. Several that differ are no broken machines: somebody has
changed something, and a person should look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hyperpod.core.finding import Action, Finding, Severity, Whose

CHECK = "group"
FEWER = "FewerThanGroup"
DIFFERS = "DiffersFromGroup"

COUNTS = frozenset({"gpus", "nvlinks", "efa", "infiniband_ports", "neuron_devices", "neuron_cores", "nvme_disks"})
"""What a machine has a number of, and cannot work well with less of. Everything else only makes a warning."""

MIN_NODES = 3
MAJORITY = 0.6
MOST_BROKEN = 2
"""More nodes than this that differ in one thing are a matter of the site."""

SETTLE = timedelta(seconds=120)
"""A difference counts when it has lasted this long: two looks of the slowest checks, and time for late devices."""


@dataclass(frozen=True)
class Counted:
    """What one node has counted.

    Attributes:
        node, group, instance_id, boot_id: Who it is.
        inventory: Values by name.
        since: When each value was first told, by name; the difference cannot be older.
    """

    node: str
    group: str
    inventory: Mapping[str, str]
    instance_id: str = ""
    boot_id: str = ""
    since: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """Findings by node, and when the next difference will have lasted long enough; None: none waits."""

    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    next_at: datetime | None = None


def judge_groups(nodes: Iterable[Counted], now: datetime) -> Judged:
    """Compare the nodes of each group with each other."""
    groups: dict[str, list[Counted]] = {}
    for node in nodes:
        groups.setdefault(node.group, []).append(node)
    findings: dict[str, list[Finding]] = {}
    waits: list[datetime] = []
    for members in groups.values():
        for name in sorted({name for node in members for name in node.inventory}):
            _judge_one(name, [node for node in members if name in node.inventory], now, findings, waits)
    return Judged({node: tuple(found) for node, found in findings.items()}, min(waits, default=None))


def majority_value(values: Iterable[str]) -> str | None:
    """Return the value that at least 60 % have, of at least three; None when there is none."""
    counts = Counter(values)
    total = sum(counts.values())
    if total < MIN_NODES:
        return None
    value, count = counts.most_common(1)[0]
    return value if count >= MAJORITY * total else None


def _judge_one(
    name: str, nodes: list[Counted], now: datetime, findings: dict[str, list[Finding]], waits: list[datetime]
) -> None:
    usual = majority_value(node.inventory[name] for node in nodes)
    if usual is None:
        return
    odd = [node for node in nodes if node.inventory[name] != usual]
    is_sites = len(odd) > MOST_BROKEN
    for node in odd:
        since = node.since.get(name, now)
        if now - since < SETTLE:
            waits.append(since + SETTLE)
            continue
        found = _finding(name, node, usual, len(nodes) - len(odd), len(nodes), is_sites=is_sites)
        findings.setdefault(node.node, []).append(
            Finding(**{**found.__dict__, "since": since, "boot_id": node.boot_id, "instance_id": node.instance_id})
        )


def _finding(name: str, node: Counted, usual: str, agree: int, total: int, *, is_sites: bool) -> Finding:
    own = node.inventory[name]
    text = f"{name} is {own or 'nothing'} here, {agree} of {total} nodes of {node.group} have {usual or 'nothing'}"
    is_fewer = name in COUNTS and own.isascii() and usual.isascii() and own.isdigit() and usual.isdigit()
    if is_fewer and int(own) < int(usual):
        if not is_sites:
            return Finding(CHECK, FEWER, Severity.FATAL, text, Action.DRAIN, device=name)
        return Finding(CHECK, FEWER, Severity.WARN, text, device=name, whose=Whose.SITE)
    return Finding(CHECK, DIFFERS, Severity.WARN, text, device=name, whose=Whose.SITE if is_sites else Whose.NODE)
