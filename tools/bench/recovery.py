"""From a failure to the first task running again: ours, and stock Slurm's without our daemons.

The time is taken by the job itself: every task writes the moment of its start to the shared file system. All nodes
run on one machine, so there is one clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tools.bench.report import Measure, console
from tools.cluster import ROOT, USER, Cluster, Failed, spec_named

FOLDER = f"/fsx/{USER}/bench"

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output=/dev/null
export HYPERPOD_CHECKPOINT_DIR={folder}/checkpoints
exec srun --kill-on-bad-exit=1 bash {folder}/task.sh
"""

# Each attempt saves one checkpoint, so that repeated failures count as failures with progress.
TASK = """attempt=$((${{SLURM_RESTART_COUNT:-0}} + 1))
start=$(date +%s.%N)
line="{{\\"time\\": $start, \\"attempt\\": $attempt, \\"host\\": \\"$(hostname)\\", \\"pid\\": $$}}"
echo "$line" >> {folder}/starts.jsonl
if [ "$SLURM_PROCID" = 0 ]; then
	mkdir -p {folder}/checkpoints
	python3 -c "
import sys; sys.path.insert(0, '/opt/hyperpod/lib')
from hyperpod.checkpoint import save_atomically
with save_atomically('{folder}/checkpoints/step_$attempt') as tmp:
    (tmp / 'state').write_text('$attempt')
"
fi
exec sleep 100000
"""


def starts(cluster: Cluster) -> list[dict[str, object]]:
    """Return every task start so far."""
    return [json.loads(line) for line in cluster.read(f"{FOLDER}/starts.jsonl").splitlines() if line.endswith("}")]


def prepare(cluster: Cluster) -> None:
    """Write the job's files."""
    cluster.head("rm", "-rf", FOLDER)
    cluster.head("mkdir", "-p", FOLDER, user=USER)
    cluster.write(f"{FOLDER}/job.sh", SCRIPT.format(folder=FOLDER))
    cluster.write(f"{FOLDER}/task.sh", TASK.format(folder=FOLDER))


def wait_attempt(cluster: Cluster, after: int, limit_s: float) -> list[dict[str, object]]:
    """Wait until both tasks of an attempt above ``after`` run; return their starts."""

    def both() -> list[dict[str, object]] | None:
        newest = [s for s in starts(cluster) if int(str(s["attempt"])) > after]
        last = max((int(str(s["attempt"])) for s in newest), default=0)
        mine = [s for s in newest if s["attempt"] == last]
        return mine if len(mine) >= 2 else None

    found: list[dict[str, object]] = cluster.wait(f"attempt after {after}", both, limit_s, every_s=0.1)
    return found


def newest_attempt(cluster: Cluster) -> int:
    """Return the number of the newest attempt that has started a task."""
    return max((int(str(s["attempt"])) for s in starts(cluster)), default=0)


def calm(cluster: Cluster) -> None:
    """Wait until every node is healthy again and a spare is ready."""

    def ready() -> bool:
        states = cluster.node_states()
        return list(states.values()).count("spare") == 1 and set(states.values()) <= {"spare", "idle", "in use"}

    cluster.wait("all nodes to be healthy", ready, 180, every_s=0.5)


def power_off(cluster: Cluster, n: int) -> Measure:
    """Measure power-off of one of the job's nodes → first task running elsewhere; batch host and other in turn."""
    measure = Measure("power-off → first task elsewhere", "s", goal="p50 ≤ 8, p95 ≤ 12")
    prepare(cluster)
    job = cluster.sbatch("--auto-resume=1000", f"{FOLDER}/job.sh")
    wait_attempt(cluster, 0, 60)
    for index in range(n):
        calm(cluster)
        before = newest_attempt(cluster)
        nodes = cluster.job_nodes(job)
        victim = nodes[index % 2]
        began = time.time()
        cluster.hyperpod("inject", "power-off", victim, "--cluster", cluster.name)
        injected = time.time()
        again = wait_attempt(cluster, before, 120)
        # The clock starts when the command is given; the power is off a moment later.
        took = min(float(str(s["time"])) for s in again) - began
        measure.values.append(took)
        measure.raw.append(
            {"victim": victim, "was_batch_host": index % 2 == 0, "seconds": took, "inject_took": injected - began}
        )
        console.print(f"power-off {index + 1}/{n}: {victim} {'(batch host) ' if index % 2 == 0 else ''}{took:.2f} s")
    cluster.head("scancel", str(job))
    return measure


def task_killed(cluster: Cluster, n: int) -> Measure:
    """Measure kill -9 of a rank → first task running again."""
    measure = Measure("task killed → running again", "s", goal="p50 ≤ 3")
    prepare(cluster)
    job = cluster.sbatch("--auto-resume=1000", f"{FOLDER}/job.sh")
    tasks = wait_attempt(cluster, 0, 60)
    for index in range(n):
        before = newest_attempt(cluster)
        # Its checkpoint first: a crash without progress is rightly not restarted for ever.
        cluster.wait(
            "a checkpoint", lambda a=before: cluster.head("ls", f"{FOLDER}/checkpoints/step_{a}", check=False), 30
        )
        task = tasks[index % 2]
        began = time.time()
        cluster.on_node(str(task["host"]), "kill", "-9", str(task["pid"]))
        tasks = wait_attempt(cluster, before, 60)
        took = min(float(str(s["time"])) for s in tasks) - began
        measure.values.append(took)
        measure.raw.append({"victim": task["host"], "seconds": took})
        console.print(f"task killed {index + 1}/{n}: {took:.2f} s")
    cluster.head("scancel", str(job))
    return measure


STOCK = {"SlurmdTimeout": "300", "AuthInfo": "cred_expire=120", "SchedulerParameters": None, "KillWait": "30"}
TUNED = {"SlurmdTimeout": "10", "AuthInfo": "cred_expire=5"}


def set_slurm(cluster: Cluster, changes: dict[str, str | None]) -> None:
    """Change parameters in slurm.conf on the head node (None: Slurm's default) and restart slurmctld."""
    text = cluster.read("/etc/slurm/slurm.conf")
    kept = [line for line in text.splitlines() if line.split("=")[0] not in changes]
    lines = [*kept, *(f"{key}={value}" for key, value in changes.items() if value is not None)]
    cluster.write("/etc/slurm/slurm.conf", "\n".join(lines) + "\n", user="root")
    cluster.head("systemctl", "restart", "slurmctld")
    cluster.wait("slurmctld", lambda: cluster.head("sinfo", "-h", check=False), 60)
    cluster.head("scontrol", "reconfigure")


def stock(cluster: Cluster, name: str, changes: dict[str, str | None], n: int, limit_s: float) -> Measure:
    """Measure the same power-off with ``--requeue`` on Slurm alone: our daemons are stopped."""
    measure = Measure(f"power-off, {name}", "s", note="sbatch --requeue, our daemons stopped")
    set_slurm(cluster, changes)
    for index in range(n):
        prepare(cluster)
        job = cluster.sbatch("--requeue", f"{FOLDER}/job.sh")
        wait_attempt(cluster, 0, 120)
        victim = cluster.job_nodes(job)[index % 2]
        container = cluster.container(victim)
        began = time.time()
        cluster.hyperpod("inject", "power-off", victim, "--cluster", cluster.name)
        again = wait_attempt(cluster, 1, limit_s)
        took = min(float(str(s["time"])) for s in again) - began
        measure.values.append(took)
        measure.raw.append({"victim": victim, "seconds": took})
        console.print(f"{name} {index + 1}/{n}: {took:.1f} s")
        cluster.head("scancel", str(job))
        import subprocess

        subprocess.run(["podman", "start", container], check=True, capture_output=True, timeout=60)
        cluster.wait("the node", lambda v=victim: cluster.on_node(v, "pgrep", "slurmd", check=False).strip(), 90)
        cluster.on_node(victim, "systemctl", "stop", "hyperpod-agent", check=False)
        cluster.head("scontrol", "update", f"nodename={victim}", "state=resume", check=False)
        cluster.wait("idle", lambda v=victim: "idle" in cluster.head("sinfo", "-h", "-n", v, "-o", "%T"), 120)
    return measure


def crash_stock(cluster: Cluster) -> Measure:
    """Show that Slurm alone does not restart a job whose task was killed."""
    measure = Measure("task killed, stock --requeue", "s", note="never restarted (watched for 60 s)")
    prepare(cluster)
    job = cluster.sbatch("--requeue", f"{FOLDER}/job.sh")
    task = wait_attempt(cluster, 0, 120)[0]
    cluster.on_node(str(task["host"]), "kill", "-9", str(task["pid"]))
    time.sleep(60)
    if newest_attempt(cluster) > 1:
        measure.note = "restarted"
    cluster.head("scancel", str(job), check=False)
    return measure


def daemons(cluster: Cluster, verb: str) -> None:
    """Start or stop our daemons on all nodes."""
    cluster.head("systemctl", verb, "hyperpod-controller", "hyperpod-agent")
    for node in cluster.head("sinfo", "-a", "-h", "-N", "-o", "%N").split():
        cluster.on_node(node, "systemctl", verb, "hyperpod-agent", check=False)


def run(
    name: str, folder: Path, n: int, with_stock: bool, changed: Callable[[Path], None] | None = None
) -> list[Measure]:
    """Create a cluster, measure, delete it."""
    cluster = Cluster(name)
    measures: list[Measure] = []
    spec = spec_named(
        ROOT / "configs" / "laptop.yaml",
        name,
        folder,
        [
            ("Image: torch ", "Image: base "),
            # Twenty nodes die on purpose within an hour: the breaker would rightly call that a site problem.
            ("  Spares: 1 ", "  Repair: { BreakerNodes: 1000 }\n  Spares: 1 "),
        ],
    )
    try:
        cluster.create(spec)
        measures.append(power_off(cluster, n))
        calm(cluster)
        measures.append(task_killed(cluster, n))
        if with_stock:
            daemons(cluster, "stop")
            measures.append(crash_stock(cluster))
            measures.append(stock(cluster, "tuned Slurm (SlurmdTimeout 10, cred_expire 5)", dict(TUNED), 3, 300))
            measures.append(stock(cluster, "stock Slurm (SlurmdTimeout 300)", dict(STOCK), 1, 900))
    except Failed as error:
        console.print(str(error), markup=False)
    finally:
        cluster.delete()
    return measures
