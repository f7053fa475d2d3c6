"""Commands about a specification file: ``hyperpod validate`` and ``hyperpod config show``.

Owns their options and output, and how every command loads a specification. All rules live in ``hyperpod.config``;
these commands only read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.cli.options import OutputOption, examples
from hyperpod.cli.render import Output, print_json, say
from hyperpod.config.load import Loaded, load_spec
from hyperpod.config.overrides import block_fields
from hyperpod.config.problem import format_path
from hyperpod.core.node import Role
from hyperpod.core.spec import ClusterSpec
from hyperpod.errors import ConfigError, UsageError
from hyperpod.health import registry

SpecArgument = Annotated[Path, typer.Argument(metavar="SPEC", help="YAML or JSON file with the cluster.")]
ParametersOption = Annotated[
    Path | None,
    typer.Option(
        "--provisioning-parameters",
        metavar="FILE",
        help="provisioning_parameters.json, when it does not lie beside SPEC.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set one value, stronger than HYPERPOD_* variables and SPEC; may be repeated.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add ``validate`` and ``config show`` to the program."""
    app.command(
        "validate",
        epilog=examples(
            "hyperpod validate configs/laptop.yaml",
            "hyperpod validate create-cluster.json --set Hyperpod.Provider=local --output json",
        ),
    )(validate)
    show_examples = examples(
        "hyperpod config show configs/laptop.yaml --origin",
        "hyperpod config show configs/laptop.yaml --explain --set Hyperpod.Resume.MaxAttempts=3",
    )
    config = typer.Typer(
        help="Settings: what they are and where they come from.", no_args_is_help=True, epilog=show_examples
    )
    config.callback()(lambda: None)
    config.command("show", epilog=show_examples)(show)
    app.add_typer(config, name="config")


def load_for_command(spec: Path, parameters: Path | None = None, settings: list[str] | None = None) -> Loaded:
    """Load a specification as every command does: with its flags and the caller's environment.

    Raises:
        ConfigError: with a line for each mistake in the file.
        UsageError: if a ``--set`` has no value.
    """
    return load_spec(
        spec,
        validate=validate_create_cluster,
        provisioning_parameters=parameters,
        flags=dict(_split(setting) for setting in settings or ()),
        env=os.environ,
        health=_judge_health,
    )


def _judge_health(checks: Mapping[str, Any]) -> None:
    registry.build_checks(Role.WORKER, registry.parse_settings(checks))


def _split(setting: str) -> tuple[str, str]:
    path, equals, value = setting.partition("=")
    if not equals or not path.strip():
        raise UsageError(
            f"--set {setting}: needs PATH=VALUE",
            hint="for example --set Hyperpod.Resume.MaxAttempts=3; 'hyperpod config show SPEC' lists the paths",
        )
    return path.strip(), value


def validate(
    spec: SpecArgument,
    provisioning_parameters: ParametersOption = None,
    set_: SetOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a specification completely, and make nothing.

    Names every mistake with file, line and path. Exit status 0 if there is none, 2 otherwise.
    """
    try:
        loaded = load_for_command(spec, provisioning_parameters, set_)
    except ConfigError as error:
        if output is not Output.JSON:
            raise
        print_json({"valid": False, "problems": error.message.splitlines(), "notes": []})
        raise typer.Exit(error.exit_code) from error
    if output is Output.JSON:
        print_json({"valid": True, "problems": [], "notes": loaded.notes} | _summary(loaded.spec))
        return
    for note in loaded.notes:
        say(f"note: {note}")
    summary = _summary(loaded.spec)
    columns = ("name", "role", "instance_type", "count", "spares", "partition")
    rows = [[_text(group[column]) for column in columns] for group in summary["groups"]]
    _print_columns([["GROUP", "ROLE", "TYPE", "COUNT", "SPARES", "PARTITION"], *rows])
    sys.stdout.write(f"{spec}: valid: cluster {loaded.spec.cluster_name}, provider {loaded.spec.provider}\n")


def show(
    spec: SpecArgument,
    provisioning_parameters: ParametersOption = None,
    set_: SetOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value comes from.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each Hyperpod setting means.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every setting of a specification as it takes effect.

    A flag is stronger than a HYPERPOD_* variable, that than the file, and that than the default.
    """
    loaded = load_for_command(spec, provisioning_parameters, set_)
    meanings = {format_path(path): text for path, text, _ in block_fields()}
    rows: list[dict[str, Any]] = []
    for setting in loaded.settings:
        row: dict[str, Any] = {"setting": setting.path, "value": setting.value}
        if origin:
            row["origin"] = str(setting.origin)
        if explain:
            row["meaning"] = meanings.get(setting.path, "")
        rows.append(row)
    if output is Output.JSON:
        print_json(rows)
    elif explain:
        for row in rows:
            tail = f"  ({row['origin']})" if origin else ""
            meaning = f"    {row['meaning']}\n" if row["meaning"] else ""
            sys.stdout.write(f"{row['setting']} = {_text(row['value'])}{tail}\n{meaning}")
    else:
        _print_columns([[_text(value) for value in row.values()] for row in rows])


def _print_columns(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def _text(value: Any) -> str:
    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _summary(spec: ClusterSpec) -> dict[str, Any]:
    return {
        "cluster_name": spec.cluster_name,
        "provider": spec.provider.value,
        "groups": [
            {
                "name": group.name,
                "role": group.role.value,
                "instance_type": group.instance_type,
                "count": group.count,
                "spares": group.spares,
                "partition": group.partition,
            }
            for group in spec.instance_groups
        ],
    }
