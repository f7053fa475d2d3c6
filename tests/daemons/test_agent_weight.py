"""What the agent costs: it runs on every node, beside the training."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import hyperpod.agent.__main__
lines = open("/proc/self/status").read().splitlines()
rss = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
print(json.dumps({"modules": sorted(sys.modules), "rss_kib": rss}))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, object]:
    """What a fresh interpreter holds after loading the agent."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=30)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    "name", ["pydantic", "typer", "rich", "boto3", "yaml", "asyncio", "ssl", "sqlite3", "hyperpod.cli"]
)
def test_the_agent_does_not_load_what_it_does_not_need(loaded: dict[str, object], name: str) -> None:
    modules = loaded["modules"]
    assert isinstance(modules, list)
    assert name not in modules


def test_the_agent_fits_into_its_memory(loaded: dict[str, object]) -> None:
    rss_kib = loaded["rss_kib"]
    assert isinstance(rss_kib, int)
    assert rss_kib < 40 * 1024
