"""Devices of a machine fail, on a device tree that belongs to the node."""

from __future__ import annotations

import json

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240, func_only=True)]

EFA = "class/infiniband/rdmap0s6"
MODULE = "devices/system/edac/mc/mc0"
PORT = "class/infiniband/mlx5_0/ports/1"


def give(lab: Lab, node: str, **files: str | int) -> None:
    """Put files into the node's device tree; underscores at two places stand for slashes."""
    for path, value in files.items():
        lab.inject("sysfs", node, "--path", path, "--value", str(value))


def codes(lab: Lab, node: str) -> str:
    """Return what the controller knows of a node's findings."""
    return str(lab.nodes()[node]["findings"])


def has_looked_again(lab: Lab, node: str, check: str) -> None:
    """Wait until a check that begins from now on has come back."""

    def runs() -> int:
        told = json.loads(lab.on_node(node, "hyperpod", "health", "--output", "json", check=False))
        return int(next(c["runs"] for c in told["checks"] if c["name"] == check))

    # One that runs just now may have read before.
    wanted = runs() + 2
    lab.wait(f"the check {check}", lambda: runs() >= wanted, 60)


def test_job_leaves_a_node_whose_network_card_does_not_answer_and_the_node_is_rebooted(lab: Lab) -> None:
    job = lab.submit("--ntasks=1")
    lab.wait_running(job)
    bad = lab.batch_host(job)
    old = lab.instance(bad)
    give(lab, bad, **{f"{EFA}/device/vendor": "0x1d0f", f"{EFA}/hw_counters/no_completion_cmds": 3})
    seen = lab.trace(job)[-1].step
    lab.wait_running(job, step=seen + 20)
    assert "EfaNoCompletion" not in codes(lab, bad)

    give(lab, bad, **{f"{EFA}/hw_counters/no_completion_cmds": 4})
    lab.wait_running(job, attempt=2)

    assert lab.job_nodes(job.id) != [bad]
    (drained,) = lab.events("NodeDrained", node=bad)
    assert "EfaNoCompletion" in drained["message"]
    shown = lab.finish(job)
    assert [attempt["cause"] for attempt in shown["attempts"]] == ["NodeUnhealthy", "Completed"]
    lab.wait("the node to work again", lambda: lab.nodes()[bad]["state"] in ("idle", "spare"), 120)
    assert lab.instance(bad) == old
    assert lab.events("NodeRebooting", node=bad)


def test_corrected_memory_errors_are_shown_and_an_uncorrected_one_costs_the_machine(lab: Lab) -> None:
    job = lab.submit("--ntasks=1")
    lab.wait_running(job)
    node = lab.batch_host(job)
    old = lab.instance(node)
    give(lab, node, **{f"{MODULE}/dimm0/dimm_ce_count": 1, f"{MODULE}/ce_count": 1, f"{MODULE}/ue_count": 0})
    seen = lab.trace(job)[-1].step
    lab.wait_running(job, step=seen + 20)
    give(lab, node, **{f"{MODULE}/dimm0/dimm_ce_count": 5000, f"{MODULE}/ce_count": 5000})
    lab.wait("the warning", lambda: "MemoryCorrected" in codes(lab, node), 60)
    assert len(lab.show_job(job.id)["attempts"]) == 1
    assert not lab.events("NodeDrained")

    give(lab, node, **{f"{MODULE}/ue_count": 1})
    lab.wait_running(job, attempt=2)
    assert lab.job_nodes(job.id) != [node]
    lab.finish(job)
    lab.wait_replaced(node, old)


def test_port_that_never_was_up_is_spare_and_one_that_goes_down_drains_until_it_is_back(lab: Lab) -> None:
    node = lab.workers()[0]
    machine = lab.instance(node)
    give(lab, node, **{f"{PORT}/state": "1: DOWN", f"{PORT}/phys_state": "2: Polling"})
    give(lab, node, **{f"{PORT}/state": "4: ACTIVE", f"{PORT}/phys_state": "5: LinkUp"})
    job = lab.submit("--ntasks=1", f"--nodelist={node}")
    lab.wait_running(job, step=20)
    assert not lab.events("NodeDrained")
    lab.finish(job)
    has_looked_again(lab, node, "infiniband")

    give(lab, node, **{f"{PORT}/state": "1: DOWN"})
    lab.wait("the drain", lambda: lab.events("NodeDrained", node=node), 60)
    assert "LinkDown" in codes(lab, node)
    lab.hyperpod("inject", "sysfs", node, f"{PORT}/state", "--undo", "--cluster", lab.name)
    lab.wait("the node to be open again", lambda: lab.events("NodeUndrained", node=node), 60)
    assert lab.instance(node) == machine
