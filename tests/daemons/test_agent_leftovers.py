"""What a killed attempt leaves in shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from hyperpod.agent.leftovers import remove_shared_memory


def test_removes_the_users_files_with_the_names_of_training_libraries_only(tmp_path: Path) -> None:
    for name in ("nccl-abc", "torch_123_4", "sem.mp-x", "my-own-data"):
        (tmp_path / name).write_text("x")
    (tmp_path / "psm_folder").mkdir()
    (tmp_path / "nccl-link").symlink_to("/etc/passwd")
    assert remove_shared_memory(str(tmp_path), os.getuid()) == ["nccl-abc", "sem.mp-x", "torch_123_4"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my-own-data", "nccl-link", "psm_folder"]


def test_other_users_files_stay(tmp_path: Path) -> None:
    (tmp_path / "nccl-abc").write_text("x")
    assert remove_shared_memory(str(tmp_path), os.getuid() + 1) == []
    assert (tmp_path / "nccl-abc").exists()


def test_a_folder_that_is_not_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert remove_shared_memory(str(tmp_path / "none"), 0) == []
