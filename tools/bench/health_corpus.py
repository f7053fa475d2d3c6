"""Precision and recall of ``hyperpod health explain`` on the labelled corpus, and what floods cost the agent.

The comparison in the same run is what people do without it: a search for the word Xid.
"""

from __future__ import annotations

import json
import resource
import time

from hyperpod.health.checks.kernel_log import KernelLog
from tests.health.labelled import confusion, flood, grep_for_xid, load, said, table
from tools.bench.report import Measure, console
from tools.cluster import ROOT

FILE = ROOT / "docs" / "measurements" / "health-corpus.json"


def run(lines: int = 1_000_000) -> list[Measure]:
    """Measure, and write the confusion tables to docs/measurements."""
    entries = load()
    ours = confusion([(entry, said(entry)) for entry in entries])
    theirs = confusion([(entry, grep_for_xid(entry)) for entry in entries])
    console.print(table(ours), markup=False, highlight=False)
    grown_kib, line_us = _flood(lines)
    alike = sum(entry.is_look_alike for entry in entries)
    data = {
        "entries": len(entries),
        "look_alikes": alike,
        "lines": ours.pairs.total(),
        "explain": _figures(ours),
        "grep_xid": _figures(theirs),
        "confusion": [
            {"expected": a or "nothing", "given": b or "nothing", "lines": n}
            for (a, b), n in sorted(ours.pairs.items())
        ],
        "flood": {"lines": lines, "resident_grown_kib": grown_kib, "us_per_line": round(line_us, 2)},
    }
    FILE.write_text(json.dumps(data, indent=1) + "\n")
    note = f"{len(entries)} texts, {100 * alike // len(entries)} % look-alikes"
    return [
        Measure("corpus, precision", "", [ours.precision], goal="≥ .99", note=note),
        Measure("corpus, recall", "", [ours.recall], goal="≥ .99", note=note),
        Measure("corpus, right verdict", "", [ours.exact], note=note),
        Measure("a search for Xid, precision", "", [theirs.precision], note="comparison"),
        Measure("a search for Xid, recall", "", [theirs.recall], note="comparison"),
        Measure("agent, memory grown by fault lines", "KiB", [float(grown_kib)], note=f"{lines} lines"),
        Measure("agent, time a fault line", "µs", [line_us], note=f"{lines} lines"),
    ]


def _figures(result: object) -> dict[str, float]:
    names = ("precision", "recall", "exact", "hits", "misses", "false_alarms", "right_silence")
    return {name: round(float(getattr(result, name)), 4) for name in names}


def _flood(lines: int) -> tuple[int, float]:
    """Feed the agent's reader; return by how much the process has grown after the first tenth, and the time a line."""
    log = KernelLog(boot_id="b1")
    before = 0
    started = time.perf_counter()
    for sequence, text in enumerate(flood(lines), 1):
        log.feed(f"3,{sequence},{sequence * 1000},-;{text}\n", 1.0)
        if sequence == lines // 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took = time.perf_counter() - started
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, took / lines * 1e6
