"""The fake slurmctld behaves as the real one was seen to behave."""

from __future__ import annotations

import pytest

from hyperpod.core.job import JobStatus, JobView
from hyperpod.core.node import Availability
from hyperpod.errors import SlurmError, SlurmUnavailable
from tests.fakes.slurm import LAUNCH_FAILED, FakeSlurm


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm({"dev": ["worker-1", "worker-2"], "spare": ["worker-3"]})


def job(slurm: FakeSlurm, job_id: int) -> JobView:
    view = slurm.job(job_id)
    assert view is not None
    return view


def test_a_dead_node_is_noticed_late_and_its_job_waits_two_minutes(slurm: FakeSlurm) -> None:
    job_id = slurm.submit()
    slurm.tick()
    slurm.power_off("worker-1")
    slurm.advance(299)
    assert job(slurm, job_id).status is JobStatus.RUNNING
    slurm.advance(1)
    assert slurm.nodes()[0].availability is Availability.DOWN
    assert (job(slurm, job_id).pending_reason, job(slurm, job_id).restart_count) == ("BeginTime", 1)
    slurm.advance(119)
    assert job(slurm, job_id).status is JobStatus.PENDING
    slurm.advance(1)
    assert job(slurm, job_id).nodes == ("worker-2",)


def test_a_new_begin_time_is_lost_while_completing(slurm: FakeSlurm) -> None:
    job_id = slurm.submit()
    slurm.tick()
    slurm.requeue(job_id)
    slurm.start_now(job_id)
    slurm.advance(10)
    assert job(slurm, job_id).status is JobStatus.PENDING
    slurm.start_now(job_id)
    slurm.advance(1)
    assert job(slurm, job_id).status is JobStatus.RUNNING


def test_a_live_node_that_is_only_down_takes_its_job_back(slurm: FakeSlurm) -> None:
    slurm.power_off("worker-1")
    slurm.advance(300)
    slurm.power_on("worker-1")
    slurm.advance(2)
    assert (slurm.nodes()[0].availability, slurm.nodes()[0].is_responding) == (Availability.UP, True)
    slurm.set_down("worker-2", "hyperpod:x")
    slurm.advance(2)
    assert (slurm.nodes()[1].availability, slurm.nodes()[1].is_drained) == (Availability.UP, True)


def test_a_failed_launch_is_held_and_its_node_drained(slurm: FakeSlurm) -> None:
    slurm.fail_launches("worker-1")
    job_id = slurm.submit()
    slurm.tick()
    view = job(slurm, job_id)
    assert (view.is_held, view.pending_message, view.restart_count) == (True, LAUNCH_FAILED, 1)
    assert (slurm.nodes()[0].is_drained, slurm.nodes()[0].reason_by) == (True, "slurm")
    slurm.release(job_id)
    slurm.advance(120)
    assert job(slurm, job_id).nodes == ("worker-2",)


def test_a_job_without_requeue_fails_with_its_node(slurm: FakeSlurm) -> None:
    job_id = slurm.submit(is_requeue_allowed=False)
    slurm.tick()
    slurm.set_down("worker-1", "hyperpod:x")
    assert job(slurm, job_id).status is JobStatus.NODE_FAIL


def test_priority_dependency_and_room_decide_who_runs(slurm: FakeSlurm) -> None:
    first = slurm.submit(node_count=2)
    second, third = slurm.submit(node_count=2), slurm.submit(node_count=2)
    after = slurm.submit(dependency=f"afterok:{first}")
    slurm.tick()
    slurm.set_top_priority(third)
    slurm.end_job(first)
    assert slurm.nodes()[0].is_completing
    slurm.advance(3)
    assert [job(slurm, n).status.value for n in (first, second, third)] == ["completed", "pending", "running"]
    assert job(slurm, second).pending_reason == "Resources"
    assert job(slurm, after).status is JobStatus.PENDING
    slurm.end_job(third, exit_code=1)
    slurm.cancel(second)
    slurm.advance(3)
    assert job(slurm, second).status is JobStatus.CANCELLED
    assert job(slurm, after).status is JobStatus.RUNNING


def test_a_killed_step_ends_the_script_unless_it_goes_on(slurm: FakeSlurm) -> None:
    first, second = slurm.submit(), slurm.submit(script_fails_with_step=False)
    slurm.tick()
    slurm.kill_step(first, 0)
    slurm.kill_step(second, 0)
    slurm.kill_step(second, 5)
    assert (job(slurm, first).status, job(slurm, first).exit_code) == (JobStatus.FAILED, 137)
    assert (job(slurm, second).status, slurm.killed_steps(second)) == (JobStatus.RUNNING, (0,))


def test_errors_can_be_arranged_and_writes_are_recorded(slurm: FakeSlurm) -> None:
    job_id = slurm.submit()
    slurm.fail_next("requeue", SlurmError("no"))
    slurm.next_error = SlurmUnavailable("stalled")
    with pytest.raises(SlurmUnavailable):
        slurm.nodes()
    with pytest.raises(SlurmError):
        slurm.requeue(job_id)
    slurm.requeue(job_id)
    slurm.is_unavailable = True
    with pytest.raises(SlurmUnavailable):
        slurm.drain("worker-1", "x")
    assert slurm.calls == [("requeue", 1), ("requeue", 1), ("drain", "worker-1", "x")]
    assert slurm.commands("drain") == [("drain", "worker-1", "x")]


def test_a_forgotten_job_is_unknown(slurm: FakeSlurm) -> None:
    job_id = slurm.submit(duration_s=5)
    slurm.advance(10)
    assert job(slurm, job_id).status is JobStatus.COMPLETED
    slurm.forget(job_id)
    assert slurm.job(job_id) is None
