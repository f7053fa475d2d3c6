#!/usr/bin/python3
"""Take files out of what the cluster's folder holds: ``get FILE KEY`` or ``files FILE DIR MODE``."""

import base64
import json
import os
import sys


def main() -> int:
    verb, path, target = sys.argv[1:4]
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    if verb == "get":
        sys.stdout.write(f"{data.get(target) or ''}\n")
        return 0
    mode = int(sys.argv[4], 8)
    is_secret = mode & 0o077 == 0
    os.makedirs(target, mode=0o700 if is_secret else 0o755, exist_ok=True)
    for name, content in data["files"].items():
        where = os.path.normpath(os.path.join(target, name))
        if not where.startswith(os.path.normpath(target) + os.sep):
            sys.stderr.write(f"error: the name {name!r} leads out of the folder\n")
            return 1
        write(where, base64.b64decode(content) if is_secret else content.encode(), mode)
    return 0


def write(path: str, data: bytes, mode: int) -> None:
    """Write a file whole or not at all, readable by nobody else at any moment."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = f"{path}.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
    os.replace(fresh, path)


if __name__ == "__main__":
    sys.exit(main())
