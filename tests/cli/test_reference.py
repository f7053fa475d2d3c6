"""The generated page about the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod.cli.reference import main, render_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_is_what_the_program_says() -> None:
    assert PAGE.read_text() == render_reference(), "make docs writes it anew"


def test_hidden_commands_are_left_out_and_all_others_are_in() -> None:
    text = render_reference()
    assert "provider-serve" not in text
    for command in ("create-cluster", "job show", "config show", "breaker reset", "health", "doctor", "why"):
        assert f"\n## hyperpod {command}\n" in text


def test_bars_do_not_break_the_tables() -> None:
    assert "table\\|json" in render_reference()


def test_check_tells_a_page_that_is_out_of_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "cli.md"
    assert main(["--check", str(page)]) == 1
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0
    page.write_text("old")
    assert main(["--check", str(page)]) == 1
    assert "make docs" in capsys.readouterr().err
