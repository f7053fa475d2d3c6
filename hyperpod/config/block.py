"""Turn the ``Hyperpod:`` block of a file into its typed form, and pydantic's complaints into ours."""

from __future__ import annotations

import contextlib
import copy
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from hyperpod.config.overrides import BLOCK
from hyperpod.config.problem import Kind, Path, Problem, not_one_of, shown, unknown_key
from hyperpod.core.settings import CheckPolicy, HealthPolicy, HyperpodBlock, plain_checks


def parse_block(raw: Any) -> tuple[HyperpodBlock, list[Problem]]:
    """Return the block and its problems; sections with a problem hold their defaults, so that checks can go on."""
    if raw is None:
        return HyperpodBlock(), []
    if not isinstance(raw, dict):
        return HyperpodBlock(), [Problem((BLOCK,), f"must be a mapping, got {shown(raw)}", Kind.TYPE)]
    problems = list(_unknown_keys(raw, HyperpodBlock, (BLOCK,)))
    known = _without_nothing(_known_only(raw, HyperpodBlock))
    try:
        return HyperpodBlock.model_validate(known), problems
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems += [_translate(detail) for detail in details]
    # Health has a section for each check: a mistake in one must not hide those in another.
    known = _without_bad(known, [detail["loc"] for detail in details if detail["loc"][:1] == ("Health",)])
    bad = {detail["loc"][0] for detail in details if detail["loc"]}
    with contextlib.suppress(ValidationError):
        others = bad - {"Health"}
        return HyperpodBlock.model_validate({key: value for key, value in known.items() if key not in others}), problems
    return HyperpodBlock.model_validate({key: value for key, value in known.items() if key not in bad}), problems


JudgeCheck = Callable[[str, Mapping[str, Any]], Iterable[tuple[Path, str]]]
"""Returns the mistakes in a health check's settings: the keys that lead to each, and what is wrong."""


def check_health(block: HyperpodBlock, judge: JudgeCheck | None) -> Iterator[Problem]:
    """Yield every mistake that ``judge`` finds in what is said of health checks, for the cluster and each group."""
    if judge is None:
        return
    for group in ("", *block.health.groups):
        place: Path = (BLOCK, "Health", "Groups", group, "Checks") if group else (BLOCK, "Health", "Checks")
        own = block.health.groups[group].checks if group else block.health.checks
        # What the cluster says is not said again at each group.
        for name, settings in plain_checks(HealthPolicy(checks=own)).items():
            for keys, text in judge(name, settings):
                yield Problem((*place, name, *_keys_in_file(keys)), text)


_REPLACED = {
    "Enabled": "unknown key; write Mode: off or Mode: act",
    "ObserveOnly": "unknown key; write Mode: observe",
}
"""Switches of checks that one word has replaced."""

_KEYS_BESIDE_SETTINGS = {"mode": "Mode", "overrides": "Overrides", "damping": "Damping", "interval_s": "Interval"}


def _keys_in_file(keys: Path) -> Path:
    """Return the keys below a check as the file has them."""
    if not keys:
        return ()
    first, *rest = keys
    return (_KEYS_BESIDE_SETTINGS[str(first)], *rest) if first in _KEYS_BESIDE_SETTINGS else ("Settings", *keys)


def _models(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the block type of a field, and whether the field maps names to such blocks."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    args = typing.get_args(annotation)
    if (
        typing.get_origin(annotation) in (Mapping, dict)
        and isinstance(args[1], type)
        and issubclass(args[1], BaseModel)
    ):
        return args[1], True
    return None, False


def _unknown_keys(raw: Mapping[Any, Any], model: type[BaseModel], path: Path) -> Iterator[Problem]:
    by_alias = {field.alias or name: field for name, field in model.model_fields.items()}
    for key, value in raw.items():
        place = (*path, str(key))
        if key not in by_alias:
            is_old = model is CheckPolicy and key in _REPLACED
            yield Problem(place, _REPLACED[key], Kind.UNKNOWN_KEY) if is_old else unknown_key(place, by_alias)
            continue
        inner, is_map = _models(by_alias[key].annotation)
        if inner is None or not isinstance(value, dict):
            continue
        for name, item in value.items() if is_map else ((None, value),):
            if isinstance(item, dict):
                yield from _unknown_keys(item, inner, place if name is None else (*place, str(name)))


def _known_only(raw: Mapping[Any, Any], model: type[BaseModel]) -> dict[str, Any]:
    by_alias = {field.alias or name: field for name, field in model.model_fields.items()}
    known: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in by_alias:
            continue
        inner, is_map = _models(by_alias[key].annotation)
        if inner is not None and isinstance(value, dict):
            if is_map:
                value = {k: _known_only(v, inner) if isinstance(v, dict) else v for k, v in value.items()}
            else:
                value = _known_only(value, inner)
        known[key] = value
    return known


def _without_nothing(known: dict[str, Any]) -> dict[str, Any]:
    """Take a section with nothing below its key as left out, as people comment out all its lines."""
    return {key: value for key, value in known.items() if value is not None}


def _without_bad(known: dict[str, Any], places: Iterable[tuple[str | int, ...]]) -> dict[str, Any]:
    """Return the data without the values at these places, each with as little around it as can be left out."""
    kept = copy.deepcopy(known)
    for place in places:
        found: tuple[dict[str, Any], str] | None = None
        inner: Any = kept
        for key in place:
            if not isinstance(inner, dict) or key not in inner:
                break
            found, inner = (inner, str(key)), inner[key]
        if found is not None:
            found[0].pop(found[1])
    return kept


def _translate(detail: Any) -> Problem:
    path = (BLOCK, *detail["loc"])
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    match kind:
        case "value_error":
            return _placed(path, str(context["error"]))
        case "enum":
            allowed = [text.strip("' ") for text in context["expected"].replace(" or ", ",").split(",")]
            return not_one_of(path, value, [text for text in allowed if text])
        case "greater_than_equal" | "less_than_equal":
            word = "at least" if kind == "greater_than_equal" else "at most"
            limit = context.get("ge", context.get("le"))
            return Problem(path, f"must be {word} {limit}, got {shown(value)}", Kind.SIZE)
        case "bool_parsing" | "bool_type":
            text = "must be on or off"
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            text = "must be a whole number"
        case "string_type":
            text = "must be text"
        case "mapping_type" | "dict_type" | "model_type" | "model_attributes_type":
            text = "must be a mapping"
        case _:
            text = str(detail["msg"])
    return Problem(path, f"{text}, got {shown(value)}", Kind.TYPE)


def _placed(path: Path, message: str) -> Problem:
    """Move a message that begins with the name of a key below ``path`` to that key."""
    key, colon, rest = message.partition(": ")
    return Problem((*path, key), rest) if colon and key.isalpha() and key[0].isupper() else Problem(path, message)
