"""One mistake in a configuration file: where it stands in the data, and what is wrong, in one sentence.

Owns paths into a document and the search for the key or value that was probably meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

Path = tuple[str | int, ...]
"""Place of a value in a document: keys, and indices from 0."""


class Kind(StrEnum):
    """What sort of mistake it is; callers drop some sorts where another rule holds (local clusters)."""

    UNKNOWN_KEY = "unknown_key"
    MISSING = "missing"
    TYPE = "type"
    SIZE = "size"
    PATTERN = "pattern"
    ENUM = "enum"
    RULE = "rule"


@dataclass(frozen=True)
class Problem:
    """A mistake at ``path``; ``message`` says what is wrong and what is allowed, without the place."""

    path: Path
    message: str
    kind: Kind = Kind.RULE


class RequestValidator(Protocol):
    """Checks a CreateCluster request against the service's model, as ``hyperpod.adapters.aws.model`` does."""

    def __call__(self, request: Mapping[str, Any]) -> Sequence[Problem]:
        """Return every mistake in the request, in the order of the file."""
        ...


def format_path(path: Path) -> str:
    """Return the path as people write it: ``InstanceGroups[1].InstanceCount``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most like ``word``, or None if none is near; case, ``_`` and ``-`` hardly count."""
    plain: dict[str, str] = {}
    for name in known:
        plain.setdefault(_plain(name), name)
    near = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else None


def unknown_key(path: Path, known: Iterable[str]) -> Problem:
    """Return the problem of a key that nobody knows: the closest valid one, or all valid ones."""
    names = sorted(known)
    near = closest(str(path[-1]), names)
    if near is not None:
        return Problem(path, f"unknown key; did you mean {near}?", Kind.UNKNOWN_KEY)
    listed = ", ".join(names) if names else "none"
    return Problem(path, f"unknown key; valid keys: {listed}", Kind.UNKNOWN_KEY)


def not_one_of(path: Path, value: object, allowed: Sequence[str], most: int = 8) -> Problem:
    """Return the problem of a value outside an enumeration: the closest valid one, or what is allowed."""
    near = closest(str(value), allowed)
    if len(allowed) <= most:
        text = f"must be {' or '.join(allowed)}" if len(allowed) < 3 else f"must be one of {', '.join(allowed)}"
        text += f", got {shown(value)}"
        return Problem(path, f"{text}; did you mean {near}?" if near and len(allowed) > 1 else text, Kind.ENUM)
    tail = f"did you mean {near}?" if near else f"valid are {', '.join(allowed[:most])} and {len(allowed) - most} more"
    return Problem(path, f"{shown(value)} is not a valid value; {tail}", Kind.ENUM)


def shown(value: object, limit: int = 60) -> str:
    """Return a value as an error shows it: on one line, quoted if it is text, and cut when long."""
    text = repr(value) if isinstance(value, str) else str(value)
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif value is None:
        text = "nothing"
    elif isinstance(value, Mapping):
        text = "a mapping"
    elif isinstance(value, list | tuple):
        text = "a list"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _plain(word: str) -> str:
    return word.casefold().replace("_", "").replace("-", "")
