"""Deep checks on real nodes, and a rehearsal of faults with its report."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab import Lab
from tools.cluster import HYPERPOD, ROOT

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
