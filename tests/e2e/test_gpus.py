"""GPUs on real nodes: a test library in NVML's place, with everything above it as it is elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.lab import Lab

pytest.importorskip("pynvml")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240, func_only=True)]


@pytest.fixture
def with_gpus(lab: Lab) -> Iterator[Lab]:
    """The cluster with eight test GPUs on every worker, which its agents have looked at."""
    nodes = list(lab.nodes())
    for node in nodes:
        lab.inject("gpus", node, "8")
    for node in nodes:
        lab.wait("the agent to have looked at its GPUs", lambda n=node: agent(lab, n).get("gpu_recovery"), 60)
    lab.clean_up()
    lab.begin()
    yield lab
    for node in nodes:
        lab.inject("gpus", node, "--undo")


def agent(lab: Lab, node: str) -> dict[str, int]:
    """Return how often each check of a node's agent has run."""
    text = lab.on_node(node, "hyperpod", "health", "--output", "json", check=False)
    return {check["name"]: check["runs"] for check in json.loads(text)["checks"]} if text.startswith("{") else {}


@pytest.mark.parametrize(("fault", "part"), [("reset:3", "GPU 0000:28:00.0: GPU Reset"), ("lost:5", "GPU 5")])
def test_a_job_leaves_a_node_with_a_bad_gpu_which_is_rebooted_and_works_again(
    with_gpus: Lab, fault: str, part: str
) -> None:
    lab = with_gpus
    job = lab.submit("--ntasks=1")
    lab.wait_running(job)
    bad = lab.batch_host(job)
    machine = lab.instance(bad)
    assert not lab.events("NodeDrained")

    lab.inject("gpu-fault", bad, fault)
    lab.wait_running(job, attempt=2)

    assert lab.job_nodes(job.id) != [bad]
    lab.wait("the node to be repaired", lambda: lab.events("NodeHealthy", node=bad), 120)
    assert lab.events("NodeRebooting", node=bad)
    assert lab.instance(bad) == machine
    shown = lab.finish(job)
    assert [a["cause"] for a in shown["attempts"]] == ["NodeUnhealthy", "Completed"]
    assert part in shown["attempts"][0]["message"]
