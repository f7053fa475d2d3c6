"""The program starts quickly because it loads little: what help and version must not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("boto3", "botocore", "pydantic", "paramiko", "rich", "ClusterShell", "prometheus_client", "tenacity")
_PROGRAM = """
import contextlib, io, json, sys
from hyperpod.cli.app import main
out = io.StringIO()
with contextlib.redirect_stdout(out):
    status = main(sys.argv[1:])
print(json.dumps([status, len(out.getvalue()), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_and_version_load_no_heavy_library(option: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, option], check=True, capture_output=True, text=True)
    status, shown, modules = json.loads(done.stdout.splitlines()[-1])

    assert status == 0
    assert shown > 10
    assert not set(HEAVY) & set(modules)


def test_the_version_is_the_same_by_the_quick_way_and_loads_not_even_the_command_line() -> None:
    program = (
        "import sys; sys.argv=['hyperpod','--version']; from hyperpod.__main__ import main; main();"
        "print('typer' in sys.modules)"
    )
    quick = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    slow = subprocess.run(
        [sys.executable, "-m", "hyperpod.cli.app", "--version"], check=True, capture_output=True, text=True
    )

    assert quick.stdout == slow.stdout + "False\n"
