"""How a command gets onto a node: which cluster and node are meant, and the way there for each provider.

Owns the choice of addresses, keys and host keys. Local nodes and EC2's are reached by ssh, HyperPod's by Session
Manager; on a node itself the machine's own ssh is used. Shows nothing but what it has to remark.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from hyperpod.cli.place import Place
from hyperpod.cli.render import say
from hyperpod.core.login import Words, parse_user, put_argv, read_words, remote_line
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.errors import CommandError, ConnectionLost, HyperpodError, InvalidState, NotFound, UsageError
from hyperpod.ports.login import Answer, SshSession, SshTarget
from hyperpod.ports.process import ProcessRunner

if TYPE_CHECKING:
    from hyperpod.adapters.aws.ec2 import Ec2Provider
    from hyperpod.cli.ec2 import Ec2Cloud
    from hyperpod.ports.provider import Instance

_AFTER = "hyperpod.after_dashes"
_PROBE_S = 4.0
"""How long an address that may not lead anywhere is tried when there is another way."""

UserOption = Annotated[
    str | None,
    typer.Option("--user", "-u", metavar="NAME", help="As whom. Default: HYPERPOD_USER, or root (with --key: ubuntu)."),
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--key", "-i", metavar="FILE", help="Private key to log in with. Default: the cluster's own."),
]

DirectOption = Annotated[
    bool, typer.Option("--direct", help="EC2: only by private addresses, as over a VPN; no Session Manager.")
]


class DashedCommand(TyperCommand):
    """A command line whose part behind ``--`` is kept apart, so that it can be told from a node's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_AFTER] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def after_dashes(ctx: typer.Context) -> list[str] | None:
    """Return the words behind ``--``; None when there is no ``--``."""
    found = ctx.meta.get(_AFTER)
    return None if found is None else list(found)


def read_command(ctx: typer.Context, words: Sequence[str], cluster: str | None, known: Any) -> Words:
    """Return cluster, node and command that a command line means; see ``core.login.read_words``."""
    read = read_words(words, cluster, known)
    dashed = after_dashes(ctx)
    if dashed is None:
        return read
    if read.argv:
        raise UsageError(f"before -- stands one word too many: {read.argv[0]}", hint=f"{ctx.command_path} --help")
    return replace(read, argv=tuple(dashed))


def login_name(place: Place, asked: str | None, key: Path | None, default: str = "root") -> str:
    """Return as whom to log in."""
    name = asked or place.env.get("HYPERPOD_USER")
    return parse_user(name) if name else ("ubuntu" if key is not None else default)


def own_name(place: Place) -> str:
    """Return who calls, on a node."""
    return "root" if place.is_root else place.env.get("USER") or getpass.getuser()


# --- on this machine --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """One node of a cluster on this machine or on EC2, and the ways to it, the best first."""

    cluster: str
    node: str
    targets: tuple[SshTarget, ...]
    instance: Instance | None = None


def pick_instance(instances: Sequence[Instance], cluster: str, node: str | None) -> Instance:
    """Return the machine that is meant by a node's name or a machine's id; by nothing, the head node.

    Raises:
        NotFound: There is none such.
        InvalidState: There is no head node, or the machine does not run.
    """
    if node in (None, "head"):
        found = next((one for one in instances if one.role is Role.HEAD), None)
        if found is None:
            raise InvalidState(
                f"reach cluster {cluster}",
                "half-made, without a head node",
                hint=f"hyperpod create-cluster SPEC goes on with it; hyperpod delete-cluster {cluster} removes it",
            )
    else:
        found = next((one for one in instances if node in (one.node, one.id)), None)
        if found is None:
            known = [one.node for one in instances if one.node]
            shown = ", ".join(known[:12]) or "none"
            more = f" and {len(known) - 12} more" if len(known) > 12 else ""
            raise NotFound(f"cluster {cluster} has no node {node}", hint=f"its nodes are: {shown}{more}")
    return found


def check_runs(instance: Instance, cluster: str) -> None:
    """Refuse a machine that does not run."""
    if instance.status in (InstanceStatus.STOPPED, InstanceStatus.GONE):
        raise InvalidState(
            f"reach {instance.node}",
            instance.status.value,
            hint=f"hyperpod reboot-node {instance.node} --cluster {cluster} --force",
        )


def local_spot(place: Place, cluster: str, node: str | None, user: str, key: Path | None) -> Spot:
    """Return the way to a node of a cluster on this machine."""
    from hyperpod.adapters.local.provider import relay_argv

    instance = pick_instance(place.provider().observe(cluster), cluster, node)
    check_runs(instance, cluster)
    home = place.provider().cluster(cluster)
    public = home.secrets / f"host_{instance.node}.pub"
    target = SshTarget(
        name=instance.node,
        address=instance.address,
        user=user,
        host_key=" ".join(public.read_text().split()[:2]) if public.is_file() else "",
        key_files=(key or home.secrets / "admin",),
        through_root=key is None,
        proxy=tuple(relay_argv(cluster, instance.node)),
        hint=f"hyperpod reboot-node {instance.node} --cluster {cluster} --force",
    )
    return Spot(cluster, instance.node, (target,), instance)


# --- on EC2 -----------------------------------------------------------------------------------------------------


def ec2_spot(
    cloud: Ec2Cloud, provider: Ec2Provider, node: str | None, user: str, key: Path | None, *, direct: bool = False
) -> Spot:
    """Return the ways to a node on EC2: by its addresses, through the head node, through Session Manager.

    Args:
        direct: Only by its private address, as over a VPN.
    """
    from hyperpod.adapters.aws.cluster_keys import admin_key, host_keys
    from hyperpod.adapters.aws.session import has_plugin, proxy_words

    instances = provider.observe(provider.cluster)
    instance = pick_instance(instances, provider.cluster, node)
    check_runs(instance, provider.cluster)
    known = host_keys(provider.folder)
    own = admin_key(provider.folder) if key is None else ""
    hint = "nodes in a private subnet need a VPN, or the session-manager-plugin and the AWS CLI on this machine"

    def target(one: Instance, **more: Any) -> SshTarget:
        return SshTarget(
            name=one.node or one.id,
            user=user,
            host_key=known.get(one.node, ""),
            key_files=(key,) if key is not None else (),
            key_texts=(own,) if own else (),
            use_agent=True,
            through_root=bool(own),
            hint=hint,
            **{"address": one.address, **more},
        )

    head = next((one for one in instances if one.role is Role.HEAD), instance)
    public = instance.labels.get("public-address", "")
    entrance = head.labels.get("public-address", "")
    ways = []
    if public and not direct:
        ways.append(target(instance, address=public))
    if entrance and head.id != instance.id and not direct:
        ways.append(target(instance, jump=target(head, address=entrance)))
    if instance.address:
        ways.append(target(instance))
    if not direct and has_plugin():
        ways.append(target(instance, proxy=tuple(proxy_words(instance.id, provider.aws))))
    if not ways:
        raise InvalidState(f"reach {instance.node}", "without an address", hint="hyperpod list-nodes shows its state")
    return Spot(provider.cluster, instance.node or instance.id, tuple(ways), instance)


# --- the login --------------------------------------------------------------------------------------------------


def open_spot(place: Place, spot: Spot, stack: ExitStack) -> SshSession:
    """Log in by the first way that leads there; the session ends with ``stack``.

    Raises:
        ConnectionLost: None of the ways leads there; the error is the last one's.
    """
    *others, last = spot.targets
    session: SshSession | None = None
    for target in others:
        try:
            session = place.open_ssh(target, _PROBE_S)
            break
        except ConnectionLost:
            continue
    if session is None:
        session = place.open_ssh(last, None)
    stack.callback(session.close)
    return session


@dataclass(frozen=True)
class NodeSession:
    """Implements ``ports.login.Session`` on a node itself. ``user``: as whom, if not as the caller."""

    processes: ProcessRunner
    user: str = ""

    def ask(self, argv: Sequence[str], *, timeout_s: float, input: bytes = b"") -> Answer:
        """Run a short command; see the port."""
        words = ["runuser", "-l", self.user, "-c", remote_line(argv)] if self.user else list(argv)
        text = input.decode() if input else None
        done = self.processes.run(words, timeout_s=timeout_s, input=text, check=False)
        return Answer(done.stdout.encode(), done.stderr.encode(), done.code)

    def put(self, folder: str, name: str, data: bytes) -> str:
        """Write a file into a new folder; see the port."""
        answer = self.ask(put_argv(folder, name), timeout_s=60.0, input=data)
        if answer.code != 0:
            raise CommandError(["sh"], answer.code, answer.trouble)
        return answer.text.strip().splitlines()[-1]


def known_names(place: Place, cloud: Any) -> Any:
    """Return the function that lists the clusters, for ``read_words``."""
    if cloud is not None:
        return cloud.names
    if place.is_node:
        return lambda: [place.node_settings().cluster]
    return place.cluster_names


def node_word(place: Place, node: str | None) -> str:
    """Return a node's address as this node's own ssh takes it: its name, or the head node's address."""
    settings = place.node_settings()
    if node in (None, "head"):
        return settings.head_address
    return str(node)


def has_terminal() -> bool:
    """Say whether a person sits at both ends of this program."""
    return os.isatty(0) and os.isatty(1)


def remark(error: HyperpodError, what: str) -> None:
    """Tell of a way that did not lead on, and of the next."""
    say(f"note: {error.message}; {what}")
