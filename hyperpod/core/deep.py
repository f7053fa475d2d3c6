"""Deep checks: who is measured against whom, and what the figures say of whom. Only computes.

Owns the rounds of pairs and the rules by which one node or one link is named. What runs on the nodes is in
``hyperpod.deep``; who starts it, in ``controller.deep``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log
from statistics import median, quantiles

from hyperpod.core.finding import Action, Finding, Severity

CHECK = "deep"

DCGM_LIMITS_S = {1: 90.0, 2: 600.0, 3: 2400.0, 4: 9000.0}
"""By level of ``dcgmi diag``, which takes seconds, about 2 minutes, a quarter of an hour, and up to 2 hours."""


class Kind(StrEnum):
    """What is checked; the words of ``OnStartDeepHealthChecks``."""

    STRESS = "InstanceStress"
    CONNECTIVITY = "InstanceConnectivity"


@dataclass(frozen=True)
class Measured:
    """The network between two nodes. ``failure`` says why there are no figures."""

    bandwidth_mb_s: float = 0.0
    latency_us: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Outcome:
    """One test of one node. ``value`` is in ``unit``; more is better."""

    test: str
    is_right: bool
    value: float | None = None
    unit: str = ""
    detail: str = ""


Pair = tuple[str, str]


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return rounds of disjoint pairs in which every node meets every other exactly once.

    n - 1 rounds for an even number of nodes, n for an odd one (each round one node rests). The pairs of a round run at
    the same time, so each node has its whole link to itself; the first of a pair serves.

    Source: the circle method of round-robin tournaments.
    """
    ring: list[str | None] = list(nodes)
    if len(ring) % 2:
        ring.append(None)
    count = len(ring)
    out = []
    for number in range(count - 1):
        pairs = [(ring[i], ring[count - 1 - i]) for i in range(count // 2)]
        # Alternated, so that no node always serves.
        turned = [(a, b) if (number + i) % 2 == 0 else (b, a) for i, (a, b) in enumerate(pairs)]
        out.append([(a, b) for a, b in turned if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return out if count > 1 else []


def bad_pairs(measured: Mapping[Pair, Measured], tolerance: float) -> dict[Pair, str]:
    """Return the pairs that failed or are slow against the median of all, each with what is wrong.

    Args:
        measured: By pair of nodes; each pair in one order.
        tolerance: 0.3: a link at 70 % of the median passes.
    """
    good = [m for m in measured.values() if not m.failure]
    if not good:
        return {}
    usual = _usual(good, tolerance)
    return {pair: why for pair, m in measured.items() if (why := _why_bad(m, usual))}


@dataclass(frozen=True)
class _Usual:
    """What is usual among the pairs, and from where on a figure is not."""

    bandwidth: float
    least_bandwidth: float
    latency: float
    most_latency: float


def _usual(good: Sequence[Measured], tolerance: float) -> _Usual:
    bandwidths, latencies = [m.bandwidth_mb_s for m in good], [m.latency_us for m in good]
    bandwidth, latency = median(bandwidths), median(latencies)
    noise, jitter = _spread(bandwidths), _spread([1 / max(value, 1e-9) for value in latencies])
    return _Usual(
        bandwidth,
        min(bandwidth * (1 - tolerance), bandwidth / noise),
        latency,
        # A few microseconds more are the scheduler's, not the network's.
        max(3 * latency, latency * jitter, latency + 200),
    )


def _spread(values: Sequence[float]) -> float:
    """Return by which factor a figure is off that differs from the others as chance hardly makes it: four sigma.

    Machines with other work, and links that are shared, give figures that scatter; there a link is slow only when it
    is out of their range. The scatter is read off the better side (from the 75th to the 90th percentile of the
    logarithms, which is 0.607 sigma), so that one bad node of four does not hide itself.
    """
    if len(values) < 3:
        return 1.0
    tenths = quantiles([log(max(value, 1e-9)) for value in values], n=20, method="inclusive")
    return exp(min(50.0, 4 * (tenths[17] - tenths[14]) / 0.607))


def better(first: Measured, second: Measured) -> Measured:
    """Return the better of two measurements of a pair: what is in the way for a moment is no fault of the link."""
    if first.failure or second.failure:
        return second if first.failure else first
    return Measured(max(first.bandwidth_mb_s, second.bandwidth_mb_s), min(first.latency_us, second.latency_us))


def judge_pairs(measured: Mapping[Pair, Measured], tolerance: float) -> dict[str, list[Finding]]:
    """Say which nodes or links are slow or cut, by node.

    A pair is bad when it failed, or its bandwidth is more than ``tolerance`` (a share) below the median of all and out
    of the range in which the figures scatter, or its latency is so, above three times the median. A node is named when
    most of its pairs are bad and at least two of them: then its pairs are explained and accuse nobody else. What is
    left bad is a link, told at both its ends as WARN. Only a node that reaches nobody while others reach each other is
    FATAL: figures of one method alone do not drain.

    Args:
        measured: By pair of nodes; each pair in one order.
        tolerance: 0.3: a link at 70 % of the median passes.
    """
    bad = bad_pairs(measured, tolerance)
    if not bad:
        return {}
    good = [m for m in measured.values() if not m.failure]
    usual = _usual(good, tolerance)
    of_node: dict[str, list[Pair]] = {}
    for pair in measured:
        for node in pair:
            of_node.setdefault(node, []).append(pair)
    found: dict[str, list[Finding]] = {}
    explained: set[Pair] = set()
    # The worst first: a node that is slow with everybody makes all others look a little slow.
    shares = {node: sum(1 for p in pairs if p in bad) / len(pairs) for node, pairs in of_node.items()}
    for node in sorted(of_node, key=lambda n: (-shares[n], n)):
        own = [pair for pair in of_node[node] if pair in bad and pair not in explained]
        if len(own) < 2 or len(own) * 2 <= len([p for p in of_node[node] if p not in explained]):
            continue
        explained |= set(of_node[node])
        found.setdefault(node, []).append(_node_finding(node, own, of_node[node], measured, usual))
    for pair, why in sorted(bad.items()):
        if pair in explained:
            continue
        for node, other in (pair, pair[::-1]):
            text = f"the link between {node} and {other} {why}"
            found.setdefault(node, []).append(_finding("LinkSlow", Severity.WARN, text, device=other))
    return found


def _why_bad(m: Measured, usual: _Usual) -> str:
    if m.failure:
        return f"failed: {m.failure}"
    if m.bandwidth_mb_s < usual.least_bandwidth:
        return f"carries {m.bandwidth_mb_s:.0f} MB/s, the median is {usual.bandwidth:.0f}"
    if m.latency_us > usual.most_latency:
        return f"takes {m.latency_us:.0f} us there and back, the median is {usual.latency:.0f}"
    return ""


def _node_finding(
    node: str,
    bad: Sequence[Pair],
    pairs: Sequence[Pair],
    measured: Mapping[Pair, Measured],
    usual: _Usual,
) -> Finding:
    failed = [pair for pair in bad if measured[pair].failure]
    if len(failed) == len(pairs):
        text = f"{node} reaches none of {len(pairs)} others, which reach each other: {measured[failed[0]].failure}"
        return _finding("NetworkCut", Severity.FATAL, text, action=Action.DRAIN)
    own = median(measured[pair].bandwidth_mb_s for pair in pairs)
    slow = median(measured[pair].latency_us for pair in pairs)
    text = (
        f"{node} is bad with {len(bad)} of {len(pairs)} others: {own:.0f} MB/s and {slow:.0f} us, "
        f"the medians of all are {usual.bandwidth:.0f} MB/s and {usual.latency:.0f} us"
    )
    return _finding("NetworkSlow", Severity.WARN, text)


def untold(
    kinds: Sequence[Kind], node: str, tests: Sequence[Outcome], measured: Mapping[Pair, Measured], failure: str = ""
) -> dict[Kind, str]:
    """Return of which kinds a deep check can tell nothing about a node, each with the reason.

    Nothing measured is not health; it is no fault of the node either. Of two nodes whose only link fails nobody knows
    which one is ill, and where no link at all could be measured there is nothing to compare with.

    Args:
        kinds: Those that were to be checked on it.
        node: Its name.
        tests: What its programs found; tests that do not exist on the machine left out.
        measured: All pairs of the run.
        failure: What the node's program said where it could not run.
    """
    found = {}
    own = [m for pair, m in measured.items() if node in pair]
    if Kind.STRESS in kinds and not any(outcome.test != "all_reduce" for outcome in tests):
        found[Kind.STRESS] = f"no test could be run{': ' if failure else ''}{failure}"
    if Kind.CONNECTIVITY in kinds:
        if not own:
            found[Kind.CONNECTIVITY] = "there was no other node to measure with"
        elif all(m.failure for m in measured.values()):
            found[Kind.CONNECTIVITY] = f"none of {len(measured)} links could be measured: {own[0].failure}"
    return found


def untold_finding(kind: Kind, why: str) -> Finding:
    """Return the finding of a check that could not tell: people see it, and it drains nobody."""
    return _finding("DeepUnknown", Severity.UNKNOWN, f"{kind.value} could not tell: {why}", device=kind.value)


_WRONG = {
    "memory_pattern": ("MemoryCorrupt", Action.REPLACE),
    "cpu_numeric": ("CpuCorrupt", Action.REPLACE),
    "disk_checksum": ("DiskCorrupt", Action.REPLACE),
    "all_reduce": ("CollectiveFailed", Action.NONE),
    "dcgm": ("DcgmFailure", Action.REBOOT),
}
"""What a wrong answer of a test means. A wrong product of matrices is ``ComputeCorrupt``: REPLACE."""

_SLOW = {
    "memory_bandwidth": ("MemorySlow", 0.3),
    "disk_write": ("DiskSlow", 0.5),
    "disk_read": ("DiskSlow", 0.5),
    "all_reduce": ("CollectiveSlow", 0.5),
}
"""Tests whose figures are compared within the run: the code, and which share below the median is too much.
Matrix products: ``ComputeSlow``, a tenth."""


def judge_tests(results: Mapping[str, Sequence[Outcome]]) -> dict[str, list[Finding]]:
    """Say which nodes gave wrong answers (hard, FATAL) and which are slower than the others (WARN), by node.

    Slowness is told only where at least three nodes were measured: of two that differ nobody knows which one is ill.
    An all-reduce fails on all nodes when it fails on one, so it accuses nobody by itself.
    """
    found: dict[str, list[Finding]] = {}
    values: dict[tuple[str, str], dict[str, float]] = {}
    for node, tests in results.items():
        for outcome in tests:
            if not outcome.is_right:
                found.setdefault(node, []).append(_wrong(outcome))
            elif outcome.value is not None and _slow_rule(outcome.test):
                values.setdefault((outcome.test, outcome.unit), {})[node] = outcome.value
    for (test, unit), by_node in sorted(values.items()):
        code, share = _slow_rule(test) or ("", 0.0)
        middle = median(by_node.values())
        for node, value in sorted(by_node.items()):
            if len(by_node) >= 3 and value < middle * (1 - share):
                text = f"{node}: {test} gives {value:.3g} {unit}, the median of {len(by_node)} nodes is {middle:.3g}"
                found.setdefault(node, []).append(_finding(code, Severity.WARN, text, device=test))
    return found


def _slow_rule(test: str) -> tuple[str, float] | None:
    return ("ComputeSlow", 0.1) if test.startswith("matmul") else _SLOW.get(test)


def _wrong(outcome: Outcome) -> Finding:
    code, action = _WRONG.get(outcome.test, ("ComputeCorrupt", Action.REPLACE))
    text = f"{outcome.test}: {outcome.detail or 'a wrong answer'}"
    if action is Action.NONE:
        return _finding(code, Severity.WARN, text, device=outcome.test)
    return Finding(CHECK, code, Severity.FATAL, text, action, device=outcome.test, is_hard=True)


def _finding(code: str, severity: Severity, text: str, *, action: Action = Action.NONE, device: str = "") -> Finding:
    return Finding(CHECK, code, severity, text, action, device=device)
