"""Checkpoints for training that survives: save them whole, find the newest good one, know where to resume.

Stands alone: the standard library only, so that any training script may import it. Saving is imported
when first used, which keeps ``import hyperpod.checkpoint`` cheap.

    from hyperpod import checkpoint

    start = load(checkpoint.resume_from()) if checkpoint.resume_from() else 0
    with checkpoint.save_atomically(f"{directory}/step_{step}") as tmp:
        torch.save(state, tmp / "model.pt")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hyperpod.checkpoint.job import (
    WarningFlag,
    attempt,
    checkpoint_dir,
    install_warning_flag,
    peer_lost,
    previous_failure,
    resume_from,
)

if TYPE_CHECKING:
    from hyperpod.checkpoint.find import Checkpoint, latest, scan
    from hyperpod.checkpoint.keep import Usage, prune, set_aside, usage
    from hyperpod.checkpoint.save import Saver, save_atomically

__all__ = [
    "Checkpoint",
    "Saver",
    "Usage",
    "WarningFlag",
    "attempt",
    "checkpoint_dir",
    "install_warning_flag",
    "latest",
    "peer_lost",
    "previous_failure",
    "prune",
    "resume_from",
    "save_atomically",
    "scan",
    "set_aside",
    "usage",
]

_LAZY = {
    "Checkpoint": "find",
    "Saver": "save",
    "Usage": "keep",
    "latest": "find",
    "prune": "keep",
    "save_atomically": "save",
    "scan": "find",
    "set_aside": "keep",
    "usage": "keep",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
