"""``hyperpod checks``: the list, the descriptions, and one run by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from surroundings import Fakes

from hyperpod.health import registry
from hyperpod.health.check import Ports
from hyperpod.health.users import FOLDER
from hyperpod.ports.host import DiskUsage, FileKind, FileStat
from tests.fakes.host import FakeHost, FakeMunge

MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n"
XID = "4,1,5000000,-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"


@pytest.fixture
def node(fakes: Fakes, tmp_path: Path) -> FakeHost:
    """Makes this machine a worker with root at its keyboard."""
    host = FakeHost(files={"/proc/meminfo": MEMINFO}, disks={"/": DiskUsage(10**12, 10**11 * 5, 1000, 900)})
    fakes.place.agent_config = tmp_path / "agent.json"
    fakes.place.node_host = lambda: host
    fakes.place.node_ports = lambda host, facts: Ports(host, FakeMunge(), facts)
    say(fakes)
    return host


def say(fakes: Fakes, **changes: Any) -> None:
    """Write the agent's configuration."""
    config = {
        "cluster": "demo",
        "node": "worker-1",
        "group": "worker",
        "role": "worker",
        "head_address": "10.0.0.2",
        "socket_path": str(fakes.place.agent_config.parent / "none.sock"),
        "kmsg_path": str(fakes.place.agent_config.parent / "kmsg"),
        "boot_id_path": str(fakes.place.agent_config),
    }
    fakes.place.agent_config.write_text(json.dumps({**config, **changes}))


def test_the_list_has_every_check_with_its_rhythm(fakes: Fakes) -> None:
    result = fakes.run("checks", "list")
    assert result.code == 0
    for name in registry.names():
        assert name in result.out
    rows = {row["name"]: row for row in json.loads(fakes.run("checks", "list", "--output", "json").out)}
    assert rows["disk"]["damping"] == [2, 3]
    assert rows["disk"]["mode"] == "act"
    assert rows["service"]["stages"] == ["before the first job", "quick"]
    assert rows["plugin"]["roles"] == ["worker"]
    on_controller = {name for name, row in rows.items() if row["runs_on"] == "controller"}
    assert on_controller == {"group", "slurm", "ec2_status", "ec2_event", "ec2_spot", "deep"}
    line = next(line for line in result.out.splitlines() if line.startswith("ec2_spot"))
    assert "controller" in line


def test_on_a_node_the_list_shows_the_policy_in_force(fakes: Fakes, node: FakeHost) -> None:
    say(fakes, health={"default": {"mode": "observe"}, "disk": {"mode": "act", "damping": [3, 5]}})
    rows = {row["name"]: row for row in json.loads(fakes.run("checks", "list", "--output", "json").out)}
    assert rows["disk"]["mode"], rows["disk"]["damping"] == ("act", [3, 5])
    always = {"lease", "agent", "user"}
    assert {rows[name]["mode"] for name in rows if name not in {"disk", *always}} == {"observe"}
    assert {rows[name]["mode"] for name in always} == {"act"}


@pytest.mark.parametrize("name", registry.names())
def test_a_description_has_everything(fakes: Fakes, name: str) -> None:
    result = fakes.run("checks", "describe", name)
    about = registry.about(name)
    assert result.code == 0
    for text in (about.title, about.reads, about.means, about.does, about.source, *about.codes.values()):
        assert text in result.out
    answer = json.loads(fakes.run("checks", "describe", name, "--output", "json").out)
    assert answer["codes"] == dict(registry.codes(name))
    assert all(row["why"] for row in answer["settings"])


def test_a_description_on_a_node_shows_what_is_in_force(fakes: Fakes, node: FakeHost) -> None:
    say(fakes, health={"disk": {"fatal_percent": 7.5}})
    answer = json.loads(fakes.run("checks", "describe", "disk", "--output", "json").out)
    (row,) = (row for row in answer["settings"] if row["name"] == "fatal_percent")
    assert (row["default"], row["in_force"]) == (2.0, 7.5)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("slurm", "It has a Mode, no settings."),
        ("deep", "It has a Mode; its settings are in Hyperpod.Health.Deep."),
        ("lease", "It has no settings; its mode stays act: it drains nothing"),
    ],
)
def test_a_description_says_what_can_be_set_where_there_are_no_settings(fakes: Fakes, name: str, text: str) -> None:
    assert text in fakes.run("checks", "describe", name).out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("group", "the controller compares the nodes of each group"),
        ("slurm", "the controller reads Slurm's reasons"),
        ("ec2_spot", "the controller asks EC2 for it: hyperpod why NODE"),
        ("deep", "hyperpod health deep begins one"),
        ("lease", "the agent watches it all the time: hyperpod health shows it"),
        ("user", "/etc/hyperpod/checks.d every minute"),
    ],
)
def test_what_is_found_without_a_run_says_so_in_one_line(fakes: Fakes, name: str, text: str) -> None:
    result = fakes.run("checks", "run", name)
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert f"{name} cannot be run by hand" in line
    assert text in line


@pytest.mark.parametrize("command", ["describe", "run"])
def test_an_unknown_check_is_answered_with_the_nearest_names(fakes: Fakes, command: str) -> None:
    result = fakes.run("checks", command, "memry")
    assert result.code == 2
    assert "there is no check 'memry'; did you mean memory" in result.err


def test_a_machine_that_is_no_node_says_where_to_run_it(fakes: Fakes) -> None:
    result = fakes.run("checks", "run", "disk")
    assert result.code == 2
    assert "hyperpod ssh NODE -- hyperpod checks run disk" in result.err


def test_only_root_may_run_checks(fakes: Fakes, node: FakeHost) -> None:
    fakes.place.is_root = False
    assert "sudo" in fakes.run("checks", "run", "disk").err


def test_a_healthy_node_ends_with_zero(fakes: Fakes, node: FakeHost) -> None:
    result = fakes.run("checks", "run", "memory", "disk")
    expected = ["OK memory: nothing found", "  counted: memory_mib 15625", "OK disk: nothing found"]
    assert (result.code, result.out.splitlines()) == (0, expected)


def test_the_worst_finding_is_the_exit_code(fakes: Fakes, node: FakeHost) -> None:
    node.disks["/"] = DiskUsage(10**12, 10**7, 1000, 900)
    result = fakes.run("checks", "run", "disk", "--output", "json")
    (check,) = json.loads(result.out)["checks"]
    assert (result.code, check["severity"]) == (2, "FATAL")
    assert check["findings"][0]["counts"] == "when seen 2 of 3"


def test_policy_holds_for_a_run_by_hand(fakes: Fakes, node: FakeHost) -> None:
    node.disks["/"] = DiskUsage(10**12, 10**7, 1000, 900)
    say(fakes, health={"disk": {"mode": "observe"}})
    result = fakes.run("checks", "run", "disk")
    assert result.code == 1
    assert "would have drained the node" in result.out


def test_a_check_that_fails_is_unknown(fakes: Fakes, node: FakeHost) -> None:
    node.cpus = None  # type: ignore[assignment]
    result = fakes.run("checks", "run", "load")
    assert result.code == 3
    assert "LoadUnreadable" in result.out


def test_the_kernel_log_is_read_from_the_boots_beginning(fakes: Fakes, node: FakeHost) -> None:
    kmsg = fakes.place.agent_config.parent / "kmsg"
    kmsg.write_text(XID)
    result = fakes.run("checks", "run", "kernel_log")
    assert result.code == 2
    assert "Xid79 [0000:9b:00.0]" in result.out


def test_a_check_of_workers_does_not_run_on_the_head_node(fakes: Fakes, node: FakeHost) -> None:
    say(fakes, role="head")
    result = fakes.run("checks", "run", "plugin")
    assert result.code == 2
    assert "plugin does not run on a head node" in result.err


def bring(host: FakeHost, name: str, ended: tuple[int, str]) -> None:
    """Put an executable of root's into the folder of users' checks."""
    host.stats[FOLDER] = FileStat(0, 0o755, FileKind.FOLDER)
    host.files[f"{FOLDER}/{name}"] = "#!/bin/sh\n# hyperpod: interval=300\n"
    host.stats[f"{FOLDER}/{name}"] = FileStat(0, 0o755)
    host.ended[f"{FOLDER}/{name}"] = ended


def test_users_own_checks_are_listed_and_run_by_hand(fakes: Fakes, node: FakeHost) -> None:
    bring(node, "fans.sh", (2, "fan 3 stands still\n"))
    rows = {row["name"]: row for row in json.loads(fakes.run("checks", "list", "--output", "json").out)}
    assert rows["user.fans"]["interval_s"] == 300
    result = fakes.run("checks", "run", "user.fans")
    assert result.code == 2
    assert "fan 3 stands still" in result.out


def test_a_users_check_can_be_described(fakes: Fakes, node: FakeHost) -> None:
    bring(node, "fans.sh", (0, ""))
    answer = json.loads(fakes.run("checks", "describe", "user.fans", "--output", "json").out)
    assert answer["settings"][0] == {
        "name": "interval_s",
        "default": 60.0,
        "in_force": 300.0,
        "why": "Seconds between two runs, by its header or the specification.",
    }
    assert "UserCheckFailed" in fakes.run("checks", "describe", "user.fans").out
    assert fakes.run("checks", "describe", "user.nothing").code == 2


def test_a_users_check_that_is_not_there_is_named_with_those_that_are(fakes: Fakes, node: FakeHost) -> None:
    bring(node, "fans.sh", (0, ""))
    result = fakes.run("checks", "run", "user.fan")
    assert result.code == 2
    assert "known: user.fans" in result.err


NHC = "* || check_fs_free /tmp 5%\n* || check_ps_service crond\n* || check_moab_sched\n* || check_hw_mcelog\n"


def test_an_nhc_conf_becomes_a_block_to_paste_and_a_line_for_each_thing_left_out(fakes: Fakes, tmp_path: Path) -> None:
    path = tmp_path / "nhc.conf"
    path.write_text(NHC)
    result = fakes.run("checks", "import-nhc", str(path))
    assert result.code == 0
    assert '- "* || check_fs_free /tmp 5%"' in result.out
    assert 'services: ["crond"]' in result.out
    assert f"{path}:3: left out: * || check_moab_sched: there is no Moab here" in result.err
    assert f"{path}:4: covered: * || check_hw_mcelog: kernel_log reads" in result.err
    answer = json.loads(fakes.run("checks", "import-nhc", str(path), "--output", "json").out)
    assert [item["number"] for item in answer["left_out"]] == [3]


def test_a_file_that_is_not_there_is_named(fakes: Fakes, tmp_path: Path) -> None:
    result = fakes.run("checks", "import-nhc", str(tmp_path / "none.conf"))
    assert result.code == 3
    assert "none.conf" in result.err
