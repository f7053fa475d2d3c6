"""Prepares an account for clusters and takes that back: find, plan (pure, in core.account), apply.

Owns the order of effects. Any call may be killed and made again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hyperpod.core.account import (
    Do,
    Found,
    Part,
    Wanted,
    all_parts,
    check_wanted,
    parts_of,
    plan_prepare,
    plan_unprepare,
)
from hyperpod.errors import HyperpodError

Progress = Callable[[str], None]


class Account(Protocol):
    """An account as far as preparing it needs; ``adapters.aws.prepare`` has the real one."""

    def find(self, wanted: Wanted, parts: Sequence[Part]) -> Mapping[str, Found]:
        """Return those of the parts that an earlier preparation of this name made, or that are taken over."""
        ...

    def make(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> str:
        """Make a part, tagged from its first moment, and return its id."""
        ...

    def settle(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> None:
        """Give a part all that belongs to it, as often as it is called, and wait until it can be used."""
        ...

    def remove(self, key: str, wanted: Wanted, ids: Mapping[str, str]) -> None:
        """Remove a part; one that is gone is done."""
        ...


def prepare(account: Account, wanted: Wanted, progress: Progress = lambda _line: None) -> dict[str, str]:
    """Make what is missing and mend what is wrong; return the id of every part.

    Killed anywhere and called again, it goes on where it was.
    """
    check_wanted(wanted)
    steps = plan_prepare(wanted, account.find(wanted, parts_of(wanted)))
    ids = {step.part.key: step.id for step in steps if step.id}
    for step in steps:
        key = step.part.key
        if step.do is Do.TAKE:
            continue
        if step.do is Do.MAKE:
            progress(f"making {step.part.title}")
            ids[key] = account.make(key, wanted, ids)
        elif step.do is not Do.KEEP:
            progress(f"{step.part.title} {step.id}: {step.why or 'waiting'}")
        if step.do is not Do.KEEP:
            account.settle(key, wanted, ids)
    return ids


@dataclass(frozen=True)
class Removed:
    """What ``unprepare`` did: lines about what went, and about what stayed and why."""

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def unprepare(
    account: Account, wanted: Wanted, progress: Progress = lambda _line: None, *, delete_data: Collection[str] = ()
) -> Removed:
    """Remove what ``prepare`` made; one thing that cannot be removed does not stop the others."""
    # What was taken over was not made here: it is not even looked at.
    wanted = replace(wanted, take={})
    found = account.find(wanted, all_parts(wanted))
    steps = plan_unprepare(wanted, found, delete_data)
    ids = {key: there.id for key, there in found.items()}
    removed, left, failed = [], [], []
    for step in steps:
        name = f"{step.part.title} {step.id}"
        if step.do is Do.LEAVE:
            left.append(f"{name}: {step.why}")
            continue
        progress(f"removing {name}")
        try:
            account.remove(step.part.key, wanted, ids)
            removed.append(name)
        except HyperpodError as error:
            failed.append(f"{name}: {error.message}")
    return Removed(tuple(removed), tuple(left), tuple(failed))
