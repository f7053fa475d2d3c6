"""The agent's mind on a clock that tests move: heartbeats, reports, environments, commands, the lease."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperpod.agent.link import Connected, Lost, Received
from hyperpod.agent.mind import ENV_DEADLINE_S, STARTS_S, Mind
from hyperpod.agent.outbox import RESEND_S, Outbox
from hyperpod.agent.outputs import Output
from hyperpod.agent.settings import AgentSettings, Peer
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.messages import Heartbeat, parse_task_exit
from hyperpod.core.node import Role
from hyperpod.health.check import Result, fatal
from hyperpod.health.checks.cpu_count import CpuCountCheck
from hyperpod.health.checks.fabric_log import FabricLogCheck
from hyperpod.health.checks.kernel_log import KernelLog
from hyperpod.health.checks.munge import MungeCheck
from hyperpod.health.checks.plugin import PluginCheck
from hyperpod.health.fabric_log import classify_fabric
from hyperpod.health.runner import Runner
from hyperpod.ports.host import Contact
from tests.fakes.actions import FakeActions
from tests.fakes.clock import FakeClock

XID79 = "4,{n},{us},-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
EXIT = {
    "v": 1, "type": "task_exit", "job_id": 7, "step_id": 0, "restart_count": 0, "uid": 1000, "node": "worker-1",
    "rank": 3, "local_id": 0, "pid": 99, "time": 1.5, "status": 256, "exit_code": 1, "signal": None,
}  # fmt: skip
ENV = {
    "v": 1, "type": "env", "job_id": 7, "step_id": -5, "restart_count": 2, "uid": 1000, "node": "worker-1",
    "auto_resume": "default", "checkpoint_dir": "/fsx/c", "armed_by": "job",
}  # fmt: skip


@dataclass
class Stage:
    """An agent whose world is made of values."""

    folder: Path
    settings: AgentSettings
    clock: FakeClock = field(default_factory=FakeClock)
    actions: FakeActions = field(default_factory=FakeActions)

    def __post_init__(self) -> None:
        self.mind = self.new_mind()

    def new_mind(self, boot_id: str = "boot-1") -> Mind:
        now = self.clock.monotonic()
        runner = Runner([MungeCheck(), CpuCountCheck(), PluginCheck()], boot_id=boot_id, instance_id="i-1", start=now)
        return Mind(
            self.settings,
            runner,
            KernelLog(boot_id=boot_id, instance_id="i-1"),
            Outbox(str(self.folder / "outbox.jsonl"), f"{boot_id}-{now:.0f}"),
            self.actions,
            boot_id=boot_id,
            gateway="10.0.0.1",
            start=now,
        )

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.mind.on_tick(self.now, self.clock.now(), 1000.0, self.now)

    def run(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass with the controller away or here, without answers."""
        for _ in range(int(seconds / step)):
            self.tick(step)

    def event(self, event: Any) -> None:
        self.mind.on_link(event, self.now, self.clock.now())

    def connect(self) -> None:
        self.event(Connected())

    def lose(self, contact: Contact | None = Contact.SILENT) -> None:
        self.event(Lost(contact, "gone"))

    def tell(self, **message: Any) -> None:
        self.event(Received(message))

    def acknowledge(self, offset_s: float = 0.0) -> None:
        beats = [m for m in self.actions.sent if m["type"] == "heartbeat"]
        self.tell(type="ack", sequence=beats[-1]["sequence"], time=self.clock.now().timestamp() + offset_s)

    def ask(self, client: int, request: dict[str, Any]) -> None:
        self.mind.on_request(client, request, self.now, self.clock.now(), 1000.0)

    def finish(self, name: str, result: Result | BaseException = Result()) -> None:  # noqa: B008 - a frozen value
        started = [run_id for started, run_id, _ in self.actions.started if started == name]
        self.mind.on_check(name, started[-1], result, self.now, self.clock.now())

    def kernel(self, *records: str) -> None:
        self.mind.on_kernel(records, self.now, self.now, self.clock.now())

    def beats(self) -> list[Heartbeat]:
        return [Heartbeat.from_dict(m) for m in self.actions.take_sent("heartbeat")]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, make_settings())


def make_settings(**changes: Any) -> AgentSettings:
    values: dict[str, Any] = {
        "cluster": "demo",
        "node": "worker-1",
        "group": "worker",
        "role": Role.WORKER,
        "head_address": "10.0.0.2",
        "instance_id": "i-1",
        "peers": tuple(Peer(f"worker-{n}", f"10.0.0.{n + 10}") for n in (2, 3)),
    }
    return AgentSettings(**{**values, **changes})


# --- heartbeats and findings --------------------------------------------------------------------------------------


def test_a_connection_begins_with_hello_and_a_heartbeat(stage: Stage) -> None:
    stage.connect()
    hello, beat = stage.actions.sent
    assert (hello["type"], hello["node"], hello["instance_id"], hello["role"]) == ("hello", "worker-1", "i-1", "worker")
    assert (beat["type"], beat["boot_id"], beat["is_ready"]) == ("heartbeat", "boot-1", False)


def test_heartbeats_come_every_second_with_a_growing_number(stage: Stage) -> None:
    stage.connect()
    for _ in range(3):
        stage.tick(1.0)
    assert [beat.sequence for beat in stage.beats()] == [1, 2, 3, 4]


def test_nothing_is_sent_while_the_controller_is_away(stage: Stage) -> None:
    stage.run(5.0)
    assert stage.actions.sent == []


def test_a_fatal_kernel_line_is_said_at_once_and_kept(stage: Stage) -> None:
    stage.connect()
    stage.beats()
    stage.kernel(XID79.format(n=1, us=5_000_000))
    (beat,) = stage.beats()
    (finding,) = beat.findings
    assert (finding.code, finding.severity, finding.action) == ("Xid79", Severity.FATAL, Action.REBOOT)
    assert stage.actions.saved[-1]["kernel_log"]["events"]


def test_every_heartbeat_carries_the_whole_set_of_findings(stage: Stage) -> None:
    stage.connect()
    stage.kernel(XID79.format(n=1, us=5_000_000))
    stage.beats()
    stage.tick(1.0)
    assert [len(beat.findings) for beat in stage.beats()] == [1]


def test_a_flood_of_lines_does_not_become_a_flood_of_heartbeats(stage: Stage) -> None:
    stage.connect()
    stage.beats()
    for n in range(1, 1000):
        stage.kernel(XID79.format(n=n, us=5_000_000))
    assert len(stage.beats()) <= 4


def test_a_node_is_ready_when_basic_checks_have_passed_and_says_so_at_once(stage: Stage) -> None:
    stage.connect()
    stage.tick()
    stage.finish("munge", Result(not_ready="the controller has not answered yet"))
    stage.finish("cpu_count")
    stage.tick(1.0)
    assert stage.beats()[-1].not_ready_because == "the controller has not answered yet"
    stage.finish("plugin")
    stage.connect()
    stage.acknowledge()
    stage.tick(0.1)
    stage.finish("munge")
    assert stage.beats()[-1].is_ready


def test_a_node_stays_ready_over_a_restart_of_the_agent_but_not_over_a_boot(stage: Stage) -> None:
    stage.tick()
    for name in ("munge", "cpu_count", "plugin"):
        stage.finish(name)
    state = stage.mind.to_dict()
    again, rebooted = stage.new_mind(), stage.new_mind("boot-2")
    again.restore(state)
    rebooted.restore(state)
    assert (again.why_not_ready, bool(rebooted.why_not_ready)) == ("", True)


NEURON = "3,{n},{us},-;NEURON_HW_ERR=HBM_UE instance-id=i-1 nd-id=3 nc-id=0 serial-num=5 action=TERMINATE_INSTANCE"


def test_a_neuron_line_costs_the_machine_only_when_it_comes_again_after_a_reboot(stage: Stage) -> None:
    stage.kernel(NEURON.format(n=1, us=5_000_000))
    assert [(f.severity, f.action) for f in stage.mind.findings] == [(Severity.WARN, Action.NONE)]
    stage.mind.save()
    again, rebooted = stage.new_mind(), stage.new_mind("boot-2")
    again.restore(stage.actions.saved[-1])
    assert [f.severity for f in again.findings] == [Severity.WARN]
    rebooted.restore(stage.actions.saved[-1])
    assert rebooted.findings == ()
    stage.mind = rebooted
    stage.kernel(NEURON.format(n=1, us=5_000_000))
    assert [(f.severity, f.action) for f in stage.mind.findings] == [(Severity.FATAL, Action.REPLACE)]
    stage.mind.save()
    restarted = stage.new_mind("boot-2")
    restarted.restore(stage.actions.saved[-1])
    assert [f.severity for f in restarted.findings] == [Severity.FATAL]


def test_checks_are_told_where_the_device_tree_is(stage: Stage) -> None:
    assert stage.mind.facts(1.0, stage.clock.now(), 1.0).sysfs == "/sys"
    stage.settings = make_settings(sysfs_path="/run/hyperpod/sysfs/")
    assert stage.new_mind().facts(1.0, stage.clock.now(), 1.0).sysfs == "/run/hyperpod/sysfs"


def test_a_soft_finding_reaches_the_controller_when_damping_lets_it(stage: Stage) -> None:
    stage.connect()
    stage.tick()
    bad = Result((fatal("cpu_count", "CpusMissing", "too few"),))
    stage.finish("cpu_count", bad)
    assert all(not beat.findings for beat in stage.beats())
    stage.tick(1.0)
    stage.beats()
    stage.finish("cpu_count", bad)
    assert [f.code for f in stage.beats()[0].findings] == ["CpusMissing"]


def test_the_clock_offset_is_that_of_the_fastest_answer(stage: Stage) -> None:
    stage.connect()
    stage.clock.advance(0.4)
    stage.acknowledge(offset_s=5.0)
    stage.tick(1.0)
    stage.acknowledge(offset_s=2.0)
    assert stage.mind.clock_offset_s == pytest.approx(2.0)


def test_checks_are_told_the_offset(stage: Stage) -> None:
    stage.connect()
    stage.acknowledge(offset_s=3.0)
    stage.tick(0.1)
    assert stage.actions.started[-1][2].clock_offset_s == pytest.approx(3.0)


# --- reports ------------------------------------------------------------------------------------------------------


def test_a_task_exit_is_answered_and_forwarded_at_once(stage: Stage) -> None:
    stage.connect()
    stage.actions.sent.clear()
    stage.ask(1, EXIT)
    assert stage.actions.replies == [(1, ())]
    (sent,) = stage.actions.take_sent("task_exit")
    assert parse_task_exit(sent).rank == 3
    assert sent["id"]


def test_a_task_exit_is_kept_until_the_controller_has_it(stage: Stage) -> None:
    stage.ask(1, EXIT)
    stage.connect()
    (sent,) = stage.actions.take_sent("task_exit")
    stage.lose()
    stage.connect()
    (again,) = stage.actions.take_sent("task_exit")
    assert again["id"] == sent["id"]
    stage.tell(type="reply", id=sent["id"], ok=True)
    stage.lose()
    stage.connect()
    assert stage.actions.take_sent("task_exit") == []


def test_a_task_exit_outlives_a_kill_of_the_agent(stage: Stage) -> None:
    stage.ask(1, EXIT)
    stage.mind = stage.new_mind()
    stage.connect()
    assert len(stage.actions.take_sent("task_exit")) == 1


def test_a_controller_without_room_gets_the_report_again(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, EXIT)
    (sent,) = stage.actions.take_sent("task_exit")
    stage.tell(type="reply", id=sent["id"], ok=False)
    stage.tick(1.0)
    assert stage.actions.take_sent("task_exit") == []
    stage.clock.advance(RESEND_S)
    stage.tell(type="ack")
    stage.tick()
    assert len(stage.actions.take_sent("task_exit")) == 1


def test_a_report_that_the_controller_will_never_take_does_not_block_others(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, EXIT)
    (sent,) = stage.actions.take_sent("task_exit")
    stage.tell(type="reply", id=sent["id"], ok=False, error="UsageError", message="?")
    assert json.loads(stage.mind.describe(stage.now, stage.clock.now(), 1.0))["waiting_reports"] == 0


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "env", "job_id": float("inf"), "uid": 1000},
        {"type": "env", "job_id": 10**26, "uid": 1000},
        {"type": "env", "job_id": -5, "uid": 1000},
        {"type": "task_start", "job_id": 1, "step_id": float("inf"), "time": 1.0},
        {"type": "task_start", "job_id": 10**26, "step_id": 0, "time": 1.0},
        {},
        {"type": "task_exit"},
        {**EXIT, "job_id": "seven"},
        {**EXIT, "time": None},
        {"type": "env", "job_id": []},
        {"type": "format-disk"},
        {"type": ["env"]},
    ],
)
def test_nonsense_gets_an_empty_answer_and_nothing_is_sent(stage: Stage, request_: dict[str, Any]) -> None:
    stage.connect()
    stage.actions.sent.clear()
    stage.ask(4, request_)
    assert stage.actions.replies == [(4, ())]
    assert stage.actions.sent == []


# --- environments -------------------------------------------------------------------------------------------------


def asked(stage: Stage) -> str:
    (sent,) = stage.actions.take_sent("env")
    return str(sent["id"])


def test_the_controllers_environment_is_handed_on_with_the_peer_lost_path(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, ENV)
    stage.tell(
        type="reply", id=asked(stage), ok=True, env={"HYPERPOD_ATTEMPT": "3", "HYPERPOD_RESUME_FROM": "/fsx/c/9"}
    )
    assert stage.actions.replies == [
        (
            1,
            (
                "HYPERPOD_ATTEMPT=3",
                "HYPERPOD_RESUME_FROM=/fsx/c/9",
                "HYPERPOD_PEER_LOST=/run/hyperpod/jobs/7/peer_lost",
            ),
        )
    ]
    assert stage.actions.cleaned == [(7, 1000)], "a second attempt must not trip over what the first one left"


def test_an_unarmed_job_gets_nothing_and_is_known_as_such(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, {**ENV, "armed_by": None})
    stage.tell(type="reply", id=asked(stage), ok=True, env={})
    assert stage.actions.replies == [(1, ())]
    assert stage.mind.jobs_known()[7].is_armed is False


def test_a_controller_that_does_not_answer_is_answered_for_in_time(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, ENV)
    stage.tick(0.6)
    ((key, directory, uid, timeout_s),) = stage.actions.looked_up
    assert (directory, uid) == ("/fsx/c", 1000)
    assert timeout_s < ENV_DEADLINE_S - 0.6
    stage.mind.on_checkpoint(key, "/fsx/c/step_8", stage.now)
    assert stage.actions.replies == []
    stage.tick(0.7)
    ((client, lines),) = stage.actions.replies
    assert client == 1
    assert "HYPERPOD_ATTEMPT=3" in lines
    assert "HYPERPOD_RESUME_FROM=/fsx/c/step_8" in lines
    assert "HYPERPOD_PREVIOUS_FAILURE=unknown: the controller did not answer" in lines


def test_without_a_controller_a_job_waits_only_for_its_checkpoint(stage: Stage) -> None:
    stage.ask(1, ENV)
    ((key, *_),) = stage.actions.looked_up
    stage.mind.on_checkpoint(key, "", stage.now)
    ((_, lines),) = stage.actions.replies
    assert "HYPERPOD_RESUME_FROM=" in lines


def test_without_a_controller_a_script_is_given_the_checkpoint_it_may_need(stage: Stage) -> None:
    # slurmstepd tells a batch script's restart count only later; the plugin decides then.
    stage.ask(1, {**ENV, "restart_count": 0})
    ((key, *_),) = stage.actions.looked_up
    stage.mind.on_checkpoint(key, "/fsx/c/step_8", stage.now)
    ((_, lines),) = stage.actions.replies
    assert lines[:2] == ("HYPERPOD_CHECKPOINT_DIR=/fsx/c", "HYPERPOD_IF_RESTARTED=/fsx/c/step_8")
    assert not any(line.startswith(("HYPERPOD_ATTEMPT", "HYPERPOD_RESUME_FROM")) for line in lines)


def test_without_a_controller_the_first_attempt_of_a_step_does_not_wait(stage: Stage) -> None:
    stage.ask(1, {**ENV, "restart_count": 0, "step_id": 0})
    ((_, lines),) = stage.actions.replies
    assert lines[:2] == ("HYPERPOD_ATTEMPT=1", "HYPERPOD_RESUME_FROM=")
    assert stage.actions.looked_up == []


def test_a_checkpoint_that_is_not_found_in_time_is_not_waited_for(stage: Stage) -> None:
    stage.ask(1, ENV)
    stage.tick(ENV_DEADLINE_S)
    assert len(stage.actions.replies) == 1
    stage.mind.on_checkpoint(stage.actions.looked_up[0][0], "/late", stage.now)
    assert len(stage.actions.replies) == 1


def test_without_a_controller_an_unarmed_job_gets_nothing_at_once(stage: Stage) -> None:
    stage.ask(1, {**ENV, "armed_by": None, "auto_resume": None})
    assert stage.actions.replies == [(1, ())]


def test_an_answer_too_late_is_no_second_answer(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, {**ENV, "restart_count": 0})
    key = asked(stage)
    stage.tick(ENV_DEADLINE_S)
    stage.tell(type="reply", id=key, ok=True, env={"HYPERPOD_ATTEMPT": "1"})
    assert len(stage.actions.replies) == 1


def test_an_attempts_folder_is_made_once(stage: Stage) -> None:
    stage.connect()
    for client in (1, 2, 3):
        stage.ask(client, ENV)
    stage.ask(4, {**ENV, "restart_count": 3})
    assert stage.actions.folders == [7, 7]


def test_the_next_wake_is_the_end_of_the_wait(stage: Stage) -> None:
    stage.connect()
    stage.tick()
    stage.ask(1, ENV)
    assert stage.mind.next_wake(stage.now) - stage.now == pytest.approx(0.5)


# --- commands -----------------------------------------------------------------------------------------------------


def test_a_quick_check_answers_when_its_checks_are_back(stage: Stage) -> None:
    stage.connect()
    stage.tick()
    for name in ("munge", "cpu_count", "plugin"):
        stage.finish(name)
    stage.actions.sent.clear()
    stage.tell(type="quick_check", id="q1")
    assert stage.actions.kernel_looks == 1
    stage.finish("munge")
    assert stage.actions.sent == []
    stage.finish("cpu_count", Result((fatal("cpu_count", "CpusMissing", "too few"),)))
    (answer,) = stage.actions.take_sent("reply")
    assert (answer["id"], answer["findings"], answer["unfinished"]) == ("q1", [], [])
    assert [Finding.from_dict(f).code for f in answer["suspicions"]] == ["CpusMissing"]


def test_the_output_of_a_failed_job_is_read_once_and_told(stage: Stage) -> None:
    stage.connect()
    stage.tell(type="quick_check", id="7:0", output={"job_id": 7, "uid": 1000, "path": "/home/u/slurm-7.out"})
    assert stage.actions.outputs == [Output(7, 1000, "/home/u/slurm-7.out")]
    stage.beats()
    stage.mind.on_output(7, "all is well", stage.now, stage.clock.now())
    assert stage.beats() == []
    stage.mind.on_output(7, "NRT: status=1202 on nd3", stage.now, stage.clock.now())
    assert [(f.code, f.severity, f.job_id) for f in stage.beats()[-1].findings] == [("Nrt1202", Severity.WARN, 7)]
    stage.run(601)
    assert "Nrt1202" not in {f.code for f in stage.mind.findings}
    stage.tell(type="quick_check", id="8:0", output={"job_id": 8})
    assert len(stage.actions.outputs) == 1


def test_a_quick_check_does_not_wait_for_a_check_that_hangs(stage: Stage) -> None:
    stage.connect()
    stage.tell(type="quick_check", id="q1")
    stage.finish("munge")
    stage.tick(1.0)
    assert stage.actions.take_sent("reply") == []
    stage.tick(0.9)
    (answer,) = stage.actions.take_sent("reply")
    assert answer["unfinished"] == ["cpu_count"]


def test_a_job_is_killed_by_order(stage: Stage) -> None:
    stage.connect()
    stage.tell(type="kill_job", job_id=7, id="k1")
    ((jobs, key),) = stage.actions.killed
    assert jobs == (7,)
    stage.mind.on_killed(key, {7: 3}, stage.clock.now())
    assert stage.actions.take_sent("reply") == [{"type": "reply", "id": "k1", "ok": True, "killed": 3}]


def test_a_lost_peer_is_marked_for_the_training(stage: Stage) -> None:
    stage.tell(type="peer_lost", job_id=7, node="worker-2")
    assert stage.actions.peers_lost == [(7, "worker-2")]
    assert stage.actions.sent == []


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "kill_job"},
        {"type": "peer_lost", "job_id": None},
        {"type": "?"},
        {"type": "ack"},
        {"type": "reply"},
    ],
)
def test_nonsense_from_the_controller_does_nothing(stage: Stage, message: dict[str, Any]) -> None:
    stage.tell(**message)
    assert (stage.actions.killed, stage.actions.peers_lost, stage.actions.sent) == ([], [], [])


def test_an_orderly_shutdown_says_goodbye_once_and_no_more_heartbeats(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, {"v": 1, "type": "goodbye"})
    stage.mind.say_goodbye()
    assert len(stage.actions.take_sent("goodbye")) == 1
    stage.run(3.0)
    assert stage.beats() == []


def test_a_person_may_clear_a_finding_through_the_controller(stage: Stage) -> None:
    stage.connect()
    stage.kernel(XID79.format(n=1, us=5_000_000))
    stage.beats()
    stage.tell(type="clear", id="c1", code="Xid79", device="0000:9b:00.0", reason="reseated")
    assert {"type": "reply", "id": "c1", "ok": True, "cleared": True} in stage.actions.sent
    assert stage.beats()[0].findings == ()
    stage.tell(type="clear", id="c2", code="Xid79", device="0000:9b:00.0")
    assert stage.actions.take_sent("reply")[-1]["cleared"] is False


def test_an_error_of_a_switch_is_told_once_and_cleared_in_both_logs(stage: Stage) -> None:
    check = FabricLogCheck()
    found = classify_fabric("detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0")
    assert found is not None
    check._events[("SXid20034", "0000:86:00.0")] = found
    stage.mind.runner = Runner([check], boot_id="boot-1", instance_id="i-1", start=stage.now)
    stage.connect()
    stage.tick()
    stage.finish("fabric_log", Result((found,)))
    assert [(f.check, f.action) for f in stage.beats()[-1].findings] == [("fabric_log", Action.REBOOT)]
    stage.kernel("4,1,5000000,-;nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 28 LTSSM Fault Up\n")
    assert [(f.check, f.code) for f in stage.beats()[-1].findings] == [("kernel_log", "SXid20034")]
    stage.tell(type="clear", id="c1", code="SXid20034", device="0000:86:00.0", reason="reseated")
    assert stage.beats()[-1].findings == ()


def test_health_says_what_is_open_and_what_each_check_found(stage: Stage) -> None:
    stage.connect()
    stage.tick()
    stage.finish("munge", Result(not_ready="no answer yet"))
    stage.ask(1, {"v": 1, "type": "health"})
    ((_, (line,)),) = stage.actions.replies
    answer = json.loads(line)
    assert (answer["node"], answer["is_ready"], answer["is_connected"]) == ("worker-1", False, True)
    assert answer["checks"][0]["last_problem"] == "no answer yet"


# --- the lease ----------------------------------------------------------------------------------------------------


def silent(stage: Stage, seconds: float, contact: Contact = Contact.SILENT) -> None:
    for _ in range(int(seconds / 0.5)):
        stage.lose(contact)
        stage.tick(0.5)


def answer_probes(stage: Stage, contact: Contact) -> None:
    for address, port in stage.actions.probed[-1]:
        stage.mind.on_probe(f"{address}:{port}", contact, stage.now)


def test_a_node_that_is_cut_off_kills_its_jobs_when_the_lease_ends(stage: Stage) -> None:
    stage.connect()
    stage.acknowledge()
    silent(stage, 9.0)
    assert stage.actions.probed == [(("10.0.0.12", 6818), ("10.0.0.13", 6818))]
    answer_probes(stage, Contact.SILENT)
    silent(stage, 1.0)
    assert [jobs for jobs, _ in stage.actions.killed] == [None]
    silent(stage, 30.0)
    assert len(stage.actions.killed) == 1


def test_a_reboot_of_the_head_node_kills_nothing(stage: Stage) -> None:
    stage.connect()
    stage.acknowledge()
    for _ in range(20):
        silent(stage, 3.0)
        if stage.actions.probed:
            answer_probes(stage, Contact.OPEN)
    assert stage.actions.killed == []


def test_a_stopped_controller_kills_nothing_and_asks_nobody(stage: Stage) -> None:
    stage.connect()
    stage.acknowledge()
    silent(stage, 120.0, Contact.REFUSED)
    assert (stage.actions.killed, stage.actions.probed) == ([], [])


def test_a_silent_connection_is_given_up_before_the_lease_ends(stage: Stage) -> None:
    stage.connect()
    stage.acknowledge()
    stage.run(4.0)
    assert stage.actions.resets == 1


def test_the_lost_lease_is_reported_when_contact_returns_and_is_no_reason_to_drain(stage: Stage) -> None:
    stage.connect()
    stage.acknowledge()
    silent(stage, 9.0)
    answer_probes(stage, Contact.SILENT)
    silent(stage, 1.0)
    stage.mind.on_killed(stage.actions.killed[0][1], {7: 4}, stage.clock.now())
    stage.actions.sent.clear()
    stage.connect()
    (finding,) = (f for f in stage.beats()[0].findings if f.check == "lease")
    assert (finding.code, finding.severity) == ("LeaseLost", Severity.WARN)
    assert "(7)" in finding.message
    stage.tick(1.0)
    stage.acknowledge()
    stage.tick(700.0)
    stage.connect()
    assert [f for f in stage.beats()[-1].findings if f.check == "lease"] == []


def test_a_second_cut_is_fenced_again(stage: Stage) -> None:
    for _ in range(2):
        stage.connect()
        stage.acknowledge()
        silent(stage, 9.0)
        answer_probes(stage, Contact.SILENT)
        silent(stage, 1.0)
    assert len(stage.actions.killed) == 2


def test_a_cluster_without_peers_asks_the_head_node_and_the_router(tmp_path: Path) -> None:
    stage = Stage(tmp_path, make_settings(peers=()))
    silent(stage, 9.0)
    assert stage.actions.probed == [(("10.0.0.2", 22), ("10.0.0.1", 22))]
    answer_probes(stage, Contact.REFUSED)
    silent(stage, 3.0)
    assert stage.actions.killed == []


@pytest.mark.parametrize("role", [Role.HEAD, Role.LOGIN])
def test_only_workers_have_a_lease(tmp_path: Path, role: Role) -> None:
    stage = Stage(tmp_path, make_settings(role=role))
    silent(stage, 60.0)
    assert (stage.actions.probed, stage.actions.killed) == ([], [])


# --- what is kept -------------------------------------------------------------------------------------------------


def test_known_jobs_and_kernel_findings_outlive_a_restart(stage: Stage) -> None:
    stage.ask(1, ENV)
    stage.kernel(XID79.format(n=1, us=5_000_000))
    stage.mind.save()
    again = stage.new_mind()
    again.restore(stage.actions.saved[-1])
    assert again.jobs_known()[7].is_armed
    assert [f.code for f in again.findings] == ["Xid79"]


def test_nothing_is_written_while_nothing_changes(stage: Stage) -> None:
    for _ in range(120):
        stage.tick(1.0)
        for name in {started for started, _, _ in stage.actions.started}:
            stage.finish(name)
        stage.actions.started.clear()
        if stage.now < 1002.0:
            stage.mind.save()
            stage.actions.saved.clear()
    assert stage.actions.saved == []


@pytest.mark.parametrize("state", [{}, {"boot_id": "boot-1"}, {"boot_id": "boot-1", "jobs": [{}]}])
def test_a_damaged_state_is_an_error_that_changes_nothing(stage: Stage, state: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        stage.mind.restore(state)
    assert stage.mind.jobs_known() == {}


WORDS = ("ack", "reply", "quick_check", "kill_job", "peer_lost", "clear", "env", "task_exit", "task_start", "goodbye")
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)
MESSAGES = st.dictionaries(
    st.sampled_from(
        ["id", "sequence", "time", "ok", "env", "job_id", "uid", "restart_count", "code", "checkpoint_dir"]
    ),
    VALUES | st.dictionaries(st.text(max_size=3), VALUES, max_size=2),
)


@given(st.sampled_from(WORDS), MESSAGES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_message_and_no_request_can_break_the_mind(
    tmp_path_factory: pytest.TempPathFactory, word: str, message: dict[str, Any]
) -> None:
    stage = Stage(tmp_path_factory.mktemp("agent"), make_settings())
    stage.connect()
    stage.tell(**{**message, "type": word})
    stage.ask(1, {**message, "type": word})
    stage.tick(2.0)
    assert len(stage.actions.replies) == 1


# --- deep checks --------------------------------------------------------------------------------------------------

DEEP = {"type": "deep", "id": "d1", "program": "stress", "args": {"seconds": 1.0}, "timeout_s": 60.0}
CORRUPT = Finding("deep", "CpuCorrupt", Severity.FATAL, "core 3 computes wrongly", Action.REPLACE, is_hard=True)


def _deep_stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path, make_settings(deep_on_start=("InstanceStress",)))
    stage.connect()
    stage.tick()
    for name in ("munge", "cpu_count", "plugin"):
        stage.finish(name)
    return stage


def test_a_deep_program_is_started_and_its_end_told(stage: Stage) -> None:
    stage.connect()
    stage.tell(**DEEP)
    (order,) = stage.actions.programs
    assert (order.key, order.program, order.args, order.timeout_s) == ("d1", "stress", {"seconds": 1.0}, 60.0)
    stage.actions.sent.clear()
    stage.mind.on_program("d1", "output", gave_way=False, error="")
    (reply,) = stage.actions.take_sent("reply")
    assert (reply["id"], reply["ok"], reply["output"], reply["gave_way"]) == ("d1", True, "output", False)


@pytest.mark.parametrize("change", [{"program": "rm"}, {"args": "x"}, {"timeout_s": "soon"}, {"args": None}])
def test_an_order_that_makes_no_sense_starts_nothing(stage: Stage, change: dict[str, Any]) -> None:
    stage.connect()
    stage.tell(**{**DEEP, **change})
    assert stage.actions.programs == []


@pytest.mark.parametrize("request_", [ENV, {**EXIT, "type": "task_start"}])
def test_a_job_that_comes_ends_deep_programs_at_once(stage: Stage, request_: dict[str, Any]) -> None:
    stage.connect()
    stage.tell(**DEEP)
    stage.ask(1, request_)
    assert stage.actions.stops == 1


def test_a_job_on_a_node_without_deep_programs_ends_nothing(stage: Stage) -> None:
    stage.connect()
    stage.ask(1, ENV)
    assert stage.actions.stops == 0


def test_a_node_waits_for_its_deep_check_before_its_first_job(tmp_path: Path) -> None:
    stage = _deep_stage(tmp_path)
    beat = stage.beats()[-1]
    assert (beat.is_ready, beat.wants) == (False, ("InstanceStress",))
    assert "waits for its deep check" in beat.not_ready_because
    stage.tell(type="deep_judged", kinds=["InstanceStress"], findings=[])
    beat = stage.beats()[-1]
    assert (beat.is_ready, beat.wants, beat.findings) == (True, (), ())


def test_a_node_owes_its_deep_check_from_the_first_heartbeat_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, make_settings(deep_on_start=("InstanceStress",)))
    stage.connect()
    (beat,) = stage.beats()
    assert (beat.owes_deep, beat.wants) == (True, ())
    stage.tell(type="deep_judged", kinds=["InstanceStress"], findings=[])
    assert not stage.beats()[-1].owes_deep


@pytest.mark.parametrize("told", [{}, {"is_closed": False}, {"is_closed": True}])
def test_slurmd_learns_from_the_agent_whether_jobs_can_come(tmp_path: Path, told: dict[str, Any]) -> None:
    stage = Stage(tmp_path, make_settings(deep_on_start=("InstanceStress",)))
    stage.connect()
    stage.tell(type="ack", sequence=1, time=0.0, **told)
    answer = json.loads(stage.mind.describe(stage.now, stage.clock.now(), 10.0))
    assert (answer["owes_deep"], answer["is_closed"]) == (["InstanceStress"], told.get("is_closed", False))
    for later_s, is_held in ((0, True), (STARTS_S - 1, True), (STARTS_S + 1, not answer["is_closed"])):
        facts = stage.mind.facts(stage.now + later_s, stage.clock.now(), 10.0)
        assert facts.is_held is is_held, "checks are told that slurmd waits, or only begins to start"
    stage.tell(type="deep_judged", kinds=["InstanceStress"], findings=[])
    assert not stage.mind.facts(stage.now, stage.clock.now(), 10.0).is_held


@pytest.mark.parametrize("was_ready", [True, False])
def test_a_check_that_is_wanted_later_takes_no_working_node_out(tmp_path: Path, was_ready: bool) -> None:
    stage = _deep_stage(tmp_path)
    kept = stage.mind.to_dict() | {"is_ready": was_ready}
    stage.settings = make_settings(deep_on_start=("InstanceStress", "InstanceConnectivity"))
    again = stage.new_mind()
    again.restore(json.loads(json.dumps(kept)))
    expected = ("InstanceStress",) if was_ready else ("InstanceStress", "InstanceConnectivity")
    assert again.deep.wants == expected


CHECKED: dict[str, tuple[list[list[str]], list[str]]] = {
    "both, then both clean": ([["A", "B"], ["B", "A"]], []),
    "both, then one clean: it may be the other's": ([["A", "B"], ["A"]], ["CpuCorrupt"]),
    "one, then both clean": ([["A"], ["A", "B"]], []),
    "one, then the other": ([["A"], ["B"]], ["CpuCorrupt"]),
}


@pytest.mark.parametrize(("runs", "left"), CHECKED.values(), ids=list(CHECKED))
def test_a_clean_check_ends_what_one_of_the_same_kinds_has_found(
    stage: Stage, runs: list[list[str]], left: list[str]
) -> None:
    for number, kinds in enumerate(runs):
        stage.tell(type="deep_judged", kinds=kinds, findings=[] if number else [CORRUPT.to_dict()])
    assert [f.code for f in stage.mind.findings] == left


def test_what_a_deep_check_found_stays_until_the_next_one_or_a_person_clears_it(tmp_path: Path) -> None:
    stage = _deep_stage(tmp_path)
    stage.tell(type="deep_judged", kinds=["InstanceStress"], findings=[CORRUPT.to_dict()])
    (found,) = stage.mind.findings
    assert (found.code, found.boot_id, found.instance_id) == ("CpuCorrupt", "boot-1", "i-1")
    stage.tell(type="deep_judged", kinds=["InstanceConnectivity"], findings=[])
    assert [f.code for f in stage.mind.findings] == ["CpuCorrupt"]
    stage.tell(type="clear", id="c", code="CpuCorrupt", device="", reason="board replaced")
    assert stage.mind.findings == ()


def test_a_restarted_agent_still_knows_what_a_deep_check_found(tmp_path: Path) -> None:
    stage = _deep_stage(tmp_path)
    stage.tell(type="deep_judged", kinds=["InstanceStress"], findings=[CORRUPT.to_dict()])
    again = stage.new_mind()
    again.restore(json.loads(json.dumps(stage.mind.to_dict())))
    assert [f.code for f in again.findings] == ["CpuCorrupt"]
    assert again.deep.wants == ()
    after_reboot = stage.new_mind("boot-2")
    after_reboot.restore(json.loads(json.dumps(stage.mind.to_dict())))
    assert (after_reboot.findings, after_reboot.deep.wants) == ((), ("InstanceStress",))


def test_the_controllers_word_has_the_clusters_files_fetched(stage: Stage) -> None:
    stage.connect()
    stage.tell(type="fetch_files")

    assert stage.actions.fetches == 1


def test_a_calm_agent_starts_checks_with_its_heartbeat_and_one_that_is_not_ready_at_once(stage: Stage) -> None:
    stage.connect()
    stage.tick(0.4)
    for check in ("munge", "plugin", "cpu_count"):
        assert not stage.mind.is_calm
        stage.finish(check)
    stage.tick()
    assert stage.mind.is_calm
    due = stage.mind.runner.next_deadline()
    assert due is not None
    for _ in range(100):
        wake = stage.mind.next_wake(stage.now)
        if wake > due:
            break
        # A little late each time, as everywhere, so that heartbeats and checks are out of step.
        stage.tick(wake - stage.now + 0.01)
    assert due < wake <= due + 1.0


def test_an_agent_that_is_asked_for_a_quick_check_is_not_calm_until_it_has_answered(stage: Stage) -> None:
    stage.connect()
    stage.tick()
    for check in ("munge", "plugin", "cpu_count"):
        stage.finish(check)
    assert stage.mind.is_calm
    stage.tell(type="quick_check", id="7:0")
    assert not stage.mind.is_calm
