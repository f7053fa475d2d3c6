"""Check a CreateCluster request against botocore's own model of the SageMaker service.

Owns the walk over the model. botocore's ParamValidator ignores patterns and enumerations, which most wrong files
break, so all limits are read from the model here; names and limits are never copied from it. Makes no call and needs no
account.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import botocore.model
from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader

from hyperpod.config.problem import Kind, Path, Problem, closest, not_one_of, shown, unknown_key
from hyperpod.errors import ConfigError

API_VERSION: Final = "2017-07-24"
_UNICODE_CLASSES: Final = (("\\p{L}", "\\w"), ("\\p{N}", "\\w"), ("\\p{Z}", "\\s"))
_TYPE_NAMES: Final = {
    "string": "text",
    "integer": "a whole number",
    "long": "a whole number",
    "float": "a number",
    "double": "a number",
    "boolean": "true or false",
    "list": "a list",
    "map": "a mapping",
    "structure": "a mapping",
    "timestamp": "a date and time such as 2026-01-31T00:00:00Z",
}


def validate_create_cluster(request: Mapping[str, Any]) -> Sequence[Problem]:
    """Return every mistake in a CreateCluster request, in the order of its keys.

    Checked are unknown and missing keys, types, lengths, ranges, list sizes, patterns, enumerations and unions.

    Raises:
        ConfigError: if the installed botocore has no such model.
    """
    return tuple(_check(request, _create_cluster_shape(), ()))


def instance_types() -> tuple[str, ...]:
    """Return the instance types that the service knows."""
    group = _create_cluster_shape().members["InstanceGroups"].member
    return tuple(group.members["InstanceType"].enum)


@cache
def _create_cluster_shape() -> botocore.model.StructureShape:
    try:
        data = Loader().load_service_model("sagemaker", "service-2", API_VERSION)
        shape: botocore.model.StructureShape = (
            botocore.model.ServiceModel(data).operation_model("CreateCluster").input_shape
        )
        shape.members["InstanceGroups"].member.members["SlurmConfig"]
    except (UnknownServiceError, botocore.model.OperationNotFoundError, KeyError) as error:
        raise ConfigError(
            "the installed botocore does not know CreateCluster with SlurmConfig", hint="pip install 'botocore>=1.44'"
        ) from error
    return shape


def _check(value: object, shape: botocore.model.Shape, path: Path) -> Iterator[Problem]:
    kind = shape.type_name
    if not _has_type(value, kind):
        quotes = "; put it in quotes" if kind == "string" and _is_plain(value) else ""
        yield Problem(path, f"must be {_TYPE_NAMES.get(kind, kind)}, got {shown(value)}{quotes}", Kind.TYPE)
    elif isinstance(value, Mapping) and kind == "structure":
        yield from _check_structure(value, shape, path)
    elif isinstance(value, Mapping):
        yield from _check_size(len(value), shape, path, "entries")
        for key, item in value.items():
            yield from _check(key, shape.key, (*path, key))
            yield from _check(item, shape.value, (*path, key))
    elif isinstance(value, list):
        yield from _check_size(len(value), shape, path, "entries")
        for index, item in enumerate(value):
            yield from _check(item, shape.member, (*path, index))
    elif isinstance(value, str):
        yield from _check_text(value, shape, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = shape.metadata.get("min"), shape.metadata.get("max")
        if (low is not None and value < low) or (high is not None and value > high):
            yield Problem(path, f"must be {_limits(low, high)}, got {value}", Kind.SIZE)


def _check_structure(value: Mapping[str, Any], shape: Any, path: Path) -> Iterator[Problem]:
    meant = {closest(key, shape.members) for key in value if key not in shape.members}
    for key in shape.required_members:
        if value.get(key) is None and key not in meant:  # a misspelt key is one mistake, not two
            yield Problem((*path, key), "is required but missing", Kind.MISSING)
    for key, item in value.items():
        if key not in shape.members:
            yield unknown_key((*path, key), shape.members)
        elif item is None:
            if key not in shape.required_members:
                yield Problem((*path, key), "has no value; give one or take the key out", Kind.TYPE)
        else:
            yield from _check(item, shape.members[key], (*path, key))
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        names = ", ".join(shape.members)
        yield Problem(path, f"needs exactly one of {names}, got {len(value)}", Kind.SIZE)


def _check_text(value: str, shape: botocore.model.Shape, path: Path) -> Iterator[Problem]:
    allowed: list[str] = getattr(shape, "enum", [])
    if allowed:
        if value not in allowed:
            yield not_one_of(path, value, allowed)
        return
    size = list(_check_size(len(value), shape, path, "characters"))
    yield from size
    pattern = shape.metadata.get("pattern")
    # A text of a wrong length is not matched: some of these patterns take very long on very long texts.
    if pattern and not size and not _matches(pattern, value):
        yield Problem(path, f"{shown(value)} does not match the pattern {pattern}", Kind.PATTERN)


def _check_size(size: int, shape: botocore.model.Shape, path: Path, unit: str) -> Iterator[Problem]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and size < low) or (high is not None and size > high):
        yield Problem(path, f"must have {_limits(low, high)} {unit}, got {size}", Kind.SIZE)


def _limits(low: int | None, high: int | None) -> str:
    if low is None:
        return f"at most {high}"
    return f"{low} or more" if high is None else f"{low} to {high}" if low != high else f"{low}"


def _matches(pattern: str, value: str) -> bool:
    compiled = python_pattern(pattern)
    return compiled is None or compiled.fullmatch(value) is not None


@cache
def python_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return a pattern of the model as Python's, or None if it is one that only the service can judge."""
    for unicode_class, python_class in _UNICODE_CLASSES:
        pattern = pattern.replace(unicode_class, python_class)
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _has_type(value: object, kind: str) -> bool:
    match kind:
        case "structure" | "map":
            return isinstance(value, Mapping)
        case "list":
            return isinstance(value, list)
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "long":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "timestamp":
            return _is_timestamp(value)
        case _:
            return isinstance(value, str)


def _is_plain(value: object) -> bool:
    return isinstance(value, int | float | datetime.date)


def _is_timestamp(value: object) -> bool:
    if isinstance(value, str):
        try:
            datetime.datetime.fromisoformat(value)
        except ValueError:
            return False
        return True
    return isinstance(value, datetime.date | int | float) and not isinstance(value, bool)
