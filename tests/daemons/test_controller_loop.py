"""Ticks of the whole controller on fakes: findings, people, silence, refusals, restarts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperpod.controller.commands import Commands
from hyperpod.core import messages as words
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.job import BATCH_STEP, ExitCause, JobStatus
from hyperpod.core.node import InstanceStatus, RepairStatus
from hyperpod.errors import NoCapacity, SlurmUnavailable, Throttled
from tests.daemons.cluster import Cluster


def finding(code: str = "Xid79", action: Action = Action.REPLACE, severity: Severity = Severity.FATAL) -> Finding:
    return Finding("kernel_log", code, severity, f"{code} was seen", action, is_hard=True)


def ask(lab: Cluster, what: str, **args: str) -> str:
    """Run an administrator's command as the server's thread does, while the loop ticks."""
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(Commands(lab.world).run, what, args, 0)
        while not answer.done():
            lab.tick()
        return answer.result()


def runs_again(lab: Cluster, job: int, restarts: int = 1) -> bool:
    view = lab.view(job)
    return view.status is JobStatus.RUNNING and view.restart_count == restarts


# --- findings ---------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Full", "Slow", "Hot"]), st.booleans(), st.sampled_from([0.25, 1.0, 2.0])),
        min_size=1,
        max_size=8,
    )
)
def test_a_node_is_drained_exactly_while_a_fatal_finding_is_open(steps: list[tuple[str, bool, float]]) -> None:
    lab = Cluster(workers=3, spares=0)
    opened: dict[str, Finding] = {}
    for code, is_open, wait in steps:
        if is_open:
            opened[code] = finding(code, Action.DRAIN)
        else:
            opened.pop(code, None)
        lab.agents.findings["worker-1"] = tuple(opened.values())
        lab.run(wait)
        lab.run(2)
        assert lab.node("worker-1").is_drained is bool(opened), lab.history()
    assert lab.machines.calls == []


def test_a_fatal_finding_moves_the_job_and_replaces_the_machine_when_it_is_gone() -> None:
    lab = Cluster()
    job = lab.submit()
    ill = lab.view(job).nodes[0]
    lab.agents.findings[ill] = (finding(),)
    lab.run_until(lambda: runs_again(lab, job), seconds=15)
    assert ill not in lab.view(job).nodes
    assert lab.record(job).attempts[0].cause is ExitCause.NODE_UNHEALTHY
    lab.agents.findings.clear()
    lab.run_until(lab.is_well)
    assert lab.machines.made[ill] == 2
    order = lab.kinds()
    assert order.index("NodeDrained") < order.index("JobRequeued") < order.index("NodeReplaced")


def test_a_job_that_is_not_armed_keeps_its_ill_node_until_it_ends() -> None:
    lab = Cluster()
    job = lab.submit(environment={}, duration_s=60)
    ill = lab.view(job).nodes[0]
    lab.agents.findings[ill] = (finding(),)
    lab.run(30)
    assert lab.view(job).status is JobStatus.RUNNING
    assert lab.view(job).restart_count == 0
    assert lab.machines.calls == []
    lab.run_until(lambda: lab.machines.made[ill] == 2)
    assert lab.view(job).status is JobStatus.COMPLETED


def test_the_drain_of_a_machine_that_was_exchanged_by_others_is_void() -> None:
    lab = Cluster(workers=3, spares=0)
    lab.agents.findings["worker-1"] = (finding("Full", Action.DRAIN),)
    lab.run(3)
    assert lab.node("worker-1").is_drained
    lab.agents.findings.clear()
    lab.machines.replace("worker-1", lab.machines.machines["worker-1"].instance.id, "by hand")
    lab.run_until(lab.is_well)


def test_a_reboot_that_helps_ends_there_and_one_that_does_not_is_followed_by_a_replacement() -> None:
    for helps in (True, False):
        lab = Cluster(workers=3, spares=0)
        lab.agents.findings["worker-1"] = (finding(action=Action.REBOOT),)
        lab.run_until(lambda lab=lab: any(c[0] == "reboot" for c in lab.machines.calls))
        if helps:
            lab.agents.findings.clear()
            lab.run_until(lab.is_well)
            assert lab.machines.made["worker-1"] == 1
        else:
            lab.run_until(lambda lab=lab: lab.machines.made["worker-1"] == 2)
        assert [c[0] for c in lab.machines.calls].count("reboot") == 1


# --- people -----------------------------------------------------------------------------------------------------


def test_a_persons_drain_survives_a_finding_a_death_and_a_repair() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-1", "new fan on Monday")
    lab.agents.findings["worker-1"] = (finding(),)
    lab.run(10)
    lab.agents.findings.clear()
    lab.run(10)
    lab.machines.fail("worker-1")
    lab.run(20)
    state = lab.node("worker-1")
    assert (state.is_drained, state.reason) == (True, "new fan on Monday")
    assert lab.machines.calls == []


def test_a_drain_that_a_person_sets_during_our_repair_stays_when_it_ends() -> None:
    lab = Cluster()
    lab.machines.fail("worker-1")
    lab.run_until(lambda: bool(lab.machines.calls))
    lab.slurm.drain("worker-1", "let me look at it")
    lab.run_until(lambda: not lab.store.repairs())
    state = lab.node("worker-1")
    assert (state.is_drained, state.reason) == (True, "let me look at it")


def test_an_administrators_action_replace_works_as_on_hyperpod() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-2", "Action:Replace")
    lab.run_until(lambda: lab.machines.made["worker-2"] == 2)
    lab.run_until(lab.is_well)
    assert lab.node("worker-2").reason == ""


def test_a_near_miss_is_answered_once() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-2", "action:replace")
    lab.run(10)
    assert lab.node("worker-2").reason == "action:replace not understood, did you mean Action:Replace"
    assert lab.kinds().count("ReasonNotUnderstood") == 1
    assert lab.machines.calls == []


def test_a_held_node_is_tried_again_when_a_person_says_so() -> None:
    lab = Cluster(repair={"replace_attempts": 1})
    lab.machines.births = [InstanceStatus.FAILED]
    lab.machines.fail("worker-1")
    lab.run_until(lambda: any(r.status is RepairStatus.HELD for r in lab.store.repairs()))
    lab.run(1)
    assert "begun" in ask(lab, "replace", node="worker-1")
    lab.run_until(lab.is_well)
    assert lab.machines.made["worker-1"] == 3


def test_a_cancelled_job_stays_cancelled_when_its_node_dies_at_the_same_time() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.machines.fail(lab.view(job).nodes[0])
    lab.slurm.cancel(job)
    lab.run(10)
    lab.run_until(lab.is_well)
    assert lab.view(job).status is JobStatus.CANCELLED
    assert lab.record(job).verdict == "UserCancelled"
    assert not lab.slurm.commands("requeue")


# --- machines ---------------------------------------------------------------------------------------------------


def test_a_node_that_is_cut_off_is_powered_off_before_its_job_starts_elsewhere() -> None:
    lab = Cluster()
    job = lab.submit()
    lost = lab.view(job).nodes[0]
    machine = lab.machines.machines[lost].instance.id
    lab.agents.mute.add(lost)
    lab.cut.add(lost)
    lab.run_until(lambda: lab.view(job).restart_count == 1, seconds=20)
    assert lab.machines.calls[0] == ("power_off", machine)
    kinds = lab.kinds()
    assert kinds.index("NodeFenced") < kinds.index("NodeDown")
    assert [node for node, m in lab.agents.sent if m["type"] == "peer_lost"] == ["worker-2"]


def test_while_the_fence_fails_the_job_does_not_start_elsewhere() -> None:
    lab = Cluster()
    job = lab.submit()
    lost = lab.view(job).nodes[0]
    lab.agents.mute.add(lost)
    lab.cut.add(lost)

    def refuse(instance_id: str) -> None:
        raise Throttled("slow down")

    real, lab.machines.power_off = lab.machines.power_off, refuse  # type: ignore[method-assign]
    lab.run_until(lambda: bool(lab.store.repairs()), seconds=20)
    lab.run(5)
    assert lab.view(job).restart_count == 0
    lab.machines.power_off = real  # type: ignore[method-assign]
    lab.run_until(lambda: runs_again(lab, job), seconds=20)


def test_without_capacity_the_provider_is_asked_with_growing_pauses_and_the_node_returns_by_itself() -> None:
    lab = Cluster()
    real = lab.machines.replace
    refusals: list[float] = []

    def refuse(node: str, instance_id: str, token: str) -> object:
        refusals.append(lab.clock.monotonic())
        raise NoCapacity("no machine of this kind now")

    lab.machines.replace = refuse  # type: ignore[assignment, method-assign]
    lab.machines.fail("worker-1")
    lab.run(100)
    pauses = [b - a for a, b in pairwise(refusals)]
    assert len(refusals) < 10
    assert pauses == sorted(pauses)
    [repair] = lab.store.repairs()
    assert (repair.status, repair.attempt, repair.last_error) == (
        RepairStatus.REPLACING,
        1,
        "no machine of this kind now",
    )
    lab.machines.replace = real  # type: ignore[method-assign]
    lab.run_until(lab.is_well, seconds=200)


def test_a_machine_whose_birth_fails_is_tried_again_and_then_held() -> None:
    lab = Cluster(repair={"replace_attempts": 2})
    lab.machines.births = [InstanceStatus.FAILED, InstanceStatus.FAILED]
    lab.machines.fail("worker-1")
    lab.run_until(lambda: any(r.status is RepairStatus.HELD for r in lab.store.repairs()))
    lab.run(60)
    assert lab.machines.made["worker-1"] == 3
    assert lab.node("worker-1").is_drained


def test_an_orderly_shutdown_moves_the_job_before_the_machine_is_off() -> None:
    lab = Cluster()
    job = lab.submit()
    leaving = lab.view(job).nodes[0]
    lab.agents.goodbye(leaving, lab.world.inbox)
    lab.run_until(lambda: runs_again(lab, job), seconds=12)
    assert leaving not in lab.view(job).nodes
    assert lab.machines.calls == []
    lab.agents.mute.add(leaving)
    lab.machines.fail(leaving)
    lab.run(10)
    lab.agents.mute.clear()
    lab.run_until(lab.is_well)
    assert [c[0] for c in lab.machines.calls] == ["reboot"]
    assert lab.machines.made[leaving] == 1


def test_when_all_agents_fall_silent_nothing_is_done() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.agents.mute.update(f"worker-{i}" for i in range(1, 5))
    lab.cut.update(lab.agents.mute)
    lab.run(60)
    assert lab.machines.calls == []
    assert lab.view(job).restart_count == 0
    assert "MassSilence" in lab.kinds()


def test_a_provider_that_names_no_machine_has_not_answered() -> None:
    lab = Cluster()
    lab.machines.observe = lambda cluster: ()  # type: ignore[method-assign]
    lab.run(30)
    del lab.machines.observe  # type: ignore[method-assign]
    lab.run(5)
    assert not lab.store.repairs()
    assert lab.machines.calls == []


# --- silence of Slurm and the provider, restarts ----------------------------------------------------------------


def test_while_slurm_is_silent_nothing_is_done_and_afterwards_all_of_it() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.slurm.is_unavailable = True
    lab.machines.fail("worker-1")
    lab.run(30)
    assert not lab.store.repairs()
    assert lab.machines.calls == []
    lab.slurm.is_unavailable = False
    lab.run_until(lambda: runs_again(lab, job), seconds=20)


def test_a_silent_source_is_logged_once_in_a_quarter_of_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Cluster()
    told: list[str] = []
    monkeypatch.setattr("hyperpod.controller.observe.log.warning", lambda text, *args: told.append(text % args))
    lab.slurm.is_unavailable = True
    lab.machines.silence = Throttled("slow down")
    lab.run(60)
    assert sorted(told) == [
        "provider does not answer error=slow down",
        "slurm does not answer error=slurmctld does not answer",
    ]


def test_a_provider_that_names_nothing_after_a_restart_ends_nothing() -> None:
    lab = Cluster()
    lab.agents.mute.update(f"worker-{i}" for i in range(1, 5))
    lab.machines.observe = lambda cluster: ()  # type: ignore[method-assign]
    lab.restart()
    lab.run(30)
    assert not lab.store.repairs()
    assert not lab.slurm.commands("set_down")


def test_an_empty_answer_of_slurm_is_no_answer() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.slurm.nodes = lambda: ()  # type: ignore[method-assign]
    lab.run(30)
    del lab.slurm.nodes  # type: ignore[method-assign]
    lab.run(5)
    assert not lab.store.repairs()
    assert lab.record(job).verdict == ""


def test_single_errors_of_slurm_are_made_up_for_in_later_ticks() -> None:
    for method in ("set_down", "set_excluded", "start_now", "set_top_priority", "set_partition_nodes", "undrain"):
        lab = Cluster()
        job = lab.submit()
        lab.slurm.fail_next(method, SlurmUnavailable("no answer in time"))
        lab.machines.fail(lab.view(job).nodes[0])
        lab.run_until(lambda lab=lab, job=job: runs_again(lab, job) and lab.is_well())
        partitions = lab.slurm.partitions()
        assert (len(partitions["train"]), len(partitions["hyperpod-spare"])) == (3, 1), method


def test_a_throttled_provider_delays_repairs_and_not_the_requeue_of_a_crashed_job() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.machines.silence = Throttled("slow down")
    lab.run(6)
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: runs_again(lab, job), seconds=10)
    lab.machines.fail("worker-4")
    lab.run(20)
    assert not lab.store.repairs()
    lab.machines.silence = None
    lab.run_until(lambda: lab.machines.made["worker-4"] == 2)


def test_after_a_restart_healthy_nodes_are_not_suspected() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.agents.mute.update(f"worker-{i}" for i in range(1, 5))
    lab.restart()
    lab.run(8)
    lab.agents.mute.clear()
    lab.run(20)
    assert not lab.store.repairs()
    assert lab.machines.calls == []
    assert lab.view(job).restart_count == 0
    assert "SpareUsed" not in lab.kinds()


def test_a_node_that_dies_while_the_controller_is_away_is_found() -> None:
    lab = Cluster()
    job = lab.submit()
    dead = lab.view(job).nodes[0]
    lab.machines.fail(dead)
    lab.slurm.advance(120)
    lab.restart()
    took = lab.run_until(lambda: runs_again(lab, job))
    assert took < 25
    lab.run_until(lab.is_well)


def test_a_job_that_slurm_requeued_while_the_controller_was_away_starts_at_once() -> None:
    lab = Cluster()
    job = lab.submit()
    dead = lab.view(job).nodes[0]
    lab.machines.fail(dead)
    lab.slurm.advance(301)
    assert lab.view(job).restart_count == 1
    lab.restart()
    took = lab.run_until(lambda: runs_again(lab, job))
    assert took < 25
    assert lab.record(job).attempts[0].cause is ExitCause.NODE_DEAD


def test_a_job_that_slurm_forgot_while_the_controller_was_away_is_over() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.slurm.end_job(job)
    lab.slurm.forget(job)
    lab.restart()
    lab.run(2)
    assert lab.record(job).verdict == "JobGone"


# --- applications -----------------------------------------------------------------------------------------------


def test_a_program_that_crashes_again_without_progress_is_stopped_with_the_reason() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: runs_again(lab, job))
    lab.run(2)
    lab.crash_rank(job, signal=11)
    lab.run(20)
    assert lab.record(job).verdict == "ApplicationFault"
    assert "killed by signal 11" in lab.record(job).verdict_message
    assert lab.view(job).status is JobStatus.FAILED
    assert lab.machines.calls == []


def test_a_program_that_crashes_after_progress_goes_on_until_its_attempts_are_used_up() -> None:
    lab = Cluster()
    job = lab.submit()
    for restarts in range(1, 5):
        lab.checkpoints.step = restarts * 100
        lab.run(2)
        lab.crash_rank(job, signal=11)
        lab.run_until(lambda restarts=restarts: runs_again(lab, job, restarts))
    lab.checkpoints.step = 500
    lab.crash_rank(job, signal=11)
    lab.run(20)
    assert lab.record(job).verdict == "AttemptsUsedUp"
    assert len(lab.record(job).attempts) == 5


def test_a_job_that_fails_before_anybody_looked_is_judged_all_the_same() -> None:
    lab = Cluster()
    job = lab.slurm.submit(environment={"HYPERPOD_AUTO_RESUME": "3"}, node_count=2)
    lab.slurm.advance(1)
    host = lab.view(job).nodes[0]
    lab.slurm.end_job(job, exit_code=1)
    batch = {"step_id": BATCH_STEP, "rank": 0, "node": host, "restart_count": 0, "exit_code": 1}
    lab.report(words.TASK_EXIT, job_id=job, time=lab.clock.now().timestamp(), **batch)
    lab.run_until(lambda: runs_again(lab, job))
    assert lab.record(job).attempts[0].cause is ExitCause.APPLICATION


def test_a_launch_that_a_node_refuses_is_no_failure_of_the_program() -> None:
    """Slurm writes status 1, as for a script that failed; but nothing of the attempt is ever heard of."""
    lab = Cluster(resume={"same_failure_limit": 1})
    job = lab.slurm.submit(environment={"HYPERPOD_AUTO_RESUME": "3"}, node_count=1)
    lab.slurm.advance(1)
    [refusing] = lab.view(job).nodes
    lab.slurm.end_job(job, exit_code=1)
    lab.run_until(lambda: runs_again(lab, job), seconds=30)
    assert lab.record(job).attempts[0].cause is ExitCause.LAUNCH_FAILED
    assert refusing not in lab.view(job).nodes


def test_a_het_job_is_ended_whole_when_a_rank_of_its_second_component_dies() -> None:
    lab = Cluster(workers=5)
    leader = lab.submit(nodes=1, het_job_id=1, het_offset=0)
    part = lab.submit(nodes=1, het_job_id=leader, het_offset=1)
    lab.run(2)
    view = lab.view(part)
    told = {"step_id": 0, "rank": 1, "node": view.nodes[0], "restart_count": 0, "het_job_id": leader, "het_offset": 1}
    lab.report(words.TASK_EXIT, job_id=part, time=lab.clock.now().timestamp(), signal=11, **told)
    lab.run(2)
    assert ("kill_step", leader, 0) in lab.slurm.calls
    assert ("kill_step", part, 0) in lab.slurm.calls
    assert lab.record(leader).attempts[0].message.startswith("rank 1 of step 0 on")


def test_a_job_whose_launch_fails_on_one_node_starts_on_another() -> None:
    lab = Cluster()
    lab.slurm.fail_launches("worker-1")
    job = lab.slurm.submit(environment={"HYPERPOD_AUTO_RESUME": "3"}, node_count=1)
    lab.run_until(lambda: lab.view(job).status is JobStatus.RUNNING, seconds=200)
    assert lab.view(job).nodes != ("worker-1",)
    assert len(lab.slurm.commands("release")) == 1


def test_a_users_own_exclusions_and_the_bad_node_are_both_respected() -> None:
    lab = Cluster(workers=5)
    job = lab.submit(excluded=("worker-2",))
    dead = lab.view(job).nodes[0]
    lab.machines.fail(dead)
    lab.run_until(lambda: runs_again(lab, job))
    assert set(lab.view(job).excluded) >= {"worker-2"}
    assert dead not in lab.view(job).nodes


def test_only_the_array_task_that_failed_is_started_again() -> None:
    lab = Cluster()
    tasks = [lab.submit(nodes=1, array_job_id=1, array_task_id=i) for i in range(2)]
    lab.crash_rank(tasks[1], signal=11)
    lab.run_until(lambda: runs_again(lab, tasks[1]))
    assert lab.view(tasks[0]).restart_count == 0
    assert [c[1] for c in lab.slurm.commands("requeue")] == [tasks[1]]


def test_the_checkpoint_that_an_attempt_was_given_is_kept_although_it_came_before_the_attempt_was_seen() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: lab.view(job).restart_count == 1)
    lab.report(
        "env_given",
        job_id=job,
        restart_count=1,
        armed_by="job",
        auto_resume="5",
        resume_from="/fsx/c/step_7",
        resume_step=7,
    )
    lab.run_until(lambda: runs_again(lab, job))
    lab.run(1)
    second = lab.record(job).attempts[1]
    assert (second.resume_from, second.resume_step) == ("/fsx/c/step_7", 7)
    assert lab.kinds().count("Resuming") == 1


def test_a_thousand_failed_ranks_are_not_a_thousand_journal_entries() -> None:
    lab = Cluster()
    job = lab.submit()
    for rank in range(300):
        lab.crash_rank(job, signal=11, rank=rank)
    lab.run_until(lambda: runs_again(lab, job))
    assert lab.kinds().count("TaskFailed") < 50


def test_one_cause_on_many_nodes_opens_the_breaker_and_a_person_closes_it() -> None:
    lab = Cluster(workers=10, spares=0, repair={"max_parallel_repaired": 4})
    for i in range(1, 6):
        lab.agents.findings[f"worker-{i}"] = (finding("EpilogFailed", Action.DRAIN),)
    lab.run(5)
    drained = [n.name for n in lab.slurm.nodes() if n.is_drained]
    assert drained == ["worker-1", "worker-2", "worker-3"]
    assert "BreakerOpen" in lab.kinds()
    ask(lab, "reset-breaker")
    lab.run(5)
    assert len([n for n in lab.slurm.nodes() if n.is_drained]) == 5


def test_the_same_note_is_written_once_in_a_quarter_of_an_hour() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-1", "new fan on Monday")
    lab.run(120)
    assert lab.kinds().count("PersonsDrain") == 1


def test_a_scripts_end_that_is_told_late_belongs_to_the_attempt_that_ran_then() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.report("env_given", job_id=job, restart_count=0, step_id=-5, uid=1000, node="worker-1", armed_by="job")
    lab.run(2)
    ended = lab.clock.now().timestamp()
    lab.run(1)
    lab.slurm.requeue(job)
    lab.run_until(lambda: lab.view(job).restart_count == 1)
    lab.report("env_given", job_id=job, restart_count=1, step_id=-5, uid=1000, node="worker-1", armed_by="job")
    lab.run(2)
    lab.report(
        "task_exit", job_id=job, step_id=-5, rank=0, node="worker-1", time=ended, exit_code=143, signal=None,
        restart_count=0,
    )  # fmt: skip
    lab.run(1)
    told = [e.restart_count for e in lab.world.memory.job_facts(job).exits]
    assert told == [0]
