"""What ``dcgmi health`` and ``dcgmi diag`` print, as JSON and as a table, as values. Pure and strict.

Owns the formats of DCGM 2 to 4. JSON that is not exactly such an answer raises ``UnexpectedOutput``: a tool that failed
says nothing about a GPU. Every result knows its line, for people who paste the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
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

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")

_LOST = re.compile(
    r"unable to establish a connection to the specified host|host engine connection|Unable to connect to host ?engine|"
    r"connection (?:to the host ?engine )?(?:is )?(?:not valid|invalid)",
    re.IGNORECASE,
)
_TABLE = re.compile(r"^\| (?:Diagnostic +\| Result|Health Monitor Report|Overall Health)")
_HEALTH_ROW = re.compile(
    r"^\|(?P<indent> *)(?:-> )?(?P<what>[A-Z\d][\w ]{0,30}?) *\| *(?P<word>Healthy|Warning|Failure)? *\|?$"
)
_DIAG_ROW = re.compile(
    r"^\| *(?P<what>[A-Za-z][\w /()-]{1,40}?)? *\| *(?:(?P<gpu>GPU ?\d+): )?(?P<word>Pass|Fail|Warn|Skip)"
    r"(?:: (?P<after>GPU ?\d+))?\b"
)

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
        line: Where it says so, from 1.
    """

    entity: str
    test: str
    verdict: Verdict
    text: str = ""
    line: int = field(default=1, compare=False)


def is_lost(text: str) -> bool:
    """True for a line that says that the host engine cannot be reached."""
    return "onnect" in text and _LOST.search(text) is not None


def is_table_start(text: str) -> bool:
    """True for the head of one of the tables."""
    return _TABLE.match(text) is not None


def parse_document(text: str) -> tuple[DcgmResult, ...] | None:
    """Return what a JSON document of either tool says; None when it is neither's.

    Raises:
        UnexpectedOutput: if it is one that is not understood.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    if any(root in data for root in _ROOTS):
        return parse_diag(text)
    body, header = data.get("body"), data.get("header")
    is_health = "Health Monitor Report" in (header if isinstance(header, list) else ())
    return parse_health(text) if is_health or (isinstance(body, dict) and "Overall Health" in body) else None


def parse_health(text: str) -> tuple[DcgmResult, ...]:
    """Return what ``dcgmi health -c -j`` complains about; empty when all is healthy.

    Raises:
        UnexpectedOutput: if it is no such answer, or contradicts itself.
    """
    body = _object(_json(text).get("body"), text)
    overall = _word(_object(body.get("Overall Health"), text).get("value"), _HEALTH, text)
    found = []
    lines = _Lines(text)
    for group, entities in body.items():
        if group == "Overall Health":
            continue
        for number, entity in _children(entities, text):
            for system, error in _children(dict(_children(entity, text)).get("Errors"), text):
                verdict = _word(error.get("value"), _HEALTH, text)
                words = " ".join(str(part) for part in _list(error.get("overflow", []), text))
                line = lines.of(system)
                found.append(DcgmResult(f"{group} {number}", system, verdict, _one_line(words), line))
    if (overall is Verdict.PASS) != (not found):
        raise UnexpectedOutput("dcgmi health", f"overall {overall.value}, {len(found)} complaints")
    return tuple(found)


def parse_diag(text: str) -> tuple[DcgmResult, ...]:
    """Return every result of ``dcgmi diag -j``, of DCGM 2 to 4.

    Raises:
        UnexpectedOutput: if it is no such answer, or no test was run.
    """
    data = _json(text)
    root = _object(data.get(_ROOTS[0], data.get(_ROOTS[1])), text)
    found: list[DcgmResult] = []
    lines = _Lines(text)
    if root.get("runtime_error"):
        raise UnexpectedOutput("dcgmi diag", _one_line(str(root["runtime_error"])))
    for category in _list(root.get("test_categories"), text):
        if category is None:
            continue
        for test in _list(_object(category, text).get("tests"), text):
            # Older releases print a null between two tests.
            if test is not None:
                found.extend(_results(_object(test, text), text, lines))
    if not found:
        raise UnexpectedOutput("dcgmi diag", "no test was run")
    return tuple(found)


class _Lines:
    """Finds the lines of keys that are asked for in the order in which they stand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def of(self, key: str) -> int:
        """Return the line of the next such key."""
        found = self._text.find(json.dumps(key), self._at)
        self._at = self._at if found < 0 else found + 1
        return self._text.count("\n", 0, self._at) + 1


def _results(test: dict[str, Any], text: str, lines: _Lines) -> Iterator[DcgmResult]:
    name = test.get("name")
    if not isinstance(name, str):
        raise UnexpectedOutput("dcgmi diag", _one_line(text))
    lines.of(name)
    for item in _list(test.get("results"), text):
        result = _object(item, text)
        word = result.get("status")
        verdict = _word(word.lower() if isinstance(word, str) else word, _DIAG, text)
        warnings = _list(result.get("warnings", []), text)
        if verdict is Verdict.FAIL and warnings and all(_severity(w) in _OWN_TROUBLE for w in warnings):
            verdict = Verdict.WARN
        said = "; ".join(str(w.get("warning", w)) if isinstance(w, dict) else str(w) for w in warnings)
        yield DcgmResult(_entity(result), name, verdict, _one_line(said), lines.of("status"))


def _entity(result: dict[str, Any]) -> str:
    if "entity_id" in result:
        return f"{result.get('entity_group', 'GPU')} {result['entity_id']}"
    return f"GPU {result.get('gpu_ids', result.get('gpu_id', '?'))}"


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


class DcgmTable:
    """Takes lines of the tables, gives results. What stands above its details (overall, a test, a GPU) waits for them:
    it counts only when none come."""

    def __init__(self) -> None:
        self._is_health = False
        self._group = ""
        self._entity = ""
        self._above: DcgmResult | None = None

    def feed(self, number: int, text: str) -> list[DcgmResult]:
        """Take one line."""
        if is_table_start(text):
            out = self.end()
            self._is_health = "Diagnostic" not in text
            return out + (self._health(number, text) if self._is_health else [])
        return self._health(number, text) if self._is_health else self._diag(number, text)

    def end(self) -> list[DcgmResult]:
        """Return what had no details, and forget the table."""
        above, self._above, self._group, self._entity = self._above, None, "", ""
        return [above] if above is not None else []

    def _health(self, number: int, text: str) -> list[DcgmResult]:
        row = _HEALTH_ROW.match(text.rstrip())
        if row is None:
            return []
        what, verdict = row["what"].strip(), _HEALTH.get(row["word"] or "")
        if verdict is None:
            if len(row["indent"]) <= 1 and what != "Health Monitor Report":
                self._group = what
        elif what == "Overall Health":
            self._above = DcgmResult("", what, verdict, line=number)
        elif what.isdigit():
            self._entity = f"{self._group or 'GPU'} {what}"
        else:
            self._above = None
            return [DcgmResult(self._entity, what, verdict, line=number)]
        return []

    def _diag(self, number: int, text: str) -> list[DcgmResult]:
        row = _DIAG_ROW.match(text)
        if row is None or not (row["what"] or row["gpu"] or row["after"]):
            return []
        verdict, gpu = _DIAG[row["word"].lower()], row["gpu"] or row["after"] or ""
        if row["what"]:
            out = self.end()
            self._entity = row["what"].strip()
            self._above = DcgmResult("", self._entity, verdict, line=number)
            return out
        if self._above is not None and verdict is self._above.verdict:
            self._above = None
        return [DcgmResult(re.sub(r"^GPU ?", "GPU ", gpu), self._entity, verdict, line=number)]
