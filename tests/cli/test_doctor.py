"""The command that says what this machine lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from surroundings import Fakes

from hyperpod.adapters.local.doctor import Diagnosis

APT = ("apt-get", "install", "--yes", "--no-install-recommends", "podman")
FINE = Diagnosis("podman", True, "/usr/bin/podman")
MISSING = Diagnosis("podman", False, "not installed: runs the nodes", APT)
ADVICE = Diagnosis("fuse", False, "no /dev/fuse", is_needed=False)


def test_what_is_missing_is_named_with_the_command_that_brings_it(fakes: Fakes) -> None:
    fakes.place.diagnose = lambda home: [MISSING, ADVICE]
    result = fakes.run("doctor")
    assert result.code == 1
    assert "podman  missing  not installed: runs the nodes" in result.out
    assert "fuse    advice   no /dev/fuse" in result.out
    assert "  apt-get install --yes --no-install-recommends podman" in result.err


def test_advice_alone_is_no_failure(fakes: Fakes) -> None:
    fakes.place.diagnose = lambda home: [FINE, ADVICE]
    assert fakes.run("doctor").code == 0


def test_fix_says_what_it_runs_and_looks_again(fakes: Fakes) -> None:
    looks = [[MISSING], [FINE]]
    ran: list[Sequence[str]] = []

    def fix(argv: Sequence[str], on_line: Callable[[str], None]) -> None:
        ran.append(argv)
        on_line("installing")

    fakes.place.diagnose = lambda home: looks.pop(0)
    fakes.place.fix = fix
    result = fakes.run("doctor", "--fix", "-o", "json")
    assert result.code == 0
    assert result.json == [{"check": "podman", "ok": True, "needed": True, "message": "/usr/bin/podman", "fix": []}]
    assert ran == [("apt-get", "update"), APT]
    assert result.err.splitlines() == [
        "running: apt-get update",
        "installing",
        "running: apt-get install --yes --no-install-recommends podman",
        "installing",
        "nothing is missing",
    ]


def test_fix_is_for_root(fakes: Fakes) -> None:
    fakes.place.diagnose = lambda home: [MISSING]
    fakes.place.is_root = False
    result = fakes.run("doctor", "--fix")
    assert result.code == 1
    assert "only root may" in result.err
    assert "hint: sudo hyperpod doctor --fix" in result.err
