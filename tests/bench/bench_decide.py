"""How long one decision takes over 1,000 nodes and 500 jobs. Run: ``python -m tests.bench.bench_decide``.

Two worlds: a quiet one, and one in which nodes are silent, ill and in repair and jobs fail. The figure that counts
is ``decide_repair`` and ``decide_jobs`` together, as a tick runs them. Raw figures go to ``bench-results/``.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

from hyperpod.core.job import JobStatus
from hyperpod.core.node import InstanceStatus, NodeView, RepairStatus
from hyperpod.core.policy import RepairPolicy, ResumePolicy
from hyperpod.core.repair import decide_repair
from hyperpod.core.resume import decide_jobs
from hyperpod.core.snapshot import JobFacts, Snapshot
from tests.core.worlds import ago, attempt, dead, exit_of, fatal, in_repair, job, machine, node, record, snapshot

NODES, SPARES, JOBS, REPEATS, GOAL_MS = 1000, 20, 500, 100, 10.0
RESULTS = Path("bench-results")


def quiet() -> Snapshot:
    """Everybody works; each job runs on two nodes, but for those that wait because the last nodes are spares."""
    return with_jobs(tuple(well(i) for i in range(1, NODES + 1)))


def well(i: int) -> NodeView:
    """A node at work, or one of the spares at the end."""
    if i > NODES - SPARES:
        return node(i, in_partition=False, in_spares=True)
    return node(i, jobs=((i - 1) // 2,))


def troubled() -> Snapshot:
    """One node in twenty is silent, ill, off or in repair; one job in ten has a failed task, some have ended."""
    kinds = (
        lambda i: dead(i, jobs=((i - 1) // 2,)),
        lambda i: node(i, findings=(fatal(f"Xid{i}"),), jobs=((i - 1) // 2,)),
        lambda i: in_repair(i, RepairStatus.REPLACING),
        lambda i: in_repair(i, RepairStatus.FENCING, {"instance_status": InstanceStatus.STOPPED}),
    )
    views = tuple(kinds[i // 20 % 4](i) if i % 20 == 0 else well(i) for i in range(1, NODES + 1))
    world = with_jobs(views)
    jobs = tuple(replace(j, status=JobStatus.FAILED, exit_code=1) if j.job_id % 50 == 0 else j for j in world.jobs)
    facts = {
        j.job_id: JobFacts(exits=tuple(exit_of(rank, job_id=j.job_id) for rank in range(16)))
        for j in jobs
        if j.job_id % 10 == 0
    }
    return replace(world, jobs=jobs, facts=facts)


def with_jobs(views: tuple[NodeView, ...]) -> Snapshot:
    """Add 500 armed jobs over two nodes each, in their first attempt; the last ones wait for nodes."""
    names = [(f"worker-{2 * i + 1}", f"worker-{2 * i + 2}") for i in range(JOBS)]
    running = (NODES - SPARES) // 2
    jobs = tuple(job(i, nodes=pair) if i < running else job(i, JobStatus.PENDING) for i, pair in enumerate(names))
    records = {
        i: record(attempt(nodes=pair, instance_ids=(machine(2 * i + 1), machine(2 * i + 2))), job_id=i)
        if i < running
        else record(job_id=i)
        for i, pair in enumerate(names)
    }
    return snapshot(*views, jobs=jobs, records=records, started_at=ago(7200))


def measure(world: Snapshot, repair: RepairPolicy, resume: ResumePolicy) -> list[float]:
    """Return the milliseconds of each repetition; every one gets a snapshot of its own, as a tick does."""
    took = []
    for _ in range(REPEATS):
        fresh = replace(world)
        start = time.perf_counter()
        decide_repair(fresh, repair)
        decide_jobs(fresh, resume)
        took.append((time.perf_counter() - start) * 1000)
    return took


def main() -> None:
    """Measure both worlds, print one line each, and write the raw figures."""
    repair = RepairPolicy(max_parallel_repaired=20, spare_count={"worker": SPARES})
    result = {"nodes": NODES, "jobs": JOBS, "goal_ms": GOAL_MS, "python": platform.python_version(), "worlds": {}}
    for name, world in (("quiet", quiet()), ("troubled", troubled())):
        took = measure(world, repair, ResumePolicy())
        p95 = statistics.quantiles(took, n=20)[18]
        print(f"decide {name}: median {statistics.median(took):.2f} ms, p95 {p95:.2f} ms, n={len(took)}")
        result["worlds"][name] = {"median_ms": statistics.median(took), "p95_ms": p95, "n": len(took), "ms": took}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "decide.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
