"""Change a checkpoint directory: set half-written ones aside, show what it uses, delete old ones.

Setting aside renames, always inside the same directory, and never deletes. Deleting is done by ``prune``
alone, only when asked to, and never touches the two newest good checkpoints.
"""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

from hyperpod.checkpoint import names
from hyperpod.checkpoint.find import Checkpoint, Listing, list_candidates, scan_listing

LEAST_KEPT = 2


class Usage(NamedTuple):
    """Disk use of a checkpoint directory."""

    total_bytes: int
    checkpoint_bytes: int
    set_aside_bytes: int  # renamed half-written ones and abandoned temporaries
    checkpoints: int
    set_aside: int


def set_aside(directory: str | os.PathLike[str], min_age_s: float = 0, now: float | None = None) -> list[str]:
    """Rename the half-written checkpoints newer than the newest good one; return their new paths.

    Only what is provably incomplete or damaged is renamed, to ``<name>.incomplete-<UTC time>``. One that cannot be
    read (rights, I/O error) stays. Call it when nothing writes there: between two attempts of a job.

    Args:
        directory: Where the training saves.
        min_age_s: Leave alone what was changed within this time, for directories that others write to.
        now: Epoch seconds; the system's clock by default.
    """
    restore_replaced(os.fspath(directory))
    listing = list_candidates(os.fspath(directory))
    return set_aside_listing(listing, scan_listing(listing, newest_only=True), min_age_s, now)[0]


def restore_replaced(directory: str) -> list[str]:
    """Give a checkpoint its name back whose replacement was interrupted between the two renames."""
    restored = []
    try:
        present = set(os.listdir(directory))
    except FileNotFoundError:
        return []
    for name in sorted(present):
        target = names.old_target(name)
        if target and target not in present:
            try:
                os.rename(os.path.join(directory, name), os.path.join(directory, target))
                restored.append(os.path.join(directory, target))
            except OSError:
                continue  # it is still found under its hidden name
    return restored


def set_aside_listing(
    listing: Listing, checkpoints: list[Checkpoint], min_age_s: float = 0, now: float | None = None
) -> tuple[list[str], list[str]]:
    """As ``set_aside``, of a scan made before; returns (new paths, problems)."""
    now = time.time() if now is None else now
    moved: list[str] = []
    problems: list[str] = []
    # One known only by content that is not ours, or the directory itself, keeps its name.
    victims = [
        (c.path, c.mtime) for c in checkpoints
        if c.broken and c.path != listing.directory
        and (c.step != names.NO_STEP or c.layout in ("file", "hyperpod"))
    ]  # fmt: skip
    for path in listing.temporaries:
        try:
            victims.append((path, newest_mtime(path)))
        except OSError as error:
            problems.append(f"cannot read {os.path.basename(path)}: {error.strerror}")
    for path, mtime in victims:
        if min_age_s > 0 and now - mtime < min_age_s:  # a file server's clock may be ahead
            continue
        name = os.path.basename(path)
        target = names.temporary_target(name) or names.old_target(name) or name
        try:
            moved.append(_rename_aside(path, os.path.join(listing.directory, target), now))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"cannot set {name} aside: {error.strerror}")
    return moved, problems


def _rename_aside(path: str, target: str, now: float) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    renamed = f"{target}.incomplete-{stamp}"
    number = 1
    while os.path.lexists(renamed):
        number += 1
        renamed = f"{target}.incomplete-{stamp}-{number}"
    os.rename(path, renamed)
    return renamed


def newest_mtime(path: str) -> float:
    """Newest change below a path, links not followed."""
    newest = os.lstat(path).st_mtime
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                newest = max(newest, os.lstat(os.path.join(folder, name)).st_mtime)
            except FileNotFoundError:
                continue
    return newest


def disk_bytes(path: str) -> int:
    """Bytes allocated on disk below a path, links not followed; what vanishes meanwhile counts as 0."""
    total = 0
    seen = set()
    pending = [path]
    while pending:
        current = pending.pop()
        try:
            status = os.lstat(current)
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(current) as entries:
                    pending.extend(entry.path for entry in entries)
        except OSError:
            continue
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        total += status.st_blocks * 512
    return total


def usage(directory: str | os.PathLike[str]) -> Usage:
    """Measure what the checkpoints of a directory take on disk."""
    directory = os.fspath(directory)
    listing = list_candidates(directory)
    good = sum(disk_bytes(candidate.path) for candidate in listing.candidates)
    rest = [*listing.aside, *listing.temporaries]
    aside = sum(disk_bytes(path) for path in rest)
    return Usage(disk_bytes(directory), good, aside, len(listing.candidates), len(rest))


def prune(
    directory: str | os.PathLike[str], keep: int, dry_run: bool = True, with_set_aside: bool = False
) -> list[str]:
    """Delete good checkpoints beyond the newest ``keep``; return their paths.

    Never goes below the two newest good ones, and never deletes one that could not be read. Each is renamed
    before it is deleted, so that a kill in between leaves no half of a checkpoint under its name.

    Args:
        directory: Where the training saves.
        keep: How many good ones stay; 2 at least.
        dry_run: Only say what would be deleted.
        with_set_aside: Also delete what was set aside before, once two good checkpoints exist.
    """
    import shutil

    listing = list_candidates(os.fspath(directory))
    checkpoints = scan_listing(listing, newest_only=False)
    good = [checkpoint.path for checkpoint in checkpoints if checkpoint.good]
    finished = {named.step for named in listing.trackers.values()}
    doomed = [
        c.path for c in checkpoints
        if c.good and c.path in good[max(keep, LEAST_KEPT) :] and c.step not in finished
    ]  # fmt: skip
    if with_set_aside and len(good) >= LEAST_KEPT:
        doomed.extend(listing.aside)
    if dry_run:
        return doomed
    for path in doomed:
        folder, name = os.path.split(path)
        grave = os.path.join(folder, names.temporary_name(name, "pruned"))
        if os.path.isdir(grave):
            shutil.rmtree(grave)
        os.rename(path, grave)
        if os.path.isdir(grave):
            shutil.rmtree(grave)
        else:
            os.unlink(grave)
    return doomed
