"""Root's scripts in places where users may write: nobody's link decides what root writes, makes or runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "lifecycle_scripts"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    names = {"CLUSTER": "demo", "NODE": "worker-1", "GROUP": "worker", "ROLE": "worker", "ADDRESS": "10.0.0.2"}
    names |= {"HEAD_NODE": "head-1", "HEAD_ADDRESS": "10.0.0.1", "INSTANCE_ID": "i-" + "0" * 17, "MOUNT_WAIT_S": "1"}
    names["SHARED_MOUNTS"] = str(tmp_path / "fsx")
    (folder / "node.env").write_text("".join(f"HP_{name}={value}\n" for name, value in names.items()))
    (folder / "instance.env").write_text("")
    (tmp_path / "fsx").mkdir()
    return folder


def run(step: str, node: Path) -> int:
    script = SCRIPTS / "steps" / step
    return subprocess.run(["bash", str(script)], env={**os.environ, "HP_NODE_DIR": str(node)}, check=False).returncode


@pytest.mark.parametrize("plant", ["link", "folder"])
def test_the_probe_of_a_shared_mount_follows_no_link_and_needs_no_fixed_name(node: Path, plant: str) -> None:
    victim, fsx = node.parent / "victim", node.parent / "fsx"
    victim.write_text("precious")
    probe = fsx / ".hyperpod-probe-worker-1"
    probe.symlink_to(victim) if plant == "link" else probe.mkdir()

    assert run("40_shared_storage.sh", node) == 0

    assert victim.read_text() == "precious"
    assert [entry.name for entry in fsx.iterdir()] == [probe.name], "nothing is left behind"


def test_the_stage_of_a_groups_script_is_made_anew_by_root() -> None:
    text = (SCRIPTS / "bootstrap.sh").read_text()

    made = text.index("mkdir -m 0755 /tmp/hyperpod-lifecycle\n")
    assert text.index("rm -rf /tmp/hyperpod-lifecycle\n") < made < text.index('mkdir -p "$stage"')


def test_a_users_home_is_arranged_as_that_user() -> None:
    text = (SCRIPTS / "steps" / "70_users.sh").read_text()

    assert "chown -R" not in text
    assert text.index("setpriv --reuid ubuntu") < text.index("ssh-keygen")
