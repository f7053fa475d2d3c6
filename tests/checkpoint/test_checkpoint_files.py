"""Single files: whole ones pass, whatever was cut off or left empty does not."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from hyperpod.checkpoint.files import Damaged, check_file, read_dcp_metadata
from tests.checkpoint import builders


def write_json(path: Path) -> Path:
    path.write_text('{"weight_map": {"a": "b"}}')
    return path


def write_pickle(path: Path) -> Path:
    path.write_bytes(pickle.dumps(list(range(500)), protocol=4))
    return path


WRITERS = {
    "model.pt": builders.torch_file,
    "optimizer.bin": builders.torch_file,
    "last.ckpt": builders.torch_file,
    "model.safetensors": builders.safetensors_file,
    "index.json": write_json,
    "state.pkl": write_pickle,
    "plain.pt": write_pickle,
    "latents.npz": builders.torch_file,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_whole_file_opens(tmp_path: Path, name: str) -> None:
    check_file(str(WRITERS[name](tmp_path / name)))


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_cut_off_at_any_place_is_damaged(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name)
    whole = path.read_bytes()
    for length in sorted({*range(0, len(whole), 23), *range(12), *range(len(whole) - 24, len(whole))}):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            check_file(str(path))


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "state.pkl", "x.distcp", "a.npy", ".metadata"])
def test_a_file_of_zeros_as_a_crash_leaves_it_is_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\0" * 5000)
    if name == "state.pkl":  # not a pickle at all: nothing is known about it, and nothing claimed
        check_file(str(tmp_path / name))
        return
    with pytest.raises(Damaged):
        check_file(str(tmp_path / name))


@pytest.mark.parametrize("record", ["archive/data.pkl", "archive/data/0", "archive/version"])
def test_a_hole_of_zeros_inside_a_torch_file_is_damaged(tmp_path: Path, record: str) -> None:
    import zipfile

    path = builders.torch_file(tmp_path / "model.pt", payload=9000)
    entry = zipfile.ZipFile(path).getinfo(record)
    with path.open("r+b") as stream:
        stream.seek(entry.header_offset)
        stream.write(b"\0" * 30)
    with pytest.raises(Damaged, match=r"hole|neither|zip"):
        check_file(str(path))


def test_a_zip_of_something_else_is_not_a_torch_file(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(Damaged, match=r"data\.pkl"):
        check_file(str(tmp_path / "model.pt"))


def test_safetensors_with_bytes_behind_its_tensors_is_damaged(tmp_path: Path) -> None:
    path = builders.safetensors_file(tmp_path / "model.safetensors")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(Damaged, match="should have"):
        check_file(str(path))


def test_a_huge_declared_header_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(Damaged, match="declares a header"):
        check_file(str(path))


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str, ...]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = tmp_path / "state.pkl"
    path.write_bytes(pickle.dumps(Trap()))
    check_file(str(path))
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Trap()))
    read_dcp_metadata(str(tmp_path / ".metadata"))
    assert not (tmp_path / "sprung").exists()


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pt")
    with pytest.raises(Damaged, match="regular"):
        check_file(str(tmp_path / "model.pt"))


@pytest.mark.parametrize("name", ["_SUCCESS", "done", "save.lock", "rank.log", "events.out.tfevents.1.host"])
def test_markers_and_logs_may_be_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    check_file(str(tmp_path / name))


def test_metadata_names_every_shard_and_its_least_size(tmp_path: Path) -> None:
    folder = builders.dcp_folder(tmp_path / "step_1", ranks=3)
    assert read_dcp_metadata(str(folder / ".metadata")) == {f"__{rank}_0.distcp": 200 for rank in range(3)}


def test_an_unreadable_file_is_an_error_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        check_file(str(tmp_path / "gone.pt"))
