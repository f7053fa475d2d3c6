"""The mode of checks whose findings are made on the head node: act, observe and off."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from test_controller_deep import Nodes, Stage, answer_of
from test_controller_notices import Knowing
from test_slurm_reasons import drain

from hyperpod.controller.deep import DeepChecks, Options
from hyperpod.controller.health_report import health_report
from hyperpod.core.deep import Outcome, judge_tests
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.policy import Mode
from hyperpod.deep.result import Line
from tests.daemons.cluster import Cluster

# (check, code, severity as EC2 tells it, minutes until the announced time)
TOLD: list[tuple[str, str, Severity, int | None]] = [
    ("ec2_spot", "SpotInterruption", Severity.FATAL, None),
    ("ec2_status", "SystemCheckFailed", Severity.FATAL, None),
    ("ec2_event", "InstanceRetirement", Severity.WARN, 7 * 24 * 60),
    ("ec2_event", "SystemMaintenance", Severity.WARN, 5),
]
LONG_S = 180
"""Until a failed status check counts, and more."""


def modes(check: str, mode: Mode, group: str = "worker") -> dict[str, Any]:
    return {"check_modes": {group: {check: mode}}}


def findings(lab: Cluster, node: str) -> list[Finding]:
    assert lab.world.last_snapshot is not None
    return [f for n in lab.world.last_snapshot.nodes if n.name == node for f in n.findings]


def report(lab: Cluster) -> list[tuple[str, str, str, int]]:
    rows = health_report(lab.store.events(limit=10_000), [], lab.clock.now() - timedelta(days=1))
    return [(row["check"], row["mode"], row["action"], row["count"]) for row in rows]


def tell(lab: Knowing, node: str, check: str, code: str, severity: Severity, minutes: int | None) -> None:
    deadline = None if minutes is None else lab.clock.now() + timedelta(minutes=minutes)
    lab.says(node, code, check, severity, deadline=deadline)


@pytest.mark.parametrize(("check", "code", "severity", "minutes"), TOLD)
def test_what_ec2_tells_of_an_observed_check_is_shown_and_drains_nothing(
    check: str, code: str, severity: Severity, minutes: int | None
) -> None:
    lab = Knowing(repair=modes(check, Mode.OBSERVE))
    job = lab.submit()
    node = lab.view(job).nodes[0]
    tell(lab, node, check, code, severity, minutes)
    lab.run(LONG_S)
    (finding,) = findings(lab, node)
    assert (finding.code, finding.severity) == (code, Severity.WARN)
    assert finding.message.endswith("(observed only: would have drained the node and asked for Replace)")
    assert not lab.node(node).is_drained
    assert (lab.view(job).restart_count, lab.machines.made[node], lab.store.repairs()) == (0, 1, [])
    assert report(lab) == [(check, "observe", "Replace", 1)]


@pytest.mark.parametrize(("check", "code", "severity", "minutes"), TOLD)
def test_what_ec2_tells_of_a_check_that_is_off_is_no_finding(
    check: str, code: str, severity: Severity, minutes: int | None
) -> None:
    lab = Knowing(repair=modes(check, Mode.OFF))
    job = lab.submit()
    node = lab.view(job).nodes[0]
    tell(lab, node, check, code, severity, minutes)
    lab.run(LONG_S)
    assert findings(lab, node) == []
    assert not lab.node(node).is_drained
    assert report(lab) == []
    assert "ProviderFinding" not in lab.kinds()


@pytest.mark.parametrize(("check", "code", "severity", "minutes"), TOLD)
def test_the_mode_of_another_check_or_group_changes_nothing(
    check: str, code: str, severity: Severity, minutes: int | None
) -> None:
    others = {"worker": {"slurm": Mode.OFF}, "other": {"default": Mode.OBSERVE}}
    lab = Knowing(repair={"check_modes": others})
    job = lab.submit()
    node = lab.view(job).nodes[0]
    tell(lab, node, check, code, severity, minutes)
    lab.run_until(lambda: lab.node(node).is_drained, LONG_S)
    assert [(row[0], row[1]) for row in report(lab)] == [(check, "act")]


def test_a_policy_that_changes_holds_for_what_is_open_already() -> None:
    lab = Knowing()
    job = lab.submit()
    node = lab.view(job).nodes[0]
    tell(lab, node, *TOLD[2])
    lab.run_until(lambda: lab.node(node).is_drained, 30)
    lab.repair_policy = replace(lab.repair_policy, **modes("ec2_event", Mode.OBSERVE))
    lab.restart()
    lab.run(60)
    assert not lab.node(node).is_drained
    assert lab.view(job).restart_count == 0


@pytest.mark.parametrize(
    ("mode", "shown"), [(Mode.ACT, None), (Mode.OBSERVE, [("GresMissing", Severity.WARN)]), (Mode.OFF, [])]
)
def test_slurms_reason_leads_to_a_reboot_only_where_it_may_act(
    mode: Mode, shown: list[tuple[str, Severity]] | None
) -> None:
    lab = Cluster(repair=modes("slurm", mode))
    drain(lab, "worker-1", "slurm")
    lab.run(90)
    assert ("NodeRebooting" in lab.kinds()) == (mode is Mode.ACT)
    if shown is not None:
        assert [(f.code, f.severity) for f in findings(lab, "worker-1")] == shown
        # Slurm's own drain is not ours to lift.
        assert lab.node("worker-1").is_drained
    assert (
        report(lab)
        == {
            Mode.ACT: [("slurm", "act", "Reboot", 1)],
            Mode.OBSERVE: [("slurm", "observe", "Reboot", 1)],
            Mode.OFF: [],
        }[mode]
    )


@pytest.mark.parametrize(
    ("mode", "state", "told"),
    [
        (Mode.ACT, "FATAL", [("CpuCorrupt", "FATAL", "Replace")]),
        (Mode.OBSERVE, "WARN", [("CpuCorrupt", "WARN", "None")]),
        (Mode.OFF, "OK", []),
    ],
)
def test_a_deep_check_tells_the_agent_what_its_groups_policy_leaves(
    mode: Mode, state: str, told: list[tuple[str, str, str]]
) -> None:
    lab = Cluster(repair=modes("deep", mode))
    nodes = Nodes(lab)
    stage = Stage(lab, nodes, DeepChecks(lab.world, nodes.ask, Options(seconds=1.0)))
    wrong = answer_of(Line("cpu_numeric", False, detail="core 3: integers gave 1 instead of 2"))
    nodes.faults["worker-2", "stress"] = lambda args: wrong
    shown = stage.run(kinds=["InstanceStress"])
    assert stage.states(shown)["worker-2"] == state
    # The figures are shown whatever the policy says.
    assert [t["ok"] for n in shown["nodes"] if n["node"] == "worker-2" for t in n["tests"]] == [False]
    (message,) = (m for n, m in lab.agents.sent if n == "worker-2" and m["type"] == "deep_judged")
    assert [(f["code"], f["severity"], f["action"]) for f in message["findings"]] == told
    assert any("worker-2: " in line for line in lab.history() if "DeepCheck" in line) == bool(told)


@pytest.mark.parametrize(
    ("mode", "shown"), [(Mode.ACT, None), (Mode.OBSERVE, [("CpuCorrupt", Severity.WARN)]), (Mode.OFF, [])]
)
def test_a_deep_finding_that_an_agent_still_holds_obeys_the_policy_of_now(
    mode: Mode, shown: list[tuple[str, Severity]] | None
) -> None:
    lab = Cluster(repair=modes("deep", mode))
    lab.agents.findings["worker-1"] = tuple(judge_tests({"worker-1": [Outcome("cpu_numeric", False)]})["worker-1"])
    lab.run(3)
    assert lab.node("worker-1").is_drained == (mode is Mode.ACT)
    if shown is not None:
        assert [(f.code, f.severity) for f in findings(lab, "worker-1")] == shown
        # What has just closed is evidence when a job dies, and is judged by the same policy.
        lab.agents.findings["worker-1"] = ()
        lab.run(3)
        assert lab.world.last_snapshot is not None
        (node,) = (n for n in lab.world.last_snapshot.nodes if n.name == "worker-1")
        assert [(f.code, f.severity) for f in node.closed] == shown


@pytest.mark.parametrize(("mode", "is_shown"), [(Mode.ACT, True), (Mode.OBSERVE, True), (Mode.OFF, False)])
def test_a_clock_that_only_the_controller_sees_is_told_unless_munge_is_off(mode: Mode, is_shown: bool) -> None:
    lab = Cluster(repair=modes("munge", mode))
    address = lab._address("worker-1")
    for _ in range(8):
        lab.world.memory.sees_clock(address, 600.0, lab.clock.now())
        lab.run(1)
    assert ([f.code for f in findings(lab, "worker-1")] == ["ClockOffset"]) == is_shown


def test_an_agents_own_finding_is_not_judged_a_second_time_on_the_head_node() -> None:
    lab = Cluster(repair=modes("disk", Mode.OFF))
    lab.agents.findings["worker-1"] = (Finding("disk", "DiskFull", Severity.FATAL, "full", Action.DRAIN),)
    lab.run(3)
    assert lab.node("worker-1").is_drained
