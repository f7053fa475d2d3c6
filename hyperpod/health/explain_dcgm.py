"""What ``dcgmi health`` and ``dcgmi diag`` print, as JSON and as a table. Pure; strict: what is not known is no result.

Owns the formats of DCGM 2 to 4. A host engine that cannot be reached is a failure of the tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LOST = re.compile(
    r"unable to establish a connection to the specified host|host engine connection|Unable to connect to host ?engine|"
    r"connection (?:to the host ?engine )?(?:is )?(?:not valid|invalid)",
    re.IGNORECASE,
)
_TABLE_HEALTH = re.compile(
    r"^\| *(?:-> )?(?P<what>Overall Health|\d+|[A-Z][\w ]{1,30}?) *\| *(?P<word>Healthy|Warning|Failure)\b"
)
_TABLE_DIAG = re.compile(
    r"^\| *(?P<what>[A-Za-z][\w /()-]{1,40}?)? *\| *(?:(?P<gpu>GPU ?\d+): )?(?P<word>Pass|Fail|Warn|Skip)\b"
)
_DIAG_KEYS = ("DCGM GPU Diagnostic", "DCGM Diagnostic")


@dataclass(frozen=True)
class DcgmResult:
    """One result.

    Attributes:
        line: Line of the text, from 1, counted from the block's beginning.
        what: System or test.
        device: ``GPU 0``; empty for all.
        word: ``pass``, ``warn``, ``fail``, ``skip`` or ``unknown``.
        message: What the tool says of it.
    """

    line: int
    what: str
    device: str
    word: str
    message: str = ""


def is_lost(text: str) -> bool:
    """True for a line that says that the host engine cannot be reached."""
    return "onnect" in text and _LOST.search(text) is not None


def is_table_start(text: str) -> bool:
    """True for the head of one of the tables."""
    return bool(re.match(r"^\| (?:Diagnostic +\| Result|Health Monitor Report|Overall Health)", text))


def parse_dcgm_row(text: str) -> DcgmResult | None:
    """Read one row of a table; None when it holds no result."""
    found = _TABLE_HEALTH.match(text)
    if found:
        word = {"Healthy": "pass", "Warning": "warn", "Failure": "fail"}[found["word"]]
        return DcgmResult(1, found["what"].strip(), "", word)
    found = _TABLE_DIAG.match(text)
    if found and (found["what"] or found["gpu"]):
        return DcgmResult(1, (found["what"] or "").strip(), found["gpu"] or "", found["word"].lower())
    return None


def parse_dcgm(text: str) -> tuple[DcgmResult, ...] | None:
    """Read a JSON document of ``dcgmi health -c -j`` or ``dcgmi diag -j``; None when it is neither."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    for key in _DIAG_KEYS:
        if isinstance(data.get(key), dict):
            return tuple(_diag(data[key], _lines_of(text, "status")))
    if "body" in data and "header" in data:
        return tuple(_health(data["body"], _lines_of(text, "value")))
    return None


def _lines_of(text: str, key: str) -> list[int]:
    wanted = f'"{key}"'
    return [number for number, line in enumerate(text.split("\n"), 1) for _ in range(line.count(wanted))]


def _diag(data: dict[str, Any], lines: list[int]) -> Iterator[DcgmResult]:
    if data.get("runtime_error"):
        yield DcgmResult(1, "diagnostic", "", "unknown", str(data["runtime_error"])[:200])
        return
    seen = 0
    found = False
    for node, names in _walk(data, ()):
        if not isinstance(node.get("status"), str):
            continue
        line = lines[seen] if seen < len(lines) else 1
        seen += 1
        if names and names[-1] == "test_summary":
            continue
        gpu = node.get("gpu_id", node.get("entity_id", node.get("gpu_ids", "")))
        word = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "not run": "skip"}
        found = True
        yield DcgmResult(
            line,
            next((n[5:] for n in reversed(names) if n.startswith("test ")), "diagnostic"),
            f"GPU {gpu}" if str(gpu) else "",
            word.get(node["status"].lower(), "unknown"),
            _message(node),
        )
    if not found:
        yield DcgmResult(1, "diagnostic", "", "unknown", "it holds no results")


def _walk(node: Any, names: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    if len(names) > 30:
        return
    if isinstance(node, dict):
        name = node.get("name")
        if isinstance(name, str):
            names = (*names, f"test {name}")
        if "status" in node:
            yield node, names
        for key, value in node.items():
            yield from _walk(value, (*names, str(key)))
    elif isinstance(node, list):
        for value in node:
            yield from _walk(value, names)


def _message(node: dict[str, Any]) -> str:
    for key in ("warnings", "warning", "info"):
        value = node.get(key)
        if isinstance(value, list):
            value = next((v.get("warning", "") if isinstance(v, dict) else v for v in value), "")
        if isinstance(value, str) and value:
            return value[:200]
    return ""


def _health(body: Any, lines: list[int]) -> Iterator[DcgmResult]:
    count = [0]
    found = list(_health_of(body, (), lines, count))
    if not found:
        yield DcgmResult(1, "health", "", "unknown", "it holds no results")
        return
    specific = [r for r in found if r.device and r.word in ("warn", "fail")]
    overall = [r for r in found if not r.device]
    yield from specific or overall or found


def _health_of(node: Any, names: tuple[str, ...], lines: list[int], count: list[int]) -> Iterator[DcgmResult]:
    if not isinstance(node, dict) or len(names) > 20:
        return
    for key, value in node.items():
        if isinstance(value, dict) and isinstance(value.get("value"), str):
            line = lines[count[0]] if count[0] < len(lines) else 1
            count[0] += 1
            if key in ("Health", "Overall Health", "Overall Health Status"):
                word = {"healthy": "pass", "warning": "warn", "failure": "fail"}
                gpu = next((n for n in names if n.isdigit()), "")
                what = next((n for n in reversed(names) if not n.isdigit() and n not in ("children", "GPU")), key)
                is_gpu = not any(n for n in names if n.endswith("system"))
                if gpu and is_gpu and len(node) > 1:
                    # The GPU's own word repeats what its systems say in detail.
                    continue
                yield DcgmResult(
                    line, what, f"GPU {gpu}" if gpu else "", word.get(value["value"].strip().lower(), "unknown")
                )
            continue
        yield from _health_of(value, (*names, key), lines, count)
