"""Node images: Debian with Slurm, PyTorch on top if wanted, and our own programs as the last thin layer.

Owns building, naming and pruning. An image's tag is a hash of all that goes into it, so an image that exists is
right, and one that was interrupted has no tag. Nothing here knows clusters.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hyperpod.adapters.nvml import binding_file
from hyperpod.adapters.process import Processes
from hyperpod.errors import CommandError, CommandTimeout, ProviderError

logger = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Told what is being done and how far it is (0 to 1)."""

SUITE = "trixie"
_REPOSITORY = "localhost/hyperpod"
# Build containers are found again by name, not by label: labels would be inherited by the image and its nodes.
_BUILD_NAME = "hyperpod-build"
_BUILD_TIMEOUT_S = 1800.0

BASE_PACKAGES = (
    # the machine
    "systemd", "systemd-sysv", "dbus", "openssh-server", "openssh-client", "iproute2", "iptables", "procps",
    "ca-certificates", "sudo", "jq", "gettext-base", "less", "bindfs", "faketime",
    # Slurm
    "slurmctld", "slurmd", "slurm-client", "sackd", "munge", "libmunge2",
    # what our own programs import
    "python3", "python3-typer", "python3-rich", "python3-pydantic", "python3-clustershell",
    "python3-prometheus-client", "python3-yaml", "python3-tenacity",
    # the plugin is compiled for the Slurm that is here
    "gcc", "libc6-dev", "make", "libslurm-dev",
)  # fmt: skip
TORCH_PACKAGES = ("python3-torch", "python3-numpy")

# Debian's PyTorch is built without libuv, which it then uses by default: every torchrun would end with
# "use_libuv was requested but PyTorch was build without libuv support". USE_LIBUV=0 reaches only some stores.
_TORCH_PATCH = """
    class TCPStore(TCPStore):  # no libuv in this build
        def __init__(self, *args, **kwargs):
            kwargs["use_libuv"] = False
            super().__init__(*args, **kwargs)
"""
_TORCH_INIT = "usr/lib/python3/dist-packages/torch/distributed/__init__.py"
_TREES = ("hyperpod", "spank_plugin", "lifecycle_scripts")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "build", "*.o", "*.so", ".*")


class NodeImages:
    """Builds what is missing. Safe against a second builder and against being killed at any point.

    Args:
        processes: Runs podman, mmdebstrap and the commands inside the image.
        home: Our directory on this machine; the lock and half-made archives are below it.
        source: The project's folder with ``hyperpod``, ``spank_plugin`` and ``lifecycle_scripts``.
    """

    def __init__(self, processes: Processes, home: Path, source: Path) -> None:
        self._processes = processes
        self._home = home
        self._source = source
        # The lock is of one home, so what another home builds at this moment is not ours to sweep.
        self._build_prefix = f"{_BUILD_NAME}.{hashlib.sha256(str(home).encode()).hexdigest()[:8]}."

    def reference(self, kind: str) -> str:
        """Return the name of the node image of this kind (``base`` or ``torch``), built or not."""
        return f"{_REPOSITORY}/node:{self._node_hash(kind)}"

    def has(self, reference: str) -> bool:
        """Say whether an image is there."""
        return self._exists(reference)

    def is_built(self, kind: str) -> bool:
        """Say whether the node image of this kind is there."""
        return self._exists(self.reference(kind))

    def ensure(self, kind: str, progress: Progress = lambda _what, _share: None) -> str:
        """Build the node image of this kind if it is missing, and return its name.

        Raises:
            ProviderError: The build failed; the message has the last line of the tool that did.
        """
        reference = self.reference(kind)
        if self._exists(reference):
            return reference
        with self._lock(progress):
            self._sweep()
            if not self._exists(reference):
                try:
                    parent = self._ensure_parent(kind, progress)
                    progress("installing hyperpod into the node image", 0.95)
                    self._build_node(parent, reference)
                except (CommandError, OSError) as error:
                    raise _build_error(error) from error
                self._prune(keep={reference})
        progress("node image ready", 1.0)
        return reference

    def _ensure_parent(self, kind: str, progress: Progress) -> str:
        base = self._parent_name("base")
        scale = 0.9 if kind == "base" else 0.35
        if not self._exists(base):
            self._build_base(base, lambda what, share: progress(what, share * scale))
        if kind == "base":
            return base
        torch = self._parent_name("torch")
        if not self._exists(torch):
            self._build_torch(base, torch, lambda what, share: progress(what, 0.35 + share * 0.55))
        return torch

    @staticmethod
    def _parent_name(kind: str) -> str:
        return f"{_REPOSITORY}/{kind}:{_base_hash() if kind == 'base' else _torch_hash()}"

    def _build_base(self, reference: str, progress: Progress) -> None:
        folder = self._home / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / "base.partial.tar"
        try:
            self._mmdebstrap(["--variant=minbase"], BASE_PACKAGES, str(archive), "Debian with Slurm", progress)
            progress("importing the base image", 0.85)
            self._podman("import", "-q", str(archive), reference, timeout_s=_BUILD_TIMEOUT_S)
        finally:
            archive.unlink(missing_ok=True)

    def _build_torch(self, parent: str, reference: str, progress: Progress) -> None:
        with self._container(parent) as (container, root):
            self._add_packages(root, TORCH_PACKAGES, "PyTorch", progress)
            patch_torch(root / _TORCH_INIT)
            self._chroot(root, "python3", "-m", "compileall", "-q", "/" + _TORCH_INIT)
            progress("saving the PyTorch layer", 0.8)
            self._podman("commit", "-q", container, reference, timeout_s=_BUILD_TIMEOUT_S)

    def _build_node(self, parent: str, reference: str) -> None:
        with self._container(parent) as (container, root):
            top = root / "opt/hyperpod"
            for name in _TREES:
                if (self._source / name).is_dir():
                    target = top / {"hyperpod": "lib/hyperpod", "spank_plugin": "src/spank_plugin"}.get(name, name)
                    shutil.copytree(self._source / name, target, ignore=_IGNORED)
            binding = binding_file()
            if binding is not None:
                shutil.copyfile(binding, top / "lib/pynvml.py")
            self._chroot(root, "/opt/hyperpod/lifecycle_scripts/image/prepare.sh")
            self._podman(
                "commit", "-q", "--change", "STOPSIGNAL=SIGRTMIN+3", container, reference, timeout_s=_BUILD_TIMEOUT_S
            )

    def _add_packages(self, root: Path, packages: Sequence[str], what: str, progress: Progress) -> None:
        # The packages' installer makes its own device nodes; podman mounts /dev anew in every container.
        for entry in (root / "dev").iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        self._mmdebstrap(["--variant=custom", "--skip=check/empty"], packages, str(root), what, progress)

    def _mmdebstrap(
        self, options: Sequence[str], packages: Sequence[str], target: str, what: str, progress: Progress
    ) -> None:
        stages = {
            "running apt-get update": 0.02,
            "downloading packages": 0.08,
            "extracting archives": 0.3,
            "installing essential": 0.4,
            "installing remaining": 0.5,
            "cleaning package": 0.75,
            "creating tarball": 0.8,
        }

        def on_line(line: str) -> None:
            for text, share in stages.items():
                if text in line:
                    progress(f"{what}: {text}", share)

        self._processes.stream(
            [
                "mmdebstrap",
                "--mode=root",
                *options,
                f"--include={','.join(packages)}",
                # Manuals and translations would be a fifth of the image.
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                SUITE,
                target,
            ],
            timeout_s=_BUILD_TIMEOUT_S,
            on_line=on_line,
        )

    @contextlib.contextmanager
    def _container(self, image: str) -> Iterator[tuple[str, Path]]:
        container = self._podman(
            "create", "--name", self._build_prefix + secrets.token_hex(6), "--network", "none", image, "/sbin/init"
        ).strip()
        try:
            yield container, Path(self._podman("mount", container).strip())
        finally:
            with contextlib.suppress(CommandError):
                self._podman("umount", container)
                self._podman("rm", "-f", container)

    def _chroot(self, root: Path, *argv: str) -> None:
        self._processes.run(
            ["chroot", str(root), *argv],
            timeout_s=300,
            env={"LC_ALL": "C.UTF-8", "HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"},
        )

    def _podman(self, *arguments: str, timeout_s: float = 60) -> str:
        return self._processes.run(["podman", "--runtime", "runc", *arguments], timeout_s=timeout_s).stdout

    def _exists(self, reference: str) -> bool:
        return self._processes.run(["podman", "image", "exists", reference], timeout_s=60, check=False).code == 0

    @contextlib.contextmanager
    def _lock(self, progress: Progress) -> Iterator[None]:
        self._home.mkdir(parents=True, exist_ok=True)
        # Whoever can open a lock can hold it, so it is root's alone.
        with os.fdopen(
            os.open(self._home / "images.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w"
        ) as file:
            os.fchmod(file.fileno(), 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("waiting for another build of the node image", 0.0)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _sweep(self) -> None:
        """Remove what a killed build left behind."""
        for container in self._podman("ps", "-a", "--format", "{{.Names}}").split():
            if not container.startswith(self._build_prefix):
                continue
            with contextlib.suppress(CommandError):
                self._podman("umount", "-f", container)
                self._podman("rm", "-f", container)

    def _prune(self, keep: set[str]) -> None:
        """Remove older node layers that no container uses; podman itself refuses the others."""
        listed = self._podman(
            "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={_REPOSITORY}/*"
        ).split()
        wanted = keep | {f"{_REPOSITORY}/base:{_base_hash()}", f"{_REPOSITORY}/torch:{_torch_hash()}"}
        wanted |= {self.reference("base"), self.reference("torch")}
        for reference in listed:
            if reference not in wanted:
                with contextlib.suppress(CommandError):
                    self._podman("rmi", reference)

    def _node_hash(self, kind: str) -> str:
        digest = hashlib.sha256((_base_hash() if kind == "base" else _torch_hash()).encode())
        for name in _TREES:
            for folder, folders, files in os.walk(self._source / name):
                ignored = _IGNORED(folder, [*folders, *files])
                folders[:] = sorted(set(folders) - ignored)
                for file in sorted(set(files) - ignored):
                    path = Path(folder) / file
                    digest.update(str(path.relative_to(self._source)).encode())
                    digest.update(oct(path.stat().st_mode & 0o111).encode())
                    digest.update(path.read_bytes())
        binding = binding_file()
        digest.update(binding.read_bytes() if binding is not None else b"")
        return digest.hexdigest()[:16]


def patch_torch(path: Path) -> None:
    """Make PyTorch's stores work in a build without libuv; see ``_TORCH_PATCH``.

    Raises:
        ProviderError: The place to patch was not found, so this PyTorch is another one than was tried.
    """
    text = path.read_text()
    if _TORCH_PATCH in text:
        return
    place = text.find("\n        TCPStore,\n")
    end = text.find("\n    )\n", place)
    if place < 0 or end < 0:
        raise ProviderError(
            "this PyTorch is not the one that was tried: its list of imports has no TCPStore",
            hint="use Hyperpod.Local.Image: base, and report this",
        )
    end += len("\n    )\n")
    path.write_text(text[:end] + _TORCH_PATCH + text[end:])


def _base_hash() -> str:
    return hashlib.sha256(" ".join(["3", SUITE, *BASE_PACKAGES]).encode()).hexdigest()[:16]


def _torch_hash() -> str:
    return hashlib.sha256(" ".join([_base_hash(), _TORCH_PATCH, *TORCH_PACKAGES]).encode()).hexdigest()[:16]


def _build_error(error: CommandError | OSError) -> ProviderError:
    if isinstance(error, CommandTimeout):
        return ProviderError(f"building the node image took too long: {error.message}", hint="try again")
    text = error.stderr_tail if isinstance(error, CommandError) else str(error)
    if "No space left" in text:
        return ProviderError(
            "no disk space left while building the node image (it needs up to 6 GB)",
            hint="free space below /var/lib/containers and HYPERPOD_HOME, for example: podman image prune",
        )
    if isinstance(error, CommandError) and error.code == 127 and error.argv[0] in ("podman", "mmdebstrap"):
        return ProviderError(f"{error.argv[0]} is not installed", hint="hyperpod doctor --fix")
    wrong = [line for line in text.splitlines() if line.startswith(("E:", "Error", "error", "make", "fatal"))]
    detail = (wrong or text.strip().splitlines() or ["no message"])[-1]
    return ProviderError(f"the node image could not be built: {detail}", hint="hyperpod doctor")
