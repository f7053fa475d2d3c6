"""Nodes that users keep out of their jobs with ``--exclude``: they often know of a bad node first. Only computes.

Owns which exclusions count and the account of them. It names nodes; nothing is drained for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from hyperpod.core.offenders import FALSE_ALARMS, WINDOW, Exposure, poisson_tail

PRIOR_RATE = 0.02
"""Share of the users who exclude any one machine for reasons of their own: our guess, until the cluster shows it."""

PRIOR_USERS = 100.0
"""How much the guess weighs: as much as so many users beside one machine."""

LEAST_USERS = 3
"""Fewer are never significant: two friends tell each other."""

MOST_SHARE = 0.25
"""A list of more of the workers than this chooses a part of the cluster, and complains of no node."""


@dataclass(frozen=True)
class Exclusion:
    """One user has kept one machine out of a job, last at this time."""

    machine: str
    node: str
    uid: int
    at: datetime


@dataclass(frozen=True)
class Shunned:
    """A machine that users exclude: how many of those who could have used it, and how likely that is by chance."""

    machine: str
    node: str
    users: int
    of_users: int
    expected: float
    tail: float
    is_significant: bool

    @property
    def sentence(self) -> str:
        """The figures, for people."""
        return (
            f"{self.users} of {self.of_users} users exclude it where {self.expected:.2f} are expected "
            f"(chance {self.tail:.1g})"
        )


def complained_of(excluded: Iterable[str], workers: Collection[str]) -> tuple[str, ...]:
    """Return the nodes that a job's list complains of: those it names, unless it names a large part of the cluster."""
    named = sorted(set(excluded) & set(workers))
    return tuple(named) if len(named) <= max(1, int(len(workers) * MOST_SHARE)) else ()


def find_shunned(
    exclusions: Iterable[Exclusion], users: Mapping[int, datetime], exposures: Iterable[Exposure], now: datetime
) -> tuple[Shunned, ...]:
    """Count the different users who exclude each machine, against those who were there while it was in service.

    Pure; the most shunned first. As with faults, a machine is compared with the others at their rate.

    Args:
        exclusions: Of any age; those older than the window are left out.
        users: When each user's newest job was seen.
        exposures: Every machine seen. A machine that was replaced is another one.
        now: End of the window.
    """
    since = now - WINDOW
    recent = [at for at in users.values() if at >= since]
    seen = {e.machine: e for e in exposures if e.last_at >= since}
    could = {machine: sum(1 for at in recent if at >= e.first_at - _SLACK) for machine, e in seen.items()}
    who: dict[str, set[int]] = {}
    names: dict[str, str] = {}
    for e in sorted(exclusions, key=lambda e: (e.at, e.machine, e.uid)):
        if e.machine in seen and since <= e.at <= now:
            who.setdefault(e.machine, set()).add(e.uid)
            names[e.machine] = e.node
    total, beside = sum(len(found) for found in who.values()), sum(could.values())
    found = []
    for machine, uids in who.items():
        of_users = max(could[machine], len(uids))
        others = max(total - len(uids), 0)
        rate = (PRIOR_RATE * PRIOR_USERS + others) / (PRIOR_USERS + max(beside - could[machine], 0))
        tail = poisson_tail(len(uids), rate * of_users)
        found.append(
            Shunned(
                machine=machine,
                node=names[machine],
                users=len(uids),
                of_users=of_users,
                expected=rate * of_users,
                tail=tail,
                is_significant=len(uids) >= LEAST_USERS and tail * max(len(seen), 1) <= FALSE_ALARMS,
            )
        )
    return tuple(sorted(found, key=lambda s: (s.tail, -s.users, s.node, s.machine)))


_SLACK = timedelta(minutes=1)
"""A job may be seen in the same look as the machine, and before it."""
