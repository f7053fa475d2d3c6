"""Keys of a local cluster: one munge key, one ssh key for the administrator, one host key per node name.

Owns their making and where they lie. They survive every replacement of a machine.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from hyperpod.adapters.local.home import ClusterHome, write_file
from hyperpod.ports.process import ProcessRunner


class ClusterSecrets:
    """Makes keys when they are first asked for. Callers hold the cluster's lock."""

    def __init__(self, home: ClusterHome, processes: ProcessRunner) -> None:
        self._folder = home.secrets
        self._processes = processes

    @property
    def munge_key(self) -> Path:
        """The file with munge's key."""
        path = self._folder / "munge.key"
        if not path.exists():
            write_file(path, secrets.token_bytes(1024), 0o400)
        return path

    def admin_key(self) -> Path:
        """The private key that opens root's account on every node; its public part is beside it."""
        return self._ssh_key("admin", "hyperpod")

    def host_key(self, node: str) -> Path:
        """The private host key of a node name; its public part is beside it."""
        return self._ssh_key(f"host_{node}", node)

    def _ssh_key(self, name: str, comment: str) -> Path:
        path = self._folder / name
        public = self._folder / f"{name}.pub"
        if not (path.exists() and public.exists()):
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
