"""What a deep test prints: one JSON object a line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One test's outcome.

    Attributes:
        test: Name, such as ``memory_pattern``.
        ok: False when the machine gave a wrong answer or failed; a slow machine is judged elsewhere.
        value: The measured figure in ``unit``; None when nothing was measured.
        detail: One sentence: what differs, or why nothing was measured.
        skipped: The test does not exist on this machine.
    """

    test: str
    ok: bool
    value: float | None = None
    unit: str = ""
    detail: str = ""
    skipped: bool = False

    def to_json(self) -> str:
        """Return the line."""
        return json.dumps(self.__dict__, separators=(",", ":"))


def say(line: Line) -> None:
    """Print an outcome at once, so that it is known even if the next test does not end."""
    sys.stdout.write(line.to_json() + "\n")
    sys.stdout.flush()


def parse_lines(text: str) -> tuple[Line, ...]:
    """Read what a program printed; lines that are none are left out (libraries print too)."""
    found = []
    for raw in text.splitlines():
        try:
            data = json.loads(raw)
            found.append(
                Line(
                    test=str(data["test"]),
                    ok=bool(data["ok"]),
                    value=None if data.get("value") is None else float(data["value"]),
                    unit=str(data.get("unit", "")),
                    detail=str(data.get("detail", ""))[:300],
                    skipped=bool(data.get("skipped", False)),
                )
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return tuple(found)


def repeat(work: Callable[[], int], seconds: float) -> tuple[int, float]:
    """Call ``work`` until the time is over, at least once; return the sum of what it returned and the seconds."""
    start = time.perf_counter()
    total = 0
    while True:
        total += work()
        took = time.perf_counter() - start
        if took >= seconds:
            return total, took
