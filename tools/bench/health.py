"""``make bench-health``: how fast a fault is known and what the watching costs, on 16 nodes of this machine.

python -m tools.bench.health [detection] [quick] [agent] [flood] [network] [corpus] [-n 60] [--minutes 10] [--keep]

All nodes run on one machine, so there is one clock. The raw data goes to bench-results/ and, with the names of the
measures, to docs/measurements/health-*.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from hyperpod.adapters.local.faults import kernel_record, next_sequence
from tools.bench import health_corpus
from tools.bench.report import Measure, console, publish
from tools.cluster import ROOT, USER, Cluster

ALL = ("corpus", "detection", "quick", "network", "flood", "agent")
NODES = 16
GPUS = 8
MEASURED = 2
"""Agents whose cost is measured, each on a node with test GPUs."""

KMSG = "var/log/hyperpod/kmsg"
SLURM_LOG = "var/log/slurm/slurmctld.log"
DEVICE = "0000:9b:00"
FATAL = f"NVRM: Xid (PCI:{DEVICE}): 79, pid=1234, GPU has fallen off the bus."
HARMLESS = "NVRM: Xid (PCI:0000:65:00): 31, pid=1234, name=python3, MMU Fault: ENGINE GRAPHICS"
METRICS_PORT = 9630

SPEC = """ClusterName: {name}
InstanceGroups:
  - InstanceGroupName: head
    InstanceCount: 1
    SlurmConfig: {{ NodeType: Controller }}
  - InstanceGroupName: worker
    InstanceCount: {nodes}
    SlurmConfig: {{ NodeType: Compute, PartitionNames: [dev] }}
Hyperpod:
  Provider: local
  Repair:
    BreakerNodes: 1000                # dozens of nodes get the same fault on purpose
  Resume:
    HeartbeatInterval: 1s
    HeartbeatMisses: 3
    Lease: 5s
  Local:
    MemoryPerNode: 512
"""

PUBLISHED = (
    Measure(
        "NHC 1.4.3, one pass of 14 checks", "ms CPU", [59.0], note="known before, not of this run; each 5 min is usual"
    ),
    Measure("GCM health_checks 0.0.2, one check", "ms CPU", [395.0], note="known before, not of this run"),
    Measure("gpud: an Xid line until it is shown", "s", [30.0], note="published: state is updated each 30 s"),
    Measure("GCM and NHC: until the next look", "s", [300.0], note="published interval; a fault waits half of it"),
)
"""Others' figures: measured on such a machine before, or published. NHC is no package of Debian or PyPI."""


class Bench(Cluster):
    """A cluster that is measured, with ways past the command line's own start."""

    def workers(self) -> list[str]:
        """Return the names of the workers."""
        return [f"worker-{i}" for i in range(1, NODES + 1)]

    def root(self, node: str) -> Path:
        """Return the node's file system as this machine sees it."""
        return Path(f"/proc/{self.pid(node)}/root")

    def pid(self, node: str) -> int:
        """Return the process of this machine that is the node's init."""
        container = self._containers.get(node) or self.container(node)
        self._containers[node] = container
        argv = ["podman", "inspect", "--format", "{{.State.Pid}}", container]
        return int(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout)

    def journal(self, node: str, unit: str, since: float) -> list[tuple[float, str]]:
        """Return what a unit has logged since a moment: epoch seconds and text."""
        argv = ["journalctl", "--unit", unit, "--output", "json", "--since", f"@{since:.6f}", "--no-pager"]
        rows = [json.loads(line) for line in self.on_node(node, *argv).splitlines()]
        return [(int(row["__REALTIME_TIMESTAMP"]) / 1e6, str(row["MESSAGE"])) for row in rows]

    def events_of(self, since: float) -> list[dict[str, Any]]:
        """Return the controller's events since a moment, with their time as epoch seconds in ``t``."""
        found: list[dict[str, Any]] = self.head_json("events", "--limit", "2000")
        for event in found:
            event["t"] = datetime.fromisoformat(event["at"]).astimezone(UTC).timestamp()
        return [event for event in found if event["t"] >= since]

    def agent_pid(self, node: str) -> int:
        """Return the agent's process id within its node."""
        return int(self.on_node(node, "systemctl", "show", "-P", "MainPID", "hyperpod-agent"))

    def settle(self, timeout_s: float = 180.0) -> None:
        """Wait until every node works, or runs a job, and nothing is under way."""

        def calm() -> bool:
            status = self.head_json("status")
            states = {n["state"] for n in status["nodes"]}
            return states <= {"idle", "in use", "spare"} and not status["repairs"]

        self.wait("every node to work", calm, timeout_s, every_s=0.5)


def load() -> float:
    """Return the machine's load of the last minute."""
    return round(os.getloadavg()[0], 2)


# --- a kernel line until the node is drained ---------------------------------------------------------------------


def write_line(kmsg: Path, text: str) -> float:
    """Append a record to a node's kernel log as the kernel would, and return the moment right before."""
    with kmsg.open("rb") as file:
        file.seek(max(0, kmsg.stat().st_size - 4096))
        last = file.read().decode(errors="replace").splitlines()[-1:]
    record = kernel_record(
        text, sequence=next_sequence(last[0] if last else ""), monotonic_us=time.monotonic_ns() // 1000
    )
    descriptor = os.open(kmsg, os.O_WRONLY | os.O_APPEND)
    try:
        now = time.time()
        os.write(descriptor, record.encode())
        return now
    finally:
        os.close(descriptor)


def drained_at(log: str, node: str) -> float | None:
    """Return when slurmctld says in its log that it has drained a node; None when it does not.

    The log is in the machine's local time, in milliseconds, cut off and not rounded.
    """
    pattern = rf"^\[(\S+)\] update_node: node {re.escape(node)} state set to DRAIN\w*"
    found = re.search(pattern, log, re.MULTILINE)
    return datetime.fromisoformat(found.group(1)).replace(tzinfo=UTC).timestamp() if found else None


@dataclass(frozen=True)
class Stages:
    """One fault on its way: milliseconds from one station to the next."""

    node: str
    agent: float
    """Line written → the agent's journal says that it has judged it (its heartbeat is queued before)."""
    decided: float
    """→ the controller has observed everything and begun the repair (heartbeat, waking, observing)."""
    drained: float
    """→ slurmctld has drained the node (journal of the repair, one look, scontrol)."""

    @property
    def whole(self) -> float:
        """From the line to the drain."""
        return self.agent + self.decided + self.drained


def detection(cluster: Bench, n: int) -> list[Measure]:
    """Measure kernel line → drained, one node after the other, each with a job on it that may end in its own time.

    The job keeps the machine from being rebooted at once, so that the fault can be cleared and the node used again.
    """
    job = cluster.sbatch(f"--nodes={NODES}", "--exclusive", "--output=/dev/null", "--wrap", "srun sleep 100000")
    cluster.wait("the job", lambda: cluster.job_state(job) == "RUNNING", 60)
    time.sleep(3)
    head_log = cluster.root("head-1") / SLURM_LOG
    roots = {node: cluster.root(node) for node in cluster.workers()}
    started = time.time()
    written: list[tuple[str, float, float, float]] = []
    chance = random.Random(1)
    for index in range(n):
        node = cluster.workers()[index % NODES]
        # At no fixed place in the second between two heartbeats.
        time.sleep(chance.uniform(0.5, 1.5))
        offset = head_log.stat().st_size
        began = write_line(roots[node] / KMSG, FATAL)
        end = None
        while end is None and time.time() < began + 10:
            # The log tells the moment; how late it is read does not matter.
            time.sleep(0.1)
            with head_log.open() as file:
                file.seek(offset)
                end = drained_at(file.read(), node)
        if end is None:
            console.print(f"{node} was not drained within 10 s")
            end = began + 10
        state = cluster.head("scontrol", "show", "node", node)
        assert "DRAIN" in state, state
        written.append((node, began, end, load()))
        console.print(f"detection {index + 1}/{n}: {node} {1000 * (end - began):.0f} ms (load {load()})")
        cluster.head("hyperpod", "clear", node, "kernel_log/Xid79", "--reason", "the next measurement")
        cluster.wait("the drain to be lifted", partial(_is_open, cluster, node), 30)
    cluster.head("scancel", str(job))
    return _staged(cluster, started, written)


def _is_open(cluster: Bench, node: str) -> bool:
    return "DRAIN" not in cluster.head("scontrol", "show", "node", node)


def _staged(cluster: Bench, started: float, written: Sequence[tuple[str, float, float, float]]) -> list[Measure]:
    whole = Measure(
        "kernel line → node drained in slurmctld",
        "ms",
        goal="p50 ≤ 150, p95 ≤ 400",
        note="moment of slurmctld's own log line, cut to 1 ms",
    )
    parts = [
        Measure("… line → judged by the agent", "ms", note="the agent's journal"),
        Measure("… → heartbeat, controller woken, observed, decided", "ms", note="the controller's event"),
        Measure("… → journal, look at the node, scontrol update", "ms", note="slurmctld's log"),
    ]
    journals = {node: cluster.journal(node, "hyperpod-agent", started) for node in {row[0] for row in written}}
    events = [e for e in cluster.events_of(started) if e["kind"] == "RepairBegan"]
    for node, began, end, busy in written:
        whole.values.append(1000 * (end - began))
        judged = next((t for t, text in journals[node] if t >= began and "finding FATAL" in text), None)
        decided = next(
            (e["t"] for e in sorted(events, key=lambda e: e["t"]) if e["node"] == node and e["t"] >= began), None
        )
        raw: dict[str, Any] = {"node": node, "written": began, "ms": round(1000 * (end - began), 1), "load": busy}
        if judged is not None and decided is not None:
            stages = Stages(node, 1000 * (judged - began), 1000 * (decided - judged), 1000 * (end - decided))
            for part, value in zip(parts, (stages.agent, stages.decided, stages.drained), strict=True):
                part.values.append(value)
            raw |= {"agent": stages.agent, "decided": stages.decided, "drained": stages.drained}
        whole.raw.append(raw)
    return [whole, *parts]


# --- what the agent costs ---------------------------------------------------------------------------------------


def agent(cluster: Bench, minutes: float) -> list[Measure]:
    """Measure the agents of two workers with eight test GPUs, all checks on, and what they start."""
    nodes = cluster.workers()[:MEASURED]
    for node in nodes:
        cluster.hyperpod("inject", "gpus", node, str(GPUS), "--cluster", cluster.name)
    for node in nodes:
        cluster.wait("the GPUs to be seen", partial(_has_seen_gpus, cluster, node), 60)
    # Steady: every check has run, and what Python loads on first use is there.
    time.sleep(150)
    pids = {node: cluster.agent_pid(node) for node in nodes}
    bare = {node: _bare_kib(cluster, node) for node in nodes}
    before = {node: (time.monotonic(), _cpu_s(cluster, node, pids[node])) for node in nodes}
    time.sleep(60 * minutes)
    cpu = Measure("agent, share of a core", "%", goal="≤ 0.1", note=f"{GPUS} test GPUs, all checks, {minutes:g} min")
    children = Measure("… of it, processes that it started", "%", goal="0")
    memory = Measure("agent, resident above the bare interpreter", "MiB", goal="≤ 30")
    for node in nodes:
        began, (own, waited) = before[node]
        own_now, waited_now = _cpu_s(cluster, node, pids[node])
        took = time.monotonic() - began
        rss = _rss_kib(cluster, node, pids[node])
        cpu.values.append(100 * (own_now - own + waited_now - waited) / took)
        children.values.append(100 * (waited_now - waited) / took)
        memory.values.append((rss - bare[node]) / 1024)
        runs = _runs(cluster, node)
        cpu.raw.append(
            {
                "node": node,
                "seconds": took,
                "cpu_s": own_now - own,
                "rss_kib": rss,
                "bare_kib": bare[node],
                "load": load(),
            }
        )
        memory.raw.append({"node": node, "checks": len(runs), "runs": runs})
    started = Measure("processes started by the agent", "a minute", goal="0", note="execve, vfork, fork: strace, 1 min")
    started.values = [_started(cluster, nodes[1], 60)]
    return [cpu, children, memory, started, *PUBLISHED[:2]]


def _has_seen_gpus(cluster: Bench, node: str) -> bool:
    return _runs(cluster, node).get("gpu_recovery", 0) > 0


def _runs(cluster: Bench, node: str) -> dict[str, int]:
    text = cluster.on_node(node, "hyperpod", "health", "--output", "json", check=False)
    return {c["name"]: c["runs"] for c in json.loads(text)["checks"]} if text.startswith("{") else {}


def _cpu_s(cluster: Bench, node: str, pid: int) -> tuple[float, float]:
    """Return the processor time of the process and of the children that it has waited for.

    The kernel counts it in nanoseconds and shows it in ticks: a tick in ten minutes is 0.002 %.
    """
    fields = cluster.on_node(node, "cat", f"/proc/{pid}/stat").rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / tick, (int(fields[13]) + int(fields[14])) / tick


def _rss_kib(cluster: Bench, node: str, pid: int) -> int:
    status = cluster.on_node(node, "cat", f"/proc/{pid}/status")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def _bare_kib(cluster: Bench, node: str) -> int:
    """Return what the same interpreter takes that does nothing."""
    script = "python3 -c 'import time; time.sleep(60)' & sleep 2; grep VmRSS /proc/$!/status; kill $!"
    return int(cluster.on_node(node, "sh", "-c", script).split()[1])


def _started(cluster: Bench, node: str, seconds: int) -> float:
    """Count the processes that the agent starts, for a minute; threads are none."""
    root = cluster.root(node)
    space = os.readlink(root.parent / "ns/pid")
    inside = cluster.agent_pid(node)
    pid = next(p for p in _processes_in(space) if _inner_pid(p) == inside)
    with tempfile.NamedTemporaryFile() as file:
        argv = ["strace", "-f", "-e", "trace=execve,execveat,vfork,fork", "-o", file.name, "-p", str(pid)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds)
        text = Path(file.name).read_text()
    return 60 * len(re.findall(r"\b(?:execve|execveat|vfork|fork)\(", text)) / seconds


def _processes_in(space: str) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "ns/pid") == space:
                yield int(entry.name)


def _inner_pid(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1])


# --- the quick check after a failure ----------------------------------------------------------------------------


def quick(cluster: Bench, n: int) -> list[Measure]:
    """Measure a task's death on 16 nodes → every agent's answer, with one node on which a check hangs.

    What hangs is the shared file system of one node: its server is stopped, so that the check that writes to it stays
    in the kernel.
    """
    every = Measure(
        "quick check, 16 nodes, one hangs: asked → last answer", "s", goal="≤ 2", note="hanging node included"
    )
    sound = Measure("… last answer of the 15 others", "s")
    again = Measure("… task killed → job requeued", "s", note="it does not wait for the answers")
    for index in range(n):
        cluster.write(f"/home/{USER}/quick.sh", "#!/bin/bash\nsrun sleep 100000\n")
        job = cluster.sbatch(
            "--auto-resume=100", f"--nodes={NODES}", "--exclusive", "--output=/dev/null", f"/home/{USER}/quick.sh"
        )
        cluster.wait("the job", lambda: len(_sleepers(cluster)) == NODES, 90, every_s=0.5)
        hung = cluster.workers()[(5 * index + 3) % NODES]
        victim = cluster.workers()[(5 * index + 9) % NODES]
        cluster.hyperpod("inject", "fs-hang", hung, "--cluster", cluster.name)
        try:
            began = time.time()
            cluster.on_node(victim, "pkill", "-KILL", "-x", "sleep")
            time.sleep(8)
        finally:
            cluster.hyperpod("inject", "fs-hang", hung, "--undo", "--cluster", cluster.name)
        events = sorted(cluster.events_of(began), key=lambda e: e["t"])
        asked = next(e["t"] for e in events if e["kind"] == "TaskFailed")
        answers = {}
        for node in cluster.workers():
            lines = cluster.journal(node, "hyperpod-agent", began)
            answers[node] = next(((t, text) for t, text in lines if "quick check answered" in text), None)
        times = {node: told[0] - asked for node, told in answers.items() if told is not None}
        raw = {"hung": hung, "answers": times, "asked": asked - began, "load": load()}
        raw["unfinished"] = {m: told[1].rpartition("unfinished=")[2] for m, told in answers.items() if told}
        every.raw.append(raw)
        if len(times) == NODES:
            every.values.append(max(times.values()))
        sound.values.append(max(t for m, t in times.items() if m != hung))
        requeued = next((e["t"] for e in events if e["kind"] == "JobRequeued"), None)
        if requeued is not None:
            again.values.append(requeued - began)
        console.print(f"quick {index + 1}/{n}: {len(times)} answers, hung {times.get(hung, -1):.2f} s (load {load()})")
        cluster.head("scancel", str(job))
        cluster.wait("no job to be left", lambda: not cluster.head("squeue", "-h"), 90)
        cluster.settle()
    return [every, sound, again]


def _sleepers(cluster: Bench) -> list[str]:
    return [m for m in cluster.workers() if cluster.on_node(m, "pgrep", "-x", "sleep", check=False).strip()]


# --- the network between the nodes ------------------------------------------------------------------------------


def network(cluster: Bench, rounds: int) -> list[Measure]:
    """Measure whether ``health deep --kind connectivity`` names a slow node, a slow link, and else nobody."""
    took = Measure(f"pairwise network check of {NODES} nodes", "s", note="each node meets each other one: 120 links")
    node_named = Measure("slow node named, and nobody else", "of 1", goal="1", note="tbf, 20 Mbit/s at its interface")
    link_named = Measure(
        "slow link named, and nobody else", "of 1", goal="1", note="20 Mbit/s between two nodes, both ways"
    )
    quiet = Measure("all well: nobody named", "of 1", goal="1")
    for index in range(rounds):
        bad = cluster.workers()[(7 * index + 4) % NODES]
        other = cluster.workers()[(7 * index + 9) % NODES]
        _network_once(cluster, took, quiet, "", set())
        cluster.hyperpod("inject", "network-slow", bad, "20mbit", "--cluster", cluster.name)
        try:
            _network_once(cluster, took, node_named, bad, {bad})
        finally:
            cluster.hyperpod("inject", "network-slow", bad, "--undo", "--cluster", cluster.name)
        with slow_link(cluster, bad, other, "20mbit"):
            _network_once(cluster, took, link_named, f"{bad} {other}", {bad, other})
    return [took, node_named, link_named, quiet]


def _network_once(cluster: Bench, took: Measure, measure: Measure, what: str, guilty: set[str]) -> None:
    cluster.settle()
    began = time.monotonic()
    text = cluster.hyperpod(
        *("health", "deep", "--kind", "connectivity", "--cluster", cluster.name, "--output", "json"),
        check=False,
        timeout_s=600,
    )
    seconds = time.monotonic() - began
    report = json.loads(text)
    said = [
        {"node": node["node"], "code": f["code"], "severity": f["severity"], "message": f["message"]}
        for node in report["nodes"]
        for f in node["findings"]
    ]
    named = {finding["node"] for finding in said if finding["severity"] in ("WARN", "FATAL")}
    good = [p["bandwidth_mb_s"] for p in report["pairs"] if not p["failure"]]
    took.values.append(seconds)
    measure.values.append(float(named == guilty))
    measure.raw.append(
        {
            "slow": what,
            "named": sorted(named),
            "findings": said,
            "links": len(report["pairs"]),
            "median_mb_s": statistics.median(good) if good else None,
            "seconds": seconds,
            "error": report["error"],
            "load": load(),
        }
    )
    console.print(f"network, slow: {what or 'nothing'}; named: {sorted(named)} in {seconds:.0f} s (load {load()})")
    for node in named:
        for code in {f["code"] for f in said if f["node"] == node}:
            argv = ("hyperpod", "clear", node, f"deep/{code}", "--reason", "the next measurement")
            cluster.head(*argv, check=False)


@contextlib.contextmanager
def slow_link(cluster: Bench, one: str, other: str, rate: str) -> Iterator[None]:
    """Make the way between two nodes slow, and no other: a class of its own at both ends."""
    for source, target in ((one, other), (other, one)):
        address = cluster.on_node(target, "hostname", "-I").split()[0]
        for argv in (
            ["tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10"],
            ["tc", "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:10", "htb", "rate", "10gbit"],
            ["tc", "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:20", "htb", "rate", rate],
            ["iptables", "-t", "mangle", "-A", "POSTROUTING", "-d", address, "-j", "CLASSIFY", "--set-class", "1:20"],
        ):
            _in_network(cluster, source, argv)
    try:
        yield
    finally:
        for source in (one, other):
            _in_network(cluster, source, ["iptables", "-t", "mangle", "-F", "POSTROUTING"])
            _in_network(cluster, source, ["tc", "qdisc", "del", "dev", "eth0", "root"])


def _in_network(cluster: Bench, node: str, argv: Sequence[str]) -> None:
    command = ["nsenter", "--target", str(cluster.pid(node)), "--net", *argv]
    subprocess.run(command, check=True, timeout=30, capture_output=True, text=True)


# --- a flood of kernel lines ------------------------------------------------------------------------------------


def flood(cluster: Bench, lines: int, n: int) -> list[Measure]:
    """Measure the longest silence of a node's heartbeats while its kernel log is flooded, with a fatal line in it."""
    gap = Measure(f"longest gap between heartbeats, {lines} kernel lines at once", "s", goal="< 3 (three beats)")
    calm = Measure("… without a flood, same node", "s")
    drained = Measure(
        "… fatal line in the middle of the flood → drained", "ms", note="from the write of the whole flood"
    )
    job = cluster.sbatch(f"--nodes={NODES}", "--exclusive", "--output=/dev/null", "--wrap", "srun sleep 100000")
    cluster.wait("the job", lambda: cluster.job_state(job) == "RUNNING", 60)
    head_log = cluster.root("head-1") / SLURM_LOG
    for index in range(n):
        node = cluster.workers()[(3 * index + 1) % NODES]
        kmsg = cluster.root(node) / KMSG
        calm.values.append(longest_silence(cluster, node, 10.0))
        first = next_sequence(kmsg.read_text(errors="replace").splitlines()[-1] if kmsg.stat().st_size else "")
        now_us = time.monotonic_ns() // 1000
        records = [kernel_record(HARMLESS, sequence=first + i, monotonic_us=now_us + i) for i in range(lines)]
        records[lines // 2] = kernel_record(FATAL, sequence=first + lines // 2, monotonic_us=now_us + lines // 2)
        data = "".join(records).encode()
        offset = head_log.stat().st_size
        with ThreadPoolExecutor(1) as pool:
            silence = pool.submit(longest_silence, cluster, node, 15.0)
            time.sleep(1)
            began = time.time()
            with kmsg.open("ab") as file:
                file.write(data)
            gap.values.append(silence.result())
        with head_log.open() as text:
            text.seek(offset)
            end = drained_at(text.read(), node)
        if end is not None:
            drained.values.append(1000 * (end - began))
        gap.raw.append({"node": node, "gap_s": gap.values[-1], "drained": end, "load": load()})
        console.print(f"flood {index + 1}/{n}: {node} gap {gap.values[-1]:.2f} s (load {load()})")
        cluster.head("hyperpod", "clear", node, "kernel_log/Xid79", "--reason", "the next measurement", check=False)
        cluster.wait("the drain to be lifted", partial(_is_open, cluster, node), 30)
    cluster.head("scancel", str(job))
    return [gap, calm, drained]


def longest_silence(cluster: Bench, node: str, seconds: float) -> float:
    """Return the greatest age of a node's newest heartbeat that the controller showed, asked 20 times a second."""
    return float(cluster.head("python3", "-c", WATCH, node, str(seconds)))


WATCH = f"""
import re, sys, time, urllib.request
node, seconds = sys.argv[1], float(sys.argv[2])
worst, end = 0.0, time.monotonic() + seconds
while time.monotonic() < end:
    with urllib.request.urlopen("http://127.0.0.1:{METRICS_PORT}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(f'^hyperpod_heartbeat_age_seconds{{{{node="{{node}}"}}}} (\\S+)', text, re.MULTILINE)
    worst = max(worst, float(found.group(1)) if found else seconds)
    time.sleep(0.05)
print(worst)
"""
"""Runs on the head node, whose network this machine may not reach."""


# --- all of it --------------------------------------------------------------------------------------------------


def keep(name: str, path: Path) -> None:
    """Put the raw data beside what the documentation quotes."""
    target = ROOT / "docs" / "measurements" / f"health-{name}.json"
    target.write_text(path.read_text().rstrip() + "\n")
    console.print(f"kept as {target.relative_to(ROOT)}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure how fast faults are known and what the watching costs.")
    parser.add_argument("names", nargs="*", choices=[*ALL, []], default=[], help="which; all when none is named")
    parser.add_argument("-n", type=int, default=60, help="repeats of the kernel line")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the agent is watched")
    parser.add_argument("--cluster", default="", help="measure on this cluster (as --keep leaves it) and keep it")
    parser.add_argument("--keep", action="store_true", help="leave the cluster")
    options = parser.parse_args(argv)
    names = options.names or ALL
    if "corpus" in names:
        publish("health-corpus", health_corpus.run())
    cluster = Bench(options.cluster or "bench-h")
    measures: Mapping[str, Callable[[], list[Measure]]] = {
        "detection": lambda: [*detection(cluster, options.n), *PUBLISHED[2:]],
        "quick": lambda: quick(cluster, 5),
        "network": lambda: network(cluster, 2),
        "flood": lambda: flood(cluster, 100_000, 5),
        "agent": lambda: agent(cluster, options.minutes),
    }
    # A node has a machine of its own: few others beside the agents that are measured are nearer to that.
    for nodes, group in ((NODES, ("detection", "quick", "network", "flood")), (MEASURED, ("agent",))):
        wanted = [name for name in group if name in names]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            spec = Path(temporary) / "bench-h.yaml"
            spec.write_text(SPEC.format(name=cluster.name, nodes=nodes))
            try:
                if not options.cluster:
                    cluster.create(spec)
                cluster.settle()
                for name in wanted:
                    keep(name, publish(f"health-{name}", measures[name]()))
            finally:
                if not options.keep and not options.cluster:
                    cluster.delete()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
