"""``hyperpod health offenders``: machines that fail too often, that failed jobs point at, or that users exclude.

Owns the command. The controller keeps the account; ``render`` shows it.
"""

from __future__ import annotations

import typer

from hyperpod.cli import render
from hyperpod.cli.options import ClusterOption, OutputOption, examples, place_of
from hyperpod.cli.render import Output

EPILOG = examples("hyperpod health offenders", "hyperpod health offenders --output json")


def offenders(ctx: typer.Context, cluster: ClusterOption = None, output: OutputOption = Output.TABLE) -> None:
    """List machines by how unlikely their faults are by chance.

    Faults of the last 28 days are counted by physical machine (a GPU's own number where it is known) and compared with
    what its time in service lets expect at the fleet's rate. Below them the machines that failed jobs point at, and
    those that users keep out of their jobs with --exclude, which is only shown.
    """
    answer = place_of(ctx).controller(cluster).query("offenders")
    if output is Output.JSON:
        render.print_json(answer)
    else:
        render.print_result(*render.offenders_page(answer))
