"""``hyperpod health report``: what checks did, or would have done, over a time. Asks the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from hyperpod.cli import render
from hyperpod.cli.options import ClusterOption, OutputOption, examples, place_of
from hyperpod.cli.render import Output, print_json, print_result
from hyperpod.errors import UsageError

SinceOption = Annotated[
    str, typer.Option("--since", metavar="DURATION", help="How far to look back, such as 12h or 30d.")
]


def register(group: typer.Typer) -> None:
    """Add the command below ``hyperpod health``."""
    shown = examples("hyperpod health report", "hyperpod health report --since 30d --output json")
    group.command("report", epilog=shown)(report)


def report(
    ctx: typer.Context,
    since: SinceOption = "7d",
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what each check did, or would have done, and how often it was right.

    For checks that are only observed: how many of the nodes had a job end badly, or were repaired for another reason,
    from 10 minutes before to a day after. That speaks for letting the check act. For checks that act: how many of their
    drains a person took back, by clearing the finding or undraining the node.
    """
    answer = place_of(ctx).controller(cluster).query("health-report", since_s=_seconds(since))
    if output is Output.JSON:
        print_json(answer)
        return
    head = f"since {render.when(answer['since'])}"
    if not answer["rows"]:
        print_result(f"{head}: no check drained a node, and none would have")
        return
    columns = ("CHECK", "MODE", "TIMES", "NODES", "ACTION", "JOBS FAILED", "REPAIRED OTHERWISE", "TAKEN BACK")
    print_result(head, "", render.table(columns, [_cells(row) for row in answer["rows"]]))


def _cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    nodes = row["nodes"]
    named = [name if count == 1 else f"{name} ({count})" for name, count in list(nodes.items())[:8]]
    if len(nodes) > 8:
        named.append(f"and {len(nodes) - 8} more")
    observed = row["taken_back"] is None
    return (
        f"{row['check']}/{row['code']}",
        row["mode"],
        row["count"],
        ", ".join(named),
        f"would {row['action']}" if observed else row["action"],
        f"{len(row['nodes_with_failed_jobs'])} of {len(nodes)}",
        f"{len(row['nodes_repaired_otherwise'])} of {len(nodes)}",
        "-" if observed else row["taken_back"],
    )


def _seconds(text: str) -> float:
    from hyperpod.core.settings import parse_duration

    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"--since {text}: {error}", hint="such as 12h, 7d or 30d") from error
    if seconds <= 0:
        raise UsageError(f"--since {text}: must be more than nothing", hint="such as 12h, 7d or 30d")
    return seconds
