"""Effects one by one: each reads again what it will change, and a failed one leaves the others to be done."""

from __future__ import annotations

import pytest

from hyperpod.controller.apply import apply
from hyperpod.controller.loop import restore, take_reports
from hyperpod.controller.memory import Inbox, Memory, Report
from hyperpod.core import messages as words
from hyperpod.core import plan as do
from hyperpod.core.job import JobStatus
from hyperpod.core.messages import Heartbeat
from hyperpod.errors import InvalidState, NotFound, SlurmUnavailable, StoreError, UsageError
from tests.daemons.cluster import Cluster
from tests.daemons.test_controller_loop import ask


def carry_out(lab: Cluster, *actions: do.Action) -> int:
    return apply(lab.world, do.Plan(actions))


def test_a_drain_that_a_person_set_in_the_meantime_is_not_lifted() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-1", "let me look at it")
    assert carry_out(lab, do.UndrainNode("passed its checks", "worker-1")) == 0
    assert lab.node("worker-1").reason == "let me look at it"


def test_a_drain_that_a_person_set_in_the_meantime_is_not_overwritten() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-1", "let me look at it")
    carry_out(lab, do.DrainNode("hyperpod:disk/Full", "worker-1"))
    assert lab.node("worker-1").reason == "let me look at it"


def test_marking_a_dead_node_down_keeps_a_persons_words() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-1", "let me look at it")
    carry_out(lab, do.MarkDown("hyperpod:node/NodeDead", "worker-1", "i-1"))
    state = lab.node("worker-1")
    assert (state.availability.value, state.reason) == ("down", "let me look at it")


def test_a_job_that_ended_well_in_the_meantime_is_not_run_again() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.slurm.end_job(job)
    assert carry_out(lab, do.RequeueJob("its node is ill", job, 0)) == 1
    assert lab.view(job).status is JobStatus.COMPLETED


def test_a_job_that_its_user_cancelled_in_the_meantime_stays_cancelled() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.slurm.cancel(job)
    carry_out(lab, do.RequeueJob("its node is ill", job, 0))
    assert lab.view(job).status is JobStatus.CANCELLED


def test_a_job_is_requeued_once_however_often_it_is_asked_for() -> None:
    lab = Cluster()
    job = lab.submit()
    requeue = do.RequeueJob("its node is ill", job, 0)
    assert carry_out(lab, requeue) == 0
    assert carry_out(lab, requeue) == 0
    assert lab.view(job).restart_count == 1
    assert len(lab.slurm.commands("requeue")) == 1


def test_one_failed_action_stops_only_what_follows_for_the_same_object() -> None:
    lab = Cluster()
    lab.slurm.fail_next("drain", SlurmUnavailable("no answer in time"))
    failed = carry_out(
        lab,
        do.DrainNode("hyperpod:a/B", "worker-1"),
        do.UndrainNode("never reached", "worker-1"),
        do.DrainNode("hyperpod:a/B", "worker-2"),
    )
    assert failed == 1
    assert [c[1] for c in lab.slurm.commands("drain")] == ["worker-1", "worker-2"]
    assert not lab.slurm.commands("undrain")


def test_an_action_on_a_node_that_slurm_does_not_know_fails_by_itself() -> None:
    lab = Cluster()
    assert carry_out(lab, do.DrainNode("hyperpod:a/B", "worker-77")) == 1


def test_a_report_is_confirmed_only_when_it_is_in_the_journal() -> None:
    lab = Cluster()
    job = lab.submit()
    told: list[int] = []
    data = {"job_id": job, "restart_count": 0, "step_id": 0, "rank": 1, "node": "worker-1", "time": 1.0, "signal": 11}
    lab.world.inbox.put(
        Report(words.TASK_EXIT, lab.clock.now(), data, lambda: told.append(lab.kinds().count("TaskFailed")))
    )
    assert told == []
    take_reports(lab.world)
    assert told == [1]


def test_a_task_that_failed_before_the_controller_was_killed_is_known_afterwards() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.crash_rank(job, signal=11)
    take_reports(lab.world)
    lab.unheard.clear()
    lab.restart()
    assert [e.signal for e in lab.world.memory.job_facts(job).exits] == [11]
    lab.run_until(lambda: lab.view(job).restart_count == 1, seconds=20)


def test_strange_messages_are_dropped_and_the_rest_is_taken() -> None:
    lab = Cluster()
    for kind, data in (("task_exit", {}), ("heartbeat", {"node": 3}), ("gossip", {}), ("env_given", {"job_id": "x"})):
        lab.world.inbox.put(Report(kind, lab.clock.now(), data))
    lab.agents.goodbye("worker-1", lab.world.inbox)
    take_reports(lab.world)
    assert lab.world.memory.nodes["worker-1"].said_goodbye_at is not None


def test_an_intent_that_was_cut_short_is_open_again_after_a_restart() -> None:
    lab = Cluster()
    lab.store.intend("requeue:7:0", "RequeueJob", "job:7", lab.clock.now())
    restore(lab.world)
    assert not lab.store.unfinished()
    assert not lab.store.intend("requeue:7:0", "RequeueJob", "job:7", lab.clock.now()).is_done


def test_a_journal_that_cannot_be_written_stops_the_action_and_not_the_tick() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.store.next_error = StoreError("no room on the device")
    assert carry_out(lab, do.RequeueJob("its node is ill", job, 0)) == 1
    assert lab.view(job).restart_count == 0


# --- memory -----------------------------------------------------------------------------------------------------


def beat(sequence: int, boot: str = "b1", **fields: object) -> Heartbeat:
    values = {"node": "worker-1", "instance_id": "i-1", "boot_id": boot, "sent_at": 0.0, "is_ready": True, **fields}
    return Heartbeat(sequence=sequence, **values)  # type: ignore[arg-type]


def test_a_heartbeat_that_arrives_late_is_ignored_and_a_restarted_agent_is_not() -> None:
    lab = Cluster()
    memory, now = Memory(lab.clock.now()), lab.clock.now()
    assert memory.heard(beat(100), now)
    later = lab.clock.advance(1)
    memory.heard(beat(99, is_ready=False), later)
    assert memory.nodes["worker-1"].is_ready
    memory.heard(beat(1), later)
    assert memory.nodes["worker-1"].sequence == 1


def test_a_shutdown_that_was_called_off_is_forgotten_after_two_minutes() -> None:
    lab = Cluster()
    memory = Memory(lab.clock.now())
    memory.heard(beat(1), lab.clock.now())
    memory.said_goodbye("worker-1", lab.clock.now())
    memory.heard(beat(2), lab.clock.advance(60))
    assert memory.nodes["worker-1"].said_goodbye_at is not None
    memory.heard(beat(3), lab.clock.advance(61))
    assert memory.nodes["worker-1"].said_goodbye_at is None


def test_the_inbox_refuses_more_than_it_can_hold() -> None:
    lab = Cluster()
    inbox = Inbox(limit=1)
    assert inbox.put(Report("x", lab.clock.now(), {}))
    assert not inbox.put(Report("x", lab.clock.now(), {}))
    assert len(inbox.take()) == 1
    assert inbox.put(Report("x", lab.clock.now(), {}))


def test_what_is_known_of_a_job_is_forgotten_when_slurm_forgets_it() -> None:
    lab = Cluster()
    job = lab.submit(environment={})
    lab.crash_rank(job, signal=1)
    lab.run(1)
    assert lab.world.memory.job_facts(job).exits
    lab.slurm.forget(job)
    lab.run(1)
    assert job not in lab.world.memory.facts


# --- commands ---------------------------------------------------------------------------------------------------


def test_commands_drain_and_undrain_and_say_so() -> None:
    lab = Cluster()
    assert "takes no new work" in ask(lab, "drain", node="worker-1", reason="new fan")
    assert lab.node("worker-1").reason == "new fan"
    lab.run(3)
    assert "takes work again" in ask(lab, "undrain", node="worker-1")
    assert not lab.node("worker-1").is_drained


def test_commands_refuse_what_they_do_not_know() -> None:
    lab = Cluster()
    with pytest.raises(UsageError, match="unknown command 'explode'"):
        ask(lab, "explode")
    with pytest.raises(NotFound, match="no worker 'worker-9'"):
        ask(lab, "drain", node="worker-9")


def test_a_node_in_repair_is_not_opened_by_command() -> None:
    lab = Cluster()
    lab.machines.fail("worker-1")
    lab.run_until(lambda: bool(lab.store.repairs()))
    lab.run(1)
    with pytest.raises(InvalidState):
        ask(lab, "undrain", node="worker-1")


def test_a_replacement_by_command_waits_for_jobs_unless_it_is_forced() -> None:
    lab = Cluster()
    job = lab.submit(environment={})
    busy = lab.view(job).nodes[0]
    assert "waits for 1 job to leave" in ask(lab, "replace", node=busy)
    lab.run(10)
    assert lab.machines.made[busy] == 1
    other = Cluster()
    job = other.submit()
    busy = other.view(job).nodes[0]
    ask(other, "replace", node=busy, force="yes")
    other.run_until(lambda: other.machines.made[busy] == 2)
    assert other.view(job).restart_count == 1


def test_a_persons_drain_stays_after_a_replacement_by_command() -> None:
    lab = Cluster()
    lab.slurm.drain("worker-1", "let me look at it")
    lab.run(1)
    ask(lab, "replace", node="worker-1")
    lab.run_until(lambda: lab.machines.made["worker-1"] == 2 and not lab.store.repairs())
    assert lab.node("worker-1").reason == "let me look at it"
