"""What this machine lacks for local clusters, and the command that brings it.

Owns the checks; each looks at one thing and changes nothing. Running the fixes is the caller's decision.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyperpod.adapters.local.podman import Podman
from hyperpod.errors import CommandError, HyperpodError
from hyperpod.ports.process import ProcessRunner

# One node needs about 30 descriptors of the host's daemons; slurmctld alone asks for some thousand.
_MIN_FILES = 4096
_MIN_DISK_BYTES = 8 * 1024**3
_MIN_MEMORY_BYTES = 2 * 1024**3
_NODE_MEMORY_BYTES = 60 * 1024**2


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at. ``fix`` is a command to run, empty when only a person can help.

    ``is_needed`` False: clusters work without it, something less.
    """

    name: str
    is_ok: bool
    message: str
    fix: tuple[str, ...] = ()
    is_needed: bool = True


@dataclass(frozen=True)
class Machine:
    """What the checks look at, so that they can be tried on machines that there are not."""

    is_root: bool
    which: Callable[[str], str | None]
    exists: Callable[[str], bool]
    free_disk_bytes: Callable[[Path], int]
    free_memory_bytes: int
    hard_file_limit: int
    filesystems: str
    cgroup_mounts: str


def this_machine() -> Machine:
    """Return what is true here and now."""
    return Machine(
        is_root=os.geteuid() == 0,
        which=lambda name: shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"),
        exists=os.path.exists,
        free_disk_bytes=_free_disk,
        free_memory_bytes=_free_memory(),
        hard_file_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        filesystems=_read("/proc/filesystems"),
        cgroup_mounts="\n".join(line for line in _read("/proc/self/mounts").splitlines() if " cgroup" in line),
    )


def diagnose(machine: Machine, home: Path, processes: ProcessRunner) -> list[Diagnosis]:
    """Look at everything that local clusters need; most basic things first."""
    found = [_root(machine), *_programs(machine), *_helpers(machine)]
    if machine.which("podman"):
        found.append(_podman_works(processes))
    found += [_cgroups(machine), _overlay(machine), _files(machine)]
    found += [_disk(machine, home), _memory(machine), *_devices(machine)]
    if machine.which("podman"):
        found += _plugin_twice(processes)
    return found


def fixes(diagnoses: Sequence[Diagnosis]) -> list[tuple[str, ...]]:
    """Return the commands that mend what is wrong, each once; packages in one command."""
    packages: list[str] = []
    others: list[tuple[str, ...]] = []
    for diagnosis in diagnoses:
        if diagnosis.is_ok or not diagnosis.fix:
            continue
        if diagnosis.fix[: len(_APT)] == _APT:
            packages += [name for name in diagnosis.fix[len(_APT) :] if name not in packages]
        elif diagnosis.fix not in others:
            others.append(diagnosis.fix)
    install = [("apt-get", "update"), (*_APT, *packages)] if packages else []
    return install + others


_APT = ("apt-get", "install", "--yes", "--no-install-recommends")
# program, Debian package, what it is for
_PROGRAMS = (
    ("podman", "podman", "runs the nodes"),
    ("runc", "runc", "starts containers where crun refuses a host with both cgroup hierarchies"),
    ("iptables", "iptables", "the nodes' network needs it"),
    ("mmdebstrap", "mmdebstrap", "makes the node image"),
    ("ssh-keygen", "openssh-client", "makes the keys of the nodes"),
    ("ip", "iproute2", "finds a free subnet"),
    ("nsenter", "util-linux", "cuts links for fault injection"),
)
_HELPERS = (("netavark", "netavark", "sets up the nodes' network"),)
_HELPER_FOLDERS = ("/usr/lib/podman", "/usr/libexec/podman", "/usr/local/lib/podman")


def _root(machine: Machine) -> Diagnosis:
    if machine.is_root:
        return Diagnosis("root", True, "running as root")
    return Diagnosis("root", False, "local nodes boot systemd in privileged containers; run as root, or with sudo")


def _programs(machine: Machine) -> list[Diagnosis]:
    return [
        Diagnosis(program, True, path)
        if (path := machine.which(program))
        else Diagnosis(program, False, f"not installed: {purpose}", (*_APT, package))
        for program, package, purpose in _PROGRAMS
    ]


def _helpers(machine: Machine) -> list[Diagnosis]:
    found = []
    for helper, package, purpose in _HELPERS:
        places = [f"{folder}/{helper}" for folder in _HELPER_FOLDERS]
        place = next((path for path in places if machine.exists(path)), None)
        found.append(
            Diagnosis(helper, True, place)
            if place
            else Diagnosis(helper, False, f"not installed: {purpose}", (*_APT, package))
        )
    return found


def _podman_works(processes: ProcessRunner) -> Diagnosis:
    try:
        version = Podman(processes).run("info", "--format", "{{.Version.Version}} {{.Host.NetworkBackend}}").strip()
    except HyperpodError as error:
        return Diagnosis("podman works", False, f"it does not answer: {error.message}")
    if not version.endswith("netavark"):
        return Diagnosis(
            "podman works", False, f"its network backend is {version.split()[-1]}, not netavark; "
            "set network_backend = \"netavark\" in /etc/containers/containers.conf and run: podman system reset"
        )  # fmt: skip
    return Diagnosis("podman works", True, f"version {version.split()[0]}")


def _cgroups(machine: Machine) -> Diagnosis:
    if machine.cgroup_mounts:
        return Diagnosis("cgroups", True, "mounted")
    return Diagnosis("cgroups", False, "no cgroup hierarchy is mounted below /sys/fs/cgroup; systemd needs one")


def _overlay(machine: Machine) -> Diagnosis:
    if "overlay" in machine.filesystems:
        return Diagnosis("overlay", True, "known to the kernel")
    return Diagnosis(
        "overlay", False, "the kernel has no overlay file system loaded; every node would copy the image",
        ("modprobe", "overlay"),
    )  # fmt: skip


def _files(machine: Machine) -> Diagnosis:
    limit = machine.hard_file_limit
    if limit == resource.RLIM_INFINITY or limit >= _MIN_FILES:
        text = "no limit" if limit == resource.RLIM_INFINITY else str(limit)
        return Diagnosis("open files", True, f"hard limit {text}")
    return Diagnosis(
        "open files", False, f"the hard limit of open files is {limit}; nodes need {_MIN_FILES} (ulimit -Hn, or "
        "LimitNOFILE= of the service that started this shell)"
    )  # fmt: skip


def _disk(machine: Machine, home: Path) -> Diagnosis:
    places = {str(path): machine.free_disk_bytes(path) for path in (Path("/var/lib/containers"), home)}
    path, free = min(places.items(), key=lambda item: item[1])
    gib = free / 1024**3
    if free >= _MIN_DISK_BYTES:
        return Diagnosis("disk", True, f"{gib:.0f} GiB free below {path}")
    return Diagnosis(
        "disk", False, f"only {gib:.1f} GiB free below {path}; building images needs {_MIN_DISK_BYTES // 1024**3} GiB",
        is_needed=free < _MIN_DISK_BYTES // 4,
    )  # fmt: skip


def _memory(machine: Machine) -> Diagnosis:
    free = machine.free_memory_bytes
    nodes = max(0, (free - 1024**3) // _NODE_MEMORY_BYTES)
    if free >= _MIN_MEMORY_BYTES:
        text = f"{free / 1024**3:.1f} GiB available; {min(nodes, 999)} nodes fit while no job runs on them"
        return Diagnosis("memory", True, text)
    return Diagnosis("memory", False, f"only {free / 1024**3:.1f} GiB of memory available; a small cluster needs 2 GiB")


def _devices(machine: Machine) -> list[Diagnosis]:
    if machine.exists("/dev/fuse"):
        return [Diagnosis("fuse", True, "/dev/fuse is there", is_needed=False)]
    return [
        Diagnosis(
            "fuse", False, "no /dev/fuse: only 'hyperpod inject fs-hang' needs it", ("modprobe", "fuse"),
            is_needed=False,
        )
    ]  # fmt: skip


def _plugin_twice(processes: ProcessRunner) -> list[Diagnosis]:
    """Name head nodes whose plugstack.conf lists our plugin more than once: it would report every task twice."""
    podman = Podman(processes)
    found = []
    try:
        heads = [box for box in podman.containers("hyperpod.role=head") if box.state == "running"]
        for head in heads:
            text = podman.exec(head.id, ["cat", "/etc/slurm/plugstack.conf"], timeout_s=10, check=False).stdout
            lines = [line for line in text.splitlines() if "hyperpod.so" in line and not line.lstrip().startswith("#")]
            if len(lines) > 1:
                found.append(
                    Diagnosis(
                        "plugin", False,
                        f"plugstack.conf of {head.labels.get('hyperpod.cluster', head.name)} lists hyperpod.so "
                        f"{len(lines)} times; every task would be reported as often",
                    )
                )  # fmt: skip
    except (HyperpodError, CommandError):
        # A podman that does not answer has its own line above.
        return []
    return found


def _free_disk(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _free_memory() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
