"""Nodes compared with their own group."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.finding import Action, Severity, Whose
from hyperpod.core.majority import (
    AMOUNTS,
    COUNTS,
    DEFAULTS,
    Counted,
    Limits,
    judge_groups,
    majority_amount,
    majority_value,
)
from tests.core.worlds import NOW, ago

OLD = ago(3600)
MOST_BROKEN, SETTLE = DEFAULTS.most_broken, timedelta(seconds=DEFAULTS.settle_s)


def nodes(
    name: str, *values: str | None, group: str = "worker", since: dict[int, float] | None = None
) -> list[Counted]:
    """Nodes that have counted these values; None: nothing counted."""
    made = []
    for number, value in enumerate(values, 1):
        at = ago((since or {}).get(number, 3600.0))
        inventory = {} if value is None else {name: value}
        made.append(Counted(f"{group}-{number}", group, inventory, f"i-{number}", f"boot-{number}", {name: at}))
    return made


def judged(*members: Counted) -> dict[str, list[str]]:
    found = judge_groups(members, NOW).findings
    return {node: [f"{f.code} {f.severity.name} {f.whose.value}" for f in own] for node, own in found.items()}


FEWER = ["FewerThanGroup FATAL node"]


def test_a_node_with_fewer_gpus_than_its_group_is_drained() -> None:
    found = judge_groups(nodes("gpus", "8", "8", "7", "8"), NOW).findings
    ((finding,),) = found.values()
    assert list(found) == ["worker-3"]
    assert (finding.severity, finding.action, finding.device) == (Severity.FATAL, Action.DRAIN, "gpus")
    assert (finding.instance_id, finding.boot_id, finding.since) == ("i-3", "boot-3", OLD)
    assert finding.message == "gpus is 7 here, 3 of 4 nodes of worker have 8"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (("8", "7"), "two nodes have no majority"),
        (("8", "8", "7", "7"), "half is no majority"),
        (("8", "8", "8", "7", "7", "6"), "half of six is less than 60 %"),
        (("8", None, None, "7"), "who has counted nothing does not vote"),
        (("8", "8", "8"), "all agree"),
        ((None, None, None), "nobody has counted"),
    ],
)
def test_without_a_majority_or_a_difference_nothing_is_said(values: tuple[str | None, ...], why: str) -> None:
    assert judged(*nodes("gpus", *values)) == {}, why


def test_exactly_sixty_percent_are_a_majority() -> None:
    assert judged(*nodes("gpus", "8", "8", "8", "7", "7")) == {"worker-4": FEWER, "worker-5": FEWER}


def test_more_than_the_group_has_is_a_warning() -> None:
    assert judged(*nodes("gpus", "7", "7", "7", "8")) == {"worker-4": ["DiffersFromGroup WARN node"]}


@pytest.mark.parametrize(
    ("name", "usual", "own"), [("gpu_driver", "570.1", "550.2"), ("mtu_ens5", "9001", "1500"), ("governor", "a", "")]
)
def test_what_is_no_count_of_parts_never_drains(name: str, usual: str, own: str) -> None:
    assert judged(*nodes(name, usual, usual, usual, own)) == {"worker-4": ["DiffersFromGroup WARN node"]}


@pytest.mark.parametrize("own", ["", "seven", "-7", "7.5", "٧"])
def test_a_count_that_is_no_number_never_drains(own: str) -> None:
    assert judged(*nodes("gpus", "8", "8", "8", own)) == {"worker-4": ["DiffersFromGroup WARN node"]}


MEMORY: dict[str, tuple[tuple[str, ...], dict[str, list[str]]]] = {
    "a module is missing": (("2063000", "2063100", "1934000", "2062000"), {"worker-3": FEWER}),
    "kernels keep a little for themselves": (("2063000", "2055000", "2048000", "2063104"), {}),
    "exactly the margin": (("100000", "99000", "100000", "100000"), {}),
    "a little more than the margin": (("100000", "98999", "100000", "100000"), {"worker-2": FEWER}),
    "more than the others": (("100000", "200000", "100000"), {"worker-2": ["DiffersFromGroup WARN node"]}),
    "half have been upgraded": (("100000", "100000", "200000", "200000"), {}),
    "three of ten are the site's": (
        ("100",) * 7 + ("50",) * 3, {f"worker-{n}": ["FewerThanGroup WARN site"] for n in (8, 9, 10)}
    ),
    "two nodes have no majority": (("100000", "50000"), {}),
    "one tells no number": (("100000", "100000", "", "100000"), {"worker-3": ["DiffersFromGroup WARN node"]}),
    "nobody tells a number": (("x", "x", "x"), {}),
}  # fmt: skip


@pytest.mark.parametrize(("values", "expected"), MEMORY.values(), ids=list(MEMORY))
def test_a_node_with_less_memory_than_its_group_is_drained(
    values: tuple[str, ...], expected: dict[str, list[str]]
) -> None:
    assert judged(*nodes("memory_mib", *values)) == expected


def test_how_much_memory_may_differ_is_a_limit() -> None:
    members = nodes("memory_mib", "1000", "1000", "960", "1000")
    assert list(judge_groups(members, NOW).findings) == ["worker-3"]
    assert judge_groups(members, NOW, {"worker": Limits(memory_percent=4)}).findings == {}


def test_a_node_that_has_lost_its_only_disk_is_drained() -> None:
    assert judged(*nodes("nvme_disks", "1", "1", "0")) == {"worker-3": FEWER}


def test_several_that_differ_are_the_sites_matter() -> None:
    found = judged(*nodes("efa", *["32"] * 7, "31", "31", "30"))
    assert set(found) == {"worker-8", "worker-9", "worker-10"}
    assert {text for own in found.values() for text in own} == {"FewerThanGroup WARN site"}


def test_a_difference_counts_when_it_has_lasted() -> None:
    fresh = nodes("gpus", "8", "8", "8", "7", since={4: SETTLE.total_seconds() - 1})
    result = judge_groups(fresh, NOW)
    assert (dict(result.findings), result.next_at) == ({}, NOW + timedelta(seconds=1))
    assert list(judge_groups(fresh, NOW + timedelta(seconds=1)).findings) == ["worker-4"]


def test_groups_are_not_compared_with_each_other() -> None:
    assert judged(*nodes("gpus", "8", "8", "8"), *nodes("gpus", "4", "4", "4", group="small")) == {}


def test_a_node_may_differ_in_several_things() -> None:
    usual = {"gpus": "8", "gpu_driver": "570"}
    made = [Counted(f"w-{n}", "w", usual, since=dict.fromkeys(usual, OLD)) for n in range(3)]
    odd = Counted("w-9", "w", {"gpus": "7", "gpu_driver": "550"}, since=dict.fromkeys(usual, OLD))
    assert judged(*made, odd) == {"w-9": ["DiffersFromGroup WARN node", "FewerThanGroup FATAL node"]}


# --- limits of one's own ----------------------------------------------------------------------------------------


FATAL, WARNS = "FewerThanGroup FATAL node", "FewerThanGroup WARN site"
LIMITS: dict[str, tuple[Limits, tuple[str, ...], dict[str, str]]] = {
    "the defaults": (Limits(), ("8", "8", "8", "7"), {"worker-4": FATAL}),
    "more nodes are wanted": (Limits(min_nodes=5), ("8", "8", "8", "7"), {}),
    "two are enough where the user says so": (Limits(min_nodes=2, majority=0.51), ("8", "8"), {}),
    "a larger majority": (Limits(majority=0.8), ("8", "8", "8", "7"), {}),
    "a larger majority that is there": (Limits(majority=0.75), ("8", "8", "8", "7"), {"worker-4": FATAL}),
    "one only may be broken": (
        Limits(most_broken=1), ("8", "8", "8", "8", "7", "7"), {"worker-5": WARNS, "worker-6": WARNS}
    ),
    "three may": (Limits(most_broken=3), ("8",) * 7 + ("7",) * 3, dict.fromkeys(
        ("worker-8", "worker-9", "worker-10"), FATAL)),
    "it must last longer than it has": (Limits(settle_s=3601), ("8", "8", "8", "7"), {}),
    "this may differ": (Limits(ignore=("efa", "gp*")), ("8", "8", "8", "7"), {}),
    "something else may": (Limits(ignore=("efa", "gpus_*")), ("8", "8", "8", "7"), {"worker-4": FATAL}),
}  # fmt: skip


@pytest.mark.parametrize(("own", "values", "expected"), LIMITS.values(), ids=list(LIMITS))
def test_a_group_has_limits_of_its_own(own: Limits, values: tuple[str, ...], expected: dict[str, str]) -> None:
    members = [*nodes("gpus", *values), *nodes("gpus", "8", "8", "7", group="other")]
    found = judge_groups(members, NOW, {"worker": own}).findings
    told = {node: [f"{f.code} {f.severity.name} {f.whose.value}" for f in all_of] for node, all_of in found.items()}
    assert told == {**{node: [text] for node, text in expected.items()}, "other-3": FEWER}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"min_nodes": 1}, "min_nodes"),
        ({"min_nodes": 2.5}, "min_nodes"),
        ({"min_nodes": True}, "min_nodes"),
        ({"majority": 0.5}, "majority"),
        ({"majority": 1.01}, "majority"),
        ({"majority": "most"}, "majority"),
        ({"most_broken": 0}, "most_broken"),
        ({"settle_s": -1}, "settle_s"),
        ({"settle_s": float("nan")}, "settle_s"),
        ({"memory_percent": -1}, "memory_percent"),
        ({"memory_percent": "1"}, "memory_percent"),
        ({"memory_percent": 51}, "memory_percent"),
        ({"ignore": "gpus"}, "ignore"),
        ({"ignore": [3]}, "ignore"),
        ({"ignore": [""]}, "ignore"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused(data: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Limits.from_dict(data)


def test_limits_are_found_among_a_checks_other_settings() -> None:
    assert Limits.from_dict({"mode": "observe", "most_broken": 4, "ignore": ["efa"]}) == Limits(
        most_broken=4, ignore=("efa",)
    )


# --- properties -----------------------------------------------------------------------------------------------------

VALUES = st.lists(st.sampled_from(["8", "7", "6", ""]), max_size=12)
NAMES = st.sampled_from(["gpus", "gpu_driver", "memory_mib"])


@given(NAMES, VALUES)
def test_the_usual_value_is_never_at_fault(name: str, values: list[str]) -> None:
    usual = majority_amount(values) if name in AMOUNTS else majority_value(values)
    found = judge_groups(nodes(name, *values), NOW).findings
    for number, value in enumerate(values, 1):
        assert (f"worker-{number}" in found) == (usual is not None and value != usual)


@given(NAMES, VALUES)
def test_fatal_means_few_broken_machines_and_a_clear_majority(name: str, values: list[str]) -> None:
    found = judge_groups(nodes(name, *values), NOW).findings
    fatal = [node for node, own in found.items() if any(f.severity is Severity.FATAL for f in own)]
    assert len(fatal) <= MOST_BROKEN
    if fatal:
        assert name in COUNTS | AMOUNTS
        assert len(values) >= 3
        assert Counter(values).most_common(1)[0][1] * 10 >= len(values) * 6


@given(NAMES, VALUES, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(name: str, values: list[str], random: object) -> None:
    members = nodes(name, *values)
    shuffled = list(members)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert judge_groups(members, NOW).findings == judge_groups(shuffled, NOW).findings


@given(VALUES, st.text(max_size=5))
def test_a_finding_of_the_site_never_drains(values: list[str], name: str) -> None:
    for own in judge_groups(nodes(name, *values), NOW).findings.values():
        assert all(f.severity is Severity.WARN for f in own if f.whose is Whose.SITE)
