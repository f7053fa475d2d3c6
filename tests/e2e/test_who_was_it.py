"""Who ended a job on a real cluster, and where its next attempt runs."""

from __future__ import annotations

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240, func_only=True)]


def test_the_same_failure_on_two_sets_of_nodes_is_the_programs(lab: Lab) -> None:
    before = _suspicion(lab)
    job = lab.submit("--nodes=1", fail_at=1)

    shown = lab.wait_verdict(job, "ApplicationFault")

    first, second = shown["attempts"]
    assert not set(first["nodes"]) & set(second["nodes"])
    assert [a["attribution"]["kind"] for a in shown["attempts"]] == ["application", "application"]
    assert shown["who_was_it"].startswith("application, because the same failure on two sets of nodes")
    assert "who was it" in lab.head("hyperpod", "job", "show", str(job.id))
    assert "was ended by: application" in lab.head("hyperpod", "why", str(job.id))
    # Nothing is held against either node.
    assert not lab.events("NodeDrained")
    after = _suspicion(lab)
    assert all(after.get(node, 0.0) <= before.get(node, 0.0) for node in (*first["nodes"], *second["nodes"]))


def _suspicion(lab: Lab) -> dict[str, float]:
    return {s["node"]: s["suspicion"] for s in lab.head_json("health", "offenders")["suspects"]}


def test_a_failure_that_nobody_explains_moves_the_job_to_other_nodes(lab: Lab) -> None:
    job = lab.submit("--nodes=1")
    lab.wait_running(job, step=4)
    [first] = lab.job_nodes(job.id)

    lab.inject("kill-task", first, str(job.id))
    lab.wait_running(job, attempt=2)

    assert first not in lab.job_nodes(job.id)
    shown = lab.finish(job)
    told = shown["attempts"][0]["attribution"]
    assert (told["kind"], told["may_drain"], list(told["suspects"])) == ("unknown", False, [first])
    # The reason may name what earlier tests have left on the machine; the exit is among the evidence.
    assert any("signal 9" in piece["what"] for piece in told["evidence"])
    assert _suspicion(lab)[first] > 0
    assert not lab.events("NodeDrained")


def test_het_job_does_not_hang_when_a_rank_of_its_second_component_dies(lab: Lab) -> None:
    # Rank 0 goes on for ever, does not hear SIGTERM, and srun is told not to mind the other's end.
    job = lab.submit("--nodes=1", ":", "--nodes=1", script="het.sh", hangs=0, slurm_kill_bad_exit=0)
    lab.wait_running(job, step=4, ranks=2)
    components = lab.head("squeue", "-h", "-j", str(job.id), "-o", "%N").split()

    lab.on_node(components[1], "pkill", "-KILL", "-f", "^/bin/bash /home/ubuntu/rank.sh")
    lab.wait_running(job, attempt=2, ranks=2)

    assert f"on {components[1]} was killed by signal 9" in lab.show_job(job.id)["attempts"][0]["message"]
    lab.head("scancel", str(job.id), user="ubuntu")
    lab.wait_verdict(job, "UserCancelled")
