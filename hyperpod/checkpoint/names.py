"""Know checkpoints by their names: which entries of a directory are ones, and of which step.

Pure text. A name that is not understood here is never verified, offered, renamed or deleted.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MANIFEST = ".hyperpod-manifest.json"
#: Beside the checkpoints: one glob pattern a line, each must match a file in every checkpoint folder.
REQUIRED = ".hyperpod-required"
MEGATRON_TRACKER = "latest_checkpointed_iteration.txt"
DEEPSPEED_POINTER = "latest"
NO_STEP = -1


class Named(NamedTuple):
    """What a name says: the step (``NO_STEP`` if none) and what the number counts."""

    step: int
    unit: str  # "step", "epoch" or "" for a file or folder without a number
    layout: str


_DIRECTORY = re.compile(
    r"(?:(?:checkpoint[_-]|ckpt[_-])?(?:(?P<epoch>epoch)|step)|checkpoint|ckpt|global[_-]?step|iter|iteration)"
    r"[_=-]?(?P<number>\d{1,18})",
)
_FILE_SUFFIX = r"\.(?:pt|pth|ckpt|safetensors)"
_LIGHTNING = re.compile(r".*\bepoch=\d+-step=(?P<number>\d{1,18})(?:-v\d+)?" + _FILE_SUFFIX)
_EPOCH_FILE = re.compile(r"(?:.*[_-])?epoch[_=-]?(?P<number>\d{1,18})(?:[_.-].*)?" + _FILE_SUFFIX)
_NUMBERED_FILE = re.compile(r"(?:.*[_=-]|step|iter|ckpt)(?P<number>\d{1,18})" + _FILE_SUFFIX)
_PLAIN_FILE = re.compile(r"(?:checkpoint|ckpt|snapshot|last|latest|state)\.(?:pt|pth|ckpt)")
# One piece of a checkpoint, not a checkpoint: shards and per-rank files.
_PIECE = re.compile(r"rank|shard|-of-|rng_state|random_states|mp_rank|optim_states|model_states|_part")
_ASIDE = re.compile(r".+\.incomplete-\d{8}T\d{6}Z(?:-\d+)?")
_OWN_TEMPORARY = re.compile(r"\.(?P<target>.+)\.hyperpod-tmp(?:-[A-Za-z0-9]+)*")
_OWN_OLD = re.compile(r"\.(?P<target>.+)\.hyperpod-old")
_OTHER_TEMPORARY = re.compile(
    r"(?:tmp[-_.](?P<target>(?:checkpoint|global_?step|step|iter|epoch|ckpt)[_=-]?\d+)"
    r"|\.?(?P<target2>(?:checkpoint|global_?step|step|iter|epoch|ckpt)[_=-]?\d+[^/]*)[._-]te?mp)"
)


def name_directory(name: str) -> Named | None:
    """Read a folder's name, or None when it is not understood."""
    match = _DIRECTORY.fullmatch(name)
    if match is None:
        return None
    return Named(int(match["number"]), "epoch" if match["epoch"] else "step", "folder")


def name_file(name: str) -> Named | None:
    """Read a file's name, or None when it is not a checkpoint of one file."""
    if name.startswith(".") or _PIECE.search(name):
        return None
    for pattern, unit in ((_LIGHTNING, "step"), (_EPOCH_FILE, "epoch"), (_NUMBERED_FILE, "step")):
        match = pattern.fullmatch(name)
        if match:
            return Named(int(match["number"]), unit, "file")
    if _PLAIN_FILE.fullmatch(name):
        return Named(NO_STEP, "", "file")
    return None


def is_aside(name: str) -> bool:
    """Say whether the entry was set aside before."""
    return _ASIDE.fullmatch(name) is not None


def temporary_target(name: str) -> str:
    """Return the checkpoint name that a temporary entry was to become, or '' if it is none."""
    match = _OWN_TEMPORARY.fullmatch(name)
    if match:
        return match["target"]
    match = _OTHER_TEMPORARY.fullmatch(name)
    return (match["target"] or match["target2"]) if match else ""


def old_target(name: str) -> str:
    """Return the name from which ``save_atomically`` moved this entry while replacing it, or ''."""
    match = _OWN_OLD.fullmatch(name)
    return match["target"] if match else ""


def old_name(name: str) -> str:
    """Name under which the earlier version of ``name`` waits while it is being replaced."""
    return f".{name}.hyperpod-old"


def temporary_name(name: str, token: str) -> str:
    """Name of the folder or file in which ``name`` is being written."""
    return f".{name}.hyperpod-tmp-{token}"
