"""The machine as a port: what the agent and the health checks read from it and ask of it.

Files, mounts, processes and connections of the own node only; programs are run through ``run``. Every method
that can block carries a deadline, or is called where blocking is allowed (checks run apart from the agent).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from hyperpod.ports.process import Completed


@dataclass(frozen=True)
class DiskUsage:
    """Room on one file system; a file system without an inode limit says 0 of 0."""

    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int
    is_read_only: bool = False

    @property
    def free_percent(self) -> float:
        """Share of the bytes that ordinary users can still write."""
        return 100.0 * self.free_bytes / self.total_bytes if self.total_bytes else 100.0

    @property
    def free_inodes_percent(self) -> float:
        """Share of the inodes that are free."""
        return 100.0 * self.free_inodes / self.total_inodes if self.total_inodes else 100.0


@dataclass(frozen=True)
class Mount:
    """One line of the mount table."""

    source: str
    path: str
    type: str
    options: frozenset[str]


class FileKind(StrEnum):
    """What a path names."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    BLOCK = "block device"
    CHARACTER = "character device"
    PIPE = "pipe"
    SOCKET = "socket"


@dataclass(frozen=True)
class FileStat:
    """What a path names, whose it is and who may change it. ``mode`` holds the permission bits only."""

    uid: int
    mode: int
    kind: FileKind = FileKind.FILE
    size_bytes: int = 0


@dataclass(frozen=True)
class Process:
    """One process; ``title`` is its command line with blanks between the words.

    ``started_at`` is in seconds on this machine's boot clock (CLOCK_BOOTTIME). ``state`` is the kernel's letter: ``D``
    is a wait in the kernel that nothing ends but what it waits for.
    """

    pid: int
    parent: int
    uid: int
    name: str
    title: str = ""
    started_at: float = 0.0
    state: str = "S"


@dataclass(frozen=True)
class FileState:
    """What changes with a file: equal states mean that it is the same as before."""

    inode: int
    size_bytes: int
    changed_ns: int
    is_executable: bool = False


class Contact(StrEnum):
    """How a TCP connection attempt ended. REFUSED proves that the machine is up and can be reached."""

    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"

    @property
    def is_reached(self) -> bool:
        """True when the other machine's network stack answered."""
        return self is not Contact.SILENT


class Credentials(Protocol):
    """Munge, as far as a check needs it."""

    def encode(self, payload: bytes) -> bytes: ...

    def decode(self, credential: bytes) -> Decoded: ...


class Decoded(Protocol):
    """What a decoded credential says."""

    @property
    def payload(self) -> bytes: ...

    @property
    def uid(self) -> int: ...


class Host(Protocol):
    """The node that we run on."""

    def now(self) -> datetime:
        """Return the present moment, aware UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        ...

    def boot_id(self) -> str:
        """Return the identity of this boot; a container that boots an init of its own has its own."""
        ...

    def booted_at(self) -> float:
        """Return when this boot began, in seconds of the kernel's clock (``monotonic``'s); 0 on a real machine."""
        ...

    def uptime_s(self) -> float:
        """Return how long this boot has lasted."""
        ...

    def read_text(self, path: str, limit: int = 65536) -> str:
        """Return the beginning of a text file.

        Raises:
            OSError: if it cannot be read.
        """
        ...

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        """Return the beginning of a file.

        Raises:
            OSError: if it cannot be read.
        """
        ...

    def read_part(self, path: str, offset: int, limit: int) -> bytes:
        """Return what stands in a file from a place on; less than ``limit`` bytes at its end.

        Raises:
            OSError: if it cannot be read.
        """
        ...

    def list_dir(self, path: str) -> Sequence[str]:
        """Return the names in a folder, sorted.

        Raises:
            OSError: if it cannot be read.
        """
        ...

    def read_link(self, path: str) -> str:
        """Return where a symbolic link points, as it is written.

        Raises:
            OSError: if it is none or cannot be read.
        """
        ...

    def stat(self, path: str, *, follow: bool = False) -> FileStat:
        """Return what a path names and whose it is.

        Args:
            follow: Whether a link stands for what it points to.

        Raises:
            OSError: if it cannot be seen.
        """
        ...

    def disk(self, path: str) -> DiskUsage:
        """Return the room on the file system that holds ``path``. Blocks while a network file system hangs.

        Raises:
            OSError: if it does not exist or does not answer.
        """
        ...

    def mounts(self) -> Sequence[Mount]:
        """Return the mount table; later entries cover earlier ones on the same path."""
        ...

    def try_write(self, folder: str, token: str, timeout_s: float) -> None:
        """Write a small file in ``folder``, read it back and remove it, in a process that can be given up. The process
        stays for the next time: none is started while all is well.

        Raises:
            CommandTimeout: if that did not end in time (the process may live on in the kernel).
            CommandError: if it failed; the last line of its message says why.
        """
        ...

    def run(self, argv: Sequence[str], timeout_s: float) -> str:
        """Run a program and return its standard output.

        Raises:
            CommandError, CommandTimeout: if it failed, cannot be started or did not end in time.
        """
        ...

    def run_apart(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """Run a program that is not ours, as root: with little of our environment, and output that is bounded.

        Its exit status is its answer, so it is no error.

        Raises:
            CommandError, CommandTimeout: if it cannot be started, prints too much, or did not end in time.
        """
        ...

    def processes(self) -> Sequence[Process]:
        """Return every process of this node."""
        ...

    def process(self, pid: int) -> Process | None:
        """Return one process, or None when there is none with this number."""
        ...

    def processes_of_users(self, least_uid: int) -> Sequence[Process]:
        """Return the processes whose owner's number is at least this. Much cheaper than ``processes``."""
        ...

    def environment(self, pid: int) -> Mapping[str, str]:
        """Return a process's initial environment; empty when it is gone or not ours to read."""
        ...

    def cpu_count(self) -> int:
        """Return the number of processors that are online."""
        ...

    def resolve(self, name: str) -> Sequence[str]:
        """Return the IPv4 and IPv6 addresses of a name; empty when it does not resolve."""
        ...

    def own_addresses(self) -> Sequence[str]:
        """Return the addresses of the node's interfaces, loopback included."""
        ...

    def ask_socket(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """Connect to a unix socket, send a request (may be empty) and return the beginning of the answer.

        Raises:
            OSError: if nobody listens or answers in time.
        """
        ...

    def file_state(self, path: str) -> FileState:
        """Return what changes with a file, without reading it.

        Raises:
            OSError: if it is not there.
        """
        ...

    def connect(self, address: str, port: int, timeout_s: float) -> Contact:
        """Try a TCP connection and close it."""
        ...
