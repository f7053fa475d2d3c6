"""The generated page about the checks."""

from __future__ import annotations

from pathlib import Path

from hyperpod.health import registry
from hyperpod.health.reference import render_checks
from hyperpod.health.xid import XIDS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "checks.md"


def test_the_page_is_what_the_checks_say() -> None:
    assert PAGE.read_text() == render_checks(), "make docs writes it anew"


def test_every_check_code_setting_and_xid_is_in() -> None:
    text = render_checks()
    for name in registry.names():
        assert f"\n## {name}\n" in text
        assert all(f"| `{code}` |" in text for code in registry.about(name).codes)
        assert all(f"| `{row.name}` |" in text for row in registry.setting_rows(name))
    assert all(f"\n| {code} | " in text for code in XIDS)


def test_our_own_judgement_is_marked() -> None:
    rows = {line.split(" | ")[0].strip("| "): line for line in render_checks().splitlines() if line.startswith("| ")}
    assert rows["175"].endswith("| J |")
    assert rows["79"].endswith("| None | |") or rows["79"].endswith("| Reboot |  |")
    assert rows["154"].endswith("| L |")
