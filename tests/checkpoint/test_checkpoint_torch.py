"""With PyTorch itself: its real files are understood, and the example training resumes to the last bit.

Skipped where torch is not installed; the nodes of a cluster have it, the machine that builds them need not.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod.checkpoint import latest, save_atomically, scan
from hyperpod.checkpoint.files import Damaged, check_file, read_dcp_metadata

torch = pytest.importorskip("torch", reason="torch is not installed here; it is on the nodes")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "configs" / "jobs" / "train_ddp.py"
WORLD = 2


def state() -> dict[str, object]:
    return {"weight": torch.arange(5000.0), "nested": {"bias": torch.ones(7), "step": 3}}


@pytest.mark.parametrize("new_format", [True, False])
def test_files_of_torch_save_open_whole_and_not_when_cut_off(tmp_path: Path, new_format: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save(state(), path, _use_new_zipfile_serialization=new_format)
    check_file(str(path))
    whole = path.read_bytes()
    # The old format carries no sizes of its tensors: only a cut within its pickles can be seen.
    for length in (len(whole) - 1, len(whole) // 2) if new_format else (400,):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            check_file(str(path))


def test_a_real_distributed_checkpoint_is_understood(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    for step in (1, 2):
        dcp.save({"model": state()}, checkpoint_id=tmp_path / f"step_{step}", no_dist=True)
    found = scan(tmp_path)
    assert [(c.layout, c.good, c.problem) for c in found] == [("dcp", True, "")] * 2
    shard = tmp_path / "step_2" / "__0_0.distcp"
    assert read_dcp_metadata(str(tmp_path / "step_2" / ".metadata")) == {shard.name: shard.stat().st_size}
    os.truncate(shard, shard.stat().st_size - 1)
    assert latest(tmp_path) == str(tmp_path / "step_1")


def test_what_was_saved_atomically_loads_again(tmp_path: Path) -> None:
    with save_atomically(tmp_path / "step_5") as tmp:
        torch.save(state(), tmp / "model.pt")
    loaded = torch.load(Path(latest(tmp_path)) / "model.pt", weights_only=True)
    assert torch.equal(loaded["weight"], state()["weight"])
    assert pickle.dumps(loaded["nested"]["step"]) == pickle.dumps(3)


def train(directory: Path, attempt: int, *options: str) -> list[int]:
    """Run the example on this machine's loopback; return the ranks' exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("HYPERPOD_", "SLURM_"))},
        "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD),
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HYPERPOD_CHECKPOINT_DIR": str(directory),
        "HYPERPOD_ATTEMPT": str(attempt), "HYPERPOD_RESUME_FROM": latest(directory) if attempt > 1 else "",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "--steps", "24", "--save-every", "5", "--timeout", "20", *options],
            env={**environment, "RANK": str(rank)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        return [process.wait(timeout=50) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def read_losses(directory: Path) -> list[tuple[int, int, float]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [(line["attempt"], line["step"], line["loss"]) for line in map(json.loads, lines)]


@pytest.mark.timeout(180)
def test_a_killed_training_resumes_with_the_losses_of_an_undisturbed_one(tmp_path: Path) -> None:
    assert train(tmp_path / "calm", 1) == [0] * WORLD
    calm = {step: loss for _, step, loss in read_losses(tmp_path / "calm")}
    assert sorted(calm) == list(range(1, 25))
    codes = train(tmp_path / "killed", 1, "--fail-at", "13", "--fail-rank", "1", "--fail-how", "kill")
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0
    assert latest(tmp_path / "killed") == str(tmp_path / "killed" / "step_10")
    assert train(tmp_path / "killed", 2) == [0] * WORLD
    killed = read_losses(tmp_path / "killed")
    assert [step for attempt, step, _ in killed if attempt == 2] == list(range(11, 25))
    assert all(calm[step] == loss for _, step, loss in killed)
