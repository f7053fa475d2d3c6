"""What hyperpod costs while nothing is wrong: start of a cluster, agent, plugin, decisions."""

from __future__ import annotations

import os
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
values = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    subprocess.run(["srun", "-N1", "true"], check=True)
    values.append((time.perf_counter() - began) * 1000)
print(json.dumps(values))
"""


def plugin(cluster: Cluster, rounds: int, jobs: int) -> list[Measure]:
    """Measure ``srun true`` with and without the plugin, in turn, so that noise meets both alike."""
    import json

    with_it = Measure("srun -N1 true, with the plugin", "ms")
    without = Measure("srun -N1 true, without", "ms")
    text = cluster.read("/etc/slurm/plugstack.conf")
    cluster.write("/tmp/launches.py", LAUNCHES, user=USER)
    try:
        for _ in range(rounds):
            for measure, content in ((with_it, text), (without, "# none\n")):
                cluster.write("/etc/slurm/plugstack.conf", content, user="root")
                cluster.head("scontrol", "reconfigure")
                cluster.wait("idle", lambda: "idle" in cluster.head("sinfo", "-h", "-o", "%T"), 60)
                cluster.head("srun", "-N1", "true", user=USER)
                out = cluster.head("python3", "/tmp/launches.py", str(jobs), user=USER, timeout_s=300)
                measure.values += json.loads(out)
    finally:
        cluster.write("/etc/slurm/plugstack.conf", text, user="root")
        cluster.head("scontrol", "reconfigure")
    import statistics

    cost = statistics.median(with_it.values) - statistics.median(without.values)
    difference = Measure("plugin, added to a job's start", "ms", [cost], goal="≤ 5", note="difference of the medians")
    return [with_it, without, difference]
