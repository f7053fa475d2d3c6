"""Jobs that fail, are cancelled, or never asked for our help: who is started again, and who is not."""

from __future__ import annotations

import pytest

from tests.e2e.lab import Job, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240, func_only=True)]


def test_killed_rank_is_resumed_although_another_rank_hangs(lab: Lab) -> None:
    job = lab.submit("--nodes=2", hangs=0)
    lab.wait_running(job, step=8, ranks=2)
    nodes = lab.job_nodes(job.id)

    # Rank 1 dies; rank 0 would go on for ever, and does not even hear SIGTERM.
    _kill_rank(lab, nodes[1])
    lab.wait_running(job, attempt=2, ranks=2)

    assert lab.restarts(job.id) == 1
    starts = [x for x in lab.trace(job) if x.kind == "start" and x.attempt == 2]
    assert {x.rank for x in starts} == {0, 1}
    assert all(x.step >= 8 for x in starts)
    assert {x.rank for x in lab.trace(job) if x.attempt == 1} == {0, 1}
    first = lab.show_job(job.id)["attempts"][0]
    assert first["cause"] == "ApplicationFailed"
    assert "signal 9" in first["message"]
    # Nobody's node was to blame.
    assert not lab.events("NodeDrained")
    assert not lab.events("NodeReplaced")


def _kill_rank(lab: Lab, node: str) -> None:
    lab.on_node(node, "pkill", "-KILL", "-f", "^/bin/bash /home/ubuntu/rank.sh")


def test_job_that_fails_twice_alike_without_progress_is_stopped_with_the_reason(lab: Lab) -> None:
    job = lab.submit("--nodes=1", fail_at=1)

    shown = lab.wait_verdict(job, "ApplicationFault")

    # An attempt whose checkpoints could not be looked at in time (a busy machine) does not count.
    attempts = len(shown["attempts"])
    assert attempts in (2, 3), lab.describe()
    assert "status 3" in shown["verdict_message"]
    assert "2 times" in shown["verdict_message"]
    assert lab.job_state(job.id) == "FAILED"
    assert lab.restarts(job.id) == attempts - 1
    assert not lab.events("NodeDrained")


def test_job_that_fails_again_and_again_goes_on_as_long_as_it_makes_progress(lab: Lab) -> None:
    job = lab.submit("--nodes=1", fail_after=4, steps=12, save_every=2)

    shown = lab.wait_verdict(job, "Completed")

    assert [a["cause"] for a in shown["attempts"]] == ["ApplicationFailed", "ApplicationFailed", "Completed"]
    assert [x.step for x in lab.trace(job) if x.kind == "start"] == [0, 4, 8]


def test_job_is_not_started_more_often_than_it_asked_for(lab: Lab) -> None:
    job = lab.submit("--nodes=1", "--auto-resume=2", armed=False, fail_after=2)

    shown = lab.wait_verdict(job, "AttemptsUsedUp")

    assert len(shown["attempts"]) == 2
    assert lab.restarts(job.id) == 1


def test_cancelled_job_is_never_started_again(lab: Lab) -> None:
    job = lab.submit("--nodes=2")
    lab.wait_running(job, ranks=2)

    lab.head("scancel", str(job.id), user="ubuntu")

    lab.wait_verdict(job, "UserCancelled")
    assert lab.job_state(job.id) == "CANCELLED"
    assert lab.restarts(job.id) == 0
    assert {x.attempt for x in lab.trace(job)} == {1}


def test_job_that_was_not_armed_is_left_alone_when_its_task_dies(lab: Lab) -> None:
    silent = lab.submit("--nodes=1", armed=False)
    refusing = lab.submit("--nodes=1", "--auto-resume=0", armed=False)
    watched = lab.submit("--nodes=1")
    for job in (silent, refusing, watched):
        lab.wait_running(job)

    for job in (silent, refusing, watched):
        lab.inject("kill-task", lab.batch_host(job), str(job.id))

    # The armed one shows that the controller has looked meanwhile.
    lab.wait_running(watched, attempt=2)
    for job in (silent, refusing):
        assert lab.wait_state(job, "FAILED", "RUNNING", "PENDING") == "FAILED"
        assert lab.restarts(job.id) == 0
        assert not lab.events("JobRequeued", job=job.id)
        assert not lab.events("StepEnded", job=job.id)


def test_only_the_failed_task_of_an_array_is_started_again(lab: Lab) -> None:
    # Each task saves to the cluster's default directory, which is its own.
    array = lab.submit("--array=1-3", "--ntasks=1", directory="")
    rows = lab.wait("three tasks to run", lambda: _array_tasks(lab, array.id), 60)
    tasks = [Job(job_id, f"/fsx/checkpoints/ubuntu/batch.sh-{job_id}") for job_id in rows]
    for task in tasks:
        lab.wait_running(task, step=4)
    victim = tasks[1]

    lab.inject("kill-task", lab.batch_host(victim), str(victim.id))

    lab.wait_running(victim, attempt=2)
    for task in tasks:
        shown = lab.finish(task)
        assert len(shown["attempts"]) == (2 if task is victim else 1)
        assert lab.restarts(task.id) == (1 if task is victim else 0)
        assert {x.attempt for x in lab.trace(task)} == ({1, 2} if task is victim else {1})
    assert min(x.step for x in lab.trace(victim) if x.attempt == 2) >= 4


def _array_tasks(lab: Lab, array: int) -> list[int]:
    """Return the own job ids of the array's three tasks once all of them run."""
    running = lab.head("squeue", "-h", "-r", "-t", "R", "-j", str(array), "-o", "%K %A").splitlines()
    rows = sorted(tuple(map(int, line.split())) for line in running)
    return [job_id for _, job_id in rows] if len(rows) == 3 else []


def test_srun_with_auto_resume_inside_a_script_arms_the_job(lab: Lab) -> None:
    job = lab.submit("--nodes=2", script="style.sh", armed=False)
    lab.wait_running(job, step=6, ranks=2)

    _kill_rank(lab, lab.job_nodes(job.id)[1])
    lab.wait_running(job, attempt=2, ranks=2)
    shown = lab.finish(job)

    assert [a["cause"] for a in shown["attempts"]] == ["ApplicationFailed", "Completed"]
    assert lab.restarts(job.id) == 1
    assert min(x.step for x in lab.trace(job) if x.attempt == 2) >= 4
    # The script never saw the failure: it ended once, well.
    log = lab.file_text(f"{job.directory}.out")
    assert log.count("the script went on with") == 1
    assert "the script went on with 0" in log


def test_het_job_is_started_again_as_one(lab: Lab) -> None:
    job = lab.submit("--nodes=1", ":", "--nodes=1", script="het.sh")
    lab.wait_running(job, step=6, ranks=2)
    victim = _components(lab, job)[1]

    lab.inject("power-off", victim)
    lab.wait_running(job, attempt=2, ranks=2)

    assert victim not in _components(lab, job)
    shown = lab.finish(job)
    assert [a["cause"] for a in shown["attempts"]] == ["NodeDead", "Completed"]
    lab.wait("both components to end", lambda: _het_states(lab, job) == {"COMPLETED"}, 60)


def _components(lab: Lab, job: Job) -> list[str]:
    return lab.head("squeue", "-h", "-j", str(job.id), "-o", "%N").split()


def _het_states(lab: Lab, job: Job) -> set[str]:
    return set(lab.head("squeue", "-h", "-t", "all", "-j", str(job.id), "-o", "%T").split())
