"""The machine that we run on: files, mounts, processes and connections.

Implements ``ports.host.Host``. Linux only. Standard library only, because the agent loads it on every node.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from hyperpod.adapters.mount_probe import MountProbe, new_name
from hyperpod.ports.host import Contact, DiskUsage, FileKind, FileStat, FileState, Mount, Process
from hyperpod.ports.process import Completed, Programs

_CONTAINER_BOOT_S = 30.0
"""An init that started later than this after the kernel belongs to a container, whose boots the kernel's own id
does not tell apart."""

_LOOK_AT_ALL = 10
"""Every so many looks for users' processes, all processes are looked at."""

_KINDS = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.FOLDER,
    stat.S_IFLNK: FileKind.LINK,
    stat.S_IFBLK: FileKind.BLOCK,
    stat.S_IFCHR: FileKind.CHARACTER,
    stat.S_IFIFO: FileKind.PIPE,
    stat.S_IFSOCK: FileKind.SOCKET,
}

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class LocalHost:
    """Reads this machine.

    Args:
        processes: Runs programs within deadlines, and beside us.
        proc: Where procfs is mounted.
    """

    def __init__(self, processes: Programs, *, proc: str = "/proc") -> None:
        self._processes = processes
        self._proc = proc
        self._init_started: float | None = None
        self._probe = MountProbe(processes)
        self._others: set[str] = set()
        self._looks = 0

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def boot_id(self) -> str:
        try:
            kernel = self.read_text(f"{self._proc}/sys/kernel/random/boot_id").strip()
        except OSError:
            kernel = "unknown"
        started = self._init_started_at()
        if started < _CONTAINER_BOOT_S:
            return kernel
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kernel} {started:.2f}"))

    def _init_started_at(self) -> float:
        """Return when process 1 started, in seconds since the kernel's boot (suspended time included)."""
        if self._init_started is None:
            self._init_started = self._read_init_started()
        return self._init_started

    def _read_init_started(self) -> float:
        try:
            text = self.read_text(f"{self._proc}/1/stat")
            # The name may hold blanks and brackets; the fields after its last bracket do not.
            ticks = int(text.rpartition(")")[2].split()[19])
        except (OSError, ValueError, IndexError):
            return 0.0
        return ticks / os.sysconf("SC_CLK_TCK")

    def booted_at(self) -> float:
        started = self._init_started_at()
        if started < _CONTAINER_BOOT_S:
            return 0.0
        suspended = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        return started - suspended

    def uptime_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._init_started_at()

    def read_text(self, path: str, limit: int = 65536) -> str:
        return self.read_bytes(path, limit).decode(errors="replace")

    def list_dir(self, path: str) -> Sequence[str]:
        return sorted(os.listdir(path))

    def read_link(self, path: str) -> str:
        return os.readlink(path)

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        parts = []
        left = limit
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while left > 0:
                part = os.read(descriptor, left)
                if not part:
                    break
                parts.append(part)
                left -= len(part)
        finally:
            os.close(descriptor)
        return b"".join(parts)

    def read_part(self, path: str, offset: int, limit: int) -> bytes:
        # A pipe in its place must not stop us.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.pread(descriptor, limit, offset)
        finally:
            os.close(descriptor)

    def stat(self, path: str, *, follow: bool = False) -> FileStat:
        found = os.stat(path, follow_symlinks=follow)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), FileKind.FILE)
        return FileStat(found.st_uid, stat.S_IMODE(found.st_mode), kind, found.st_size)

    def disk(self, path: str) -> DiskUsage:
        found = os.statvfs(path)
        return DiskUsage(
            total_bytes=found.f_blocks * found.f_frsize,
            free_bytes=found.f_bavail * found.f_frsize,
            total_inodes=found.f_files,
            free_inodes=found.f_favail,
            is_read_only=bool(found.f_flag & os.ST_RDONLY),
        )

    def mounts(self) -> Sequence[Mount]:
        found = []
        for line in self.read_text(f"{self._proc}/self/mounts", 1 << 20).splitlines():
            words = line.split(" ")
            if len(words) >= 4:
                found.append(
                    Mount(_unescaped(words[0]), _unescaped(words[1]), words[2], frozenset(words[3].split(",")))
                )
        return found

    def try_write(self, folder: str, token: str, timeout_s: float) -> None:
        self._probe.try_write(folder, new_name(socket.gethostname()), token, timeout_s)

    def run(self, argv: Sequence[str], timeout_s: float) -> str:
        return self._processes.run(argv, timeout_s=timeout_s).stdout

    def process(self, pid: int) -> Process | None:
        return self._process(str(pid))

    def processes_of_users(self, least_uid: int) -> Sequence[Process]:
        found = []
        listed = set(filter(str.isdigit, os.listdir(self._proc)))
        # A machine has thousands of threads of the kernel. They are not looked at every time; their numbers are used
        # again, so that they are looked at now and then.
        self._looks += 1
        self._others = set() if self._looks % _LOOK_AT_ALL == 0 else self._others & listed
        for name in listed - self._others:
            try:
                # Whose a process is costs a tenth of reading what it does.
                if os.stat(f"{self._proc}/{name}").st_uid < least_uid:
                    self._others.add(name)
                    continue
            except OSError:
                continue
            process = self._process(name)
            if process is not None:
                found.append(process)
        return found

    def run_apart(self, argv: Sequence[str], timeout_s: float) -> Completed:
        # With a user named, the runner gives it a clean environment and bounds its output.
        return self._processes.run(argv, timeout_s=timeout_s, user="root", check=False)

    def processes(self) -> Sequence[Process]:
        found = []
        for name in os.listdir(self._proc):
            if name.isdigit():
                process = self._process(name)
                if process is not None:
                    found.append(process)
        return found

    def _process(self, pid: str) -> Process | None:
        folder = f"{self._proc}/{pid}"
        try:
            stat = self.read_text(f"{folder}/stat", 1024)
            uid = os.stat(folder).st_uid
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            fields = stat.rpartition(")")[2].split()
            parent, started_at = int(fields[1]), int(fields[19]) / _TICKS_PER_S
            # Only slurmstepd's title carries something that we need; reading all of them costs as much again.
            title = self.read_text(f"{folder}/cmdline", 512) if name.startswith("slurmstepd") else ""
        except (OSError, ValueError, IndexError):
            return None
        return Process(int(pid), parent, uid, name, title.replace("\0", " ").strip(), started_at, fields[0])

    def environment(self, pid: int) -> Mapping[str, str]:
        try:
            text = self.read_text(f"{self._proc}/{pid}/environ", 1 << 18)
        except OSError:
            return {}
        pairs = (item.partition("=") for item in text.split("\0"))
        return {name: value for name, found, value in pairs if found}

    def cpu_count(self) -> int:
        return os.sysconf("SC_NPROCESSORS_ONLN")

    def resolve(self, name: str) -> Sequence[str]:
        try:
            return sorted({str(item[4][0]) for item in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
        except (OSError, UnicodeError):
            return ()

    def own_addresses(self) -> Sequence[str]:
        try:
            table = self.read_text(f"{self._proc}/net/fib_trie", 1 << 20)
        except OSError:
            return ()
        # A local address is a leaf "|-- A.B.C.D" whose next line says "/32 host LOCAL".
        return sorted(set(re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", table)))

    def ask_socket(self, path: str, request: bytes, timeout_s: float) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(timeout_s)
            sock.connect(path)
            if not request:
                return b""
            sock.sendall(request)
            return sock.recv(4096)

    def file_state(self, path: str) -> FileState:
        found = os.stat(path)
        return FileState(found.st_ino, found.st_size, found.st_mtime_ns, bool(found.st_mode & 0o111))

    def connect(self, address: str, port: int, timeout_s: float) -> Contact:
        try:
            with socket.create_connection((address, port), timeout=timeout_s):
                return Contact.OPEN
        except OSError as error:
            return contact_of(error)


def contact_of(error: OSError) -> Contact:
    """Translate a failed connection: a refusal is an answer of the machine, everything else is silence."""
    return Contact.REFUSED if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET) else Contact.SILENT


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), text) if "\\" in text else text


def kill(pid: int, number: int) -> bool:
    """Send a signal and return whether there was a process to send it to."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
