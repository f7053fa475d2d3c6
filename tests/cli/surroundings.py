"""A machine for the command line to run on: clusters in a temporary folder, a scripted controller, no processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hyperpod.adapters.local.home import ClusterHome, write_json
from hyperpod.cli.ask import Controller, reply_of
from hyperpod.cli.place import Place
from hyperpod.core.login import Forward
from hyperpod.errors import ConnectionLost, HyperpodError, NotFound
from hyperpod.ports.login import Answer, SshTarget
from hyperpod.ports.process import Completed
from hyperpod.ports.provider import Birth, BirthStatus, Instance, InstanceStatus, NodeLaunch, Role

BORN_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

SPEC = """
ClusterName: demo
InstanceGroups:
  - InstanceGroupName: head
    InstanceCount: 1
    SlurmConfig: { NodeType: Controller }
  - InstanceGroupName: worker
    InstanceCount: 3
    SlurmConfig: { NodeType: Compute, PartitionNames: [dev] }
Hyperpod:
  Provider: local
  Spares: 1
"""


def instance(node: str, number: int, *, status: InstanceStatus = InstanceStatus.RUNNING) -> Instance:
    """Return a machine; head-1 is the head node."""
    group = node.rpartition("-")[0]
    role = {"head": Role.HEAD, "login": Role.LOGIN}.get(group, Role.WORKER)
    return Instance(f"i-{number:017x}", node, group, role, f"10.0.0.{number}", status, BORN_AT)


class FakeController:
    """Answers questions from a table; remembers what it was told. An answer may be an error to raise."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"nodes": [], "jobs": [], "events": []}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.uid = 0

    def reply(self, message: Mapping[str, Any]) -> dict[str, Any]:
        what, args = str(message["what"]), dict(message["args"])
        self.asked.append((what, args))
        answer = self.answers.get(what, f"{what} done")
        if isinstance(answer, list) and answer and isinstance(answer[0], Turn):
            answer = answer.pop(0).value
        if isinstance(answer, HyperpodError):
            return reply_of(answer)
        return {"ok": True, "result": answer(args) if callable(answer) else answer}

    def send(self, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """The way from a node."""
        return json.loads(json.dumps(self.reply(message)))


@dataclass
class Turn:
    """One of several answers, given in turn."""

    value: Any


class FakeConnection:
    """A head node that knows ``hyperpod ask`` and the few Slurm commands of provisioning."""

    def __init__(self, machines: FakeMachines, instance_id: str) -> None:
        self._machines = machines
        self._instance_id = instance_id

    def run(self, argv: Sequence[str], *, timeout_s: float, input: str | None = None, check: bool = True) -> Completed:
        if list(argv[:2]) == ["hyperpod", "ask"]:
            if self._machines.ask_output is not None:
                return self._machines.ask_output
            return Completed(json.dumps(self._machines.controller.reply(json.loads(argv[2]))), "", 0)
        program = next((word for word in argv if word in self._machines.head_answers), None)
        if program is not None:
            return Completed(self._machines.head_answers[program], "", 0)
        if argv[0] == "sinfo":
            return Completed("".join(f"{i.node} idle\n" for i in self._machines.instances.values()), "", 0)
        if argv[0] == "squeue":
            return Completed("".join(f"{node}\n" for node in self._machines.busy), "", 0)
        if list(argv[:2]) == ["scontrol", "show"]:
            return Completed("\n".join(argv[3].split(",")), "", 0)
        return Completed("", "", 0)

    def shell_argv(self, argv: Sequence[str] = (), *, user: str = "root", interactive: bool = True) -> list[str]:
        return ["shell", self._instance_id, user, *argv]


class FakeMachines:
    """The provider of one machine's clusters, without machines. ``births`` says how new ones are born."""

    def __init__(self, home: Path, controller: FakeController) -> None:
        self.home = home
        self.controller = controller
        self.instances: dict[tuple[str, str], Instance] = {}
        self.births: dict[str, Birth] = {}
        self.busy: set[str] = set()
        self.done: list[tuple[str, ...]] = []
        self.ask_output: Completed | None = None
        self.head_answers: dict[str, str] = {}
        self.error: Exception | None = None

    # --- for tests

    def add(self, cluster: str, *nodes: str, status: InstanceStatus = InstanceStatus.RUNNING) -> None:
        self.prepare(cluster, nodes)
        for node in nodes:
            self.instances[cluster, node] = instance(node, len(self.instances) + 1, status=status)

    # --- the provider

    def cluster(self, name: str) -> ClusterHome:
        return ClusterHome(self.home, name)

    def clusters(self) -> list[str]:
        if self.error:
            raise self.error
        folder = self.home / "clusters"
        return (
            sorted(e.name for e in folder.iterdir() if self.cluster(e.name).slots.exists()) if folder.is_dir() else []
        )

    def addresses(self, cluster: str) -> dict[str, str]:
        slots = self.cluster(cluster).slots
        return json.loads(slots.read_text())["addresses"] if slots.exists() else {}

    def prepare(
        self, cluster: str, nodes: Sequence[str], *, subnet: str | None = None, internet: bool = False
    ) -> dict[str, str]:
        self.cluster(cluster).create()
        addresses = {**self.addresses(cluster)}
        for node in nodes:
            addresses.setdefault(node, f"10.0.0.{len(addresses) + 10}")
        write_json(self.cluster(cluster).slots, {"addresses": addresses})
        return addresses

    def ensure_image(self, kind: str, progress: Callable[[str, float], None]) -> str:
        progress("node image ready", 1.0)
        return "image"

    def configure(self, specs: Sequence[NodeLaunch]) -> set[str]:
        self.done.append(("configure", *(spec.node for spec in specs)))
        return {spec.node for spec in specs}

    def launch(self, specs: Sequence[NodeLaunch]) -> list[Instance]:
        if self.error:
            raise self.error
        for spec in specs:
            fresh = instance(spec.node, len(self.instances) + 1)
            birth = self.births.get(fresh.id)
            if birth is not None and birth.status is BirthStatus.FAILED:
                fresh = replace(fresh, status=InstanceStatus.FAILED)
            self.instances[spec.cluster, spec.node] = fresh
            self.done.append(("launch", spec.node))
        return [self.instances[spec.cluster, spec.node] for spec in specs]

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        return tuple(i for (name, _), i in self.instances.items() if name == cluster)

    def connect(self, instance_id: str) -> FakeConnection:
        return FakeConnection(self, instance_id)

    def birth(self, instance_id: str) -> Birth:
        return self.births.get(instance_id, Birth(instance_id, BirthStatus.OK, timings_ms={"slurm": 900, "munge": 100}))

    def terminate(self, instance_id: str) -> None:
        self.done.append(("terminate", instance_id))
        self.instances = {key: i for key, i in self.instances.items() if i.id != instance_id}

    def forget_node(self, cluster: str, node: str) -> None:
        self.done.append(("forget", node))

    def reboot(self, instance_id: str) -> None:
        self.done.append(("reboot", instance_id))

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        self.done.append(("replace", node, instance_id))
        cluster = next(name for (name, slot), i in self.instances.items() if i.id == instance_id)
        fresh = instance(node, 900 + len(self.done))
        self.instances[cluster, node] = fresh
        return fresh

    def delete(self, cluster: str, *, keep_data: bool = False) -> None:
        self.done.append(("delete", cluster, "keep" if keep_data else "all"))
        if cluster not in self.clusters():
            raise NotFound(cluster)
        self.instances = {key: i for key, i in self.instances.items() if key[0] != cluster}
        self.cluster(cluster).slots.unlink()


@dataclass
class FakeSession:
    """A login that remembers what is done with it. ``asks`` answers commands; ``error`` is raised by all."""

    target: SshTarget
    done: list[tuple[Any, ...]]
    asks: Callable[[list[str]], Answer]

    def ask(self, argv: Sequence[str], *, timeout_s: float, input: bytes = b"") -> Answer:
        return self.asks(list(argv))

    def put(self, folder: str, name: str, data: bytes) -> str:
        self.done.append(("put", folder, name, data))
        return f"/home/{self.target.user}/{folder}/{Path(name).stem}-1/{name}"

    def attach(self, argv: Sequence[str]) -> int:
        self.done.append(("attach", self.target.name, self.target.user, *argv))
        return 7

    def interact(self, argv: Sequence[str] = ()) -> int:
        raise AssertionError("there is no terminal here")

    def forward(self, wish: Forward) -> int:
        self.done.append(("forward", wish.listen_port, wish.host, wish.port))
        return wish.listen_port or 40000

    def wait(self) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        self.done.append(("close",))


@dataclass
class Logins:
    """The logins of a test: those that were made, and what they answer."""

    targets: list[SshTarget] = field(default_factory=list)
    done: list[tuple[Any, ...]] = field(default_factory=list)
    asks: Callable[[list[str]], Answer] = lambda argv: Answer(b"", b"", 0)
    error: HyperpodError | None = None
    away: set[str] = field(default_factory=set)
    """Addresses (or ``proxy``, ``jump``) where nobody answers."""

    def open(self, target: SshTarget, timeout_s: float | None) -> FakeSession:
        self.targets.append(target)
        way = "proxy" if target.proxy else "jump" if target.jump else target.address
        if self.error is not None:
            raise self.error
        if way in self.away:
            raise ConnectionLost(f"{target.name} cannot be reached", hint=target.hint)
        return FakeSession(target, self.done, self.asks)


@dataclass
class Result:
    """How a run of the program ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Fakes:
    """The surroundings of the program, to be set up by a test."""

    place: Place
    machines: FakeMachines
    controller: FakeController
    terminal: list[list[str]] = field(default_factory=list)
    logins: Logins = field(default_factory=Logins)
    run: Callable[..., Result] = field(default=lambda *argv: Result(-1, "", ""))


def on_node(fakes: Fakes, folder: Path, cluster: str = "demo") -> None:
    """Make the machine a node of a cluster."""
    config = folder / "agent.json"
    config.write_text(
        json.dumps(
            {"cluster": cluster, "node": "worker-1", "group": "worker", "role": "worker", "head_address": "10.0.0.1"}
        )
    )
    fakes.place.agent_config = config
    fakes.place.node_controller = lambda path: Controller(fakes.controller.send)
