"""Commands in the guides are commands of the program, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from hyperpod.cli.app import create_app

ROOT = Path(__file__).parents[1]
PROGRAM: Any = typer.main.get_command(create_app())
LINES = [
    (path.name, match[1])
    for path in sorted((ROOT / "docs" / "guides").glob("*.md"))
    for match in re.finditer(r"^\$ (?:sudo )?(hyperpod [^\n]*)$", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(("page", "line"), LINES)
def test_a_command_in_a_guide_exists_with_its_options(page: str, line: str) -> None:
    words = shlex.split(line.partition(" > ")[0].partition(" | ")[0], comments=True)[1:]
    command = PROGRAM
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        assert words[0] in command.commands, f"{page}: {line}"
        command = command.commands[words.pop(0)]
    if "--" in words:
        words = words[: words.index("--")]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "--debug", "--version", "--install-completion", "--show-completion"}
    assert [word for word in words if word.startswith("-") and word.partition("=")[0] not in known] == [], line


def test_links_in_the_guides_lead_somewhere() -> None:
    for path in (ROOT / "docs" / "guides").glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"
