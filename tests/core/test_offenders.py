"""Machines that fail more often than chance allows, and how long it is held against them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperpod.core.offenders import (
    WINDOW,
    Exposure,
    Fault,
    find_offenders,
    fleet_rate,
    identity_of,
    is_same_fault,
    poisson_tail,
    significant,
)
from hyperpod.core.suspicion import MEMORY, Mark, suspicion_by_machine, suspicion_of
from tests.core.worlds import NOW, ago, machine

DAY = 86_400.0
GPU = "GPU-1b2c3d4e-0000-1111-2222-333344445555"


def fleet(size: int, days: float = 28) -> list[Exposure]:
    return [Exposure(machine(i), f"worker-{i}", ago(days * DAY), NOW) for i in range(1, size + 1)]


def faults(number: int, count: int, **fields: object) -> list[Fault]:
    """So many faults of one machine, some days apart."""
    return [
        Fault(str(fields.get("identity", machine(number))), machine(number), f"worker-{number}", "xid/79", ago(d * DAY))
        for d in (1 + 5 * k for k in range(count))
    ]


def usual(size: int, *, without: int) -> list[Fault]:
    """What a fleet suffers in 28 days at 6.5 faults per 1,000 node-days, on different machines."""
    count = round(size * 28 * 6.5 / 1000)
    return [f for i in range(1, count + 1) if i != without for f in faults(i, 1)]


@pytest.mark.parametrize(
    ("count", "mean", "tail"),
    [
        (0, 1.0, 1.0),
        (1, 0.182, 0.16640),
        (2, 0.182, 0.014673),
        (4, 0.182, 3.954e-5),
        (3, 0.0, 0.0),
        (50, 2.0, 5.4e-51),
        (1, 40.0, 1.0),
    ],
)
def test_the_tail_of_the_poisson_distribution(count: int, mean: float, tail: float) -> None:
    assert poisson_tail(count, mean) == pytest.approx(tail, rel=0.02)


@pytest.mark.parametrize(("count", "is_one"), [(1, False), (2, False), (3, False), (4, True), (5, True)])
def test_about_four_faults_in_28_days_are_significant_in_a_fleet_of_2000(count: int, is_one: bool) -> None:
    told = [*usual(2000, without=1999), *faults(1999, count)]
    found = find_offenders(told, fleet(2000), NOW)
    mine = next(o for o in found if o.machine == machine(1999))
    assert mine.is_significant is is_one
    assert [o.node for o in found if o.is_significant] == (["worker-1999"] if is_one else [])


def test_the_reason_names_the_figures() -> None:
    [mine] = find_offenders(faults(1, 4), fleet(100), NOW)
    assert mine.sentence.startswith("4 faults in 28 days where 0.")
    assert "xid/79" in mine.sentence


def test_where_everybody_fails_nobody_is_an_offender() -> None:
    told = [f for i in range(1, 101) for f in faults(i, 4)]
    assert not [o for o in find_offenders(told, fleet(100), NOW) if o.is_significant]


def test_the_same_faults_in_a_shorter_time_say_more() -> None:
    short = [Exposure(machine(1), "worker-1", ago(3 * DAY), NOW), *fleet(100)[1:]]
    told = [Fault(machine(1), machine(1), "worker-1", f"xid/{k}", ago(k * 0.5 * DAY)) for k in (1, 2, 3)]
    [young], [old] = find_offenders(told, short, NOW), find_offenders(told, fleet(100), NOW)
    assert young.tail < old.tail


def test_faults_older_than_the_window_are_forgotten() -> None:
    told = [Fault(machine(1), machine(1), "worker-1", "xid/79", NOW - WINDOW * 1.01)] * 5
    assert find_offenders(told, fleet(10), NOW) == ()
    gone = Exposure(machine(50), "worker-50", ago(90 * DAY), ago(60 * DAY))
    assert find_offenders(faults(1, 2), [*fleet(10), gone], NOW) == find_offenders(faults(1, 2), fleet(10), NOW)


def test_a_gpu_is_known_by_its_own_number_in_whatever_machine_it_is() -> None:
    assert identity_of(f"gpu 3 {GPU}", machine(1)) == GPU
    assert identity_of("0000:9b:00", machine(1)) == machine(1)
    assert identity_of("", machine(1)) == machine(1)
    told = [*faults(1, 2, identity=GPU), *[Fault(GPU, machine(9), "worker-1", "xid/79", ago(60 + k)) for k in (1, 2)]]
    [mine] = find_offenders(told, [*fleet(100), Exposure(machine(9), "worker-1", ago(DAY), NOW)], NOW)
    assert (mine.faults, mine.machine) == (4, machine(9))


def test_a_replaced_machine_begins_anew() -> None:
    found = find_offenders(faults(1, 5), fleet(100), NOW)
    assert list(significant(found, {"worker-1": machine(1)})) == [machine(1)]
    assert significant(found, {"worker-1": machine(77)}) == {}


def test_one_fault_told_twice_is_one() -> None:
    first, soon, later = (Fault("a", "a", "n", "xid/79", ago(s)) for s in (7200, 4000, 0))
    assert is_same_fault(first, soon)
    assert not is_same_fault(first, later)
    assert not is_same_fault(first, Fault("a", "a", "n", "xid/48", ago(7200)))


def test_the_fleets_own_rate_takes_over_from_the_prior() -> None:
    assert fleet_rate(0, 0) == pytest.approx(0.0065)
    assert fleet_rate(1000, 1_000_000) == pytest.approx(0.001, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), max_size=20), st.randoms())
def test_the_order_of_faults_does_not_matter_and_tails_are_probabilities(
    rows: list[tuple[int, int]], random: object
) -> None:
    told = [Fault(machine(i), machine(i), f"worker-{i}", "xid/79", ago(d * DAY)) for i, d in rows]
    found = find_offenders(told, fleet(5), NOW)
    random.shuffle(told)  # type: ignore[attr-defined]
    assert find_offenders(told, fleet(5), NOW) == found
    assert all(0.0 <= o.tail <= 1.0 for o in found)
    assert all(o.faults >= 3 for o in found if o.is_significant)


# --- suspicion --------------------------------------------------------------------------------------------------


def mark(job_id: int, weight: float = 0.5, age: timedelta = timedelta(0), number: int = 1) -> Mark:
    return Mark(machine(number), f"worker-{number}", job_id, 1, weight, NOW - age)


def test_suspicion_adds_up_over_jobs_and_fades_in_28_days() -> None:
    found = suspicion_by_machine([mark(1), mark(2), mark(3, age=MEMORY / 2), mark(4, age=MEMORY * 2)], NOW)
    assert suspicion_of(found, machine(1)) == pytest.approx(1.25)
    assert suspicion_of(found, machine(1), except_job=1) == pytest.approx(0.75)
    assert suspicion_of(found, machine(2)) == 0.0
