"""The client over scripted tools: what it asks, how often, and what it makes of each answer."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from hyperpod.adapters.slurm.client import SlurmCli
from hyperpod.core.job import JobStatus
from hyperpod.errors import (
    AccessDenied,
    CommandError,
    CommandTimeout,
    HyperpodError,
    InvalidState,
    NotFound,
    SlurmError,
    SlurmUnavailable,
    UnexpectedOutput,
)
from hyperpod.ports.process import Completed
from tests.fakes.process import FakeProcesses

DATA = Path(__file__).parent.parent / "data" / "slurm"


def failed(message: str, code: int = 1) -> Completed:
    return Completed("", message + "\n", code)


def client(processes: FakeProcesses, state_dir: Path = Path("/nowhere")) -> SlurmCli:
    return SlurmCli(processes, state_dir=state_dir)


def node(name: str, *state: str) -> str:
    return json.dumps({"nodes": [{"name": name, "state": list(state)}], "last_update": {"set": True, "number": 9}})


# --- reads ------------------------------------------------------------------------------------------------------


def test_reads_nodes_jobs_and_partitions() -> None:
    processes = FakeProcesses()
    processes.on("scontrol", "--all", "show", "nodes", reply=(DATA / "nodes_down.json").read_text())
    processes.on("scontrol", "--all", "show", "partitions", reply=(DATA / "partitions.json").read_text())
    processes.on("squeue", reply=(DATA / "jobs_running.json").read_text())
    slurm = client(processes)
    assert [n.name for n in slurm.nodes()] == ["worker-1", "worker-2", "worker-3"]
    assert {j.job_id for j in slurm.jobs()} == {24, 25, 26, 27, 28, 29, 30, 31, 32}
    assert slurm.partitions()["hyperpod-spare"] == ("worker-3",)
    assert len(processes.calls) == 3


def test_finds_one_job_among_the_tasks_of_its_array() -> None:
    processes = FakeProcesses()
    processes.on("squeue", reply=(DATA / "jobs_running.json").read_text())
    view = client(processes).job(31)
    assert view is not None
    assert (view.job_id, view.array_task_id) == (31, 0)
    assert processes.calls == [["squeue", "--json", "--all", "--states=all", "--jobs=31"]]


def test_a_job_that_slurm_denies_is_none() -> None:
    processes = FakeProcesses()
    processes.on("squeue", reply=failed("slurm_load_jobs error: Invalid job id specified"))
    assert client(processes).job(99) is None


UNAVAILABLE = [
    "slurm_load_node error: Unable to contact slurm controller (connect failure)",
    "slurm_load_jobs error: Socket timed out on send/recv operation",
    "slurm_load_jobs error: Unexpected message received",
    "slurm_load_jobs error: Zero Bytes were transmitted or received",
    "slurm_load_node error: Protocol authentication error",
]


@pytest.mark.parametrize("message", UNAVAILABLE)
def test_a_quick_failure_is_asked_again_once(message: str) -> None:
    processes = FakeProcesses()
    processes.on("scontrol", reply=[failed(message), Completed(node("n-1", "IDLE"), "", 0)])
    assert [n.name for n in client(processes).nodes()] == ["n-1"]
    processes = FakeProcesses()
    processes.on("scontrol", reply=failed(message))
    with pytest.raises(SlurmUnavailable, match="slurmctld does not answer") as caught:
        client(processes).nodes()
    assert len(processes.calls) == 2
    assert caught.value.retry_after == timedelta(seconds=2)


def test_a_silent_slurmctld_is_waited_for_once() -> None:
    processes = FakeProcesses()
    processes.on("squeue", reply=CommandTimeout(["squeue"], 5.0))
    with pytest.raises(SlurmUnavailable, match="squeue gave no answer within 5 s"):
        client(processes).jobs()
    assert len(processes.calls) == 1


def test_an_empty_list_without_slurmctld_is_unknown_and_not_empty() -> None:
    processes = FakeProcesses()
    processes.on("squeue", reply=(DATA / "jobs_unreachable.json").read_text())
    slurm = client(processes)
    with pytest.raises(SlurmUnavailable):
        slurm.jobs()
    with pytest.raises(SlurmUnavailable):
        slurm.job(7)


def test_a_missing_tool_is_unavailability_with_advice() -> None:
    processes = FakeProcesses()
    processes.on("squeue", reply=CommandError(["squeue"], 127, "No such file or directory"))
    with pytest.raises(SlurmUnavailable, match="cannot be started") as caught:
        client(processes).jobs()
    assert caught.value.hint == "install slurm-client"


def test_nonsense_is_not_believed() -> None:
    processes = FakeProcesses()
    processes.on("squeue", reply="slurm is fine, thank you")
    with pytest.raises(UnexpectedOutput):
        client(processes).jobs()


@pytest.mark.parametrize(
    "message",
    [
        "scontrol: unrecognized option '--json'",
        "scontrol: fatal: Unable to find plugin: serializer/json",
        "scontrol: error: couldn't load specified plugin name for data_parser/v0.0.39: Dlopen of plugin file failed",
    ],
)
def test_tools_without_json_are_read_as_text_from_then_on(message: str) -> None:
    processes = FakeProcesses()
    processes.on("scontrol", "--all", "show", "nodes", reply=failed(message))
    processes.on("scontrol", "--all", "-o", "show", "nodes", reply=(DATA / "nodes_down.txt").read_text())
    processes.on("scontrol", "--all", "-o", "show", "jobs", reply=(DATA / "jobs_over.txt").read_text())
    processes.on("scontrol", "--all", "-o", "show", "job", reply=failed("slurm_load_jobs error: Invalid job id"))
    processes.on("scontrol", "--all", "-o", "show", "partitions", reply=(DATA / "partitions.txt").read_text())
    slurm = client(processes)
    assert len(slurm.nodes()) == 3
    assert {j.name: j.status for j in slurm.jobs()}["killed"] is JobStatus.FAILED
    assert slurm.job(99) is None
    assert slurm.partitions()["dev"] == ("worker-1", "worker-2")
    assert sum("--json" in call for call in processes.calls) == 1


def test_times_are_asked_for_in_epoch_seconds_and_with_a_deadline() -> None:
    class Recording(FakeProcesses):
        def run(self, argv, **options):  # type: ignore[no-untyped-def]
            assert options["env"]["SLURM_TIME_FORMAT"] == "%s"
            assert options["timeout_s"] == 5.0
            return super().run(argv, **options)

    processes = Recording()
    processes.on("scontrol", "--all", "show", "nodes", reply=node("n-1", "IDLE"))
    client(processes).nodes()
    client(processes).requeue(7)
    assert len(processes.calls) == 2


# --- writes -----------------------------------------------------------------------------------------------------


def test_a_node_is_drained_before_it_is_set_down() -> None:
    processes = FakeProcesses()
    client(processes).set_down("worker-1", "hyperpod:x it's dead")
    assert processes.calls == [
        ["scontrol", "update", "nodename=worker-1", "state=drain", "reason=hyperpod:x it's dead"],
        ["scontrol", "update", "nodename=worker-1", "state=down", "reason=hyperpod:x it's dead"],
    ]


@pytest.mark.parametrize("state", [("IDLE",), ("ALLOCATED",), ("UNKNOWN", "NOT_RESPONDING")])
def test_undrain_leaves_a_node_in_service_alone(state: tuple[str, ...]) -> None:
    processes = FakeProcesses()
    processes.on("scontrol", "show", "node", reply=node("worker-1", *state))
    client(processes).undrain("worker-1")
    assert processes.commands("scontrol", "update") == []


@pytest.mark.parametrize("state", [("IDLE", "DRAIN"), ("DOWN",), ("ALLOCATED", "FAIL"), ("DOWN", "DRAIN")])
def test_undrain_resumes_a_node_out_of_service(state: tuple[str, ...]) -> None:
    processes = FakeProcesses()
    processes.on("scontrol", "show", "node", reply=node("worker-1", *state))
    client(processes).undrain("worker-1")
    assert processes.commands("scontrol", "update") == [["scontrol", "update", "nodename=worker-1", "state=resume"]]


def test_undrain_drops_the_drain_of_a_node_that_has_not_registered_yet() -> None:
    processes = FakeProcesses()
    processes.on("scontrol", "show", "node", reply=node("worker-1", "UNKNOWN", "DRAIN"))
    processes.on(
        "scontrol",
        "update",
        "nodename=worker-1",
        "state=resume",
        reply=failed("slurm_update error: Invalid node state specified"),
    )
    client(processes).undrain("worker-1")
    assert processes.commands("scontrol", "update")[-1][-1] == "state=undrain"


def test_undrain_is_content_when_somebody_was_faster() -> None:
    processes = FakeProcesses()
    before, after = (Completed(node("worker-1", *state), "", 0) for state in (("IDLE", "DRAIN"), ("IDLE",)))
    processes.on("scontrol", "show", "node", reply=[before, after])
    processes.on("scontrol", "update", reply=failed("slurm_update error: Invalid node state specified"))
    client(processes).undrain("worker-1")
    assert len(processes.commands("scontrol", "update")) == 1


def test_undrain_of_an_unknown_node_is_said() -> None:
    processes = FakeProcesses()
    processes.on("scontrol", "show", "node", reply='{"nodes": [], "last_update": {"set": true, "number": 9}}')
    with pytest.raises(NotFound, match="nobody-1"):
        client(processes).undrain("nobody-1")


Write = Callable[[SlurmCli], None]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda s: s.requeue(7), "Job is pending execution for job 7"),
        (lambda s: s.start_now(7), "Job is no longer pending execution for job 7"),
        (lambda s: s.set_top_priority(7), "Job is no longer pending execution for job 7"),
        (lambda s: s.release(7), "Job is no longer pending execution for job 7"),
        (lambda s: s.kill_step(7, 0), "scancel: error: Kill job error on job step id 7.0: Job/step already completing"),
    ],
)
def test_already_so_is_success(write: Write, message: str) -> None:
    processes = FakeProcesses()
    processes.on("scontrol", reply=failed(message))
    processes.on("scancel", reply=failed(message))
    write(client(processes))
    assert len(processes.calls) == 1


@pytest.mark.parametrize(
    ("write", "message", "error"),
    [
        (lambda s: s.requeue(9), "Invalid job id specified for job 9", NotFound),
        (lambda s: s.release(9), "Invalid job id specified for job 9\nslurm_suspend error: Invalid job id", NotFound),
        (lambda s: s.kill_step(9, -5), "scancel: error: Kill job error on job id 9: Invalid job id", NotFound),
        (lambda s: s.drain("n", "r"), "slurm_update error: Invalid node name specified", NotFound),
        (lambda s: s.set_partition_nodes("p", []), "slurm_update error: Invalid partition name specified", NotFound),
        (lambda s: s.set_excluded(9, ["a"]), "Job is no longer pending execution for job 9", InvalidState),
        (lambda s: s.set_top_priority(9), "Job is in held state, pending scheduler release for job 9", InvalidState),
        (lambda s: s.requeue(9), "Requested operation is presently disabled for job 9", InvalidState),
        (lambda s: s.update_address("n", "a"), "slurm_update error: Access/permission denied", AccessDenied),
        (lambda s: s.allow_requeue(9), "Unexpected message received for job 9", SlurmUnavailable),
        (lambda s: s.start_now(9), "Something new for job 9", SlurmError),
    ],
)
def test_a_refusal_is_translated_and_never_repeated(write: Write, message: str, error: type[HyperpodError]) -> None:
    processes = FakeProcesses()
    processes.on("scontrol", reply=failed(message))
    processes.on("scancel", reply=failed(message))
    with pytest.raises(error) as caught:
        write(client(processes))
    assert type(caught.value) is error
    assert len(processes.calls) == 1


def test_a_write_without_an_answer_may_be_done_and_is_not_repeated() -> None:
    processes = FakeProcesses()
    processes.on("scontrol", reply=CommandTimeout(["scontrol"], 5.0))
    with pytest.raises(SlurmUnavailable, match="it may be done"):
        client(processes).requeue(7)
    assert len(processes.calls) == 1


def test_a_refusal_that_will_pass_says_so() -> None:
    processes = FakeProcesses()
    processes.on("scontrol", reply=failed("Job can not be altered now, try again later for job 7"))
    with pytest.raises(SlurmError) as caught:
        client(processes).requeue(7)
    assert caught.value.retry_after == timedelta(seconds=1)


# --- saved environments -----------------------------------------------------------------------------------------


def save(state_dir: Path, job_id: int, *entries: bytes, count: int | None = None) -> None:
    folder = state_dir / f"hash.{job_id % 10}" / f"job.{job_id}"
    folder.mkdir(parents=True)
    number = len(entries) if count is None else count
    (folder / "environment").write_bytes(
        number.to_bytes(4, sys.byteorder) + b"".join(entry + b"\0" for entry in entries)
    )


def test_reads_the_environment_saved_with_a_job(tmp_path: Path) -> None:
    save(tmp_path, 127, b"HYPERPOD_AUTO_RESUME=3", b"A=b=c")
    assert client(FakeProcesses(), tmp_path).saved_environment(127) == {"HYPERPOD_AUTO_RESUME": "3", "A": "b=c"}


def test_an_array_task_has_the_environment_of_its_array(tmp_path: Path) -> None:
    processes = FakeProcesses()
    processes.on("squeue", reply=(DATA / "jobs_running.json").read_text())
    save(tmp_path, 25, b"A=1")
    slurm = client(processes, tmp_path)
    assert slurm.saved_environment(31) == {"A": "1"}
    slurm.jobs()
    asked = len(processes.calls)
    assert slurm.saved_environment(32) == {"A": "1"}
    assert slurm.saved_environment(24) is None
    assert len(processes.calls) == asked


def test_a_damaged_environment_is_not_there_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 7, b"A=1", count=5)
    slurm = client(FakeProcesses(), tmp_path)
    with caplog.at_level(logging.WARNING):
        assert [slurm.saved_environment(7) for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1
