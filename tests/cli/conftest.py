"""The surroundings of the command line in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from surroundings import SPEC, FakeController, FakeMachines, Fakes, Logins, Result

from hyperpod.cli.app import main
from hyperpod.cli.place import Place


@pytest.fixture
def fakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """A machine without clusters, its root at the keyboard of nothing."""
    controller = FakeController()
    machines = FakeMachines(tmp_path / "home", controller)
    terminal: list[list[str]] = []

    def run_on_terminal(argv: Sequence[str]) -> int:
        terminal.append(list(argv))
        return 7

    def no_account(region: str, profile: str) -> Any:
        raise AssertionError("nothing here is about AWS")

    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 1100:
            raise KeyboardInterrupt

    logins = Logins()
    place = Place(
        open_ssh=lambda target, timeout_s: cast(Any, logins.open(target, timeout_s)),
        env={"HYPERPOD_HOME": str(tmp_path / "home"), "HOME": str(tmp_path / "person")},
        agent_config=tmp_path / "absent.json",
        is_root=True,
        make_provider=lambda home: cast(Any, machines),
        serve=lambda provider, cluster: None,
        terminal=run_on_terminal,
        make_aws=no_account,
        sleep=sleep,
        clock=lambda: now[0],
        is_interactive=lambda: False,
        host="box",
    )

    def run(*argv: str) -> Result:
        capsys.readouterr()
        code = main(argv, place)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    made = Fakes(place, machines, controller, terminal, logins, run)
    return made


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A specification of a small local cluster."""
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC)
    return path
