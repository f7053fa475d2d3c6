"""Say whether the folder of one checkpoint is complete, from names, sizes and its small index files.

Each ``_missing_*`` rule looks for the marks of one layout and returns a sentence on what lacks, or ''.
A rule that finds none of its marks says nothing, so all rules may be asked about every folder: real
checkpoints nest layouts (a Hugging Face folder holds a DeepSpeed one, which holds shards).
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import re
import stat
from typing import Any, NamedTuple

from hyperpod.checkpoint.files import (
    DATA_SUFFIXES,
    MAX_JSON_BYTES,
    Damaged,
    check_file,
    may_be_empty,
    read_dcp_metadata,
)
from hyperpod.checkpoint.names import MANIFEST

MAX_DEPTH = 8
MAX_ENTRIES = 200_000


class Tree(NamedTuple):
    """The files below one folder."""

    root: str
    files: dict[str, int]  # relative path -> size in bytes
    directories: frozenset[str]
    size_bytes: int
    mtime: float  # newest of all


def walk(root: str) -> Tree:
    """List the regular files of a folder with their sizes, never entering linked folders.

    Raises:
        OSError: if a part cannot be listed; a partial listing would look like missing shards.
    """
    files: dict[str, int] = {}
    directories: set[str] = set()
    status = os.stat(root)
    newest = status.st_mtime
    size = 0
    pending = [("", 0)]
    while pending:
        relative, depth = pending.pop()
        with os.scandir(os.path.join(root, relative) if relative else root) as entries:
            for entry in entries:
                name = os.path.join(relative, entry.name)
                if len(files) + len(directories) > MAX_ENTRIES:
                    raise OSError(f"more than {MAX_ENTRIES} files")
                if entry.is_dir(follow_symlinks=False):
                    directories.add(name)
                    newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
                    if depth < MAX_DEPTH:
                        pending.append((name, depth + 1))
                    continue
                try:
                    status = entry.stat()
                except OSError as error:
                    # A link to nothing or to itself is a missing file, which the rules find.
                    if error.errno in (errno.ENOENT, errno.ELOOP):
                        continue
                    raise
                if stat.S_ISREG(status.st_mode):
                    files[name] = status.st_size
                    size += status.st_size
                    newest = max(newest, status.st_mtime)
    return Tree(root, files, frozenset(directories), size, newest)


def describe_layout(tree: Tree, fallback: str) -> str:
    """Name the layout by what the folder holds, or keep what its name suggested."""
    top = {name for name in tree.files if os.sep not in name}
    if "trainer_state.json" in top:
        return "huggingface"
    if any(name.endswith(("_model_states.pt", "_optim_states.pt")) for name in top):
        return "deepspeed"
    if any(name.split(os.sep)[0].startswith("mp_rank_") for name in tree.directories):
        return "megatron"
    if ".metadata" in top or any(name.endswith(".distcp") for name in top):
        return "megatron" if "metadata.json" in top and "common.pt" in top else "dcp"
    if fallback == "folder" and MANIFEST in top:
        return "hyperpod"
    return fallback


def find_missing(tree: Tree, required: tuple[str, ...] = ()) -> str:
    """Return what the folder lacks to be complete, or ''.

    Args:
        tree: The files of the checkpoint.
        required: Glob patterns that each must match at least one file, relative to the folder.
    Raises:
        OSError: if an index file cannot be read.
    """
    data = {name: size for name, size in tree.files.items() if not _is_temporary(name)}
    if not data:
        return "holds no files"
    problem = _missing_of_manifest(tree)
    if problem:
        return problem
    declared = declared_files(tree)
    for name, size in sorted(data.items()):
        if size == 0 and name not in declared and not may_be_empty(os.path.basename(name).lower()):
            return f"{name} is empty"
    for rule in (
        _missing_distcp,
        _missing_indexed,
        _missing_numbered,
        _missing_ranks,
        _missing_deepspeed,
        _missing_megatron,
        _missing_huggingface,
    ):
        problem = rule(tree, data)
        if problem:
            return problem
    for pattern in required:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in data):
            return f"no file matches {pattern}, which is declared as required"
    return ""


def find_damage(tree: Tree) -> str:
    """Open every file far enough to see that it is whole; return what is wrong, or ''.

    Raises:
        OSError: if a file cannot be read.
    """
    declared = declared_files(tree)
    for name, size in sorted(tree.files.items()):
        if not _is_temporary(name) and not (size == 0 and name in declared):
            try:
                check_file(os.path.join(tree.root, name))
            except Damaged as error:
                return f"{name} {error}"
    return ""


def kinds(tree: Tree) -> frozenset[str]:
    """Name the kinds of data files a folder holds: their names with the numbers taken out."""
    return frozenset(
        re.sub(r"\d+", "#", name) for name in tree.files
        if name.lower().endswith(DATA_SUFFIXES) and not _is_temporary(name)
    )  # fmt: skip


def _is_temporary(name: str) -> bool:
    base = os.path.basename(name)
    return (base.startswith(".") and base not in (".metadata", MANIFEST)) or base.endswith((".tmp", ".part"))


def _load_json(tree: Tree, name: str) -> Any:
    if tree.files[name] > MAX_JSON_BYTES:
        raise OSError(f"{name} is too large to be checked")
    with open(os.path.join(tree.root, name), "rb") as stream:
        try:
            return json.loads(stream.read())
        except (ValueError, RecursionError):
            raise Damaged("is not valid JSON") from None


def read_manifest(tree: Tree) -> dict[str, Any]:
    """Return the manifest that ``save_atomically`` left, {} if there is none; Damaged if it is not one."""
    if MANIFEST not in tree.files:
        return {}
    manifest = _load_json(tree, MANIFEST)
    try:
        files = {str(name): int(size) for name, size in manifest["files"].items()}
        return {"files": files, "extra": [str(name) for name in manifest.get("extra", ())],
                "step": manifest.get("step")}  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Damaged("is not a manifest") from None


def declared_files(tree: Tree) -> frozenset[str]:
    """Names in the manifest, if it has a readable one."""
    try:
        return frozenset(read_manifest(tree).get("files", ()))
    except Damaged:
        return frozenset()


def _missing_of_manifest(tree: Tree) -> str:
    try:
        manifest = read_manifest(tree)
    except Damaged:
        return f"{MANIFEST} does not parse"
    files, extra = manifest.get("files", {}), manifest.get("extra", ())
    for name, size in sorted(files.items()):
        if name not in tree.files:
            return f"{name} is missing"
        if tree.files[name] != size:
            return f"{name} has {tree.files[name]} bytes, {size} were saved"
    for name in extra:
        if not os.path.exists(os.path.join(tree.root, name)):
            return f"{name} is missing, which was declared as an extra file"
    return ""


def _missing_distcp(tree: Tree, data: dict[str, int]) -> str:
    folders = {os.path.dirname(name) for name in data if name.endswith(".distcp")}
    folders |= {os.path.dirname(name) for name in data if os.path.basename(name) == ".metadata"}
    for folder in sorted(folders):
        metadata = os.path.join(folder, ".metadata")
        if metadata not in data:
            return f"{metadata} is missing, so the distributed checkpoint was not finished"
        shards = [name for name in data if os.path.dirname(name) == folder and name.endswith(".distcp")]
        try:
            named = read_dcp_metadata(os.path.join(tree.root, metadata))
        except Damaged as error:
            return f"{metadata} {error}"
        for shard, least in sorted(named.items()):
            path = os.path.join(folder, shard)
            if path not in data:
                return f"{path} is missing"
            if data[path] < least:
                return f"{path} has {data[path]} bytes, .metadata needs {least}"
        if not named and not shards:
            return f"{metadata} stands alone, without shards"
        for shard in shards:
            if not named and not re.fullmatch(r"__\d+_\d+\.distcp", os.path.basename(shard)):
                return f"{shard} is not a shard's name"
    return ""


def _missing_indexed(tree: Tree, data: dict[str, int]) -> str:
    for name in sorted(data):
        if not name.endswith(".index.json"):
            continue
        try:
            index = _load_json(tree, name)
            shards = {str(shard) for shard in index["weight_map"].values()}
        except (Damaged, KeyError, TypeError, AttributeError):
            return f"{name} does not parse"
        for shard in sorted(shards):
            path = os.path.join(os.path.dirname(name), shard)
            if path not in data:
                return f"{path} is missing"
    return ""


def _missing_numbered(tree: Tree, data: dict[str, int]) -> str:
    """``model-00001-of-00003.safetensors``: all three."""
    for name in sorted(data):
        match = re.fullmatch(r"(.*[-_])(\d+)-of-(\d+)(\..*)?", name)
        if match and 0 < int(match[3]) <= 100_000:
            first = 0 if f"{match[1]}{0:0{len(match[2])}d}-of-{match[3]}{match[4] or ''}" in data else 1
            for number in range(first, int(match[3]) + first):
                path = f"{match[1]}{number:0{len(match[2])}d}-of-{match[3]}{match[4] or ''}"
                if path not in data:
                    return f"{path} is missing"
    return ""


_RANKED = re.compile(r"(.*?(?:world_size_(\d+)_)?(?:rank|rng_state|random_states)[_-]?)(\d+)([^\d/][^/]*)?")


def _missing_ranks(tree: Tree, data: dict[str, int]) -> str:
    """Files of each rank: from 0 without a gap, and all of them where the name tells the world's size."""
    groups: dict[tuple[str, str], dict[int, str]] = {}
    worlds: dict[tuple[str, str], int] = {}
    for name in data:
        folder, base = os.path.split(name)
        match = _RANKED.fullmatch(base)
        if match is None or "mp_rank" in base:
            continue
        key = (os.path.join(folder, match[1]), match[4] or "")
        groups.setdefault(key, {})[int(match[3])] = match[3]
        if match[2]:
            worlds[key] = int(match[2])
    for key, found in sorted(groups.items()):
        width = min(len(text) for text in found.values())
        # One file per node of 4, 8 or 16 ranks is a pattern of its own, not a row of gaps.
        stride = next((n for n in (16, 8, 4) if len(found) > 1 and key not in worlds
                       and sorted(found) == list(range(0, max(found) + 1, n))), 1)  # fmt: skip
        for rank in range(0, worlds.get(key, max(found) + 1), stride):
            if rank not in found:
                return f"{key[0]}{rank:0{width}d}{key[1]} is missing"
    return ""


_DEEPSPEED_SHARD = re.compile(r"(?:[a-z0-9]+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(optim|model)_states\.pt")
_DEEPSPEED_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")


def _missing_deepspeed(tree: Tree, data: dict[str, int]) -> str:
    pointer = "latest"
    if pointer in data and any(name.startswith("global_step") for name in tree.directories):
        with open(os.path.join(tree.root, pointer), "rb") as stream:
            tag = os.fsdecode(stream.read(4096)).strip()
        if tag not in tree.directories:
            return f"latest names {tag!r}, which is missing"
    elif any(re.fullmatch(r"global_step\d+", name) for name in tree.directories):
        return "latest is missing beside global_step*, so the DeepSpeed part was not finished"
    folders: dict[str, dict[str, set[tuple[int, int]]]] = {}
    for name in data:
        folder, base = os.path.split(name)
        match = _DEEPSPEED_SHARD.fullmatch(base)
        if match:
            found = folders.setdefault(folder, {"optim": set(), "model": set(), "plain": set()})
            found[match[3]].add((int(match[1]), int(match[2])))
            continue
        match = _DEEPSPEED_MODEL.fullmatch(base)
        if match:
            found = folders.setdefault(folder, {"optim": set(), "model": set(), "plain": set()})
            found["plain"].add((0, int(match[1])))
    for folder, found in sorted(folders.items()):
        shards = found["optim"] | found["model"]
        everything = shards | found["plain"]
        if not found["model"] and not found["plain"]:
            return os.path.join(folder, "mp_rank_00_model_states.pt is missing")
        data_ranks = range(max(rank for rank, _ in everything) + 1)
        model_ranks = range(max(rank for _, rank in everything) + 1)
        for kind in ("optim", "model"):
            for data_rank in data_ranks if found[kind] else ():
                for model_rank in model_ranks:
                    if (data_rank, model_rank) not in found[kind]:
                        name = f"zero_pp_rank_{data_rank}_mp_rank_{model_rank:02d}_{kind}_states.pt"
                        return os.path.join(folder, f"{name} is missing")
        for model_rank in model_ranks if found["plain"] else ():
            if (0, model_rank) not in found["plain"]:
                return os.path.join(folder, f"mp_rank_{model_rank:02d}_model_states.pt is missing")
    return ""


def _missing_megatron(tree: Tree, data: dict[str, int]) -> str:
    ranks: dict[tuple[int, ...], str] = {}
    for name in tree.directories:
        match = re.fullmatch(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?", name)
        if match:
            ranks[tuple(int(part) for part in match.groups() if part is not None)] = name
    if not ranks:
        return ""
    if len({len(key) for key in ranks}) != 1:
        return "mp_rank_* folders of two different runs are mixed"
    extents = [max(key[axis] for key in ranks) + 1 for axis in range(len(next(iter(ranks))))]
    expected = 1
    for extent in extents:
        expected *= extent
    if expected != len(ranks):
        return f"{expected - len(ranks)} of {expected} mp_rank_* folders are missing"
    held = {name: {os.path.relpath(f, name) for f in data if f.startswith(name + os.sep)} for name in ranks.values()}
    everywhere = set().union(*held.values())
    if not everywhere:
        return "the mp_rank_* folders are empty"
    for name in sorted(held):
        for file in sorted(everywhere - held[name]):
            # Only the main file is sure to be everywhere; the distributed optimizer's may be on some ranks.
            if file.startswith("model") or not held[name]:
                return f"{os.path.join(name, file)} is missing"
    return ""


_HF_WEIGHTS = (
    "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "pytorch_model.bin.index.json",
    "adapter_model.safetensors", "adapter_model.bin", "pytorch_model_fsdp.bin",
)  # fmt: skip
_HF_MARKS = (*_HF_WEIGHTS, "trainer_state.json", "training_args.bin", "adapter_config.json")


def _missing_huggingface(tree: Tree, data: dict[str, int]) -> str:
    """The trainer writes weights, optimizer, scheduler, random state and, last, ``trainer_state.json``."""
    base = os.path.basename(tree.root)
    if not re.fullmatch(r"checkpoint-\d+", base) or not any(mark in data for mark in _HF_MARKS):
        return ""
    if "trainer_state.json" not in data:
        # accelerate's save_state writes the same folder, with the random states as its last file
        if any(name.startswith("random_states_") for name in data):
            return ""
        return "trainer_state.json is missing, which the trainer writes last"
    try:
        state = _load_json(tree, "trainer_state.json")
        step = state.get("global_step")
    except (Damaged, AttributeError):
        return "trainer_state.json does not parse"
    if isinstance(step, int) and step != int(base.rsplit("-", 1)[1]):
        return f"trainer_state.json is of step {step}"
    sharded = [name for name in tree.directories if re.match(r"(pytorch_model_fsdp|global_step)", name)]
    if not sharded and not any(name in data for name in _HF_WEIGHTS):
        if not any(re.search(r"-of-\d+\.(safetensors|bin)$", name) for name in data):
            return "the model's weights are missing"
        return "the index of the model's shards is missing"
    optimizer = any(name in data for name in ("optimizer.pt", "optimizer.bin", "optimizer.safetensors"))
    optimizer = optimizer or any(re.match(r"(optimizer|global_step)", name) for name in tree.directories)
    if "scheduler.pt" in data and not optimizer:
        return "optimizer.pt is missing"
    return ""
