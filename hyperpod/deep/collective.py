"""All nodes at once: an all-reduce whose sums are known, by NCCL where there are GPUs, else by gloo."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from hyperpod.deep.result import Line

_ROUNDS = 5


def all_reduce(rank: int, world: int, head: str, port: int, elements: int, timeout_s: float, interface: str) -> Line:
    """Sum up vectors over all nodes, several times, and compare every element.

    Rank r gives r + i mod 11, so each element of the sum is a whole number that is known.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return Line("all_reduce", True, detail="PyTorch is not installed", skipped=True)
    # Debian's PyTorch has no libuv, and gloo would take loopback where a host's name leads there.
    os.environ.setdefault("USE_LIBUV", "0")
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    backend, device = ("nccl", "cuda:0") if torch.cuda.is_available() else ("gloo", "cpu")
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{head}:{port}?use_libuv=0",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_s),
        )
        line = _measure(torch, dist, rank, world, elements, device)
        dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Line("all_reduce", False, detail=f"{backend}: {first[:200]}")
    return line


def _measure(torch: Any, dist: Any, rank: int, world: int, elements: int, device: str) -> Line:
    base = torch.arange(elements, device=device, dtype=torch.float32) % 11
    wanted = world * base + world * (world - 1) / 2
    took = 0.0
    for number in range(_ROUNDS + 1):
        values = base + rank
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        if device != "cpu":
            torch.cuda.synchronize()
        # The first round opens connections.
        took += time.perf_counter() - start if number else 0.0
        if not torch.equal(values, wanted):
            bad = int((values != wanted).sum())
            return Line("all_reduce", False, detail=f"{bad} of {elements} sums are wrong")
    moved = 2 * (world - 1) / world * elements * 4 * _ROUNDS
    return Line("all_reduce", True, value=moved / took / 1e6, unit="MB/s", detail=f"{world} nodes")
