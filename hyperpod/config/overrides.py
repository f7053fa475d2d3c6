"""Settings from flags and from the environment, laid over a file.

Owns the names of the ``HYPERPOD_*`` variables that belong to a spec, and the order flag > environment > file > default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import yaml
from pydantic import BaseModel

from hyperpod.config.problem import Path, Problem, closest
from hyperpod.core.settings import HyperpodBlock

BLOCK: Final = "Hyperpod"
_RUN_TIME_VARIABLES: Final = frozenset(
    {
        "HYPERPOD_HOME",
        "HYPERPOD_AUTO_RESUME",
        "HYPERPOD_CHECKPOINT_DIR",
        "HYPERPOD_ATTEMPT",
        "HYPERPOD_RESUME_FROM",
        "HYPERPOD_PREVIOUS_FAILURE",
        "HYPERPOD_PEER_LOST",
    }
)
"""Variables with other meanings, found in jobs and shells; never taken for settings of a spec."""
_PART: Final = re.compile(r"([A-Za-z0-9_-]+)((?:\[\d+\])*)")


@dataclass(frozen=True)
class Override:
    """One value from outside the file; ``origin`` names the flag or variable."""

    path: Path
    value: Any
    origin: str


def block_fields() -> Iterator[tuple[Path, str, Any]]:
    """Yield path, description and default of every single setting of the ``Hyperpod:`` block."""
    yield from _fields(HyperpodBlock, (BLOCK,))


def _fields(model: type[BaseModel], path: Path) -> Iterator[tuple[Path, str, Any]]:
    for name, field in model.model_fields.items():
        child = (*path, field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, child)
        else:
            yield child, field.description or "", field.get_default(call_default_factory=True)


def variable_name(path: Path) -> str:
    """Return the environment variable of a setting: ``Hyperpod.Resume.MaxAttempts`` is HYPERPOD_RESUME_MAX_ATTEMPTS."""
    words = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(part)) for part in path]
    return "_".join(words).upper()


def overrides_from_env(env: Mapping[str, str]) -> tuple[list[Override], list[tuple[str, str]]]:
    """Return the settings in the environment, and ``(variable, message)`` for each that was probably misspelt.

    Other ``HYPERPOD_*`` variables are left alone: jobs carry some.
    """
    known = {
        variable_name(path): path for path, _, default in block_fields() if not isinstance(default, Mapping | tuple)
    } | {variable_name((BLOCK, "Spares")): (BLOCK, "Spares")}
    sections = tuple({f"{variable_name(path[:2])}_" for path in known.values() if len(path) > 2})
    found = [Override(known[name], env[name], name) for name in sorted(env) if name in known]
    doubtful = []
    for name in sorted(env):
        if name in known or name in _RUN_TIME_VARIABLES or not name.startswith(sections):
            continue
        near = closest(name, known)
        doubtful.append((name, f"unknown setting; did you mean {near}?" if near else "unknown setting"))
    return found, doubtful


def overrides_from_flags(
    settings: Mapping[str, Any], flag: str = "--set"
) -> tuple[list[Override], list[tuple[str, str]]]:
    """Return the settings of flags, ``Hyperpod.Resume.MaxAttempts`` or ``InstanceGroups[1].InstanceCount`` to value."""
    found: list[Override] = []
    bad: list[tuple[str, str]] = []
    for text, value in settings.items():
        path = parse_path(text)
        if path is None:
            bad.append(
                (
                    f"{flag} {text}",
                    "is not a path such as Hyperpod.Resume.MaxAttempts or InstanceGroups[1].InstanceCount",
                )
            )
        else:
            found.append(Override(path, _parse_value(value), f"{flag} {text}"))
    return found, bad


def _parse_value(value: Any) -> Any:
    """Read a flag's text as YAML would: 4 is a number, on is a switch, "4" in quotes is text."""
    if not isinstance(value, str):
        return value
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return parsed if isinstance(parsed, bool | int | float | str) else value


def parse_path(text: str) -> Path | None:
    """Return the path that ``format_path`` writes as ``text``, or None if it is none."""
    path: list[str | int] = []
    for part in text.split("."):
        match = _PART.fullmatch(part)
        if match is None:
            return None
        path.append(match[1])
        path += [int(index) for index in re.findall(r"\d+", match[2])]
    return tuple(path)


def apply_overrides(data: dict[str, Any], overrides: list[Override]) -> tuple[dict[str, Any], list[Problem]]:
    """Return a copy of ``data`` with the overrides set, later ones last, and a problem for each that has no place."""
    copy = _copy(data)
    problems = []
    for override in overrides:
        if not _set(copy, override.path, override.value):
            problems.append(Problem(override.path, "there is no such place in the file"))
    return copy, problems


def _set(data: Any, path: Path, value: Any) -> bool:
    for part, following in pairwise(path):
        if isinstance(part, int):
            if not isinstance(data, list) or part >= len(data):
                return False
            data = data[part]
        elif not isinstance(data, dict):
            return False
        else:
            if data.get(part) is None:
                if isinstance(following, int):
                    return False
                data[part] = {}
            data = data[part]
    last = path[-1]
    if isinstance(last, int):
        if not isinstance(data, list) or last >= len(data):
            return False
    elif not isinstance(data, dict):
        return False
    data[last] = value
    return True


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
