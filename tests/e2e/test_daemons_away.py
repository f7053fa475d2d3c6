"""Our own programs die, or are away: nothing is done twice, and no job depends on them."""

from __future__ import annotations

import time

import pytest

from tests.e2e.lab import HOME, Lab, assert_no_overlap

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240, func_only=True)]

WORKERS = ("worker-1", "worker-2", "worker-3", "worker-4")
STAGES = ("RepairBegan", "NodeFenced", "NodeDown", "AttemptStarted", "NodeReplaced")


@pytest.mark.parametrize(
    ("fault", "stages"),
    [
        ("power-off", ("RepairBegan",)),
        ("network-cut", ("NodeFenced",)),
        ("power-off", ("NodeDown", "AttemptEnded")),
        ("network-cut", STAGES),
    ],
    ids=["at the decision", "after the fence", "around the requeue", "again and again"],
)
def test_controller_killed_in_mid_repair_does_everything_once(lab: Lab, fault: str, stages: tuple[str, ...]) -> None:
    job = lab.submit("--nodes=2")
    lab.wait_running(job, step=6, ranks=2)
    nodes = lab.job_nodes(job.id)
    machines = {name: view["instance_id"] for name, view in lab.nodes().items()}
    births = lab.count_births()
    killer = lab.start_on_head("python3", f"{HOME}/kill_controller.py", str(lab.latest_event()), *stages)

    lab.inject(fault, nodes[1])
    lab.wait_running(job, attempt=2, ranks=2)
    shown = lab.finish(job)

    lab.wait_replaced(nodes[1], machines[nodes[1]])
    killed_at = killer.communicate(timeout=130)[0].split()
    assert stages[0] in killed_at
    assert [a["cause"] for a in shown["attempts"]] == ["NodeDead", "Completed"]
    assert lab.restarts(job.id) == 1
    assert nodes[1] not in shown["attempts"][1]["nodes"]
    assert_no_overlap(lab.trace(job))
    lab.wait("the cluster to be at rest", lab.is_settled, 120, every_s=0.5)
    now = {name: view["instance_id"] for name, view in lab.nodes().items()}
    assert {name for name in now if now[name] != machines[name]} == {nodes[1]}
    assert lab.count_births() == births + 1


def test_jobs_submit_run_and_end_while_agents_and_controller_are_away(lab: Lab) -> None:
    lab.head("systemctl", "stop", "hyperpod-controller")
    for node in WORKERS:
        lab.on_node(node, "systemctl", "stop", "hyperpod-agent")
    try:
        armed = lab.submit("--nodes=2", steps=3)
        plain = [lab.submit("--ntasks=1", steps=3, armed=False) for _ in range(4)]
        for job in (armed, *plain):
            lab.wait_state(job, "COMPLETED")
        # The plugin gives up on the agent once a step: far from a time-out of anything.
        began = time.monotonic()
        lab.head("srun", "-N2", "true")
        assert time.monotonic() - began < 20
    finally:
        for node in WORKERS:
            lab.on_node(node, "systemctl", "start", "hyperpod-agent")
        lab.head("systemctl", "start", "hyperpod-controller")


def test_job_survives_a_reboot_of_the_head_node_and_is_watched_afterwards(lab: Lab) -> None:
    job = lab.submit("--nodes=2")
    lab.wait_running(job, ranks=2)
    head = lab.container("head-1")

    lab.hyperpod("reboot-node", "head-1", "--yes", "--cluster", lab.name)

    assert lab.container("head-1") == head
    lab.wait("slurmctld and our controller to answer again", lambda: lab.nodes() and lab.job_state(job.id), 120)
    seen = max(x.step for x in lab.trace(job))
    lab.wait_running(job, attempt=1, step=seen + 5, ranks=2)
    assert lab.job_state(job.id) == "RUNNING"
    assert lab.restarts(job.id) == 0
    lab.wait("every agent to be heard", lambda: all(n["state"] != "not ready" for n in lab.nodes().values()), 60)
    assert not lab.events("NodeFenced")

    lab.inject("kill-task", lab.batch_host(job), str(job.id))
    lab.wait_running(job, attempt=2, ranks=2)
    assert min(x.step for x in lab.trace(job) if x.attempt == 2) >= seen - 2
    assert lab.restarts(job.id) == 1


def test_agent_that_is_killed_comes_back_and_its_jobs_do_not_notice(lab: Lab) -> None:
    job = lab.submit("--nodes=1")
    lab.wait_running(job)
    node = lab.batch_host(job)

    lab.on_node(node, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", "hyperpod-agent")
    seen = lab.trace(job)[-1].step
    lab.wait("the agent to be back", lambda: _is_active(lab, node), 60)
    lab.wait_running(job, step=seen + 10)
    shown = lab.finish(job)

    assert len(shown["attempts"]) == 1
    assert not lab.events("NodeFenced")


def _is_active(lab: Lab, node: str) -> bool:
    return lab.on_node(node, "systemctl", "is-active", "hyperpod-agent", check=False).strip() == "active"
