#!/usr/bin/env python3
"""A small but real distributed training: PyTorch DDP on CPUs with gloo, which survives the loss of a node.

It shows all that a training script does to be resumable, and nothing else:

* it loads what HYPERPOD_RESUME_FROM names, which is empty on the first attempt;
* it saves model, optimizer and the random state of every rank, whole or not at all (save_atomically);
* the data of a step depends on the seed, the step and the rank alone, so a resumed run sees the same data;
* it ends at once when a peer is lost, and saves when it is warned of its end.

Each step's loss goes to a metrics file. After a resume it equals the loss of an undisturbed run to the last bit.

Start it with srun (one task per rank; see ddp.sbatch) or with torchrun (see torchrun.sbatch).
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

# torch may be built without libuv, as Debian's is; ranks started directly read this. torchrun ignores it.
os.environ.setdefault("USE_LIBUV", "0")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hyperpod import checkpoint

WIDTH = 64
VOCABULARY = 32
CONTEXT = 16


class TinyTransformer(torch.nn.Module):
    """Predicts the next symbol; its dropout makes the random state matter."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.position = torch.nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.block = torch.nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=2 * WIDTH, dropout=dropout, batch_first=True
        )
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.block(self.embed(tokens) + self.position, src_mask=mask, is_causal=True))


def main() -> int:
    options = parse_options()
    rank, world = find_place_in_world()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=options.timeout))
    warned = checkpoint.install_warning_flag(signal.SIGUSR1)

    torch.manual_seed(options.seed)
    model = DistributedDataParallel(TinyTransformer(options.dropout))
    model.register_comm_hook(None, mean_in_rank_order)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    torch.manual_seed(options.seed * 1000 + rank)  # from here on dropout differs between ranks

    source = checkpoint.resume_from()
    first = 1
    if source:
        first = load(Path(source), model, optimizer, rank) + 1
    directory = Path(checkpoint.checkpoint_dir(options.checkpoint_dir))
    metrics = Metrics(Path(options.metrics) if options.metrics else directory / "metrics.jsonl", rank)
    if rank == 0:
        say(f"attempt {checkpoint.attempt()}: {world} ranks, steps {first} to {options.steps}, "
            + (f"resuming from {source}" if source else "from the beginning"))  # fmt: skip
        if checkpoint.previous_failure():
            say(f"the attempt before ended: {checkpoint.previous_failure()}")

    for step in range(first, options.steps + 1):
        if checkpoint.peer_lost():
            say(f"rank {rank}: a peer was lost, ending before step {step}")
            return 1
        inputs, targets = make_batch(options.seed, step, rank, options.batch)
        optimizer.zero_grad(set_to_none=True)
        logits = model(inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        time.sleep(options.step_time)  # stands for the work of a real model

        # One exchange tells all ranks the same: the mean loss, and whether any of them was warned.
        shared = gather_in_rank_order(torch.tensor([loss.item(), float(warned.is_set)], dtype=torch.float64))
        mean_loss = shared[:, 0].sum().item() / world
        metrics.write(step, mean_loss, world)
        if rank == 0 and (step % options.print_every == 0 or step == first):
            say(f"step {step} loss {mean_loss:.6f}")

        if should_fail(options, step, rank):
            say(f"rank {rank}: failing on purpose at step {step} ({options.fail_how})")
            fail(options.fail_how)
        is_warned = bool(shared[:, 1].any())
        if step % options.save_every == 0 or step == options.steps or is_warned:
            save(directory / f"step_{step}", model, optimizer, step, rank, world)
            warned.clear()
        if is_warned and options.stop_when_warned:
            if rank == 0:
                say(f"warned of the end: saved step {step}, leaving")
            break
    if rank == 0:
        say("done")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Resumable DDP training on CPUs.")
    add = parser.add_argument
    add("--steps", type=int, default=200, help="train up to this step (default 200)")
    add("--step-time", type=float, default=0.0, metavar="S", help="seconds to sleep in each step")
    add("--save-every", type=int, default=20, metavar="N", help="save each N steps (default 20)")
    add("--print-every", type=int, default=10, metavar="N", help="print each N steps (default 10)")
    add("--seed", type=int, default=1)
    add("--batch", type=int, default=16, help="sequences per rank and step")
    add("--lr", type=float, default=3e-3)
    add("--dropout", type=float, default=0.1)
    add("--checkpoint-dir", default="checkpoints", help="used when HYPERPOD_CHECKPOINT_DIR is not set")
    add("--metrics", default="", help="JSON lines file; default metrics.jsonl beside the checkpoints")
    add("--timeout", type=float, default=120.0, metavar="S", help="of every collective (default 120)")
    add("--stop-when-warned", action="store_true", help="on SIGUSR1 save and leave, not only save")
    add("--fail-at", type=int, default=0, metavar="STEP", help="fail at this step, on purpose")
    add("--fail-rank", type=int, default=0, help="which rank fails (default 0)")
    add("--fail-attempts", type=int, default=1, metavar="N", help="fail in the first N attempts (default 1)")
    add("--fail-how", choices=["exit", "kill", "raise", "hang"], default="exit")
    return parser.parse_args()


def find_place_in_world() -> tuple[int, int]:
    """Return (rank, world size) and set what env:// needs, from torchrun's variables or from Slurm's."""
    if "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        os.environ["RANK"] = os.environ["SLURM_PROCID"]
        os.environ["WORLD_SIZE"] = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ["SLURM_NTASKS"]
        # Computed anew in each attempt: the nodes, the first one too, may be others than before.
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ["SLURM_JOB_NODELIST"]
        hosts = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], check=True, capture_output=True, text=True, timeout=30
        ).stdout.split()
        os.environ["MASTER_ADDR"] = hosts[0]
        # Of its own for each attempt, so that a socket of the one before is never met.
        job = int(os.environ["SLURM_JOB_ID"])
        os.environ["MASTER_PORT"] = str(20000 + (job * 8 + checkpoint.attempt()) % 10000)
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def make_batch(seed: int, step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the data of one step of one rank: the same, whenever and in whichever attempt it is asked for."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 4096 + rank)
    start = torch.randint(0, VOCABULARY, (size, 1), generator=generator)
    stride = torch.randint(1, 4, (size, 1), generator=generator)
    tokens = (start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def gather_in_rank_order(values: torch.Tensor) -> torch.Tensor:
    rows = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, values)
    return torch.stack(rows)


def mean_in_rank_order(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients in the order of ranks (DDP checks this function's annotations: keep them).

    DDP regroups its buckets after the first step of a process, and an all-reduce adds in an order that depends on
    the place in the bucket. A resumed run would differ in the last bits; adding in a fixed order does not.
    """
    buffer = bucket.buffer()
    rows = gather_in_rank_order(buffer)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(total / len(rows))
    return future


def save(
    path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int, rank: int, world: int
) -> None:
    """Write model and optimizer from rank 0, the random state from each rank; all of it or nothing."""
    with checkpoint.save_atomically(path, rank=rank, world_size=world, barrier=dist.barrier, step=step) as tmp:
        if rank == 0:
            torch.save(model.module.state_dict(), tmp / "model.pt")
            torch.save(optimizer.state_dict(), tmp / "optimizer.pt")
            (tmp / "progress.json").write_text(json.dumps({"step": step, "world_size": world}))
        torch.save(torch.get_rng_state(), tmp / f"rng_state_rank_{rank}.pt")
    if rank == 0:
        say(f"saved {path}")


def load(path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int) -> int:
    """Load a checkpoint into model, optimizer and random state; return its step."""
    progress = json.loads((path / "progress.json").read_text())
    if progress["world_size"] != dist.get_world_size():
        raise SystemExit(f"{path} was saved by {progress['world_size']} ranks, now there are {dist.get_world_size()}")
    model.module.load_state_dict(torch.load(path / "model.pt", weights_only=True))
    optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True))
    torch.set_rng_state(torch.load(path / f"rng_state_rank_{rank}.pt", weights_only=True))
    return int(progress["step"])


class Metrics:
    """One JSON line a step, appended by rank 0, over all attempts."""

    def __init__(self, path: Path, rank: int) -> None:
        self._stream = None
        if rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
            self._stream = path.open("a", encoding="utf-8", buffering=1)
            if torn:  # the attempt before was cut off in mid-line
                self._stream.write("\n")

    def write(self, step: int, loss: float, world: int) -> None:
        if self._stream is not None:
            line = {"time": time.time(), "attempt": checkpoint.attempt(), "step": step, "loss": loss,
                    "host": socket.gethostname(), "world": world}  # fmt: skip
            self._stream.write(json.dumps(line) + "\n")


def should_fail(options: argparse.Namespace, step: int, rank: int) -> bool:
    return step == options.fail_at and rank == options.fail_rank and checkpoint.attempt() <= options.fail_attempts


def fail(how: str) -> None:
    if how == "raise":
        raise RuntimeError("failed on purpose")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(86400)
    os._exit(1)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {socket.gethostname()}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
