from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.deep import Kind, Measured, Outcome, Pair, better, judge_pairs, judge_tests, rounds, untold
from hyperpod.core.finding import Action, Severity

NODES = [f"worker-{n}" for n in range(1, 17)]


@given(st.integers(0, 40))
def test_every_node_meets_every_other_once_and_never_two_at_a_time(count: int) -> None:
    nodes = [f"n{n}" for n in range(count)]
    plan = rounds(nodes)
    met = Counter(frozenset(pair) for pairs in plan for pair in pairs)
    assert met == Counter(frozenset(pair) for pair in itertools.combinations(nodes, 2))
    for pairs in plan:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy))
    if count > 1:
        assert len(plan) == count - 1 + count % 2


def _all_good(nodes: list[str] = NODES) -> dict[Pair, Measured]:
    return {pair: Measured(1000.0, 50.0) for pairs in rounds(nodes) for pair in pairs}


def _found(measured: dict[Pair, Measured]) -> list[tuple[str, str, str, str]]:
    found = judge_pairs(measured, 0.3)
    return sorted((n, f.code, f.severity.name, f.device) for n, fs in found.items() for f in fs)


def test_equal_links_accuse_nobody() -> None:
    assert _found(_all_good()) == []


def test_noise_below_the_tolerance_accuses_nobody() -> None:
    measured = {pair: Measured(1000.0 - 7 * i % 290, 50.0 + i % 60) for i, pair in enumerate(_all_good())}
    assert _found(measured) == []


def _scattered(seed: int, nodes: list[str] = NODES) -> dict[Pair, Measured]:
    """Figures as of machines that do other things too: within a factor of two, mostly."""
    chance = random.Random(seed)
    return {
        p: Measured(1000 * chance.lognormvariate(0, 0.35), 80 * chance.lognormvariate(0, 0.35))
        for p in _all_good(nodes)
    }


@pytest.mark.parametrize("seed", range(20))
def test_figures_that_scatter_name_nobody(seed: int) -> None:
    named = [finding for finding in _found(_scattered(seed)) if finding[1] == "NetworkSlow"]
    assert named == []


@pytest.mark.parametrize("seed", range(20))
def test_a_very_slow_node_is_named_among_figures_that_scatter(seed: int) -> None:
    measured = {p: Measured(2.5, m.latency_us) if "worker-5" in p else m for p, m in _scattered(seed).items()}
    assert [(node, code) for node, code, _, _ in _found(measured) if code == "NetworkSlow"] == [
        ("worker-5", "NetworkSlow")
    ]


@pytest.mark.parametrize("count", range(4, 17))
def test_one_slow_node_of_few_does_not_hide_itself(count: int) -> None:
    nodes = NODES[:count]
    measured = {p: Measured(300.0, 50.0) if "worker-2" in p else m for p, m in _all_good(nodes).items()}
    assert _found(measured) == [("worker-2", "NetworkSlow", "WARN", "")]


def test_one_slow_link_is_named_at_both_its_ends() -> None:
    measured = _all_good()
    pair = next(p for p in measured if set(p) == {"worker-3", "worker-9"})
    measured[pair] = Measured(200.0, 50.0)
    assert _found(measured) == [
        ("worker-3", "LinkSlow", "WARN", "worker-9"),
        ("worker-9", "LinkSlow", "WARN", "worker-3"),
    ]


def test_a_node_that_is_slow_with_all_others_is_named_and_nobody_else() -> None:
    measured = {p: Measured(300.0, 50.0) if "worker-5" in p else m for p, m in _all_good().items()}
    assert _found(measured) == [("worker-5", "NetworkSlow", "WARN", "")]


def test_a_node_that_is_far_from_all_others_is_named() -> None:
    measured = {p: Measured(1000.0, 900.0) if "worker-5" in p else m for p, m in _all_good().items()}
    assert _found(measured) == [("worker-5", "NetworkSlow", "WARN", "")]


def test_two_slow_nodes_are_both_named() -> None:
    measured = {p: Measured(300.0, 50.0) if {"worker-5", "worker-8"} & set(p) else m for p, m in _all_good().items()}
    assert _found(measured) == [("worker-5", "NetworkSlow", "WARN", ""), ("worker-8", "NetworkSlow", "WARN", "")]


def test_a_slow_node_and_a_slow_link_elsewhere_are_told_apart() -> None:
    measured = {p: Measured(300.0, 50.0) if "worker-5" in p else m for p, m in _all_good().items()}
    pair = next(p for p in measured if set(p) == {"worker-1", "worker-2"})
    measured[pair] = Measured(100.0, 50.0)
    assert [(node, code) for node, code, _, _ in _found(measured)] == [
        ("worker-1", "LinkSlow"),
        ("worker-2", "LinkSlow"),
        ("worker-5", "NetworkSlow"),
    ]


def test_only_a_node_that_reaches_nobody_is_drained() -> None:
    measured = {p: Measured(failure="timed out") if "worker-5" in p else m for p, m in _all_good().items()}
    (finding,) = judge_pairs(measured, 0.3)["worker-5"]
    assert (finding.code, finding.severity, finding.action) == ("NetworkCut", Severity.FATAL, Action.DRAIN)
    assert "none of 15 others" in finding.message


def test_when_nothing_works_nobody_is_accused() -> None:
    assert judge_pairs({p: Measured(failure="no route to host") for p in _all_good()}, 0.3) == {}


def test_of_two_nodes_only_the_link_can_be_named() -> None:
    nodes = ["a", "b", "c"]
    measured = _all_good(nodes)
    pair = next(p for p in measured if set(p) == {"a", "b"})
    measured[pair] = Measured(10.0, 50.0)
    assert [(node, code) for node, code, _, _ in _found(measured)] == [("a", "LinkSlow"), ("b", "LinkSlow")]


@given(st.dictionaries(st.sampled_from(NODES), st.floats(1, 1e6), min_size=1))
def test_slow_figures_never_drain(values: dict[str, float]) -> None:
    results = {node: [Outcome("memory_bandwidth", True, value, "GB/s")] for node, value in values.items()}
    found = [f for fs in judge_tests(results).values() for f in fs]
    assert all(f.severity is Severity.WARN and f.action is Action.NONE for f in found)


@pytest.mark.parametrize(
    ("test", "code"),
    [
        ("memory_pattern", "MemoryCorrupt"),
        ("cpu_numeric", "CpuCorrupt"),
        ("matmul_cuda3", "ComputeCorrupt"),
        ("disk_checksum", "DiskCorrupt"),
    ],
)
def test_a_wrong_answer_is_a_hard_fact_about_the_machine(test: str, code: str) -> None:
    (finding,) = judge_tests({"worker-1": [Outcome(test, False, detail="7 instead of 8")]})["worker-1"]
    assert (finding.code, finding.severity, finding.action) == (code, Severity.FATAL, Action.REPLACE)
    assert finding.is_hard
    assert "7 instead of 8" in finding.message


def test_a_failed_diagnostic_of_dcgm_asks_for_a_reboot_first() -> None:
    (finding,) = judge_tests({"worker-1": [Outcome("dcgm", False, detail="GPU 3, pcie: fail")]})["worker-1"]
    assert (finding.code, finding.severity, finding.action) == ("DcgmFailure", Severity.FATAL, Action.REBOOT)


def test_a_failed_all_reduce_accuses_nobody_by_itself() -> None:
    found = judge_tests({n: [Outcome("all_reduce", False, detail="connection closed by peer")] for n in NODES[:4]})
    assert {f.severity for fs in found.values() for f in fs} == {Severity.WARN}


def test_a_node_slower_than_the_others_is_named() -> None:
    results = {n: [Outcome("matmul_cuda0", True, 100.0, "GFLOP/s")] for n in NODES[:4]}
    results["worker-2"] = [Outcome("matmul_cuda0", True, 85.0, "GFLOP/s")]
    assert {n: [f.code for f in fs] for n, fs in judge_tests(results).items()} == {"worker-2": ["ComputeSlow"]}


def test_of_two_different_nodes_nobody_knows_which_is_ill() -> None:
    results = {n: [Outcome("disk_read", True, v, "MB/s")] for n, v in (("a", 10.0), ("b", 1000.0))}
    assert judge_tests(results) == {}


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (Measured(100.0, 50.0), Measured(900.0, 60.0), Measured(900.0, 50.0)),
        (Measured(failure="timed out"), Measured(900.0, 60.0), Measured(900.0, 60.0)),
        (Measured(900.0, 60.0), Measured(failure="timed out"), Measured(900.0, 60.0)),
        (Measured(failure="refused"), Measured(failure="timed out"), Measured(failure="timed out")),
    ],
)
def test_of_two_measurements_the_better_counts(first: Measured, second: Measured, kept: Measured) -> None:
    assert better(first, second) == kept


GOOD, CUT = Measured(1000.0, 50.0), Measured(failure="Connection refused")
RIGHT, SUMS = Outcome("cpu_numeric", True), Outcome("all_reduce", True, 900.0, "MB/s")
UNTOLD_CASES: dict[str, tuple[list[Outcome], dict[Pair, Measured], dict[str, str]]] = {
    "all was measured": ([RIGHT], {("a", "b"): GOOD}, {}),
    "a wrong answer is an answer": ([Outcome("cpu_numeric", False)], {("a", "b"): GOOD}, {}),
    "no program ran": ([], {("a", "b"): GOOD}, {"InstanceStress": "no test could be run: MemoryError"}),
    "an all-reduce is no stress": ([SUMS], {("a", "b"): GOOD}, {"InstanceStress": "no test could be run: MemoryError"}),
    "alone": ([RIGHT], {}, {"InstanceConnectivity": "there was no other node to measure with"}),
    "others were measured, it was not": (
        [RIGHT], {("b", "c"): GOOD}, {"InstanceConnectivity": "there was no other node to measure with"}
    ),
    "the only link": ([RIGHT], {("a", "b"): CUT}, {
        "InstanceConnectivity": "none of 1 links could be measured: Connection refused"}),
    "no link at all": ([RIGHT], {("a", "b"): CUT, ("b", "c"): CUT, ("c", "a"): CUT}, {
        "InstanceConnectivity": "none of 3 links could be measured: Connection refused"}),
    "cut off while others talk is known": ([RIGHT], {("a", "b"): CUT, ("a", "c"): CUT, ("b", "c"): GOOD}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("tests", "measured", "expected"), UNTOLD_CASES.values(), ids=list(UNTOLD_CASES))
def test_what_could_not_be_measured_is_neither_good_nor_bad(
    tests: list[Outcome], measured: dict[Pair, Measured], expected: dict[str, str]
) -> None:
    found = untold(tuple(Kind), "a", tests, measured, "MemoryError")
    assert {kind.value: why for kind, why in found.items()} == expected
    for kind in Kind:
        assert set(untold((kind,), "a", tests, measured, "MemoryError")) <= {kind}
