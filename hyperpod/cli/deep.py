"""``hyperpod health deep``: put idle nodes under load and compare what they compute, store and send.

Owns the options and the showing; the controller runs the check and judges it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from hyperpod.cli import render
from hyperpod.cli.options import ClusterOption, OutputOption, checked_node, examples, place_of
from hyperpod.cli.render import Output
from hyperpod.core.finding import Severity, worst_of
from hyperpod.errors import UnexpectedOutput, UsageError

KINDS = {"stress": "InstanceStress", "connectivity": "InstanceConnectivity"}
_POLL_S = 0.5

EPILOG = examples(
    "hyperpod health deep",
    "hyperpod health deep worker-[1-4] --kind connectivity",
    "hyperpod health deep worker-2,worker-7 --part 60 --output json",
)


def deep(
    ctx: typer.Context,
    nodes: Annotated[
        str | None, typer.Argument(metavar="[NODES]", help="Nodes, such as worker-[1-4]. Default: every idle worker.")
    ] = None,
    cluster: ClusterOption = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="stress|connectivity", help="What to check. Default: both.")
    ] = None,
    part: Annotated[float | None, typer.Option("--part", help="Seconds for each part of the stress.")] = None,
    disk_mb: Annotated[int | None, typer.Option("--disk-mb", help="MB to write to a disk and read back.")] = None,
    transfer_mb: Annotated[int | None, typer.Option("--transfer-mb", help="MB to send over each link.")] = None,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", help="Share below the median at which a link is slow.")
    ] = None,
    dcgm_level: Annotated[
        int | None, typer.Option("--dcgm-level", min=1, max=4, help="Level of DCGM's diagnostic, where DCGM is there.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check idle nodes deeply: memory, processors, GPUs, disks, and the network between them.

    Every computation has a known answer, so a machine that computes wrongly is found; figures are compared between the
    nodes. The network is measured in rounds in which every node meets every other once, so that a slow link or node is
    named. A job that comes takes its node back at once. Exit code: 0 all well, 1 a person should look, 2 a node must
    not work, 3 nothing could be told.
    """
    controller = place_of(ctx).controller(cluster)
    given = {"seconds": part, "disk_mb": disk_mb, "transfer_mb": transfer_mb, "tolerance": tolerance}
    given["dcgm_level"] = dcgm_level
    args: dict[str, Any] = {
        "kinds": [_kind(word) for word in kind or KINDS],
        "options": {name: value for name, value in given.items() if value is not None},
    }
    if nodes is not None:
        args["nodes"] = _names(nodes)
    run = controller.command("deep", **args)
    report = _follow(lambda: controller.query("deep", run=run), quiet=output is Output.JSON)
    if output is Output.JSON:
        render.print_json(report)
    else:
        show(report)
    raise typer.Exit(int(verdict(report)))


def _names(text: str) -> list[str]:
    from hyperpod.adapters.slurm.parse import expand

    try:
        return [checked_node(name) for name in expand(text)]
    except UnexpectedOutput as error:
        raise UsageError(f"{text!r} is not a list of nodes", hint="such as worker-2 or worker-[1-4,7]") from error


def _kind(word: str) -> str:
    if word in KINDS:
        return KINDS[word]
    if word in KINDS.values():
        return word
    raise UsageError(f"--kind {word}: there is no such kind", hint=f"known are: {', '.join(KINDS)}")


def _follow(
    look: Callable[[], Mapping[str, Any]],
    *,
    quiet: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Mapping[str, Any]:
    """Ask for the report until the check is over, and say how far it is."""
    told = ""
    while True:
        report = look()
        if report["progress"] != told and not quiet:
            told = report["progress"]
            render.say(told)
        if report["is_over"]:
            return report
        sleep(_POLL_S)


def verdict(report: Mapping[str, Any]) -> Severity:
    """Return the worst that was found; UNKNOWN when no node could be checked."""
    checked = [node for node in report["nodes"] if node["state"] in Severity.__members__]
    if report["error"] or not checked:
        return Severity.UNKNOWN
    return worst_of(Severity[node["state"]] for node in checked)


def show(report: Mapping[str, Any]) -> None:
    """Print a report: a line for each node with its figures, then what was found."""
    rows = [(n["node"], n["state"], _tests(n["tests"])) for n in report["nodes"]]
    parts: list[Any] = [render.table(("NODE", "STATE", "FIGURES"), rows)]
    good = [p for p in report["pairs"] if not p["failure"]]
    if report["pairs"]:
        middle = "none worked"
        if good:
            bandwidth = statistics.median(p["bandwidth_mb_s"] for p in good)
            latency = statistics.median(p["latency_us"] for p in good)
            middle = f"median {bandwidth:.0f} MB/s, {latency:.0f} us there and back"
        parts += ["", f"{len(report['pairs'])} links measured: {middle}"]
    found = {(f["severity"], f["code"], f["message"]) for n in report["nodes"] for f in n["findings"]}
    if found:
        parts += ["", render.table(("SEVERITY", "CODE", "WHY"), sorted(found))]
    if report["error"]:
        parts += ["", f"the check failed: {report['error']}"]
    render.print_result(*parts)


def _tests(lines: list[Mapping[str, Any]]) -> str:
    figures = []
    for line in lines:
        if line["skipped"] and line["ok"]:
            continue
        if not line["ok"]:
            figures.append(f"{line['test']}: {line['detail'] or 'wrong'}")
        elif line["unit"] not in ("MB", "s", ""):
            figures.append(f"{line['test']} {line['value']:.3g} {line['unit']}")
    return ", ".join(figures)
