"""How long a command takes to say anything: ``hyperpod --version`` and ``--help`` beside ``python -c pass`` and AWS's.

The programs take turns, so that noise meets all alike.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tools.bench.report import Measure
from tools.cluster import ROOT

BARE, VERSION, HELP, AWS = "python -c pass", "hyperpod --version", "hyperpod --help", "aws --version"
_PROGRAM = "import sys; from hyperpod.__main__ import main; sys.exit(main())"


def commands() -> dict[str, list[str]]:
    """Return the programs by name; AWS's own only where it is installed (pip install awscli)."""
    python = sys.executable
    found = {
        BARE: [python, "-c", "pass"],
        VERSION: [python, "-c", _PROGRAM, "--version"],
        HELP: [python, "-c", _PROGRAM, "--help"],
    }
    beside = Path(sys.base_prefix) / "bin" / "aws"
    aws = str(beside) if beside.exists() else shutil.which("aws")
    return found | ({AWS: [aws, "--version"]} if aws else {})


def run(n: int = 20) -> list[Measure]:
    """Measure ``n`` starts of each program after one that warms the file cache."""
    programs = commands()
    goals = {VERSION: "≤ 0.2", HELP: "≤ 0.4"}
    measures = {name: Measure(name, "s", goal=goals.get(name, "")) for name in programs}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AWS_EC2_METADATA_DISABLED": "true"}
    for turn in range(n + 1):
        for name, argv in programs.items():
            began = time.perf_counter()
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=environment)
            if turn:
                measures[name].values.append(time.perf_counter() - began)
    middle = {name: statistics.median(measure.values) for name, measure in measures.items()}
    ratios = [(name, to) for name in (VERSION, HELP) for to in (BARE, AWS) if to in middle]
    return [*measures.values(), *(Measure(f"{a} to {b}", "x", [middle[a] / middle[b]]) for a, b in ratios)]
