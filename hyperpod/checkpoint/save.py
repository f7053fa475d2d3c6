"""Write a checkpoint so that a kill at any moment leaves the old one or the new one, never half of one.

Everything is written into a hidden folder beside the target, flushed to disk, listed in a manifest, and only
then renamed. What a kill leaves behind is a folder that ``scan`` ignores and the next save removes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperpod.checkpoint import names

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeAlias

    #: A function that is given the temporary path, or the content of the one file.
    Content: TypeAlias = bytes | str | Callable[[Path], Any]

FILE_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".npz", ".npy", ".json", ".txt", ".tar")
#: Above this many ranks, each flushes its node with one sync() instead of every shared file.
MANY_RANKS = 64


class Saver:
    """One save under way; see ``save_atomically``."""

    def __init__(
        self, path: str, is_file: bool, rank: int, world_size: int,
        barrier: Callable[[], Any] | None, extra: tuple[str, ...], step: int | None,
    ) -> None:  # fmt: skip
        if world_size > 1 and barrier is None:
            raise ValueError("barrier is needed when world_size > 1: without it a half-written save is committed")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not within a world of {world_size}")
        self.path = path
        self._is_file = is_file
        self._rank = rank
        self._world_size = world_size
        self._barrier = barrier
        self._extra = extra
        self._step = step
        self._parent, self._name = os.path.split(path)
        job = re.sub(r"[^A-Za-z0-9]", "", os.environ.get("SLURM_JOB_ID", "")) or "local"
        attempt = re.sub(r"[^0-9]", "", os.environ.get("HYPERPOD_ATTEMPT", "")) or "1"
        # The same on every rank without talking, another in every attempt.
        self._folder = os.path.join(self._parent, names.temporary_name(self._name, f"{job}-{attempt}"))

    def __enter__(self) -> Path:
        if self._rank == 0:
            os.makedirs(self._parent, exist_ok=True)
            self._remove_leftovers()
            os.mkdir(self._folder)
        self._wait()
        return Path(self._folder, self._name) if self._is_file else Path(self._folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # The other ranks stay in the barrier until their time-out: as with any rank that fails.
            if self._rank == 0:
                _remove(self._folder)
            return
        if self._rank == 0:
            if self._world_size == 1:
                self._commit()
            else:
                _flush_files(self._folder)
                self._wait()
                self._commit()
        else:
            if self._world_size > MANY_RANKS:
                os.sync()
            else:
                _flush_files(self._folder)
            self._wait()
        self._wait()

    def _wait(self) -> None:
        if self._barrier is not None and self._world_size > 1:
            self._barrier()

    def _remove_leftovers(self) -> None:
        """Clear what earlier, killed saves of this very checkpoint left."""
        old = os.path.join(self._parent, names.old_name(self._name))
        if os.path.lexists(old):
            if os.path.lexists(self.path):
                _remove(old)
            else:
                os.rename(old, self.path)
        for name in os.listdir(self._parent):
            if name.startswith(names.temporary_name(self._name, "")):
                _remove(os.path.join(self._parent, name))

    def _commit(self) -> None:
        sizes = _flush_files(self._folder)
        if not sizes:
            _remove(self._folder)
            raise ValueError(f"nothing was written for {self.path}")
        if self._is_file:
            written = os.path.join(self._folder, self._name)
            if self._name not in sizes:
                _remove(self._folder)
                raise ValueError(f"{self._name} was not written, but {sorted(sizes)[0]}")
            _flush_directory(self._folder)
            os.replace(written, self.path)
            _flush_directory(self._parent)
            _remove(self._folder)
            return
        self._write_manifest(sizes)
        _flush_directories(self._folder)
        old = os.path.join(self._parent, names.old_name(self._name))
        replacing = os.path.lexists(self.path)
        if replacing:
            # A full folder cannot be replaced in one call on every file system. Killed between these two,
            # the old one is found under its hidden name, and gets its name back at the next set_aside or save.
            os.rename(self.path, old)
        os.rename(self._folder, self.path)
        _flush_directory(self._parent)
        if replacing:
            _remove(old)

    def _write_manifest(self, sizes: dict[str, int]) -> None:
        named = names.name_directory(self._name)
        step = self._step if self._step is not None else (named.step if named else None)
        manifest = {"version": 1, "step": step, "time": time.time(), "world_size": self._world_size,
                    "files": sizes, "extra": list(self._extra)}  # fmt: skip
        path = os.path.join(self._folder, names.MANIFEST)
        with open(path, "w", encoding="ascii") as stream:
            json.dump(manifest, stream, indent=1, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())


def save_atomically(
    path: str | os.PathLike[str],
    content: Content | Mapping[str, Content] | None = None,
    *,
    kind: str = "",
    rank: int = 0,
    world_size: int = 1,
    barrier: Callable[[], Any] | None = None,
    extra: tuple[str, ...] | list[str] = (),
    step: int | None = None,
) -> Saver:
    """Save a checkpoint whole or not at all.

    As a context manager it gives a temporary path to write to, a folder or, for a name such as ``epoch_3.pt``,
    a file::

        with save_atomically("/fsx/ckpt/step_100") as tmp:
            torch.save(state, tmp / "model.pt")

    With ``content`` it saves at once. With several ranks every rank enters it with the same path and writes its own
    files; the barrier is called three times on each (folder made, all written, committed), and rank 0 commits. For
    a single file only rank 0 writes, yet all ranks enter. A body that raises leaves the old checkpoint as it was.

    Args:
        path: Final place. An existing checkpoint there is replaced.
        content: A function of the temporary path; or bytes or text of the one file; or a mapping of
            relative file name to any of these.
        kind: "file" or "folder" where the name alone would tell wrongly.
        rank: This process's rank.
        world_size: How many ranks enter.
        barrier: Returns once all ranks have called it, such as ``torch.distributed.barrier``.
        extra: Files, relative to the checkpoint, which must exist for it to count as complete although they are
            written elsewhere, such as ``../dataloader_100.pt``.
        step: Step number for the manifest, when the name carries none.
    Raises:
        ValueError: if the arguments don't fit together, or nothing was written.
        OSError: if the disk is full or not writable; the old checkpoint is untouched.
    """
    if kind not in ("", "file", "folder"):
        raise ValueError(f"kind is {kind!r}; allowed are 'file' and 'folder'")
    target = os.path.abspath(os.fspath(path))
    is_file = kind == "file" or (kind == "" and target.lower().endswith(FILE_SUFFIXES))
    saver = Saver(target, is_file, rank, world_size, barrier, tuple(extra), step)
    if content is not None:
        with saver as temporary:
            if isinstance(content, Mapping):
                if is_file:
                    raise ValueError(f"{target} is one file; several were given")
                for name, part in content.items():
                    place = temporary / name
                    if os.path.isabs(name) or ".." in Path(name).parts:
                        raise ValueError(f"{name!r} leads out of the checkpoint")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    _write(place, part)
            else:
                _write(temporary, content)
    return saver


def _write(place: Path, part: Content) -> None:
    if isinstance(part, bytes):
        place.write_bytes(part)
    elif isinstance(part, str):
        place.write_text(part, encoding="utf-8")
    else:
        part(place)


def _flush_files(folder: str) -> dict[str, int]:
    """Flush every file below a folder; return their sizes by relative name."""
    sizes = {}
    for current, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(current, name)
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue  # a link or socket: nothing of it to flush
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                sizes[os.path.relpath(path, folder)] = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
    return sizes


def _flush_directories(folder: str) -> None:
    for current, _, _ in os.walk(folder, topdown=False):
        _flush_directory(current)


def _flush_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such call
            raise
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    import shutil

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
