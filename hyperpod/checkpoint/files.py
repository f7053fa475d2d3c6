"""Tell a whole file from a damaged one, without ever loading it.

Owns the checks of single files: zip archives written by ``torch.save``, safetensors, JSON and pickles.
Nothing here unpickles: a checkpoint directory is user data, and unpickling runs code.
"""

from __future__ import annotations

import os
import re
import stat
import struct

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
#: Files of these kinds hold training state; the kinds a folder holds are compared with its older sibling.
DATA_SUFFIXES = (*TORCH_SUFFIXES, ".safetensors", ".pkl", ".pickle", ".distcp", ".npz", ".npy", ".json", ".txt")
#: Legitimately empty: logs, locks and the markers that say "done".
MAY_BE_EMPTY = (".lock", ".log", ".out", ".err", ".done", ".ok", ".success", ".complete", ".committed")

MAX_JSON_BYTES = 256 << 20
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000  # the limit of the format's own library
MAX_LOCAL_HEADERS = 256
_LEGACY_TORCH_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SAFETENSORS_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class Damaged(Exception):
    """The file is provably not what its writer meant to leave."""


def check_file(path: str, name: str | None = None) -> None:
    """Raise unless the file opens as what its name says.

    Only regular files are opened (a FIFO would block for ever). Reads a few kilobytes, whatever the size.

    Args:
        path: File to check; symbolic links are followed.
        name: Name to judge the kind by, when it differs from the path's own.
    Raises:
        Damaged: if the file is truncated, empty or not of its kind; the message says which.
        OSError: if it cannot be read, which proves nothing about its content.
    """
    lower = (name or os.path.basename(path)).lower()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Damaged("is not a regular file")
        if status.st_size == 0:
            if may_be_empty(lower):
                return
            raise Damaged("is empty")
        _check_content(descriptor, lower, status.st_size)
    finally:
        os.close(descriptor)


def may_be_empty(lower_name: str) -> bool:
    """Say whether a file of this name holds no data, so that zero bytes are fine."""
    return lower_name.endswith(MAY_BE_EMPTY) or "." not in lower_name.strip(".") or ".tfevents." in lower_name


def _check_content(descriptor: int, lower: str, size: int) -> None:
    if lower.endswith(".safetensors"):
        _check_safetensors(descriptor, size)
    elif lower.endswith(".json"):
        _check_json(descriptor, size)
    elif lower.endswith((*TORCH_SUFFIXES, ".npz", ".zip")):
        head = os.pread(descriptor, 4096, 0)
        if head[:4] == b"PK\x03\x04":
            _check_zip(descriptor, size, torch_file=lower.endswith(TORCH_SUFFIXES))
        elif head.startswith(_LEGACY_TORCH_MAGIC):
            _check_legacy_torch(descriptor)
        elif head[:1] == b"\x80" and lower.endswith(TORCH_SUFFIXES):
            _check_pickle_end(descriptor, size)
        elif lower.endswith((".pt", ".pth", ".npz", ".zip")):
            raise Damaged("is neither a zip archive nor a pickle")
        elif not head.strip(b"\0"):
            raise Damaged("begins with zeros only")
        elif size < 4:
            raise Damaged("is too short to be one")
    elif lower.endswith((".pkl", ".pickle")) or lower == ".metadata":
        if os.pread(descriptor, 1, 0) == b"\x80":
            _check_pickle_end(descriptor, size)
        elif lower == ".metadata":
            raise Damaged("is not a pickle")
    elif lower.endswith((".distcp", ".npy")) and not os.pread(descriptor, 64, 0).strip(b"\0"):
        raise Damaged("begins with zeros only")


def _check_json(descriptor: int, size: int) -> None:
    import json

    if size > MAX_JSON_BYTES:  # too much to parse in time; a cut-off file rarely ends with a bracket
        if os.pread(descriptor, 64, size - 64).rstrip()[-1:] not in (b"}", b"]"):
            raise Damaged("is not valid JSON (cut off)")
        return
    try:
        json.loads(read_exactly(descriptor, size, 0))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"is not valid JSON ({error})") from None


def read_exactly(descriptor: int, count: int, offset: int) -> bytes:
    """Read ``count`` bytes at ``offset``; Damaged if the file ends before."""
    parts = []
    while count > 0:
        part = os.pread(descriptor, min(count, 1 << 24), offset)
        if not part:
            raise Damaged("ends too early")
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return b"".join(parts)


def _check_safetensors(descriptor: int, size: int) -> None:
    if size < 8:
        raise Damaged("is too short for a safetensors header")
    (header_bytes,) = struct.unpack("<Q", read_exactly(descriptor, 8, 0))
    if header_bytes > MAX_SAFETENSORS_HEADER_BYTES or header_bytes + 8 > size:
        raise Damaged(f"declares a header of {header_bytes} bytes, the file has {size}")
    import json

    try:
        header = json.loads(read_exactly(descriptor, header_bytes, 8))
    except (ValueError, RecursionError):
        raise Damaged("has a safetensors header that does not parse") from None
    if not isinstance(header, dict):
        raise Damaged("has a safetensors header that is not a table")
    end = 0
    total = 0
    for key, tensor in header.items():
        if key == "__metadata__":
            continue
        try:
            begin, stop = tensor["data_offsets"]
            elements = 1
            for extent in tensor["shape"]:
                elements *= int(extent)
            bits = _SAFETENSORS_BITS.get(tensor["dtype"])
            sane = 0 <= begin <= stop and (bits is None or elements * bits == (stop - begin) * 8)
        except (KeyError, TypeError, ValueError):
            sane = False
            begin = stop = 0
        if not sane:
            raise Damaged(f"describes tensor {key!r} with sizes that do not agree")
        end = max(end, stop)
        total += stop - begin
    if total != end or 8 + header_bytes + end != size:
        raise Damaged(f"should have {8 + header_bytes + end} bytes and has {size}")


def _check_zip(descriptor: int, size: int, torch_file: bool) -> None:
    import zipfile

    with os.fdopen(os.dup(descriptor), "rb") as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                entries = archive.infolist()
                directory_at = archive.start_dir
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
            raise Damaged(f"is a truncated zip archive ({error})") from None
    if not entries:
        raise Damaged("is a zip archive without content")
    entries.sort(key=lambda entry: entry.header_offset)
    # An archive inside the last record of a cut-off file would be found instead of the outer one.
    if entries[0].header_offset != 0:
        raise Damaged("is a truncated zip archive (its first record is missing)")
    following = [entry.header_offset for entry in entries[1:]] + [directory_at]
    for index, entry in enumerate(entries):
        if entry.header_offset + 30 + entry.compress_size > following[index] or following[index] > size:
            raise Damaged(f"has a zip record {entry.filename!r} that does not fit")
    # After a crash a file can have its full size and holes of zeros: look at records spread over it.
    stride = max(1, len(entries) // MAX_LOCAL_HEADERS)
    for entry in [*entries[::stride], entries[-1]]:
        if os.pread(descriptor, 4, entry.header_offset) != b"PK\x03\x04":
            raise Damaged(f"has a hole at zip record {entry.filename!r}")
    if not torch_file:
        return
    for entry in entries:
        if entry.filename.rsplit("/", 1)[-1] == "data.pkl":
            header = read_exactly(descriptor, 30, entry.header_offset)
            name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
            begin = entry.header_offset + 30 + name_bytes + extra_bytes
            if entry.compress_type == zipfile.ZIP_STORED and (
                os.pread(descriptor, 1, begin) != b"\x80"
                or os.pread(descriptor, 1, begin + entry.file_size - 1) != b"."
            ):
                raise Damaged("has a hole in data.pkl")
            return
    raise Damaged("is a zip archive without data.pkl, so not written by torch.save")


def _check_pickle_end(descriptor: int, size: int) -> None:
    # Every pickle ends with the STOP opcode; the frames of protocol 4 make a chance hit at the cut rare.
    if os.pread(descriptor, 1, size - 1) != b".":
        raise Damaged("is a truncated pickle")
    if size <= 4 << 20:
        _walk_pickles(descriptor, None)


def _check_legacy_torch(descriptor: int) -> None:
    """Walk the five pickles at the head of a pre-1.6 torch file; the raw tensors after them carry no sizes."""
    _walk_pickles(descriptor, 5)


def _walk_pickles(descriptor: int, count: int | None) -> None:
    import pickletools

    with os.fdopen(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        seen = 0
        try:
            while seen != count:
                if count is None and not stream.peek(1):
                    break
                for _ in pickletools.genops(stream):
                    pass
                seen += 1
        except (ValueError, EOFError, struct.error, UnicodeError, IndexError, OverflowError) as error:
            raise Damaged(f"is a truncated pickle ({error})") from None


_SHARD = re.compile(rb"__\d+_\d+\.distcp")
MAX_METADATA_BYTES = 8 << 20


def read_dcp_metadata(path: str) -> dict[str, int]:
    """Return which shard files a torch.distributed.checkpoint ``.metadata`` names, and their least size.

    The pickle is walked opcode by opcode, never executed. Sizes are 0 where the file is too large to walk
    in time or was written in another form; the names are complete in any case.

    Raises:
        Damaged: if the file is empty or cut off.
        OSError: if it cannot be read.
    """
    check_file(path, ".metadata")
    with open(path, "rb") as stream:
        raw = stream.read()
    sizes = {name.decode(): 0 for name in set(_SHARD.findall(raw))}
    if len(raw) <= MAX_METADATA_BYTES:
        for name, end in _storage_extents(raw):
            if name in sizes:
                sizes[name] = max(sizes[name], end)
    return sizes


def _storage_extents(raw: bytes) -> list[tuple[str, int]]:
    """Find (file, offset + length) in the states of the pickled ``_StorageInfo`` objects."""
    import pickletools

    atoms: list[object] = []
    memo: dict[int, object] = {}
    last: object = None
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            name = opcode.name
            if name == "MEMOIZE":
                memo[len(memo)] = last
            elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[int(argument or 0)] = last
            else:
                if name in ("BINGET", "LONG_BINGET", "GET"):
                    last = memo.get(int(argument or 0))
                elif isinstance(argument, (str, int)):
                    last = argument
                else:
                    last = None
                if last is not None:
                    atoms.append(last)
    except (ValueError, EOFError, struct.error, UnicodeError, IndexError, OverflowError) as error:
        raise Damaged(f"is a truncated pickle ({error})") from None
    found = []
    for index in range(len(atoms) - 5):
        if atoms[index] == "relative_path" and atoms[index + 2] == "offset" and atoms[index + 4] == "length":
            file, offset, length = atoms[index + 1], atoms[index + 3], atoms[index + 5]
            if isinstance(file, str) and isinstance(offset, int) and isinstance(length, int):
                found.append((file, offset + length))
    return found
