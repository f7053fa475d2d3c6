"""The command ``doctor``: what this machine lacks for local clusters, and the commands that bring it.

Owns the options and the order: look, say what will be run, run it, look again. What is looked at is the adapter's.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyperpod.cli import render
from hyperpod.cli.options import OutputOption, examples, place_of
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.errors import AccessDenied

if TYPE_CHECKING:
    from hyperpod.adapters.local.doctor import Diagnosis


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    app.command("doctor", epilog=examples("hyperpod doctor", "hyperpod doctor --fix", "hyperpod doctor -o json"))(
        doctor
    )


def doctor(
    ctx: typer.Context,
    fix: Annotated[bool, typer.Option("--fix", help="Run the commands that bring what is missing. Root only.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what this machine lacks for local clusters.

    With the command that brings it, which --fix runs. Exit status 1 when something is missing that clusters need.
    """
    from hyperpod.adapters.local.doctor import fixes

    place = place_of(ctx)
    place.refuse_on_node("doctor")
    found = place.diagnose(place.home)
    commands = fixes(found)
    if fix and commands:
        if not place.is_root:
            raise AccessDenied("doctor --fix installs packages, which only root may", hint="sudo hyperpod doctor --fix")
        for command in commands:
            say(f"running: {shlex.join(command)}")
            place.fix(command, say)
        found = place.diagnose(place.home)
        commands = fixes(found)
    if output is Output.JSON:
        print_json([_plain(diagnosis) for diagnosis in found])
    else:
        print_result(render.table(("CHECK", "STATUS", "WHAT"), [(d.name, _word(d), d.message) for d in found]))
    _say_what_to_do(found, commands)
    if any(diagnosis.is_needed and not diagnosis.is_ok for diagnosis in found):
        raise typer.Exit(1)


def _say_what_to_do(found: Sequence[Diagnosis], commands: Sequence[Sequence[str]]) -> None:
    if commands:
        say("what brings it (hyperpod doctor --fix runs this):")
        for command in commands:
            say(f"  {shlex.join(command)}")
    elif all(diagnosis.is_ok for diagnosis in found):
        say("nothing is missing")


def _word(diagnosis: Diagnosis) -> str:
    if diagnosis.is_ok:
        return "ok"
    return "missing" if diagnosis.is_needed else "advice"


def _plain(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "check": diagnosis.name,
        "ok": diagnosis.is_ok,
        "needed": diagnosis.is_needed,
        "message": diagnosis.message,
        "fix": list(diagnosis.fix),
    }
