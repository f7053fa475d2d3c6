"""A node dies under a job, and the job goes on from its last checkpoint."""

from __future__ import annotations

import pytest

from tests.e2e.lab import Lab, assert_no_overlap

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300, func_only=True)]


def test_job_whose_node_loses_power_goes_on_elsewhere_from_its_last_good_checkpoint(lab: Lab) -> None:
    job = lab.submit("--nodes=2", leaves_half="yes")
    after = lab.sbatch(f"--dependency=afterok:{job.id}", "--wrap=true")
    lab.wait_running(job, step=10, ranks=2)
    nodes = lab.job_nodes(job.id)
    old = lab.instance(nodes[1])

    lab.inject("power-off", nodes[1])
    lab.wait_running(job, attempt=2, ranks=2)
    shown = lab.finish(job)

    assert len(shown["attempts"]) == 2
    first, second = shown["attempts"]
    assert first["cause"] == "NodeDead"
    assert nodes[1] not in second["nodes"]
    assert lab.restarts(job.id) == 1
    # It began at the newest whole checkpoint, and not at the one that was cut short.
    trace = lab.trace(job)
    starts = {x.step for x in trace if x.kind == "start" and x.attempt == 2}
    reached = max(x.step for x in trace if x.attempt == 1 and x.rank == 0)
    assert len(starts) == 1
    assert reached - 2 <= starts.pop() <= reached
    assert not lab.host_path(f"{job.directory}/step_9999").exists()
    assert any("step_9999" in e["message"] for e in lab.events("CheckpointSetAside", job=job.id))
    assert "NodeDead" in lab.file_text(f"{job.directory}/previous-2")
    assert_no_overlap(trace)
    # One log over both attempts; who waited for the job was started after it.
    log = lab.file_text(f"{job.directory}.out")
    assert "log of attempt 1" in log
    assert "log of attempt 2" in log
    lab.wait_state(after, "COMPLETED")
    # The lost machine has been replaced, once.
    lab.wait_replaced(nodes[1], old)
    assert len(lab.events("NodeReplaced")) == 1
    assert len(lab.events("JobRequeued", job=job.id)) <= 1


def test_job_goes_on_when_the_node_of_its_batch_script_dies(lab: Lab) -> None:
    job = lab.submit("--nodes=2")
    lab.wait_running(job, step=6, ranks=2)
    victim = lab.batch_host(job)

    lab.inject("power-off", victim)
    lab.wait_running(job, attempt=2, ranks=2)
    shown = lab.finish(job)

    assert [a["cause"] for a in shown["attempts"]] == ["NodeDead", "Completed"]
    assert victim not in shown["attempts"][1]["nodes"]
    assert_no_overlap(lab.trace(job))


def test_node_that_is_cut_off_but_alive_never_writes_beside_the_next_attempt(lab: Lab) -> None:
    job = lab.submit("--nodes=1", step_time=0.05, save_every=5)
    lab.wait_running(job, step=20)
    victim = lab.batch_host(job)
    old = lab.instance(victim)

    lab.inject("network-cut", victim)
    lab.wait_running(job, attempt=2)
    shown = lab.finish(job)

    assert [a["cause"] for a in shown["attempts"]] == ["NodeDead", "Completed"]
    trace = lab.trace(job)
    assert {x.node for x in trace if x.attempt == 1} == {victim}
    assert victim not in {x.node for x in trace if x.attempt == 2}
    assert_no_overlap(trace)
    # It was powered off before the job was released.
    order = [e["kind"] for e in lab.events() if e["kind"] in ("NodeFenced", "NodeDown", "AttemptEnded")]
    assert order[:2] == ["NodeFenced", "NodeDown"]
    lab.wait_replaced(victim, old)


def test_without_the_provider_a_cut_off_node_ends_its_job_itself_and_nothing_destructive_is_done(lab: Lab) -> None:
    job = lab.submit("--nodes=1", step_time=0.05, save_every=5)
    lab.wait_running(job, step=20)
    victim = lab.batch_host(job)
    old = lab.instance(victim)
    lab.stop_provider_service()
    mark_of_the_cut = lab.trace(job)[-1].time

    lab.inject("network-cut", victim)
    # The lease: with nobody in sight the agent ends what may be started elsewhere.
    lab.wait(
        "the cut off node to end the job's processes",
        lambda: not lab.on_node(victim, "pgrep", "-f", "rank.sh", check=False),
        90,
    )
    lab.wait("the controller to say what it lacks", lambda: _lacks(lab, "provider"), 60)
    assert not lab.provider_is_served()
    assert lab.trace(job)[-1].time > mark_of_the_cut
    assert lab.job_state(job.id) == "RUNNING"
    assert lab.restarts(job.id) == 0
    assert not [e for e in lab.events() if e["kind"] in ("NodeFenced", "NodeDown", "NodeDrained", "JobRequeued")]

    lab.hyperpod("status", "--cluster", lab.name)  # any command of the machine below brings the service back
    lab.wait_running(job, attempt=2, step=1)
    assert victim not in lab.job_nodes(job.id)
    assert_no_overlap(lab.trace(job))
    lab.wait_replaced(victim, old)


def _lacks(lab: Lab, source: str) -> bool:
    status = lab.head_json("status")
    return source in status["missing"] and any(n["code"] == "IncompleteObservation" for n in status["notes"])


def test_frozen_node_is_found_dead_although_its_ports_still_take_connections(lab: Lab) -> None:
    job = lab.submit("--nodes=2")
    lab.wait_running(job, step=6, ranks=2)
    victim = lab.job_nodes(job.id)[1]

    lab.inject("freeze", victim)
    lab.wait_running(job, attempt=2, ranks=2)
    shown = lab.finish(job)

    assert [a["cause"] for a in shown["attempts"]] == ["NodeDead", "Completed"]
    assert_no_overlap(lab.trace(job))
