"""Figures of a benchmark: median, p95, n, and the raw data in a file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.cluster import ROOT

RESULTS = ROOT / "bench-results"
console = Console()


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile by the nearest rank; the maximum for fewer than 20 values."""
    ordered = sorted(values)
    return ordered[max(0, -(-95 * len(ordered) // 100) - 1)]


@dataclass
class Measure:
    """One row: what was measured, in which unit, and every value."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    goal: str = ""
    note: str = ""
    raw: list[dict[str, Any]] = field(default_factory=list)


def publish(name: str, measures: Sequence[Measure]) -> Path:
    """Print the table and write the raw data; return the file."""
    RESULTS.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = RESULTS / f"{name}-{stamp}.json"
    data = {
        "benchmark": name,
        "at": stamp,
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "measures": [m.__dict__ for m in measures],
    }
    path.write_text(json.dumps(data, indent=1))
    table = Table("measure", "p50", "p95", "n", "goal", "note", title=f"{name} (raw data: {path.relative_to(ROOT)})")
    for m in measures:
        if not m.values:
            table.add_row(m.name, "-", "-", "0", m.goal, m.note)
            continue
        table.add_row(
            m.name,
            f"{statistics.median(m.values):.3g} {m.unit}",
            f"{p95(m.values):.3g} {m.unit}",
            str(len(m.values)),
            m.goal,
            m.note,
        )
    console.print(table)
    return path
