"""What the controller answers: an attempt's environment to the plugin, and questions to people."""

from __future__ import annotations

from typing import Any

import pytest

from hyperpod.controller.environment import Environments
from hyperpod.controller.loop import ENV_GIVEN, SET_ASIDE_TOLD
from hyperpod.controller.memory import Report
from hyperpod.controller.queries import Queries
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.errors import NotFound, SlurmUnavailable, UsageError
from tests.daemons.cluster import Cluster

OWNER, STRANGER, ROOT = 1000, 1001, 0


def environments(lab: Cluster) -> Environments:
    return Environments(lab.world, lambda work: work())


def ask(lab: Cluster, what: str, uid: int = ROOT, **args: Any) -> Any:
    return Queries(lab.world, {ROOT}).answer(what, args, uid)


# --- environments -----------------------------------------------------------------------------------------------


def test_the_first_attempt_gets_its_number_and_no_checkpoint() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.checkpoints.step = 40
    answer = environments(lab).answer({"job_id": job, "restart_count": 0, "step_id": -5})
    assert answer == {
        "HYPERPOD_ATTEMPT": "1",
        "HYPERPOD_RESUME_FROM": "",
        "HYPERPOD_PREVIOUS_FAILURE": "",
        "HYPERPOD_CHECKPOINT_DIR": f"/fsx/checkpoints/ubuntu/job-{job}-{job}",
    }


def test_a_later_attempt_gets_the_newest_checkpoint_and_why_the_last_one_ended() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.crash_rank(job, signal=11)
    lab.run_until(lambda: lab.view(job).restart_count == 1)
    lab.run(1)
    lab.checkpoints.step = 40
    answers = environments(lab)
    first = answers.answer({"job_id": job, "restart_count": 1, "step_id": 0})
    assert first["HYPERPOD_ATTEMPT"] == "2"
    assert first["HYPERPOD_RESUME_FROM"].endswith("/step_40")
    assert first["HYPERPOD_PREVIOUS_FAILURE"].startswith("ApplicationFailed: rank 1 of step 0")
    lab.checkpoints.step = 50
    second = answers.answer({"job_id": job, "restart_count": 1, "step_id": 0})
    assert second == first, "all nodes of an attempt start from the same checkpoint"


@pytest.mark.parametrize("asked", [{}, {"auto_resume": "0", "armed_by": "step"}])
def test_a_job_that_is_not_armed_gets_nothing(asked: dict[str, str]) -> None:
    lab = Cluster()
    job = lab.submit(environment={})
    assert environments(lab).answer({"job_id": job, "restart_count": 0, **asked}) == {}


def test_while_slurm_is_silent_an_armed_job_still_gets_its_environment() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.slurm.next_error = SlurmUnavailable("no answer")
    assert environments(lab).answer({"job_id": job, "restart_count": 0, "step_id": -5})["HYPERPOD_ATTEMPT"] == "1"


def test_srun_auto_resume_arms_a_job_that_was_not() -> None:
    lab = Cluster()
    job = lab.submit(environment={})
    asked = {"job_id": job, "restart_count": 0, "step_id": 0, "armed_by": "step", "auto_resume": "4"}
    assert environments(lab).answer(asked)["HYPERPOD_ATTEMPT"] == "1"
    lab.run(1)
    assert (lab.record(job).armed_by, lab.record(job).max_attempts) == ("step", 4)


# --- questions --------------------------------------------------------------------------------------------------


def test_users_see_their_own_jobs_and_root_sees_all() -> None:
    lab = Cluster()
    job = lab.submit()
    assert [row["job_id"] for row in ask(lab, "jobs", OWNER)] == [job]
    assert [row["job_id"] for row in ask(lab, "jobs", ROOT)] == [job]
    assert ask(lab, "jobs", STRANGER) == []
    with pytest.raises(NotFound):
        ask(lab, "job", STRANGER, job_id=job)
    with pytest.raises(NotFound):
        ask(lab, "why", STRANGER, name=str(job))
    assert all(e["job_id"] is None for e in ask(lab, "events", STRANGER))


def test_a_job_tells_its_attempts_and_what_was_lost() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.machines.fail(lab.view(job).nodes[0])
    lab.run_until(lambda: lab.view(job).restart_count == 1)
    lab.run(8)
    told = ask(lab, "job", OWNER, job_id=job)
    assert [a["cause"] for a in told["attempts"]] == ["NodeDead", None]
    assert told["attempt"] == 2
    assert told["avoids"]


def test_why_walks_from_a_job_to_its_nodes_and_says_what_comes_next() -> None:
    lab = Cluster()
    job = lab.submit()
    ill = lab.view(job).nodes[0]
    lab.agents.findings[ill] = (Finding("infiniband", "LinkDown", Severity.FATAL, "mlx5_0 is down", Action.DRAIN),)
    lab.run_until(lambda: lab.view(job).restart_count == 1)
    lab.run(3)
    told = ask(lab, "why", OWNER, name=str(job))
    assert "infiniband/LinkDown: mlx5_0 is down" in str(told["nodes"])
    node = ask(lab, "why", ROOT, name=ill)
    assert node["node"]["state"] == "draining"
    assert "Drain" in node["next"]


def test_status_shows_nodes_repairs_spares_and_budget_on_one_screen() -> None:
    lab = Cluster()
    lab.machines.fail("worker-1")
    lab.run_until(lambda: bool(lab.store.repairs()))
    lab.run(2)
    told = ask(lab, "status")
    states = {n["node"]: n["state"] for n in told["nodes"]}
    assert states["worker-1"] in ("fencing", "replacing", "checking")
    assert [r["node"] for r in told["repairs"]] == ["worker-1"]
    assert told["spares"]["worker"]["wanted"] == 1
    assert told["budget"]["unhealthy_limit"] == 2


def test_questions_that_nobody_understands_are_answered_with_those_that_are() -> None:
    lab = Cluster()
    with pytest.raises(UsageError, match="known are"):
        ask(lab, "weather")
    with pytest.raises(NotFound, match="no node worker-9"):
        ask(lab, "why", name="worker-9")


# --- what is other people's -------------------------------------------------------------------------------------


def test_a_nodes_history_keeps_to_itself_what_happened_to_others_jobs() -> None:
    lab = Cluster()
    job = lab.submit()
    node = lab.view(job).nodes[0]
    lab.store.add_event("TaskFailed", "secret of the job", lab.clock.now(), node=node, job_id=job, uid=OWNER)
    lab.store.add_event("NodeDrained", "seen by all", lab.clock.now(), node=node)

    lines = {uid: "\n".join(ask(lab, "why", uid, name=node)["lines"]) for uid in (ROOT, OWNER, STRANGER)}

    assert all("seen by all" in text for text in lines.values())
    assert [uid for uid, text in lines.items() if "secret" in text] == [ROOT, OWNER]


def test_a_users_events_are_found_behind_any_number_of_others() -> None:
    lab = Cluster()
    lab.store.add_event("Mine", "early", lab.clock.now(), job_id=900, uid=STRANGER)
    for _ in range(50):
        lab.store.add_event("Theirs", "x", lab.clock.now(), job_id=901, uid=OWNER)

    assert [e["kind"] for e in ask(lab, "events", STRANGER, limit=1)] == ["Mine"]
    assert len(ask(lab, "events", STRANGER, limit=-5)) == 1


def test_a_directory_with_thousands_of_broken_checkpoints_does_not_fill_the_journal() -> None:
    lab = Cluster()
    job = lab.submit()
    report = {"job_id": job, "restart_count": 1, "set_aside": [f"/fsx/{n}" for n in range(5000)], "problems": ["torn"]}
    lab.world.inbox.put(Report(ENV_GIVEN, lab.clock.now(), report))
    lab.run(1)

    kinds = [event.kind for event in lab.store.events(job_id=job, limit=10_000)]
    assert kinds.count("CheckpointSetAside") == SET_ASIDE_TOLD + 1
    assert kinds.count("NoCheckpoint") == 1


def test_a_directory_that_the_script_itself_names_is_where_progress_is_looked_for() -> None:
    lab = Cluster()
    job = lab.submit()
    lab.run(1)
    answer = environments(lab).answer(
        {"job_id": job, "restart_count": 0, "step_id": 0, "checkpoint_dir": "/fsx/ubuntu/mine"}
    )
    assert answer["HYPERPOD_CHECKPOINT_DIR"] == "/fsx/ubuntu/mine"
    lab.run(1)
    assert lab.record(job).checkpoint_dir == "/fsx/ubuntu/mine"
