"""What the provider says of its machines: the second look, and how long jobs may go on before an announced end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.node import RepairStatus
from hyperpod.core.notices import LAST_MINUTES, SECOND_LOOK_AFTER, Notices, due_findings, settle
from hyperpod.core.repair import decide_repair
from tests.core.worlds import NOW, POLICY, codes, drained, fatal, in_repair, machine, names, node, nodes, of, snapshot


def failed_check(code: str = "SystemCheckFailed", number: int = 1) -> Finding:
    return fatal(code, check="ec2_status", instance_id=machine(number))


def announced(hours: float = 48, number: int = 1, **fields: object) -> Finding:
    values = {"check": "ec2_event", "instance_id": machine(number), "device": f"event-{number}", **fields}
    return Finding(
        code="InstanceRetirement",
        severity=Severity.WARN,
        message="EC2 has scheduled instance retirement",
        action=Action.REPLACE,
        is_hard=True,
        deadline=NOW + timedelta(hours=hours),
        **values,  # type: ignore[arg-type]
    )


def looks(*seconds: float, boots: tuple[str, ...] = ()) -> list[Severity]:
    """Severity of a failed system check at each of several looks; ``boots`` names the boot at each."""
    state, out = Notices(), []
    for number, at in enumerate(seconds):
        boot = boots[number] if boots else "boot-1"
        state = settle(state, {"worker-1": (failed_check(),)}, {"worker-1": boot}, NOW + timedelta(seconds=at))
        out.append(state.findings["worker-1"][0].severity)
    return out


def test_a_failed_status_check_counts_only_after_it_has_lasted() -> None:
    assert looks(0, 60, SECOND_LOOK_AFTER.total_seconds()) == [Severity.WARN, Severity.WARN, Severity.FATAL]


def test_a_reboot_gives_the_status_check_its_time_again() -> None:
    assert looks(0, 150, 160, boots=("a", "b", "b")) == [Severity.WARN, Severity.WARN, Severity.WARN]


def test_a_status_check_that_recovered_begins_anew() -> None:
    first = settle(Notices(), {"worker-1": (failed_check(),)}, {}, NOW)
    well = settle(first, {}, {}, NOW + timedelta(seconds=60))
    again = settle(well, {"worker-1": (failed_check(),)}, {}, NOW + timedelta(seconds=130))

    assert again.findings["worker-1"][0].severity is Severity.WARN


def test_a_spot_interruption_needs_no_second_look() -> None:
    taken = fatal("SpotInterruption", check="ec2_spot", instance_id=machine(1))

    assert settle(Notices(), {"worker-1": (taken,)}, {}, NOW).findings["worker-1"] == (taken,)


@pytest.mark.parametrize(("is_heard", "severity"), [(True, Severity.WARN), (False, Severity.FATAL)])
def test_a_system_whose_agent_is_heard_is_not_rebooted_for_ec2s_opinion(is_heard: bool, severity: Severity) -> None:
    (finding,) = due_findings([failed_check("InstanceCheckFailed")], is_heard=is_heard, now=NOW)

    assert finding.severity is severity


def test_a_host_that_fails_counts_although_the_agent_is_heard() -> None:
    (finding,) = due_findings([failed_check()], is_heard=True, now=NOW)

    assert finding.severity is Severity.FATAL


@pytest.mark.parametrize(("minutes", "severity"), [(16, Severity.WARN), (15, Severity.FATAL), (-60, Severity.FATAL)])
def test_an_announced_end_is_fatal_shortly_before(minutes: float, severity: Severity) -> None:
    (finding,) = due_findings([announced(minutes / 60)], is_heard=True, now=NOW)

    assert finding.severity is severity
    assert timedelta(minutes=15) == LAST_MINUTES


def test_an_announced_end_keeps_new_work_away_and_lets_the_job_go_on() -> None:
    ill = node(1, jobs=(7,), findings=(announced(),))
    plan = decide_repair(snapshot(*nodes(8, ill)), POLICY)

    assert names(plan) == ["SaveRepair", "DrainNode"]
    reason = of(plan, type(plan.actions[1]))[0].reason
    assert reason.startswith("hyperpod:ec2_event/InstanceRetirement")
    waiting = in_repair(1, RepairStatus.DRAINING, {"jobs": (7,), "findings": (announced(),)}, cause="ec2_event/X")
    assert codes(decide_repair(snapshot(*nodes(8, waiting)), POLICY)) == ["Draining"]


def test_the_machine_is_replaced_when_its_job_has_left() -> None:
    free = in_repair(
        1,
        RepairStatus.DRAINING,
        {"findings": (announced(),), "reason": "hyperpod:ec2_event/InstanceRetirement x"},
        cause="ec2_event/InstanceRetirement",
        action=Action.DRAIN,
    )

    assert names(decide_repair(snapshot(*nodes(8, free)), POLICY)) == ["SaveRepair", "ReplaceInstance"]


def test_few_machines_at_a_time_leave_for_an_announced_end() -> None:
    world = [node(i, findings=(announced(number=i),)) for i in range(1, 7)]
    plan = decide_repair(snapshot(*nodes(20, *world)), POLICY)

    assert names(plan).count("DrainNode") == POLICY.max_parallel_repaired
    assert codes(plan).count("Refused") == 4


def test_a_persons_drain_is_left_alone_for_an_announced_end() -> None:
    theirs = drained(1, "fan", by="ann", findings=(announced(),))

    assert names(decide_repair(snapshot(*nodes(8, theirs)), POLICY)) == []


def test_an_event_of_the_machine_before_harms_nobody() -> None:
    fresh = node(1, findings=(announced(number=99),))

    assert names(decide_repair(snapshot(*nodes(8, fresh)), POLICY)) == []


def test_many_spot_interruptions_do_not_open_the_breaker() -> None:
    gone = [node(i, findings=(fatal("SpotInterruption", check="ec2_spot"),)) for i in range(1, 5)]
    plan = decide_repair(snapshot(*nodes(20, *gone)), POLICY)

    assert names(plan).count("DrainNode") == 4
    assert "BreakerOpen" not in codes(plan)


def test_a_drain_for_a_notice_is_not_lifted_before_the_provider_has_spoken() -> None:
    waiting = in_repair(1, RepairStatus.DRAINING, {"jobs": (7,)}, cause="ec2_spot/SpotInterruption")
    silent = decide_repair(snapshot(*nodes(8, waiting), are_notices_known=False), POLICY)
    spoken = decide_repair(snapshot(*nodes(8, waiting)), POLICY)

    assert names(silent) == []
    assert names(spoken) == ["UndrainNode", "EndRepair"]
