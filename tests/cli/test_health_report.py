"""``hyperpod health report``: how it asks, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from surroundings import Fakes, on_node

ROW: dict[str, Any] = {
    "check": "kernel_log", "code": "Xid95", "mode": "observe", "count": 3, "nodes": {"worker-1": 2, "worker-2": 1},
    "action": "Reboot", "first": "2026-01-01T00:00:00+00:00", "last": "2026-01-02T00:00:00+00:00",
    "nodes_with_failed_jobs": ["worker-1"], "nodes_repaired_otherwise": [], "taken_back": None,
}  # fmt: skip


def answer(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"since": "2026-01-01T00:00:00+00:00", "at": "2026-01-08T00:00:00+00:00", "rows": list(rows)}


def test_each_check_has_a_row(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    fakes.controller.answers["health-report"] = answer(ROW, {**ROW, "mode": "act", "taken_back": 2})
    result = fakes.run("health", "report", "--since", "30d")
    assert fakes.controller.asked == [("health-report", {"since_s": 30 * 86400.0})]
    assert "worker-1 (2), worker-2" in result.out
    assert "would Reboot" in result.out
    assert "1 of 2" in result.out
    assert result.out.splitlines()[-1].split()[-1] == "2"


def test_nothing_to_report_is_said(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    fakes.controller.answers["health-report"] = answer()
    assert "no check drained a node" in fakes.run("health", "report").out


def test_json_is_the_controllers_answer(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    fakes.controller.answers["health-report"] = answer(ROW)
    assert fakes.run("health", "report", "--output", "json").json == answer(ROW)


@pytest.mark.parametrize("since", ["soon", "0", "-1d"])
def test_a_time_that_makes_no_sense_is_refused(fakes: Fakes, tmp_path: Path, since: str) -> None:
    on_node(fakes, tmp_path)
    assert fakes.run("health", "report", f"--since={since}").code == 2


def test_a_program_with_many_nodes_stays_readable(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    nodes = {f"worker-{n}": 1 for n in range(1, 21)}
    fakes.controller.answers["health-report"] = answer({**ROW, "nodes": nodes})
    assert "and 12 more" in fakes.run("health", "report").out
