"""save_atomically: killed at any moment it leaves the old checkpoint or the new one."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperpod.checkpoint import latest, save_atomically, scan, set_aside
from tests.checkpoint import builders
from tests.checkpoint.killing import run_and_die_at


def write_version(version: int) -> dict[str, Callable[[Path], object]]:
    payload = 100 + version
    return {
        "model.pt": lambda path: builders.torch_file(path, payload),
        "shards/optimizer.pt": lambda path: builders.torch_file(path, payload),
    }


def version_of(path: str) -> set[int]:
    """The versions of the files in a checkpoint: one, unless old and new are mixed."""
    found = set()
    for file in Path(path).rglob("*.pt"):
        found.add(file.stat().st_size - builders.torch_file(Path(path).parent / "probe", 100).stat().st_size)
    (Path(path).parent / "probe").unlink()
    return found


def test_killed_at_any_operation_of_a_first_save_the_one_before_or_the_new_one_is_there(tmp_path: Path) -> None:
    ended = False
    number = 0
    while not ended:
        number += 1
        root = tmp_path / str(number)
        save_atomically(root / "step_1", write_version(1))
        ended = run_and_die_at(number, root, lambda root=root: save_atomically(root / "step_2", write_version(2)))
        found = latest(root)
        assert version_of(found) == ({2} if found.endswith("step_2") else {1})
        assert all(c.good for c in scan(root)), "a killed save shows as nothing, not as a broken checkpoint"
        set_aside(root)
        assert latest(root) == found
        save_atomically(root / "step_2", write_version(3))
        assert version_of(latest(root)) == {3}
        assert not [n for n in os.listdir(root) if n.startswith(".")], "the next save clears up"
    assert number > 20
    assert latest(tmp_path / str(number)).endswith("step_2")


def test_killed_at_any_operation_of_a_replacement_the_old_or_the_new_one_is_there(tmp_path: Path) -> None:
    ended = False
    number = 0
    seen = set()
    while not ended:
        number += 1
        root = tmp_path / str(number)
        save_atomically(root / "step_1", write_version(1))
        ended = run_and_die_at(number, root, lambda root=root: save_atomically(root / "step_1", write_version(2)))
        found = latest(root)
        versions = version_of(found)
        assert versions in ({1}, {2})
        seen |= versions
        set_aside(root)
        assert latest(root) == str(root / "step_1")
        assert version_of(latest(root)) == versions
        save_atomically(root / "step_1", write_version(3))
        assert version_of(latest(root)) == {3}
        assert sorted(n for n in os.listdir(root) if ".incomplete-" not in n) == ["step_1"]
    assert seen == {1, 2}


def test_killed_at_any_operation_of_a_single_files_save_the_old_or_the_new_one_is_there(tmp_path: Path) -> None:
    ended = False
    number = 0
    old = builders.torch_file(tmp_path / "old", 100).read_bytes()
    new = builders.torch_file(tmp_path / "new", 900).read_bytes()
    while not ended:
        number += 1
        root = tmp_path / str(number)
        save_atomically(root / "epoch_1.pt", old)
        ended = run_and_die_at(number, root, lambda root=root: save_atomically(root / "epoch_1.pt", new))
        assert (root / "epoch_1.pt").read_bytes() in (old, new)
        assert latest(root) == str(root / "epoch_1.pt")
    assert (root / "epoch_1.pt").read_bytes() == new
    assert os.listdir(root) == ["epoch_1.pt"]


def test_a_training_killed_while_it_saves_again_and_again_always_leaves_a_good_one(tmp_path: Path) -> None:
    chance = random.Random(7)
    for round_number in range(8):
        root = tmp_path / str(round_number)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for step in range(1, 100_000):
                    save_atomically(root / f"step_{step % 3 + 1}", write_version(step % 50))
                    os.write(writer, b"s")
            finally:
                os._exit(1)
        os.close(writer)
        for _ in range(chance.randint(1, 12)):
            os.read(reader, 1)
        for _ in range(chance.randint(0, 20_000)):
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        found = latest(root)
        assert found
        assert len(version_of(found)) == 1
        assert all(c.good for c in scan(root))


def test_a_body_that_raises_leaves_the_old_one_and_no_rest(tmp_path: Path) -> None:
    save_atomically(tmp_path / "step_1", write_version(1))

    def write_half(tmp: Path) -> None:
        (tmp / "model.pt").write_bytes(b"half")
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        save_atomically(tmp_path / "step_1", write_half)
    assert version_of(latest(tmp_path)) == {1}
    assert os.listdir(tmp_path) == ["step_1"]


def test_the_manifest_lists_every_file_with_its_size(tmp_path: Path) -> None:
    with save_atomically(tmp_path / "step_30", extra=["../loader.bin"]) as tmp:
        (tmp / "a").mkdir()
        (tmp / "a" / "x.bin").write_bytes(b"12345")
    manifest = json.loads((tmp_path / "step_30" / ".hyperpod-manifest.json").read_text())
    assert (manifest["files"], manifest["step"], manifest["extra"]) == ({"a/x.bin": 5}, 30, ["../loader.bin"])


def test_a_folder_of_any_name_is_found_when_it_was_saved_atomically(tmp_path: Path) -> None:
    save_atomically(tmp_path / "best so far", write_version(1), step=12)
    assert [(c.step, c.good) for c in scan(tmp_path)] == [(12, True)]


def test_a_file_keeps_its_own_name_while_it_is_written(tmp_path: Path) -> None:
    with save_atomically(tmp_path / "epoch_3.pt") as tmp:
        assert tmp.name == "epoch_3.pt"
        assert latest(tmp_path) == ""
        builders.torch_file(tmp)
    assert os.listdir(tmp_path) == ["epoch_3.pt"]


@pytest.mark.parametrize("name", ["epoch_3.pt", "step_3"])
def test_a_save_that_wrote_nothing_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="nothing was written"), save_atomically(tmp_path / name):
        pass
    assert os.listdir(tmp_path) == []


def test_every_rank_writes_its_part_and_rank_0_commits_when_all_have(tmp_path: Path) -> None:
    world = 4
    meeting = threading.Barrier(world, timeout=20)
    seen_before_commit = []

    def save(rank: int) -> None:
        with save_atomically(tmp_path / "step_9", rank=rank, world_size=world, barrier=meeting.wait) as tmp:
            builders.torch_file(tmp / f"model_rank_{rank}.pt")
            seen_before_commit.append(latest(tmp_path))

    threads = [threading.Thread(target=save, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert seen_before_commit == [""] * world
    (found,) = scan(tmp_path)
    assert found.good
    assert len(json.loads((tmp_path / "step_9/.hyperpod-manifest.json").read_text())["files"]) == world


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 2}, "barrier is needed"),
        ({"rank": 1}, "not within a world of 1"),
        ({"kind": "tree"}, "allowed are 'file' and 'folder'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_made(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        save_atomically(tmp_path / "step_1", **options)
    assert os.listdir(tmp_path) == []


def test_content_may_not_lead_out_of_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leads out"):
        save_atomically(tmp_path / "step_1", {"../escape.pt": b"x"})
    assert os.listdir(tmp_path) == []


def test_a_link_in_the_place_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    save_atomically(tmp_path / "elsewhere" / "step_1", write_version(1))
    root = tmp_path / "ckpt"
    root.mkdir()
    (root / "step_1").symlink_to(tmp_path / "elsewhere" / "step_1")
    save_atomically(root / "step_1", write_version(2))
    assert version_of(str(root / "step_1")) == {2}
    assert version_of(str(tmp_path / "elsewhere" / "step_1")) == {1}
