"""The machine image of the bodies: Debian with cloud-init and the packages that a node needs, and nothing of ours.

Built as the local provider's images are, on the same base. Our programs come over S3, as on a real machine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from hyperpod.adapters.local.image import NodeImages
from hyperpod.adapters.process import Processes

HERE: Final = Path(__file__).parent
_REPOSITORY: Final = "localhost/hyperpod-bodies"
# No network in the nodes: what install.sh would fetch has to be there. One that it wants and this list lacks shows.
_PACKAGES: Final = ("cloud-init", "awscli", "curl", "python3-boto3", "nfs-common", "nfs-kernel-server")


class BodyImages(NodeImages):
    """Builds the image that stands in for an AMI."""

    def __init__(self, processes: Processes, home: Path) -> None:
        super().__init__(processes, home, HERE.parents[1])
        self._build_prefix = f"hyperpod-bodies-{self._build_prefix}"

    def reference(self, kind: str) -> str:
        """Return the name of the image on this base (``base`` or ``torch``), built or not."""
        return f"{_REPOSITORY}:{self._node_hash(kind)}"

    def _node_hash(self, kind: str) -> str:
        parts = (kind, self._parent_name(kind), *_PACKAGES, (HERE / "prepare.sh").read_text())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def _build_node(self, parent: str, reference: str) -> None:
        with self._container(parent) as (container, root):
            self._add_packages(root, _PACKAGES, "cloud-init and the AWS CLI", lambda _what, _share: None)
            script = root / "prepare.sh"
            script.write_text((HERE / "prepare.sh").read_text())
            self._chroot(root, "bash", "/prepare.sh")
            script.unlink()
            self._podman("commit", "-q", "--change", "STOPSIGNAL=SIGRTMIN+3", container, reference, timeout_s=1800)

    def _prune(self, keep: set[str]) -> None:
        """Leave every other image alone: they belong to others."""
