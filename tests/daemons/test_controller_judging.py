"""Ticks of the whole controller on fakes: who ended a job, where it goes next, and what is remembered of machines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hyperpod.controller.memory import CLOSED_KEPT, Memory
from hyperpod.controller.queries import Queries
from hyperpod.core import messages as words
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.job import ExitCause, JobStatus
from hyperpod.core.messages import Heartbeat
from hyperpod.core.verdict import Kind, Verdict
from tests.core.worlds import NOW, exit_of
from tests.daemons.cluster import Cluster

GPU = "GPU-1b2c3d4e-0000-1111-2222-333344445555"


def runs_again(lab: Cluster, job: int, restarts: int = 1) -> bool:
    view = lab.view(job)
    return view.status is JobStatus.RUNNING and view.restart_count == restarts


def ask(lab: Cluster, what: str, **args: Any) -> Any:
    return Queries(lab.world, {0}).answer(what, args, 0)


def verdict_of(lab: Cluster, job: int, number: int = 1) -> Verdict:
    verdict = lab.record(job).attempts[number - 1].attribution
    assert verdict is not None
    return verdict


def warning(code: str = "EccUncorrected") -> Finding:
    return Finding("gpu_memory", code, Severity.WARN, f"{code} was seen")


# --- attribution ------------------------------------------------------------------------------------------------


def test_a_failure_that_nobody_explains_moves_the_job_to_other_nodes() -> None:
    lab = Cluster(workers=4, spares=0)
    job = lab.submit(nodes=2)
    first = set(lab.view(job).nodes)
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: runs_again(lab, job))
    assert first.isdisjoint(lab.view(job).nodes)
    told = verdict_of(lab, job)
    assert (told.kind, told.may_drain) == (Kind.UNKNOWN, False)
    assert "SIGSEGV" in told.reason
    assert "NodeDrained" not in lab.kinds()


def test_the_same_failure_there_too_is_the_program_and_nothing_is_held_against_the_nodes() -> None:
    lab = Cluster(workers=4, spares=0, resume={"same_failure_limit": 9})
    job = lab.submit(nodes=2)
    for restarts in (1, 2):
        lab.crash_rank(job, signal=11)
        lab.run_until(lambda restarts=restarts: runs_again(lab, job, restarts) or bool(lab.record(job).verdict))
    assert lab.record(job).verdict == "ApplicationFault"
    assert "without a common machine" in lab.record(job).verdict_message
    assert verdict_of(lab, job, 1).kind is verdict_of(lab, job, 2).kind is Kind.APPLICATION
    assert lab.store.marks() == []
    answer = ask(lab, "why", name=str(job))
    assert any("application, because the same failure" in line for line in answer["lines"])
    assert ask(lab, "job", job_id=job)["who_was_it"].startswith("application, because")


def test_with_a_full_partition_a_spare_takes_the_place_of_the_suspect() -> None:
    lab = Cluster(workers=3, spares=1)
    job = lab.submit(nodes=2)
    suspect = lab.view(job).nodes[0]
    lab.crash_rank(job, signal=7)
    lab.run_until(lambda: runs_again(lab, job))
    lab.run_until(lambda: suspect in lab.slurm.partitions()["hyperpod-spare"], seconds=30)
    assert suspect not in lab.view(job).nodes
    assert lab.kinds().count("SpareUsed") == 1
    assert "NodeDrained" not in lab.kinds()


def test_a_warning_that_comes_late_and_the_first_exit_agree_and_the_node_is_rebooted_once() -> None:
    lab = Cluster(workers=5, spares=0)
    job = lab.submit(nodes=2)
    suspect = lab.view(job).nodes[0]
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: runs_again(lab, job))
    assert verdict_of(lab, job).kind is Kind.UNKNOWN
    lab.run(60)
    lab.agents.findings[suspect] = (replace(warning(), since=lab.clock.now()),)
    lab.run(5)
    told = verdict_of(lab, job)
    assert (told.kind, told.nodes, told.may_drain) == (Kind.NODE, (suspect,), True)
    assert "AttemptJudgedAnew" in lab.kinds()
    lab.run_until(lambda: any(call[0] == "reboot" for call in lab.machines.calls), seconds=60)
    lab.agents.findings.clear()
    lab.run_until(lab.is_well, seconds=200)
    lab.run(400)
    assert len([call for call in lab.machines.calls if call[0] == "reboot"]) == 1, lab.history()


def test_without_a_second_witness_nobody_is_drained() -> None:
    lab = Cluster(workers=5, spares=0)
    job = lab.submit(nodes=2)
    other = lab.view(job).nodes[1]
    lab.agents.findings[other] = (replace(warning(), since=lab.clock.now()),)
    lab.run(2)
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: runs_again(lab, job))
    lab.run(20)
    assert verdict_of(lab, job).kind is Kind.UNKNOWN
    assert not {"NodeDrained", "RepairBegan"} & set(lab.kinds())


def test_exits_are_ordered_on_one_clock() -> None:
    """The node whose clock is ahead fell first although it says a later time."""
    lab = Cluster(workers=4, spares=0)
    job = lab.submit(nodes=2)
    ahead, right = lab.view(job).nodes
    lab.world.memory.nodes[ahead] = replace(lab.world.memory.nodes[ahead], clock_offset_s=30.0)
    now = lab.clock.now().timestamp()
    for node, at, signal in ((right, now, 6), (ahead, now - 2 + 30, 11)):
        data = {"step_id": 0, "rank": 0, "node": node, "restart_count": 0, "signal": signal}
        lab.report(words.TASK_EXIT, job_id=job, time=at, **data)
    lab.run_until(lambda: runs_again(lab, job))
    assert lab.record(job).attempts[0].signature == "task:0:11"
    assert list(verdict_of(lab, job).suspects) == [ahead]


def test_the_verdict_survives_a_restart_of_the_controller_and_so_does_suspicion() -> None:
    lab = Cluster(workers=4, spares=0)
    job = lab.submit(nodes=2)
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: runs_again(lab, job))
    told = verdict_of(lab, job)
    marks = lab.store.marks()
    assert [m.node for m in marks] == list(told.suspects)
    lab.unheard.clear()
    lab.restart()
    lab.run(2)
    assert verdict_of(lab, job) == told
    assert lab.world.last_snapshot is not None
    assert lab.world.last_snapshot.suspicion[marks[0].machine] == {job: pytest.approx(0.3, abs=0.01)}
    assert any("suspicion 0.30" in line for line in ask(lab, "why", name=marks[0].node)["lines"])


# --- the ledger of machines -------------------------------------------------------------------------------------


def ill(code: str, at: Any, device: str = "") -> Finding:
    return Finding("gpu", code, Severity.FATAL, f"{code} was seen", Action.DRAIN, since=at, device=device, is_hard=True)


def test_faults_are_counted_once_each_and_make_an_offender_in_time() -> None:
    lab = Cluster(workers=4, spares=0)
    for number in range(4):
        lab.agents.findings["worker-2"] = (ill("Lost", lab.clock.now(), f"gpu 1 {GPU}"),)
        lab.run(30)
        lab.agents.findings.clear()
        lab.run(30)
        lab.clock.advance(4000)
        lab.run(5)
        assert len(lab.store.faults()) == number + 1
    lab.run(61)
    [mine] = [m for m in ask(lab, "offenders")["machines"] if m["is_significant"]]
    assert (mine["identity"], mine["node"], mine["faults"]) == (GPU, "worker-2", 4)
    assert "RepeatOffender" in lab.kinds()
    assert lab.machines.calls == []
    assert any("it fails too often: 4 faults" in line for line in ask(lab, "why", name="worker-2")["lines"])


def test_with_the_policy_on_the_offender_is_replaced_and_its_successor_is_not() -> None:
    lab = Cluster(workers=4, spares=0, repair={"replace_offenders": True})
    for _ in range(4):
        lab.agents.findings["worker-2"] = (ill("Lost", lab.clock.now()),)
        lab.run(10)
        lab.agents.findings.clear()
        lab.run(10)
        lab.clock.advance(4000)
        lab.run(5)
    lab.run_until(lambda: lab.machines.made["worker-2"] == 2)
    lab.run_until(lab.is_well)
    lab.run(120)
    assert lab.machines.made["worker-2"] == 2, lab.history()


def test_a_finding_that_lasts_is_one_fault_also_over_a_restart() -> None:
    lab = Cluster(workers=3, spares=0)
    lab.agents.findings["worker-2"] = (ill("Lost", lab.clock.now()),)
    for _ in range(3):
        lab.run(5)
        lab.clock.advance(4000)
        lab.restart()
    lab.run(5)
    assert len(lab.store.faults()) == 1


def test_a_dead_machine_is_a_fault_and_an_administrators_wish_is_none() -> None:
    lab = Cluster(workers=4, spares=0)
    lab.machines.fail("worker-2")
    lab.run_until(lambda: lab.machines.made["worker-2"] == 2)
    lab.run_until(lab.is_well)
    assert [(f.node, f.cause) for f in lab.store.faults()] == [("worker-2", "node/NodeDead")]
    lab.slurm.drain("worker-3", "Action:Replace")
    lab.run_until(lambda: lab.machines.made["worker-3"] == 2)
    assert len(lab.store.faults()) == 1


# --- memory -----------------------------------------------------------------------------------------------------


def beat(sequence: int, *findings: Finding, sent_s: float = 0.0, **fields: Any) -> Heartbeat:
    values = {"node": "worker-1", "instance_id": "i-1", "boot_id": "b", "is_ready": True, **fields}
    return Heartbeat(sequence=sequence, sent_at=NOW.timestamp() + sent_s, findings=findings, **values)


def test_findings_that_have_closed_are_remembered_for_a_quarter_of_an_hour_of_the_same_machine() -> None:
    memory = Memory(NOW)
    memory.heard(beat(1, warning("A"), warning("B")), NOW)
    memory.heard(beat(2, warning("B")), NOW + timedelta(seconds=1))
    assert [f.code for _, f in memory.nodes["worker-1"].closed] == ["A"]
    memory.heard(beat(3, warning("A")), NOW + timedelta(seconds=2))
    assert [f.code for _, f in memory.nodes["worker-1"].closed] == ["B"]
    memory.heard(beat(4, warning("A")), NOW + timedelta(seconds=2) + CLOSED_KEPT)
    assert [f.code for _, f in memory.nodes["worker-1"].closed] == ["B"]
    memory.heard(beat(5, warning("A")), NOW + timedelta(seconds=3) + CLOSED_KEPT)
    assert memory.nodes["worker-1"].closed == ()
    memory.heard(beat(1, instance_id="i-2"), NOW + timedelta(seconds=4))
    assert memory.nodes["worker-1"].closed == ()


def test_a_message_that_was_long_on_its_way_does_not_move_a_clock() -> None:
    memory = Memory(NOW)
    for number, (sent, came) in enumerate([(2.0, 0.01), (3.0, 1.9), (4.0, 2.01)], start=1):
        memory.heard(beat(number, sent_s=sent), NOW + timedelta(seconds=came))
    assert memory.nodes["worker-1"].clock_offset_s == pytest.approx(1.99, abs=0.05)


def test_a_report_that_comes_twice_counts_once_whatever_the_clock_said_meanwhile() -> None:
    memory = Memory(NOW)
    assert memory.task_ended(exit_of(), 1.0)
    assert not memory.task_ended(exit_of(), 2.0)
    assert [e.time for e in memory.facts[7].exits] == [exit_of().time - 1.0]


def test_the_cause_of_an_attempt_stays_slurms_word() -> None:
    lab = Cluster(workers=3, spares=0)
    job = lab.submit(nodes=2)
    lab.slurm.end_job(job, exit_signal=9, status=JobStatus.OUT_OF_MEMORY)
    lab.run_until(lambda: runs_again(lab, job))
    assert lab.record(job).attempts[0].cause is ExitCause.OUT_OF_MEMORY
    assert verdict_of(lab, job).kind is Kind.APPLICATION


# --- the job's own output -------------------------------------------------------------------------------------------


def test_only_the_batch_host_is_asked_for_the_jobs_output_and_only_once() -> None:
    lab = Cluster(workers=3, spares=0)
    job = lab.submit(nodes=2, output="/home/u/slurm-7.out", uid=1000)
    lab.crash_rank(job)
    lab.crash_rank(job, rank=2)
    lab.run(1)
    asked = {n: m.get("output") for n, m in lab.agents.sent if m["type"] == words.QUICK_CHECK}
    host, other = lab.view(job).nodes
    assert asked == {host: {"job_id": job, "uid": 1000, "path": "/home/u/slurm-7.out"}, other: None}


@pytest.mark.parametrize("output", ["", "slurm.out"])
def test_an_output_without_a_whole_path_is_not_asked_for(output: str) -> None:
    lab = Cluster(workers=2, spares=0)
    job = lab.submit(nodes=1, output=output)
    lab.crash_rank(job)
    lab.run(1)
    orders = [m for _, m in lab.agents.sent if m["type"] == words.QUICK_CHECK]
    assert orders
    assert all("output" not in m for m in orders)


def test_what_a_user_writes_moves_the_job_and_drains_nobody() -> None:
    lab = Cluster(workers=3, spares=0)
    job = lab.submit(nodes=1)
    (node,) = lab.view(job).nodes
    said = Finding("neuron", "Nrt1202", Severity.WARN, "the output names 1202", since=lab.clock.now(), job_id=job)
    lab.agents.findings[node] = (said,)
    lab.crash_rank(job, signal=7)
    lab.run_until(lambda: runs_again(lab, job))
    assert lab.view(job).nodes != (node,)
    assert "NodeDrained" not in lab.kinds()
    assert (verdict_of(lab, job).kind, verdict_of(lab, job).may_drain) == (Kind.UNKNOWN, False)
