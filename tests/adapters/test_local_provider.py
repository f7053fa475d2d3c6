"""The local provider against a podman in memory: idempotent, resumable after a kill at any call, two clusters apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hyperpod.adapters.local.image import NodeImages
from hyperpod.adapters.local.provider import LocalProvider, container_name, new_instance_id, read_birth, replacement_id
from hyperpod.core.names import parse_instance_id
from hyperpod.errors import ConfigError, NotFound, ProviderError, ProviderUnavailable
from hyperpod.ports.provider import BirthStatus, InstanceStatus, NodeLaunch, Role
from tests.fakes.podman import FakePodman

NODES = ("head-1", "worker-1", "worker-2")


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def podman() -> FakePodman:
    return FakePodman()


@pytest.fixture
def provider(tmp_path: Path, podman: FakePodman) -> LocalProvider:
    return make_provider(tmp_path, podman)


def make_provider(home: Path, podman: FakePodman) -> LocalProvider:
    clock = Clock()
    source = home / "source"
    source.mkdir(exist_ok=True)
    images = NodeImages(podman, home, source)  # type: ignore[arg-type]
    return LocalProvider(home, podman, images, sleep=clock.sleep, monotonic=clock.monotonic)


def launches(cluster: str = "demo", nodes: tuple[str, ...] = NODES) -> list[NodeLaunch]:
    return [
        NodeLaunch(
            cluster=cluster,
            node=node,
            group=node.rpartition("-")[0],
            role=Role.HEAD if node.startswith("head") else Role.WORKER,
            files={"node.env": f"HP_NODE={node}\n"},
        )
        for node in nodes
    ]


def ready(provider: LocalProvider, cluster: str = "demo") -> dict[str, str]:
    """Make a cluster and return its instance ids by node."""
    provider.prepare(cluster, NODES)
    return {instance.node: instance.id for instance in provider.launch(launches(cluster))}


def test_launch_makes_one_machine_for_each_node_with_a_valid_identity(provider: LocalProvider) -> None:
    ids = ready(provider)

    assert list(ids) == list(NODES)
    assert all(parse_instance_id(identity) for identity in ids.values())
    assert {i.status for i in provider.observe("demo")} == {InstanceStatus.RUNNING}


def test_launching_again_changes_nothing(provider: LocalProvider, podman: FakePodman) -> None:
    ids = ready(provider)

    assert ready(provider) == ids
    assert podman.subcommands().count("run") == len(NODES)


def test_a_machine_that_was_made_but_never_ran_is_made_anew(provider: LocalProvider, podman: FakePodman) -> None:
    ready(provider)
    podman.node("worker-1").state = "created"

    provider.launch(launches())

    assert podman.node("worker-1").state == "running"


def test_a_machine_that_is_off_is_started_and_not_replaced(provider: LocalProvider) -> None:
    ids = ready(provider)
    provider.power_off(ids["worker-2"])

    assert {i.node: i.id for i in provider.launch(launches())} == ids


def test_a_failed_start_leaves_no_dead_machine_in_the_slot(provider: LocalProvider, podman: FakePodman) -> None:
    provider.prepare("demo", NODES)
    podman.break_next("run", "Error: no space left on device")

    with pytest.raises(ProviderError, match="no disk space"):
        provider.launch(launches())

    assert len(provider.launch(launches())) == len(NODES)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("subcommand", ["ps", "run", "network create", "network ls"])
def test_killed_at_any_call_the_same_launch_ends_the_same(
    provider: LocalProvider, podman: FakePodman, subcommand: str, when: str
) -> None:
    podman.kill_next(subcommand, when=when)

    with pytest.raises(KeyboardInterrupt):
        ready(provider)
    ids = ready(provider)

    assert len(podman.containers) == len(NODES) == len(ids)
    assert len(podman.networks) == 1


def test_a_node_sees_names_and_machines_of_all(provider: LocalProvider) -> None:
    ids = ready(provider)
    public = provider.cluster("demo").public
    config = json.loads((public / "resource_config.json").read_text())

    assert "worker-2\n" in (public / "hosts").read_text()
    assert config["ClusterConfig"]["ClusterName"] == "demo"
    assert [group["Name"] for group in config["InstanceGroups"]] == ["head", "worker"]
    assert config["InstanceGroups"][1]["Instances"][0] == {
        "InstanceName": "worker-1",
        "AgentIpAddress": provider.addresses("demo")["worker-1"],
        "CustomerIpAddress": provider.addresses("demo")["worker-1"],
        "InstanceId": ids["worker-1"],
    }


def test_only_the_head_node_reaches_the_provider(provider: LocalProvider, podman: FakePodman) -> None:
    ready(provider)

    assert "/run/hyperpod-cloud" in str(podman.node("head-1").arguments)
    assert "/run/hyperpod-cloud" not in str(podman.node("worker-1").arguments)


def test_no_node_sees_the_kernel_log_of_the_host_or_anothers_secrets(
    provider: LocalProvider, podman: FakePodman
) -> None:
    ready(provider)
    arguments = podman.node("worker-1").arguments

    assert "/dev/null:/dev/kmsg" in arguments
    assert not any("secrets" in word or "nodes/worker-2" in word for word in arguments)


def test_secrets_are_for_root_only_and_stay(provider: LocalProvider) -> None:
    ready(provider)
    home = provider.cluster("demo")
    key = (home.secrets / "munge.key").read_bytes()
    ready(provider)

    assert (home.secrets / "munge.key").read_bytes() == key
    assert home.secrets.stat().st_mode & 0o077 == 0
    assert home.config("worker-1").stat().st_mode & 0o077 == 0
    assert (home.config("worker-1") / "munge.key").stat().st_mode & 0o077 == 0


def test_replace_gives_the_slot_another_machine_with_the_same_name_address_and_host_key(
    provider: LocalProvider,
) -> None:
    ids = ready(provider)
    key = (provider.cluster("demo").config("worker-1") / "ssh_host_ed25519_key").read_text()
    before = {i.node: i.address for i in provider.observe("demo")}

    fresh = provider.replace("worker-1", ids["worker-1"], "t1")

    assert fresh.id != ids["worker-1"]
    assert (fresh.node, fresh.address) == ("worker-1", before["worker-1"])
    assert (provider.cluster("demo").config("worker-1") / "ssh_host_ed25519_key").read_text() == key
    instance_env = (provider.cluster("demo").config("worker-1") / "instance.env").read_text()
    assert fresh.id in instance_env


def test_replacing_twice_with_one_token_replaces_once(provider: LocalProvider, podman: FakePodman) -> None:
    ids = ready(provider)

    first = provider.replace("worker-1", ids["worker-1"], "t1")
    again = provider.replace("worker-1", ids["worker-1"], "t1")

    assert first.id == again.id
    assert podman.subcommands().count("run") == len(NODES) + 1


def test_replacing_a_machine_that_has_left_the_slot_answers_with_the_one_there(provider: LocalProvider) -> None:
    ids = ready(provider)
    fresh = provider.replace("worker-1", ids["worker-1"], "t1")

    assert provider.replace("worker-1", ids["worker-1"], "another token").id == fresh.id


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("subcommand", ["rm", "run", "ps"])
def test_killed_in_mid_replacement_the_same_call_ends_with_one_machine(
    provider: LocalProvider, podman: FakePodman, subcommand: str, when: str
) -> None:
    ids = ready(provider)
    podman.kill_next(subcommand, when=when)
    with pytest.raises(KeyboardInterrupt):
        provider.replace("worker-1", ids["worker-1"], "t1")

    fresh = provider.replace("worker-1", ids["worker-1"], "t1")

    assert fresh.id == replacement_id("demo", "worker-1", ids["worker-1"], "t1")
    assert len(podman.containers) == len(NODES)


def test_a_replacement_boots_the_image_of_its_cluster_even_when_the_code_has_changed(
    provider: LocalProvider, podman: FakePodman
) -> None:
    provider.prepare("demo", NODES)
    pinned = [replace(launch, image_reference="localhost/hyperpod/node:old") for launch in launches()]
    ids = {i.node: i.id for i in provider.launch(pinned)}

    provider.replace("worker-1", ids["worker-1"], "t1")

    assert podman.node("worker-1").arguments[-2] == "localhost/hyperpod/node:old"


def test_power_off_ends_only_when_nothing_runs(provider: LocalProvider, podman: FakePodman) -> None:
    ids = ready(provider)

    provider.power_off(ids["worker-1"])
    provider.power_off(ids["worker-1"])

    assert podman.node("worker-1").state == "exited"
    assert provider.observe("demo")[1].status is InstanceStatus.STOPPED


def test_a_machine_that_cannot_be_killed_is_never_called_dead(provider: LocalProvider, podman: FakePodman) -> None:
    ids = ready(provider)
    podman.break_next("kill", "Error: something")

    with pytest.raises(ProviderUnavailable, match="still runs"):
        provider.power_off(ids["worker-1"])


def test_power_off_of_a_frozen_machine_kills_before_it_thaws(provider: LocalProvider, podman: FakePodman) -> None:
    ids = ready(provider)
    podman.node("worker-1").state = "paused"

    provider.power_off(ids["worker-1"])

    assert "unpause" in podman.subcommands()
    assert "kill" not in podman.subcommands()


def test_power_off_of_a_machine_that_is_gone_is_done_and_of_one_that_never_was_is_not(
    provider: LocalProvider,
) -> None:
    ids = ready(provider)
    provider.terminate(ids["worker-1"])

    provider.power_off(ids["worker-1"])
    provider.terminate(ids["worker-1"])
    with pytest.raises(NotFound):
        provider.power_off("i-00000000000000000")


def test_after_a_reboot_the_record_of_the_boot_before_does_not_count(
    provider: LocalProvider, podman: FakePodman
) -> None:
    ids = ready(provider)
    podman.births["worker-1"] = "running"

    provider.reboot(ids["worker-1"])

    assert provider.observe("demo")[1].status is InstanceStatus.PENDING


def test_a_machine_whose_script_failed_is_failed_and_says_why(provider: LocalProvider, podman: FakePodman) -> None:
    podman.births["worker-1"] = "failed"
    ids = ready(provider)

    birth = provider.birth(ids["worker-1"])

    assert provider.observe("demo")[1].status is InstanceStatus.FAILED
    assert (birth.status, birth.exit_code, birth.tail) == (BirthStatus.FAILED, 9, ("boom",))


def test_the_record_of_a_birth_outlives_its_machine(provider: LocalProvider) -> None:
    ids = ready(provider)
    provider.terminate(ids["worker-1"])

    assert provider.birth(ids["worker-1"]).status is BirthStatus.OK


def test_a_damaged_record_hides_no_other_machine(provider: LocalProvider) -> None:
    ids = ready(provider)
    (provider.cluster("demo").instance(ids["worker-1"]) / "result.json").write_text('{"status": "bor')

    assert [i.status for i in provider.observe("demo")] == [
        InstanceStatus.RUNNING,
        InstanceStatus.PENDING,
        InstanceStatus.RUNNING,
    ]


def test_a_machine_without_a_record_is_not_born_yet(tmp_path: Path) -> None:
    assert read_birth(tmp_path, "i-1").status is BirthStatus.PENDING


def test_a_podman_that_fails_is_an_error_and_never_an_empty_cluster(
    provider: LocalProvider, podman: FakePodman
) -> None:
    ready(provider)
    podman.break_next("ps", "Error: database is locked")

    with pytest.raises(ProviderError):
        provider.observe("demo")


def test_a_state_podman_has_no_word_for_is_unknown(provider: LocalProvider, podman: FakePodman) -> None:
    ready(provider)
    podman.node("worker-1").state = "dreaming"

    assert provider.observe("demo")[1].status is InstanceStatus.UNKNOWN


def test_two_clusters_live_apart(provider: LocalProvider, podman: FakePodman) -> None:
    one, two = ready(provider, "one"), ready(provider, "two")

    provider.delete("one")

    assert not set(one.values()) & set(two.values())
    assert provider.clusters() == ["two"]
    assert {box.labels["hyperpod.cluster"] for box in podman.containers.values()} == {"two"}
    assert len(podman.networks) == 1


def test_names_of_clusters_and_nodes_can_never_meet_in_one_container_name() -> None:
    assert container_name("a-b", "c-1") != container_name("a", "b-c-1")


def test_delete_leaves_nothing_and_may_be_repeated(provider: LocalProvider, podman: FakePodman) -> None:
    ready(provider)

    provider.delete("demo")
    provider.delete("demo")

    assert (podman.containers, podman.networks, provider.clusters()) == ({}, {}, [])
    assert not provider.cluster("demo").exists()


def test_delete_can_keep_the_shared_files(provider: LocalProvider) -> None:
    ready(provider)
    home = provider.cluster("demo")
    (home.fsx / "checkpoint").write_text("precious")

    provider.delete("demo", keep_data=True)

    assert (home.fsx / "checkpoint").read_text() == "precious"
    assert sorted(entry.name for entry in home.path.iterdir()) == ["fsx", "home"]
    assert provider.clusters() == []


def test_a_deletion_that_was_interrupted_can_be_finished(provider: LocalProvider, podman: FakePodman) -> None:
    ready(provider)
    podman.kill_next("network rm", when="before")
    with pytest.raises(KeyboardInterrupt):
        provider.delete("demo")

    assert provider.clusters() == ["demo"]
    provider.delete("demo")
    assert provider.clusters() == []


def test_the_folder_with_the_groups_scripts_is_copied_and_replaced_as_a_whole(
    provider: LocalProvider, tmp_path: Path
) -> None:
    source = tmp_path / "scripts"
    (source / "lib").mkdir(parents=True)
    (source / "on_create.sh").write_text("one")
    (source / "lib/gone.sh").write_text("x")
    provider.prepare("demo", NODES)
    wanted = [
        replace(
            launch, lifecycle_source=str(source), files={**launch.files, "lifecycle/provisioning_parameters.json": "{}"}
        )
        for launch in launches()
    ]
    provider.configure(wanted)
    (source / "lib/gone.sh").unlink()
    (source / "on_create.sh").write_text("two")
    provider.configure(wanted)

    copied = provider.cluster("demo").config("worker-1") / "lifecycle"
    assert (copied / "on_create.sh").read_text() == "two"
    assert sorted(path.name for path in copied.rglob("*") if path.is_file()) == [
        "on_create.sh",
        "provisioning_parameters.json",
    ]


def test_a_folder_with_scripts_that_does_not_exist_is_named(provider: LocalProvider, tmp_path: Path) -> None:
    provider.prepare("demo", NODES)
    wanted = [replace(launch, lifecycle_source=str(tmp_path / "nowhere")) for launch in launches()]

    with pytest.raises(ConfigError, match="nowhere"):
        provider.launch(wanted)


def test_a_node_taken_out_of_the_cluster_is_forgotten(provider: LocalProvider) -> None:
    ids = ready(provider)
    provider.terminate(ids["worker-2"])

    provider.forget_node("demo", "worker-2")

    assert "worker-2" not in provider.addresses("demo")
    assert "worker-2" not in (provider.cluster("demo").public / "hosts").read_text()


def test_one_launch_is_for_one_cluster(provider: LocalProvider) -> None:
    with pytest.raises(ConfigError, match="one cluster"):
        provider.launch([*launches("one"), *launches("two")])


def test_a_connection_runs_commands_and_gives_a_shell(provider: LocalProvider, podman: FakePodman) -> None:
    ids = ready(provider)
    connection = provider.connect(ids["worker-1"])

    assert connection.run(["sinfo"], timeout_s=5).code == 0
    assert connection.shell_argv(user="ubuntu")[-2:] == ["/bin/bash", "-l"]
    assert "-it" not in connection.shell_argv(["id"], interactive=False)


def test_new_identities_differ() -> None:
    assert len({new_instance_id() for _ in range(50)}) == 50
