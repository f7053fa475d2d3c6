"""NHC's configuration: lines, hosts, figures, each check by our own means, and the import of whole files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.errors import CommandTimeout
from hyperpod.health import registry
from hyperpod.health.check import Facts, Ports
from hyperpod.health.checks.nhc import NhcCheck
from hyperpod.health.nhc import _HOSTS, COVERED, NOT_NEEDED, matches, parse_conf, parse_count, parse_size
from hyperpod.health.nhc_import import import_conf, render_block
from hyperpod.health.nhc_tests import MAKERS, TAKES, CannotTell, dmi_lines, prepare, wrong_lines
from hyperpod.ports.host import DiskUsage, FileKind, FileStat, Mount, Process
from tests.fakes.host import FakeHost, FakeMunge

CONFS = Path(__file__).parents[1] / "data" / "nhc"
GB = 1 << 30


# --- hosts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "worker-1", True),
        ("worker-*", "worker-1", True),
        ("worker-?", "worker-10", False),
        ("n[0-4]*", "n3x", True),
        ("!worker-*", "worker-1", False),
        ("!io*", "worker-1", True),
        (r"/^n00[0-5][0-9]\.cc2$/", "n0017.cc2", True),
        (r"/^n00[0-5][0-9]\.cc2$/", "n0017.cc1", False),
        (r"!/\.(gpu|htc)/", "n1.gpu", False),
        ("/^n[[:digit:]]+$/", "n12", True),
        ("{n00[00-99].phys,n000[0-4].bio}", "n0030.phys", True),
        ("{n00[00-99].phys,n000[0-4].bio}", "n0100.phys", False),
        ("{n00[00-99].phys,n000[0-4].bio}", "n0001.bio", True),
        ("{n00[00-99].phys,n000[0-4].bio}", "n0005.bio", False),
        ("!{n03,n05,n0[7-9]}", "n08", False),
        ("!{n03,n05,n0[7-9]}", "n04", True),
        ("{worker-[1-16]}", "worker-12", True),
        ("{worker-[1-16]}", "worker-012", False),
        ("{io[0-15]}", "io12", True),
        ("{n[1-3]}", "n", False),
        ("worker-1", "worker-1", True),
    ],
)
def test_hosts_are_matched_as_nhc_does(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@pytest.mark.parametrize(
    "pattern", ["", "{n[1-3]", "{n[1,3]}", "{n[1-3]x[4-5]}", "/(/", "!", "/(a+)+$/", "/" + "a" * 999 + "/"]
)
def test_a_match_string_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        matches(pattern, "worker-1")


@given(st.text(max_size=30), st.text(max_size=15))
def test_matching_never_fails_in_another_way(pattern: str, name: str) -> None:
    try:
        assert matches(pattern, name) in (True, False)
    except ValueError:
        return


# --- lines and figures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("check_hw_eth eth0", "not of the form"),
        ("* ||", "are missing"),
        ("* || a `b`", "a shell"),
        ("* || check_fs_free /tmp $LIMIT", "a variable"),
        ("* || check_x $(date)", "a shell"),
        ("* || check_a && check_b", "several commands"),
        ("* || check_a | grep b", "a pipe"),
        ("* || check_a > /dev/null", "a redirection"),
        ('* || check_a "b', "quotes"),
        ("* || " + "x" * 3000, "longer than"),
    ],
)
def test_lines_that_are_not_understood_say_why(line: str, why: str) -> None:
    conf = parse_conf(line)
    assert not conf.lines
    assert why in conf.troubles[0].why


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ("{worker-[1,3]}", "{worker-[1,3]}: a comma stands between nodes, not within brackets"),
        ("{worker-1,n[1-3]x[4-5]}", "only one range"),
        ("{worker-[9-1]}", "worker-[9-1]: the range ends before it begins"),
        ("{,worker-[9-1]}", "the range ends before it begins"),
        ("{worker-[1-3]", "the closing brace is missing"),
        ("worker-[1-12]", "outside of braces [...] is one character"),
        ("!worker-[01-12]", "outside of braces [...] is one character"),
        ("worker-1,worker-2", "a list of nodes stands in braces"),
        ("worker-[1-9", "brackets do not match"),
        ("/worker-(/", "/worker-(/: "),
    ],
)
def test_hosts_that_no_node_could_match_as_they_were_meant_are_refused(hosts: str, why: str) -> None:
    conf = parse_conf(f"{hosts} || check_hw_eth eth0")
    assert not conf.lines
    assert why in conf.troubles[0].why
    assert conf.troubles[0].why.endswith(_HOSTS)


@pytest.mark.parametrize("hosts", ["*", "n[0-4]*", "n0[[:digit:]]", "!{n03,n0[7-9]}", "/^n(1|2),?$/", "worker-[1-9]"])
def test_hosts_that_nhc_knows_are_taken(hosts: str) -> None:
    assert not parse_conf(f"{hosts} || check_hw_eth eth0").troubles


def test_quoted_signs_of_a_shell_are_plain_text() -> None:
    (line,) = parse_conf("* || check_cmd_output -m '/a|b; $x/' -m \"!/c > d/\" cmd # why not").lines
    assert line.arguments == ("-m", "/a|b; $x/", "-m", "!/c > d/", "cmd")


def test_a_line_may_go_on_in_the_next_one_and_numbers_stay_right() -> None:
    conf = parse_conf("* || check_a \\\n  -f /tmp\n# c\n* || check_b\nbad\n")
    assert [(line.number, line.check) for line in conf.lines] == [(1, "check_a"), (4, "check_b")]
    assert conf.troubles[0].number == 5


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1024),
        ("128MB", 128 << 20),
        ("1k", 1024),
        ("1b", 1),
        ("4g", 4 * GB),
        ("1TB", 1 << 40),
        ("1.5G", GB * 3 // 2),
    ],
)
def test_sizes_are_in_kilobytes_unless_they_say_more(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "5%", "1 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_inodes_count_by_thousands() -> None:
    assert [parse_count(text) for text in ("100", "1k", "2M")] == [100, 1000, 2_000_000]


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    conf = parse_conf(text)
    for line in conf.lines:
        try:
            prepare(line)
        except ValueError:
            continue


# --- each check by our own means -------------------------------------------------------------------------------------

MEMINFO = """\
MemTotal: 16777216 kB
MemFree: 1048576 kB
Buffers: 0 kB
Cached: 1048576 kB
SwapTotal: 2097152 kB
SwapFree: 1024 kB
"""
CPUINFO = "\n\n".join(f"processor: {n}\nphysical id: {n % 2}\ncore id: {n // 2 % 2}" for n in range(8)) + "\n"
TCP = """\
  sl  local_address rem_address   st
   0: 00000000:0016 00000000:0000 0A 00000000:00000000
   1: 0100007F:1F90 00000000:0000 01 00000000:00000000
"""
DMI = """\
Handle 0x0000, DMI type 0, 24 bytes
BIOS Information
\tVersion: 2.11.0
\tCharacteristics:
\t\tISA is supported
"""


class Machine(FakeHost):
    """A machine with a bit of everything."""

    def mounts(self) -> list[Mount]:
        return [
            Mount("/dev/vda1", "/", "ext4", frozenset({"rw", "relatime"})),
            Mount("filer:/home", "/home", "nfs4", frozenset({"rw", "hard"})),
            Mount("/dev/vdb", "/ro", "xfs", frozenset({"ro"})),
        ]


@pytest.fixture
def ports() -> Ports:
    host = Machine()
    host.files = {
        "/proc/meminfo": MEMINFO, "/proc/cpuinfo": CPUINFO, "/proc/net/tcp": TCP,
        "/proc/loadavg": "1.5 3.0 4.0 1/100 1\n", "/etc/passwd": "root:x:0:0::/:/bin/sh\nntp:x:123:1::/:/bin/sh\n",
        "/sys/class/net/ens5/mtu": "9001", "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "/sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
    }  # fmt: skip
    host.disks = {
        "/": DiskUsage(100 * GB, 20 * GB, 1_000_000, 50_000),
        "/home": DiskUsage(100 * GB, 50 * GB, 0, 0),
        "/ro": DiskUsage(10 * GB, GB, 1000, 10),
        "/stale": OSError(116, "Stale file handle"),
    }
    host.process_list = [Process(10, 1, 0, "sshd"), Process(11, 1, 123, "ntpd"), Process(12, 1, 0, "systemd-journal")]
    host.stats = {
        "/dev/null": FileStat(0, 0o666, FileKind.CHARACTER),
        "/fsx/.sentinel": FileStat(1000, 0o644, FileKind.FILE, 0),
        "/bin/tool": FileStat(0, 0o755, FileKind.FILE, 10),
    }
    host.ended = {
        "/sbin/service": (0, "rpcbind is running\nmore\n"),
        "selinuxenabled": (1, ""),
        "dmidecode": (0, DMI),
        "ping": (0, ""),
        "slow": CommandTimeout(["slow"], 5.0),
    }
    return Ports(host, FakeMunge(), Facts(host.now(), 1000.0, "worker-1"))


GOOD = """
check_fs_mount -f /home
check_fs_mount -s filer:/home -t "nfs*" -o *hard* -f /home
check_fs_mount_rw /
check_fs_mount_rw -t ext4 -f /
check_fs_mount_rw /home filer:/home nfs4
check_fs_mount_ro -f /ro
check_fs_mount_rw -r -e "mount /home" -f / /home
check_fs_free / 10%
check_fs_free /dev/vda1 10GB
check_fs_used / 90%
check_fs_size / 50GB 200GB
check_fs_size / 50GB
check_fs_ifree / 1k
check_fs_ifree /home 100
check_fs_iused / 96%
check_fs_inodes / 1k 2M
check_all_fs_used ext4 98%
check_all_fs_ifree btrfs 1k
check_hw_cpuinfo 2 4 8
check_hw_cpuinfo 2
check_hw_cpuinfo
check_hw_physmem 1k 1TB
check_hw_physmem 16GB 16GB
check_hw_physmem 17GB 17GB 10%
check_hw_physmem_free 2GB
check_hw_swap 0 2GB
check_hw_swap_free 1
check_hw_mem 18GB 18GB
check_hw_mem_free 1GB
check_hw_eth ens5
check_hw_ib 200
check_hw_ib 200 mlx5_0:1
check_ps_service -u root -S sshd
check_ps_service ntpd.service
check_ps_service -u ntp ntpd
check_ps_service -m '/^systemd-/' journald
check_ps_service -d systemd-journald journal
check_ps_daemon sshd root
check_ps_loadavg 2 4 8
check_file_test -a -c -r -w -O /dev/null
check_file_test -e -f /fsx/.sentinel
check_file_test -x -s /bin/tool
check_cmd_output -t 1 -r 0 -m '/is running/' -m '!/dead/' /sbin/service rpcbind status
check_cmd_output -m '*running' -e '/sbin/service rpcbind status'
check_cmd_status -t 1 -r 1 selinuxenabled
check_net_ping -W 3 -i 0.25 -c 5 head-1
check_net_socket -n SSH -p tcp -s LISTEN -l '*:22' -d sshd
check_dmi_data_match "BIOS Information: Version: 2.11.0"
check_dmi_data_match "BIOS Information: Characteristics: ISA*"
check_dmi_data_match -! "BIOS Information: Version: 1.*"
check_dmi_raw_data_match "Version: 2.11.0"
"""

BAD = """
check_fs_mount -f /fsx: is not mounted
check_fs_mount_rw -f /ro: not mounted read-write
check_fs_mount_ro -f /home: not mounted read-only
check_fs_mount -t lustre -f /home: the type of /home is nfs4
check_fs_mount -s other:* -f /home: the source of /home
check_fs_mount -o *soft* -f /home: the options of /home
check_fs_free / 30%: 20.0 %) free
check_fs_free / 50GB: free
check_fs_free /gone 1%: does not exist
check_fs_used / 50%: 80.0 %) used
check_fs_size / 200GB: a size of
check_fs_size / 1GB 2GB: a size of
check_fs_ifree / 100k: 50000 inodes free
check_fs_iused / 90%: 950000 inodes used
check_fs_inodes / 2M: 1000000 inodes
check_all_fs_free xfs 50%: /ro has
check_hw_cpuinfo 2 8 8: 4 cores
check_hw_cpuinfo 1 4 8: 2 sockets
check_hw_cpuinfo 2 4 4: 8 threads
check_hw_physmem 32GB 64GB: 16384 MiB of memory
check_hw_physmem 1k 8GB 3%: 16384 MiB
check_hw_physmem_free 4GB: only 2048 MiB of memory
check_hw_swap 4GB 8GB: of swap
check_hw_swap_free 1GB: only 1 MiB of swap
check_hw_eth eth9: no interface eth9
check_hw_ib 400: no active InfiniBand link of 400
check_hw_ib 200 mlx5_9: no InfiniBand device mlx5_9
check_ps_service munged: munged does not run
check_ps_service -u ntp sshd: sshd does not run as ntp
check_ps_daemon ntpd root: ntpd does not run as root
check_ps_loadavg 1: the load of 1 minutes is 1.5
check_ps_loadavg 9 2: the load of 5 minutes is 3
check_file_test -d /dev/null: fails the test -d
check_file_test -f -x /fsx/.sentinel: fails the test -x
check_file_test -s /fsx/.sentinel: fails the test -s
check_file_test -O /fsx/.sentinel: fails the test -O
check_file_test -e /gone: does not exist
check_cmd_output -m '/dead/' /sbin/service rpcbind status: no line that matches
check_cmd_output -m '!/more/' /sbin/service rpcbind status: a line that matches
check_cmd_output -r 3 /sbin/service rpcbind status: ended with 0, not 3
check_cmd_status -r 0 selinuxenabled: ended with 1, not 0
check_net_socket -p tcp -s LISTEN -l '*:8080': nothing listens on TCP port 8080
check_dmi_data_match "BIOS Information: Version: 3.*": no line
check_dmi_data_match -n "BIOS Information: Version: 2.*": a line
check_dmi_raw_data_match "Version: 9": no line
"""

BLIND = """
check_fs_free /stale 5%
check_ps_service -u nobody9 sshd
check_cmd_status -r 0 slow
check_cmd_status -r 0 not-there
check_cmd_output -m x not-there
"""

REFUSED = """
check_fs_mount_rw
check_fs_mount_rw -x -f /
check_fs_free /tmp
check_fs_free /tmp much
check_fs_free /tmp 101%
check_fs_ifree /tmp 1.5k
check_hw_cpuinfo two
check_hw_cpuinfo 1 2 3 4
check_hw_physmem
check_hw_physmem_free 1 2
check_hw_ib fast
check_hw_eth
check_ps_service
check_ps_service -u
check_ps_service -f sshd
check_ps_daemon sshd root args
check_ps_loadavg high
check_file_test /dev/null
check_file_test -N /dev/null
check_cmd_status selinuxenabled
check_cmd_status -r x selinuxenabled
check_cmd_output -t 999 cmd
check_cmd_output
check_net_ping
check_net_socket -p udp -l '*:1'
check_net_socket -! -l '*:22'
check_dmi_data_match
check_dmi_data_match -h 0x0 x
"""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def outcome(ports: Ports, check: str) -> str:
    (line,) = parse_conf(f"* || {check}").lines
    return prepare(line)(ports)


@pytest.mark.parametrize("check", lines(GOOD))
def test_what_is_so_is_silent(ports: Ports, check: str) -> None:
    assert outcome(ports, check) == ""


@pytest.mark.parametrize("check", lines(BAD))
def test_what_is_not_so_is_said(ports: Ports, check: str) -> None:
    check, _, expected = check.rpartition(": ")
    assert expected in outcome(ports, check)


@pytest.mark.parametrize("check", lines(BLIND))
def test_not_being_able_to_look_is_no_fault(ports: Ports, check: str) -> None:
    with pytest.raises(CannotTell):
        outcome(ports, check)


@pytest.mark.parametrize("check", lines(REFUSED))
def test_arguments_that_are_not_understood_are_refused_when_the_line_is_read(check: str) -> None:
    (line,) = parse_conf(f"* || {check}").lines
    with pytest.raises(ValueError):
        prepare(line)


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ("check_fs_fre / 5%", "there is no check check_fs_fre; did you mean check_fs_free?"),
        ("CHECK_FS_FREE / 5%", "did you mean check_fs_free?"),
        ("check_nv_healthmo", "did you mean check_nv_healthmon?"),
        ("check_coffee", "there is no check check_coffee; an executable in /etc/hyperpod/checks.d can do it"),
        ("check_ps_cpu 50%", "check_ps_cpu is not made here: an executable"),
        ("check_fs_free / 5x", "'5x' is no size such as 128MB or 2GB; check_fs_free takes MOUNT_POINT and 5%"),
        ("check_fs_free / 500%", "'500%' is no share from 0 to 100 %"),
        ("check_hw_cpuinfo two", "'two' is no whole number; check_hw_cpuinfo takes [SOCKETS]"),
        ("check_hw_cpuinfo 1 2 3 4", "it needs 0 to 3 numbers, not 4"),
        ("check_hw_ib fast", "'fast' is no rate in Gb/s; check_hw_ib takes RATE_IN_GBIT_S"),
        ("check_ps_loadavg nan", "'nan' is no load; check_ps_loadavg takes LIMIT"),
        ("check_ps_loadavg 1e400", "'1e400' is no load"),
        ("check_cmd_status -r x true", "'x' is no exit status; check_cmd_status takes"),
        ("check_cmd_output -t soon -m x true", "'soon' is no number of seconds"),
        ("check_cmd_output -Z true", "the option -Z is not understood; check_cmd_output takes"),
        ("check_net_socket -l :ssh", "'ssh' is no port; check_net_socket takes -p tcp"),
        ("check_net_socket -l :70000", "70000 is no port from 1 to 65535"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_with_what_is_allowed(check: str, why: str) -> None:
    ((index, told),) = wrong_lines(["* || check_hw_eth eth0", f"* || {check}"])
    assert index == 1
    assert why in told


def test_the_specification_is_judged_by_the_nodes_own_parser() -> None:
    bad = [f"* || {check}" for check in lines(REFUSED)]
    assert [index for index, _ in wrong_lines(bad)] == list(range(len(bad)))
    good = [f"* || {line}" for line in lines(GOOD)] + ["# a comment", "", "* || check_nv_healthmon"]
    assert wrong_lines(good) == []
    host = FakeHost()
    # One at a time: the node tells the first, and how many there are.
    for line in bad:
        check = NhcCheck(lines=(line,))
        (finding,) = check.run(Ports(host, FakeMunge(), Facts(host.now(), 1.0, "worker-1"))).findings
        ((_, why),) = wrong_lines([line])
        assert finding.code == "NhcIgnored"
        assert why[:60] in finding.message


def test_the_line_that_is_named_is_the_right_one_whatever_the_texts_hold() -> None:
    texts = ["* || check_hw_eth \\", "  eth0", "* || check_hw_eth a\n* || bad\n", "", "nothing", "* || MARK_OFFLINE=0"]
    assert [index for index, _ in wrong_lines(texts)] == [2, 4, 5]
    assert "write Mode: observe beside Settings" in wrong_lines(texts)[-1][1]


@pytest.mark.parametrize("name", MAKERS)
def test_every_check_that_we_make_says_what_it_takes(name: str) -> None:
    assert TAKES[name]
    assert set(TAKES) == set(MAKERS)


@pytest.mark.parametrize("name", MAKERS)
def test_every_check_that_we_make_has_a_good_and_a_bad_line(name: str) -> None:
    if name == "check_hw_gm":
        return
    assert any(line.startswith(f"{name} ") or line == name for line in lines(GOOD)) or name.startswith("check_all_fs")
    known_bad = any(line.startswith(f"{name} ") for line in lines(BAD))
    assert known_bad or name.startswith(("check_all_fs", "check_net_ping", "check_hw_mem"))


def test_no_check_is_both_made_and_left_out() -> None:
    assert not set(MAKERS) & (set(COVERED) | set(NOT_NEEDED))


def test_a_host_that_does_not_answer_a_ping_is_a_fault_and_a_broken_ping_is_none(ports: Ports) -> None:
    ports.host.ended["ping"] = (1, "")  # type: ignore[attr-defined]
    assert "head-1 does not answer" in outcome(ports, "check_net_ping head-1")
    ports.host.ended["ping"] = (2, "")  # type: ignore[attr-defined]
    with pytest.raises(CannotTell):
        outcome(ports, "check_net_ping head-1")


def test_the_firmwares_tables_get_their_headings() -> None:
    assert dmi_lines(DMI)[0] == "BIOS Information: Version: 2.11.0"
    assert dmi_lines(DMI)[-1] == "BIOS Information: Characteristics: ISA is supported"


# --- the check ----------------------------------------------------------------------------------------------------


def found(check: NhcCheck, ports: Ports) -> list[str]:
    return [f.code for f in check.run(ports).findings]


def test_a_file_is_read_when_it_is_roots(ports: Ports) -> None:
    host: Any = ports.host
    check = NhcCheck(file="/etc/nhc/nhc.conf")
    assert found(check, ports) == ["NhcFileRefused"]
    host.files["/etc/nhc/nhc.conf"] = "* || check_fs_mount_rw -f /gone\n"
    host.stats["/etc/nhc/nhc.conf"] = FileStat(1000, 0o644)
    assert found(check, ports) == ["NhcFileRefused"]
    host.stats["/etc/nhc/nhc.conf"] = FileStat(0, 0o644)
    assert found(check, ports) == ["NhcFailed"]
    host.files["/etc/nhc/nhc.conf"] = "* || check_fs_mount_rw -f /home\n"
    assert found(check, ports) == []


def test_lines_for_other_hosts_run_nothing(ports: Ports) -> None:
    host: Any = ports.host
    assert found(NhcCheck(lines=("gpu-* || check_cmd_status -r 0 dangerous",)), ports) == []
    assert host.calls == []


# --- whole files --------------------------------------------------------------------------------------------------


def imported(name: str) -> Any:
    return import_conf((CONFS / f"{name}.conf").read_text())


@pytest.mark.parametrize("path", sorted(CONFS.glob("*.conf")), ids=lambda path: path.stem)
def test_every_line_of_a_file_ends_somewhere_and_the_block_is_valid(path: Path) -> None:
    text = path.read_text()
    result = import_conf(text)
    wanted = [
        line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.strip().startswith("#")
    ]
    placed = len(result.lines) + len(result.services) + len(result.covered) + len(result.left_out)
    assert placed + len(result.variables) == len(wanted)
    block = yaml.safe_load(render_block(result))["Hyperpod"]["Health"]["Checks"]
    settings = {name: dict(check.get("Settings", {})) for name, check in block.items()}
    registry.build_checks(registry.Role.WORKER, registry.parse_settings(settings))


def test_a_small_file_is_taken_over_whole() -> None:
    result = imported("small")
    assert result.is_observing
    assert result.services == ["crond"]
    assert [trouble.text for trouble in result.covered] == ["* || check_ps_service slurmd"]
    assert result.left_out == []
    assert "Mode: observe" in render_block(result)


def test_a_file_for_several_kinds_of_nodes_keeps_its_hosts() -> None:
    result = imported("gpu")
    assert result.left_out == []
    assert {trouble.text.split()[-1] for trouble in result.covered} == {"check_nv_healthmon", "check_hw_mcelog"}
    assert any(line.target == "{cpu-[1-40],cpu-99}" for line in result.lines)


def test_what_is_left_out_is_told_line_by_line() -> None:
    result = imported("awkward")
    assert [line.check for line in result.lines] == ["check_fs_mount_rw", "check_fs_mount"]
    assert [trouble.number for trouble in result.left_out] == [4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16]
