"""The command ``inject``: breaks a node on purpose, to see the cluster heal.

Owns the options and the waiting for ``--for``. How a node is broken is the provider's business; only nodes of local
clusters are ours to break.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hyperpod.cli import render
from hyperpod.cli.options import ClusterOption, OutputOption, checked_node, ended_like_ctrl_c, examples, place_of
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.errors import HyperpodError, UsageError


def complete_fault() -> list[str]:
    """Return the names of faults, for the shell's completion."""
    from hyperpod.adapters.local.fault_kinds import FAULTS

    return list(FAULTS)


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    app.command(
        "inject",
        epilog=examples(
            "hyperpod inject --list",
            "hyperpod inject power-off worker-2",
            'hyperpod inject kernel-line worker-2 "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus"',
            "hyperpod inject network-cut worker-2 --for 90s",
            "hyperpod inject disk-full worker-2 /var/spool/slurmd --undo",
            'hyperpod inject sysfs worker-2 --path class/infiniband/mlx5_0/ports/1/state --value "1: DOWN"',
        ),
    )(inject)


def inject(
    ctx: typer.Context,
    fault: Annotated[
        str | None, typer.Argument(metavar="[FAULT]", help="What to break; see --list.", autocompletion=complete_fault)
    ] = None,
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="Which node.")] = None,
    argument: Annotated[str | None, typer.Argument(metavar="[ARG]", help="What the fault needs; see --list.")] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Wait so long (90s, 5m), then undo it.")
    ] = None,
    path: Annotated[str | None, typer.Option("--path", metavar="FILE", help="For sysfs: the file, below /sys.")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="TEXT", help="For sysfs: what it says.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the fault back, and cause none.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the faults.")] = False,
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Break a node of a local cluster on purpose.

    To rehearse failures, and to see what the cluster does. With --for the fault is undone after that time, also when
    you interrupt the waiting; without it, it stays until --undo, or until the node has been repaired. What a killed
    --for has left past its time is undone by the next inject or rehearse on this cluster.
    """
    from hyperpod.adapters.local.diary import Trace
    from hyperpod.adapters.local.fault_kinds import FAULTS, known_fault
    from hyperpod.cli.leftovers import forget_injection, note_injection, undo_overdue

    if list_:
        rows = [
            {"fault": f.name, "argument": f.argument, "default": f.default, "can_undo": f.can_undo, "effect": f.summary}
            for f in FAULTS.values()
        ]
        if output is Output.JSON:
            print_json(rows)
        else:
            print_result(
                render.table(
                    ("FAULT", "ARG", "DEFAULT", "UNDO", "EFFECT"),
                    [(r["fault"], r["argument"], r["default"], r["can_undo"], r["effect"]) for r in rows],
                )
            )
        return
    place = place_of(ctx)
    place.refuse_on_node("inject")
    if fault is None or node is None:
        raise UsageError("FAULT and NODE are needed", hint="hyperpod inject --list shows the faults")
    kind = known_fault(fault)
    seconds = _seconds(for_) if for_ is not None else None
    if seconds is not None and undo:
        raise UsageError("--for and --undo exclude each other")
    if (seconds is not None or undo) and not kind.can_undo:
        raise UsageError(f"{fault} cannot be undone", hint="leave --for and --undo out")
    name = checked_node(node)
    chosen = place.choose(cluster)
    faults = place.make_faults(place.provider())
    text = _argument(fault, argument, path, value, needs_value=not undo)
    undo_overdue(place, chosen)
    if undo:
        faults.undo(chosen, name, fault, text)
        forget_injection(place, chosen, Trace(name, fault, text))
        _tell(f"{name}: {fault} is undone", output)
        return
    if seconds is None:
        # It is to stay: what a killed --for has noted of it must not undo it.
        forget_injection(place, chosen, Trace(name, fault, text))
        _tell(faults.inject(chosen, name, fault, text), output)
        return
    trace = Trace(name, fault, text, place.clock() + seconds)

    def take_back() -> None:
        faults.undo(chosen, name, fault, text)
        forget_injection(place, chosen, trace)

    with ended_like_ctrl_c():
        note_injection(place, chosen, trace)
        try:
            _tell(faults.inject(chosen, name, fault, text), output)
        except KeyboardInterrupt:
            take_back()
            raise
        except HyperpodError:
            forget_injection(place, chosen, trace)
            raise
        try:
            say(f"undone in {render.duration(seconds)}; Ctrl-C undoes it now")
            place.sleep(seconds)
        finally:
            take_back()
            say(f"{name}: {fault} is undone")


def _argument(fault: str, argument: str | None, path: str | None, value: str | None, *, needs_value: bool) -> str:
    """Return the fault's argument, put together from --path and --value where they are given."""
    if path is None and value is None:
        return argument or ""
    if fault != "sysfs":
        raise UsageError(f"--path and --value are for sysfs, not for {fault}")
    if argument is not None or path is None or (needs_value and value is None):
        raise UsageError("--path and --value belong together, without an ARG")
    return path if value is None else f"{path}={value}"


def _seconds(text: str) -> float:
    from hyperpod.core.settings import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"--for {text}: {error}") from error


def _tell(sentence: str, output: Output) -> None:
    if output is Output.JSON:
        print_json({"done": sentence})
    else:
        print_result(sentence)
