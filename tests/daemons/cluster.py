"""A small simulated cluster around the real controller loop: everything outside it is a fake, time is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hyperpod.controller.loop import restore, run_once
from hyperpod.controller.memory import Inbox, Memory, Report
from hyperpod.controller.world import NodeSlot, World
from hyperpod.core import messages as words
from hyperpod.core.job import JobRecord, JobStatus, JobView
from hyperpod.core.node import Role
from hyperpod.core.plan import Plan
from hyperpod.core.policy import RepairPolicy, ResumePolicy
from hyperpod.ports.checkpoints import Scan
from hyperpod.ports.slurm import NodeState
from tests.fakes.agents import FakeAgents
from tests.fakes.clock import FakeClock
from tests.fakes.provider import FakeMachines
from tests.fakes.slurm import FakeSlurm
from tests.fakes.store import MemoryStore

ARMED = {"HYPERPOD_AUTO_RESUME": "5"}


class Killed(BaseException):
    """The controller was killed here."""


class Assassin:
    """Kills the controller before or after its n-th effect (from 0); counts effects when it has no order."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.is_after = False
        self.count = 0
        self.effects: list[str] = []

    def order(self, at: int, *, is_after: bool) -> None:
        self.at, self.is_after = at, is_after

    def around(self, name: str, effect: Callable[[], Any]) -> Any:
        number = self.count
        self.count += 1
        self.effects.append(name)
        if self.at == number and not self.is_after:
            raise Killed(name)
        result = effect()
        if self.at == number and self.is_after:
            raise Killed(name)
        return result


class Watched:
    """Passes everything on; the named methods are effects that the assassin may strike at."""

    def __init__(self, inner: Any, effects: Sequence[str], assassin: Assassin) -> None:
        self._inner, self._effects, self._assassin = inner, frozenset(effects), assassin

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in self._effects:
            return method
        return lambda *args, **kwargs: self._assassin.around(name, lambda: method(*args, **kwargs))


SLURM_EFFECTS = (
    "set_down",
    "drain",
    "undrain",
    "update_address",
    "set_partition_nodes",
    "allow_requeue",
    "forbid_requeue",
    "requeue",
    "start_now",
    "set_excluded",
    "set_top_priority",
    "release",
    "kill_step",
)
STORE_EFFECTS = (
    "intend",
    "finish",
    "put_job",
    "put_repair",
    "drop_repair",
    "add_event",
    "set_value",
    "put_fault",
    "put_marks",
)
MACHINE_EFFECTS = ("power_off", "reboot", "replace", "park", "power_on")


class JobsAtOnce:
    """Does the work that belongs beside the tick at once."""

    def submit(self, key: str, work: Callable[[], None]) -> bool:
        work()
        return True


class FakeCheckpoints:
    """Steps by attempt's directory; None: the directory does not answer."""

    def __init__(self) -> None:
        self.step: int | None = -1

    def scan(self, directory: str, user: str, *, set_aside: bool) -> Scan:
        return Scan(f"{directory}/step_{self.step}" if self.step is not None and self.step >= 0 else "", self.step)


class Cluster:
    """Workers ``worker-1`` … in the partition ``train``, the last ones as spares, and a controller to be killed."""

    def __init__(
        self,
        workers: int = 4,
        spares: int = 1,
        *,
        store: Any = None,
        repair: Mapping[str, Any] | None = None,
        resume: Mapping[str, Any] | None = None,
    ) -> None:
        names = [f"worker-{i}" for i in range(1, workers + 1)]
        used = names[: workers - spares]
        self.clock = FakeClock()
        self.slurm = FakeSlurm({"train": used, "hyperpod-spare": names[workers - spares :]}, self.clock)
        self.machines = FakeMachines(names, self.clock)
        self.machines.on_power = self._power_changed
        self.agents = FakeAgents(self.machines, self.clock)
        self.store = store if store is not None else MemoryStore()
        self.checkpoints = FakeCheckpoints()
        self.assassin = Assassin()
        self.deaths = 0
        self.unheard: list[Report] = []
        self.slots = [NodeSlot(n, "worker", Role.WORKER, self._address(n), "train") for n in names]
        self.repair_policy = RepairPolicy(spare_count={"worker": spares}, **(repair or {}))
        self.resume_policy = ResumePolicy(**(resume or {}))
        self.saved: dict[str, tuple[str, ...]] = {}
        self.cut: set[str] = set()
        self._started: set[tuple[int, int]] = set()
        self.world = self._new_world()
        self.run(3)

    def _address(self, node: str) -> str:
        return self.machines.machines[node].instance.address

    def _power_changed(self, node: str, is_on: bool) -> None:
        if not is_on:
            self.slurm.power_off(node)

    def _new_world(self) -> World:
        killer = self.assassin
        return World(
            cluster="lab",
            slots=lambda: self.slots,
            slurm=Watched(self.slurm, SLURM_EFFECTS, killer),
            machines=Watched(self.machines, MACHINE_EFFECTS, killer),
            store=Watched(self.store, STORE_EFFECTS, killer),
            clock=self.clock,
            agents=self.agents,
            jobs=JobsAtOnce(),
            checkpoints=self.checkpoints,
            probe=self._is_reachable,
            save_partition=lambda partition, nodes: self.saved.update({partition: tuple(nodes)}),
            repair_policy=self.repair_policy,
            resume_policy=self.resume_policy,
            memory=Memory(started_at=self.clock.now()),
            inbox=Inbox(),
        )

    def _is_reachable(self, address: str) -> bool:
        # Where machines are now; nobody answers at the address of one that is gone.
        node = next((name for name in self.machines.machines if self._address(name) == address), None)
        return node is not None and node not in self.cut and self.machines.is_ready(node)

    def restart(self) -> None:
        """Start the controller anew: only journal, Slurm and provider remain; agents tell unconfirmed news again."""
        self.world = self._new_world()
        for report in self.unheard:
            self.world.inbox.put(report)
        restore(self.world)

    def tick(self) -> Plan | None:
        """Run one tick; when the controller is killed in it, start it anew."""
        try:
            return run_once(self.world)
        except Killed:
            self.deaths += 1
            self.assassin.at = None
            self.restart()
            return None

    def run(self, seconds: float) -> None:
        """Let time pass: four ticks a second, a heartbeat of each living agent every second."""
        for quarter in range(round(seconds * 4)):
            self.slurm.advance(0.25)
            for node in self.machines.machines:
                if self.machines.is_ready(node):
                    self.slurm.power_on(node)
            if quarter % 4 == 0:
                self.agents.beat(self.world.inbox)
            self._start_tasks()
            self.tick()

    def _start_tasks(self) -> None:
        for job in self.slurm._jobs.values():
            run = (job.view.job_id, job.view.restart_count)
            if job.view.status is JobStatus.RUNNING and run not in self._started:
                self._started.add(run)
                self.report(words.TASK_START, job_id=run[0], restart_count=run[1], step_id=0)

    def run_until(self, is_so: Callable[[], bool], seconds: float = 120) -> float:
        """Let time pass until something is so; returns how long it took, in seconds."""
        start = self.clock.now()
        while not is_so():
            if self.clock.now() - start > timedelta(seconds=seconds):
                raise AssertionError(f"not so after {seconds} s; events: {self.history()}")
            self.run(1)
        return (self.clock.now() - start).total_seconds()

    # --- what users do and people see ---

    def submit(self, nodes: int = 2, environment: Mapping[str, str] | None = None, **fields: Any) -> int:
        """Submit a job (armed unless an environment is given) and wait until it runs."""
        job_id = self.slurm.submit(
            environment=ARMED if environment is None else environment, node_count=nodes, **fields
        )
        self.run(2)
        return job_id

    def report(self, kind: str, **data: Any) -> None:
        """Have an agent tell something; told again after a restart of the controller."""
        report = Report(kind, self.clock.now(), {"type": kind, **data})
        self.unheard.append(report)
        self.world.inbox.put(report)

    def crash_rank(self, job_id: int, signal: int = 9, **fields: Any) -> None:
        """One rank of the job's first step is killed."""
        view = self.view(job_id)
        data = {"step_id": 0, "rank": 1, "node": view.nodes[0], "restart_count": view.restart_count, **fields}
        self.report(words.TASK_EXIT, job_id=job_id, time=self.clock.now().timestamp(), signal=signal, **data)

    def view(self, job_id: int) -> JobView:
        """The job as it is, also while slurmctld does not answer."""
        return self.slurm._jobs[job_id].view

    def record(self, job_id: int) -> JobRecord:
        record = self.store.job(job_id)
        assert record is not None
        return record

    def node(self, name: str) -> NodeState:
        """The node as it is, also while slurmctld does not answer."""
        return self.slurm._nodes[name].state

    def history(self) -> list[str]:
        return [f"{e.kind} {e.node or e.job_id or ''}: {e.message}" for e in self.store.events(limit=10_000)]

    def kinds(self) -> list[str]:
        return [e.kind for e in self.store.events(limit=10_000)]

    def is_well(self) -> bool:
        """Say whether no repair is under way and every node is open."""
        return not self.store.repairs() and all(
            n.availability.value == "up" and not n.is_drained for n in self.slurm.nodes()
        )
