"""Commands about a specification file: ``hyperpod validate`` and ``hyperpod config show``.

Owns their options and output. All rules live in ``hyperpod.config``; both commands only read.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.config.load import Loaded, load_spec
from hyperpod.config.overrides import block_fields
from hyperpod.config.problem import format_path
from hyperpod.core.spec import ClusterSpec
from hyperpod.errors import ConfigError, UsageError


class Output(StrEnum):
    """Form of the results on stdout."""

    TABLE = "table"
    JSON = "json"


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
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Form of the result.")]


def register(app: typer.Typer) -> None:
    """Add ``validate`` and ``config show`` to the program."""
    app.command("validate", epilog="Example: hyperpod validate configs/laptop.yaml")(validate)
    config = typer.Typer(help="Settings: what they are and where they come from.", no_args_is_help=True)
    config.command(
        "show", epilog="Example: hyperpod config show configs/laptop.yaml --origin --set Hyperpod.Resume.MaxAttempts=3"
    )(show)
    app.add_typer(config, name="config")


def load_for_command(spec: Path, parameters: Path | None = None, settings: list[str] | None = None) -> Loaded:
    """Load a specification as every command does: with its flags and the caller's environment.

    Raises:
        ConfigError: with a line for each mistake in the file.
        UsageError: if a ``--set`` has no value.
    """
    flags = dict(_split(setting) for setting in settings or ())
    return load_spec(
        spec,
        validate=validate_create_cluster,
        provisioning_parameters=parameters,
        flags=flags,
        env=os.environ,
    )


def _split(setting: str) -> tuple[str, str]:
    path, equals, value = setting.partition("=")
    if not equals or not path:
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
        typer.echo(json.dumps({"valid": False, "problems": error.message.splitlines(), "notes": []}, indent=2))
        raise typer.Exit(error.exit_code) from error
    if output is Output.JSON:
        typer.echo(json.dumps({"valid": True, "problems": [], "notes": loaded.notes} | _summary(loaded.spec), indent=2))
        return
    Console().print(_groups_table(loaded.spec))
    for note in loaded.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{spec}: valid")


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
        typer.echo(json.dumps(rows, indent=2, default=_plain))
        return
    if explain:
        for row in rows:
            tail = f"  ({row['origin']})" if origin else ""
            typer.echo(f"{row['setting']} = {_text(row['value'])}{tail}")
            if row["meaning"]:
                typer.echo(f"    {row['meaning']}")
        return
    widths = [max(len(_text(row[key])) for row in rows) for key in rows[0]]
    for row in rows:
        cells = (_text(value).ljust(width) for value, width in zip(row.values(), widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


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


def _groups_table(spec: ClusterSpec) -> Table:
    table = Table(title=f"{spec.cluster_name} on {spec.provider}", title_justify="left", box=None, pad_edge=False)
    for column in ("GROUP", "ROLE", "TYPE", "COUNT", "SPARES", "PARTITION"):
        table.add_column(column, justify="right" if column in ("COUNT", "SPARES") else "left")
    for group in spec.instance_groups:
        partition = group.partition or "-"
        spares = str(group.spares) if group.spares else "-"
        table.add_row(group.name, group.role.value, group.instance_type, str(group.count), spares, partition)
    return table
