"""Write files as training frameworks write them, without those frameworks."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path


def torch_file(path: Path, payload: int = 300) -> Path:
    """Write the archive that ``torch.save`` writes: stored records, a pickle and raw tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"weight": [1.0, 2.0]}, protocol=2))
        archive.writestr("archive/data/0", bytes(range(256)) * (payload // 256) + b"x" * (payload % 256))
        archive.writestr("archive/version", "3\n")
    return path


def safetensors_file(path: Path, elements: int = 40) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [elements], "data_offsets": [0, 4 * elements]},
        "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4 * elements, 4 * elements + 12]},
    }
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\1" * (4 * elements + 12))
    return path


class _StorageInfo:
    def __init__(self, relative_path: str, offset: int, length: int) -> None:
        self.relative_path = relative_path
        self.offset = offset
        self.length = length


def dcp_folder(path: Path, ranks: int = 2, metadata: bool = True) -> Path:
    """Write a torch.distributed.checkpoint folder: a shard a rank, and the metadata that comes last."""
    path.mkdir(parents=True, exist_ok=True)
    storage = {}
    for rank in range(ranks):
        (path / f"__{rank}_0.distcp").write_bytes(b"PK\3\4" + b"s" * 196)
        for part in range(2):
            storage[f"w{rank}.{part}"] = _StorageInfo(f"__{rank}_0.distcp", 100 * part, 100)
    if metadata:
        (path / ".metadata").write_bytes(pickle.dumps({"storage_data": storage}, protocol=4))
    return path


def step_folder(path: Path, shards: tuple[str, ...] = ("model.pt", "optimizer.pt")) -> Path:
    for name in shards:
        torch_file(path / name)
    return path


def huggingface_folder(path: Path, sharded: bool = False) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    if sharded:
        shards = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
        for shard in shards:
            safetensors_file(path / shard)
        index = {"metadata": {}, "weight_map": {"a": shards[0], "b": shards[1]}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        safetensors_file(path / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        torch_file(path / name)
    step = int(path.name.split("-")[1])
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def megatron_folder(root: Path, iteration: int, tensor: int = 2, pipeline: int = 1, finished: bool = True) -> Path:
    path = root / f"iter_{iteration:07d}"
    for rank in range(tensor):
        for stage in range(pipeline):
            name = f"mp_rank_{rank:02d}" if pipeline == 1 else f"mp_rank_{rank:02d}_{stage:03d}"
            torch_file(path / name / "model_optim_rng.pt")
    if finished:
        (root / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    return path


def deepspeed_folder(root: Path, step: int, data_ranks: int = 2, model_ranks: int = 2, finished: bool = True) -> Path:
    path = root / f"global_step{step}"
    for model_rank in range(model_ranks):
        torch_file(path / f"mp_rank_{model_rank:02d}_model_states.pt")
        for rank in range(data_ranks):
            torch_file(path / f"bf16_zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_optim_states.pt")
    if finished:
        (root / "latest").write_text(f"global_step{step}")
    return path


def truncate(path: Path, count: int = 1) -> None:
    os.truncate(path, max(0, path.stat().st_size - count))
