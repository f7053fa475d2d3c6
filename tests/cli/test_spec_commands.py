"""``hyperpod validate`` and ``hyperpod config show``: stdout, stderr and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hyperpod.cli.spec import register
from hyperpod.errors import ConfigError, UsageError

CONFIGS = Path(__file__).parents[2] / "configs"
LAPTOP = str(CONFIGS / "laptop.yaml")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """A program of these commands only, in an environment without settings."""
    for name in ("HYPERPOD_PROVIDER", "HYPERPOD_RESUME_MAX_ATTEMPTS"):
        monkeypatch.delenv(name, raising=False)
    app = typer.Typer()
    register(app)
    return app


def test_a_valid_spec_is_summed_up(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["validate", LAPTOP])
    assert result.exit_code == 0
    assert f"{LAPTOP}: valid: cluster demo, provider local" in result.stdout


def test_a_valid_spec_as_json(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["validate", LAPTOP, "--output", "json"])
    answer = json.loads(result.stdout)
    assert (answer["valid"], answer["problems"], answer["provider"]) == (True, [], "local")
    assert [group["count"] for group in answer["groups"]] == [1, 4]


def test_an_invalid_spec_is_an_error_of_configuration(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("ClusterNam: demo\n")
    result = CliRunner().invoke(app, ["validate", str(file)])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.exit_code == 2
    assert f"{file}:1: at ClusterNam: unknown key; did you mean ClusterName?" in result.exception.message


def test_an_invalid_spec_as_json_lists_its_problems(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("ClusterNam: demo\n")
    result = CliRunner().invoke(app, ["validate", str(file), "--output", "json"])
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["valid"] is False
    assert f"{file}:1: at ClusterNam: unknown key; did you mean ClusterName?" in answer["problems"]


def test_settings_are_shown_with_their_origin(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_RESUME_MAX_ATTEMPTS", "5")
    result = CliRunner().invoke(app, ["config", "show", LAPTOP, "--origin", "--set", "Hyperpod.Resume.Default=on"])
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["Hyperpod.Resume.MaxAttempts"] == ["5", "env", "HYPERPOD_RESUME_MAX_ATTEMPTS"]
    assert rows["Hyperpod.Resume.Default"] == ["on", "flag", "--set", "Hyperpod.Resume.Default"]
    assert rows["Hyperpod.Repair.BreakerWindow"] == ["3600s", "default"]
    assert rows["ClusterName"][:2] == ["demo", "file"]


def test_settings_as_json_keep_their_types(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["config", "show", LAPTOP, "--origin", "--output", "json"])
    rows = {row["setting"]: row for row in json.loads(result.stdout)}
    assert rows["Hyperpod.Repair.BreakerWindow"] == {
        "setting": "Hyperpod.Repair.BreakerWindow",
        "value": 3600.0,
        "origin": "default",
    }
    assert rows["Hyperpod.Local.Internet"]["value"] is False


def test_settings_are_explained_on_request(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["config", "show", LAPTOP, "--explain"])
    assert "Hyperpod.Repair.BreakerNodes = 3\n    So many nodes" in result.stdout


@pytest.mark.parametrize("setting", ["Hyperpod.Provider", "=local"])
def test_a_setting_without_path_or_value_is_an_error_of_usage(app: typer.Typer, setting: str) -> None:
    result = CliRunner().invoke(app, ["validate", LAPTOP, "--set", setting])
    assert isinstance(result.exception, UsageError)
    assert "needs PATH=VALUE" in result.exception.message


def test_help_has_an_example(app: typer.Typer) -> None:
    for command in (["validate"], ["config", "show"]):
        result = CliRunner().invoke(app, [*command, "--help"])
        assert "Examples:" in result.stdout
