"""Each layout: a whole one is offered; one with something missing, cut off or empty is not, and is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperpod.checkpoint import latest, save_atomically, scan
from tests.checkpoint import builders


def build_step(root: Path) -> Path:
    builders.step_folder(root / "step_100")
    return builders.step_folder(root / "step_200")


def build_dcp(root: Path) -> Path:
    builders.dcp_folder(root / "step_100")
    return builders.dcp_folder(root / "step_200")


def build_huggingface(root: Path) -> Path:
    builders.huggingface_folder(root / "checkpoint-100")
    return builders.huggingface_folder(root / "checkpoint-200")


def build_huggingface_sharded(root: Path) -> Path:
    builders.huggingface_folder(root / "checkpoint-100", sharded=True)
    return builders.huggingface_folder(root / "checkpoint-200", sharded=True)


def build_megatron(root: Path) -> Path:
    builders.megatron_folder(root, 100, tensor=2, pipeline=2)
    return builders.megatron_folder(root, 200, tensor=2, pipeline=2)


def build_deepspeed(root: Path) -> Path:
    builders.deepspeed_folder(root, 100)
    return builders.deepspeed_folder(root, 200)


def build_huggingface_deepspeed(root: Path) -> Path:
    for step in (100, 200):
        folder = builders.huggingface_folder(root / f"checkpoint-{step}")
        (folder / "optimizer.pt").unlink()
        builders.deepspeed_folder(folder, step)
    return root / "checkpoint-200"


def build_saved_atomically(root: Path) -> Path:
    for step in (100, 200):
        save_atomically(
            root / f"step_{step}",
            {"model.pt": builders.torch_file, "shards/a.safetensors": builders.safetensors_file, "note.md": "hello"},
        )
    return root / "step_200"


LAYOUTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "step": (build_step, "folder"),
    "dcp": (build_dcp, "dcp"),
    "huggingface": (build_huggingface, "huggingface"),
    "huggingface sharded": (build_huggingface_sharded, "huggingface"),
    "huggingface with deepspeed": (build_huggingface_deepspeed, "huggingface"),
    "megatron": (build_megatron, "megatron"),
    "deepspeed": (build_deepspeed, "deepspeed"),
    "saved atomically": (build_saved_atomically, "hyperpod"),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
# Files a training can do without, so that nobody can tell that one is missing once the last file is there.
OPTIONAL = {"config.json", "training_args.bin", "scheduler.pt", "rng_state_1.pth", "README.md"}


def test_links_to_nothing_and_to_themselves_inside_a_checkpoint_are_missing_files(tmp_path: Path) -> None:
    folder = builders.step_folder(tmp_path / "step_1", ("model_rank_0.pt", "model_rank_2.pt"))
    (folder / "self.pt").symlink_to(folder / "self.pt")
    (folder / "model_rank_1.pt").symlink_to(tmp_path / "gone")
    assert scan(tmp_path)[0].problem == "model_rank_1.pt is missing"
    builders.torch_file(tmp_path / "gone")
    assert scan(tmp_path)[0].good


@layouts
def test_a_whole_one_is_the_latest(tmp_path: Path, layout: str) -> None:
    build, name = LAYOUTS[layout]
    newest = build(tmp_path)
    found = scan(tmp_path)
    assert [c.step for c in found] == [200, 100]
    assert [(c.complete, c.readable, c.problem, c.certain) for c in found] == [(True, True, "", True)] * 2
    assert {c.layout for c in found} == {name}
    assert found[0].size_bytes == sum(p.stat().st_size for p in newest.rglob("*") if p.is_file())
    assert latest(tmp_path) == str(newest)


@layouts
def test_without_any_one_of_its_needed_files_the_one_before_is_taken(tmp_path: Path, layout: str) -> None:
    build, _ = LAYOUTS[layout]
    newest = build(tmp_path)
    for path in sorted(p for p in newest.rglob("*") if p.is_file()):
        if path.name in OPTIONAL or path.name == ".hyperpod-manifest.json":
            continue
        hidden = tmp_path.parent / "hidden"
        shutil.move(path, hidden)
        assert latest(tmp_path).endswith("100"), f"{path} is missing and was not missed"
        broken = scan(tmp_path)[0]
        assert (broken.complete, bool(broken.problem), broken.certain) == (False, True, True)
        shutil.move(hidden, path)
    assert latest(tmp_path) == str(newest)


@layouts
def test_with_any_one_file_cut_off_the_one_before_is_taken(tmp_path: Path, layout: str) -> None:
    build, _ = LAYOUTS[layout]
    newest = build(tmp_path)
    for path in sorted(p for p in newest.rglob("*") if p.is_file()):
        if path.name in ("latest", ".hyperpod-manifest.json"):  # one byte less is only their last line's end
            continue
        whole = path.read_bytes()
        builders.truncate(path, 1)
        assert latest(tmp_path).endswith("100"), f"{path} was cut off and was not noticed"
        path.write_bytes(whole)
    assert latest(tmp_path) == str(newest)


@layouts
def test_with_any_one_file_empty_the_one_before_is_taken(tmp_path: Path, layout: str) -> None:
    build, _ = LAYOUTS[layout]
    newest = build(tmp_path)
    for path in sorted(p for p in newest.rglob("*") if p.is_file()):
        whole = path.read_bytes()
        path.write_bytes(b"")
        assert latest(tmp_path).endswith("100"), f"{path} is empty and that was not noticed"
        path.write_bytes(whole)


@layouts
def test_an_empty_folder_of_its_name_is_not_one(tmp_path: Path, layout: str) -> None:
    newest = LAYOUTS[layout][0](tmp_path)
    shutil.rmtree(newest)
    newest.mkdir()
    assert latest(tmp_path).endswith("100")


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_7", 7), ("step-7", 7), ("step7", 7), ("global_step7", 7), ("checkpoint-7", 7), ("checkpoint_7", 7),
        ("iter_0000007", 7), ("epoch_7", 7), ("ckpt-7", 7), ("step=7", 7), ("checkpoint-epoch-7", 7),
    ],
)  # fmt: skip
def test_a_folder_name_is_understood(tmp_path: Path, name: str, step: int) -> None:
    builders.torch_file(tmp_path / name / "model.pt")
    assert [(c.step, c.good) for c in scan(tmp_path)] == [(step, True)]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch_7.pt", 7), ("epoch7_final.pt", 7), ("model_epoch_7.pth", 7), ("model_7.pt", 7), ("ckpt-7.pth", 7),
        ("epoch=3-step=7.ckpt", 7), ("run-epoch=3-step=7-v1.ckpt", 7), ("snapshot.pt", -1), ("last.ckpt", -1),
    ],
)  # fmt: skip
def test_a_file_name_is_understood(tmp_path: Path, name: str, step: int) -> None:
    builders.torch_file(tmp_path / name)
    assert [(c.step, c.good, c.layout) for c in scan(tmp_path)] == [(step, True, "file")]


@pytest.mark.parametrize(
    "name",
    [
        "notes", "step_", "step_x", "my_step_5_backup", "wandb", ".step_7", "step_7.incomplete-20260101T000000Z",
        "step_7.tmp", "tmp-checkpoint-7", ".step_7.hyperpod-tmp-12-1", "rank_7.pt", "rng_state_7.pth",
        "model-00001-of-00002.safetensors", "mp_rank_00_model_states.pt", "data.csv", "epoch_7.pt.tmp", "é\n_7.txt",
    ],
)  # fmt: skip
def test_other_names_are_not_checkpoints(tmp_path: Path, name: str) -> None:
    if "." in name[1:] and not name.startswith(("step", ".step")):
        builders.torch_file(tmp_path / name)
    else:
        builders.torch_file(tmp_path / name / "model.pt")
    assert scan(tmp_path) == []


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        builders.step_folder(tmp_path / f"step_{step}")
    assert [c.step for c in scan(tmp_path)] == [100, 20, 9]


def test_epochs_and_steps_are_not_compared_by_number_but_by_age(tmp_path: Path) -> None:
    builders.torch_file(tmp_path / "epoch_900.pt")
    builders.step_folder(tmp_path / "step_5")
    os.utime(tmp_path / "epoch_900.pt", (1, 1))
    assert [c.step for c in scan(tmp_path)] == [5, 900]


# -- rules of single layouts -----------------------------------------------------------------------------------------


def test_distributed_checkpoint_without_metadata_was_not_finished(tmp_path: Path) -> None:
    builders.dcp_folder(tmp_path / "step_1", metadata=False)
    assert "not finished" in scan(tmp_path)[0].problem


def test_a_distributed_checkpoint_of_any_name_is_found_by_its_metadata(tmp_path: Path) -> None:
    builders.dcp_folder(tmp_path / "main")
    assert latest(tmp_path) == str(tmp_path / "main")


def test_a_distributed_checkpoint_straight_in_the_directory_is_found(tmp_path: Path) -> None:
    builders.dcp_folder(tmp_path / "ckpt")
    assert latest(tmp_path / "ckpt") == str(tmp_path / "ckpt")


def test_a_nested_distributed_checkpoint_counts_too(tmp_path: Path) -> None:
    folder = builders.huggingface_folder(tmp_path / "checkpoint-5")
    (folder / "model.safetensors").unlink()
    (folder / "optimizer.pt").unlink()
    builders.dcp_folder(folder / "pytorch_model_fsdp_0")
    builders.dcp_folder(folder / "optimizer_0")
    assert scan(tmp_path)[0].problem == ""
    (folder / "optimizer_0" / ".metadata").unlink()
    assert not scan(tmp_path)[0].good


def test_trainer_state_of_another_step_is_refused(tmp_path: Path) -> None:
    folder = builders.huggingface_folder(tmp_path / "checkpoint-5")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    assert scan(tmp_path)[0].problem == "trainer_state.json is of step 4"


def test_accelerates_folders_are_complete_with_their_random_states(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    builders.safetensors_file(folder / "model.safetensors")
    builders.torch_file(folder / "optimizer.bin")
    assert not scan(tmp_path)[0].good
    builders.torch_file(folder / "random_states_0.pkl")
    assert scan(tmp_path)[0].good


def test_megatron_iterations_beyond_the_tracker_were_not_finished(tmp_path: Path) -> None:
    builders.megatron_folder(tmp_path, 100)
    builders.megatron_folder(tmp_path, 200, finished=False)
    assert latest(tmp_path) == str(tmp_path / "iter_0000100")


def test_megatrons_first_save_without_a_tracker_was_not_finished(tmp_path: Path) -> None:
    builders.megatron_folder(tmp_path, 100, finished=False)
    assert latest(tmp_path) == ""


@pytest.mark.parametrize("text", ["", "garbage", "12345678901234567890123"])
def test_a_damaged_tracker_proves_nothing(tmp_path: Path, text: str) -> None:
    builders.megatron_folder(tmp_path, 100)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(text)
    assert latest(tmp_path) == str(tmp_path / "iter_0000100")


def test_a_missing_tensor_rank_is_missed(tmp_path: Path) -> None:
    folder = builders.megatron_folder(tmp_path, 100, tensor=2, pipeline=2)
    shutil.rmtree(folder / "mp_rank_01_001")
    assert scan(tmp_path)[0].problem == "1 of 4 mp_rank_* folders are missing"


def test_a_deepspeed_tag_beyond_latest_was_not_finished(tmp_path: Path) -> None:
    builders.deepspeed_folder(tmp_path, 100)
    builders.deepspeed_folder(tmp_path, 200, finished=False)
    assert latest(tmp_path) == str(tmp_path / "global_step100")


def test_several_deepspeed_tags_without_latest_are_a_users_choice(tmp_path: Path) -> None:
    builders.deepspeed_folder(tmp_path, 100, finished=False)
    assert latest(tmp_path) == ""
    builders.deepspeed_folder(tmp_path, 200, finished=False)
    assert latest(tmp_path) == str(tmp_path / "global_step200")


def test_a_gap_between_ranks_is_a_missing_file(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / "step_1", tuple(f"model_rank_{rank}.pt" for rank in (0, 1, 3)))
    assert scan(tmp_path)[0].problem == "model_rank_2.pt is missing"


def test_one_file_per_node_of_eight_ranks_is_no_gap(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / "step_1", tuple(f"loader_rank_{rank}.pt" for rank in (0, 8, 16)))
    assert scan(tmp_path)[0].good


def test_the_worlds_size_in_a_name_tells_that_the_last_rank_is_missing(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / "step_1", tuple(f"model_world_size_4_rank_{rank}.pt" for rank in range(3)))
    assert scan(tmp_path)[0].problem == "model_world_size_4_rank_3.pt is missing"


def test_a_free_folder_which_lacks_what_the_one_before_has_is_incomplete(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / "step_1", ("model.pt", "optimizer.pt"))
    builders.step_folder(tmp_path / "step_2", ("model.pt",))
    assert scan(tmp_path)[0].problem == "holds no optimizer.pt, which step_1 has"


def test_declared_required_files_replace_the_comparison(tmp_path: Path) -> None:
    builders.step_folder(tmp_path / "step_1", ("model.pt", "optimizer.pt"))
    builders.step_folder(tmp_path / "step_2", ("model.pt",))
    (tmp_path / ".hyperpod-required").write_text("# what a checkpoint must have\nmodel*.pt\n")
    assert latest(tmp_path).endswith("step_2")
    (tmp_path / ".hyperpod-required").write_text("loader.json\n")
    assert scan(tmp_path)[0].problem == "no file matches loader.json, which is declared as required"


def test_declared_extra_files_must_exist(tmp_path: Path) -> None:
    save_atomically(tmp_path / "step_1", {"model.pt": builders.torch_file}, extra=["../loader_1.pt"])
    assert "loader_1.pt" in scan(tmp_path)[0].problem
    (tmp_path / "loader_1.pt").write_bytes(b"x")
    assert latest(tmp_path).endswith("step_1")
