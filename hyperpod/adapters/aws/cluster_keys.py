"""Keys of a cluster on EC2: munge's key, a host key for each node name, and the administrator's ssh key.

Owns their making. They are kept in the cluster's folder, encrypted, and survive every replacement of a machine.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hyperpod.adapters.aws.folder import KEYS, PUBLIC, ClusterFolder
from hyperpod.errors import AccessDenied

MUNGE_KEY_BYTES = 1024


@dataclass(frozen=True)
class ClusterKeys:
    """All keys of a cluster. ``repr`` shows none of them."""

    _data: dict[str, Any]

    def __repr__(self) -> str:
        return f"ClusterKeys({len(self._data.get('hosts', {}))} hosts)"

    @property
    def munge_key(self) -> bytes:
        return base64.b64decode(self._data["munge"])

    @property
    def admin_private_key(self) -> str:
        return str(self._data["admin"]["private"])

    @property
    def admin_public_key(self) -> str:
        return str(self._data["admin"]["public"])

    @property
    def host_public_keys(self) -> dict[str, str]:
        return {node: str(pair["public"]) for node, pair in self._data["hosts"].items()}

    def node_files(self, node: str) -> dict[str, bytes]:
        """Return the keys that one node needs, as files."""
        pair = self._data["hosts"][node]
        return {
            "munge.key": self.munge_key,
            "ssh_host_ed25519_key": pair["private"].encode(),
            "ssh_host_ed25519_key.pub": pair["public"].encode(),
            "authorized_keys": self.admin_public_key.encode(),
        }


def ensure_keys(folder: ClusterFolder, nodes: Sequence[str]) -> ClusterKeys:
    """Return the cluster's keys, with those made that are missing. Keys that are there never change."""

    def change(data: dict[str, Any]) -> dict[str, Any]:
        data.setdefault("munge", base64.b64encode(secrets.token_bytes(MUNGE_KEY_BYTES)).decode())
        if "admin" not in data:
            data["admin"] = _ssh_key("hyperpod")
        hosts = data.setdefault("hosts", {})
        for node in nodes:
            if node not in hosts:
                hosts[node] = _ssh_key(node)
        return data

    return ClusterKeys(folder.update_json(KEYS, change, is_secret=True))


def host_keys(folder: ClusterFolder) -> dict[str, str]:
    """Return the public host key of every node name, as all members of the cluster may read them."""
    found = (folder.read_json(PUBLIC) or {}).get("host_keys", {})
    return {str(node): " ".join(str(key).split()[:2]) for node, key in found.items()}


def admin_key(folder: ClusterFolder) -> str:
    """Return the private key that opens every node; nothing where the caller may not read it."""
    try:
        return str((folder.read_json(KEYS) or {}).get("admin", {}).get("private", ""))
    except AccessDenied:
        return ""


def _ssh_key(comment: str) -> dict[str, str]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {"private": private.decode(), "public": f"{public.decode()} {comment}\n"}
