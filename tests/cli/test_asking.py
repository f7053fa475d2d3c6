"""Commands that ask the controller: status, jobs, job show, events, why, drain and the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from answers import attempt, event, job, job_history, node, status
from surroundings import Fakes, Turn, on_node

from hyperpod.errors import AccessDenied, ConnectionLost, InvalidState, NotFound
from hyperpod.ports.process import Completed
from hyperpod.ports.provider import Birth, BirthStatus, InstanceStatus


@pytest.fixture
def demo(fakes: Fakes) -> Fakes:
    fakes.machines.add("demo", "head-1", "worker-1", "worker-2", "worker-3")
    return fakes


def test_status_is_one_screen_with_nodes_jobs_repairs_spares_and_budget(demo: Fakes) -> None:
    demo.controller.answers["status"] = status()
    result = demo.run("status")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("cluster demo at ")
    assert lines[0].endswith("1 in use, 1 replacing, 1 spare")
    assert any(line.startswith("worker-2  replacing") and "never" in line for line in lines)
    assert any(line.split()[:4] == ["42", "train", "ubuntu", "running"] and "2 of 5" in line for line in lines)
    assert "  worker-2: replacing (try 2 of 3, since 12 min), heartbeat/NodeDead: silent for 3 s" in lines
    assert "      last error: no disk space left" in lines
    assert "spares  worker 1 of 1 ready" in lines
    assert "budget  1 of at most 2 repairs at a time; repairs stop above 3 unhealthy nodes" in lines
    assert any(line.startswith("breaker open: epilog/KillTaskFailed on worker-1, worker-2") for line in lines)
    assert "note    worker-1: slurmctld is slow (WaitingForSlurm)" in lines
    assert "\x1b" not in result.out


def test_status_keeps_brackets_of_reasons(demo: Fakes) -> None:
    demo.controller.answers["status"] = status(nodes=[node("worker-1", "down", reason="bad [node] (i-1)")])
    assert "bad [node] (i-1)" in demo.run("status").out


def test_status_says_our_reasons_once_and_without_what_is_for_the_controller(demo: Fakes) -> None:
    reason = "hyperpod:kernel_log/Xid79 GPU lost [node] (i-1, boot 12ab)"
    found = [{"check": "kernel_log", "code": "Xid79", "message": "GPU lost"}]
    for findings in ([], found):
        nodes = [node("worker-1", "draining", reason=reason, findings=findings)]
        demo.controller.answers["status"] = status(nodes=nodes)
        out = demo.run("status").out
        assert out.count("kernel_log/Xid79: GPU lost") == 1
        assert "12ab" not in out


def test_status_in_json_is_the_controllers_answer(demo: Fakes) -> None:
    demo.controller.answers["status"] = status()
    assert demo.run("status", "--output", "json").json == status()


def test_status_says_what_was_not_seen(demo: Fakes) -> None:
    demo.controller.answers["status"] = status(missing=["slurm"])
    assert "not seen, so nothing is destroyed now: slurm" in demo.run("status").out


def test_watching_repeats_until_interrupted(demo: Fakes) -> None:
    demo.controller.answers["status"] = status()
    result = demo.run("status", "--watch", "--interval", "40")
    assert result.code == 130
    assert result.out.count("cluster demo at ") == 3


def test_jobs_asks_for_those_that_run_and_all_for_all(demo: Fakes) -> None:
    demo.controller.answers["jobs"] = [job(), job(43, armed_by="", resume_from="", verdict="", status="pending",
                                                  pending_reason="Resources")]  # fmt: skip
    result = demo.run("jobs")
    assert "step_400" in result.out
    assert "Resources" in result.out
    demo.run("jobs", "--all")
    assert demo.controller.asked == [("jobs", {"running": True}), ("jobs", {"running": False})]


def test_no_jobs_is_said_on_stderr_and_is_an_empty_list_in_json(demo: Fakes) -> None:
    assert demo.run("jobs").out == ""
    assert "--all" in demo.run("jobs").err
    assert demo.run("jobs", "-o", "json").json == []


def test_job_show_tells_attempts_evidence_and_what_was_lost(demo: Fakes) -> None:
    demo.controller.answers["job"] = job_history()
    result = demo.run("job", "show", "42")
    assert result.code == 0
    assert "job          42 train of ubuntu" in result.out
    assert "lost time    7.0 s from the failures seen until it ran again" in result.out
    assert "step 900 -> 400" in result.out
    assert "NodeDead" in result.out
    assert "attempt 1: NodeDead: worker-2 was silent for 3 s" in result.out
    assert "decided 0.5 s later, training again 7.0 s after it was seen" in result.out
    assert "went on from /fsx/ckpt/step_400" in result.out
    assert "avoids       worker-2 (i-0000000000000000b)" in result.out


def test_job_show_says_who_ended_an_attempt_and_on_what_evidence(demo: Fakes) -> None:
    pieces = [
        {"when": "2026-01-02T03:09:59+00:00", "node": "worker-2", "what": f"sign {n}", "weight": 0.3, "method": "exits",
         "points_to": "node" if n else "application", "key": f"k{n}"}
        for n in range(7)
    ]  # fmt: skip
    told = {"kind": "unknown", "reason": "unknown, because [sign] 1", "nodes": [], "score": 0.3, "may_drain": False,
            "suspects": {"worker-2": 0.3}, "evidence": pieces}  # fmt: skip
    first = {**job_history()["attempts"][0], "attribution": told}
    history = {**job_history(), "attempts": [first], "who_was_it": told["reason"]}
    demo.controller.answers["job"] = history
    shown = demo.run("job", "show", "42").out
    assert "who was it   unknown, because [sign] 1" in shown
    assert "who: unknown, because [sign] 1" in shown
    assert "0.30 application  " in shown
    assert "0.30 worker-2  " in shown
    assert "sign 4" in shown
    assert "and 2 more" in shown
    assert "sign 5" not in shown


def test_offenders_are_listed_with_their_figures_and_what_is_done_about_them(demo: Fakes) -> None:
    row = {"identity": "i-0000000000000000b", "instance_id": "i-0000000000000000b", "node": "worker-2", "faults": 4,
           "was_node": "worker-2", "days": 28.0, "expected": 0.18, "chance": 3.95e-5, "is_significant": True,
           "causes": ["gpu/Lost"]}  # fmt: skip
    gone = {**row, "node": "", "identity": "i-0000000000000000c", "is_significant": False, "faults": 1}
    suspect = {"node": "worker-3", "instance_id": "i-0000000000000000d", "suspicion": 0.75, "jobs": 2}
    answer = {"at": "2026-01-02T03:10:00+00:00", "window_days": 28, "replaced": False, "machines": [row, gone],
              "suspects": [suspect]}  # fmt: skip
    demo.controller.answers["offenders"] = answer
    shown = demo.run("health", "offenders").out
    assert "4e-05" in shown
    assert "worker-2 (gone)" in shown
    assert "0.75" in shown
    assert "only named (Repair.ReplaceOffenders: off)" in shown
    assert json.loads(demo.run("health", "offenders", "--output", "json").out) == answer
    demo.controller.answers["offenders"] = {**answer, "machines": [], "suspects": []}
    assert "no faults of nodes in 28 days" in demo.run("health", "offenders").out


@pytest.mark.parametrize(("is_significant", "mark"), [(True, "shunned"), (False, "")])
def test_nodes_that_users_exclude_are_listed_beside_the_offenders(demo: Fakes, is_significant: bool, mark: str) -> None:
    row = {"node": "worker-2", "was_node": "worker-2", "instance_id": "i-0000000000000000b", "users": 4, "of_users": 9,
           "expected": 0.31, "chance": 0.0003, "is_significant": is_significant}  # fmt: skip
    answer = {"at": "2026-01-02T03:10:00+00:00", "window_days": 28, "replaced": False, "machines": [], "suspects": []}
    demo.controller.answers["offenders"] = {**answer, "excluded": [row, {**row, "node": ""}]}
    shown = demo.run("health", "offenders").out
    assert "4 of 9" in shown
    assert "worker-2 (gone)" in shown
    assert ("shunned" in shown) is bool(mark)


def test_job_show_of_a_first_attempt_begins_at_the_beginning(demo: Fakes) -> None:
    demo.controller.answers["job"] = {**job_history(), "attempts": [attempt(1)], "events": [], "avoids": {}}
    assert "the beginning" in demo.run("job", "show", "42").out


def test_another_users_job_is_not_found(demo: Fakes) -> None:
    demo.controller.answers["job"] = NotFound(
        "job 42 is not known here, or is not yours", hint="hyperpod jobs lists yours"
    )
    result = demo.run("job", "show", "42")
    assert (result.code, result.out) == (3, "")
    assert result.err == "error: job 42 is not known here, or is not yours\nhint: hyperpod jobs lists yours\n"


@pytest.mark.parametrize("wrong", ["x", "0", "4_2", "-3"])
def test_a_job_id_that_is_none_is_a_mistake_of_usage(demo: Fakes, wrong: str) -> None:
    assert demo.run("job", "show", "--", wrong).code == 2
    assert demo.controller.asked == []


def test_events_shows_the_latest_oldest_first(demo: Fakes) -> None:
    pages = [[event(1), event(2, "NodeReplaced"), event(3, "JobRequeued", job_id=42, node="")], []]
    demo.controller.answers["events"] = [Turn(page) for page in pages]
    result = demo.run("events", "--limit", "2", "--node", "worker-2", "--job", "42")
    assert [line.split()[2] for line in result.out.splitlines()] == ["NodeReplaced", "JobRequeued"]
    assert demo.controller.asked[1] == ("events", {"after": 3, "limit": 2000, "node": "worker-2", "job_id": 42})


def test_following_events_asks_only_for_newer_ones_and_survives_the_controllers_absence(demo: Fakes) -> None:
    away = ConnectionLost("the controller does not answer")
    pages = [[event(5)], [], away, [event(6)], *([[]] * 120)]
    demo.controller.answers["events"] = [Turn(page) for page in pages]
    result = demo.run("events", "--follow", "--output", "json")
    assert result.code == 130
    assert [line.count('"id"') for line in result.out.splitlines()] == [1, 1]
    assert demo.controller.asked[-1][1]["after"] == 6
    assert result.err.count("waiting:") == 1


def test_why_of_a_job_walks_to_its_nodes(demo: Fakes) -> None:
    demo.controller.answers["why"] = {
        "job": job(), "lines": ["running on worker-1"], "nodes": [{"node": "worker-1", "lines": ["worker-1: in use"]}],
        "next": "if it fails it is started again",
    }  # fmt: skip
    result = demo.run("why", "42")
    assert "job 42 train of ubuntu: running\n  running on worker-1" in result.out
    assert "node worker-1: in use\n" in result.out
    assert result.out.endswith("next: if it fails it is started again\n")


def test_why_of_a_node_is_by_its_name_and_a_wrong_name_is_usage(demo: Fakes) -> None:
    demo.controller.answers["why"] = {
        "node": node("worker-2", "down"),
        "lines": ["its agent was not heard"],
        "next": "x",
    }
    assert "node worker-2: down" in demo.run("why", "worker-2").out
    assert demo.controller.asked == [("why", {"name": "worker-2"})]
    assert demo.run("why", "Worker 2").code == 2


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["drain", "worker-1", "--reason", " fan  is loud "], ("drain", {"node": "worker-1", "reason": "fan is loud"})),
        (["undrain", "worker-1"], ("undrain", {"node": "worker-1"})),
        (
            ["clear", "worker-1", "kernel_log/Xid79", "--device", "0000:9b:00.0", "--reason", "GPU replaced"],
            (
                "clear",
                {
                    "node": "worker-1",
                    "check": "kernel_log",
                    "code": "Xid79",
                    "device": "0000:9b:00.0",
                    "reason": "GPU replaced",
                },
            ),
        ),
        (["replace-node", "worker-1"], ("replace", {"node": "worker-1", "force": False})),
        (["reboot-node", "worker-1", "--force"], ("reboot", {"node": "worker-1", "force": True})),
        (["breaker", "reset"], ("reset-breaker", {})),
        *(
            (
                ["clear", "worker-1", f"{check}/Some", "--reason", "x"],
                ("clear", {"node": "worker-1", "check": check, "code": "Some", "device": "", "reason": "x"}),
            )
            for check in ("fabric_log", "deep", "ec2_event")
        ),
    ],
)
def test_commands_are_told_to_the_controller(demo: Fakes, argv: list[str], asked: tuple[str, dict[str, str]]) -> None:
    result = demo.run(*argv)
    assert (result.code, result.out) == (0, f"{asked[0]} done\n")
    assert demo.run(*argv, "--output", "json").json == {"done": f"{asked[0]} done"}
    assert demo.controller.asked == [asked, asked]


@pytest.mark.parametrize("finding", ["disk/DiskFull", "kernel_log", "Xid79"])
def test_findings_that_end_by_themselves_are_not_cleared_by_hand(demo: Fakes, finding: str) -> None:
    result = demo.run("clear", "worker-1", finding, "--reason", "x")
    assert result.code == 2
    assert "only findings of kernel_log" in result.err


def test_a_drain_needs_a_reason_that_is_not_ours(demo: Fakes) -> None:
    assert demo.run("drain", "worker-1").code == 2
    assert demo.run("drain", "worker-1", "--reason", " ").code == 2
    result = demo.run("drain", "worker-1", "--reason", "Hyperpod: x")
    assert result.code == 2
    assert "may not begin with 'hyperpod:'" in result.err
    assert demo.controller.asked == []


def test_a_refusal_by_the_controller_keeps_its_exit_code(demo: Fakes) -> None:
    demo.controller.answers["undrain"] = InvalidState("undrain worker-2", "replacing", hint="wait")
    result = demo.run("undrain", "worker-2")
    assert result.code == 4
    assert result.err == "error: cannot undrain worker-2: it is replacing\nhint: wait\n"


# --- on a node --------------------------------------------------------------------------------------------------


def test_on_a_node_the_controller_is_asked_directly_and_without_root(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    fakes.place.is_root = False
    fakes.controller.answers["status"] = status()
    fakes.controller.answers["nodes"] = [node("worker-1")]
    assert fakes.run("status").code == 0
    assert fakes.run("list-nodes").out.splitlines()[1].startswith("worker-1  idle")
    assert fakes.run("describe-cluster", "-o", "json").json["groups"][0]["wanted"] == 1
    assert fakes.run("list-clusters", "-o", "json").json[0]["cluster"] == "demo"


def test_on_a_node_a_command_for_root_is_refused_by_the_controller(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    fakes.controller.answers["drain"] = AccessDenied("drain is for root only", hint="use sudo, or ask an administrator")
    result = fakes.run("drain", "worker-1", "--reason", "x")
    assert (result.code, result.err) == (
        1, "error: drain is for root only\nhint: use sudo, or ask an administrator\n",
    )  # fmt: skip


def test_on_a_node_another_cluster_is_unknown(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    result = fakes.run("status", "--cluster", "other")
    assert result.code == 3
    assert "no cluster other on node box; there are: demo" in result.err


@pytest.mark.parametrize("command", [["create-cluster", "x.yaml"], ["delete-cluster", "demo"], ["update-cluster", "x"]])
def test_on_a_node_clusters_are_not_made(fakes: Fakes, tmp_path: Path, command: list[str]) -> None:
    on_node(fakes, tmp_path)
    result = fakes.run(*command)
    assert result.code == 2
    assert "does not work on a node" in result.err


# --- from the machine with the cluster --------------------------------------------------------------------------


def test_a_controller_that_is_down_is_told_from_a_head_node_that_is_down(demo: Fakes) -> None:
    demo.controller.answers["status"] = ConnectionLost("the controller at 10.0.0.1 port 6830 does not answer")
    result = demo.run("status")
    assert result.code == 75
    assert "the head node head-1 of cluster demo is up, but its controller does not answer" in result.err
    assert "hint: hyperpod ssh head-1 --cluster demo -- systemctl status hyperpod-controller" in result.err
    demo.machines.add("demo", "head-1", status=InstanceStatus.STOPPED)
    result = demo.run("status")
    assert result.code == 75
    assert "the head node head-1 of cluster demo is stopped" in result.err


def test_a_head_node_without_our_program_says_so(demo: Fakes) -> None:
    demo.machines.ask_output = Completed("", "exec: hyperpod: not found", 127)
    result = demo.run("jobs")
    assert result.code == 75
    assert "hyperpod: not found" in result.err


def test_a_head_node_still_being_set_up_says_so(demo: Fakes) -> None:
    demo.machines.ask_output = Completed('{"ok": false, "error": "ConfigError", "message": "no file"}', "", 0)
    assert "head-1 of cluster demo is not set up yet" in demo.run("jobs").err


def test_a_half_made_cluster_says_how_to_go_on(fakes: Fakes) -> None:
    fakes.machines.prepare("demo", ["head-1"])
    result = fakes.run("status")
    assert result.code == 4
    assert "half-made" in result.err
    assert "hyperpod delete-cluster demo removes it" in result.err


def test_without_root_nothing_is_touched(demo: Fakes) -> None:
    demo.place.is_root = False
    for command in (["status"], ["list-clusters"], ["delete-cluster", "demo", "--yes"], ["ssh", "worker-1"]):
        result = demo.run(*command)
        assert result.code == 1
        assert result.err == (
            "error: clusters on this machine are handled by root only\nhint: put sudo before the command\n"
        )
    assert demo.machines.done == []


def test_an_unknown_cluster_lists_those_that_exist(demo: Fakes) -> None:
    demo.machines.add("other", "head-1")
    result = demo.run("status", "--cluster", "domo")
    assert result.code == 3
    assert result.err.splitlines()[0].startswith("error: no cluster domo on box (")
    assert result.err.splitlines()[0].endswith("; there are: demo, other")


def test_with_two_clusters_one_must_be_named(demo: Fakes) -> None:
    demo.machines.add("other", "head-1")
    result = demo.run("jobs")
    assert result.code == 2
    assert "which cluster? There are 2" in result.err
    assert "demo, other" in result.err
    demo.place.env = {**demo.place.env, "HYPERPOD_CLUSTER": "other"}
    assert demo.run("jobs").code == 0


def test_without_any_cluster_the_machine_asked_is_named(fakes: Fakes) -> None:
    result = fakes.run("status")
    assert result.code == 3
    assert "no cluster on box (" in result.err
    assert fakes.run("list-clusters").err.startswith("no clusters on box (")
    assert fakes.run("list-clusters", "-o", "json").json == []


# --- nodes ------------------------------------------------------------------------------------------------------


def test_list_nodes_joins_provider_and_controller_and_shows_what_only_one_knows(demo: Fakes) -> None:
    demo.controller.answers["nodes"] = [node("worker-1", "in use", jobs=[42]), node("worker-9", "down")]
    rows = {row["node"]: row for row in demo.run("list-nodes", "-o", "json").json}
    assert rows["worker-1"]["state"] == "in use"
    assert rows["worker-1"]["jobs"] == [42]
    assert rows["worker-9"]["machine"] == "missing"
    assert rows["worker-2"]["state"] == "up"
    assert rows["head-1"]["role"] == "head"


def test_list_nodes_without_a_controller_shows_the_machines_and_says_so(demo: Fakes) -> None:
    demo.controller.answers["nodes"] = ConnectionLost("x")
    result = demo.run("list-nodes")
    assert result.code == 0
    assert len(result.out.splitlines()) == 5
    assert "the states are the provider's only" in result.err


def test_replace_without_a_controller_needs_force(demo: Fakes) -> None:
    demo.controller.answers["replace"] = ConnectionLost("x")
    result = demo.run("replace-node", "worker-2")
    assert result.code == 75
    assert "--force does it without the controller" in result.err
    assert demo.machines.done == []
    result = demo.run("replace-node", "worker-2", "--force", "--yes")
    assert result.code == 0
    assert demo.machines.done == [("replace", "worker-2", "i-00000000000000003")]


def test_a_head_node_is_rebooted_by_the_provider_and_never_replaced_lightly(demo: Fakes) -> None:
    assert demo.run("replace-node", "head-1").code == 4
    assert demo.run("reboot-node", "head-1").code == 2
    assert demo.machines.done == []
    assert demo.run("reboot-node", "head-1", "--yes").out == "head-1: restarted\n"
    assert demo.machines.done == [("reboot", "i-00000000000000001")]


def test_an_unknown_node_lists_the_clusters_nodes(demo: Fakes) -> None:
    result = demo.run("reboot-node", "worker-7")
    assert result.code == 3
    assert "hint: its nodes are: head-1, worker-1, worker-2, worker-3" in result.err


def test_why_without_a_controller_shows_the_record_of_the_lifecycle_scripts(demo: Fakes) -> None:
    demo.controller.answers["why"] = ConnectionLost("x")
    broken = demo.machines.instances["demo", "worker-2"]
    demo.machines.births[broken.id] = Birth(
        broken.id, BirthStatus.FAILED, script="setup.sh", exit_code=9, tail=("no such package",), log_path="/log"
    )
    result = demo.run("why", "worker-2")
    assert result.code == 75
    assert "lifecycle scripts of worker-2 (i-00000000000000003): failed: setup.sh ended with status 9" in result.out
    assert "    no such package" in result.out
    assert "its controller does not answer" in result.err


def test_why_adds_births_that_did_not_end_well(demo: Fakes) -> None:
    broken = demo.machines.instances["demo", "worker-2"]
    demo.machines.births[broken.id] = Birth(broken.id, BirthStatus.RUNNING, message="50_slurm")
    demo.controller.answers["why"] = {"node": node("worker-2", "not ready"), "lines": [], "next": "x"}
    assert demo.run("why", "worker-2", "-o", "json").json["births"][0]["status"] == "running"
    assert demo.run("why", "worker-1", "-o", "json").json["births"] == []


def test_watching_in_json_is_one_line_for_each_look(demo: Fakes) -> None:
    demo.controller.answers["status"] = status()
    result = demo.run("status", "--watch", "--interval", "60", "-o", "json")
    assert [line[:1] for line in result.out.splitlines()] == ["{", "{"]


def test_no_events_is_said_on_stderr(demo: Fakes) -> None:
    assert demo.run("events").err == "no events\n"
    assert demo.run("events", "-o", "json").json == []
