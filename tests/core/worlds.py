"""Builders of small worlds with sensible defaults, and strategies that make strange ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from hyperpod.core.finding import Action, Finding, Severity, Whose
from hyperpod.core.job import BATCH_STEP, Attempt, ExitCause, JobRecord, JobStatus, JobView, TaskExit
from hyperpod.core.node import Availability, InstanceStatus, NodeView, Repair, RepairStatus
from hyperpod.core.plan import Action as PlannedAction
from hyperpod.core.plan import Plan
from hyperpod.core.policy import RepairPolicy, ResumePolicy
from hyperpod.core.snapshot import JobFacts, PastRepair, Snapshot

NOW = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)
POLICY = RepairPolicy()
RESUME = ResumePolicy()


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def machine(number: int) -> str:
    return f"i-{number:017x}"


def node(number: int = 1, **fields: Any) -> NodeView:
    """A worker in use whose agent was heard half a second ago."""
    values: dict[str, Any] = {
        "name": f"worker-{number}",
        "group": "worker",
        "partition": "train",
        "availability": Availability.UP,
        "instance_id": machine(number),
        "agent_instance_id": machine(number),
        "instance_status": InstanceStatus.RUNNING,
        "created_at": ago(86_400),
        "heartbeat_at": ago(0.5),
        "boot_id": f"boot-{number}",
        "is_ready": True,
    }
    return NodeView(**{**values, **fields})


def nodes(count: int, *others: NodeView) -> tuple[NodeView, ...]:
    """``count`` workers; ``others`` take the place of those with their names."""
    named = {n.name: n for n in others}
    return tuple(named.get(f"worker-{i}", node(i)) for i in range(1, count + 1))


def silent(number: int = 1, **fields: Any) -> NodeView:
    """A worker not heard for ten seconds; nobody has been asked about it yet."""
    return node(number, **{"heartbeat_at": ago(10), **fields})


def dead(number: int = 1, **fields: Any) -> NodeView:
    """A silent worker that a second opinion did not reach either."""
    return silent(number, **{"is_reachable": False, "reachable_at": ago(0.2), **fields})


def drained(number: int = 1, reason: str = "", by: str = "root", **fields: Any) -> NodeView:
    return node(number, is_drained=True, reason=reason, reason_by=by, **fields)


def fatal(code: str = "Xid79", action: Action = Action.REPLACE, **fields: Any) -> Finding:
    """A fatal finding of the node's own, two seconds old."""
    values: dict[str, Any] = {"check": "kernel_log", "message": f"{code} was seen", "since": ago(2), "is_hard": True}
    return Finding(**{"code": code, "severity": Severity.FATAL, "action": action, **values, **fields})


def repair(number: int = 1, status: RepairStatus = RepairStatus.DRAINING, **fields: Any) -> Repair:
    values: dict[str, Any] = {
        "cause": "kernel_log/Xid79",
        "message": "Xid79 was seen",
        "action": Action.REPLACE,
        "instance_id": machine(number),
        "since": ago(30),
        "changed_at": ago(5),
        "boot_id": f"boot-{number}",
    }
    return Repair(node=f"worker-{number}", status=status, **{**values, **fields})


OUR_REASON = f"hyperpod:kernel_log/Xid79 Xid79 was seen [node] ({machine(1)}, boot boot-1)"


def in_repair(number: int, status: RepairStatus, view: Mapping[str, Any] | None = None, **fields: Any) -> NodeView:
    """A worker that we have drained, in some phase of its repair."""
    reason = OUR_REASON.replace(machine(1), machine(number))
    begun = repair(number, status, **fields)
    ours = {"is_drained": True, "reason": reason, "reason_by": "root", "repair": begun}
    return node(number, **{**ours, **(view or {})})


def snapshot(*views: NodeView, **fields: Any) -> Snapshot:
    values: dict[str, Any] = {"now": NOW, "started_at": ago(3600)}
    return Snapshot(nodes=views, **{**values, **fields})


def past(*numbers: int, cause: str = "kernel_log/Xid79", seconds: float = 600) -> tuple[PastRepair, ...]:
    return tuple(PastRepair(f"worker-{n}", cause, ago(seconds)) for n in numbers)


def job(job_id: int = 7, status: JobStatus = JobStatus.RUNNING, **fields: Any) -> JobView:
    """A batch job over worker-1 and worker-2 that began a minute ago."""
    values: dict[str, Any] = {
        "user": "ann",
        "uid": 1000,
        "name": "train",
        "partition": "train",
        "node_count": 2,
        "priority": 100,
    }
    if status in (JobStatus.RUNNING, JobStatus.CONFIGURING) or status.is_over:
        values |= {"nodes": ("worker-1", "worker-2"), "started_at": ago(60)}
    if status.is_over:
        values |= {"ended_at": ago(0.5)}
    return JobView(job_id, status=status, **{**values, **fields})


def attempt(number: int = 1, **fields: Any) -> Attempt:
    """A running attempt over worker-1 and worker-2."""
    values: dict[str, Any] = {
        "started_at": ago(60),
        "nodes": ("worker-1", "worker-2"),
        "instance_ids": (machine(1), machine(2)),
        "first_task_at": ago(58),
    }
    return Attempt(number, number - 1, **{**values, **fields})


def failed(number: int = 1, **fields: Any) -> Attempt:
    """An attempt whose program failed and left no checkpoint."""
    values: dict[str, Any] = {
        "ended_at": ago(30),
        "cause": ExitCause.APPLICATION,
        "message": "rank 0 failed",
        "signature": "task:1:0",
        "last_step": -1,
    }
    return attempt(number, **{**values, **fields})


def record(*attempts: Attempt, job_id: int = 7, **fields: Any) -> JobRecord:
    """An armed job."""
    values: dict[str, Any] = {
        "user": "ann",
        "uid": 1000,
        "name": "train",
        "armed_by": "job",
        "checkpoint_dir": "/fsx/c",
    }
    return JobRecord(job_id, attempts=attempts, **{**values, **fields})


def exit_of(rank: int = 0, *, code: int | None = 1, signal: int | None = None, **fields: Any) -> TaskExit:
    values: dict[str, Any] = {"job_id": 7, "restart_count": 0, "step_id": 0, "node": "worker-1", "time": 1000.0}
    return TaskExit(rank=rank, exit_code=code, signal=signal, **{**values, **fields})


def batch_exit(code: int = 1, **fields: Any) -> TaskExit:
    return exit_of(code=code, step_id=BATCH_STEP, **fields)


def of(plan: Plan, kind: type[PlannedAction]) -> list[Any]:
    """Return the plan's actions of one kind."""
    return [a for a in plan.actions if isinstance(a, kind)]


def names(plan: Plan) -> list[str]:
    """Return the kinds of the plan's actions, in order."""
    return [type(a).__name__ for a in plan.actions]


def codes(plan: Plan) -> list[str]:
    return [n.code for n in plan.notes]


# --- strategies -------------------------------------------------------------------------------------------------

PERSONS_REASONS = (
    "maintenance until Monday",
    "bad fan",
    "Action:Replace",
    "Action:Reboot",
    "action:replace",
    "Replace ",
)
SLURMS_REASONS = ("Not responding", "Kill task failed", "Prolog error", "Node unexpectedly rebooted")

findings = st.builds(
    Finding,
    check=st.sampled_from(["kernel_log", "disk", "gpu"]),
    code=st.sampled_from(["Xid79", "Full", "Lost"]),
    severity=st.sampled_from(list(Severity)),
    message=st.just("something"),
    action=st.sampled_from(list(Action)),
    since=st.sampled_from([None, ago(2), ago(5000)]),
    boot_id=st.sampled_from(["", "boot-1", "boot-2", "boot-old"]),
    instance_id=st.sampled_from(["", machine(1), machine(2), machine(99)]),
    whose=st.sampled_from(list(Whose)),
    is_hard=st.booleans(),
)


@st.composite
def node_views(draw: st.DrawFn, number: int) -> NodeView:
    """Any node: healthy ones most often, else every mixture of what sources may say."""
    if draw(st.integers(0, 2)) == 0:
        return node(number, jobs=draw(st.sampled_from([(), (7,)])))
    status = draw(st.sampled_from([None, None, *RepairStatus]))
    reason, by = draw(
        st.sampled_from(
            [("", ""), (OUR_REASON.replace(machine(1), machine(number)), "root"), (OUR_REASON, "root")]
            + [(r, "ops") for r in PERSONS_REASONS]
            + [(r, "slurm") for r in SLURMS_REASONS]
        )
    )
    begun = None
    if status is not None and status is not RepairStatus.HEALTHY:
        begun = repair(
            number,
            status,
            action=draw(st.sampled_from([Action.REPLACE, Action.REBOOT, Action.DRAIN, Action.NONE])),
            cause=draw(st.sampled_from(["kernel_log/Xid79", "node/NodeDead", "node/Shutdown", "admin/Replace"])),
            instance_id=draw(st.sampled_from([machine(number), machine(98), ""])),
            attempt=draw(st.integers(1, 3)),
            was_rebooted=draw(st.booleans()),
            last_error=draw(st.sampled_from(["", "no capacity"])),
            since=draw(st.sampled_from([ago(30), ago(31)])),
            changed_at=draw(st.sampled_from([ago(0.1), ago(5), ago(5000)])),
        )
    heartbeat = draw(st.sampled_from([ago(0.5), ago(0.5), ago(2.9), ago(10), None]))
    return node(
        number,
        availability=draw(st.sampled_from(list(Availability))),
        is_drained=draw(st.booleans()),
        is_completing=draw(st.booleans()),
        is_responding=draw(st.booleans()),
        reason=reason,
        reason_by=by,
        jobs=draw(st.sampled_from([(), (7,), (7, 8)])),
        instance_id=draw(st.sampled_from([machine(number), machine(number), machine(99), ""])),
        instance_status=draw(st.sampled_from(list(InstanceStatus))),
        created_at=draw(st.sampled_from([None, ago(10), ago(86_400)])),
        heartbeat_at=heartbeat,
        said_goodbye=draw(st.integers(0, 5)) == 0,
        boot_id=draw(st.sampled_from(["", f"boot-{number}", "boot-new"])),
        is_ready=draw(st.booleans()),
        is_reachable=draw(st.sampled_from([None, True, False])),
        reachable_at=draw(st.sampled_from([None, ago(0.2), ago(20)])),
        in_partition=draw(st.booleans()),
        findings=tuple(draw(st.lists(findings, max_size=2))),
        repair=begun,
    )


@st.composite
def worlds(draw: st.DrawFn, most: int = 6) -> Snapshot:
    """A cluster of up to ``most`` workers, complete or not."""
    count = draw(st.integers(0, most))
    views = tuple(draw(node_views(i)) for i in range(1, count + 1))
    history = draw(
        st.lists(
            st.builds(
                PastRepair,
                node=st.sampled_from([f"worker-{i}" for i in range(1, 5)]),
                cause=st.sampled_from(["kernel_log/Xid79", "node/NodeDead"]),
                at=st.sampled_from([ago(60), ago(7200)]),
            ),
            max_size=4,
        )
    )
    return Snapshot(
        now=NOW,
        started_at=draw(st.sampled_from([ago(3600), ago(1)])),
        nodes=views,
        history=tuple(history),
        missing=draw(st.sampled_from([(), (), (), ("slurm",), ("provider",), ("slurm", "provider")])),
    )


repair_policies = st.builds(
    RepairPolicy,
    enabled=st.sampled_from([True, True, True, False]),
    action=st.sampled_from(["Replace", "Reboot"]),
    reboot_first=st.booleans(),
    max_unhealthy_percentage=st.sampled_from([10, 50, 100]),
    max_parallel_repaired=st.integers(1, 3),
    breaker_nodes=st.sampled_from([0, 2, 3]),
    spare_count=st.sampled_from([None, {"worker": 0}, {"worker": 1}, {"worker": 2}]),
)

exits = st.builds(
    TaskExit,
    job_id=st.just(7),
    restart_count=st.integers(0, 2),
    step_id=st.sampled_from([0, 1, BATCH_STEP]),
    rank=st.integers(0, 2),
    node=st.sampled_from(["worker-1", "worker-2"]),
    time=st.sampled_from([1000.0, 1000.5, 1001.0]),
    exit_code=st.sampled_from([None, 0, 1]),
    signal=st.sampled_from([None, 9, 11, 15]),
)


@st.composite
def job_worlds(draw: st.DrawFn) -> Snapshot:
    """A world with a job 7 in any state, remembered in any way, and what agents told of it."""
    world = draw(worlds(most=3))
    restarts = draw(st.integers(0, 3))
    status = draw(st.sampled_from(list(JobStatus)))
    where = draw(st.sampled_from([("worker-1", "worker-2"), ("worker-1",), ("worker-9",)]))
    view = job(
        status=status,
        restart_count=restarts,
        is_held=draw(st.booleans()),
        is_batch=draw(st.integers(0, 5)) > 0,
        is_completing=draw(st.booleans()),
        pending_reason=draw(st.sampled_from(["", "Resources", "BeginTime", "JobHeldUser"])),
        pending_message=draw(st.sampled_from(["", "launch failed requeued held"])),
        begin_at=draw(st.sampled_from([None, ago(5), ago(-100), ago(-100_000)])),
        excluded=draw(st.sampled_from([(), ("worker-1",)])),
        **({"nodes": where} if status in (JobStatus.RUNNING, JobStatus.CONFIGURING) else {}),
    )
    attempts = [
        failed(
            n,
            cause=draw(st.sampled_from(list(ExitCause))),
            last_step=draw(st.sampled_from([None, -1, 5])),
            signature=draw(st.sampled_from(["task:1:0", "task:0:9"])),
        )
        for n in range(1, draw(st.integers(0, restarts)) + 1)
    ]
    if draw(st.booleans()):
        attempts.append(attempt(len(attempts) + 1))
    kept = record(
        *attempts,
        armed_by=draw(st.sampled_from(["job", "step", ""])),
        max_attempts=draw(st.sampled_from([None, 1, 3])),
        verdict=draw(st.sampled_from(["", "", "", "Completed"])),
        avoid=draw(st.sampled_from([{}, {machine(1): "worker-1"}])),
        users_excluded=draw(st.sampled_from([(), ("worker-3",)])),
    )
    facts = JobFacts(
        exits=tuple(draw(st.lists(exits, max_size=4))),
        scanned_attempt=draw(st.integers(0, 4)),
        scan_step=draw(st.sampled_from([None, -1, 5, 9])),
        killed_steps=draw(st.sampled_from([frozenset(), frozenset({(0, 0)})])),
    )
    is_known = draw(st.integers(0, 5)) > 0
    return replace(world, jobs=(view,) if is_known else (), records={7: kept}, facts={7: facts})


def shuffled(world: Snapshot, order: Iterable[int]) -> Snapshot:
    """The same world with its nodes listed in another order."""
    return replace(world, nodes=tuple(world.nodes[i] for i in order))
