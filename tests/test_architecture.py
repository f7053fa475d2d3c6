"""The layers are kept by machine, and generated pages are what they would be generated to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod.core.states_doc import render_states

ROOT = Path(__file__).parents[1]
HEAVY = {"pydantic", "boto3", "botocore", "rich", "typer", "paramiko", "moto"}


def test_every_import_contract_is_kept() -> None:
    # In a process of its own: it switches off the loggers of the program that calls it.
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_of_states_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "states.md").read_text()
    assert page == render_states(), "run: python3 -m hyperpod.core.states_doc > docs/states.md"


@pytest.mark.parametrize("daemon", ["hyperpod.agent.__main__", "hyperpod.controller.__main__"])
def test_daemons_do_not_load_what_only_the_command_line_needs(daemon: str) -> None:
    program = f"import sys, {daemon}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
