"""Where the local provider keeps things on this machine, and how it writes them. Knows no podman.

$HYPERPOD_HOME/clusters/<cluster>/
    spec.json      the specification as created          (written by provisioning)
    slots.json     network and address of every node name
    secrets/       munge key, ssh keys                    (0700)
    public/        hosts, resource_config.json, known_hosts: read-only in every node
    nodes/<node>/  launch.json, config/ (read-only in that node), kernel log
    instances/<id>/  records of one machine; outlive it
    fsx/ home/     the shared file systems
    cloud/         the provider's socket, seen by the head node only
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hyperpod.errors import NotFound, StoreError

DEFAULT_HOME = Path("/var/lib/hyperpod")


class ClusterHome:
    """The folder of one cluster. Paths only; nothing is made before ``create``."""

    def __init__(self, home: Path, cluster: str) -> None:
        self.cluster = cluster
        self.path = home / "clusters" / cluster
        self.spec = self.path / "spec.json"
        self.slots = self.path / "slots.json"
        self.secrets = self.path / "secrets"
        self.public = self.path / "public"
        self.fsx = self.path / "fsx"
        self.home = self.path / "home"
        self.cloud = self.path / "cloud"
        self.socket = self.cloud / "provider.sock"
        self.pid_file = self.path / "provider.pid"
        self.service_log = self.path / "provider.log"

    def create(self) -> None:
        """Make the folders; safe to repeat."""
        for folder, mode in (
            # Keys, users' files and locks: no other user of this machine has any business here.
            (self.path, 0o700),
            (self.secrets, 0o700),
            (self.public, 0o755),
            (self.path / "nodes", 0o700),
            (self.path / "instances", 0o755),
            (self.fsx, 0o1777),
            (self.home, 0o755),
            (self.cloud, 0o700),
        ):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(mode)

    def exists(self) -> bool:
        return self.path.is_dir()

    def node(self, node: str) -> Path:
        return self.path / "nodes" / node

    def config(self, node: str) -> Path:
        return self.node(node) / "config"

    def launch(self, node: str) -> Path:
        return self.node(node) / "launch.json"

    def instance(self, instance_id: str) -> Path:
        return self.path / "instances" / instance_id

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock of this cluster (across processes; freed by the kernel when its holder dies)."""
        try:
            file = (self.path / f".{name}.lock").open("w")
        except FileNotFoundError as error:
            raise NotFound(f"no cluster {self.cluster} on this machine", hint="hyperpod list-clusters") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def clusters(home: Path) -> list[str]:
    """Return the names of the clusters that have a folder here."""
    folder = home / "clusters"
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def write_file(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file so that readers and a crash see the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            # A full disk is told without a name; people need to know which one.
            error.filename = str(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Write a value as JSON, atomically."""
    write_file(path, json.dumps(value, indent=1) + "\n", mode)


def read_json(path: Path) -> Any:
    """Return the object in a JSON file, or None if there is no file.

    Raises:
        StoreError: The file cannot be read, is not JSON, or holds something else than an object.
    """
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    except IsADirectoryError as error:
        raise _damaged(path, error.strerror or str(error)) from error
    if not isinstance(value, dict):
        raise _damaged(path, f"an object is needed, found a {type(value).__name__}")
    return value


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError(
        f"{path} is damaged: {why}", hint="delete-cluster removes the cluster; --keep-data keeps its shared files"
    )
