"""Which processes belong to which job, and which jobs a fence ends."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from hyperpod.agent import loop
from hyperpod.agent.environment import fallback, lines_of, peer_lost_path
from hyperpod.agent.jobs import KnownJob, jobs_on_node, jobs_to_fence, processes_of_jobs
from hyperpod.ports.host import Process
from tests.fakes.host import FakeHost

TREE = (
    Process(1, 0, 0, "systemd"),
    Process(20, 1, 0, "slurmd"),
    Process(30, 1, 0, "slurmstepd", "slurmstepd: [7.extern]"),
    Process(31, 30, 0, "sleep"),
    Process(40, 1, 0, "slurmstepd", "slurmstepd: [7.batch]"),
    Process(41, 40, 1000, "bash"),
    Process(42, 41, 1000, "srun"),
    Process(50, 1, 0, "slurmstepd", "slurmstepd: [7.0]"),
    Process(51, 50, 0, "slurmstepd", ""),
    Process(52, 51, 1000, "python"),
    Process(60, 1, 0, "slurmstepd", "slurmstepd: [71.0]"),
    Process(61, 60, 1001, "python"),
    Process(70, 1, 1000, "daemonised"),
    Process(80, 1, 1001, "slurmstepd", "slurmstepd: [99.0]"),
)
ENVIRONMENTS = {70: {"SLURM_JOB_ID": "7"}, 20: {"SLURM_JOB_ID": "7"}, 61: {"SLURM_JOB_ID": "71"}}


def environment(pid: int) -> Mapping[str, str]:
    return ENVIRONMENTS.get(pid, {})


def test_jobs_are_known_by_roots_slurmstepd_only() -> None:
    assert jobs_on_node(TREE) == {7, 71}


def test_a_jobs_processes_are_its_trees_and_what_left_them() -> None:
    assert processes_of_jobs(TREE, (7,), environment) == (31, 41, 42, 52, 70)


def test_a_job_id_that_begins_alike_is_another_job() -> None:
    assert processes_of_jobs(TREE, (71,), environment) == (61,)


def test_no_job_no_process() -> None:
    assert processes_of_jobs(TREE, (8,), environment) == ()


def test_a_job_known_not_to_be_resumed_survives_the_fence() -> None:
    known = {7: KnownJob(7, 1000, is_armed=False), 71: KnownJob(71, 1001, is_armed=True)}
    assert jobs_to_fence({7, 71}, known) == (71,)


def test_a_job_that_nothing_is_known_of_is_fenced() -> None:
    assert jobs_to_fence({7, 8}, {8: KnownJob(8, 1, is_armed=None)}) == (7, 8)


def test_killing_goes_on_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(process_list=list(TREE), environments={70: {"SLURM_JOB_ID": "7"}})
    killed: list[int] = []

    def kill(pid: int, number: int) -> bool:
        assert number == signal.SIGKILL
        killed.append(pid)
        host.process_list = [p for p in host.process_list if p.pid != pid]
        if pid == 52:
            host.process_list.append(Process(53, 51, 1000, "python"))
        return True

    monkeypatch.setattr(loop, "kill", kill)
    assert loop.kill_processes(host, [7], pause=lambda seconds: None) == {7: 6}
    assert sorted(killed) == [31, 41, 42, 52, 53, 70]


def test_a_known_job_outlives_a_restart() -> None:
    job = KnownJob(7, 1000, 2, "/fsx/c", None)
    assert KnownJob.from_dict(job.to_dict()) == job


def test_variables_are_one_line_each() -> None:
    assert lines_of({"A": "x\ny", "B": 3, "not a name": 1, "": 2}) == ("A=x y", "B=3")


def test_the_first_attempt_resumes_from_nothing() -> None:
    assert fallback(KnownJob(7, 1000, 0, "/fsx/c"), "/fsx/c/step_3") == {
        "HYPERPOD_ATTEMPT": "1",
        "HYPERPOD_RESUME_FROM": "",
        "HYPERPOD_PREVIOUS_FAILURE": "",
        "HYPERPOD_CHECKPOINT_DIR": "/fsx/c",
    }


def test_a_later_attempt_says_that_the_cause_is_not_known() -> None:
    found = fallback(KnownJob(7, 1000, 2, "/fsx/c"), "/fsx/c/step_3")
    assert found["HYPERPOD_ATTEMPT"] == "3"
    assert found["HYPERPOD_RESUME_FROM"] == "/fsx/c/step_3"
    assert found["HYPERPOD_PREVIOUS_FAILURE"] == "unknown: the controller did not answer"


def test_the_peer_lost_file_lies_in_the_jobs_folder() -> None:
    assert peer_lost_path("/run/hyperpod/jobs", 7) == "/run/hyperpod/jobs/7/peer_lost"


def test_leftovers_are_the_old_attempts_processes_and_its_slurmstepd_but_not_the_next_attempts() -> None:
    processes = [
        Process(60, 1, 0, "slurmstepd", "slurmstepd: [9.0]", started_at=100.0),
        Process(61, 60, 1000, "python", started_at=100.5),
        Process(70, 1, 0, "slurmstepd", "slurmstepd: [9.batch]", started_at=220.0),
        Process(71, 70, 1000, "bash", started_at=220.1),
        Process(80, 1, 1000, "left-the-tree", started_at=110.0),
        Process(81, 1, 1000, "new-and-apart", started_at=221.0),
    ]
    found = processes_of_jobs(processes, [9], lambda pid: {"SLURM_JOB_ID": "9"} if pid >= 80 else {}, 200.0)
    assert found == (60, 61, 80)
