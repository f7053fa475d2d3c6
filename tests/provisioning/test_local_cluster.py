"""Making, changing and deleting a cluster on a podman in memory: converges from anywhere, harms no job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.local.provider import LocalProvider
from hyperpod.core.node import Role
from hyperpod.core.provision import WantedNode
from hyperpod.core.settings import HealthPolicy
from hyperpod.core.spec import ClusterSpec
from hyperpod.errors import HyperpodError, InvalidState, NotFound
from hyperpod.ports.process import Completed
from hyperpod.provisioning.apply import (
    ClusterResult,
    create_cluster,
    delete_cluster,
    parse_node_states,
    parse_shown_nodes,
    plan_cluster,
    readiness,
    stored_spec,
)
from hyperpod.provisioning.node_files import node_launches, slurm_layout
from tests.adapters.test_local_provider import Clock, make_provider
from tests.fakes.podman import FakePodman

KILLED = (
    ("ps", "before"), ("run", "before"), ("run", "after"), ("network create", "after"), ("exec", "before"),
    ("image", "before"),
)  # fmt: skip


def spec(count: int = 3, **group: Any) -> ClusterSpec:
    worker = {"name": "worker", "count": count, "role": "worker", "partition": "dev", "spares": 1} | group
    return ClusterSpec.model_validate(
        {"cluster_name": "demo", "instance_groups": [{"name": "head", "count": 1, "role": "head"}, worker]}
    )


class Scene:
    """A machine with podman, and what a creation told."""

    def __init__(self, home: Path) -> None:
        self.podman = FakePodman()
        self.provider: LocalProvider = make_provider(home, self.podman)
        self.served: list[str] = []
        self.told: list[str] = []

    def create(self, wanted: ClusterSpec, **options: Any) -> ClusterResult:
        clock = Clock()
        return create_cluster(
            wanted,
            self.provider,
            lambda what, _share: self.told.append(what),
            start_service=lambda _provider, cluster: self.served.append(cluster),
            monotonic=clock.monotonic,
            sleep=clock.sleep,
            timeout_s=options.pop("timeout_s", 5.0),
            **options,
        )

    def nodes(self) -> list[str]:
        return sorted(box.labels["hyperpod.node"] for box in self.podman.containers.values())

    def slurm_conf(self) -> str:
        return (self.provider.cluster("demo").config("head-1") / "slurm.conf").read_text()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_makes_a_cluster_and_says_where_the_time_went(scene: Scene) -> None:
    result = scene.create(spec())

    assert scene.nodes() == ["head-1", "worker-1", "worker-2", "worker-3"]
    assert (result.failures, scene.served) == ((), ["demo"])
    assert set(result.seconds) == {"prepare", "image", "start", "boot"}
    assert stored_spec(scene.provider, "demo") == spec()


def test_creating_it_again_changes_nothing(scene: Scene) -> None:
    first = scene.create(spec())
    second = scene.create(spec())

    assert second.plan.is_empty
    assert [i.id for i in first.instances] == [i.id for i in second.instances]


@pytest.mark.parametrize(("subcommand", "when"), KILLED)
def test_killed_anywhere_and_made_again_it_converges_without_an_orphan(
    scene: Scene, subcommand: str, when: str
) -> None:
    scene.podman.kill_next(subcommand, when=when)
    with pytest.raises(KeyboardInterrupt):
        scene.create(spec())

    result = scene.create(spec())

    assert scene.nodes() == ["head-1", "worker-1", "worker-2", "worker-3"]
    assert len(result.instances) == 4
    assert list(scene.podman.networks) == ["hyperpod-demo"]


def test_a_half_made_cluster_can_be_deleted(scene: Scene) -> None:
    scene.podman.kill_next("run", when="after")
    with pytest.raises(KeyboardInterrupt):
        scene.create(spec())

    assert scene.provider.clusters() == ["demo"]
    delete_cluster("demo", scene.provider)

    assert (scene.podman.containers, scene.podman.networks, scene.provider.clusters()) == ({}, {}, [])


def test_growing_adds_nodes_and_tells_slurm_before_they_boot(scene: Scene) -> None:
    scene.create(spec(3))
    scene.podman.calls.clear()

    scene.create(spec(5))

    calls = [" ".join(call[3:]) for call in scene.podman.calls if call[0] == "podman"]
    applied = next(i for i, call in enumerate(calls) if call.endswith("apply_slurm_conf.sh"))
    assert scene.nodes()[-1] == "worker-5"
    assert not any(call.startswith("run ") for call in calls[:applied])
    assert "NodeName=worker-5" in scene.slurm_conf()


def test_a_node_with_a_job_is_not_taken_and_slurm_goes_on_knowing_it(scene: Scene) -> None:
    scene.create(spec(5))
    scene.podman.busy = {"worker-5"}

    result = scene.create(spec(2))

    assert scene.nodes() == ["head-1", "worker-1", "worker-2", "worker-5"]
    assert [refusal.node for refusal in result.plan.refused] == ["worker-5"]
    assert "NodeName=worker-5" in scene.slurm_conf()
    assert "PartitionName=dev Nodes=worker-1,worker-5" in scene.slurm_conf()
    assert "worker-5" not in scene.podman.reasons


def test_nodes_that_run_learn_of_newcomers_and_others_are_left_in_peace(scene: Scene) -> None:
    scene.create(spec(3))
    scene.podman.calls.clear()
    scene.create(spec(3))
    assert not any(call[-1].endswith("60_hyperpod.sh") for call in scene.podman.calls)

    scene.create(spec(4))

    refreshed = [call[4] for call in scene.podman.calls if call[-1].endswith("60_hyperpod.sh")]
    assert sorted(refreshed) == sorted(
        scene.podman.node(name).id for name in ("head-1", "worker-1", "worker-2", "worker-3")
    )


def test_force_takes_it(scene: Scene) -> None:
    scene.create(spec(5))
    scene.podman.busy = {"worker-5"}

    scene.create(spec(2), force=True)

    assert scene.nodes() == ["head-1", "worker-1", "worker-2"]
    assert "worker-5" not in scene.slurm_conf()


def test_when_slurm_does_not_say_who_is_busy_no_node_is_taken(scene: Scene) -> None:
    scene.create(spec(5))
    scene.podman.exec_replies["squeue"] = Completed("", "slurm_load_jobs error: Unable to contact", 1)

    scene.create(spec(2))

    assert len(scene.nodes()) == 6


def test_a_job_that_starts_between_the_question_and_the_drain_is_safe(scene: Scene) -> None:
    scene.create(spec(5))

    def squeue(_argv: object, _input: object) -> Completed:
        # The first answer is older than the drain, the second is not.
        return Completed("worker-4\n" if "worker-4" in scene.podman.reasons else "", "", 0)

    scene.podman.exec_replies["squeue"] = squeue
    scene.create(spec(3))

    assert scene.nodes() == ["head-1", "worker-1", "worker-2", "worker-3", "worker-4"]
    assert scene.podman.reasons == {"worker-5": "removed by scale-down"}


def test_a_drain_by_a_person_is_not_lifted(scene: Scene) -> None:
    scene.create(spec())
    scene.podman.reasons["worker-1"] = "broken fan, Anna"

    scene.create(spec())

    assert scene.podman.reasons == {"worker-1": "broken fan, Anna"}


def test_a_script_that_fails_costs_one_more_machine_and_is_then_reported(scene: Scene) -> None:
    scene.podman.births["worker-2"] = "failed"

    result = scene.create(spec())

    (failure,) = result.failures
    assert failure.node == "worker-2"
    assert "on_create.sh ended with status 9 after 3 tries" in failure.lines()[0]
    assert "    boom" in failure.lines()
    assert scene.podman.subcommands().count("run") == 5
    assert len(scene.nodes()) == 4


def test_a_failed_machine_is_kept_for_a_look_when_asked(scene: Scene) -> None:
    scene.podman.births["worker-2"] = "failed"
    first = scene.create(spec(), keep_failed=True)
    second = scene.create(spec(), keep_failed=True)

    assert first.failures[0].birth.instance_id == second.failures[0].birth.instance_id
    assert scene.podman.subcommands().count("run") == 4


def test_a_failed_machine_gets_its_next_chance_at_the_next_call(scene: Scene) -> None:
    scene.podman.births["worker-2"] = "failed"
    scene.create(spec())
    del scene.podman.births["worker-2"]

    assert scene.create(spec()).failures == ()


def test_a_cluster_that_does_not_become_ready_says_what_is_missing(scene: Scene) -> None:
    scene.podman.births["worker-3"] = "running"

    with pytest.raises(InvalidState, match="worker-3"):
        scene.create(spec())


def test_a_worker_that_slurm_does_not_know_is_not_ready(scene: Scene) -> None:
    scene.create(spec())
    scene.podman.exec_replies["sinfo"] = Completed("worker-1 idle\nworker-2 idle*\n", "", 0)

    state = readiness(spec(), scene.provider)

    assert state.waiting_for == {"worker-2": "in Slurm: idle*", "worker-3": "in Slurm: unknown to Slurm"}
    assert not state.is_ready


def test_a_slurm_conf_that_is_refused_is_told_with_its_reason(scene: Scene) -> None:
    scene.create(spec(3))
    apply = "/opt/hyperpod/lifecycle_scripts/apply_slurm_conf.sh"
    scene.podman.exec_replies[apply] = Completed("", "error: Parsing error at line 9\n", 1)

    with pytest.raises(HyperpodError, match="Parsing error at line 9"):
        scene.create(spec(4))


def test_the_plan_alone_changes_nothing(scene: Scene) -> None:
    scene.create(spec(3))
    scene.podman.calls.clear()

    plan = plan_cluster(spec(4), scene.provider)

    assert [node.name for node in plan.create] == ["worker-4"]
    assert set(scene.podman.subcommands()) <= {"ps"}


def test_an_unknown_cluster_lists_the_known_ones(scene: Scene) -> None:
    scene.create(spec())

    with pytest.raises(NotFound, match="there are: demo"):
        stored_spec(scene.provider, "other")


def test_reads_slurms_states() -> None:
    assert parse_node_states("worker-1 idle\nworker-2 DOWN*\n\nnoise\n") == {"worker-1": "idle", "worker-2": "down*"}


def test_a_node_in_no_partition_is_ready_too(scene: Scene) -> None:
    scene.create(spec())
    scene.podman.exec_replies["sinfo"] = Completed("worker-1 idle\nworker-2 idle\n", "", 0)
    shown = "NodeName=worker-3 Arch=x State=IDLE ThreadsPerCore=1\n"
    scene.podman.exec_replies["scontrol"] = Completed(shown, "", 0)

    assert readiness(spec(), scene.provider).is_ready


def test_reads_nodes_as_slurm_shows_them() -> None:
    text = "NodeName=a Arch=x State=IDLE+DRAIN Reason=x y\nNodeName=b State=DOWN+NOT_RESPONDING\nnoise\n"

    assert parse_shown_nodes(text) == {"a": "idle", "b": "down*"}


ADDRESSES = {"head-1": "10.0.0.10", "worker-1": "10.0.0.11", "worker-2": "10.0.0.12", "worker-3": "10.0.0.13"}


def test_every_node_gets_what_its_daemons_need_and_nothing_names_an_instance() -> None:
    launches = {launch.node: launch for launch in node_launches(spec(), ADDRESSES)}
    agent = json.loads(launches["worker-1"].files["agent.json"])
    controller = json.loads(launches["head-1"].files["controller.json"])

    assert (agent["node"], agent["head_address"], agent["instance_id"]) == ("worker-1", "10.0.0.10", "")
    assert {peer["node"] for peer in agent["peers"]} == {"head-1", "worker-2", "worker-3"}
    assert (agent["address"], controller["policies"]["cluster_name"]) == ("10.0.0.11", "demo")
    assert [row["node"] for row in controller["nodes"] if row["spare"]] == ["worker-3"]
    assert "controller.json" not in launches["worker-1"].files


def test_nodes_of_this_machine_expect_no_hardware_whatever_type_the_file_names() -> None:
    launches = node_launches(spec(instance_type="ml.p5.48xlarge"), ADDRESSES)
    assert {json.dumps(json.loads(launch.files["agent.json"])["expected"]) for launch in launches} == {"{}"}


def test_each_group_gets_its_own_health_policy() -> None:
    health = {"Checks": {"disk": {"Mode": "act"}}, "Groups": {"worker": {"Checks": {"disk": {"Mode": "observe"}}}}}
    wanted = spec()
    block = wanted.hyperpod.model_copy(update={"health": HealthPolicy.model_validate(health)})
    launches = {
        launch.node: launch for launch in node_launches(wanted.model_copy(update={"hyperpod": block}), ADDRESSES)
    }
    found = {node: json.loads(launches[node].files["agent.json"])["health"] for node in ("head-1", "worker-1")}
    assert found == {"head-1": {"disk": {"mode": "act"}}, "worker-1": {"disk": {"mode": "observe"}}}


@pytest.mark.parametrize(
    ("health", "waits_for"),
    [
        ({}, ["InstanceStress"]),
        ({"Checks": {"deep": {"Mode": "observe"}}}, ["InstanceStress"]),
        ({"Checks": {"deep": {"Mode": "off"}}}, []),
        ({"Default": "off"}, []),
        ({"Default": "off", "Groups": {"worker": {"Checks": {"deep": {"Mode": "act"}}}}}, ["InstanceStress"]),
    ],
)
def test_no_node_waits_for_a_deep_check_that_is_off(health: dict[str, Any], waits_for: list[str]) -> None:
    wanted = spec()
    groups = tuple(g.model_copy(update={"deep_checks": ("InstanceStress",)}) for g in wanted.instance_groups)
    block = wanted.hyperpod.model_copy(update={"health": HealthPolicy.model_validate(health)})
    changed = wanted.model_copy(update={"hyperpod": block, "instance_groups": groups})
    launches = {launch.node: launch for launch in node_launches(changed, ADDRESSES)}
    assert json.loads(launches["worker-1"].files["agent.json"])["deep_on_start"] == waits_for
    assert json.loads(launches["head-1"].files["agent.json"])["deep_on_start"] == []


def test_shell_variables_are_quoted() -> None:
    wanted = spec(lifecycle={"source": "/srv/scripts", "on_create": "my script;id.sh"})
    launches = {launch.node: launch for launch in node_launches(wanted, ADDRESSES)}

    assert "HP_ON_CREATE='my script;id.sh'\n" in launches["worker-1"].files["node.env"]
    assert launches["worker-1"].lifecycle_source == "/srv/scripts"
    assert launches["head-1"].lifecycle_source == ""


def test_provisioning_parameters_lie_beside_the_script_unless_the_user_put_them_there(tmp_path: Path) -> None:
    wanted = spec(lifecycle={"source": str(tmp_path), "on_create": "x.sh"}).model_copy(
        update={"provisioning_parameters": {"version": "1.0.0"}}
    )
    name = "lifecycle/provisioning_parameters.json"

    assert name in node_launches(wanted, ADDRESSES)[1].files
    (tmp_path / "provisioning_parameters.json").write_text("{}")
    assert name not in node_launches(wanted, ADDRESSES)[1].files


def test_two_partitions_hold_their_own_groups() -> None:
    base = spec()
    big = base.instance_groups[1].model_copy(update={"name": "big", "count": 1, "partition": "big", "spares": 0})
    both = base.model_copy(update={"instance_groups": (*base.instance_groups, big)})
    layout = slurm_layout(both, ADDRESSES | {"big-1": "10.0.0.20"})

    assert [(p.name, p.nodes, p.is_default) for p in layout.partitions] == [
        ("dev", ("worker-1", "worker-2"), True),
        ("big", ("big-1",), False),
    ]
    assert layout.spares == ("worker-3",)


def test_a_node_that_is_kept_stays_in_its_partition_and_in_slurm() -> None:
    kept = WantedNode("worker-9", "worker", Role.WORKER, 9, "", "old")
    layout = slurm_layout(spec(), ADDRESSES | {"worker-9": "10.0.0.19"}, keep=[kept])

    assert replace(layout.nodes[-1], cpus=0).name == "worker-9"
    assert ("old", ("worker-9",)) in [(p.name, p.nodes) for p in layout.partitions]


def test_a_node_that_is_kept_for_its_job_is_still_watched() -> None:
    kept = WantedNode("worker-9", "worker", Role.WORKER, 9, "", "dev")
    head = node_launches(spec(), ADDRESSES | {"worker-9": "10.0.0.19"}, keep=[kept])[0]

    watched = {node["node"] for node in json.loads(head.files["controller.json"])["nodes"]}
    assert "worker-9" in watched
