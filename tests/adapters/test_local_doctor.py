"""The doctor: names what is missing on machines that lack it, and the commands that bring it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hyperpod.adapters.local.doctor import Diagnosis, Machine, diagnose, fixes, this_machine
from hyperpod.errors import CommandError
from tests.adapters.test_local_provider import make_provider, ready
from tests.fakes.podman import FakePodman
from tests.fakes.process import FakeProcesses

GOOD = Machine(
    is_root=True,
    which=lambda name: f"/usr/bin/{name}",
    exists=lambda _path: True,
    free_disk_bytes=lambda _path: 50 * 1024**3,
    free_memory_bytes=20 * 1024**3,
    hard_file_limit=20000,
    filesystems="nodev overlay\n",
    cgroup_mounts="cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
)


def look(machine: Machine, *, info: str = "4.3.1 netavark\n") -> dict[str, Diagnosis]:
    processes = FakeProcesses()
    processes.on("podman", "--runtime", "runc", "info", reply=info)
    processes.on("podman", "--runtime", "runc", "ps", reply="[]")
    return {diagnosis.name: diagnosis for diagnosis in diagnose(machine, Path("/tmp/hp"), processes)}


def test_a_good_machine_lacks_nothing() -> None:
    found = look(GOOD)

    assert [name for name, diagnosis in found.items() if not diagnosis.is_ok] == []
    assert fixes(list(found.values())) == []


def test_missing_programs_come_by_one_installation() -> None:
    bare = replace(GOOD, which=lambda _name: None, exists=lambda path: path == "/dev/fuse")
    found = look(bare)
    commands = fixes(list(found.values()))

    assert commands[0] == ("apt-get", "update")
    assert len(commands) == 2
    assert {"podman", "runc", "iptables", "mmdebstrap", "netavark"} <= set(commands[1])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("root", lambda m: replace(m, is_root=False)),
        ("cgroups", lambda m: replace(m, cgroup_mounts="")),
        ("overlay", lambda m: replace(m, filesystems="ext4\n")),
        ("open files", lambda m: replace(m, hard_file_limit=1024)),
        ("disk", lambda m: replace(m, free_disk_bytes=lambda _path: 1024**3)),
        ("memory", lambda m: replace(m, free_memory_bytes=512 * 1024**2)),
        ("fuse", lambda m: replace(m, exists=lambda path: path != "/dev/fuse")),
        ("podman", lambda m: replace(m, which=lambda n: None if n == "podman" else f"/bin/{n}")),
    ],
)
def test_each_lack_is_named_alone(name: str, change: Callable[[Machine], Machine]) -> None:
    wrong = [diagnosis for diagnosis in look(change(GOOD)).values() if not diagnosis.is_ok]

    assert [diagnosis.name for diagnosis in wrong] == [name]
    assert wrong[0].message


def test_a_podman_that_does_not_answer_is_named() -> None:
    processes = FakeProcesses({("podman",): CommandError(["podman"], 125, "Error: database is damaged")})

    found = {d.name: d for d in diagnose(GOOD, Path("/tmp/hp"), processes)}

    assert not found["podman works"].is_ok
    assert "damaged" in found["podman works"].message


def test_another_network_backend_is_named_with_the_way_to_change_it() -> None:
    found = look(GOOD, info="4.3.1 cni\n")["podman works"]

    assert not found.is_ok
    assert "network_backend" in found.message


def test_a_plugin_that_is_listed_twice_is_named_with_its_cluster(tmp_path: Path) -> None:
    from hyperpod.ports.process import Completed

    podman = FakePodman()
    ready(make_provider(tmp_path, podman))
    podman.exec_replies["cat"] = Completed(
        "optional /x/hyperpod.so\n# optional hyperpod.so\nrequired hyperpod.so\n", "", 0
    )
    no_podman_info = replace(GOOD, which=lambda name: f"/usr/bin/{name}")
    podman._info = lambda _words, _input: Completed("4.3.1 netavark\n", "", 0)  # type: ignore[attr-defined]

    found = [d for d in diagnose(no_podman_info, tmp_path, podman) if d.name == "plugin"]

    assert "demo lists hyperpod.so 2 times" in found[0].message


def test_the_fix_of_a_missing_kernel_part_is_run_once() -> None:
    lack = Diagnosis("a", False, "x", ("modprobe", "overlay"))

    assert fixes([lack, lack, Diagnosis("b", True, "y", ("never",))]) == [("modprobe", "overlay")]


def test_looks_at_this_machine_without_changing_it() -> None:
    machine = this_machine()

    assert machine.free_memory_bytes > 0
    assert machine.free_disk_bytes(Path("/does/not/exist/yet")) > 0
