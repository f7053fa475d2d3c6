"""Machines that users exclude: who counts, what is chance, and what is a choice of hardware."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.exclusions import Exclusion, Shunned, complained_of, find_shunned
from hyperpod.core.offenders import WINDOW, Exposure
from tests.core.worlds import NOW

DAY = timedelta(days=1)
WORKERS = [f"worker-{n}" for n in range(1, 21)]


@pytest.mark.parametrize(
    ("excluded", "workers", "expected"),
    [
        (["worker-3"], WORKERS, ["worker-3"]),
        (["worker-3", "worker-3", "worker-1"], WORKERS, ["worker-1", "worker-3"]),
        (WORKERS[:5], WORKERS, sorted(WORKERS[:5])),
        (WORKERS[:6], WORKERS, []),
        (["old-1", "old-2"], WORKERS, []),
        (["worker-1", "old-1"], WORKERS[:2], ["worker-1"]),
        (["worker-1", "worker-2"], WORKERS[:2], []),
        ([], WORKERS, []),
    ],
    ids=["one", "twice", "a quarter", "more than a quarter", "unknown ones", "one of two", "all", "none"],
)
def test_a_list_complains_of_the_nodes_it_names_unless_they_are_a_large_part_of_the_cluster(
    excluded: list[str], workers: list[str], expected: list[str]
) -> None:
    assert list(complained_of(excluded, workers)) == expected


def fleet(machines: int = 20, days: float = 28.0) -> list[Exposure]:
    return [Exposure(f"i-{n}", f"worker-{n}", NOW - DAY * days, NOW) for n in range(1, machines + 1)]


def by(machine: int, *uids: int, age: timedelta = DAY) -> list[Exclusion]:
    return [Exclusion(f"i-{machine}", f"worker-{machine}", uid, NOW - age) for uid in uids]


def users(count: int, age: timedelta = DAY) -> dict[int, datetime]:
    return {uid: NOW - age for uid in range(1, count + 1)}


EVERYBODYS = [e for machine in range(1, 21) for e in by(machine, 1, 2, 3)]
CASES: dict[str, tuple[list[Exclusion], int, list[int]]] = {
    "three of ten": (by(4, 1, 2, 3), 10, [4]),
    "two are never enough": (by(4, 1, 2), 10, []),
    "one user many times": (by(4, 1, 1, 1) + by(4, 1, age=DAY * 3), 10, []),
    "three of a thousand, where nobody excludes another one": (by(4, 1, 2, 3), 1000, [4]),
    "a few more than the others have": ([*EVERYBODYS, *by(4, 4, 5)], 1000, []),
    "each machine has its three": (EVERYBODYS, 10, []),
    "all users, where others have three": ([*EVERYBODYS, *by(4, 4, 5, 6, 7, 8, 9, 10, 11, 12)], 12, [4]),
    "two bad ones": (by(4, 1, 2, 3, 4, 5) + by(9, 1, 2, 3, 4, 5), 10, [4, 9]),
    "older than the window": (by(4, 1, 2, 3, age=WINDOW + DAY), 10, []),
    "a machine that is not known": (by(77, 1, 2, 3), 10, []),
}


@pytest.mark.parametrize(("told", "count", "shunned"), CASES.values(), ids=list(CASES))
def test_a_machine_is_shunned_when_more_users_exclude_it_than_chance_allows(
    told: list[Exclusion], count: int, shunned: list[int]
) -> None:
    found = find_shunned(told, users(count), fleet(), NOW)
    assert sorted(s.machine for s in found if s.is_significant) == sorted(f"i-{n}" for n in shunned)


def test_only_users_count_that_were_there_while_the_machine_was() -> None:
    new = [*fleet(19), Exposure("i-20", "worker-20", NOW - DAY * 2, NOW)]
    seen = users(4) | {uid: NOW - DAY * 20 for uid in range(5, 11)}
    (first,) = find_shunned(by(20, 1, 2, 3), seen, new, NOW)
    (second,) = find_shunned(by(4, 1, 2, 3), seen, new, NOW)
    assert (first.users, first.of_users, second.of_users) == (3, 4, 10)
    assert first.expected < second.expected


def test_the_sentence_has_the_figures() -> None:
    told = Shunned("i-1", "worker-1", 4, 9, 0.5, 0.0016, True).sentence
    assert told == "4 of 9 users exclude it where 0.50 are expected (chance 0.002)"


exclusions = st.lists(
    st.builds(
        Exclusion,
        machine=st.sampled_from(["i-1", "i-2", "i-3", "i-99"]),
        node=st.just("worker-1"),
        uid=st.integers(1, 6),
        at=st.integers(0, 40).map(lambda d: NOW - DAY * d),
    ),
    max_size=20,
)


@given(exclusions, st.randoms())
def test_the_order_does_not_matter_and_no_machine_has_more_users_than_there_were(
    told: list[Exclusion], random: st.DrawFn
) -> None:
    first = find_shunned(told, users(6), fleet(3), NOW)
    random.shuffle(told)  # type: ignore[attr-defined]
    assert find_shunned(told, users(6), fleet(3), NOW) == first
    assert all(0 < s.users <= s.of_users <= 6 and 0 <= s.tail <= 1 for s in first)
    assert [s.tail for s in first] == sorted(s.tail for s in first)
