"""The controller is killed at every possible effect, before and after it, and started again: the end is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hyperpod.adapters.store import open_store
from hyperpod.core.job import ExitCause, JobStatus
from tests.daemons.cluster import Cluster

Story = Callable[[Cluster], int]


def power_off(lab: Cluster) -> int:
    job = lab.submit()
    lab.machines.fail(lab.view(job).nodes[0])
    return job


def rank_crash(lab: Cluster) -> int:
    job = lab.submit()
    lab.crash_rank(job, signal=11)
    return job


def rank_crash_under_srun(lab: Cluster) -> int:
    job = lab.submit(environment={})
    lab.report("env_given", job_id=job, restart_count=0, armed_by="step", auto_resume="3")
    lab.run(1)
    lab.crash_rank(job, signal=11)
    return job


STORIES: dict[str, Story] = {
    "power off": power_off,
    "rank crash": rank_crash,
    "rank crash under srun --auto-resume": rank_crash_under_srun,
}


def finish(lab: Cluster, job: int) -> None:
    def is_over() -> bool:
        view = lab.view(job)
        return lab.is_well() and view.status is JobStatus.RUNNING and view.restart_count >= 1

    lab.run_until(is_over, seconds=200)
    lab.run(5)


def end_state(lab: Cluster, job: int) -> dict[str, object]:
    """What must be the same whenever the controller was killed."""
    record = lab.record(job)
    partitions = lab.slurm.partitions()
    return {
        "status": lab.view(job).status,
        "restarts": lab.view(job).restart_count,
        "attempts": [(a.number, a.cause) for a in record.attempts],
        "verdict": record.verdict,
        "machines made": dict(lab.machines.made),
        "in use": len(partitions["train"]),
        "spares": len(partitions["hyperpod-spare"]),
        "saved": {n: set(lab.saved.get(n, ())) == set(members) for n, members in partitions.items()},
        "repairs": len(lab.store.repairs()),
        "undone": len(lab.store.unfinished()),
    }


def play(
    story: Story, at: int | None, *, is_after: bool, lab: Cluster | None = None
) -> tuple[Cluster, dict[str, object]]:
    lab = lab or Cluster()
    if at is not None:
        lab.assassin.order(lab.assassin.count + at, is_after=is_after)
    first = lab.assassin.count
    job = story(lab)
    finish(lab, job)
    lab.assassin.effects = lab.assassin.effects[first:]
    return lab, end_state(lab, job)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", STORIES)
def test_ends_the_same_whichever_effect_the_controller_is_killed_at(name: str, is_after: bool) -> None:
    undisturbed, wanted = play(STORIES[name], None, is_after=False)
    effects = undisturbed.assassin.effects
    assert wanted["restarts"] == 1
    assert len(effects) > 15
    for at in range(len(effects)):
        lab, found = play(STORIES[name], at, is_after=is_after)
        where = f"killed {'after' if is_after else 'before'} effect {at} ({effects[at]})"
        assert lab.deaths == 1, where
        assert found == wanted, f"{where}: {lab.history()}"


@pytest.mark.parametrize("at", range(0, 40, 5))
def test_ends_the_same_with_the_journal_on_disk(tmp_path: Path, at: int) -> None:
    _, wanted = play(power_off, None, is_after=False)
    store = open_store(tmp_path / "controller.db", Cluster().clock.now())
    lab, found = play(power_off, at, is_after=True, lab=Cluster(store=store))
    assert lab.deaths == 1
    assert found == wanted


def test_a_power_off_is_one_replacement_and_one_more_attempt() -> None:
    lab, found = play(power_off, None, is_after=False)
    assert found["machines made"] == {"worker-1": 2, "worker-2": 1, "worker-3": 1, "worker-4": 1}
    assert found["attempts"] == [(1, ExitCause.NODE_DEAD), (2, None)]
    assert (found["in use"], found["spares"]) == (3, 1)
    assert len([c for c in lab.machines.calls if c[0] == "replace"]) == 1
    assert not lab.slurm.commands("requeue"), "Slurm itself requeues the job when its node is marked down"


def test_a_rank_crash_is_one_requeue_and_touches_no_machine() -> None:
    lab, found = play(rank_crash, None, is_after=False)
    assert found["attempts"] == [(1, ExitCause.APPLICATION), (2, None)]
    assert len(lab.slurm.commands("requeue")) == 1
    assert len(lab.slurm.commands("kill_step")) == 1
    assert lab.machines.calls == []
