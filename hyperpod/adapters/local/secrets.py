"""Keys of a local cluster: one munge key, one ssh key for the administrator, one host key per node name.

Owns their making and where they lie. They survive every replacement of a machine.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from hyperpod.adapters.local.home import ClusterHome, write_file
from hyperpod.ports.process import ProcessRunner

_LEAST_MUNGE_KEY = 32
"""Bytes; munged refuses a shorter one."""


def _holds(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size >= size
    except OSError:
        return False


class ClusterSecrets:
    """Makes keys when they are first asked for. Callers hold the cluster's lock."""

    def __init__(self, home: ClusterHome, processes: ProcessRunner) -> None:
        self._home = home
        self._folder = home.secrets
        self._processes = processes

    @property
    def munge_key(self) -> Path:
        """The file with munge's key."""
        path = self._folder / "munge.key"
        if not _holds(path, _LEAST_MUNGE_KEY):
            # Lost or cut off. The cluster's machines may run with the old one, and a node with another key could never
            # join them; each node's configuration has a copy.
            copies = sorted(self._home.path.glob("nodes/*/config/munge.key"))
            known = next((copy.read_bytes() for copy in copies if _holds(copy, _LEAST_MUNGE_KEY)), None)
            write_file(path, known or secrets.token_bytes(1024), 0o400)
        return path

    def admin_key(self) -> Path:
        """The private key that opens root's account on every node; its public part is beside it."""
        return self._ssh_key("admin", "hyperpod")

    def host_key(self, node: str) -> Path:
        """The private host key of a node name; its public part is beside it."""
        name = f"host_{node}"
        copy = self._home.config(node) / "ssh_host_ed25519_key"
        public = Path(f"{copy}.pub")
        if not self._is_whole(name) and _holds(copy, 1) and _holds(public, 1):
            write_file(self._folder / f"{name}.pub", public.read_bytes())
            write_file(self._folder / name, copy.read_bytes(), 0o600)
        return self._ssh_key(name, node)

    def _is_whole(self, name: str) -> bool:
        return _holds(self._folder / name, 1) and _holds(self._folder / f"{name}.pub", 1)

    def _ssh_key(self, name: str, comment: str) -> Path:
        path = self._folder / name
        public = self._folder / f"{name}.pub"
        if not self._is_whole(name):
            fresh = self._folder / f"{name}.new"
            for file in (fresh, Path(f"{fresh}.pub")):
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()
            self._processes.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(fresh)], timeout_s=20
            )
            Path(f"{fresh}.pub").replace(public)
            fresh.replace(path)
        return path
