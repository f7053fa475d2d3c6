"""``make demo``: a node dies under a training job, and the job trains on from its last checkpoint.

Creates a cluster of one head node, three workers and a spare on this machine; trains once undisturbed; trains again
and powers a node off under it; shows what happens live; ends with the measured times and with the proof that the
resumed run has the losses of the undisturbed one. Exit status 0 only when all of that was checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from tools.cluster import ROOT, USER, Cluster, Failed, spec_named

JOBS = ROOT / "configs" / "jobs"
console = Console()


@dataclass
class Step:
    """One line of the training's metrics."""

    time: float
    attempt: int
    step: int
    loss: float
    host: str


def read_steps(cluster: Cluster, path: str) -> list[Step]:
    """Return the metrics written so far; a line that is being written is left out."""
    steps = []
    for line in cluster.read(path).splitlines():
        try:
            data = json.loads(line)
            steps.append(Step(data["time"], data["attempt"], data["step"], data["loss"], data["host"]))
        except (ValueError, KeyError):
            continue
    return steps


def submit(cluster: Cluster, name: str, *, steps: int, step_time: float, save_every: int) -> tuple[int, str]:
    """Submit the example training; return the job and its metrics file."""
    directory = f"/fsx/{USER}/{name}"
    cluster.head("rm", "-rf", directory)
    job = cluster.sbatch(
        f"--checkpoint-dir={directory}",
        f"--job-name={name}",
        f"--output={directory}.out",
        "ddp.sbatch",
        env={"STEPS": str(steps), "STEP_TIME": str(step_time), "SAVE_EVERY": str(save_every)},
    )
    return job, f"{directory}/metrics.jsonl"


def screen(cluster: Cluster, job: int, steps: list[Step], total: int, since: float | None) -> Group:
    """Draw what a person would want to see now."""
    try:
        status = cluster.head_json("status")
        events = cluster.head_json("events", "--limit", "14")
    except (Failed, ValueError):
        status, events = {"nodes": []}, []
    nodes = Table("node", "state", "instance", "jobs", box=None)
    for node in status["nodes"]:
        nodes.add_row(node["node"], node["state"], node["instance_id"][-8:], ", ".join(map(str, node["jobs"])))
    log = Table("time", "what", box=None, show_header=False)
    for event in events[-14:]:
        log.add_row(event["at"][11:23], f"{event['kind']}: {event['message']}"[:110])
    last = steps[-1] if steps else None
    title = f"job {job}: step {last.step if last else 0} of {total}, attempt {last.attempt if last else 1}"
    if since is not None:
        title += f", {time.time() - since:.0f} s after the power went off"
    return Group(Panel(nodes, title=title, width=118), Panel(log, title="events", width=118))


def wait_for(
    cluster: Cluster, job: int, path: str, total: int, until: Any, limit_s: float, since: float | None
) -> list[Step]:
    """Show the screen until ``until(steps)`` is true."""
    deadline = time.monotonic() + limit_s
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while True:
            steps = read_steps(cluster, path)
            live.update(screen(cluster, job, steps, total, since))
            if until(steps):
                return steps
            if time.monotonic() > deadline:
                log = cluster.read(path.removesuffix("/metrics.jsonl") + ".out")
                raise Failed(f"job {job} did not get there in {limit_s:g} s\n{cluster.describe()}\n{log}")
            time.sleep(0.5)


def seconds_after(began: float, events: list[dict[str, Any]], kinds: set[str]) -> float | None:
    """Return how long after ``began`` the first event of one of these kinds came."""
    for event in events:
        at = datetime.fromisoformat(event["at"]).timestamp()
        if event["kind"] in kinds and at >= began:
            return at - began
    return None


def check_losses(reference: list[Step], disturbed: list[Step], total: int) -> str:
    """Return what is wrong with the losses of the disturbed run; an empty string when they are the reference's.

    Every step that was written must have the undisturbed run's loss, to the last bit, in whichever attempt.
    """
    expected = {s.step: s.loss for s in reference}
    if sorted(expected) != list(range(1, total + 1)):
        return f"the undisturbed run wrote {len(expected)} of {total} steps"
    if {s.step for s in disturbed} != set(expected):
        return "the disturbed run did not write every step"
    wrong = [s for s in disturbed if s.loss != expected[s.step]]
    if wrong:
        bad = wrong[0]
        return f"step {bad.step} of attempt {bad.attempt}: loss {bad.loss}, undisturbed {expected[bad.step]}"
    return ""


def run(cluster: Cluster, total: int, victim_index: int, power_off: Callable[[str], object]) -> int:
    """Run the story on a cluster that is ready; return the exit status.

    Args:
        power_off: Takes the power from a node, and tells nobody.
    """
    for name in ("train_ddp.py", "ddp.sbatch"):
        cluster.upload(JOBS / name, f"/home/{USER}/{name}")
    console.print("training once undisturbed, for comparison", style="bold")
    job, path = submit(cluster, "undisturbed", steps=total, step_time=0.0, save_every=20)
    reference = wait_for(cluster, job, path, total, lambda s: s and s[-1].step >= total, 240, None)
    cluster.wait("the first job to end", lambda: cluster.job_state(job) == "COMPLETED", 60)

    console.print("training again; a node will lose its power", style="bold")
    job, path = submit(cluster, "train", steps=total, step_time=0.1, save_every=20)
    wait_for(cluster, job, path, total, lambda s: s and s[-1].step >= total // 3, 240, None)
    nodes = cluster.job_nodes(job)
    victim = nodes[victim_index]
    before = read_steps(cluster, path)
    console.print(f"powering off {victim} (the job runs on {', '.join(nodes)})", style="bold red")
    began = time.time()
    power_off(victim)
    steps = wait_for(cluster, job, path, total, lambda s: s and s[-1].step >= total, 300, began)
    cluster.wait("the job to end", lambda: cluster.job_state(job) == "COMPLETED", 60)
    cluster.wait("the controller to have closed its history", lambda: cluster.show_job(job)["verdict"], 60)
    cluster.wait("the node to be replaced", lambda: cluster.node_states().get(victim) in ("spare", "idle"), 180)
    return report(cluster, job, victim, began, before, steps, reference, total)


def report(
    cluster: Cluster,
    job: int,
    victim: str,
    began: float,
    before: list[Step],
    steps: list[Step],
    reference: list[Step],
    total: int,
) -> int:
    """Print the table of measured figures and check them."""
    shown = cluster.show_job(job)
    events = sorted(cluster.head_json("events", "--limit", "1000"), key=lambda e: e["id"])
    mine = [e for e in events if e["job_id"] == job]
    resumed = [s for s in steps if s.attempt == 2]
    reached = max((s.step for s in steps if s.attempt == 1), default=0)
    first = min((s.step for s in resumed), default=0)
    table = Table("what", "measured", title=f"{victim} lost its power under job {job}")
    rows = [
        ("failure seen after", seconds_after(began, events, {"RepairBegan"})),
        ("decided and fenced after", seconds_after(began, events, {"NodeFenced", "NodeDown"})),
        (
            "first task of attempt 2 after",
            seconds_after(began, [e for e in mine if "attempt 2" in e["message"]], {"FirstTaskStarted"}),
        ),
        ("training again (first new step) after", resumed[0].time - began if resumed else None),
        (
            "replacement machine after",
            seconds_after(began, [e for e in events if e["node"] == victim], {"NodeReplaced"}),
        ),
    ]
    for what, value in rows:
        table.add_row(what, f"{value:.1f} s" if value is not None else "never")
    table.add_row("steps lost", f"{reached - first + 1} (step {reached} → {first - 1})")
    attempts = "; ".join(f"{a['number']}: {', '.join(a['nodes'])} {a['cause'] or ''}" for a in shown["attempts"])
    table.add_row("attempts", attempts)
    curve = [s for s in reference if s.step in (1, first - 1, first, total)]
    table.add_row("loss, undisturbed", ", ".join(f"step {s.step}: {s.loss:.6f}" for s in curve))
    again = {s.step: s.loss for s in steps}
    table.add_row("loss, with the failure", ", ".join(f"step {s.step}: {again[s.step]:.6f}" for s in curve))
    problem = check_losses(reference, steps, total)
    if not problem and (not resumed or first <= 1 or shown["verdict"] != "Completed" or len(shown["attempts"]) != 2):
        problem = "the job did not resume from a checkpoint in a second attempt and complete"
    table.add_row("every loss equals the undisturbed run's", problem or f"yes, all {total} steps to the last bit")
    console.print(table)
    return 1 if problem else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A node dies under a training job; the job trains on.")
    parser.add_argument("--cluster", default="demo", metavar="NAME", help="its name (demo)")
    parser.add_argument("--keep", action="store_true", help="keep the cluster at the end")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--victim", choices=["first", "last"], default="last", help="which of the job's nodes dies")
    options = parser.parse_args()
    cluster = Cluster(options.cluster)
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            spec = spec_named(ROOT / "configs" / "laptop.yaml", cluster.name, Path(folder))
            cluster.hyperpod("doctor", "--fix", show=True, timeout_s=900)
            cluster.create(spec, show=True, timeout_s=1800)
        console.print(f"cluster ready after {time.monotonic() - started:.0f} s", style="bold")
        return run(
            cluster,
            options.steps,
            0 if options.victim == "first" else -1,
            lambda node: cluster.hyperpod("inject", "power-off", node, "--cluster", cluster.name),
        )
    except Failed as error:
        console.print(str(error), style="red", markup=False)
        return 1
    finally:
        if options.keep:
            name = cluster.name
            console.print(f"the cluster is kept: hyperpod status --cluster {name}; hyperpod delete-cluster {name}")
        else:
            cluster.delete()


if __name__ == "__main__":
    sys.exit(main())
