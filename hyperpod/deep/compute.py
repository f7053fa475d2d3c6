"""Processors and GPUs: the same computation twice, and against an answer that is known without computing it.

Silent data corruption is a machine that computes wrongly and says nothing. So every result here is exact: whole numbers
small enough that neither order nor fused operations can change the last bit, on any processor.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from typing import Any

from hyperpod.deep.result import Line, repeat

_STEPS = 20_000
_SEED = 88172645463325252
_MASK = (1 << 64) - 1

KNOWN_CHAIN = 2658416250084589850
"""The state of Marsaglia's xorshift64 (13, 7, 17) after ``_STEPS`` steps from ``_SEED``; C gives the same."""

KNOWN_FLOAT = 0.6445748354768528
"""The logistic map 3.75 x (1 - x) from 0.5 after 1,000 steps: IEEE 754 fixes every one of them to the last bit."""


def chain() -> int:
    """Return the last state of the random number generator: one wrong bit anywhere changes half of it."""
    state = _SEED
    for _ in range(_STEPS):
        state ^= (state << 13) & _MASK
        state ^= state >> 7
        state ^= (state << 17) & _MASK
    return state


def logistic() -> float:
    """Return the chaotic map's value: an error in the last bit doubles with nearly every step."""
    x = 0.5
    for _ in range(1000):
        x = 3.75 * x * (1.0 - x)
    return x


def check_core(core: int | None, seconds: float) -> str:
    """Compute on one core until the time is over; return what was wrong, or nothing."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    wrong = ""

    def work() -> int:
        nonlocal wrong
        found_chain, found_float = chain(), logistic()
        if found_chain != KNOWN_CHAIN:
            wrong = wrong or f"core {core}: integers gave {found_chain} instead of {KNOWN_CHAIN}"
        if found_float != KNOWN_FLOAT:
            wrong = wrong or f"core {core}: floating point gave {found_float!r} instead of {KNOWN_FLOAT!r}"
        return 1

    repeat(work, seconds)
    return wrong


def check_cpus(cores: Sequence[int], seconds: float) -> Line:
    """Burn every core at once and compare what each of them computes."""
    context = multiprocessing.get_context("fork")
    with context.Pool(len(cores)) as pool:
        started = time.perf_counter()
        wrong = [text for text in pool.starmap(check_core, [(core, seconds) for core in cores]) if text]
        took = time.perf_counter() - started
    if wrong:
        return Line("cpu_numeric", False, detail="; ".join(wrong[:3]))
    return Line("cpu_numeric", True, value=took, unit="s", detail=f"{len(cores)} cores")


def check_matrices(torch: Any, device: str, size: int, seconds: float) -> Line:
    """Multiply matrices whose product is known, and a second time, and compare all three bit by bit.

    Row i of A is constant i mod 7, column j of B is j mod 5: every element of the product is
    size x (i mod 7) x (j mod 5), a whole number that 32-bit floating point holds exactly.
    """
    name = f"matmul_{device.replace(':', '')}"
    if torch.device(device).type == "cuda":
        # TensorFloat-32 keeps ten bits only.
        torch.backends.cuda.matmul.allow_tf32 = False
    rows = torch.arange(size, device=device, dtype=torch.float32) % 7
    columns = torch.arange(size, device=device, dtype=torch.float32) % 5
    a = rows.unsqueeze(1).expand(size, size).contiguous()
    b = columns.unsqueeze(0).expand(size, size).contiguous()
    wanted = size * torch.outer(rows, columns)
    wrong = ""

    def work() -> int:
        nonlocal wrong
        first, second = a @ b, a @ b
        if not torch.equal(first, second):
            wrong = wrong or f"{device}: the same product differs between two computations"
        elif not torch.equal(first, wanted):
            bad = int((first != wanted).sum())
            wrong = wrong or f"{device}: {bad} of {size * size} elements of a product are not the known ones"
        return 2 * 2 * size**3

    work()
    done, took = repeat(work, seconds)
    if wrong:
        return Line(name, False, detail=wrong)
    return Line(name, True, value=done / took / 1e9, unit="GFLOP/s")


def check_with_torch(seconds: float, size: int) -> list[Line]:
    """Check the processor, and every GPU, with PyTorch's matrix products; nothing where PyTorch is not installed."""
    try:
        import torch
    except ImportError:
        return [Line("matmul", True, detail="PyTorch is not installed", skipped=True)]
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    lines = []
    for device in devices:
        try:
            lines.append(check_matrices(torch, device, size, seconds))
        except RuntimeError as error:
            # What a broken GPU says when it is used, such as "CUDA error: uncorrectable ECC error encountered".
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            lines.append(Line(f"matmul_{device.replace(':', '')}", False, detail=f"{device}: {first[:200]}"))
    return lines
