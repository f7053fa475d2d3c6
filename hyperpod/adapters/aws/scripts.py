"""Lifecycle scripts between a folder and an S3 prefix: what differs is sent, what cannot work is refused before.

Owns the checks of scripts and the comparison. Changes nothing on either side that is equal already; takes away nothing
that it was not told to.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.nvml import binding_file
from hyperpod.errors import CommandError, ConfigError, ProviderError, UsageError
from hyperpod.ports.process import ProcessRunner

BUNDLE: Final = "hyperpod-node"
INIT_SCRIPT: Final = "on_init_complete.sh"
HASH: Final = "sha256"
MODE: Final = "mode"
_IGNORED: Final = frozenset({".git", "__pycache__", ".DS_Store", ".venv", "node_modules", ".mypy_cache", ".ruff_cache"})
_MOST_FILES: Final = 2000
_MOST_BYTES: Final = 256 * 1024 * 1024
"""Every node fetches all of it at every birth; more is a mistake in the choice of the folder."""
_SYNTAX_TIMEOUT_S: Final = 20.0
_SHELLS: Final = (b"bash", b"/sh", b" sh", b"dash")


@dataclass(frozen=True)
class Prefix:
    """A place in S3; ``key`` ends with ``/`` or is empty."""

    bucket: str
    key: str = ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def key_of(self, name: str) -> str:
        return f"{self.key}{name}"


@dataclass(frozen=True)
class Script:
    """A file of the folder: its name below it, its content and whether it may be executed."""

    name: str
    path: Path
    content: bytes
    is_executable: bool

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def is_shell(self) -> bool:
        first = self.content.split(b"\n", 1)[0]
        has_shell = first.startswith(b"#!") and any(shell in first for shell in _SHELLS)
        return has_shell or (self.name.endswith(".sh") and not first.startswith(b"#!"))


@dataclass(frozen=True)
class Trouble:
    """A file that would not work on a node, why, and whether ``--fix`` mends it."""

    name: str
    text: str
    is_mendable: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True)
class Changes:
    """What a sync or pull did, or would do; ``extra`` is on the other side only and stays."""

    sent: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    equal: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()


def parse_prefix(text: str) -> Prefix:
    """Read ``s3://bucket/prefix``.

    Raises:
        UsageError: It is nothing like it.
    """
    parts = urlsplit(text)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
        raise UsageError(f"{text} is not a place in S3", hint="for example s3://sagemaker-my-bucket/lifecycle-scripts/")
    key = parts.path.strip("/")
    return Prefix(parts.netloc, f"{key}/" if key else "")


def read_folder(folder: Path) -> list[Script]:
    """Return the files of a folder, by name; caches and version control are left out.

    Raises:
        ConfigError: It is no folder, is empty, or far too large.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    found: list[Script] = []
    size = 0
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part in _IGNORED for part in relative.parts) or not path.is_file():
            continue
        content = path.read_bytes()
        size += len(content)
        if len(found) >= _MOST_FILES or size > _MOST_BYTES:
            raise ConfigError(
                f"{folder} is too large for lifecycle scripts", hint="name the folder with the scripts only"
            )
        is_executable = bool(path.stat().st_mode & stat.S_IXUSR)
        found.append(Script(relative.as_posix(), path, content, is_executable))
    if not found:
        raise ConfigError(f"{folder} has no files")
    return found


def node_bundle(root: Path, libraries: Mapping[str, Path], policies: str = "") -> list[Script]:
    """Return what makes a HyperPod node ours: our programs, the plugin's source, units, and the script that installs.

    Args:
        root: The checkout: the folder with ``hyperpod``, ``spank_plugin`` and ``lifecycle_scripts``.
        libraries: Folders of pure Python libraries that the daemons import, by name.
        policies: The specification's policies as JSON; empty for the defaults.
    Raises:
        ConfigError: The checkout lacks a part of it.
    """
    parts = {f"{BUNDLE}/lib/hyperpod": root / "hyperpod", f"{BUNDLE}/spank_plugin": root / "spank_plugin",
             f"{BUNDLE}/units": root / "lifecycle_scripts" / "units"}  # fmt: skip
    parts |= {f"{BUNDLE}/lib/{name}": folder for name, folder in libraries.items()}
    found: list[Script] = []
    for target, folder in parts.items():
        wanted = read_folder(folder)
        found += [
            Script(f"{target}/{script.name}", script.path, script.content, script.is_executable)
            for script in wanted
            if not script.name.startswith(("build/", "tests/"))
        ]
    binding = binding_file()
    if binding is not None:
        found.append(Script(f"{BUNDLE}/lib/pynvml.py", binding, binding.read_bytes(), False))
    entry = root / "lifecycle_scripts" / "aws" / INIT_SCRIPT
    if not entry.is_file():
        raise ConfigError(f"{entry} is not there", hint="run this from a checkout of hyperpod")
    found.append(Script(INIT_SCRIPT, entry, entry.read_bytes(), True))
    if policies:
        found.append(Script(f"{BUNDLE}/policies.json", entry, policies.encode(), False))
    return found


def check_scripts(scripts: Sequence[Script], processes: ProcessRunner, entries: Sequence[str] = ()) -> list[Trouble]:
    """Return what would fail on a node: line ends, first lines, syntax, missing entry scripts.

    Args:
        entries: Scripts that the service starts (OnCreate); they need a first line.
    """
    names = {script.name for script in scripts}
    troubles = [Trouble(name, "is named in the specification and not in the folder") for name in entries if
                name not in names]  # fmt: skip
    for script in scripts:
        troubles += _check(script, processes, script.name in entries)
    return troubles


def _check(script: Script, processes: ProcessRunner, is_entry: bool) -> list[Trouble]:
    is_script = script.content.startswith(b"#!") or script.name.endswith(".sh")
    if not is_script and not is_entry:
        return []
    if not script.content.strip():
        return [Trouble(script.name, "is empty")]
    found = []
    if b"\r\n" in script.content:
        found.append(Trouble(script.name, "has Windows line ends (CRLF), which no shell runs", True))
    if script.content.startswith(b"\xef\xbb\xbf"):
        found.append(Trouble(script.name, "begins with a byte order mark, which hides its #! line", True))
    # A file that is only sourced needs neither; one that may be executed needs its first line.
    elif not script.content.startswith(b"#!") and (script.is_executable or is_entry):
        found.append(Trouble(script.name, "does not begin with #! and an interpreter, such as #!/bin/bash"))
    if is_entry and not script.is_executable:
        found.append(Trouble(script.name, "is not executable", True))
    if not found and script.is_shell:
        shell = "bash"
        try:
            processes.run([shell, "-n", str(script.path)], timeout_s=_SYNTAX_TIMEOUT_S)
        except CommandError as error:
            last = error.stderr_tail.strip().splitlines()
            found.append(Trouble(script.name, f"is not valid shell: {last[0] if last else error.message}"))
    return found


def mend(script: Script, *, is_entry: bool = False) -> Script:
    """Return a script without the faults that can be mended without thinking. The file itself is not touched."""
    content = script.content.removeprefix(b"\xef\xbb\xbf")
    if content.startswith(b"#!") or script.name.endswith(".sh"):
        content = content.replace(b"\r\n", b"\n")
    return Script(script.name, script.path, content, script.is_executable or is_entry)


@dataclass
class ScriptStore:
    """Scripts in S3. ``on_file`` is told of each file that is sent or fetched."""

    aws: Aws
    on_file: Callable[[str, str], None] = lambda _verb, _name: None

    def _list(self, prefix: Prefix) -> dict[str, Mapping[str, Any]]:
        entries = self.aws.pages(
            "s3",
            "ListObjectsV2",
            "Contents",
            what=str(prefix),
            token="ContinuationToken",
            token_from="NextContinuationToken",
            Bucket=prefix.bucket,
            Prefix=prefix.key,
        )
        return {e["Key"].removeprefix(prefix.key): e for e in entries if not e["Key"].endswith("/")}

    def sync(
        self, scripts: Sequence[Script], prefix: Prefix, *, delete: bool = False, dry_run: bool = False
    ) -> Changes:
        """Send what is new or changed; with ``delete`` take away what the folder lacks.

        Equality is judged by the content's MD5, which S3 has as the tag of every object that came in one piece.
        """
        there = self._list(prefix)
        sent, equal = [], []
        for script in scripts:
            entry = there.get(script.name)
            if entry is not None and str(entry.get("ETag", "")).strip('"') == _md5(script.content):
                equal.append(script.name)
                continue
            sent.append(script.name)
            if not dry_run:
                self.aws.call(
                    "s3",
                    "PutObject",
                    what=f"{prefix}{script.name}",
                    repeat=True,
                    Bucket=prefix.bucket,
                    Key=prefix.key_of(script.name),
                    Body=script.content,
                    Metadata={HASH: script.digest, MODE: "755" if script.is_executable else "644"},
                )
                self.on_file("sent", script.name)
        names = {script.name for script in scripts}
        extra = sorted(name for name in there if name not in names)
        removed = extra if delete else []
        for name in [] if dry_run else removed:
            self.aws.call("s3", "DeleteObject", what=f"{prefix}{name}", repeat=True, Bucket=prefix.bucket,
                          Key=prefix.key_of(name))  # fmt: skip
            self.on_file("removed", name)
        return Changes(tuple(sent), tuple(removed), tuple(equal), tuple(n for n in extra if n not in removed))

    def pull(self, folder: Path, prefix: Prefix, *, dry_run: bool = False) -> Changes:
        """Fetch what is new or changed into a folder; files that are only there stay.

        Raises:
            ProviderError: There is nothing, or a name would lead out of the folder.
        """
        there = self._list(prefix)
        if not there:
            raise ProviderError(f"{prefix} has no files", hint="hyperpod scripts sync DIR sends them")
        sent, equal = [], []
        for name, entry in sorted(there.items()):
            relative = PurePosixPath(name)
            if relative.is_absolute() or ".." in relative.parts or "\\" in name:
                raise ProviderError(f"{prefix} has an object {name!r}, which would leave the folder")
            target = folder / relative
            if target.is_file() and _md5(target.read_bytes()) == str(entry.get("ETag", "")).strip('"'):
                equal.append(name)
                continue
            sent.append(name)
            if dry_run:
                continue
            answer = self.aws.call("s3", "GetObject", what=f"{prefix}{name}", Bucket=prefix.bucket,
                                   Key=prefix.key_of(name))  # fmt: skip
            content: bytes = answer["Body"].read()
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f".{target.name}.new")
            fresh.write_bytes(content)
            is_executable = answer.get("Metadata", {}).get(MODE) == "755" or content.startswith(b"#!")
            fresh.chmod(0o755 if is_executable else 0o644)
            fresh.replace(target)
            self.on_file("fetched", name)
        here = (
            {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} if folder.is_dir() else set()
        )
        return Changes(tuple(sent), (), tuple(equal), tuple(sorted(here - set(there))))


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
