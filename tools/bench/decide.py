"""How long one decision takes over 1,000 nodes and 500 jobs."""

from __future__ import annotations

from hyperpod.core.policy import RepairPolicy, ResumePolicy
from tests.bench.bench_decide import measure, quiet, troubled
from tools.bench.report import Measure


def run() -> list[Measure]:
    """Measure a quiet world and one in trouble."""
    repair = RepairPolicy(max_parallel_repaired=20, spare_count={"worker": 20})
    return [
        Measure(f"decide, 1,000 nodes and 500 jobs, {name}", "ms", measure(world, repair, ResumePolicy()), goal="≤ 10")
        for name, world in (("quiet", quiet()), ("in trouble", troubled()))
    ]
