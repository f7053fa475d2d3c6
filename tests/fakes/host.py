"""A machine made of values, and munge without a daemon."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hyperpod.errors import CommandError, CommandTimeout, MungeError, ProviderUnavailable
from hyperpod.ports.host import Contact, DiskUsage, FileStat, FileState, Mount, Process
from hyperpod.ports.process import Completed
from tests.fakes.clock import FakeClock


@dataclass
class FakeHost:
    """Implements ``ports.host.Host``. What is not set does not exist.

    ``writes`` maps a folder to ``ok``, ``hangs`` or an error text; ``outputs`` a program's name to its output, or
    to ``hangs``, or to an error text after ``fails: ``; ``ended`` maps a program to the code and output that
    ``run_apart`` gives. ``refusals`` maps a file to the error number that reading it gives, ``sockets`` a unix socket
    to its answer.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    files: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    disks: dict[str, DiskUsage | OSError] = field(default_factory=dict)
    mounted: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    options: dict[str, frozenset[str]] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    stats: dict[str, FileStat] = field(default_factory=dict)
    ended: dict[str, tuple[int, str] | Completed | Exception] = field(default_factory=dict)
    process_list: list[Process] = field(default_factory=list)
    environments: dict[int, dict[str, str]] = field(default_factory=dict)
    cpus: int = 4
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    addresses: tuple[str, ...] = ("127.0.0.1",)
    contacts: dict[str, Contact] = field(default_factory=dict)
    boot: str = "boot-1"
    booted: float = 0.0
    inodes: dict[str, int] = field(default_factory=dict)
    executables: frozenset[str] = frozenset()
    refusals: dict[str, int] = field(default_factory=dict)
    sockets: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def now(self) -> datetime:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def boot_id(self) -> str:
        return self.boot

    def booted_at(self) -> float:
        return self.booted

    def uptime_s(self) -> float:
        return self.clock.monotonic()

    def read_text(self, path: str, limit: int = 65536) -> str:
        if path in self.refusals:
            raise OSError(self.refusals[path], os.strerror(self.refusals[path]), path)
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path][:limit]

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        if path in self.blobs:
            return self.blobs[path][:limit]
        return self.read_text(path, limit).encode()

    def read_part(self, path: str, offset: int, limit: int) -> bytes:
        return self.read_bytes(path, 1 << 30)[offset : offset + limit]

    def list_dir(self, path: str) -> Sequence[str]:
        below = [
            name[len(path.rstrip("/")) + 1 :]
            for name in {**self.files, **self.blobs, **self.links}
            if name.startswith(path.rstrip("/") + "/")
        ]
        if not below:
            raise FileNotFoundError(2, "No such file or directory", path)
        return sorted({name.split("/")[0] for name in below})

    def read_link(self, path: str) -> str:
        if path not in self.links:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.links[path]

    def stat(self, path: str, *, follow: bool = False) -> FileStat:
        if path not in self.stats:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.stats[path]

    def disk(self, path: str) -> DiskUsage:
        found = self.disks.get(path)
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        if isinstance(found, OSError):
            raise found
        return found

    def mounts(self) -> Sequence[Mount]:
        usual = frozenset({"rw"})
        return [
            Mount(self.sources.get(path, "server"), path, "nfs4", self.options.get(path, usual))
            for path in self.mounted
        ]

    def try_write(self, folder: str, token: str, timeout_s: float) -> None:
        self.calls.append(("try_write", folder, token))
        result = self.writes.get(folder, "cannot create: No such file or directory")
        if result == "hangs":
            raise CommandTimeout(["sh"], timeout_s)
        if result != "ok":
            raise CommandError(["sh"], 1, result)

    def run(self, argv: Sequence[str], timeout_s: float) -> str:
        self.calls.append(tuple(argv))
        output = self.outputs.get(argv[0])
        if output is None:
            raise CommandError(argv, 127, "No such file or directory")
        if output == "hangs":
            raise CommandTimeout(argv, timeout_s)
        if output.startswith("fails: "):
            raise CommandError(argv, 1, output.removeprefix("fails: "))
        return output

    def run_apart(self, argv: Sequence[str], timeout_s: float) -> Completed:
        self.calls.append(tuple(argv))
        outcome = self.ended.get(argv[0])
        if outcome is None:
            raise CommandError(argv, 127, "No such file or directory")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome if isinstance(outcome, Completed) else Completed(outcome[1], "", outcome[0])

    def processes(self) -> Sequence[Process]:
        return list(self.process_list)

    def process(self, pid: int) -> Process | None:
        return next((process for process in self.process_list if process.pid == pid), None)

    def processes_of_users(self, least_uid: int) -> Sequence[Process]:
        return [process for process in self.process_list if process.uid >= least_uid]

    def ask_socket(self, path: str, request: bytes, timeout_s: float) -> bytes:
        if path not in self.sockets:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.sockets[path].encode()

    def file_state(self, path: str) -> FileState:
        data = self.read_bytes(path, 1 << 30)
        return FileState(self.inodes.get(path, 1), len(data), hash(data), path in self.executables)

    def environment(self, pid: int) -> Mapping[str, str]:
        return self.environments.get(pid, {})

    def cpu_count(self) -> int:
        return self.cpus

    def resolve(self, name: str) -> Sequence[str]:
        return self.names.get(name, ())

    def own_addresses(self) -> Sequence[str]:
        return self.addresses

    def connect(self, address: str, port: int, timeout_s: float) -> Contact:
        return self.contacts.get(f"{address}:{port}", Contact.SILENT)


@dataclass(frozen=True)
class FakeCredential:
    """What ``FakeMunge`` decodes to."""

    payload: bytes
    uid: int = 0
    gid: int = 0


@dataclass
class FakeMunge:
    """Credentials that are their payload; ``error`` makes it fail, ``answer`` makes it give something else."""

    error: str = ""
    answer: bytes | None = None

    def encode(self, payload: bytes, *, only_uid: int | None = None) -> bytes:
        if self.error:
            raise MungeError(self.error)
        return payload

    def decode(self, credential: bytes) -> FakeCredential:
        return FakeCredential(credential if self.answer is None else self.answer)


@dataclass
class FakeMetadata:
    """A metadata service made of texts; the text ``silent`` in place of all of them is one that does not answer."""

    texts: Mapping[str, str] | str

    def read(self, path: str) -> str | None:
        if isinstance(self.texts, str):
            raise ProviderUnavailable(f"the metadata service is {self.texts}")
        return self.texts.get(path)
