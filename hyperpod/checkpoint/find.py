"""Find the checkpoints of a directory, newest first, and tell good ones from half-written ones.

Reads only. Setting aside and deleting are in ``hyperpod.checkpoint.keep``.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from hyperpod.checkpoint import names
from hyperpod.checkpoint.files import Damaged, check_file
from hyperpod.checkpoint.layouts import (
    Tree,
    describe_layout,
    find_damage,
    find_missing,
    kinds,
    read_manifest,
    walk,
)

MAX_UNKNOWN_FOLDERS = 500


class Checkpoint(NamedTuple):
    """One saved training state, as found."""

    path: str
    step: int  # -1 when the name has no number
    layout: str  # folder, file, hyperpod, huggingface, dcp, megatron, deepspeed
    complete: bool
    readable: bool
    problem: str  # one sentence, '' when good
    size_bytes: int
    mtime: float  # newest of its files, epoch seconds
    checked: bool = True  # False: older than the one asked for, not looked into
    certain: bool = True  # False: it could not be read (rights, I/O error), which proves nothing

    @property
    def good(self) -> bool:
        """Complete and readable: training can resume from it."""
        return self.complete and self.readable

    @property
    def broken(self) -> bool:
        """Provably half-written or damaged; never said of one that merely could not be read."""
        return self.checked and self.certain and not self.good


class Candidate(NamedTuple):
    """An entry whose name says checkpoint, before anything in it was read."""

    path: str
    name: str
    named: names.Named
    is_directory: bool
    mtime: float
    size_bytes: int


class Listing(NamedTuple):
    """What a directory holds, by names alone."""

    directory: str
    candidates: list[Candidate]  # newest first
    temporaries: list[str]  # paths of folders and files that were being written
    aside: list[str]
    trackers: dict[str, names.Named]  # tracker file -> newest finished checkpoint it names
    required: tuple[str, ...]
    problems: list[str]


def list_candidates(directory: str) -> Listing:
    """List the entries that are checkpoints by name, newest first.

    Raises:
        OSError: if the directory exists and cannot be listed. One that does not exist is empty.
    """
    listing = Listing(directory, [], [], [], {}, (), [])
    try:
        with os.scandir(directory) as scanner:
            entries = sorted(scanner, key=lambda entry: entry.name)
    except FileNotFoundError:
        return listing
    present = {entry.name for entry in entries}
    found = listing.candidates
    unknown = 0
    for entry in entries:
        name = entry.name
        try:
            if entry.is_symlink():
                continue  # `latest -> step_400` is a second name of another entry, or leads elsewhere
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            listing.problems.append(f"{name}: {error.strerror}")
            continue
        is_directory = stat.S_ISDIR(status.st_mode)
        if names.is_aside(name):
            listing.aside.append(entry.path)
            continue
        old = names.old_target(name)
        if names.temporary_target(name):
            listing.temporaries.append(entry.path)
            continue
        if old and old in present:  # the new version is in place
            listing.temporaries.append(entry.path)
            continue
        shown = old or name
        if is_directory:
            named = names.name_directory(shown)
            if named is None and unknown < MAX_UNKNOWN_FOLDERS and (old or not name.startswith(".")):
                unknown += 1
                named = _name_by_content(entry.path)
        elif stat.S_ISREG(status.st_mode):
            named = names.name_file(shown)
        else:
            named = None
        if named is not None:
            found.append(Candidate(entry.path, shown, named, is_directory, status.st_mtime, status.st_size))
    if not found and any(name == ".metadata" or name.endswith(".distcp") for name in present):
        # One distributed checkpoint, overwritten in place, straight in the directory.
        own = os.stat(directory)
        named = names.Named(names.NO_STEP, "", "dcp")
        found.append(Candidate(directory, os.path.basename(directory), named, True, own.st_mtime, 0))
    _sort_newest_first(found)
    required = _read_text(directory, names.REQUIRED, present).splitlines()
    patterns = tuple(line.strip() for line in required if line.strip() and not line.startswith("#"))
    return listing._replace(required=patterns, trackers=_read_trackers(directory, present, listing.problems))


def _sort_newest_first(found: list[Candidate]) -> None:
    """By number within one unit; units by the time of their newest, as steps and epochs don't compare."""
    newest: dict[str, float] = {}
    for candidate in found:
        unit = candidate.named.unit
        newest[unit] = max(newest.get(unit, 0.0), candidate.mtime)
    found.sort(key=lambda c: (newest[c.named.unit], c.named.unit, c.named.step, c.mtime, c.name), reverse=True)


def _name_by_content(path: str) -> names.Named | None:
    """A folder of any name that carries our manifest or a distributed checkpoint's metadata."""
    try:
        if os.path.lexists(os.path.join(path, names.MANIFEST)):
            try:
                step = read_manifest(walk(path)).get("step")
            except Damaged:
                step = None
            number = step if isinstance(step, int) and step >= 0 else names.NO_STEP
            return names.Named(number, "step" if number >= 0 else "", "hyperpod")
        if os.path.lexists(os.path.join(path, ".metadata")):
            return names.Named(names.NO_STEP, "", "dcp")
    except OSError:
        return None
    return None


def _read_text(directory: str, name: str, present: set[str]) -> str:
    """Read a small regular file beside the checkpoints; '' if it is not there or not text."""
    if name not in present:
        return ""
    path = os.path.join(directory, name)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb") as stream:
            return os.fsdecode(stream.read(4096))
    except OSError:
        return ""


def _read_trackers(directory: str, present: set[str], problems: list[str]) -> dict[str, names.Named]:
    """Megatron and DeepSpeed name their newest finished checkpoint in a file that they write last."""
    trackers = {}
    for file in (names.MEGATRON_TRACKER, names.DEEPSPEED_POINTER):
        if file not in present or os.path.isdir(os.path.join(directory, file)):
            continue
        text = _read_text(directory, file, present).strip()
        if file == names.MEGATRON_TRACKER:
            named = names.Named(int(text), "step", "megatron") if text.isdigit() and len(text) < 18 else None
            if named is None and text == "release":
                continue
        else:
            named = names.name_directory(text)
        if named is not None:
            trackers[file] = named
        elif not text or file == names.MEGATRON_TRACKER:
            problems.append(f"{file} is {'not a number' if text else 'empty'}; each folder was judged by its content")
    return trackers


def examine(listing: Listing, index: int) -> Checkpoint:
    """Look into one candidate: is it complete, does it open."""
    candidate = listing.candidates[index]
    base = Checkpoint(candidate.path, candidate.named.step, candidate.named.layout, False, False, "",
                      candidate.size_bytes, candidate.mtime)  # fmt: skip
    try:
        if not candidate.is_directory:
            try:
                check_file(candidate.path, candidate.name)
            except Damaged as error:
                return base._replace(complete=candidate.size_bytes > 0, problem=f"{candidate.name} {error}")
            return base._replace(complete=True, readable=True)
        tree = walk(candidate.path)
        layout = describe_layout(tree, candidate.named.layout)
        base = base._replace(layout=layout, size_bytes=tree.size_bytes, mtime=tree.mtime)
        problem = find_missing(tree, listing.required) or _unfinished(listing, candidate, layout)
        if not problem and layout in ("folder", "huggingface"):
            problem = _less_than_sibling(listing, index, tree, layout)
        if problem:
            return base._replace(problem=problem)
        problem = find_damage(tree)
        return base._replace(complete=True, readable=not problem, problem=problem)
    except Damaged as error:
        return base._replace(problem=f"a file {error}")
    except OSError as error:
        name = os.path.basename(os.fsdecode(error.filename)) if error.filename else candidate.name
        return base._replace(certain=False, problem=f"cannot read {name}: {error.strerror or error}")


def _unfinished(listing: Listing, candidate: Candidate, layout: str) -> str:
    """A checkpoint beyond the one that the framework's own tracker names was not finished."""
    if layout == "megatron" or (names.MEGATRON_TRACKER in listing.trackers and candidate.name.startswith("iter_")):
        file = names.MEGATRON_TRACKER
    elif layout == "deepspeed":
        file = names.DEEPSPEED_POINTER
    else:
        return ""
    finished = listing.trackers.get(file)
    if finished is not None:
        if finished.unit == candidate.named.unit and candidate.named.step > finished.step:
            return f"{file} names {finished.step}, so this one was not finished"
        return ""
    # Before the first save has ended there is no tracker at all. An unreadable tracker proves nothing, and
    # a DeepSpeed run with save_latest=False never writes one, which shows once it has several.
    if os.path.lexists(os.path.join(listing.directory, file)):
        return ""
    alone = sum(1 for other in listing.candidates if other.named.unit == candidate.named.unit) == 1
    if alone and listing.candidates[0].path != listing.directory:
        return f"{file} is missing, so the first save was not finished"
    return ""


def _less_than_sibling(listing: Listing, index: int, tree: Tree, layout: str) -> str:
    """A folder of a layout that declares nothing lacks a kind of file which the one before it has."""
    candidate = listing.candidates[index]
    if listing.required or candidate.named.unit == "":
        return ""
    for other in listing.candidates[index + 1 :]:
        if other.is_directory and other.named.unit == candidate.named.unit:
            try:
                sibling = walk(other.path)
            except OSError:
                return ""  # an older one that cannot be read says nothing about this one
            if describe_layout(sibling, "folder") != layout:
                return ""
            lacking = sorted(kinds(sibling) - kinds(tree))
            if lacking:
                return f"holds no {lacking[0].replace('#', 'N')}, which {other.name} has"
            return ""
    return ""


def foreign_folder(directory: str) -> str:
    """Return the folder on the way to a directory that is named after this process's user and is somebody else's.

    A cluster's default is ``/fsx/checkpoints/<user>/…``, where everybody may make a folder of any name. Loading a
    checkpoint runs code, so what another user has put into "yours" must never be offered. Root's folders are fine;
    without such a name on the way it is the user's own choice whom to trust.
    """
    import pwd

    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""
    parts = os.path.abspath(directory).split("/")
    if uid == 0 or name not in parts:
        return ""
    for count in range(parts.index(name) + 1, len(parts) + 1):
        path = "/".join(parts[:count])
        try:
            owners = {os.lstat(path).st_uid, os.stat(path).st_uid}
        except FileNotFoundError:
            return ""
        if not owners <= {0, uid}:
            return path
    return ""


def scan(directory: str | os.PathLike[str], newest_only: bool = False) -> list[Checkpoint]:
    """List the checkpoints of a directory, newest first, with what is wrong with each.

    Never loads (unpickles) anything, never follows a link out of the directory, changes nothing.

    Args:
        directory: Where the training saves. One that does not exist has no checkpoints.
        newest_only: Stop looking into them at the first good one; older ones have ``checked=False``.
    Returns:
        All that are understood by name, broken ones included. "Newest" is the highest step (or epoch).
    Raises:
        OSError: if the directory cannot be listed.
    """
    return scan_listing(list_candidates(os.fspath(directory)), newest_only)


def scan_listing(listing: Listing, newest_only: bool) -> list[Checkpoint]:
    """As ``scan``, of a directory listed before."""
    result = []
    done = False
    for index, candidate in enumerate(listing.candidates):
        if done:
            result.append(
                Checkpoint(candidate.path, candidate.named.step, candidate.named.layout, False, False,
                           "not checked", 0, candidate.mtime, checked=False)
            )  # fmt: skip
            continue
        checkpoint = examine(listing, index)
        result.append(checkpoint)
        done = newest_only and checkpoint.good
    return result


def latest(directory: str | os.PathLike[str]) -> str:
    """Return the path of the newest checkpoint that is complete and readable, or ''.

    Raises:
        OSError: if the directory exists and cannot be listed: "cannot look" is not "there is none".
    """
    listing = list_candidates(os.fspath(directory))
    for index in range(len(listing.candidates)):
        checkpoint = examine(listing, index)
        if checkpoint.good:
            return checkpoint.path
    return ""
