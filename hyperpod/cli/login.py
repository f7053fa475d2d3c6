"""Commands that go onto nodes: ssh, run.

Owns their options. ``reach`` finds the way.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from hyperpod.cli.node import cloud_of
from hyperpod.cli.options import (
    ClusterOption,
    ProfileOption,
    ProviderOption,
    RegionOption,
    checked_node,
    examples,
    place_of,
)
from hyperpod.cli.place import Place
from hyperpod.cli.reach import (
    DashedCommand,
    DirectOption,
    KeyOption,
    Spot,
    UserOption,
    ec2_spot,
    has_terminal,
    known_names,
    local_spot,
    login_name,
    node_word,
    open_spot,
    own_name,
    read_command,
    remark,
)
from hyperpod.cli.render import say
from hyperpod.core.login import Forward, parse_forward
from hyperpod.core.node import Role
from hyperpod.errors import ConnectionLost, UsageError
from hyperpod.ports.login import SshSession

ForwardOption = Annotated[
    list[str] | None,
    typer.Option(
        "--forward",
        "-L",
        metavar="[ADDRESS:]PORT:HOST:PORT",
        help="Make a port here lead to one as the node sees it. May be repeated.",
    ),
]


_SSH_FAILED = 255
"""The status of ssh itself; a command that ends with it looks the same."""


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command(
        "ssh",
        cls=DashedCommand,
        epilog=examples(
            "hyperpod ssh demo",
            "hyperpod ssh demo worker-2",
            "hyperpod ssh worker-2 --user ubuntu -- nvidia-smi",
            "hyperpod ssh demo -N -L 8888:worker-1:8888",
        ),
    )(ssh)
    app.command(
        "run",
        cls=DashedCommand,
        epilog=examples("hyperpod run demo -- sinfo", "hyperpod run --user ubuntu -- squeue --me"),
    )(run)


def ssh(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CLUSTER] [NODE] [-- COMMAND...]", help="Default: the only cluster; its head node."),
    ] = None,
    user: UserOption = None,
    forward: ForwardOption = None,
    no_command: Annotated[bool, typer.Option("--no-command", "-N", help="Only forward ports, until Ctrl-C.")] = False,
    key: KeyOption = None,
    direct: DirectOption = False,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
) -> None:
    """Open a shell on a node, or run a command there; forward ports.

    Without NODE, the head node. The words of the command reach the program as they are, no shell looks at them; for
    one, run -- bash -c 'cd /fsx && ls'. Input and both outputs are passed through. Ends with the exit status of the
    command."""
    place = place_of(ctx)
    wishes = [parse_forward(text) for text in forward or ()]
    if no_command and not wishes:
        raise UsageError("-N without -L does nothing", hint="-L 8888:worker-1:8888 forwards a port")
    cloud: Any = cloud_of(place, provider, region, profile)
    read = read_command(ctx, words or (), cluster, known_names(place, cloud))
    if no_command and read.argv:
        raise UsageError("-N runs no command", hint="leave one of the two away")
    argv = list(read.argv)
    if cloud is not None and cloud.kind == "sagemaker":
        status = cloud.commands.ssh(
            cloud, read.node or "head", argv, login_name(place, user, None), read.cluster, wishes, no_command
        )
        raise typer.Exit(status)
    if place.is_node and cloud is None:
        place.controller(read.cluster)
        raise typer.Exit(_from_node(place, read.node, argv, user, wishes, no_command))
    name = login_name(place, user, key)
    if cloud is not None:
        spot = ec2_spot(cloud, cloud.provider(read.cluster), read.node, name, key, direct=direct)
    else:
        node = read.node if read.node in (None, "head") or read.node.startswith("i-") else checked_node(read.node)
        spot = local_spot(place, place.choose(read.cluster), node, name, key)
    raise typer.Exit(_log_in(place, spot, argv, name, wishes, no_command))


def run(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[CLUSTER] -- COMMAND...", help="Default: the only cluster.")
    ] = None,
    user: UserOption = None,
    key: KeyOption = None,
    direct: DirectOption = False,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
) -> None:
    """Run a command on the head node.

    Its words reach the program as they are. Input and both outputs are passed through. Ends with the exit status of
    the command."""
    place = place_of(ctx)
    cloud: Any = cloud_of(place, provider, region, profile)
    names = known_names(place, cloud)
    read = read_command(ctx, (), None, names)
    argv = list(read.argv)
    given = list(words or ())
    if not argv:
        raise UsageError("there is no command", hint="hyperpod run CLUSTER -- sinfo")
    if len(given) > 1:
        raise UsageError(f"before -- stands one word too many: {given[1]}", hint="hyperpod run CLUSTER -- COMMAND...")
    from hyperpod.cli.options import one_name

    asked = one_name(given[0] if given else None, cluster)
    if cloud is not None and cloud.kind == "sagemaker":
        raise typer.Exit(cloud.commands.run(cloud, argv, login_name(place, user, None), asked))
    if place.is_node and cloud is None:
        place.controller(asked)
        if place.node_settings().role is Role.HEAD and user in (None, own_name(place)):
            raise typer.Exit(place.terminal(argv))
        raise typer.Exit(_from_node(place, None, argv, user, (), False))
    name = login_name(place, user, key)
    if cloud is not None:
        spot = ec2_spot(cloud, cloud.provider(asked), None, name, key, direct=direct)
    else:
        spot = local_spot(place, place.choose(asked), None, name, key)
    with ExitStack() as stack:
        raise typer.Exit(run_in(open_spot(place, spot, stack), argv))


def _from_node(
    place: Place, node: str | None, argv: Sequence[str], user: str | None, wishes: Sequence[Forward], alone: bool
) -> int:
    """Go on to another node with this node's own ssh."""
    options = [part for wish in wishes for part in ("-L", forward_text(wish))] + (["-N"] if alone else [])
    name = f"{login_name(place, user, None, own_name(place))}@{node_word(place, node)}"
    status = place.terminal(["ssh", *options, name, *(["--", shlex.join(argv)] if argv else [])])
    if status == _SSH_FAILED:
        # Said beside ssh's own words: a command that ends so is passed on as it is.
        hint = "between nodes root has no keys, and users have those of their homes (--user ubuntu)"
        say(f"hint: if ssh to {name} was refused: {hint}; or log in from where the cluster was made")
    return status


def forward_text(wish: Forward) -> str:
    """Return a wish as ssh's own option takes it."""
    bind, host = (f"[{part}]" if ":" in part else part for part in (wish.listen_host, wish.host))
    return f"{bind}:{wish.listen_port}:{host}:{wish.port}"


def _log_in(place: Place, spot: Spot, argv: Sequence[str], user: str, wishes: Sequence[Forward], alone: bool) -> int:
    with ExitStack() as stack:
        try:
            session = open_spot(place, spot, stack)
        except ConnectionLost as error:
            status = _by_the_machine_below(place, spot, argv, user, wishes, error)
            if status is None:
                raise
            return status
        for wish in wishes:
            port = session.forward(wish)
            say(f"localhost:{port} leads to {wish.host}:{wish.port} by {spot.node}")
        if alone:
            return _stay(session)
        return run_in(session, argv)


def run_in(session: SshSession, argv: Sequence[str]) -> int:
    """Run a command, or a shell, on the caller's terminal if there is one, else with the caller's input and outputs."""
    return session.interact(argv) if has_terminal() else session.attach(argv or ["bash", "-l"])


def _stay(session: SshSession) -> int:
    say("Ctrl-C ends it")
    try:
        session.wait()
    except KeyboardInterrupt:
        return 0
    return 0


def _by_the_machine_below(
    place: Place, spot: Spot, argv: Sequence[str], user: str, wishes: Sequence[Forward], error: ConnectionLost
) -> int | None:
    """Enter a local node without its network: one whose birth failed has no sshd, and is to be looked at.

    Returns:
        None where that is not possible.
    """
    if spot.instance is None or wishes or "hyperpod.container" not in spot.instance.labels:
        return None
    connection = place.provider().connect(spot.instance.id)
    if user != "root" and connection.run(["id", "-u", user], timeout_s=10.0, check=False).code != 0:
        return None
    remark(error, "entering it from below, without its network")
    return place.terminal(connection.shell_argv(argv, user=user, interactive=has_terminal()))
