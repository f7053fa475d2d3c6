"""Nodes that differ from their own group: the judge of what machines should have where no table says it. Pure.

Machines of a group are equal, so what most of them count is what there should be. One that counts less has lost
something; one with another driver was set up differently. Several that differ are no broken machines: somebody has
changed something, and a person should look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from hyperpod.core.finding import Action, Finding, Severity, Whose

CHECK = "group"
FEWER = "FewerThanGroup"
DIFFERS = "DiffersFromGroup"

COUNTS = frozenset({"gpus", "nvlinks", "efa", "infiniband_ports", "neuron_devices", "neuron_cores", "nvme_disks"})
"""What a machine has a number of, and cannot work well with less of. Everything else only makes a warning."""

AMOUNTS = frozenset({"memory_mib"})
"""What is measured and not counted: kernels differ a little in what they keep for themselves. Less counts as for
``COUNTS``."""


def _limit(default: Any, why: str) -> Any:
    """Declare a limit as checks declare theirs: its default, with what it means and why this default."""
    return field(default=default, metadata={"why": why})


@dataclass(frozen=True)
class Limits:
    """When a group has a majority, and when a difference counts."""

    min_nodes: int = _limit(3, "Nodes that must have counted a thing; of two that differ nobody knows which is right.")
    majority: float = _limit(
        0.6, "Share of them that must agree, above half. 0.6: half of a group that is being upgraded is no majority."
    )
    most_broken: int = _limit(
        2, "Nodes that may differ in one thing and be broken each; more of them are the site's matter (WARN)."
    )
    settle_s: float = _limit(
        120.0, "Seconds that a difference must last: two looks of the slowest checks, and time for late devices."
    )
    memory_percent: float = _limit(
        1.0, "Share by which the memory of two nodes may differ: the margin of the check memory for Slurm's RealMemory."
    )
    ignore: tuple[str, ...] = _limit(
        (),
        "Things that may differ in this group, by the names in its messages, e.g. [gpu_driver, mtu_*]; * stands for "
        "anything. Default: none.",
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: naming the limit.
        """
        for name, least in (("min_nodes", 2), ("most_broken", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be a whole number from {least}, got {value!r}")
        if not _is_number(self.majority) or not 0.5 < self.majority <= 1:
            raise ValueError(f"majority must be above 0.5 and at most 1, got {self.majority!r}")
        if not _is_number(self.settle_s) or not 0 <= self.settle_s <= 86_400:
            raise ValueError(f"settle_s must be from 0 to 86400, got {self.settle_s!r}")
        if not _is_number(self.memory_percent) or not 0 <= self.memory_percent <= 50:
            raise ValueError(f"memory_percent must be from 0 to 50, got {self.memory_percent!r}")
        if not isinstance(self.ignore, tuple) or not all(isinstance(name, str) and name for name in self.ignore):
            raise ValueError(f"ignore must be a list of names, got {self.ignore!r}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limits:
        """Read the limits among a check's settings; others' keys, such as ``mode``, are left out.

        Raises:
            ValueError: if one does not fit.
        """
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in data.items() if key in known
        }
        return cls(**values)

    def ignores(self, name: str) -> bool:
        """Say whether a thing may differ."""
        return any(fnmatchcase(name, pattern) for pattern in self.ignore)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


DEFAULTS = Limits()


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


def judge_groups(nodes: Iterable[Counted], now: datetime, limits: Mapping[str, Limits] | None = None) -> Judged:
    """Compare the nodes of each group with each other, by the group's own limits where it has some."""
    groups: dict[str, list[Counted]] = {}
    for node in nodes:
        groups.setdefault(node.group, []).append(node)
    findings: dict[str, list[Finding]] = {}
    waits: list[datetime] = []
    for group, members in groups.items():
        own = (limits or {}).get(group, DEFAULTS)
        for name in sorted({name for node in members for name in node.inventory}):
            if not own.ignores(name):
                _judge_one(name, [node for node in members if name in node.inventory], now, own, findings, waits)
    return Judged({node: tuple(found) for node, found in findings.items()}, min(waits, default=None))


def majority_value(values: Iterable[str], limits: Limits = DEFAULTS) -> str | None:
    """Return the value that most have, of enough (60 % of at least three by default); None when there is none."""
    counts = Counter(values)
    total = sum(counts.values())
    if total < limits.min_nodes:
        return None
    value, count = counts.most_common(1)[0]
    return value if count >= limits.majority * total else None


def majority_amount(values: Iterable[str], limits: Limits = DEFAULTS) -> str | None:
    """Return the middle value when as many as a majority needs are near it; None when they are not."""
    found = list(values)
    if len(found) < limits.min_nodes or not (amounts := sorted(int(v) for v in found if _is_whole(v))):
        return None
    middle = str(amounts[len(amounts) // 2])
    count = sum(_is_near(value, middle, limits) for value in found)
    return middle if count >= limits.majority * len(found) else None


def _is_as(name: str, own: str, usual: str, limits: Limits) -> bool:
    return _is_near(own, usual, limits) if name in AMOUNTS else own == usual


def _is_near(own: str, usual: str, limits: Limits) -> bool:
    return _is_whole(own) and abs(int(own) - int(usual)) <= int(usual) * limits.memory_percent / 100


def _is_whole(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _judge_one(
    name: str,
    nodes: list[Counted],
    now: datetime,
    limits: Limits,
    findings: dict[str, list[Finding]],
    waits: list[datetime],
) -> None:
    values = [node.inventory[name] for node in nodes]
    usual = majority_amount(values, limits) if name in AMOUNTS else majority_value(values, limits)
    if usual is None:
        return
    odd = [node for node in nodes if not _is_as(name, node.inventory[name], usual, limits)]
    is_sites = len(odd) > limits.most_broken
    settle = timedelta(seconds=limits.settle_s)
    for node in odd:
        since = node.since.get(name, now)
        if now - since < settle:
            waits.append(since + settle)
            continue
        found = _finding(name, node, usual, len(nodes) - len(odd), len(nodes), is_sites=is_sites)
        findings.setdefault(node.node, []).append(
            Finding(**{**found.__dict__, "since": since, "boot_id": node.boot_id, "instance_id": node.instance_id})
        )


def _finding(name: str, node: Counted, usual: str, agree: int, total: int, *, is_sites: bool) -> Finding:
    own = node.inventory[name]
    text = f"{name} is {own or 'nothing'} here, {agree} of {total} nodes of {node.group} have {usual or 'nothing'}"
    is_fewer = name in COUNTS | AMOUNTS and _is_whole(own) and _is_whole(usual)
    if is_fewer and int(own) < int(usual):
        if not is_sites:
            return Finding(CHECK, FEWER, Severity.FATAL, text, Action.DRAIN, device=name)
        return Finding(CHECK, FEWER, Severity.WARN, text, device=name, whose=Whose.SITE)
    return Finding(CHECK, DIFFERS, Severity.WARN, text, device=name, whose=Whose.SITE if is_sites else Whose.NODE)
