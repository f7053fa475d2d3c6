"""Deep checks on real nodes, and a rehearsal of faults with its report."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab import Lab
from tools.cluster import HYPERPOD, ROOT, USER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400, func_only=True)]

PLAN = """
Name: two-faults
Job: {Nodes: 2, StepSeconds: 0.1, SaveEvery: 5}
Limit: 150
Faults:
  - Fault: kernel-line
    Argument: "NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=python3, Ch 00000008, intr 00000000. MMU Fault"
    After: 0
    Settle: 3
    Expect: {Verdict: none, Action: None}
  - Fault: kill-task
    Argument: "{job}"
    After: 0
    Expect: {Verdict: application, Action: None, DetectedWithin: 60, ResumedWithin: 120}
"""


def start_deep(lab: Lab, *options: str) -> subprocess.Popen[str]:
    argv = [*HYPERPOD, "health", "deep", "--cluster", lab.name, "--output", "json", *options]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode in (0, 1), err
    found: dict[str, Any] = json.loads(out)
    return found


def test_idle_nodes_are_checked_deeply_and_a_cut_link_is_named(lab: Lab) -> None:
    report = report_of(start_deep(lab, "--part", "0.2", "--disk-mb", "4", "--transfer-mb", "4"))
    assert {node["state"] for node in report["nodes"]} <= {"OK", "WARN"}
    tests = {line["test"]: line["ok"] for node in report["nodes"] for line in node["tests"]}
    assert tests["memory_pattern"]
    assert tests["cpu_numeric"]
    assert tests["disk_checksum"]
    count = len(report["nodes"])
    assert len(report["pairs"]) == count * (count - 1) // 2
    assert all(not pair["failure"] for pair in report["pairs"])


def test_a_job_takes_its_node_back_from_a_deep_check(lab: Lab) -> None:
    check = start_deep(lab, "--kind", "stress", "--part", "60")
    lab.wait(
        "the stress to run",
        lambda: any("hyperpod.deep" in lab.on_node(n, "ps", "-eo", "args", check=False) for n in lab.nodes()),
        60,
    )
    job = lab.submit("--ntasks=1", armed=False)
    lab.wait_running(job)
    node = lab.batch_host(job)
    lab.wait("the node to be left alone", lambda: "hyperpod.deep" not in lab.on_node(node, "ps", "-eo", "args"), 20)
    lab.head("scancel", str(job.id))
    for other in lab.nodes():
        lab.head("srun", "--immediate=20", "-w", other, "true", check=False)
    report = report_of(check)
    states = {entry["node"]: entry["state"] for entry in report["nodes"]}
    assert states[node] == "gave way to a job"


def test_a_rehearsal_reports_what_the_cluster_made_of_each_fault(lab: Lab, tmp_path: Path) -> None:
    plan, junit = tmp_path / "plan.yaml", tmp_path / "report.xml"
    plan.write_text(PLAN)
    argv = ["rehearse", str(plan), "--cluster", lab.name, "--output", "json", "--junit", str(junit)]
    report = json.loads(lab.hyperpod(*argv, timeout_s=380))
    quiet, killed = report["faults"]
    assert (quiet["verdict"], quiet["action"], quiet["false_actions"]) == ("none", "None", [])
    assert (killed["verdict"], killed["action"]) == ("application", "None")
    assert killed["detected_s"] is not None
    assert killed["resumed_s"] is not None
    assert report["passed"]
    assert 'tests="2" failures="0"' in junit.read_text()


@pytest.fixture
def young(small_cluster: Lab) -> Iterator[Lab]:
    """The small cluster, whose group of that name has deep checks before the first job; emptied after the test."""
    small_cluster.begin()
    yield small_cluster
    small_cluster.head("systemctl", "start", "hyperpod-controller")
    small_cluster.head("scancel", "--user", USER, check=False)
    argv = ["update-cluster", "--group", "young", "--count", "0", "--force", "--cluster", small_cluster.name]
    small_cluster.hyperpod(*argv)


def test_a_new_node_is_held_until_its_deep_check_also_while_the_controller_is_away(young: Lab) -> None:
    young.head("systemctl", "stop", "hyperpod-controller")
    argv = ["update-cluster", "--group", "young", "--count", "1", "--cluster", young.name]
    growth = subprocess.Popen(
        [*HYPERPOD, *argv], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    # Submitted as soon as Slurm knows the node, long before that has registered.
    options = ["--partition=young", "--ntasks=1", "--wrap=true"]
    job = young.wait("a job for the new node to be taken", lambda: young.sbatch(*options), 60)

    unit = ["systemctl", "show", "--value", "--property=SubState", "slurmd"]
    young.wait("slurmd to be held", lambda: young.on_node("young-1", *unit).strip() == "start-pre", 60)
    told = young.wait(
        "its agent",
        lambda: json.loads(young.on_node("young-1", "hyperpod", "health", "--output", "json", check=False)),
        30,
    )
    assert told["owes_deep"] == ["InstanceStress"], told
    assert young.job_state(job) == "PENDING"

    young.head("systemctl", "start", "hyperpod-controller")
    reasons = ["scontrol", "show", "node", "young-1"]
    young.wait("it to be drained", lambda: "hyperpod:deep/BeforeFirstJob" in young.head(*reasons), 60)
    assert young.job_state(job) == "PENDING"
    young.wait_state(job, "COMPLETED")
    assert growth.wait(timeout=60) == 0

    (checked,) = young.events("DeepCheck")
    assert checked["message"] == "1 of 1 nodes checked"
    shown = young.head("scontrol", "show", "job", str(job))
    began = datetime.fromisoformat(shown.partition("StartTime=")[2].split()[0]).astimezone()
    # Slurm's times are whole seconds.
    assert began >= datetime.fromisoformat(checked["at"]) - timedelta(seconds=1)
    assert "passed its checks" in str(young.events(node="young-1"))
