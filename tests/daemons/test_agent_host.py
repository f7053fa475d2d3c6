"""The machine as the agent reads it, on folders that look like /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyperpod.adapters.host import LocalHost, contact_of
from hyperpod.adapters.process import Processes
from hyperpod.errors import CommandError
from hyperpod.ports.host import Contact, Process
from tests.fakes.process import FakeProcesses

KERNEL = "01d3eb1b-4a98-4719-93ad-e35bc5374a8c"


TICKS = os.sysconf("SC_CLK_TCK")


def stat_line(pid: int, name: str, parent: int, started_ticks: int = 5) -> str:
    fields = [str(pid), f"({name})", "S", str(parent), *["0"] * 17, str(started_ticks), *["0"] * 30]
    return " ".join(fields)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text(KERNEL + "\n")
    (tmp_path / "1").mkdir()
    (tmp_path / "1/stat").write_text(stat_line(1, "systemd", 0))
    return tmp_path


def host(proc: Path, processes: FakeProcesses | None = None) -> LocalHost:
    return LocalHost(processes or FakeProcesses(), proc=str(proc))


def test_a_real_machines_boot_is_the_kernels(proc: Path) -> None:
    assert host(proc).boot_id() == KERNEL
    assert host(proc).booted_at() == 0.0


def test_a_containers_boots_differ_although_the_kernel_is_one(proc: Path) -> None:
    found = set()
    for ticks in (100_000, 200_000):
        (proc / "1/stat").write_text(stat_line(1, "systemd", 0, ticks))
        found.add(host(proc).boot_id())
        assert host(proc).boot_id() in found
    assert len(found | {KERNEL}) == 3


def test_a_part_of_a_file_is_read_and_a_pipe_does_not_stop_us(proc: Path) -> None:
    log = proc / "log"
    log.write_bytes(b"0123456789")
    assert host(proc).read_part(str(log), 3, 4) == b"3456"
    assert host(proc).read_part(str(log), 8, 4) == b"89"
    assert host(proc).read_part(str(log), 20, 4) == b""
    os.mkfifo(proc / "pipe")
    with pytest.raises(OSError, match="seek"):
        host(proc).read_part(str(proc / "pipe"), 0, 4)
    with pytest.raises(FileNotFoundError):
        host(proc).read_part(str(proc / "none"), 0, 4)


def test_processes_are_read_with_odd_names(proc: Path) -> None:
    for pid, name in ((30, "slurmstepd"), (31, "a) (b"), (32, "python")):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(stat_line(pid, name, 1))
        (proc / str(pid) / "cmdline").write_text("slurmstepd: [7.batch]\0\0" if pid == 30 else "secret\0")
    (proc / "33").mkdir()
    (proc / "self").mkdir()
    uid = proc.stat().st_uid
    found = sorted(host(proc).processes(), key=lambda p: p.pid)
    assert found[1:] == [
        Process(30, 1, uid, "slurmstepd", "slurmstepd: [7.batch]", started_at=5 / TICKS),
        Process(31, 1, uid, "a) (b", started_at=5 / TICKS),
        Process(32, 1, uid, "python", started_at=5 / TICKS),
    ]


def test_an_environment_is_read_and_a_gone_process_has_none(proc: Path) -> None:
    (proc / "1/environ").write_text("SLURM_JOB_ID=7\0EMPTY=\0odd\0")
    assert host(proc).environment(1) == {"SLURM_JOB_ID": "7", "EMPTY": ""}
    assert host(proc).environment(99) == {}


def test_own_addresses_are_those_of_the_kernels_table(proc: Path) -> None:
    (proc / "net").mkdir()
    (proc / "net/fib_trie").write_text(
        "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.0.0\n        /16 link UNICAST\n"
        "     |-- 10.1.0.11\n        /32 host LOCAL\n     |-- 10.1.255.255\n        /32 link BROADCAST\n"
    )
    assert host(proc).own_addresses() == ["10.1.0.11"]


def test_mounts_are_read_with_blanks_in_their_names(proc: Path) -> None:
    (proc / "self").mkdir()
    (proc / "self/mounts").write_text("/dev/sda1 / ext4 rw,errors=remount-ro 0 0\nfsx:/a /fsx\\040two nfs4 ro 0 0\n")
    found = host(proc).mounts()
    assert [(m.source, m.path, m.type) for m in found] == [("/dev/sda1", "/", "ext4"), ("fsx:/a", "/fsx two", "nfs4")]
    assert "ro" in found[1].options


def test_a_write_is_really_tried(proc: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    machine = LocalHost(Processes(), proc=str(proc))
    machine.try_write(str(shared), "worker-1 123", 5.0)
    machine.try_write(str(shared), "worker-1 124", 5.0)
    assert list(shared.iterdir()) == []
    with pytest.raises(CommandError, match="gone"):
        machine.try_write(str(shared / "gone"), "worker-1 123", 5.0)


def test_users_processes_and_single_ones_are_found_without_reading_all(proc: Path) -> None:
    uid = proc.stat().st_uid
    assert host(proc).processes_of_users(uid + 1) == []
    assert [p.pid for p in host(proc).processes_of_users(uid)] == [1]
    found = host(proc).process(1)
    assert found is not None
    assert found.pid == 1
    assert host(proc).process(99) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(111, "Connection refused"), Contact.REFUSED),
        (TimeoutError("timed out"), Contact.SILENT),
        (OSError(113, "No route to host"), Contact.SILENT),
        (OSError(101, "Network is unreachable"), Contact.SILENT),
    ],
)
def test_only_a_refusal_proves_that_a_machine_is_there(error: OSError, expected: Contact) -> None:
    assert contact_of(error) is expected
