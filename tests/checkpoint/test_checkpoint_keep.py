"""Setting aside, disk use, pruning: what is renamed, what is deleted, and above all what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperpod.checkpoint import latest, prune, scan, set_aside, usage
from tests.checkpoint import builders
from tests.checkpoint.killing import run_and_die_at

NOW = 1_796_163_240.0  # 2026-12-01T22:14:00Z
STAMP = "20261201T221400Z"


def names_in(root: Path) -> set[str]:
    return {entry.name for entry in root.iterdir()}


def test_half_written_ones_newer_than_the_good_one_are_renamed_and_nothing_else(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / "step_1", ())
    (tmp_path / "step_1").mkdir(exist_ok=True)  # older than the good one: harmless, left alone
    builders.step_folder(tmp_path / "step_2")
    builders.truncate(builders.step_folder(tmp_path / "step_3") / "model.pt")
    (tmp_path / "epoch_x").mkdir()
    (tmp_path / "notes.txt").touch()
    moved = set_aside(tmp_path, now=NOW)
    assert moved == [str(tmp_path / f"step_3.incomplete-{STAMP}")]
    assert names_in(tmp_path) == {"step_1", "step_2", f"step_3.incomplete-{STAMP}", "epoch_x", "notes.txt"}
    assert (tmp_path / f"step_3.incomplete-{STAMP}" / "model.pt").exists()


def test_setting_aside_twice_changes_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "step_3").mkdir()
    assert len(set_aside(tmp_path, now=NOW)) == 1
    before = names_in(tmp_path)
    assert set_aside(tmp_path, now=NOW + 60) == []
    assert names_in(tmp_path) == before


def test_the_same_step_broken_again_in_the_same_second_gets_another_name(tmp_path: Path) -> None:
    for expected in (f"step_3.incomplete-{STAMP}", f"step_3.incomplete-{STAMP}-2"):
        (tmp_path / "step_3").mkdir()
        assert set_aside(tmp_path, now=NOW) == [str(tmp_path / expected)]


@pytest.mark.parametrize("name", [".step_9.hyperpod-tmp-12-1", "tmp-checkpoint-9", "step_9.tmp", "checkpoint-9_tmp"])
def test_temporary_folders_are_set_aside(tmp_path: Path, name: str) -> None:
    builders.torch_file(tmp_path / name / "model.pt")
    (moved,) = set_aside(tmp_path, now=NOW)
    assert moved.endswith(f"-9.incomplete-{STAMP}") or moved.endswith(f"_9.incomplete-{STAMP}")
    assert latest(tmp_path) == ""


def test_what_was_changed_just_now_is_left_alone_when_an_age_is_given(tmp_path: Path) -> None:
    (tmp_path / "step_3").mkdir()
    os.utime(tmp_path / "step_3", (NOW - 10, NOW - 10))
    assert set_aside(tmp_path, min_age_s=30, now=NOW) == []
    assert len(set_aside(tmp_path, min_age_s=5, now=NOW)) == 1


def test_links_are_neither_followed_nor_renamed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "step_9").mkdir(parents=True)
    root = tmp_path / "ckpt"
    root.mkdir()
    (root / "step_9").symlink_to(outside / "step_9")
    (root / "step_8").symlink_to(root / "step_8")
    builders.step_folder(root / "step_1")
    (root / "step_1" / "loop").symlink_to(root)
    assert set_aside(root, now=NOW) == []
    assert latest(root) == str(root / "step_1")
    assert names_in(root) == {"step_9", "step_8", "step_1"}


def test_a_folder_known_only_by_its_content_keeps_its_name(tmp_path: Path) -> None:
    folder = builders.dcp_folder(tmp_path / "main")
    builders.truncate(folder / "__0_0.distcp")
    assert latest(tmp_path) == ""
    assert set_aside(tmp_path, now=NOW) == []
    assert folder.exists()


def test_the_directory_itself_is_never_renamed(tmp_path: Path) -> None:
    folder = builders.dcp_folder(tmp_path / "ckpt", metadata=False)
    assert not scan(folder)[0].good
    assert set_aside(folder, now=NOW) == []
    assert folder.exists()


def test_one_that_cannot_be_read_is_neither_offered_nor_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.step_folder(tmp_path / "step_1")
    builders.step_folder(tmp_path / "step_2")
    real_open = os.open

    def refuse(path: str, *rest: int, **options: int) -> int:
        if "step_2" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert latest(tmp_path) == str(tmp_path / "step_1")
    assert set_aside(tmp_path, now=NOW) == []
    assert (scan(tmp_path)[0].certain, scan(tmp_path)[0].broken) == (False, False)
    assert scan(tmp_path)[0].problem == "cannot read model.pt: Permission denied"


def test_an_interrupted_replacement_gets_its_name_back(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / ".step_5.hyperpod-old")
    builders.step_folder(tmp_path / ".step_5.hyperpod-tmp-1-1")
    assert latest(tmp_path) == str(tmp_path / ".step_5.hyperpod-old")
    set_aside(tmp_path, now=NOW)
    assert names_in(tmp_path) == {"step_5", f"step_5.incomplete-{STAMP}"}


def test_a_missing_directory_has_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert (scan(gone), latest(gone), set_aside(gone), prune(gone, 2)) == ([], "", [], [])
    assert usage(gone).total_bytes == 0


def test_usage_tells_checkpoints_from_what_was_set_aside(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / "step_1")
    builders.step_folder(tmp_path / "step_2.incomplete-20260101T000000Z")
    used = usage(tmp_path)
    assert (used.checkpoints, used.set_aside) == (1, 1)
    assert used.checkpoint_bytes > 0
    assert used.set_aside_bytes > 0
    assert used.total_bytes >= used.checkpoint_bytes + used.set_aside_bytes


def test_pruning_is_only_shown_unless_it_was_asked_for(tmp_path: Path) -> None:
    for step in range(5):
        builders.step_folder(tmp_path / f"step_{step}")
    before = names_in(tmp_path)
    assert prune(tmp_path, keep=3) == [str(tmp_path / "step_1"), str(tmp_path / "step_0")]
    assert names_in(tmp_path) == before
    prune(tmp_path, keep=3, dry_run=False)
    assert names_in(tmp_path) == {"step_2", "step_3", "step_4"}


@pytest.mark.parametrize("keep", [-1, 0, 1, 2])
def test_pruning_never_takes_the_last_two_good_ones(tmp_path: Path, keep: int) -> None:
    for step in range(4):
        builders.step_folder(tmp_path / f"step_{step}")
    for step in (4, 5):
        builders.truncate(builders.step_folder(tmp_path / f"step_{step}") / "model.pt")
    prune(tmp_path, keep=keep, dry_run=False)
    assert names_in(tmp_path) == {"step_2", "step_3", "step_4", "step_5"}


def test_pruning_takes_what_was_set_aside_only_when_told_to(tmp_path: Path) -> None:
    (tmp_path / "step_9.incomplete-20260101T000000Z").mkdir()
    builders.step_folder(tmp_path / "step_1")
    assert prune(tmp_path, 2, dry_run=False, with_set_aside=True) == []  # a single good one: keep everything
    builders.step_folder(tmp_path / "step_2")
    assert prune(tmp_path, 2, dry_run=False) == []
    assert len(prune(tmp_path, 2, dry_run=False, with_set_aside=True)) == 1
    assert names_in(tmp_path) == {"step_1", "step_2"}


def test_killed_at_any_operation_pruning_leaves_whole_ones_and_can_be_repeated(tmp_path: Path) -> None:
    ended = False
    number = 0
    while not ended:
        number += 1
        root = tmp_path / str(number)
        for step in range(4):
            builders.step_folder(root / f"step_{step}")
        ended = run_and_die_at(number, root, lambda root=root: prune(root, keep=2, dry_run=False))
        found = scan(root)
        assert all(c.good for c in found)
        assert [c.step for c in found][:2] == [3, 2]
        prune(root, keep=2, dry_run=False)
        assert [c.step for c in scan(root)] == [3, 2]


def test_killed_at_any_operation_setting_aside_loses_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    ended = False
    number = 0
    while not ended:
        number += 1
        root = tmp_path / str(number)
        builders.step_folder(root / "step_1")
        for step in (2, 3):
            builders.truncate(builders.step_folder(root / f"step_{step}") / "model.pt")
        ended = run_and_die_at(number, root, lambda root=root: set_aside(root, now=NOW))
        set_aside(root, now=NOW)
        assert names_in(root) == {"step_1", *(f"step_{step}.incomplete-{STAMP}" for step in (2, 3))}
        assert sum(1 for path in root.rglob("*") if path.is_file()) == 6


# -- generated directories -------------------------------------------------------------------------------------------

Damage = st.sampled_from(["none", "truncate", "empty file", "drop file", "empty folder", "no metadata", "zeros"])
Kind = st.sampled_from(["step", "dcp", "file", "huggingface"])


def build(root: Path, kind: str, step: int, damage: str) -> str:
    """Write one checkpoint, good or damaged; return its path if it is whole, else ''."""
    if kind == "file":
        path = builders.torch_file(root / f"model_{step}.pt")
        victims = [path]
    elif kind == "dcp":
        path = builders.dcp_folder(root / f"step_{step}")
        victims = [path / "__1_0.distcp"]
    elif kind == "huggingface":
        path = builders.huggingface_folder(root / f"checkpoint-{step}")
        victims = [path / "model.safetensors"]
    else:
        path = builders.step_folder(root / f"step_{step}", ("model_rank_0.pt", "model_rank_1.pt"))
        victims = [path / "model_rank_0.pt"]
    if damage == "none":
        return str(path)
    if damage == "truncate":
        builders.truncate(victims[0], 7)
    elif damage == "empty file":
        victims[0].write_bytes(b"")
    elif damage == "zeros":
        victims[0].write_bytes(b"\0" * victims[0].stat().st_size)
    elif damage == "no metadata" and kind == "dcp":
        (path / ".metadata").unlink()
    elif damage == "empty folder" and path.is_dir():
        for file in path.iterdir():
            file.unlink()
    else:
        victims[0].unlink()
    return ""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(worlds=st.lists(st.tuples(Kind, Damage), max_size=5, unique_by=lambda item: item))
def test_latest_is_the_newest_whole_one_and_setting_aside_never_changes_that(
    tmp_path_factory: pytest.TempPathFactory, worlds: list[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("world")
    whole = [build(root, kind, step, damage) for step, (kind, damage) in enumerate(worlds)]
    expected = next((path for path in reversed(whole) if path), "")
    files = sum(1 for path in root.rglob("*") if path.is_file())
    assert latest(root) == expected
    first = set_aside(root, now=NOW)
    assert latest(root) == expected
    assert set_aside(root, now=NOW) == []
    assert all(os.path.exists(path) for path in whole if path)
    assert not set(whole) & set(first)
    assert sum(1 for path in root.rglob("*") if path.is_file()) == files, "setting aside deletes nothing"
