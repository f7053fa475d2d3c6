"""What hyperpod costs while nothing is wrong: start of a cluster, agent, plugin, decisions."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

from tools.bench.report import Measure, console
from tools.cluster import ROOT, USER, Cluster, spec_named

AGENT_SECONDS = 120


def creation(name: str, folder: Path, n: int) -> Measure:
    """Measure 1+4 nodes from a cached image until sinfo shows all idle."""
    measure = Measure("1+4 nodes, cached image → all idle", "s", goal="≤ 30")
    for index in range(n):
        cluster = Cluster(f"{name}{index}")
        spec = spec_named(
            ROOT / "configs" / "laptop.yaml",
            cluster.name,
            folder,
            [("Image: torch ", "Image: base "), ("  Spares: 1 ", "  Spares: 0 ")],
        )
        try:
            began = time.monotonic()
            cluster.create(spec)
            measure.values.append(time.monotonic() - began)
            states = cluster.head("sinfo", "-h", "-o", "%T %D").split()
            measure.raw.append({"seconds": measure.values[-1], "sinfo": states})
            assert states == ["idle", "4"], states
            console.print(f"creation {index + 1}/{n}: {measure.values[-1]:.1f} s")
        finally:
            cluster.delete()
    return measure


def _cpu_seconds(cluster: Cluster, node: str, pid: str) -> float:
    stat = cluster.on_node(node, "cat", f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def agent(cluster: Cluster) -> list[Measure]:
    """Measure memory and CPU of every worker's agent over two idle minutes."""
    memory = Measure("agent, resident", "MiB", goal="≤ 40")
    cpu = Measure("agent, share of a core", "%", goal="≤ 0.5", note=f"over {AGENT_SECONDS} s, idle node")
    nodes = cluster.head("sinfo", "-a", "-h", "-N", "-o", "%N").split()
    pids = {n: cluster.on_node(n, "systemctl", "show", "-P", "MainPID", "hyperpod-agent").strip() for n in nodes}
    before = {n: (time.monotonic(), _cpu_seconds(cluster, n, pids[n])) for n in nodes}
    time.sleep(AGENT_SECONDS)
    for node in nodes:
        began, used = before[node]
        share = 100 * (_cpu_seconds(cluster, node, pids[node]) - used) / (time.monotonic() - began)
        status = cluster.on_node(node, "cat", f"/proc/{pids[node]}/status")
        rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        cpu.values.append(share)
        memory.values.append(rss / 1024)
        cpu.raw.append({"node": node, "percent": share, "rss_kib": rss})
    return [memory, cpu]


LAUNCHES = """import json, subprocess, sys, time
starts, wholes = [], []
for _ in range(int(sys.argv[1])):
    began, clock = time.perf_counter(), time.time()
    out = subprocess.run(["srun", "-N1", "date", "+%s.%N"], check=True, capture_output=True, text=True).stdout
    wholes.append((time.perf_counter() - began) * 1000)
    starts.append((float(out) - clock) * 1000)
print(json.dumps([starts, wholes]))
"""


def plugin(cluster: Cluster, rounds: int, jobs: int) -> list[Measure]:
    """Measure short jobs with and without the plugin, in turn, so that noise meets both alike.

    Submit-to-start is from the call of srun until the task runs; the whole call also waits for the task's end.
    """
    starts = [Measure(f"submit to start, {w} the plugin", "ms") for w in ("with", "without")]
    wholes = [Measure(f"whole srun, {w} the plugin", "ms") for w in ("with", "without")]
    text = cluster.read("/etc/slurm/plugstack.conf")
    cluster.write("/tmp/launches.py", LAUNCHES, user=USER)
    try:
        for _ in range(rounds):
            for index, content in enumerate((text, "# none\n")):
                cluster.write("/etc/slurm/plugstack.conf", content, user="root")
                cluster.head("scontrol", "reconfigure")
                cluster.wait("idle", lambda: "idle" in cluster.head("sinfo", "-h", "-o", "%T"), 60)
                cluster.head("srun", "-N1", "true", user=USER)
                out = cluster.head("python3", "/tmp/launches.py", str(jobs), user=USER, timeout_s=300)
                started, whole = json.loads(out)
                starts[index].values += started
                wholes[index].values += whole
    finally:
        cluster.write("/etc/slurm/plugstack.conf", text, user="root")
        cluster.head("scontrol", "reconfigure")
    costs = []
    for name, (with_it, without), goal in (("a job's start", starts, "≤ 5"), ("a whole srun", wholes, "")):
        cost = statistics.median(with_it.values) - statistics.median(without.values)
        costs.append(Measure(f"plugin, added to {name}", "ms", [cost], goal=goal, note="difference of the medians"))
    return [*starts, *wholes, *costs]
