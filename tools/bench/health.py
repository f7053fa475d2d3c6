"""``make bench-health``: how fast a fault is known, what the checks cost, and whether a slow link is named.

One clock for all: nodes on one machine share it. A kernel line is written into a node's log straight through its mount,
so that no program's start is measured; slurmctld's own log says, to the millisecond, when it took the drain.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tools.bench import health_corpus
from tools.bench.overhead import _cpu_seconds
from tools.bench.report import Measure, console, publish
from tools.cluster import Cluster, Failed

LINE = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, GPU has fallen off the bus."
KMSG = "var/log/hyperpod/kmsg"
SLURMCTLD_LOG = "var/log/slurm/slurmctld.log"
READY = ("idle", "spare")
PUBLISHED = "NHC 59 ms and GCM 395 ms of CPU a pass (published); NHC looks every 5 minutes by default"

SPEC = """\
ClusterName: bench-h
InstanceGroups:
  - {{InstanceGroupName: head, InstanceCount: 1, SlurmConfig: {{NodeType: Controller}}}}
  - InstanceGroupName: worker
    InstanceCount: {workers}
    SlurmConfig: {{NodeType: Compute, PartitionNames: [dev]}}
Hyperpod:
  Provider: local
  Slurm: {{DefaultPartition: dev, Parameters: {{LogTimeFormat: iso8601_ms}}}}
  Repair: {{MaxParallelRepaired: 8, MaxUnhealthyPercentage: 100, BreakerNodes: 1000}}
  Local: {{Image: base, MemoryPerNode: 512}}
"""


def make(name: str, workers: int, folder: Path) -> Cluster:
    """Create a cluster of so many workers."""
    cluster = Cluster(name)
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(workers=workers).replace("bench-h", name))
    cluster.delete()
    cluster.create(path)
    return cluster


def root_of(cluster: Cluster, node: str) -> Path:
    """Return where a node's file system is seen from here."""
    argv = ["podman", "inspect", "-f", "{{.State.Pid}}", cluster.container(node)]
    pid = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    return Path(f"/proc/{pid}/root")


def kernel_line(cluster: Cluster, n: int, spare_me: str) -> Measure:
    """Measure from a kernel line to slurmctld's own word that the node is drained."""
    measure = Measure("kernel line → node drained in slurmctld", "ms", goal="p50 ≤ 150, p95 ≤ 400")
    log = root_of(cluster, "head-1") / SLURMCTLD_LOG
    nodes = [node for node in cluster.node_states() if node != spare_me]
    number = 0
    while len(measure.values) < n:
        states = cluster.node_states()
        free = [node for node in nodes if states.get(node) in READY]
        if not free:
            time.sleep(0.5)
            continue
        node = free[number % len(free)]
        number += 1
        time.sleep(0.3)
        offset = log.stat().st_size
        # The place of a replaced machine is another one.
        target = root_of(cluster, node) / KMSG
        record = f"3,{int(time.time() * 1000)},{time.monotonic_ns() // 1000},-;{LINE}\n"
        began = time.time()
        with target.open("a") as file:
            file.write(record)
        drained = _drained_at(log, offset, node, 20.0)
        if drained is None:
            raise Failed(f"{node} was not drained within 20 s\n{cluster.describe()}")
        measure.values.append((drained - began) * 1000)
        measure.raw.append({"node": node, "ms": measure.values[-1], "load": os.getloadavg()[0]})
    return measure


def _drained_at(log: Path, offset: int, node: str, limit_s: float) -> float | None:
    wanted = re.compile(rf"\[([^\]]+)\] update_node: node {node} state set to DRAIN")
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with log.open("rb") as file:
            file.seek(offset)
            found = wanted.search(file.read().decode(errors="replace"))
        if found:
            return datetime.fromisoformat(found[1]).timestamp()
        time.sleep(0.01)
    return None


def agent(cluster: Cluster, node: str, seconds: float, done: threading.Event) -> list[Measure]:
    """Measure an agent with all checks on a node with eight test GPUs, and the programs that are started there."""
    pid = cluster.on_node(node, "systemctl", "show", "-P", "MainPID", "hyperpod-agent").strip()
    began, used = time.monotonic(), _cpu_seconds(cluster, node, pid)
    started: set[str] = set()
    children = _children(cluster, node, pid)
    while time.monotonic() - began < seconds:
        done.wait(1.0)
        started |= _children(cluster, node, pid) - children
    took = time.monotonic() - began
    share = 100 * (_cpu_seconds(cluster, node, pid) - used) / took
    rss = _rss_kib(cluster, node, pid)
    sleeper = ["python3", "-c", "import os; print(open('/proc/self/status').read())"]
    own = int(re.search(r"VmRSS:\s+(\d+)", cluster.on_node(node, *sleeper)).group(1))  # type: ignore[union-attr]
    return [
        Measure("agent, all checks, 8 test GPUs", "% of a core", [share], "≤ 0.1", f"over {took:.0f} s; {PUBLISHED}"),
        Measure("agent above the interpreter's own", "MiB", [(rss - own) / 1024], "≤ 30", f"{rss} KiB, {own} KiB"),
        Measure("programs seen started by the agent", "", [float(len(started))], "0", "looked at once a second"),
    ]


def _children(cluster: Cluster, node: str, pid: str) -> set[str]:
    out = cluster.on_node(node, "ps", "--ppid", pid, "-o", "pid=,args=", check=False)
    return {line.strip() for line in out.splitlines() if line.strip()}


def _rss_kib(cluster: Cluster, node: str, pid: str) -> int:
    status = cluster.on_node(node, "cat", f"/proc/{pid}/status")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def pairwise(cluster: Cluster, rate: str, n: int) -> list[Measure]:
    """Slow one node's link down and see whom the check of all pairs names."""
    nodes = sorted(cluster.node_states(), key=lambda name: int(name.rpartition("-")[2]))
    took = Measure(f"pairwise check of {len(nodes)} nodes", "s", goal="names the link or the node")
    named = Measure("… named the slow node, and nobody else", "of 1", goal="1")
    for round_ in range(n):
        bad = nodes[(7 * round_ + 4) % len(nodes)]
        cluster.hyperpod("inject", "network-slow", bad, rate, "--cluster", cluster.name)
        try:
            began = time.monotonic()
            report = _deep(cluster, "--kind", "connectivity", "--transfer-mb", "2", "--tolerance", "0.7")
            took.values.append(time.monotonic() - began)
        finally:
            cluster.hyperpod("inject", "network-slow", bad, rate, "--undo", "--cluster", cluster.name)
        found = {e["node"]: [f["code"] for f in e["findings"]] for e in report["nodes"] if e["findings"]}
        named.values.append(float(set(found) == {bad}))
        named.raw.append({"slow": bad, "found": found, "pairs": len(report["pairs"]), "load": os.getloadavg()[0]})
        console.print(f"slow: {bad}, named: {found}")
    return [took, named]


def _deep(cluster: Cluster, *options: str) -> dict[str, Any]:
    argv = ["health", "deep", "--cluster", cluster.name, "--output", "json", *options]
    report: dict[str, Any] = json.loads(cluster.hyperpod(*argv, check=False, timeout_s=600))
    return report


def main() -> int:
    """Run what is named, all when nothing is."""
    parser = argparse.ArgumentParser(description="Measure the health checks on this machine.")
    parser.add_argument("names", nargs="*", default=[], help="corpus, drain, pairwise; all when none is named")
    parser.add_argument("-n", type=int, default=50, help="kernel lines")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the agent is watched")
    parser.add_argument("--nodes", type=int, default=16, help="nodes of the pairwise check")
    options = parser.parse_args()
    names = options.names or ["corpus", "drain", "pairwise"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "corpus" in names:
            publish("health-corpus", health_corpus.run())
        if "drain" in names:
            cluster = make("bench-h", 5, folder)
            try:
                cluster.hyperpod("inject", "gpus", "worker-5", "8", "--cluster", cluster.name)
                time.sleep(20)
                publish("health-agent", agent(cluster, "worker-5", options.seconds, threading.Event()))
                publish("health-drain", [kernel_line(cluster, options.n, "worker-5")])
            finally:
                cluster.delete()
        if "pairwise" in names:
            cluster = make("bench-p", options.nodes, folder)
            try:
                publish("health-pairwise", pairwise(cluster, "20mbit", 3))
            finally:
                cluster.delete()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
