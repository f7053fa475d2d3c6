"""What ``dcgmi health -c -j`` and ``dcgmi diag -r N -j`` print, as values. Pure and strict.

Text that is not exactly such an answer raises ``UnexpectedOutput``: a tool that failed says nothing about a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hyperpod.errors import UnexpectedOutput


class Verdict(StrEnum):
    """DCGM's own word, of both tools."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


_HEALTH = {"Healthy": Verdict.PASS, "Warning": Verdict.WARN, "Failure": Verdict.FAIL}
_DIAG = {"pass": Verdict.PASS, "warn": Verdict.WARN, "fail": Verdict.FAIL, "skip": Verdict.SKIP}

_OWN_TROUBLE = frozenset({5})
"""Severity of an error that is a matter of configuration (persistence mode is off): no part is broken."""


@dataclass(frozen=True)
class DcgmResult:
    """One thing that DCGM says about one entity.

    Attributes:
        entity: ``GPU 3``, ``NvSwitch 0``; the GPUs' numbers are DCGM's.
        test: System or test, in DCGM's words.
        verdict: Its word. A failed test all of whose errors are about configuration is WARN.
        text: What it said, in one line.
    """

    entity: str
    test: str
    verdict: Verdict
    text: str = ""


def parse_health(text: str) -> tuple[DcgmResult, ...]:
    """Return what ``dcgmi health -c -j`` complains about; empty when all is healthy.

    Raises:
        UnexpectedOutput: if it is no such answer, or contradicts itself.
    """
    body = _object(_json(text).get("body"), text)
    overall = _word(_object(body.get("Overall Health"), text).get("value"), _HEALTH, text)
    found = []
    for group, entities in body.items():
        if group == "Overall Health":
            continue
        for number, entity in _children(entities, text):
            for system, error in _children(dict(_children(entity, text)).get("Errors"), text):
                verdict = _word(error.get("value"), _HEALTH, text)
                words = " ".join(str(part) for part in _list(error.get("overflow", []), text))
                found.append(DcgmResult(f"{group} {number}", system, verdict, _one_line(words)))
    if (overall is Verdict.PASS) != (not found):
        raise UnexpectedOutput("dcgmi health", f"overall {overall.value}, {len(found)} complaints")
    return tuple(found)


def parse_diag(text: str) -> tuple[DcgmResult, ...]:
    """Return every result of ``dcgmi diag -j``, of DCGM 2 to 4.

    Raises:
        UnexpectedOutput: if it is no such answer, or no test was run.
    """
    data = _json(text)
    root = data.get("DCGM Diagnostic", data.get("DCGM GPU Diagnostic"))
    root = _object(root, text)
    found: list[DcgmResult] = []
    if root.get("runtime_error"):
        raise UnexpectedOutput("dcgmi diag", _one_line(str(root["runtime_error"])))
    for category in _list(root.get("test_categories"), text):
        if category is None:
            continue
        for test in _list(_object(category, text).get("tests"), text):
            # Older releases print a null between two tests.
            if test is not None:
                found.extend(_results(_object(test, text), text))
    if not found:
        raise UnexpectedOutput("dcgmi diag", "no test was run")
    return tuple(found)


def _results(test: dict[str, Any], text: str) -> Iterator[DcgmResult]:
    name = test.get("name")
    if not isinstance(name, str):
        raise UnexpectedOutput("dcgmi diag", _one_line(text))
    for item in _list(test.get("results"), text):
        result = _object(item, text)
        word = result.get("status")
        verdict = _word(word.lower() if isinstance(word, str) else word, _DIAG, text)
        warnings = _list(result.get("warnings", []), text)
        if verdict is Verdict.FAIL and warnings and all(_severity(w) in _OWN_TROUBLE for w in warnings):
            verdict = Verdict.WARN
        said = "; ".join(str(w.get("warning", w)) if isinstance(w, dict) else str(w) for w in warnings)
        yield DcgmResult(_entity(result), name, verdict, _one_line(said))


def _entity(result: dict[str, Any]) -> str:
    if "entity_id" in result:
        return f"{result.get('entity_group', 'GPU')} {result['entity_id']}"
    return f"GPU {result.get('gpu_ids', '?')}"


def _severity(warning: object) -> object:
    return warning.get("error_severity") if isinstance(warning, dict) else None


def _json(text: str) -> dict[str, Any]:
    # Some releases write a warning before the object.
    start = text.find("{")
    try:
        data, _ = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else (None, 0)
    except (ValueError, RecursionError) as error:
        raise UnexpectedOutput("dcgmi", _one_line(text)) from error
    return _object(data, text)


def _object(value: object, text: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnexpectedOutput("dcgmi", _one_line(text))
    return value


def _list(value: object, text: str) -> list[Any]:
    if not isinstance(value, list):
        raise UnexpectedOutput("dcgmi", _one_line(text))
    return value


def _children(node: object, text: str) -> list[tuple[str, dict[str, Any]]]:
    children = _object(_object(node, text).get("children"), text)
    return [(name, _object(child, text)) for name, child in children.items()]


def _word(value: object, known: dict[str, Verdict], text: str) -> Verdict:
    verdict = known.get(value) if isinstance(value, str) else None
    if verdict is None:
        raise UnexpectedOutput("dcgmi", f"the unknown word {value!r}")
    return verdict


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
