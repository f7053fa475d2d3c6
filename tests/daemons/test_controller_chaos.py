"""Faults of every kind in any order, the controller killed among them: never unsafe, and well again in the end."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.job import JobStatus
from hyperpod.core.node import InstanceStatus, RepairStatus
from hyperpod.errors import Throttled
from hyperpod.ports.provider import Instance
from tests.daemons.cluster import Cluster

NODES = [f"worker-{i}" for i in range(1, 6)]
PERSONS = "let me look at it"

nodes = st.sampled_from(NODES)
faults = st.one_of(
    st.tuples(st.just("power off"), nodes),
    st.tuples(st.just("cut"), nodes),
    st.tuples(st.just("uncut"), nodes),
    st.tuples(st.just("ill"), nodes, st.sampled_from([Action.DRAIN, Action.REBOOT, Action.REPLACE])),
    st.tuples(st.just("well"), nodes),
    st.tuples(st.just("goodbye"), nodes),
    st.tuples(st.just("person drains"), nodes),
    st.tuples(st.just("person opens"), nodes),
    st.tuples(st.just("crash"), st.sampled_from([1, 9, 11])),
    st.tuples(st.just("slurm"), st.booleans()),
    st.tuples(st.just("provider"), st.booleans()),
    st.tuples(st.just("kill"), st.integers(0, 12), st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("progress")),
)
stories = st.lists(st.tuples(faults, st.sampled_from([0.25, 1, 4, 15])), min_size=1, max_size=10)


class Unsafe(BaseException):
    """Something happened that must never happen."""


def guarded(lab: Cluster) -> Cluster:
    """Have every end of a machine checked: never one with a live job, never more at once than allowed."""
    real_replace, real_reboot = lab.machines.replace, lab.machines.reboot

    def check(node: str) -> None:
        is_on = lab.machines.machines[node].instance.status is InstanceStatus.RUNNING
        busy = [j.job_id for j in lab.slurm.jobs() if j.status is JobStatus.RUNNING and node in j.nodes]
        if is_on and busy and not lab.slurm.is_unavailable:
            raise Unsafe(f"{node} is ended under jobs {busy}: {lab.history()}")
        at_work = [r for r in lab.store.repairs() if r.status in (RepairStatus.REBOOTING, RepairStatus.REPLACING)]
        if len(at_work) > lab.repair_policy.max_parallel_repaired:
            raise Unsafe(f"too many at once: {at_work}")

    def replace(node: str, instance_id: str, token: str) -> Instance:
        if lab.machines.machines[node].instance.id == instance_id and not lab.slurm.is_unavailable:
            check(node)
        return real_replace(node, instance_id, token)

    def reboot(instance_id: str) -> None:
        if not lab.slurm.is_unavailable:
            check(lab.machines._find(instance_id))
        real_reboot(instance_id)

    lab.machines.replace, lab.machines.reboot = replace, reboot  # type: ignore[method-assign]
    return lab


def befall(lab: Cluster, job: int, fault: tuple[Any, ...]) -> None:
    """Let one thing happen."""
    kind, *rest = fault
    if kind == "power off":
        lab.machines.fail(rest[0])
    elif kind == "cut":
        lab.cut.add(rest[0])
        lab.agents.mute.add(rest[0])
    elif kind == "uncut":
        lab.cut.discard(rest[0])
        lab.agents.mute.discard(rest[0])
    elif kind == "ill":
        machine = lab.machines.machines[rest[0]].instance.id
        found = Finding("gpu", f"Ill{rest[0]}", Severity.FATAL, "it is ill", rest[1], instance_id=machine, is_hard=True)
        lab.agents.findings[rest[0]] = (found,)
    elif kind == "well":
        lab.agents.findings.pop(rest[0], None)
    elif kind == "goodbye":
        lab.agents.goodbye(rest[0], lab.world.inbox)
    elif kind == "person drains":
        lab.slurm.is_unavailable, before = False, lab.slurm.is_unavailable
        lab.slurm.drain(rest[0], PERSONS)
        lab.slurm.is_unavailable = before
    elif kind == "person opens":
        lab.slurm.is_unavailable, before = False, lab.slurm.is_unavailable
        lab.slurm.undrain(rest[0])
        lab.slurm.is_unavailable = before
    elif kind == "crash":
        if lab.view(job).status is JobStatus.RUNNING:
            lab.crash_rank(job, signal=rest[0])
    elif kind == "slurm":
        lab.slurm.is_unavailable = rest[0]
    elif kind == "provider":
        lab.machines.silence = Throttled("slow down") if rest[0] else None
    elif kind == "kill":
        lab.assassin.order(lab.assassin.count + rest[0], is_after=rest[1])
    elif kind == "restart":
        lab.restart()
    elif kind == "progress":
        lab.checkpoints.step = (lab.checkpoints.step or 0) + 100


def heal(lab: Cluster) -> None:
    """All that is not the controller's to repair is well again; a person closes the breaker."""
    lab.slurm.is_unavailable = False
    lab.machines.silence = None
    lab.assassin.at = None
    lab.cut.clear()
    lab.agents.mute.clear()
    lab.agents.findings.clear()
    for node in NODES:
        if lab.node(node).reason == PERSONS:
            lab.slurm.undrain(node)
    lab.store.set_value("breaker_reset_at", lab.clock.now().isoformat())


def is_settled(lab: Cluster) -> bool:
    """Say whether all is well; a person asks for another try where the controller waits for one."""
    for repair in lab.store.repairs():
        if repair.status is RepairStatus.HELD:
            lab.slurm.drain(repair.node, "Action:Replace")
    return lab.is_well()


@settings(max_examples=8, deadline=None)
@given(stories)
def test_whatever_happens_nothing_unsafe_is_done_and_all_is_well_in_the_end(
    story: list[tuple[tuple[Any, ...], float]],
) -> None:
    lab = guarded(Cluster(workers=5, spares=1))
    job = lab.submit()
    persons: set[str] = set()
    for fault, seconds in story:
        befall(lab, job, fault)
        if fault[0] in ("person drains", "person opens"):
            (persons.add if fault[0] == "person drains" else persons.discard)(fault[1])
        lab.run(seconds)
        for node in persons:
            assert lab.node(node).reason == PERSONS, lab.history()
    heal(lab)
    if any(fault[0] == "goodbye" for fault, _ in story):
        # A shutdown that was announced and does not come is believed for two minutes.
        lab.run(130)
    lab.run_until(lambda: is_settled(lab), seconds=400)
    lab.run(30)
    view, record = lab.view(job), lab.record(job)
    assert (view.status is JobStatus.RUNNING) is (record.verdict == ""), (view, record, lab.history())
    # We never ask for a sixth attempt; Slurm itself may, when a node is marked down.
    assert all(a.number < 5 for a in record.attempts if a.decided_at is not None), lab.history()
    assert [a.number for a in record.attempts] == sorted({a.number for a in record.attempts})
    assert view.status is not JobStatus.RUNNING or record.attempts[-1].restart_count == view.restart_count
    partitions = lab.slurm.partitions()
    assert (len(partitions["train"]), len(partitions["hyperpod-spare"])) == (4, 1), lab.history()
