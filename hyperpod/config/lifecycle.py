"""Look at the lifecycle scripts of local clusters before anything is made.

Owns the resolution of a local ``SourceS3Uri`` to a folder, and what must be true of a script that is about to be run.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

_LINE_LIMIT: Final = 1024 * 1024


def local_source(uri: str, base: Path) -> Path | str:
    """Return the folder that a local ``SourceS3Uri`` means, or a sentence saying why it means none.

    Args:
        uri: a path (relative to ``base``) or a ``file://`` address.
        base: folder of the spec file.
    """
    if uri.startswith("file:"):
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            return f"{uri} must be file:// and an absolute path, such as file:///srv/scripts"
        path = Path(unquote(parts.path))
    elif "://" in uri:
        return f"{uri} cannot be read by a local cluster; give a folder, or set Hyperpod.Local.LifecycleScripts"
    else:
        path = Path(uri).expanduser()
    path = path if path.is_absolute() else base / path
    try:
        resolved = path.resolve()
        if not resolved.exists():
            return f"folder {resolved} does not exist"
        return resolved if resolved.is_dir() else f"{resolved} is not a folder"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {error}"


def script_problem(folder: Path, name: str) -> str | None:
    """Return why the script ``name`` in ``folder`` could not be run on a node, or None if it can."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        return f"{name} must be a path inside {folder}, without '..'"
    path = folder / relative
    try:
        if not path.exists():
            there = ", ".join(sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".sh", ".py"))[:5])
            return f"no file {name} in {folder}" + (f"; scripts there are {there}" if there else "")
        if not path.is_file():
            return f"{path} is not a regular file"
        with path.open("rb") as file:
            content = file.read(_LINE_LIMIT)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not content.strip():
        return f"{path} is empty"
    if not content.startswith(b"#!"):
        return f"{path} does not begin with #! and an interpreter, such as #!/bin/bash"
    if b"\r\n" in content:
        return f"{path} has Windows line ends (CRLF), which no shell runs; convert it: sed -i 's/\\r$//' {path}"
    return None
