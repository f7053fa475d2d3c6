"""Parsers on text recorded from Slurm 24.11.5, and on text that nobody should believe."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.adapters.slurm.parse import (
    MAX_ENVIRONMENT_BYTES,
    expand,
    parse_environment,
    parse_jobs,
    parse_jobs_text,
    parse_nodes,
    parse_nodes_text,
    parse_partitions,
    parse_partitions_text,
)
from hyperpod.core.job import JobStatus, JobView
from hyperpod.core.node import Availability, DrainOwner, owner_of_reason
from hyperpod.errors import HyperpodError, SlurmUnavailable, UnexpectedOutput
from hyperpod.ports.slurm import NodeState

DATA = Path(__file__).parent.parent / "data" / "slurm"


def recorded(name: str) -> str:
    return (DATA / name).read_text()


def jobs_by_name(name: str) -> dict[str, JobView]:
    text = recorded(name)
    return {job.name: job for job in (parse_jobs(text) if name.endswith(".json") else parse_jobs_text(text))}


def nodes_by_name(name: str) -> dict[str, NodeState]:
    text = recorded(name)
    return {node.name: node for node in (parse_nodes(text) if name.endswith(".json") else parse_nodes_text(text))}


def moment(epoch: int) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)


# --- nodes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nodes_down.json", "nodes_down.txt"])
def test_reads_a_node_that_is_down_and_drained(name: str) -> None:
    node = nodes_by_name(name)["worker-1"]
    assert node.availability is Availability.DOWN
    assert node.is_drained
    assert not node.is_fail
    assert node.is_responding
    assert node.reason.startswith("hyperpod:agent/NodeDead no heartbeat")
    assert node.reason.endswith("(i-0123456789abcdef0, boot 1234abcd)")
    assert (node.reason_by, node.reason_at) == ("root", moment(1796164195))
    assert (node.address, node.cpus, node.memory_mib, node.partitions) == ("10.77.30.11", 2, 1000, ("dev",))
    assert owner_of_reason(node.reason, node.reason_by) is DrainOwner.OURS


@pytest.mark.parametrize("name", ["nodes_mixed.json", "nodes_mixed.txt"])
def test_a_node_never_seen_is_neither_up_nor_down(name: str) -> None:
    node = nodes_by_name(name)["worker-3"]
    assert node.availability is Availability.UNKNOWN
    assert not node.is_responding
    assert (node.boot_at, node.slurmd_started_at, node.reason_by) == (None, None, "")
    assert node.partitions == ("hyperpod-spare",)


@pytest.mark.parametrize("name", ["nodes_mixed.json", "nodes_mixed.txt"])
def test_reads_nodes_at_work(name: str) -> None:
    nodes = nodes_by_name(name)
    assert {n: nodes[n].availability for n in ("worker-1", "worker-2")} == {
        "worker-1": Availability.UP,
        "worker-2": Availability.UP,
    }
    assert nodes["worker-1"].is_allocated
    assert nodes["worker-2"].is_allocated
    assert nodes["worker-1"].boot_at == moment(1796162699)


def test_slurms_own_drain_is_told_from_a_persons() -> None:
    nodes = nodes_by_name("nodes_prolog.json")
    drained, left_over = nodes["worker-2"], nodes["worker-1"]
    assert owner_of_reason(drained.reason, drained.reason_by) is DrainOwner.SLURM
    assert (left_over.reason, left_over.is_drained) == ("Action:Replace", False)


@pytest.mark.parametrize("name", ["nodes_down", "nodes_mixed"])
def test_text_and_json_say_the_same_of_nodes(name: str) -> None:
    # The text was taken an instant later, so only load figures could differ, and they are not read.
    assert parse_nodes_text(recorded(f"{name}.txt")) == parse_nodes(recorded(f"{name}.json"))


def node_with(state: list[str] | str, **fields: Any) -> NodeState:
    document = {"nodes": [{"name": "n-1", "state": state, **fields}], "last_update": {"set": True, "number": 5}}
    return parse_nodes(json.dumps(document))[0]


@pytest.mark.parametrize(
    ("state", "availability", "flags"),
    [
        (["IDLE"], Availability.UP, set()),
        (["IDLE", "DRAIN"], Availability.UP, {"is_drained"}),
        (["ALLOCATED", "DRAIN", "COMPLETING"], Availability.UP, {"is_drained", "is_completing", "is_allocated"}),
        (["ALLOCATED", "FAIL"], Availability.UP, {"is_drained", "is_fail", "is_allocated"}),
        (["DOWN", "NOT_RESPONDING"], Availability.DOWN, {"silent"}),
        (["DOWN", "REBOOT_ISSUED"], Availability.DOWN, {"is_rebooting"}),
        (["IDLE", "REBOOT_REQUESTED"], Availability.UP, {"is_rebooting"}),
        (["IDLE", "POWERED_DOWN"], Availability.DOWN, set()),
        (["ERROR"], Availability.DOWN, set()),
        (["FUTURE"], Availability.DOWN, set()),
        (["UNKNOWN"], Availability.UNKNOWN, set()),
        (["SOMETHING_NEW"], Availability.UNKNOWN, set()),
        ([], Availability.UNKNOWN, set()),
        ("IDLE+DRAIN", Availability.UP, {"is_drained"}),
        ("down*", Availability.DOWN, {"silent"}),
    ],
)
def test_translates_node_states(state: list[str] | str, availability: Availability, flags: set[str]) -> None:
    node = node_with(state)
    assert node.availability is availability
    named = ("is_drained", "is_fail", "is_completing", "is_rebooting", "is_allocated")
    found = {name for name in named if getattr(node, name)} | (set() if node.is_responding else {"silent"})
    assert found == flags


# --- jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jobs_running.json", "jobs_running.txt"])
def test_reads_a_running_job(name: str) -> None:
    job = jobs_by_name(name)["train"]
    assert (job.job_id, job.status, job.user, job.uid) == (24, JobStatus.RUNNING, "ubuntu", 1000)
    assert (job.nodes, job.batch_host, job.node_count) == (("worker-1",), "worker-1", 1)
    assert (job.required, job.excluded, job.partition) == (("worker-1",), (), "dev")
    assert (job.started_at, job.ended_at) == (moment(1796164193), None)
    assert (job.restart_count, job.is_requeue_allowed, job.is_batch, job.is_held) == (0, True, True, False)
    assert (job.pending_reason, job.array_job_id, job.het_job_id) == ("", None, None)
    assert job.output == "/tmp/slurm-24.out"


@pytest.mark.parametrize("name", ["jobs_running.json", "jobs_running.txt"])
def test_reads_a_job_that_its_user_holds(name: str) -> None:
    job = jobs_by_name(name)["held"]
    assert (job.status, job.is_held, job.priority, job.pending_reason) == (JobStatus.PENDING, True, 0, "JobHeldUser")
    assert (job.is_requeue_allowed, job.excluded) == (False, ("worker-1", "worker-2"))
    assert job.dependency == "afterok:24(unfulfilled)"
    assert (job.begin_at, job.started_at, job.pending_message) == (None, None, "")


@pytest.mark.parametrize("parsed", [parse_jobs, parse_jobs_text])
def test_reads_array_tasks_and_het_components_one_by_one(parsed: Any) -> None:
    text = recorded("jobs_running.json" if parsed is parse_jobs else "jobs_running.txt")
    jobs = {job.job_id: job for job in parsed(text)}
    assert [(jobs[n].array_job_id, jobs[n].array_task_id) for n in (25, 31, 32)] == [(25, None), (25, 0), (25, 1)]
    assert [(jobs[n].het_job_id, jobs[n].het_offset) for n in (26, 27)] == [(26, 0), (26, 1)]


@pytest.mark.parametrize("name", ["jobs_requeued.json", "jobs_requeued.txt"])
def test_a_requeued_job_waits_for_its_begin_time(name: str) -> None:
    job = jobs_by_name(name)["train"]
    assert (job.status, job.pending_reason, job.restart_count) == (JobStatus.PENDING, "BeginTime", 1)
    assert (job.begin_at, job.started_at, job.ended_at) == (moment(1796164316), None, None)
    assert (job.nodes, job.is_held) == ((), False)


OVER = {
    "completed": (JobStatus.COMPLETED, 0, 0),
    "failing": (JobStatus.FAILED, 7, 0),
    "killed": (JobStatus.FAILED, 0, 9),
    "cancelled": (JobStatus.CANCELLED, 0, 15),
    "nodefail": (JobStatus.NODE_FAIL, 0, 1),
}


@pytest.mark.parametrize("name", ["jobs_over.json", "jobs_over.txt"])
def test_reads_how_jobs_ended(name: str) -> None:
    jobs = jobs_by_name(name)
    assert {n: (jobs[n].status, jobs[n].exit_code, jobs[n].exit_signal) for n in OVER} == OVER
    assert all(jobs[n].ended_at and jobs[n].started_at and jobs[n].status.is_over for n in OVER)


@pytest.mark.parametrize("name", ["jobs_over.json", "jobs_over.txt"])
def test_tells_slurms_hold_after_a_failed_launch_from_an_administrators(name: str) -> None:
    jobs = jobs_by_name(name)
    launch, admin, special = jobs["launchfail"], jobs["adminheld"], jobs["requeuehold"]
    assert launch.is_held
    assert launch.pending_message == "launch failed requeued held"
    assert (admin.is_held, admin.pending_reason, admin.pending_message) == (True, "JobHeldAdmin", "")
    assert special.is_held
    assert (special.status, special.pending_message) == (JobStatus.PENDING, "job requeued in held state")


@pytest.mark.parametrize("name", ["jobs_running", "jobs_over"])
def test_text_and_json_say_the_same_of_jobs(name: str) -> None:
    def comparable(job: JobView) -> JobView:
        # The text shows either the reason or its description, and a range of node counts for waiting jobs.
        return replace(job, pending_reason="", output="" if job.array_job_id else job.output)

    from_json = {job.job_id: comparable(job) for job in parse_jobs(recorded(f"{name}.json"))}
    from_text = {job.job_id: comparable(job) for job in parse_jobs_text(recorded(f"{name}.txt"))}
    # The scheduler may have looked at a waiting job between the two commands.
    settled = {n for n, job in from_json.items() if job.status is from_text[n].status}
    assert settled >= set(from_json) - {40}
    assert {n: from_text[n] for n in settled} == {n: from_json[n] for n in settled}


def job_with(**fields: Any) -> JobView:
    document = {"jobs": [{"job_id": 5, "job_state": ["RUNNING"], **fields}], "last_update": 5}
    return parse_jobs(json.dumps(document))[0]


@pytest.mark.parametrize(
    ("state", "status", "is_completing"),
    [
        (["RUNNING", "CONFIGURING"], JobStatus.CONFIGURING, False),
        (["PENDING", "COMPLETING"], JobStatus.PENDING, True),
        (["NODE_FAIL", "COMPLETING"], JobStatus.NODE_FAIL, True),
        (["REQUEUED"], JobStatus.PENDING, False),
        (["PENDING", "REQUEUE_HOLD"], JobStatus.PENDING, False),
        (["COMPLETING"], JobStatus.UNKNOWN, True),
        (["OUT_OF_MEMORY"], JobStatus.OUT_OF_MEMORY, False),
        (["TIMEOUT"], JobStatus.TIMEOUT, False),
        (["NEVER_HEARD_OF"], JobStatus.UNKNOWN, False),
        ("SUSPENDED", JobStatus.SUSPENDED, False),
    ],
)
def test_translates_job_states(state: Any, status: JobStatus, is_completing: bool) -> None:
    job = job_with(job_state=state)
    assert (job.status, job.is_completing) == (status, is_completing)


def test_unset_and_infinite_numbers_are_no_numbers() -> None:
    job = job_with(
        array_job_id={"set": False, "infinite": False, "number": 9},
        eligible_time={"set": True, "infinite": True, "number": 0},
        submit_time={"set": True, "infinite": False, "number": 4294967294},
        priority={"set": True, "infinite": False, "number": 3},
    )
    assert (job.array_job_id, job.begin_at, job.submitted_at, job.priority) == (None, None, None, 3)


def test_reads_the_raw_wait_status_of_older_releases() -> None:
    assert (job_with(exit_code=7 << 8).exit_code, job_with(exit_code=9).exit_signal) == (7, 9)


# --- answers that are none --------------------------------------------------------------------------------------


def test_the_empty_list_printed_without_a_slurmctld_is_not_believed() -> None:
    with pytest.raises(SlurmUnavailable, match="without a time of update"):
        parse_jobs(recorded("jobs_unreachable.json"))


def test_errors_in_the_answer_are_not_passed_over() -> None:
    with pytest.raises(SlurmUnavailable, match="Unable to contact"):
        parse_nodes('{"nodes": [], "errors": [{"error": "Unable to contact slurm controller", "error_number": 1}]}')


def test_an_empty_cluster_is_believed() -> None:
    assert parse_jobs('{"jobs": [], "last_update": {"set": true, "infinite": false, "number": 1700000000}}') == ()
    assert parse_jobs_text("No jobs in the system\n") == ()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"jobs": 5}', '{"jobs": [5]}', '{"jobs": [{}]}', '{"jobs": [{"job_id": "x"}]}']
)
def test_refuses_what_is_no_answer(text: str) -> None:
    with pytest.raises(UnexpectedOutput):
        parse_jobs(text)


@given(st.text(max_size=200))
def test_no_text_makes_a_parser_fail_otherwise(text: str) -> None:
    for parser in (parse_nodes, parse_jobs, parse_partitions, parse_nodes_text, parse_jobs_text):
        try:
            parser(text)
        except HyperpodError:
            continue


def test_a_name_that_imitates_fields_hides_them_but_changes_nothing() -> None:
    line = "JobId=7 JobName=x UserId=root(0) JobState=FAILED UserId=ubuntu(1000) JobState=RUNNING Restarts=2"
    (job,) = parse_jobs_text(line)
    assert (job.uid, job.user, job.status, job.restart_count) == (-1, "", JobStatus.UNKNOWN, 2)


def test_a_name_with_a_line_break_cannot_stand_for_another_job() -> None:
    text = "JobId=7 JobName=x\nJobId=8 JobState=FAILED\nJobId=8 JobName=y UserId=root(0) JobState=RUNNING\n"
    jobs = {job.job_id: job for job in parse_jobs_text(text)}
    assert (jobs[8].status, jobs[8].uid) == (JobStatus.UNKNOWN, -1)


# --- the rest ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["partitions.json", "partitions.txt"])
def test_reads_partitions_with_hidden_ones(name: str) -> None:
    parsed = (parse_partitions if name.endswith("json") else parse_partitions_text)(recorded(name))
    assert parsed == {"dev": ("worker-1", "worker-2"), "hyperpod-spare": ("worker-3",)}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("(null)", ()),
        ("worker-2", ("worker-2",)),
        ("worker-[1-3,7]", ("worker-1", "worker-2", "worker-3", "worker-7")),
        ("a-1,b-[09-10]", ("a-1", "b-09", "b-10")),
    ],
)
def test_expands_host_lists(text: str, nodes: tuple[str, ...]) -> None:
    assert expand(text) == nodes


def test_refuses_a_broken_host_list() -> None:
    with pytest.raises(UnexpectedOutput, match="host list"):
        expand("worker-[1-")


def test_reads_a_saved_job_environment() -> None:
    environment = parse_environment((DATA / "environment.bin").read_bytes())
    assert environment["HYPERPOD_AUTO_RESUME"] == "3"
    assert environment["SLURM_EXPORT_ENV"] == "ALL,HYPERPOD_AUTO_RESUME=3"
    assert len(environment) == 36


def saved(*entries: bytes, count: int | None = None) -> bytes:
    number = len(entries) if count is None else count
    return number.to_bytes(4, sys.byteorder) + b"".join(entry + b"\0" for entry in entries)


def test_values_of_a_saved_environment_may_hold_anything_but_nul() -> None:
    data = saved(b"A=1\n2=3", b"nonsense", b"=x", b"B=\xff", b"C=")
    assert parse_environment(data) == {"A": "1\n2=3", "B": "\udcff", "C": ""}


@pytest.mark.parametrize(
    "data",
    [b"", b"\1", saved(b"A=1", count=2), saved(b"A=1", b"B=2")[:-4], bytes(MAX_ENVIRONMENT_BYTES + 1)],
    ids=["empty", "short", "count", "truncated", "huge"],
)
def test_refuses_a_damaged_saved_environment(data: bytes) -> None:
    with pytest.raises(UnexpectedOutput, match="saved job environment"):
        parse_environment(data)
