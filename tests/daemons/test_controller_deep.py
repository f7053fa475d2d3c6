"""Deep checks as the controller runs them, on agents that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hyperpod.controller.deep import GATHER, DeepChecks, Options
from hyperpod.core import messages as words
from hyperpod.core.finding import Severity
from hyperpod.deep.result import Line
from hyperpod.errors import ConnectionLost, InvalidState, NotFound, UsageError
from tests.daemons.cluster import Cluster

STRESS = (Line("memory_pattern", True, 100.0, "MB"), Line("cpu_numeric", True, 1.0, "s"))


@dataclass
class Nodes:
    """Answers for all agents; ``faults`` may change the lines of a node's program, or raise."""

    cluster: Cluster
    orders: list[tuple[str, str]] = field(default_factory=list)
    faults: dict[tuple[str, str], Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    def ask(self, node: str, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        program, args = message["program"], message["args"]
        self.orders.append((node, program))
        fault = self.faults.get((node, program))
        if fault is not None:
            answer = fault(args)
            if answer is not None:
                return dict(answer)
        lines: tuple[Line, ...] = STRESS
        if program == "serve":
            lines = (Line("serve", True),)
        elif program == "measure":
            lines = (Line("network_latency", True, 50.0, "us"), Line("network_bandwidth", True, 1000.0, "MB/s"))
        elif program == "all_reduce":
            lines = (Line("all_reduce", True, 900.0, "MB/s"),)
        return answer_of(*lines)


def answer_of(*lines: Line, **more: Any) -> dict[str, Any]:
    return {"ok": True, "output": "\n".join(line.to_json() for line in lines), **more}


@dataclass
class Stage:
    cluster: Cluster
    nodes: Nodes
    deep: DeepChecks

    def run(self, **args: Any) -> dict[str, Any]:
        key = self.deep.command(self.cluster.world, args)
        self.cluster.run(1)
        return self.deep.report({"run": key}, 0)

    def states(self, report: Mapping[str, Any]) -> dict[str, str]:
        return {node["node"]: node["state"] for node in report["nodes"]}

    def judged(self) -> dict[str, list[str]]:
        """Codes that each node's agent was told."""
        sent = [(n, m) for n, m in self.cluster.agents.sent if m["type"] == words.DEEP_JUDGED]
        return {node: [f["code"] for f in message["findings"]] for node, message in sent}


@pytest.fixture
def stage() -> Stage:
    cluster = Cluster()
    nodes = Nodes(cluster)
    return Stage(cluster, nodes, DeepChecks(cluster.world, nodes.ask, Options(seconds=1.0)))


def test_idle_workers_are_checked_and_told_that_they_are_well(stage: Stage) -> None:
    report = stage.run()
    names = [f"worker-{n}" for n in range(1, 5)]
    assert report["is_over"]
    assert stage.states(report) == dict.fromkeys(names, "OK")
    assert len(report["pairs"]) == 6
    assert stage.judged() == {name: [] for name in names}
    assert [(n, p) for n, p in stage.nodes.orders if p == "stress"] == [(n, "stress") for n in names]
    assert any("4 of 4 nodes checked" in line for line in stage.cluster.history())


def test_a_node_that_computes_wrongly_gets_a_hard_finding(stage: Stage) -> None:
    wrong = answer_of(Line("cpu_numeric", False, detail="core 3: integers gave 1 instead of 2"))
    stage.nodes.faults["worker-2", "stress"] = lambda args: wrong
    report = stage.run(kinds=["InstanceStress"])
    assert stage.states(report)["worker-2"] == "FATAL"
    assert stage.judged()["worker-2"] == ["CpuCorrupt"]
    assert [n for n, codes in stage.judged().items() if codes] == ["worker-2"]


def _memory(gb_s: float) -> dict[str, Any]:
    return answer_of(Line("memory_pattern", True), Line("memory_bandwidth", True, gb_s, "GB/s"))


@pytest.mark.parametrize(("second", "codes"), [(11.0, []), (6.5, ["MemorySlow"])])
def test_a_node_that_is_slow_once_is_looked_at_again(stage: Stage, second: float, codes: list[str]) -> None:
    for n in (1, 2, 3, 4):
        stage.nodes.faults[f"worker-{n}", "stress"] = lambda args: _memory(12.0)
    answers = iter([_memory(6.0), _memory(second)])
    stage.nodes.faults["worker-2", "stress"] = lambda args: next(answers)
    stage.run(kinds=["InstanceStress"])
    assert stage.judged() == {"worker-1": [], "worker-2": codes, "worker-3": [], "worker-4": []}
    assert [node for node, _ in stage.nodes.orders].count("worker-2") == 2


def test_a_wrong_answer_of_the_second_look_counts(stage: Stage) -> None:
    for n in (1, 2, 3, 4):
        stage.nodes.faults[f"worker-{n}", "stress"] = lambda args: _memory(12.0)
    wrong = answer_of(Line("memory_pattern", False, detail="a bit"), Line("memory_bandwidth", True, 12.0, "GB/s"))
    answers = iter([_memory(6.0), wrong])
    stage.nodes.faults["worker-2", "stress"] = lambda args: next(answers)
    stage.run(kinds=["InstanceStress"])
    assert stage.judged()["worker-2"] == ["MemoryCorrupt"]


def test_a_slow_node_is_named_by_the_rounds(stage: Stage) -> None:
    slow = answer_of(Line("network_latency", True, 50.0, "us"), Line("network_bandwidth", True, 90.0, "MB/s"))
    for node in ("worker-1", "worker-2", "worker-4"):
        address = next(s.address for s in stage.cluster.slots if s.name == "worker-3")
        stage.nodes.faults[node, "measure"] = lambda args, a=address: slow if args["peer"] == a else None
    stage.nodes.faults["worker-3", "measure"] = lambda args: slow
    report = stage.run(kinds=["InstanceConnectivity"])
    assert {n: s for n, s in stage.states(report).items() if s != "OK"} == {"worker-3": "WARN"}
    assert stage.judged()["worker-3"] == ["NetworkSlow"]


def test_a_port_that_is_taken_is_no_fault_of_the_link(stage: Stage) -> None:
    own = next(slot.address for slot in stage.cluster.slots if slot.name == "worker-1")
    ports: list[int] = []

    def is_first(args: Mapping[str, Any]) -> bool:
        ports.append(args["port"])
        return bool(args["port"] == ports[0])

    def taken(args: Mapping[str, Any]) -> Any:
        return answer_of(Line("serve", False, detail="Address already in use")) if is_first(args) else None

    def nobody(args: Mapping[str, Any]) -> Any:
        is_refused = args["peer"] == own and is_first(args)
        return answer_of(Line("network", False, detail="Connection refused")) if is_refused else None

    stage.nodes.faults["worker-1", "serve"] = taken
    for name in ("worker-2", "worker-3", "worker-4"):
        stage.nodes.faults[name, "measure"] = nobody
    report = stage.run(nodes=["worker-1", "worker-2", "worker-3", "worker-4"], kinds=["InstanceConnectivity"])
    assert set(stage.states(report).values()) == {"OK"}
    assert len(set(ports)) > 1


def test_a_node_that_gives_way_to_a_job_is_left_out_and_not_judged(stage: Stage) -> None:
    stage.nodes.faults["worker-2", "stress"] = lambda args: {"ok": True, "output": "", "gave_way": True}
    report = stage.run()
    assert stage.states(report)["worker-2"] == "gave way to a job"
    assert "worker-2" not in stage.judged()
    assert ("worker-2", "measure") not in stage.nodes.orders
    assert len(report["pairs"]) == 3


def test_an_agent_that_does_not_answer_is_left_out(stage: Stage) -> None:
    def silent(args: Mapping[str, Any]) -> Any:
        raise ConnectionLost("the agent of worker-4 did not answer within 5 s")

    stage.nodes.faults["worker-4", "stress"] = silent
    report = stage.run()
    assert stage.states(report)["worker-4"].startswith("no answer")
    assert stage.states(report)["worker-1"] == "OK"


def test_a_program_that_cannot_run_is_no_fault_of_the_machine(stage: Stage) -> None:
    failed = {"ok": False, "output": "", "message": "MemoryError"}
    stage.nodes.faults["worker-1", "stress"] = lambda args: failed
    report = stage.run(kinds=["InstanceStress"])
    assert stage.states(report)["worker-1"] == "UNKNOWN"
    assert (stage.judged()["worker-1"], stage.judged()["worker-2"]) == (["DeepUnknown"], [])


def test_a_node_with_a_job_is_refused(stage: Stage) -> None:
    job = stage.cluster.submit(1)
    (node,) = stage.cluster.view(job).nodes
    with pytest.raises(InvalidState, match=f"{node} has jobs"):
        stage.run(nodes=[node])
    assert node not in stage.states(stage.run())


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ({"nodes": ["worker-9"]}, NotFound, "no worker 'worker-9'"),
        ({"nodes": []}, UsageError, "list of names"),
        ({"nodes": "worker-1"}, UsageError, "list of names"),
        ({"kinds": ["Dance"]}, UsageError, "Dance"),
        ({"kinds": "InstanceStress"}, UsageError, "must be a list"),
        ({"kinds": ["InstanceConnectivity"], "nodes": ["worker-1"]}, InvalidState, "only one node"),
        ({"options": {"seconds": -1}}, UsageError, "seconds must be a number from"),
        ({"options": {"seconds": True}}, UsageError, "seconds must be a number"),
        ({"options": {"second": 1}}, UsageError, "no option 'second'"),
        ({"options": {"folders": ["/etc"]}}, UsageError, "no option 'folders'"),
    ],
)
def test_what_cannot_be_done_is_told(stage: Stage, args: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        stage.run(**args)


def test_one_check_runs_at_a_time(stage: Stage) -> None:
    def second(args: Mapping[str, Any]) -> Any:
        with pytest.raises(InvalidState, match="busy with another deep check"):
            stage.deep.command(stage.cluster.world, {})
        return None

    stage.nodes.faults["worker-1", "stress"] = second
    assert stage.states(stage.run(kinds=["InstanceStress"]))["worker-1"] == "OK"


def test_there_is_no_report_before_the_first_check(stage: Stage) -> None:
    with pytest.raises(NotFound, match="no deep check yet"):
        stage.deep.report({}, 0)


def _want(stage: Stage, *names: str) -> None:
    for name in names:
        word = stage.cluster.world.memory.nodes[name]
        wants = ("InstanceStress", "InstanceConnectivity")
        stage.cluster.world.memory.nodes[name] = replace(word, wants=wants, is_ready=False)


def test_new_machines_are_checked_together_before_their_first_job(stage: Stage) -> None:
    _want(stage, "worker-1")
    stage.deep.on_tick()
    _want(stage, "worker-1", "worker-2")
    stage.cluster.clock.advance(GATHER.total_seconds() - 1)
    stage.deep.on_tick()
    stage.cluster.clock.advance(2)
    stage.deep.on_tick()
    assert stage.nodes.orders == []
    stage.cluster.clock.advance(2)
    stage.deep.on_tick()
    report = stage.deep.report({}, 0)
    assert (sorted(stage.states(report)), report["why"]) == (["worker-1", "worker-2"], "before their first job")
    assert sorted(stage.judged()) == ["worker-1", "worker-2"]


def test_a_single_new_machine_is_measured_by_idle_ones_of_its_group(stage: Stage) -> None:
    _want(stage, "worker-1")
    stage.deep.on_tick()
    stage.cluster.clock.advance(GATHER.total_seconds() + 1)
    stage.deep.on_tick()
    assert len(stage.states(stage.deep.report({}, 0))) == 4
    assert [node for node, program in stage.nodes.orders if program == "stress"] == ["worker-1"]


def test_a_failed_check_is_not_repeated_at_once(stage: Stage) -> None:
    def silent(args: Mapping[str, Any]) -> Any:
        raise ConnectionLost("silent")

    stage.nodes.faults["worker-1", "stress"] = silent
    _want(stage, "worker-1")
    for _ in range(20):
        stage.deep.on_tick()
        stage.cluster.clock.advance(1)
    assert [order for order in stage.nodes.orders if order[0] == "worker-1"] == [("worker-1", "stress")]
    stage.cluster.clock.advance(30)
    for _ in range(6):
        stage.deep.on_tick()
        stage.cluster.clock.advance(1)
    assert [order for order in stage.nodes.orders if order[0] == "worker-1"] == [("worker-1", "stress")] * 2


BOTH = ("InstanceStress", "InstanceConnectivity")


def _young(cluster: Cluster, **owes: tuple[str, ...]) -> Stage:
    """A cluster some of whose nodes owe deep checks, with a controller that makes them."""
    nodes = Nodes(cluster)
    cluster.agents.owes |= {name.replace("_", "-"): kinds for name, kinds in owes.items()}
    cluster.run(1)
    return Stage(cluster, nodes, DeepChecks(cluster.world, nodes.ask, Options(seconds=1.0)))


def _pass(stage: Stage, seconds: int) -> None:
    for _ in range(seconds):
        stage.cluster.run(1)
        stage.deep.on_tick()


def _is_running(stage: Stage, job_id: int) -> bool:
    return bool(stage.cluster.view(job_id).nodes)


def test_a_job_that_is_pending_on_a_new_cluster_starts_only_after_the_deep_checks() -> None:
    stage = _young(Cluster(), worker_1=BOTH, worker_2=BOTH, worker_3=BOTH, worker_4=BOTH)
    job_id = stage.cluster.slurm.submit(environment={}, node_count=2)
    stage.cluster.run(5)
    assert not _is_running(stage, job_id)
    assert all("deep/BeforeFirstJob" in stage.cluster.node(f"worker-{n}").reason for n in (1, 2, 3, 4))
    assert stage.nodes.orders == []
    _pass(stage, 10)
    assert _is_running(stage, job_id)
    assert len([order for order in stage.nodes.orders if order[1] == "stress"]) == 4
    assert stage.cluster.is_well()
    assert not {"RepairBegan", "NoSpare", "SpareUsed", "SpareParked"} & set(stage.cluster.kinds())


def test_a_node_that_computes_wrongly_never_gets_its_first_job() -> None:
    stage = _young(Cluster(spares=0), worker_1=BOTH, worker_2=BOTH, worker_3=BOTH)
    wrong = answer_of(Line("cpu_numeric", False, detail="core 3: integers gave 1 instead of 2"))
    stage.nodes.faults["worker-1", "stress"] = lambda args: wrong
    job_id = stage.cluster.slurm.submit(environment={}, node_count=4)
    old = stage.cluster.machines.machines["worker-1"].instance.id
    stage.cluster.run(2)
    _pass(stage, 6)
    assert not _is_running(stage, job_id)
    assert any(line.startswith("NodeDrained worker-1: hyperpod:deep/CpuCorrupt") for line in stage.cluster.history())
    _pass(stage, 30)
    assert stage.cluster.machines.machines["worker-1"].instance.id != old


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda args: {"ok": False, "output": "", "message": "MemoryError"}, "MemoryError"),
        (lambda args: {"ok": True, "output": "nonsense"}, "no test could be run"),
    ],
    ids=["a program that fails", "one that says nothing"],
)
def test_a_check_that_cannot_tell_is_tried_again_and_then_lets_the_node_go(fault: Any, reason: str) -> None:
    stage = _young(Cluster(), worker_1=("InstanceStress",))
    stage.nodes.faults["worker-1", "stress"] = fault
    _pass(stage, 50)
    assert stage.cluster.node("worker-1").is_drained
    _pass(stage, 50)
    assert [node for node, program in stage.nodes.orders if program == "stress"] == ["worker-1"] * 3
    assert not stage.cluster.node("worker-1").is_drained
    (finding,) = stage.cluster.agents.findings["worker-1"]
    assert (finding.code, finding.severity) == ("DeepUnknown", Severity.UNKNOWN)
    assert reason in finding.message


def test_an_agent_that_never_answers_an_order_is_let_go_too() -> None:
    def silent(args: Mapping[str, Any]) -> Any:
        raise ConnectionLost("no answer within 5 s")

    stage = _young(Cluster(), worker_1=BOTH)
    stage.nodes.faults["worker-1", "stress"] = silent
    _pass(stage, 100)
    assert not stage.cluster.node("worker-1").is_drained
    assert {f.device for f in stage.cluster.agents.findings["worker-1"]} == set(BOTH)


def test_a_node_alone_is_put_under_load_at_once_and_waits_for_another_one_to_measure_its_links() -> None:
    cluster = Cluster(workers=2, spares=0)
    cluster.agents.not_ready = {"worker-2"}
    stage = _young(cluster, worker_1=BOTH, worker_2=BOTH)
    _pass(stage, 20)
    assert stage.nodes.orders == [("worker-1", "stress")]
    assert cluster.agents.owes["worker-1"] == ("InstanceConnectivity",)
    cluster.agents.not_ready = set()
    _pass(stage, 60)
    assert {program for _, program in stage.nodes.orders} >= {"serve", "measure"}
    assert cluster.agents.owes == {"worker-1": (), "worker-2": ()}
    assert cluster.is_well()


@pytest.mark.parametrize(("workers", "at_least_s", "at_most_s"), [(1, 0, 15), (2, 290, 340)])
def test_a_node_that_finds_nobody_to_measure_with_takes_jobs_in_the_end(
    workers: int, at_least_s: int, at_most_s: int
) -> None:
    cluster = Cluster(workers=workers, spares=0)
    cluster.agents.not_ready = {"worker-2"}
    stage = _young(cluster, worker_1=("InstanceConnectivity",))
    _pass(stage, at_least_s)
    assert cluster.node("worker-1").is_drained
    _pass(stage, at_most_s - at_least_s)
    assert not cluster.node("worker-1").is_drained
    (finding,) = cluster.agents.findings["worker-1"]
    assert "no other node to measure with" in finding.message


def test_two_nodes_whose_only_link_fails_are_not_accused_and_not_kept() -> None:
    stage = _young(Cluster(workers=2, spares=0), worker_1=("InstanceConnectivity",), worker_2=("InstanceConnectivity",))
    refused = answer_of(Line("network", False, detail="Connection refused"))
    for name in ("worker-1", "worker-2"):
        stage.nodes.faults[name, "measure"] = lambda args: refused
    _pass(stage, 100)
    assert {f.code for found in stage.cluster.agents.findings.values() for f in found} == {"DeepUnknown"}
    assert stage.cluster.is_well()


def test_a_reboot_counts_the_tries_anew() -> None:
    stage = _young(Cluster(), worker_1=("InstanceStress",))
    stage.nodes.faults["worker-1", "stress"] = lambda args: {"ok": False, "output": "", "message": "MemoryError"}
    _pass(stage, 50)
    stage.cluster.machines.machines["worker-1"].boot += 1
    _pass(stage, 60)
    assert stage.cluster.node("worker-1").is_drained


def test_severities_of_states_are_those_of_findings() -> None:
    assert {"OK", "WARN", "FATAL"} < set(Severity.__members__)
