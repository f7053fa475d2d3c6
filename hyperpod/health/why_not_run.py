"""Why a program of this site cannot be run, in a sentence that says what to do. Looks only after a run has failed.

The kernel has one error number for many mistakes: "no such file" for a script means its interpreter, and for a binary
its loader.
"""

from __future__ import annotations

import difflib
import re
import struct

from hyperpod.ports.host import FileKind, Host

_HEAD = 4096
_MACHINES = {3: "i386", 0x15: "ppc64", 0x16: "s390x", 0x28: "arm", 0x3E: "x86_64", 0xB7: "aarch64", 0xF3: "riscv64"}
_LOADER = 3
"""Type of the program header that names a binary's loader (PT_INTERP)."""


def why_not_started(host: Host, path: str, said: str) -> str:
    """Say why a file that is there did not start.

    Args:
        host: The machine.
        path: The file.
        said: The system's own words, for what is not understood.
    """
    try:
        facts, head = host.stat(path), host.read_bytes(path, _HEAD)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if not facts.mode & 0o111:
        return f"{path} is not executable: chmod +x, or take it away"
    if head.startswith(b"#!"):
        why = _why_script(host, head)
    elif head.startswith(b"\x7fELF"):
        why = _why_binary(host, head)
    else:
        why = _why_neither(head)
    if not why and "permission denied" in said.lower():
        why = _why_forbidden(host, path)
    return f"{path}: {why or plain_error(said)}"


def plain_error(said: str) -> str:
    """Return an error of the system without its number and the file's name again."""
    return re.sub(r"^\[Errno -?\d+\] ([^:]*)(?::.*)?$", r"\1", said.strip())


def why_env_failed(code: int, head: str, errors: str) -> str:
    """Say what is missing when ``#!/usr/bin/env NAME`` has not found its program; empty when that is not so.

    Args:
        code: How it ended.
        head: The file's beginning.
        errors: What it printed on standard error.
    """
    words = head.partition("\n")[0].removeprefix("#!").split()
    if code not in (126, 127) or not words or words[0].rpartition("/")[2] != "env":
        return ""
    name = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
    if not name or not re.match(r"(?:/\S*/)?env: ", errors):
        return ""
    return f"its first line asks for {name}, which is not in PATH: correct the line, or install it"


def why_broken(path: str, code: int, output: str, errors: str) -> str:
    """Say that a check's own program has failed, which is no answer; empty when it gave one.

    A shell that does not understand a script ends with 2, and Python ends with 1 after an exception: as exit codes
    they would be FATAL and WARN.
    """
    syntax = re.search(rf"^{re.escape(path)}: (?:line )?\d+: (syntax error.*)$", errors, re.MULTILINE | re.IGNORECASE)
    if syntax is not None:
        return f"{path}: the shell does not understand it: {syntax[0].removeprefix(f'{path}: ')}"
    lines = [line for line in errors.splitlines() if line.strip()]
    if code != 1 or output.strip() or not lines:
        return ""
    is_python = lines[0].startswith(("Traceback (most recent call last)", '  File "')) and not lines[-1][0].isspace()
    return f"{path}: its own program failed: {lines[-1].strip()}" if is_python else ""


def _why_script(host: Host, head: bytes) -> str:
    first = head.partition(b"\n")[0].removeprefix(b"#!")
    if first.endswith(b"\r"):
        return r"its lines end as on Windows, so that its interpreter is not found: sed -i 's/\r$//' on it"
    words = first.decode(errors="replace").split()
    if not words:
        return "its first line names no interpreter after #!"
    interpreter = words[0]
    try:
        facts = host.stat(interpreter, follow=True)
    except OSError:
        near = _nearest(host, interpreter)
        return f"its first line asks for {interpreter}, which does not exist{near}: correct the line, or install it"
    if facts.kind is not FileKind.FILE:
        return f"its first line asks for {interpreter}, which is a {facts.kind.value}, not a program"
    if not facts.mode & 0o111:
        return f"its first line asks for {interpreter}, which is not executable"
    return ""


def _nearest(host: Host, path: str) -> str:
    folder, _, name = path.rpartition("/")
    try:
        near = difflib.get_close_matches(name, host.list_dir(folder or "/"), n=1, cutoff=0.75)
    except OSError:
        return ""
    return f" (did you mean {folder}/{near[0]}?)" if near else ""


def _why_neither(head: bytes) -> str:
    if not head.strip():
        return "it is empty: write the check, or take it away"
    if head.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return "it begins with a byte-order mark: save it as UTF-8 without one"
    if head.startswith(b"MZ"):
        return "it is a program for Windows"
    if head.startswith((b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe")):
        return "it is a program for macOS"
    if b"\0" in head:
        return "it is neither a script nor a program for Linux"
    return "its first line names no interpreter: begin it with #!/bin/sh, or what it is written for"


def _why_binary(host: Host, head: bytes) -> str:
    loader = ""
    try:
        own = _machine(host.read_bytes("/proc/self/exe", 64))
        machine = _machine(head)
        if machine != own:
            return f"it is a program for {machine}, and this machine is {own}: bring one that is built for it"
        loader = _loader(head)
        if loader:
            host.stat(loader, follow=True)
    except FileNotFoundError:
        if not loader:
            # Nothing says what this machine is.
            return ""
        return f"it needs the loader {loader}, which does not exist: bring one that is built for this system"
    except (OSError, struct.error, IndexError):
        return "it is a damaged program: copy it anew"
    return ""


def _order(head: bytes) -> str:
    return ">" if head[5] == 2 else "<"


def _machine(head: bytes) -> str:
    (number,) = struct.unpack_from(f"{_order(head)}H", head, 18)
    return _MACHINES.get(number, f"machine type {number}")


def _loader(head: bytes) -> str:
    """Return the loader that a binary names; empty for a static one, or where it is not at the file's beginning."""
    order, is_64 = _order(head), head[4] == 2
    (start,) = struct.unpack_from(f"{order}{'Q' if is_64 else 'I'}", head, 32 if is_64 else 28)
    size, count = struct.unpack_from(f"{order}HH", head, 54 if is_64 else 42)
    for number in range(count):
        at = start + number * size
        (kind,) = struct.unpack_from(f"{order}I", head, at)
        if kind != _LOADER:
            continue
        word = "Q" if is_64 else "I"
        (offset,) = struct.unpack_from(f"{order}{word}", head, at + (8 if is_64 else 4))
        return head[offset : offset + 256].partition(b"\0")[0].decode(errors="replace")
    return ""


def _why_forbidden(host: Host, path: str) -> str:
    below = [mount for mount in host.mounts() if path.startswith(mount.path.rstrip("/") + "/")]
    mount = max(below, key=lambda one: len(one.path), default=None)
    if mount is not None and "noexec" in mount.options:
        return f"no program may run from {mount.path}: it is mounted with noexec"
    return ""
