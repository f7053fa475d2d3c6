"""Nodes that are ill, and what people say about nodes in their reasons."""

from __future__ import annotations

import pytest

from tests.e2e.lab import XID_64, XID_79, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240, func_only=True)]


@pytest.mark.parametrize(("line", "is_replaced"), [(XID_79, False), (XID_64, True)], ids=["reboot", "replace"])
def test_armed_job_leaves_a_bad_node_and_the_other_runs_to_its_end_before_the_node_is_repaired(
    lab: Lab, line: str, is_replaced: bool
) -> None:
    armed = lab.submit("--ntasks=1")
    lab.wait_running(armed)
    bad = lab.batch_host(armed)
    other = lab.submit("--ntasks=1", f"--nodelist={bad}", armed=False)
    lab.wait_running(other)
    old = lab.instance(bad)

    lab.inject("kernel-line", bad, line)
    lab.wait_running(armed, attempt=2)

    # The other one is still at work there, on the same machine, which takes nothing new.
    assert lab.job_nodes(armed.id) != [bad]
    seen = lab.trace(other)[-1].step
    lab.wait_running(other, step=seen + 5)
    view = lab.nodes()[bad]
    assert (view["state"], view["instance_id"], view["jobs"]) == ("draining", old, [other.id])
    assert view["reason"].startswith("hyperpod:")
    assert not [e for e in lab.events(node=bad) if e["kind"] in ("NodeRebooting", "NodeReplacing")]
    lab.end(other)
    lab.wait_state(other, "COMPLETED")
    assert lab.restarts(other.id) == 0
    steps = [x.step for x in lab.trace(other) if x.kind == "step"]
    assert steps == list(range(1, len(steps) + 1))
    lab.wait("the node to be repaired", lambda: lab.events("NodeHealthy", node=bad), 120)
    assert (lab.instance(bad) != old) is is_replaced
    assert bool(lab.events("NodeRebooting", node=bad)) is not is_replaced
    shown = lab.finish(armed)
    assert [a["cause"] for a in shown["attempts"]] == ["NodeUnhealthy", "Completed"]
    assert line.partition("): ")[2][:2] in shown["attempts"][0]["message"]


def test_application_xid_drains_nothing(lab: Lab) -> None:
    job = lab.submit("--ntasks=1")
    lab.wait_running(job)
    node = lab.batch_host(job)

    lab.inject("kernel-line", node, "NVRM: Xid (PCI:0000:9b:00): 31, pid=1234, name=python3, MMU Fault")

    lab.wait("the agent to have read the line", lambda: "31" in str(lab.nodes()[node]["findings"]), 60)
    shown = lab.finish(job)
    assert len(shown["attempts"]) == 1
    assert not lab.events("NodeDrained")


def test_persons_drain_is_left_before_and_after_a_finding(lab: Lab) -> None:
    before, after = lab.workers()[:2]
    machines = {node: lab.instance(node) for node in (before, after)}
    lab.head("scontrol", "update", f"nodename={before}", "state=drain", "reason=cable is being changed")
    lab.wait("the drain to be seen", lambda: lab.nodes()[before]["state"] == "drained (person)", 60)

    lab.inject("kernel-line", before, XID_79)
    lab.wait("the finding to be seen", lambda: "79" in str(lab.nodes()[before]["findings"]), 60)
    job = lab.submit("--ntasks=1", f"--nodelist={after}", armed=False)
    lab.wait_running(job)
    lab.inject("kernel-line", after, XID_64)
    lab.wait("the second node to be drained by us", lambda: lab.nodes()[after]["state"] == "draining", 60)
    lab.head("scontrol", "update", f"nodename={after}", "state=drain", "reason=mine now")
    lab.head("scancel", str(job.id))
    lab.wait("a remark about the first node", lambda: any(n["node"] == before for n in lab.notes()), 60)

    view = lab.nodes()[before]
    assert view["reason"] == "cable is being changed"
    assert view["instance_id"] == machines[before]
    assert not lab.events("NodeUndrained", node=before)
    assert not [e for e in lab.events(node=before) if e["kind"] in ("NodeDrained", "NodeReplacing", "RepairBegan")]
    # The other one is replaced, as its finding wants, and then waits for whoever drained it.
    lab.wait("the second node's machine to be replaced", lambda: lab.instance(after) != machines[after], 120)
    lab.wait("its repair to end", lambda: lab.nodes()[after]["state"] == "drained (person)", 120)
    assert lab.nodes()[after]["reason"] == "mine now"

    lab.hyperpod("replace-node", before, "--cluster", lab.name, "--yes", "--force")
    lab.wait("the first node's machine to be replaced", lambda: lab.instance(before) != machines[before], 120)


def test_action_replace_typed_by_an_administrator_replaces_the_node_and_a_near_miss_is_answered(lab: Lab) -> None:
    node, other = lab.workers()[:2]
    machines = {name: lab.instance(name) for name in (node, other)}

    lab.head("scontrol", "update", f"nodename={other}", "state=drain", "reason=action:replace")
    lab.head("scontrol", "update", f"nodename={node}", "state=fail", "reason=Action:Replace")

    lab.wait_replaced(node, machines[node])
    lab.wait("an answer in the reason", lambda: "did you mean Action:Replace" in lab.nodes()[other]["reason"], 60)
    assert lab.instance(other) == machines[other]
    lab.head("scontrol", "update", f"nodename={other}", "state=drain", "reason=Action:Replace")
    lab.wait_replaced(other, machines[other])
    assert len(lab.events("NodeReplaced")) == 2
