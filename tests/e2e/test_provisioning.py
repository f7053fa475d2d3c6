"""Clusters are made, changed, interrupted and deleted; nothing half-made stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.lab import HERE, Lab, leftovers, run_hyperpod, wait_until
from tools.cluster import HYPERPOD, ROOT, spec_named

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300, func_only=True)]


@pytest.fixture
def spare_name() -> Iterator[str]:
    """A name for a cluster of one test, which is deleted after it."""
    name = "e2e-once"
    Lab(name).delete()
    yield name
    Lab(name).delete()
    assert leftovers(name) == {}


def containers(name: str) -> dict[str, str]:
    """Return the containers of a cluster, node to id, whatever their state."""
    form = '{{index .Labels "hyperpod.node"}} {{.ID}}'
    argv = ["podman", "ps", "-a", "--filter", f"label=hyperpod.cluster={name}", "--format", form]
    rows = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert len({row.split()[0] for row in rows}) == len(rows), f"a node has two machines: {rows}"
    return dict(row.split() for row in rows)


def script_spec(name: str, folder: Path) -> Path:
    """Write a specification whose workers have a lifecycle script of their own."""
    spec = spec_named(HERE / "small.yaml", name, folder)
    config = f"\n    LifeCycleConfig: {{ SourceS3Uri: {folder}/scripts, OnCreate: on_create.sh }}"
    spec.write_text(spec.read_text().replace("PartitionNames: [dev] }", "PartitionNames: [dev] }" + config))
    (folder / "scripts").mkdir()
    return spec


def test_failing_lifecycle_script_is_shown_leaves_nothing_half_made_and_can_be_corrected(
    spare_name: str, tmp_path: Path
) -> None:
    spec = script_spec(spare_name, tmp_path)
    script = tmp_path / "scripts" / "on_create.sh"
    script.write_text("#!/bin/bash\necho 'the licence server says: no seats left'\nexit 7\n")

    status, output = run_hyperpod("create-cluster", str(spec), "--yes")

    assert status == 1, output
    assert "the licence server says: no seats left" in output
    assert "on_create.sh ended with status 7" in output
    assert "worker-1" in output
    assert "hint: correct the script" in output
    # The rest of the cluster works, and the node never takes a job.
    lab = Lab(spare_name)
    assert "worker-1" not in lab.head("sinfo", "-h", "-N", "-t", "idle,alloc,mixed", "-o", "%N")
    for node, container in containers(spare_name).items():
        running = subprocess.run(
            ["podman", "exec", container, "pgrep", "-x", "slurmd"], capture_output=True, check=False, timeout=60
        )
        assert running.returncode != 0, f"slurmd runs on {node}"

    script.write_text("#!/bin/bash\necho fine now\n")
    status, output = run_hyperpod("create-cluster", str(spec), "--yes")

    assert status == 0, output
    assert set(containers(spare_name)) == {"head-1", "worker-1"}
    assert lab.head("srun", "-N1", "hostname").strip() == "worker-1"
    status, output = run_hyperpod("create-cluster", str(spec), "--yes")
    assert status == 0, output
    assert "is as the specification says" in output


def test_machine_whose_script_failed_is_left_for_a_look_when_asked(spare_name: str, tmp_path: Path) -> None:
    spec = script_spec(spare_name, tmp_path)
    (tmp_path / "scripts" / "on_create.sh").write_text("#!/bin/bash\necho 'left as it was' >/root/trace\nexit 9\n")

    status, output = run_hyperpod("create-cluster", str(spec), "--yes", "--keep-failed")

    assert status == 1, output
    kept = containers(spare_name)["worker-1"]
    found = subprocess.run(["podman", "exec", kept, "cat", "/root/trace"], capture_output=True, text=True, check=True)
    assert found.stdout == "left as it was\n"
    births = list((Path(Lab(spare_name).ask("describe-cluster")["folder"]) / "instances").iterdir())
    assert len(births) == 2, "another machine was tried although this one was to be kept"


@pytest.mark.parametrize("moment", ["folder", "network", "container", "service"])
def test_creation_killed_at_any_moment_is_finished_by_the_next_one(
    spare_name: str, tmp_path: Path, moment: str
) -> None:
    spec = spec_named(HERE / "small.yaml", spare_name, tmp_path)
    reached: dict[str, Callable[[], bool]] = {
        "folder": lambda: "folders" in leftovers(spare_name),
        "network": lambda: "networks" in leftovers(spare_name),
        "container": lambda: bool(containers(spare_name)),
        "service": lambda: "services" in leftovers(spare_name),
    }
    first = subprocess.Popen(
        [*HYPERPOD, "create-cluster", str(spec), "--yes"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(f"its {moment} to be there", reached[moment], 200, every_s=0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(timeout=30)

    status, output = run_hyperpod("create-cluster", str(spec), "--yes")

    assert status == 0, output
    assert set(containers(spare_name)) == {"head-1", "worker-1"}
    assert Lab(spare_name).head("srun", "-N1", "hostname").strip() == "worker-1"
    left = leftovers(spare_name)
    assert len(left["networks"]) == 1
    assert len(left["services"]) == 1


def test_creating_a_cluster_again_changes_nothing(small_cluster: Lab) -> None:
    before = containers(small_cluster.name)

    status, output = run_hyperpod("create-cluster", str(HERE / "small.yaml"), "--yes")

    assert status == 0, output
    assert "is as the specification says" in output
    assert containers(small_cluster.name) == before
    status, output = run_hyperpod("create-cluster", str(HERE / "small.yaml"), "--dry-run", "--output", "json")
    assert status == 0, output
    answer = json.loads(output)
    assert answer["changes"] == []
    assert not any(answer["plan"].values())


def test_two_clusters_on_one_machine_do_not_know_each_other(lab: Lab, small_cluster: Lab) -> None:
    listed = {row["cluster"]: row for row in json.loads(small_cluster.hyperpod("list-clusters", "--output", "json"))}
    assert {lab.name, small_cluster.name} <= set(listed)
    assert all(listed[c.name]["status"] == "in service" for c in (lab, small_cluster))
    small_cluster.begin()
    here = lab.submit("--nodes=2")
    there = small_cluster.submit("--nodes=1", armed=False)
    lab.wait_running(here, ranks=2)
    small_cluster.wait_running(there)
    victim = lab.batch_host(here)

    lab.inject("power-off", victim)
    lab.wait_running(here, attempt=2, ranks=2)

    assert len(lab.finish(here)["attempts"]) == 2
    assert len(small_cluster.finish(there)["attempts"]) == 1
    assert not [e for e in small_cluster.events() if e["node"]]


def test_where_every_job_is_armed_by_default_a_job_may_refuse(small_cluster: Lab) -> None:
    small_cluster.begin()
    plain = small_cluster.submit("--ntasks=1", armed=False)
    small_cluster.wait_running(plain, step=4)
    small_cluster.inject("kill-task", "worker-1", str(plain.id))
    small_cluster.wait_running(plain, attempt=2)
    shown = small_cluster.finish(plain)
    assert len(shown["attempts"]) == 2

    refusing = small_cluster.submit("--ntasks=1", "--auto-resume=0", armed=False)
    small_cluster.wait_running(refusing)
    small_cluster.inject("kill-task", "worker-1", str(refusing.id))
    small_cluster.wait_state(refusing, "FAILED", "PENDING", "COMPLETED")
    # A job submitted later that comes to its end shows that the controller has looked at this one.
    later = small_cluster.submit("--ntasks=1", armed=False, steps=1)
    small_cluster.wait_verdict(later, "Completed")
    assert small_cluster.job_state(refusing.id) == "FAILED"
    assert small_cluster.restarts(refusing.id) == 0


def test_cluster_grows_and_shrinks_without_harm_to_jobs(small_cluster: Lab) -> None:
    name = small_cluster.name
    small_cluster.begin()
    running = small_cluster.submit("--ntasks=1", armed=False)
    small_cluster.wait_running(running)
    machine = containers(name)["worker-1"]

    small_cluster.hyperpod("update-cluster", "--group", "worker", "--count", "3", "--cluster", name)

    # All of the new size at once, right after the command has returned.
    hosts = small_cluster.head("srun", "-N3", "--overcommit", "hostname").split()
    assert sorted(hosts) == ["worker-1", "worker-2", "worker-3"]
    assert containers(name)["worker-1"] == machine
    busy = small_cluster.submit("--ntasks=1", "--nodelist=worker-3", armed=False)
    small_cluster.wait_running(busy)

    status, output = run_hyperpod("update-cluster", "--group", "worker", "--count", "1", "--cluster", name)

    assert status == 4, output
    assert "worker-3" in output
    assert "a job runs on it" in output
    assert set(containers(name)) == {"head-1", "worker-1", "worker-3"}
    seen = max(x.step for x in small_cluster.trace(busy))
    small_cluster.wait_running(busy, step=seen + 3)
    assert small_cluster.restarts(busy.id) == 0

    small_cluster.head("scancel", str(busy.id))
    small_cluster.wait_state(busy, "CANCELLED")
    left = ["squeue", "-h", "-t", "CG,R", "-w", "worker-3"]
    small_cluster.wait("its node to be free", lambda: not small_cluster.head(*left))
    small_cluster.hyperpod("update-cluster", "--group", "worker", "--count", "1", "--cluster", name)

    assert set(containers(name)) == {"head-1", "worker-1"}
    assert small_cluster.head("sinfo", "-h", "-N", "-o", "%N").split() == ["worker-1"]
    seen = max(x.step for x in small_cluster.trace(running))
    small_cluster.wait_running(running, step=seen + 3)
    assert small_cluster.restarts(running.id) == 0
    small_cluster.head("scancel", str(running.id))


def test_scale_down_takes_a_busy_node_when_forced(small_cluster: Lab) -> None:
    name = small_cluster.name
    small_cluster.begin()
    small_cluster.hyperpod("update-cluster", "--group", "worker", "--count", "2", "--cluster", name)
    busy = small_cluster.submit("--ntasks=1", "--nodelist=worker-2", "--auto-resume=0", armed=False)
    small_cluster.wait_running(busy)

    small_cluster.hyperpod("update-cluster", "--group", "worker", "--count", "1", "--force", "--cluster", name)

    assert set(containers(name)) == {"head-1", "worker-1"}
    small_cluster.head("scancel", "--user", "ubuntu")


def test_deleted_cluster_leaves_no_container_network_process_or_folder(spare_name: str, tmp_path: Path) -> None:
    spec = spec_named(HERE / "small.yaml", spare_name, tmp_path)
    status, output = run_hyperpod("create-cluster", str(spec), "--yes")
    assert status == 0, output
    assert set(leftovers(spare_name)) >= {"containers", "networks", "services", "monitors", "folders"}

    status, output = run_hyperpod("delete-cluster", spare_name, "--yes")

    assert status == 0, output
    assert leftovers(spare_name) == {}
    status, output = run_hyperpod("delete-cluster", spare_name, "--yes")
    assert status == 0, output
