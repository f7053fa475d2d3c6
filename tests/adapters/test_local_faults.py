"""Faults on purpose: what is done to a node, that it can be taken back, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hyperpod.adapters.local import machine_faults, neuron_faults
from hyperpod.adapters.local.fault_kinds import FAULTS, known_fault, whole_argument
from hyperpod.adapters.local.faults import (
    LocalFaults,
    choose_task,
    kernel_record,
    next_sequence,
    peer_name,
)
from hyperpod.errors import InvalidState, NotFound, UsageError
from hyperpod.ports.process import Completed
from tests.adapters.test_local_provider import make_provider, ready
from tests.fakes.podman import FakePodman

PIDS = """PID      JOBID    STEPID   LOCALID GLOBALID
   700       5    batch         -        -
   701       5    batch         0        0
   810       5    0             1        3
   800       5    0             0        2
"""


class Scene:
    """A cluster in memory, and what was done to it."""

    def __init__(self, home: Path) -> None:
        self.podman = FakePodman()
        self.provider = make_provider(home, self.podman)
        ready(self.provider)
        self.faults = LocalFaults(self.provider, self.podman, monotonic=lambda: 12.5)
        self.podman.calls.clear()

    def inside(self) -> list[list[str]]:
        """Return the commands that were run in a node, without those that only look."""
        commands = [call[call.index("exec") + 1 :] for call in self.podman.calls if "exec" in call[:5]]
        return [argv for argv in commands if "test" not in argv[:3] and "is-active" not in argv]

    def in_network(self) -> list[list[str]]:
        """Return the commands that were run in a node's network."""
        return [call[4:] for call in self.podman.calls if call[0] == "nsenter"]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_power_off_cuts_the_link_before_the_power(scene: Scene) -> None:
    scene.faults.inject("demo", "worker-1", "power-off")

    words = [call[0] if call[0] == "nsenter" else call[3] for call in scene.podman.calls]
    assert words.index("nsenter") < words.index("kill")
    assert scene.podman.node("worker-1").state == "exited"


def test_power_comes_back(scene: Scene) -> None:
    scene.faults.inject("demo", "worker-1", "power-off")
    scene.faults.undo("demo", "worker-1", "power-off")

    assert scene.podman.node("worker-1").state == "running"


def test_a_cut_link_drops_everything_but_loopback_and_is_mended(scene: Scene) -> None:
    scene.faults.inject("demo", "worker-1", "network-cut")
    scene.faults.undo("demo", "worker-1", "network-cut")

    rules = [" ".join(argv) for argv in scene.in_network()]
    assert any("-C INPUT ! -i lo" in rule for rule in rules)
    assert any("-D OUTPUT ! -o lo" in rule and "DROP" in rule for rule in rules)


def test_a_kernel_line_has_the_form_of_the_kernels_own(scene: Scene) -> None:
    written: list[str | None] = []

    def tee(_argv: Sequence[str], text: str | None) -> Completed:
        written.append(text)
        return Completed("", "", 0)

    scene.podman.exec_replies["tail"] = Completed("3,41,99,-;older\n", "", 0)
    scene.podman.exec_replies["tee"] = tee
    scene.faults.inject("demo", "worker-1", "kernel-line", "NVRM: Xid (PCI:0000:65:00): 79, fallen off the bus")

    assert written == ["3,42,12500000,-;NVRM: Xid (PCI:0000:65:00): 79, fallen off the bus\n"]


def test_records_are_numbered_from_one() -> None:
    assert next_sequence("") == 1
    assert next_sequence(kernel_record("x", sequence=7, monotonic_us=1)) == 8


@pytest.mark.parametrize("text", ["two\nlines", "bell\a"])
def test_a_kernel_line_is_one_line(scene: Scene, text: str) -> None:
    with pytest.raises(UsageError):
        scene.faults.inject("demo", "worker-1", "kernel-line", text)


def test_kills_a_rank_and_not_the_batch_script(scene: Scene) -> None:
    scene.podman.exec_replies["scontrol"] = Completed(PIDS, "", 0)

    done = scene.faults.inject("demo", "worker-1", "kill-task", "5")

    assert scene.inside()[-1][-3:] == ["kill", "-KILL", "800"]
    assert "job 5 step 0 task 2" in done


def test_kills_the_batch_script_when_there_is_nothing_else() -> None:
    task = choose_task("PID JOBID STEPID LOCALID GLOBALID\n701 5 batch 0 0\n")

    assert task is not None
    assert task.pid == 701


@pytest.mark.parametrize("listing", ["", "PID JOBID STEPID LOCALID GLOBALID\n", "slurmd: error\n"])
def test_without_a_task_there_is_nothing_to_kill(listing: str) -> None:
    assert choose_task(listing) is None


def test_a_job_that_is_not_there_is_refused(scene: Scene) -> None:
    with pytest.raises(InvalidState, match="job 77"):
        scene.faults.inject("demo", "worker-1", "kill-task", "77")


@pytest.mark.parametrize(("fault", "unit"), [("kill-slurmd", "slurmd"), ("kill-agent", "hyperpod-agent")])
def test_a_killed_daemon_stays_dead_and_its_children_live(scene: Scene, fault: str, unit: str) -> None:
    scene.faults.inject("demo", "worker-1", fault)

    commands = [" ".join(argv[1:]) for argv in scene.inside()]
    drop_in = f"/run/systemd/system/{unit}.service.d/zz-dead.conf"
    assert commands[0].endswith(f"printf '[Unit]\\nRefuseManualStart=yes\\n[Service]\\nRestart=no\\n' >{drop_in}")
    assert commands[1:] == ["systemctl daemon-reload", f"systemctl kill --kill-whom=main --signal=KILL {unit}.service"]
    scene.faults.undo("demo", "worker-1", fault)
    assert [" ".join(argv[1:]) for argv in scene.inside()][3:] == [
        f"rm -f {drop_in}",
        "systemctl daemon-reload",
        f"systemctl start --no-block {unit}.service",
    ]


def test_a_full_disk_is_a_small_one_on_top(scene: Scene) -> None:
    scene.faults.inject("demo", "worker-1", "disk-full")

    commands = [" ".join(argv[1:]) for argv in scene.inside()]
    assert any(command.startswith("mount -t tmpfs") and command.endswith("/var/spool/slurmd") for command in commands)
    assert any(command.startswith("dd if=/dev/zero of=/var/spool/slurmd/") for command in commands)


def test_a_disk_is_made_full_once(scene: Scene) -> None:
    scene.podman.exec_replies["cat"] = Completed("hyperpod-fault /var/spool/slurmd tmpfs rw 0 0\n", "", 0)

    scene.faults.inject("demo", "worker-1", "disk-full")

    assert not any("mount" in argv for argv in scene.inside())


@pytest.mark.parametrize("folder", ["relative", "/", "/proc", "/a/../etc"])
@pytest.mark.parametrize("fault", ["disk-full", "read-only", "fs-hang"])
def test_folders_that_would_break_more_than_meant_are_refused(scene: Scene, fault: str, folder: str) -> None:
    with pytest.raises(UsageError):
        scene.faults.inject("demo", "worker-1", fault, folder)

    assert scene.inside() == []


def test_a_hanging_file_system_is_one_whose_server_stands_still(scene: Scene) -> None:
    scene.faults.inject("demo", "worker-1", "fs-hang")
    scene.podman.exec_replies["cat"] = Completed(MOUNTS["fs-hang"], "", 0)
    scene.faults.undo("demo", "worker-1", "fs-hang")

    commands = [" ".join(argv[1:]) for argv in scene.inside() if "cat" not in argv]
    assert commands == [
        "bindfs -o nonempty /fsx /fsx",
        "pkill -STOP -x bindfs",
        "pkill -CONT -x bindfs",
        "umount --lazy /fsx",
    ]


def test_a_clock_is_shown_wrong_to_the_programs_that_compare_clocks(scene: Scene) -> None:
    written: list[str | None] = []
    scene.podman.exec_replies["tee"] = lambda _argv, text: (written.append(text), Completed("", "", 0))[1]

    scene.faults.inject("demo", "worker-1", "clock-skew", "-30")

    assert len(written) == 2
    assert all(text is not None and "FAKETIME=-30s" in text for text in written)
    with pytest.raises(UsageError):
        scene.faults.inject("demo", "worker-1", "clock-skew", "soon")


def test_freezing_twice_is_freezing_once(scene: Scene) -> None:
    scene.faults.inject("demo", "worker-1", "freeze")
    scene.faults.inject("demo", "worker-1", "freeze")

    assert scene.podman.subcommands().count("pause") == 1


def test_what_a_fault_needs_must_be_given(scene: Scene) -> None:
    with pytest.raises(UsageError, match="TEXT"):
        scene.faults.inject("demo", "worker-1", "kernel-line")


def test_an_unknown_fault_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="power-off"):
        known_fault("explode")


def test_a_node_that_is_not_there_or_off_is_refused(scene: Scene) -> None:
    with pytest.raises(NotFound):
        scene.faults.inject("demo", "worker-9", "freeze")
    scene.faults.inject("demo", "worker-1", "power-off")
    with pytest.raises(InvalidState, match="exited"):
        scene.faults.inject("demo", "worker-1", "freeze")


def test_undoing_on_a_node_that_was_replaced_is_done(scene: Scene) -> None:
    scene.provider.delete("demo")

    for name, fault in FAULTS.items():
        if fault.can_undo:
            scene.faults.undo("demo", "worker-1", name)


def test_what_has_happened_cannot_be_undone(scene: Scene) -> None:
    with pytest.raises(InvalidState):
        scene.faults.undo("demo", "worker-1", "kill-task")


LINKS = """1: lo: <LOOPBACK,UP> mtu 65536
7: veth3@if2: <BROADCAST,MULTICAST,UP> mtu 1500
71: veth9@if2: <BROADCAST,MULTICAST,UP> mtu 1500
"""


def test_a_link_goes_down_at_its_other_end(scene: Scene) -> None:
    scene.podman.exec_replies["cat"] = Completed("7\n", "", 0)
    scene.podman.routes = LINKS
    scene.faults.inject("demo", "worker-1", "link-down")
    scene.faults.undo("demo", "worker-1", "link-down")

    assert [call[4:] for call in scene.podman.calls if call[:3] == ["ip", "link", "set"]] == [
        ["veth3", "down"],
        ["veth3", "up"],
    ]


def test_an_interface_is_found_by_its_whole_number() -> None:
    assert peer_name(LINKS, "7") == "veth3"
    assert peer_name(LINKS, "71") == "veth9"
    assert peer_name(LINKS, "17") is None


def test_lost_packets_are_a_share_in_both_directions_and_only_our_rules_are_taken_back(scene: Scene) -> None:
    listing = (
        "-P INPUT ACCEPT\n-A INPUT -j OTHER\n"
        '-A INPUT ! -i lo -m statistic --mode random --probability 0.1 -m comment --comment "hyperpod-loss" -j DROP\n'
    )
    scene.faults.inject("demo", "worker-1", "packet-loss", "25%")
    rules = [" ".join(argv) for argv in scene.in_network()]
    assert sum("-I INPUT ! -i lo" in rule and "--probability 0.2500" in rule for rule in rules) == 1
    assert sum("-I OUTPUT ! -o lo" in rule for rule in rules) == 1
    (found,) = machine_faults.lost_rules(listing)
    assert found[:4] == ["INPUT", "!", "-i", "lo"]
    assert "hyperpod-loss" in found


@pytest.mark.parametrize(
    ("fault", "argument", "unit", "words"),
    [
        ("link-flap", "3,10", "hyperpod-fault-flap", ["3", "10"]),
        ("memory-pressure", "2G", "hyperpod-fault-memory", ["2048"]),
        ("cpu-hog", "4", "hyperpod-fault-hog", ["4"]),
    ],
)
def test_what_goes_on_by_itself_is_a_unit_that_is_stopped_by_name(
    scene: Scene, fault: str, argument: str, unit: str, words: list[str]
) -> None:
    scene.faults.inject("demo", "worker-1", fault, argument)
    started = scene.inside()[-1]
    assert started[1] == "systemd-run"
    assert f"--unit={unit}" in started
    assert started[-len(words) :] == words
    scene.faults.undo("demo", "worker-1", fault, argument)
    assert scene.inside()[-1][1:] == ["systemctl", "stop", f"{unit}.service"]


def test_a_frozen_daemon_is_stopped_and_goes_on(scene: Scene) -> None:
    scene.faults.inject("demo", "worker-1", "freeze-daemon", "munged")
    scene.faults.undo("demo", "worker-1", "freeze-daemon", "munged")
    assert [" ".join(argv[1:]) for argv in scene.inside()] == [
        "systemctl kill --kill-whom=main --signal=STOP munge.service",
        "systemctl kill --kill-whom=main --signal=CONT munge.service",
    ]


def test_a_file_of_the_device_tree_is_changed_below_the_nodes_own_tree(scene: Scene) -> None:
    done = scene.faults.inject("demo", "worker-1", "sysfs", "/sys/class/net/eth1/carrier=0")
    assert scene.inside()[-1][-4:] == [
        machine_faults.SYSFS, "/run/hyperpod/sysfs-before", "class/net/eth1/carrier", "0",
    ]  # fmt: skip
    assert "class/net/eth1/carrier says '0'" in done


@pytest.mark.parametrize(
    ("fault", "argument"),
    [
        ("sysfs", "class/net/eth0/carrier"),
        ("sysfs", "../../etc/passwd=x"),
        ("sysfs", "class/../x=1"),
        ("sysfs", "=1"),
        ("sysfs", "class/net/eth0/carrier=a\nb"),
        ("packet-loss", "0"),
        ("packet-loss", "much"),
        ("link-flap", "0,1"),
        ("link-flap", "soon"),
        ("memory-pressure", "all"),
        ("memory-pressure", "0M"),
        ("cpu-hog", "-1"),
        ("cpu-hog", "²"),
        ("kill-task", "²"),
        ("network-slow", "fast"),
        ("network-slow", "0kbit"),
        ("clock-skew", "99999999999999"),
        ("disk-full", "/"),
        ("disk-full", "//etc/../"),
        ("freeze-daemon", "init"),
        ("power-off", "now"),
        ("gpus", "²"),
        ("neuron", "0"),
        ("neuron-fault", "melted"),
        ("neuron-fault", "gone:64"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(scene: Scene, fault: str, argument: str) -> None:
    with pytest.raises(UsageError):
        scene.faults.inject("demo", "worker-1", fault, argument)
    assert scene.inside() == []


def test_values_of_a_device_tree_are_put_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, kept = tmp_path / "sysfs", tmp_path / "before"
    monkeypatch.setattr(machine_faults, "SYSFS", str(tree))
    monkeypatch.setattr(machine_faults, "BEFORE", str(kept))

    def run(*argv: str, check: bool = True) -> str:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=check).stdout

    state = tree / "class/infiniband/mlx5_0/ports/1/state"
    path = "class/infiniband/mlx5_0/ports/1/state"
    machine_faults.put_value(run, f"{path}=4: ACTIVE")
    machine_faults.put_value(run, f"{path}=1: DOWN")
    machine_faults.put_value(run, f"{path}=1: DOWN")
    assert state.read_text() == "1: DOWN\n"
    machine_faults.take_values_back(run, "class/other")
    assert state.read_text() == "1: DOWN\n"
    machine_faults.take_values_back(run, f"{path}=1: DOWN")
    assert state.read_text() == "4: ACTIVE\n"
    machine_faults.take_values_back(run, "")
    assert state.read_text() == "4: ACTIVE\n"
    machine_faults.put_value(run, "class/net/new=1")
    machine_faults.take_values_back(run, "")
    assert not (tree / "class/net/new").exists()
    machine_faults.take_values_back(run, "")


def test_test_gpus_are_a_library_built_on_the_node(scene: Scene) -> None:
    scene.faults.inject("demo", "worker-1", "gpus", "4")

    commands = [" ".join(argv[1:]) for argv in scene.inside()]
    assert commands[0].startswith("gcc ")
    assert commands[0].endswith("/doubles/nvml.c -o /usr/local/lib/libnvidia-ml.so.1")
    assert "mv /usr/local/share/hyperpod-test/nvml.state.new /usr/local/share/hyperpod-test/nvml.state" in commands
    assert commands[-1] == "systemctl restart --no-block hyperpod-agent.service"
    scene.faults.undo("demo", "worker-1", "gpus")
    assert any("rm -f /usr/local/lib/libnvidia-ml.so.1" in " ".join(argv) for argv in scene.inside())


def test_a_fault_of_a_gpu_goes_before_what_the_machine_has(scene: Scene) -> None:
    written: list[str | None] = []

    def tee(_argv: Sequence[str], text: str | None) -> Completed:
        written.append(text)
        return Completed("", "", 0)

    scene.podman.exec_replies["cat"] = Completed("count=8\n", "", 0)
    scene.podman.exec_replies["tee"] = tee

    done = scene.faults.inject("demo", "worker-1", "gpu-fault", "hot:3")

    assert written == ["gpu3.temperature=95\ngpu3.margin=-6\ncount=8\n"]
    assert done == "worker-1: its GPUs have the fault hot:3"
    scene.faults.undo("demo", "worker-1", "gpu-fault")
    assert [argv[1:] for argv in scene.inside()][-1] == ["rm", "-f", "/run/hyperpod-test/nvml.state"]


def test_a_gpu_that_is_not_there_cannot_break(scene: Scene) -> None:
    scene.podman.exec_replies["cat"] = Completed("", "No such file", 1)

    with pytest.raises(InvalidState, match="test GPUs") as caught:
        scene.faults.inject("demo", "worker-1", "gpu-fault", "lost:3")
    assert caught.value.hint == "hyperpod inject gpus worker-1"


@pytest.mark.parametrize(
    "text", ["melted", "lost:x", "lost:64", "lost:-1", "a=b\nc=d", "=3", "$(reboot)", "gpu0.x=`x`"]
)
def test_what_is_no_fault_of_a_gpu_is_refused(scene: Scene, text: str) -> None:
    with pytest.raises(UsageError, match="unknown fault of a GPU"):
        scene.faults.inject("demo", "worker-1", "gpu-fault", text)


@pytest.mark.parametrize("count", ["0", "65", "many", "-1", "8 "])
def test_a_node_has_some_gpus(scene: Scene, count: str) -> None:
    with pytest.raises(UsageError, match="1 to 64"):
        scene.faults.inject("demo", "worker-1", "gpus", count)


@pytest.mark.parametrize("name", FAULTS)
def test_what_every_fault_does_by_itself_fits_it(name: str) -> None:
    kind = FAULTS[name]
    if kind.default is None:
        with pytest.raises(UsageError, match=f"{name} needs {kind.argument}"):
            whole_argument(name, "")
    else:
        assert whole_argument(name, "") == kind.default


@pytest.mark.parametrize("name", [name for name, kind in FAULTS.items() if kind.argument == "FOLDER"])
def test_a_folder_that_is_not_there_is_told(scene: Scene, name: str) -> None:
    scene.podman.exec_replies["test"] = Completed("", "", 1)

    with pytest.raises(UsageError, match="worker-1 has no folder /gone"):
        scene.faults.inject("demo", "worker-1", name, "/gone")
    assert scene.inside() == []


@pytest.mark.parametrize("name", FAULTS)
def test_inside_a_frozen_node_nothing_can_be_broken_or_mended(scene: Scene, name: str) -> None:
    scene.faults.inject("demo", "worker-1", "freeze")
    scene.podman.calls.clear()
    default = FAULTS[name].default
    argument = "class/net/x=1" if default is None else default
    if FAULTS[name].is_outside:
        scene.faults.inject("demo", "worker-1", name, argument)
        return
    with pytest.raises(InvalidState, match="it is frozen") as caught:
        scene.faults.inject("demo", "worker-1", name, argument)
    assert caught.value.hint == "hyperpod inject freeze worker-1 --undo"
    if FAULTS[name].can_undo:
        with pytest.raises(InvalidState, match="it is frozen"):
            scene.faults.undo("demo", "worker-1", name)
    assert scene.inside() == []


@pytest.mark.parametrize("name", ["kill-slurmd", "kill-agent"])
def test_a_daemon_that_does_not_run_cannot_die(scene: Scene, name: str) -> None:
    scene.podman.exec_replies["systemctl"] = Completed("", "", 3)
    scene.podman.exec_replies["test"] = Completed("", "", 1)

    with pytest.raises(InvalidState, match="not running on worker-1"):
        scene.faults.inject("demo", "worker-1", name)


def test_test_neuron_devices_are_a_tree_and_tools_that_outlive_a_boot(scene: Scene) -> None:
    written: dict[str, str] = {}

    def tee(argv: Sequence[str], text: str | None) -> Completed:
        written[argv[-1].removesuffix(".new")] = text or ""
        return Completed("", "", 0)

    scene.podman.exec_replies["tee"] = tee
    scene.faults.inject("demo", "worker-1", "neuron", "2")

    commands = [" ".join(argv[1:]) for argv in scene.inside()]
    assert commands[0].endswith("/doubles/neuron-monitor /usr/local/bin/neuron-monitor")
    assert "systemd-tmpfiles --create /etc/tmpfiles.d/hyperpod-test-neuron.conf" in commands
    assert commands[-1] == "systemctl restart --no-block hyperpod-agent.service"
    assert json.loads(written["/usr/local/share/hyperpod-test/neuron.json"])["devices"] == 2
    lines = written["/etc/tmpfiles.d/hyperpod-test-neuron.conf"].splitlines()
    base = f"{machine_faults.SYSFS}/devices/virtual/neuron_device"
    assert f"f {base}/neuron1/core_count 0644 root root - 2" in lines
    assert f"f {base}/neuron0/stats/hardware/mem_ecc_uncorrected/total 0644 root root - 0" in lines
    assert not any("neuron2" in line for line in lines)


@pytest.mark.parametrize("word", neuron_faults.WORDS)
def test_every_fault_of_a_neuron_device_is_taken_back(scene: Scene, word: str) -> None:
    scene.podman.exec_replies["cat"] = Completed('{"devices": 2}', "", 0)
    written: list[str | None] = []
    scene.podman.exec_replies["tee"] = lambda _argv, text: (written.append(text), Completed("", "", 0))[1]

    done = scene.faults.inject("demo", "worker-1", "neuron-fault", f"{word}:1")

    fault = neuron_faults.WORDS[word]
    commands = [argv[1:] for argv in scene.inside()]
    assert done == f"worker-1: its Neuron devices have the fault {word}:1"
    assert len(commands) == len(fault.values) + 4 * bool(fault.state) + fault.is_gone
    assert all("neuron1/" in argv[-2] for argv in commands[: len(fault.values)])
    if fault.state:
        assert json.loads(written[0] or "") == {"devices": 2, **fault.state}
    scene.faults.undo("demo", "worker-1", "neuron-fault", f"{word}:1")
    assert [argv[1] for argv in scene.inside()[len(commands) :]] == ["sh"] * len(fault.values) + [
        "rm",
        "systemd-tmpfiles",
    ]


def test_a_neuron_device_that_is_not_there_cannot_break(scene: Scene) -> None:
    scene.podman.exec_replies["test"] = Completed("", "", 1)

    with pytest.raises(InvalidState, match="test device 3") as caught:
        scene.faults.inject("demo", "worker-1", "neuron-fault", "gone:3")
    assert caught.value.hint == "hyperpod inject neuron worker-1"


MOUNTS = {
    "": "overlay / overlay rw 0 0\n",
    "real": "tmpfs /tmp tmpfs rw,nosuid,size=12000000k 0 0\n/dev/sda1 /fsx ext4 rw 0 0\n",
    "disk-full": "hyperpod-fault /tmp tmpfs rw,size=64k 0 0\nhyperpod-fault /fsx tmpfs rw,size=64k 0 0\n",
    "read-only": "overlay /tmp overlay ro,relatime 0 0\n/dev/sda1 /fsx ext4 ro 0 0\n",
    "fs-hang": "/tmp /tmp fuse rw,user_id=0 0 0\nbindfs /fsx fuse.bindfs rw 0 0\n",
}


@pytest.mark.parametrize("folder", ["/tmp", "/fsx"])
@pytest.mark.parametrize("fault", ["disk-full", "read-only", "fs-hang"])
def test_undoing_never_takes_a_real_file_system_away(scene: Scene, fault: str, folder: str) -> None:
    for seen, is_taken in ((("", "real"), False), (("real", fault), True), ((fault, "real"), False)):
        scene.podman.exec_replies["cat"] = Completed("".join(MOUNTS[name] for name in seen), "", 0)
        scene.podman.calls.clear()
        scene.faults.undo("demo", "worker-1", fault, folder)
        assert (["umount", "--lazy", folder] in [argv[1:] for argv in scene.inside()]) == is_taken


def test_a_file_system_that_is_there_is_not_filled(scene: Scene) -> None:
    scene.podman.exec_replies["cat"] = Completed(MOUNTS["real"], "", 0)
    scene.faults.inject("demo", "worker-1", "disk-full", "/tmp")
    assert [argv[1] for argv in scene.inside()][-2:] == ["mount", "dd"]
