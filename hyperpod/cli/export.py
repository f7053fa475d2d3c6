"""``hyperpod export``: a specification as a file of another tool."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hyperpod.adapters.aws.export import Format, export, how_to_use
from hyperpod.cli.options import OutputOption, examples
from hyperpod.cli.render import Output, print_json, say
from hyperpod.cli.spec import ParametersOption, SetOption, SpecArgument, load_for_command
from hyperpod.core.spec import Provider

FormatOption = Annotated[Format, typer.Option("--format", help="Which tool the file is for.")]


def register(app: typer.Typer) -> None:
    """Add ``export`` to the program."""
    app.command(
        "export",
        epilog=examples(
            "hyperpod export cluster.yaml > create-cluster.json",
            "hyperpod export cluster.yaml --format cloudformation > cluster.yaml",
            "hyperpod export cluster.yaml --format terraform > main.tf",
        ),
    )(export_spec)


def export_spec(
    spec: SpecArgument,
    form: FormatOption = Format.AWS_CLI,
    provisioning_parameters: ParametersOption = None,
    set_: SetOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write what makes the same HyperPod cluster with another tool.

    The Hyperpod block is left out: what it says is done by our own programs."""
    loaded = load_for_command(spec, provisioning_parameters, [*(set_ or ()), f"Hyperpod.Provider={Provider.SAGEMAKER}"])
    text = export(loaded.spec, form)
    if output is Output.JSON:
        print_json({"format": form.value, "text": text, "command": how_to_use(loaded.spec, form)})
        return
    sys.stdout.write(text)
    say(f"use it with: {how_to_use(loaded.spec, form)}")
