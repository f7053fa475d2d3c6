"""Options and texts that many commands share."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Annotated, Any, cast

import typer

from hyperpod.cli.place import Place
from hyperpod.cli.render import Output
from hyperpod.core.names import parse_job_id, parse_node_name
from hyperpod.errors import UsageError


def complete_cluster(ctx: typer.Context) -> list[str]:
    """Return the clusters of this machine, for the shell's completion; nothing when it cannot be known."""
    place = ctx.find_root().obj or Place()
    folder = place.home / "clusters"
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME",
        help="Which cluster. Default: HYPERPOD_CLUSTER, or the only one.",
        autocompletion=complete_cluster,
    ),
]
ClusterArgument = Annotated[
    str | None,
    typer.Argument(metavar="[CLUSTER]", help="Which cluster, as --cluster.", autocompletion=complete_cluster),
]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node, such as worker-2.")]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Form of the result: a table for people, or JSON for programs.")
]
ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--provider",
        metavar="local|ec2|sagemaker",
        help="Where the cluster is. Default: HYPERPOD_PROVIDER, or this machine.",
    ),
]
RegionOption = Annotated[
    str | None, typer.Option("--region", metavar="REGION", help="Region of AWS. Default: AWS_REGION, or the profile's.")
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="Profile of AWS. Default: AWS_PROFILE.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


@contextlib.contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Have SIGTERM and the loss of the terminal end the program as Ctrl-C does, so that what it began is undone.

    Only the first counts: what is undone then is not disturbed by another one.
    """
    kinds = (signal.SIGTERM, signal.SIGHUP)

    def end(number: int, frame: object) -> None:
        for kind in kinds:
            signal.signal(kind, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # One that is ignored already (nohup) stays so.
    before = {kind: signal.getsignal(kind) for kind in kinds if signal.getsignal(kind) is not signal.SIG_IGN}
    for kind in before:
        signal.signal(kind, end)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def examples(*lines: str) -> str:
    """Return the closing part of a command's help; the mark keeps its lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def place_of(ctx: typer.Context) -> Place:
    """Return where this run of the program is."""
    return cast(Place, ctx.find_root().obj)


def one_name(argument: str | None, option: str | None) -> str | None:
    """Return the cluster given as an argument or as ``--cluster``.

    Raises:
        UsageError: Both were given and differ.
    """
    if argument and option and argument != option:
        raise UsageError(f"two clusters are named: {argument} and --cluster {option}", hint="name one")
    return argument or option


def checked_node(name: str) -> str:
    """Return a node name as it is; see ``parse_node_name``."""
    return parse_node_name(name)


def checked_job(text: str) -> int:
    """Return a job id as a number; see ``parse_job_id``."""
    return parse_job_id(text)


def confirm(place: Place, question: str, otherwise: str) -> bool:
    """Ask the person; without one, refuse.

    Raises:
        UsageError: Nobody can be asked; ``otherwise`` is the hint.
    """
    if not place.is_interactive():
        raise UsageError(f"{question}: nobody is here to confirm", hint=otherwise)
    return bool(typer.confirm(f"{question}?", default=False, err=True))


Json = dict[str, Any]
