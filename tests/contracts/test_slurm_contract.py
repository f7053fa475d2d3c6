"""What every implementation of the Slurm port does: the fake, and with ``-m e2e`` a real cluster.

The real one is the cluster that the end-to-end tests share, with the controller stopped so that nobody else acts, and
with two of its workers open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from hyperpod.adapters.slurm.conf import SPARE_PARTITION
from hyperpod.core.job import BATCH_STEP, JobStatus, JobView
from hyperpod.core.node import Availability
from hyperpod.errors import InvalidState, NotFound
from hyperpod.ports.process import Completed
from hyperpod.ports.slurm import NodeState, Slurm
from tests.fakes.slurm import FakeSlurm

REASON = "hyperpod:contract/Test a rehearsal [site] (i-0123456789abcdef0, boot 12345678)"


class World(Protocol):
    slurm: Slurm
    partition: str
    workers: tuple[str, ...]

    def submit(self, *options: str, seconds: float | None = None, code: int = 0) -> int: ...

    def wait(self, seconds: float) -> None: ...


class FakeWorld:
    def __init__(self) -> None:
        self.partition, self.workers = "dev", ("worker-1", "worker-2")
        self.fake = FakeSlurm({"dev": self.workers, "hyperpod-spare": ("worker-3",)}, completing_s=1)
        self.slurm: Slurm = self.fake

    def submit(self, *options: str, seconds: float | None = None, code: int = 0) -> int:
        named = dict(option.removeprefix("--").partition("=")[::2] for option in options)
        job_id = self.fake.submit(
            duration_s=seconds,
            is_held="hold" in named,
            is_requeue_allowed="no-requeue" not in named,
            node_count=int(named.get("nodes", "1")),
            required=(named["nodelist"],) if "nodelist" in named else (),
            environment=dict([named["export"].removeprefix("ALL,").split("=")]) if "export" in named else {},
        )
        return job_id

    def wait(self, seconds: float) -> None:
        self.fake.advance(seconds)


class InContainer:
    """Runs programs in the head node's container."""

    def __init__(self, head: str) -> None:
        self._head = head

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        check: bool = True,
    ) -> Completed:
        from hyperpod.adapters.process import Processes

        options = [part for name, value in (env or {}).items() for part in ("--env", f"{name}={value}")]
        options += ["--user", user] if user else []
        inside = ["podman", "exec", *options, self._head, *argv]
        return Processes().run(inside, timeout_s=timeout_s + 2, check=check)


class RealWorld:
    def __init__(self, head: str) -> None:
        from hyperpod.adapters.slurm.client import SlurmCli

        self._container = InContainer(head)
        self.slurm: Slurm = SlurmCli(self._container, read_bytes=self._read)
        idle = [
            n for n in self.slurm.nodes() if n.availability is Availability.UP and not n.is_drained and n.is_responding
        ]
        self.partition = next(p for p in self.slurm.partitions() if p != SPARE_PARTITION)
        here = [n.name for n in idle if self.partition in n.partitions]
        self.workers, self._closed = tuple(here[:2]), here[2:]
        for name in self._closed:
            self.slurm.drain(name, "contract tests use the other two")
        self._submitted: list[int] = []

    def _read(self, path: Path, limit_bytes: int) -> bytes:
        done = self._container.run(["base64", str(path)], timeout_s=5, check=False)
        if done.code != 0:
            raise FileNotFoundError(path)
        import base64

        return base64.b64decode(done.stdout)[: limit_bytes + 1]

    def submit(self, *options: str, seconds: float | None = None, code: int = 0) -> int:
        script = f"sleep {3600 if seconds is None else seconds}; exit {code}"
        argv = ["sbatch", "--parsable", "--exclusive", "--chdir=/tmp", "--output=/dev/null", *options]
        done = self._container.run([*argv, f"--wrap={script}"], timeout_s=10, user="ubuntu")
        self._submitted.append(int(done.stdout))
        return self._submitted[-1]

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def clean_up(self) -> None:
        for job_id in self._submitted:
            self._container.run(["scancel", str(job_id)], timeout_s=10, check=False)
        for node in (*self.workers, *self._closed):
            self.slurm.undrain(node)
        until(self, lambda: all(is_idle(self, node) for node in self.workers), 60)


def until(world: World, is_reached: Callable[[], bool], seconds: float) -> None:
    waited = 0.0
    while not is_reached():
        assert waited < seconds, f"not reached within {seconds} s"
        world.wait(0.5)
        waited += 0.5


def is_idle(world: World, name: str) -> bool:
    state = node(world, name)
    return state.availability is Availability.UP and not (
        state.is_drained or state.is_allocated or state.is_completing or not state.is_responding
    )


def node(world: World, name: str) -> NodeState:
    return next(n for n in world.slurm.nodes() if n.name == name)


def job(world: World, job_id: int) -> JobView:
    view = world.slurm.job(job_id)
    assert view is not None
    return view


def running(world: World, job_id: int, seconds: float = 60) -> JobView:
    until(world, lambda: job(world, job_id).status is JobStatus.RUNNING, seconds)
    return job(world, job_id)


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.e2e, pytest.mark.timeout(300)])])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    lab = request.getfixturevalue("lab")
    lab.head("systemctl", "stop", "hyperpod-controller")
    try:
        real = RealWorld(lab.container("head-1"))
        assert len(real.workers) == 2, "the real cluster needs two idle nodes"
        try:
            yield real
        finally:
            real.clean_up()
    finally:
        lab.head("systemctl", "start", "hyperpod-controller")


def test_nodes_and_partitions_know_each_other(world: World) -> None:
    assert all(is_idle(world, name) for name in world.workers)
    assert set(world.workers) <= set(world.slurm.partitions()[world.partition])
    assert all(node(world, name).partitions == (world.partition,) for name in world.workers)


def test_a_running_job_names_its_nodes(world: World) -> None:
    job_id = world.submit("--nodes=2")
    view = running(world, job_id)
    assert (view.user, view.is_batch, view.is_held, view.restart_count) == ("ubuntu", True, False, 0)
    assert set(view.nodes) == set(world.workers)
    assert view.batch_host in world.workers
    assert view.started_at is not None
    assert view.ended_at is None
    assert job_id in {v.job_id for v in world.slurm.jobs()}
    assert node(world, world.workers[0]).is_allocated


def test_an_unknown_job_is_none_and_cannot_be_changed(world: World) -> None:
    unknown = 60_000_000
    assert world.slurm.job(unknown) is None
    assert world.slurm.saved_environment(unknown) is None
    for write in (world.slurm.requeue, world.slurm.start_now, world.slurm.set_top_priority, world.slurm.release):
        with pytest.raises(NotFound):
            write(unknown)
    with pytest.raises(NotFound):
        world.slurm.kill_step(unknown, 0)


def test_an_unknown_node_cannot_be_changed(world: World) -> None:
    for write in (world.slurm.set_down, world.slurm.drain):
        with pytest.raises(NotFound):
            write("nobody-1", REASON)
    with pytest.raises(NotFound):
        world.slurm.undrain("nobody-1")


def test_a_job_leaves_a_node_set_down_and_runs_elsewhere_at_once(world: World) -> None:
    bad, good = world.workers
    job_id = world.submit(f"--nodelist={bad}")
    running(world, job_id)
    world.slurm.set_down(bad, REASON)
    assert node(world, bad).is_drained
    assert (node(world, bad).reason, node(world, bad).reason_by) == (REASON, "root")
    until(world, lambda: job(world, job_id).status is JobStatus.PENDING, 10)
    assert job(world, job_id).restart_count == 1
    # Its own wish for the bad node would keep it waiting, so another job shows the way on.
    other = world.submit()
    assert running(world, other).nodes == (good,)
    world.wait(5)
    assert node(world, bad).is_drained
    assert job(world, job_id).status is JobStatus.PENDING


def test_a_requeued_job_waits_for_its_begin_time_unless_told_to_start(world: World) -> None:
    first, second = world.workers
    job_id = world.submit()
    before = running(world, job_id).nodes
    world.slurm.requeue(job_id)
    until(world, lambda: job(world, job_id).status is JobStatus.PENDING and not job(world, job_id).is_completing, 30)
    world.wait(4)
    view = job(world, job_id)
    assert (view.status, view.pending_reason, view.restart_count) == (JobStatus.PENDING, "BeginTime", 1)
    assert view.begin_at is not None
    world.slurm.set_excluded(job_id, before)
    world.slurm.set_top_priority(job_id)
    world.slurm.start_now(job_id)
    after = running(world, job_id, 10)
    assert set(before) | set(after.nodes) == {first, second}
    assert (after.excluded, after.restart_count) == (before, 1)
    world.slurm.start_now(job_id)
    with pytest.raises(InvalidState):
        world.slurm.set_excluded(job_id, ())


def test_requeue_accepts_pending_and_ended_jobs(world: World) -> None:
    job_id = world.submit(seconds=0)
    until(world, lambda: job(world, job_id).status is JobStatus.COMPLETED, 60)
    assert job(world, job_id).ended_at is not None
    world.slurm.requeue(job_id)
    assert job(world, job_id).status is JobStatus.PENDING
    world.slurm.requeue(job_id)
    assert job(world, job_id).restart_count == 1


def test_a_job_that_forbids_requeue_must_be_allowed_first(world: World) -> None:
    job_id = world.submit("--no-requeue")
    assert not running(world, job_id).is_requeue_allowed
    with pytest.raises(InvalidState):
        world.slurm.requeue(job_id)
    world.slurm.allow_requeue(job_id)
    world.slurm.requeue(job_id)
    assert job(world, job_id).status is JobStatus.PENDING


def test_a_held_job_is_started_by_release_only(world: World) -> None:
    job_id = world.submit("--hold")
    world.wait(3)
    assert job(world, job_id).is_held
    with pytest.raises(InvalidState):
        world.slurm.set_top_priority(job_id)
    world.slurm.start_now(job_id)
    world.wait(3)
    assert job(world, job_id).status is JobStatus.PENDING
    world.slurm.release(job_id)
    world.slurm.release(job_id)
    running(world, job_id)


def test_a_drained_node_keeps_its_job_and_gets_no_other(world: World) -> None:
    drained, other = world.workers
    first = world.submit(f"--nodelist={drained}")
    running(world, first)
    world.slurm.drain(drained, REASON)
    world.slurm.drain(drained, REASON)
    second = world.submit(f"--nodelist={drained}")
    world.wait(4)
    assert job(world, first).status is JobStatus.RUNNING
    assert job(world, second).status is JobStatus.PENDING
    assert node(world, drained).availability is Availability.UP
    world.slurm.undrain(drained)
    world.slurm.undrain(drained)
    world.slurm.undrain(other)
    assert not node(world, drained).is_drained


def test_killing_the_batch_script_ends_a_running_job(world: World) -> None:
    job_id = world.submit()
    running(world, job_id)
    world.wait(1)
    world.slurm.kill_step(job_id, 4_000)
    world.slurm.kill_step(job_id, BATCH_STEP)
    until(world, lambda: job(world, job_id).status is JobStatus.FAILED, 30)
    assert job(world, job_id).exit_signal == 9


def test_killing_steps_of_a_waiting_job_does_not_cancel_it(world: World) -> None:
    job_id = world.submit("--hold")
    world.slurm.kill_step(job_id, BATCH_STEP)
    world.slurm.kill_step(job_id, 0)
    world.wait(1)
    assert job(world, job_id).status is JobStatus.PENDING


def test_the_environment_saved_with_a_job_can_be_read(world: World) -> None:
    job_id = world.submit("--export=ALL,HYPERPOD_AUTO_RESUME=3")
    saved = world.slurm.saved_environment(job_id)
    assert saved is not None
    assert saved["HYPERPOD_AUTO_RESUME"] == "3"


def test_partition_members_can_be_changed_and_emptied(world: World) -> None:
    before = world.slurm.partitions()[world.partition]
    try:
        world.slurm.set_partition_nodes(world.partition, before[:1])
        assert world.slurm.partitions()[world.partition] == before[:1]
        world.slurm.set_partition_nodes(world.partition, ())
        assert world.slurm.partitions()[world.partition] == ()
    finally:
        world.slurm.set_partition_nodes(world.partition, before)
    assert world.slurm.partitions()[world.partition] == before
    with pytest.raises(NotFound):
        world.slurm.set_partition_nodes("nowhere", before)
    with pytest.raises(NotFound):
        world.slurm.set_partition_nodes(world.partition, ("nobody-1",))


def test_an_address_can_be_set_again(world: World) -> None:
    name = world.workers[0]
    address = node(world, name).address
    world.slurm.update_address(name, address)
    assert node(world, name).address == address
