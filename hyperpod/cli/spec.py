"""Commands about a specification file: ``hyperpod validate`` and ``hyperpod config show``.

Owns their options and output, and how every command loads a specification. All rules live in ``hyperpod.config``;
these commands only read.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.cli.options import OutputOption, ProfileOption, RegionOption, examples, place_of
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, say
from hyperpod.config.load import Loaded, load_spec
from hyperpod.config.overrides import block_fields
from hyperpod.config.problem import format_path
from hyperpod.core.spec import ClusterSpec, Provider
from hyperpod.errors import ConfigError, UsageError
from hyperpod.health import registry

if TYPE_CHECKING:
    from hyperpod.adapters.aws.preflight import Result

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
            "hyperpod validate create-cluster.json --online --region us-west-2",
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
        health=registry.complaints,
    )


def _split(setting: str) -> tuple[str, str]:
    path, equals, value = setting.partition("=")
    if not equals or not path.strip():
        raise UsageError(
            f"--set {setting}: needs PATH=VALUE",
            hint="for example --set Hyperpod.Resume.MaxAttempts=3; 'hyperpod config show SPEC' lists the paths",
        )
    return path.strip(), value


def validate(
    ctx: typer.Context,
    spec: SpecArgument,
    provisioning_parameters: ParametersOption = None,
    set_: SetOption = None,
    online: Annotated[
        bool, typer.Option("--online", help="Look into the account, too: quotas, network, scripts, roles.")
    ] = False,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a specification completely, and make nothing.

    Names every mistake with file, line and path. Exit status 0 if there is none, 2 otherwise. With --online every
    line that is not passed names its fix, and the exit status is 1 unless all checks have passed.
    """
    try:
        loaded = load_for_command(spec, provisioning_parameters, set_)
    except ConfigError as error:
        if output is not Output.JSON:
            raise
        print_json({"valid": False, "problems": error.message.splitlines(), "notes": []})
        raise typer.Exit(error.exit_code) from error
    if output is Output.JSON:
        answer: dict[str, Any] = {"valid": True, "problems": [], "notes": loaded.notes} | _summary(loaded.spec)
        if not online:
            print_json(answer)
            return
        results = _look(place_of(ctx), loaded.spec, region, profile)
        print_json(answer | {"online": [vars(result) for result in results]})
        raise typer.Exit(0 if all(result.verdict == "pass" for result in results) else 1)
    for note in loaded.notes:
        say(f"note: {note}")
    summary = _summary(loaded.spec)
    columns = ("name", "role", "instance_type", "count", "spares", "partition")
    rows = [[_text(group[column]) for column in columns] for group in summary["groups"]]
    _print_columns([["GROUP", "ROLE", "TYPE", "COUNT", "SPARES", "PARTITION"], *rows])
    sys.stdout.write(f"{spec}: valid: cluster {loaded.spec.cluster_name}, provider {loaded.spec.provider}\n")
    if online:
        _show_look(_look(place_of(ctx), loaded.spec, region, profile))


def _look(place: Place, spec: ClusterSpec, region: str | None, profile: str | None) -> list[Result]:
    from hyperpod.adapters.aws.preflight import CHECKS, Preflight, run_checks
    from hyperpod.adapters.aws.preflight_ec2 import EC2_CHECKS

    if spec.provider is Provider.LOCAL:
        raise UsageError("--online is about clusters on AWS", hint="hyperpod doctor looks at this machine")
    checks = (*CHECKS, *(EC2_CHECKS if spec.provider is Provider.EC2 else ()))
    return list(run_checks(Preflight(spec, place.aws(region, profile)), checks))


def _show_look(results: list[Result]) -> None:
    """Show what was found in the account; the last line and the exit status are computed from all of it."""
    for result in results:
        sys.stdout.write(f"{result.verdict.value:<8} {result.check}: {result.text}\n")
        if result.verdict != "pass" and result.fix:
            sys.stdout.write(f"         fix: {result.fix}\n")
    counts = {verdict: sum(1 for r in results if r.verdict == verdict) for verdict in ("pass", "fail", "unknown")}
    words = f"{counts['pass']} passed, {counts['fail']} failed, {counts['unknown']} not known"
    is_good = counts["fail"] == counts["unknown"] == 0
    sys.stdout.write(f"{'ready' if is_good else 'not ready'}: {words}\n")
    if not is_good:
        raise typer.Exit(1)


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
