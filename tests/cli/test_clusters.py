"""Commands about whole clusters: create, update, list, describe, delete."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from answers import node
from surroundings import Fakes

from hyperpod.errors import ConnectionLost, NoCapacity, ProviderError
from hyperpod.ports.provider import Birth, BirthStatus, InstanceStatus

ALL = ["head-1", "worker-1", "worker-2", "worker-3"]


def created(fakes: Fakes, spec: Path) -> None:
    assert fakes.run("create-cluster", str(spec)).code == 0
    fakes.machines.done.clear()


def test_create_makes_all_nodes_and_says_where_the_time_went(fakes: Fakes, spec: Path) -> None:
    result = fakes.run("create-cluster", str(spec))
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == ["NODE", *ALL]
    assert [d for d in fakes.machines.done if d[0] == "launch"] == [("launch", name) for name in ALL]
    assert "ready after" in result.err
    assert "boot" in result.err
    assert "slurm 0.9 s, munge 0.1 s" in result.err
    assert "worker-2 (i-00000000000000003): set up" in result.err


def test_creating_again_changes_nothing(fakes: Fakes, spec: Path) -> None:
    created(fakes, spec)
    result = fakes.run("create-cluster", "-f", str(spec))
    assert result.code == 0
    assert [d for d in fakes.machines.done if d[0] != "configure"] == []
    assert "cluster demo is as the specification says" in result.err


def test_a_dry_run_shows_the_plan_and_makes_nothing(fakes: Fakes, spec: Path) -> None:
    result = fakes.run("create-cluster", str(spec), "--dry-run")
    assert (result.code, result.out.splitlines()[0]) == (0, "+ create head-1 (head)")
    assert "+ create worker-3 (worker, spare)" in result.out
    assert fakes.machines.done == []
    assert fakes.machines.clusters() == []
    plan = fakes.run("create-cluster", str(spec), "--dry-run", "-o", "json").json["plan"]
    assert [entry["node"] for entry in plan["create"]] == ALL


def test_a_changed_specification_is_shown_and_needs_consent(fakes: Fakes, spec: Path) -> None:
    created(fakes, spec)
    spec.write_text(spec.read_text().replace("InstanceCount: 3", "InstanceCount: 4"))
    result = fakes.run("create-cluster", str(spec))
    assert result.code == 2
    assert "~ instance_groups.worker.count: 3 -> 4" in result.err
    assert "+ create worker-4 (worker, spare)" in result.err
    assert "hint: --yes makes these changes" in result.err
    assert fakes.machines.done == []
    assert "~ instance_groups.worker.count: 3 -> 4" in fakes.run("create-cluster", str(spec), "--dry-run").out
    assert fakes.run("create-cluster", str(spec), "--yes").code == 0
    assert ("launch", "worker-4") in fakes.machines.done


def test_growing_and_shrinking_one_group(fakes: Fakes, spec: Path) -> None:
    created(fakes, spec)
    assert fakes.run("update-cluster", "--group", "worker", "--count", "5").code == 0
    assert ("launch", "worker-5") in fakes.machines.done
    fakes.machines.done.clear()
    assert fakes.run("update-cluster", "--group", "worker", "--count", "2").code == 0
    assert [d[1] for d in fakes.machines.done if d[0] == "forget"] == ["worker-5", "worker-4", "worker-3"]


def test_shrinking_refuses_a_busy_node_unless_forced(fakes: Fakes, spec: Path) -> None:
    created(fakes, spec)
    fakes.machines.busy = {"worker-3"}
    result = fakes.run("update-cluster", "--group", "worker", "--count", "2")
    assert result.code == 4
    assert "not done: worker-3: a job runs on it; drain it first, or use --force" in result.err
    assert not any(d[0] == "terminate" for d in fakes.machines.done)
    assert fakes.run("update-cluster", "--group", "worker", "--count", "2", "--force").code == 0
    assert any(d[0] == "terminate" for d in fakes.machines.done)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "no specification is named"),
        (["--group", "worker"], "--group and --count belong together"),
        (["x.yaml", "--group", "worker", "--count", "2"], "not both"),
        (["--group", "gpu", "--count", "2"], "no instance group 'gpu'; it has head, worker"),
        (["--group", "worker", "--count", "-1"], "--count"),
        (["--group", "worker", "--count", "0"], "worker"),
    ],
)
def test_update_complains_about_arguments(fakes: Fakes, spec: Path, argv: list[str], complaint: str) -> None:
    created(fakes, spec)
    result = fakes.run("update-cluster", *argv)
    assert result.code == 2
    assert complaint in result.err
    assert fakes.machines.done == []


def test_updating_an_unknown_cluster_is_not_found(fakes: Fakes, spec: Path) -> None:
    assert fakes.run("update-cluster", str(spec)).code == 3


def test_a_bad_specification_names_file_line_and_key(fakes: Fakes, spec: Path) -> None:
    spec.write_text(spec.read_text().replace("InstanceCount: 3", "InstanceCuont: 3"))
    result = fakes.run("create-cluster", str(spec))
    assert result.code == 2
    assert result.out == ""
    first = result.err.splitlines()[0]
    assert first.startswith(f"error: {spec}:")
    assert "InstanceCuont" in result.err
    assert "InstanceCount" in result.err
    assert fakes.machines.clusters() == []


def test_a_missing_specification_is_one_line(fakes: Fakes, tmp_path: Path) -> None:
    result = fakes.run("create-cluster", str(tmp_path / "absent.yaml"))
    assert result.code == 2
    assert len(result.err.splitlines()) <= 2
    assert "absent.yaml" in result.err


def test_two_specifications_are_one_too_many(fakes: Fakes, spec: Path) -> None:
    result = fakes.run("create-cluster", str(spec), "-f", "other.yaml")
    assert result.code == 2
    assert "two specifications are named" in result.err


def test_a_failed_script_shows_its_last_lines_and_what_to_do(fakes: Fakes, spec: Path) -> None:
    log = spec.parent / "provisioning.log"
    failed = Birth(
        "i-00000000000000002", BirthStatus.FAILED, script="setup.sh", exit_code=9, attempt=3,
        tail=("installing", "no such package: foo"), log_path=str(log),
    )  # fmt: skip
    fakes.machines.births[failed.instance_id] = failed
    result = fakes.run("create-cluster", str(spec), "--keep-failed")
    assert result.code == 1
    assert "error: worker-1 (i-00000000000000002): setup.sh ended with status 9 after 3 tries" in result.err
    assert "    no such package: foo" in result.err
    assert str(log) in result.err
    assert "hyperpod ssh worker-1 --cluster demo" in result.err


def test_a_failed_machine_is_tried_once_more_elsewhere(fakes: Fakes, spec: Path) -> None:
    failed = Birth("i-00000000000000002", BirthStatus.FAILED, script="setup.sh", exit_code=9)
    fakes.machines.births[failed.instance_id] = failed
    assert fakes.run("create-cluster", str(spec)).code == 0
    assert ("replace", "worker-1", failed.instance_id) in fakes.machines.done


def test_the_scripts_output_is_followed(fakes: Fakes, spec: Path) -> None:
    log = spec.parent / "provisioning.log"
    log.write_text("step one\nstep two\nhalf a li")
    fakes.machines.births["i-00000000000000001"] = Birth("i-00000000000000001", BirthStatus.OK, log_path=str(log))
    result = fakes.run("create-cluster", str(spec), "--follow")
    assert "[head-1] step one\n[head-1] step two\n" in result.err
    assert "half a li" not in result.err
    assert result.err.count("step one") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoCapacity("no disk space left for podman", hint="free space below /var/lib/containers"), 75),
        (ProviderError("podman is not installed", hint="hyperpod doctor --fix"), 1),
    ],
)
def test_an_error_of_the_provider_is_one_line_and_a_hint(
    fakes: Fakes, spec: Path, error: ProviderError, code: int
) -> None:
    fakes.machines.error = error
    result = fakes.run("create-cluster", str(spec))
    assert result.code == code
    assert result.err.splitlines()[-2:] == [f"error: {error.message}", f"hint: {error.hint}"]


def test_a_result_in_json_has_nodes_plan_and_times(fakes: Fakes, spec: Path) -> None:
    answer = fakes.run("create-cluster", str(spec), "--output", "json").json
    assert [entry["node"] for entry in answer["nodes"]] == ALL
    assert set(answer["seconds"]) == {"prepare", "image", "start", "boot"}
    assert answer["failures"] == []


# --- list and describe ------------------------------------------------------------------------------------------


def test_list_shows_each_cluster_with_its_state(fakes: Fakes, spec: Path) -> None:
    created(fakes, spec)
    fakes.machines.prepare("half", ["head-1"])
    fakes.machines.prepare("bad", ["head-1"])
    fakes.machines.cluster("bad").spec.write_text("{not json")
    rows = {row["cluster"]: row for row in fakes.run("list-clusters", "-o", "json").json}
    assert rows["demo"]["status"] == "in service"
    assert rows["demo"]["nodes"] == "4 of 4 up"
    assert rows["half"]["status"].startswith("half-made")
    assert rows["bad"]["status"].startswith("damaged: ")
    assert fakes.run("list-clusters").out.splitlines()[0].split() == [
        "CLUSTER", "PROVIDER", "HEAD", "NODES", "STATUS",
    ]  # fmt: skip


def test_describe_shows_groups_machines_and_the_controller(fakes: Fakes, spec: Path) -> None:
    created(fakes, spec)
    fakes.controller.answers["nodes"] = [node("worker-1", "in use", jobs=[42])]
    result = fakes.run("describe-cluster", "demo")
    assert result.code == 0
    assert "controller      answers" in result.out
    assert any(line.split()[:5] == ["worker", "worker", "local.node", "3", "3"] for line in result.out.splitlines())
    fakes.controller.answers["nodes"] = ConnectionLost("x")
    assert "its controller does not answer" in fakes.run("describe-cluster").out


def test_describe_shows_the_last_lines_of_a_failed_birth(fakes: Fakes, spec: Path) -> None:
    created(fakes, spec)
    key = ("demo", "worker-2")
    broken = replace(fakes.machines.instances[key], status=InstanceStatus.FAILED)
    fakes.machines.instances[key] = broken
    fakes.machines.births[broken.id] = Birth(
        broken.id, BirthStatus.FAILED, script="x.sh", exit_code=1, tail=("oops",), log_path="/log"
    )
    result = fakes.run("describe-cluster", "-o", "json").json
    assert result["status"].startswith("degraded")
    assert result["births"][0]["tail"] == ["oops"]
    text = fakes.run("describe-cluster").out
    assert "lifecycle scripts of worker-2" in text
    assert "    oops\n  whole log: /log" in text


# --- delete -----------------------------------------------------------------------------------------------------


def test_delete_needs_consent(fakes: Fakes) -> None:
    fakes.machines.add("demo", "head-1")
    result = fakes.run("delete-cluster", "demo")
    assert result.code == 2
    assert "all data on /fsx" in result.err
    assert fakes.machines.done == []


def test_delete_does_not_guess_the_cluster(fakes: Fakes) -> None:
    fakes.machines.add("demo", "head-1")
    assert fakes.run("delete-cluster", "--yes").code == 2
    assert fakes.machines.done == []


def test_delete_removes_and_keeps_data_when_asked(fakes: Fakes) -> None:
    fakes.machines.add("demo", "head-1")
    result = fakes.run("delete-cluster", "demo", "--keep-data", "--yes")
    assert result.code == 0
    assert fakes.machines.done == [("delete", "demo", "keep")]
    assert "its data is kept in" in result.out


def test_deleting_what_is_gone_is_done(fakes: Fakes) -> None:
    fakes.machines.add("other", "head-1")
    result = fakes.run("delete-cluster", "demo", "--yes", "-o", "json")
    assert result.code == 0
    assert result.json == {"cluster": "demo", "deleted": False, "kept_data": None}
    assert "no cluster demo on box" in result.err
    assert fakes.machines.done == []


def test_a_half_made_cluster_is_deleted(fakes: Fakes) -> None:
    fakes.machines.prepare("demo", ["head-1"])
    assert fakes.run("delete-cluster", "--cluster", "demo", "-y").code == 0
    assert fakes.machines.clusters() == []


def test_two_names_for_one_deletion_are_refused(fakes: Fakes) -> None:
    assert fakes.run("delete-cluster", "demo", "--cluster", "other", "--yes").code == 2


def test_a_person_is_asked_and_may_refuse(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.machines.add("demo", "head-1")
    fakes.place.is_interactive = lambda: True
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    result = fakes.run("delete-cluster")
    assert result.code == 4
    assert "cannot delete cluster demo: it is as it was: not confirmed" in result.err
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert fakes.run("delete-cluster").code == 0
    assert fakes.machines.done == [("delete", "demo", "all")]


def test_changing_one_group_of_a_half_made_cluster_is_refused(fakes: Fakes) -> None:
    fakes.machines.prepare("demo", ["head-1"])
    assert fakes.run("update-cluster", "--group", "worker", "--count", "2").code == 4


def test_the_clusters_of_a_machine_complete_in_the_shell(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.machines.add("demo", "head-1")
    monkeypatch.setenv("_HYPERPOD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "hyperpod delete-cluster ")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("HYPERPOD_HOME", str(fakes.machines.home))
    with pytest.raises(SystemExit):
        fakes.run()


def test_the_service_is_wired_to_its_hidden_command(fakes: Fakes) -> None:
    assert fakes.run("provider-serve", "demo").code == 3


def test_plain_ssh_reaches_local_nodes_by_the_clusters_own_keys(fakes: Fakes, spec: Path) -> None:
    created(fakes, spec)
    result = fakes.run("ssh-config", "demo")
    assert result.code == 0
    head, *rest = result.out.split("\n\n")
    assert head.splitlines()[0] == "Host demo-head-1 demo"
    assert len(rest) == 3
    assert "StrictHostKeyChecking yes" in head
    assert "/secrets/admin" in head
    assert "HostKeyAlias worker-1" in rest[0]
