"""A small honest slurmctld in memory: the behaviours that the controller has to live with.

A job gets whole nodes. Ending leaves a job COMPLETING for some seconds, in which a new begin time is lost; a
requeued job may not begin for 120 s; a node that is only DOWN comes back by itself when its slurmd lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from hyperpod.core.job import BATCH_STEP, JobStatus, JobView
from hyperpod.core.node import Availability
from hyperpod.errors import InvalidState, NotFound, SlurmUnavailable
from hyperpod.ports.slurm import NodeState
from tests.fakes.clock import FakeClock

TOP_PRIORITY = 0xFFFFFFFD
LAUNCH_FAILED = "launch failed requeued held"


@dataclass
class _Job:
    view: JobView
    environment: Mapping[str, str] = field(default_factory=dict)
    duration_s: float | None = None
    script_fails_with_step: bool = True
    steps: tuple[int, ...] = (0,)
    completing_until: datetime | None = None
    completing_on: tuple[str, ...] = ()
    killed_steps: list[int] = field(default_factory=list)


@dataclass
class _Node:
    state: NodeState
    has_power: bool = True
    silent_since: datetime | None = None
    launches_fail: bool = False


class FakeSlurm:
    """Implements ``ports.slurm.Slurm``.

    ``calls`` records writes as (method, arguments…). ``next_error`` is raised by the next call of any kind,
    ``fail_next`` arranges one for a single method, ``is_unavailable`` makes every call fail.
    """

    def __init__(
        self,
        partitions: Mapping[str, Sequence[str]],
        clock: FakeClock | None = None,
        *,
        completing_s: float = 2.0,
        requeue_delay_s: float = 120.0,
        slurmd_timeout_s: float = 300.0,
    ) -> None:
        self.clock = clock or FakeClock()
        self.calls: list[tuple[Any, ...]] = []
        self.next_error: Exception | None = None
        self.is_unavailable = False
        self._failures: dict[str, list[Exception]] = {}
        self._completing = timedelta(seconds=completing_s)
        self._requeue_delay = timedelta(seconds=requeue_delay_s)
        self._slurmd_timeout = timedelta(seconds=slurmd_timeout_s)
        self._partitions = {name: tuple(nodes) for name, nodes in partitions.items()}
        self._nodes: dict[str, _Node] = {}
        for number, name in enumerate(sorted({n for nodes in partitions.values() for n in nodes}), start=11):
            self._nodes[name] = _Node(
                NodeState(name, Availability.UP, address=f"10.0.0.{number}", cpus=2, memory_mib=1000)
            )
        self._jobs: dict[int, _Job] = {}
        self._next_id = 1

    # --- what users, machines and time do -----------------------------------------------------------------------

    def submit(
        self,
        *,
        partition: str = "",
        environment: Mapping[str, str] | None = None,
        duration_s: float | None = None,
        script_fails_with_step: bool = True,
        steps: tuple[int, ...] = (0,),
        **fields: Any,
    ) -> int:
        """Submit a job and return its id.

        Args:
            partition: The first one when empty.
            environment: Saved with the job.
            duration_s: Ends well after this long; None: runs until something ends it.
            script_fails_with_step: Whether the batch script ends when one of its steps is killed.
            steps: Steps that it runs.
            fields: Those of ``JobView``.
        """
        job_id, self._next_id = self._next_id, self._next_id + 1
        is_held = bool(fields.get("is_held", False))
        view = JobView(
            job_id,
            status=JobStatus.PENDING,
            partition=partition or next(iter(self._partitions)),
            submitted_at=self.clock.now(),
            begin_at=self.clock.now(),
            priority=0 if is_held else 4_294_901_760 - job_id,
            pending_reason="JobHeldUser" if is_held else "",
        )
        view = replace(view, **{"user": "ubuntu", "uid": 1000, "name": f"job-{job_id}", **fields})
        self._jobs[job_id] = _Job(view, dict(environment or {}), duration_s, script_fails_with_step, steps)
        return job_id

    def advance(self, seconds: float) -> None:
        """Let time pass, second by second, with one look of the scheduler at each."""
        while seconds > 0:
            step = min(1.0, seconds)
            self.clock.advance(step)
            seconds -= step
            self.tick()

    def tick(self) -> None:
        """Do what slurmctld would do by now."""
        now = self.clock.now()
        for job in self._jobs.values():
            if job.completing_until is not None and now >= job.completing_until:
                job.completing_until, job.completing_on = None, ()
                job.view = replace(job.view, is_completing=False)
            if self._is_through(job, now):
                self.end_job(job.view.job_id)
        for node in self._nodes.values():
            if node.has_power and not node.state.is_responding:
                node.state, node.silent_since = replace(node.state, is_responding=True), None
            elif node.has_power and node.state.availability is Availability.DOWN:
                # ReturnToService=2: a registration ends DOWN, whoever set it; a drain stays.
                node.state = replace(node.state, availability=Availability.UP)
            is_late = node.silent_since is not None and now >= node.silent_since + self._slurmd_timeout
            if is_late and node.state.availability is not Availability.DOWN:
                self._down(node, "Not responding", "slurm")
        for job in sorted(self._jobs.values(), key=lambda j: (-j.view.priority, j.view.job_id)):
            self._schedule(job, now)

    def end_job(self, job_id: int, exit_code: int = 0, exit_signal: int = 0, status: JobStatus | None = None) -> None:
        """End a running job's batch script; failed when a code or signal is given, unless ``status`` says how."""
        how = status or (JobStatus.FAILED if exit_code or exit_signal else JobStatus.COMPLETED)
        job = self._jobs[job_id]
        self._begin_completing(job)
        job.view = replace(
            job.view, status=how, exit_code=exit_code, exit_signal=exit_signal, ended_at=self.clock.now()
        )

    def cancel(self, job_id: int) -> None:
        """Do what scancel of the user does."""
        self.end_job(job_id, exit_signal=15, status=JobStatus.CANCELLED)

    def power_off(self, node: str) -> None:
        """Stop a machine without a word."""
        self._nodes[node].has_power = False
        self._nodes[node].state = replace(self._nodes[node].state, is_responding=False)
        self._nodes[node].silent_since = self.clock.now()

    def power_on(self, node: str) -> None:
        """Start a machine; its slurmd registers with the next tick."""
        self._nodes[node].has_power = True

    def fail_launches(self, node: str, fails: bool = True) -> None:
        """Have every launch on a node fail, as with a broken prolog."""
        self._nodes[node].launches_fail = fails

    def forget(self, job_id: int) -> None:
        """Forget a job, as after MinJobAge."""
        del self._jobs[job_id]

    def fail_next(self, method: str, error: Exception) -> None:
        """Raise an error from the next call of one method."""
        self._failures.setdefault(method, []).append(error)

    def commands(self, method: str) -> list[tuple[Any, ...]]:
        """Return the recorded calls of one method."""
        return [call for call in self.calls if call[0] == method]

    def killed_steps(self, job_id: int) -> Sequence[int]:
        """Return the steps of a job that were killed."""
        return tuple(self._jobs[job_id].killed_steps)

    # --- the port -----------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[NodeState, ...]:
        self._asked("nodes")
        busy = {n for job in self._jobs.values() for n in job.view.nodes if job.view.status is JobStatus.RUNNING}
        completing = {n for job in self._jobs.values() for n in job.completing_on}
        return tuple(
            replace(
                node.state,
                is_allocated=name in busy,
                is_completing=name in completing,
                partitions=tuple(p for p, members in self._partitions.items() if name in members),
            )
            for name, node in self._nodes.items()
        )

    def jobs(self) -> tuple[JobView, ...]:
        self._asked("jobs")
        return tuple(job.view for job in self._jobs.values())

    def job(self, job_id: int) -> JobView | None:
        self._asked("job")
        return self._jobs[job_id].view if job_id in self._jobs else None

    def partitions(self) -> Mapping[str, tuple[str, ...]]:
        self._asked("partitions")
        return dict(self._partitions)

    def saved_environment(self, job_id: int) -> Mapping[str, str] | None:
        self._asked("saved_environment")
        job = self._jobs.get(job_id)
        return dict(job.environment) if job is not None and job.view.is_batch else None

    def set_down(self, node: str, reason: str) -> None:
        self._told("set_down", node, reason)
        self._set_reason(node, reason, is_drained=True)
        self._down(self._nodes[node], reason, "root")

    def drain(self, node: str, reason: str) -> None:
        self._told("drain", node, reason)
        self._set_reason(node, reason, is_drained=True)

    def undrain(self, node: str) -> None:
        self._told("undrain", node)
        state = self._node(node).state
        if state.is_drained or state.availability is Availability.DOWN:
            self._set_reason(node, "", is_drained=False, is_fail=False, availability=Availability.UP)
            if self._nodes[node].silent_since is not None:
                self._nodes[node].silent_since = self.clock.now()

    def update_address(self, node: str, address: str) -> None:
        self._told("update_address", node, address)
        self._node(node).state = replace(self._node(node).state, address=address)

    def set_partition_nodes(self, partition: str, nodes: Sequence[str]) -> None:
        self._told("set_partition_nodes", partition, tuple(nodes))
        if partition not in self._partitions:
            raise NotFound(f"Invalid partition name specified ({partition})")
        for node in nodes:
            self._node(node)
        self._partitions[partition] = tuple(nodes)

    def allow_requeue(self, job_id: int) -> None:
        self._told("allow_requeue", job_id)
        self._change(job_id, is_requeue_allowed=True)

    def forbid_requeue(self, job_id: int) -> None:
        self._told("forbid_requeue", job_id)
        self._change(job_id, is_requeue_allowed=False)

    def requeue(self, job_id: int) -> None:
        self._told("requeue", job_id)
        job = self._job(job_id)
        if job.view.status is JobStatus.PENDING:
            return
        if not job.view.is_requeue_allowed:
            raise InvalidState(f"requeue {job_id}", "not allowed to be requeued")
        self._requeue(job)

    def start_now(self, job_id: int) -> None:
        self._told("start_now", job_id)
        job = self._job(job_id)
        if job.view.status is JobStatus.PENDING and not job.view.is_completing:
            self._change(job_id, begin_at=self.clock.now())

    def set_excluded(self, job_id: int, nodes: Sequence[str]) -> None:
        self._told("set_excluded", job_id, tuple(nodes))
        if self._job(job_id).view.status is not JobStatus.PENDING:
            raise InvalidState(f"exclude nodes for job {job_id}", "no longer pending")
        for node in nodes:
            self._node(node)
        self._change(job_id, excluded=tuple(nodes))

    def set_top_priority(self, job_id: int) -> None:
        self._told("set_top_priority", job_id)
        if self._job(job_id).view.is_held:
            raise InvalidState(f"raise job {job_id}", "held")
        self._change(job_id, priority=TOP_PRIORITY)

    def release(self, job_id: int) -> None:
        self._told("release", job_id)
        if self._job(job_id).view.is_held:
            self._change(job_id, is_held=False, priority=4_294_901_760 - job_id, pending_reason="", pending_message="")

    def kill_step(self, job_id: int, step_id: int) -> None:
        self._told("kill_step", job_id, step_id)
        job = self._job(job_id)
        if job.view.status is not JobStatus.RUNNING:
            return
        if step_id == BATCH_STEP:
            job.killed_steps.append(step_id)
            self.end_job(job_id, exit_signal=9)
        elif step_id in job.steps:
            job.killed_steps.append(step_id)
            self._step_ended(job)

    # --- inside -------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_through(job: _Job, now: datetime) -> bool:
        if job.view.status is not JobStatus.RUNNING or job.duration_s is None or job.view.started_at is None:
            return False
        return now >= job.view.started_at + timedelta(seconds=job.duration_s)

    def _step_ended(self, job: _Job) -> None:
        if job.script_fails_with_step:
            self.end_job(job.view.job_id, exit_code=137)

    def _asked(self, method: str) -> None:
        if self.is_unavailable:
            raise SlurmUnavailable("slurmctld does not answer")
        error, self.next_error = self.next_error, None
        if error is None and self._failures.get(method):
            error = self._failures[method].pop(0)
        if error is not None:
            raise error

    def _told(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, *arguments))
        self._asked(method)

    def _job(self, job_id: int) -> _Job:
        if job_id not in self._jobs:
            raise NotFound(f"Invalid job id specified ({job_id})")
        return self._jobs[job_id]

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            raise NotFound(f"Invalid node name specified ({name})")
        return self._nodes[name]

    def _change(self, job_id: int, **fields: Any) -> None:
        job = self._job(job_id)
        job.view = replace(job.view, **fields)

    def _set_reason(self, node: str, reason: str, **fields: Any) -> None:
        held = self._node(node)
        by, at = ("root", self.clock.now()) if reason else ("", None)
        held.state = replace(held.state, reason=reason, reason_by=by, reason_at=at, **fields)

    def _down(self, node: _Node, reason: str, by: str) -> None:
        node.state = replace(
            node.state, availability=Availability.DOWN, reason=reason, reason_by=by, reason_at=self.clock.now()
        )
        for job in self._jobs.values():
            if job.view.status is JobStatus.RUNNING and node.state.name in job.view.nodes:
                if job.view.is_requeue_allowed and job.view.is_batch:
                    self._requeue(job)
                else:
                    self.end_job(job.view.job_id, exit_signal=1, status=JobStatus.NODE_FAIL)

    def _begin_completing(self, job: _Job) -> None:
        if job.view.status is JobStatus.RUNNING:
            job.completing_until, job.completing_on = self.clock.now() + self._completing, job.view.nodes
            job.view = replace(job.view, is_completing=True)

    def _requeue(self, job: _Job, **fields: Any) -> None:
        self._begin_completing(job)
        values: dict[str, Any] = {
            "status": JobStatus.PENDING,
            "pending_reason": "BeginTime",
            "begin_at": self.clock.now() + self._requeue_delay,
            "restart_count": job.view.restart_count + 1,
            "exit_code": 0,
            "exit_signal": 0,
            "nodes": (),
            "batch_host": "",
            "started_at": None,
            "ended_at": None,
        }
        job.view = replace(job.view, **{**values, **fields})

    def _schedule(self, job: _Job, now: datetime) -> None:
        view = job.view
        if view.status is not JobStatus.PENDING or view.is_held or view.is_completing:
            return
        if view.begin_at is not None and now < view.begin_at:
            job.view = replace(view, pending_reason="BeginTime")
            return
        if not self._is_satisfied(view.dependency):
            job.view = replace(view, pending_reason="Dependency")
            return
        free = [name for name in self._partitions[view.partition] if self._is_free(name, view)]
        chosen = [name for name in view.required if name in free]
        chosen += [name for name in free if name not in view.required][: view.node_count - len(chosen)]
        if len(chosen) < view.node_count or not set(view.required) <= set(chosen):
            job.view = replace(view, pending_reason="Resources")
            return
        bad = [name for name in chosen if self._nodes[name].launches_fail]
        if bad:
            for name in bad:
                self._set_reason(name, "Prolog error", is_drained=True)
                self._nodes[name].state = replace(self._nodes[name].state, reason_by="slurm")
            held = {"is_held": True, "priority": 0, "pending_reason": "JobHeldUser", "pending_message": LAUNCH_FAILED}
            self._requeue(job, **held)
            return
        job.view = replace(
            view,
            status=JobStatus.RUNNING,
            nodes=tuple(chosen),
            batch_host=chosen[0],
            started_at=now,
            pending_reason="",
            pending_message="",
        )

    def _is_free(self, name: str, view: JobView) -> bool:
        state = self._nodes[name].state
        if state.availability is not Availability.UP or state.is_drained or not state.is_responding:
            return False
        if name in view.excluded:
            return False
        return not any(
            name in job.completing_on or (job.view.status is JobStatus.RUNNING and name in job.view.nodes)
            for job in self._jobs.values()
        )

    def _is_satisfied(self, dependency: str) -> bool:
        kind, _, ids = dependency.partition(":")
        wanted: Callable[[JobView], bool] = (
            (lambda v: v.status is JobStatus.COMPLETED) if kind == "afterok" else (lambda v: v.status.is_over)
        )
        numbers = [int(part.partition("(")[0]) for part in ids.split(":") if part]
        return all(number not in self._jobs or wanted(self._jobs[number].view) for number in numbers)
