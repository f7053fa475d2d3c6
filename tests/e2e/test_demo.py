"""The demo itself: a real PyTorch training over two nodes, with a node lost under it, and its losses compared."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e.lab import leftovers
from tools.cluster import ROOT


@pytest.mark.e2e
@pytest.mark.timeout(900, func_only=True)
def test_demo_ends_well_and_cleans_up() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--cluster", "e2e-demo", "--steps", "60", "--victim", "first"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=880,
    )

    assert done.returncode == 0, done.stdout[-6000:]
    assert "yes, all 60 steps to the last bit" in done.stdout
    assert leftovers("e2e-demo") == {}
