"""Commands about nodes: list-nodes, drain, undrain, replace-node, reboot-node.

Owns their options. Changes go through the controller, so that it knows of them; only ``--force`` on the machine that
carries the cluster goes past a controller that does not answer, and only head and login nodes are never its business.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyperpod.cli import render
from hyperpod.cli.options import (
    ClusterOption,
    NodeArgument,
    OutputOption,
    ProfileOption,
    ProviderOption,
    RegionOption,
    YesOption,
    checked_node,
    confirm,
    examples,
    place_of,
)
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.core.node import REASON_PREFIX, InstanceStatus, Role
from hyperpod.errors import ConnectionLost, HyperpodError, InvalidState, ProviderUnavailable, UsageError

if TYPE_CHECKING:
    from hyperpod.cli.cloud import Cloud
    from hyperpod.cli.ec2 import Ec2Cloud

ForceOption = Annotated[
    bool,
    typer.Option(
        "--force", help="Don't wait for its jobs; if the controller does not answer, do it without the controller."
    ),
]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command("list-nodes", epilog=examples("hyperpod list-nodes", "hyperpod list-nodes --output json"))(list_nodes)
    app.command("drain", epilog=examples('hyperpod drain worker-2 --reason "fan is loud"'))(drain)
    app.command("undrain", epilog=examples("hyperpod undrain worker-2"))(undrain)
    app.command(
        "clear",
        epilog=examples('hyperpod clear worker-2 kernel_log/Xid79 --device 0000:9b:00.0 --reason "GPU replaced"'),
    )(clear)
    app.command(
        "replace-node", epilog=examples("hyperpod replace-node worker-2", "hyperpod replace-node worker-2 --force")
    )(replace_node)
    app.command("reboot-node", epilog=examples("hyperpod reboot-node worker-2", "hyperpod reboot-node head-1 --force"))(
        reboot_node
    )


def cloud_of(place: Place, provider: str | None, region: str | None, profile: str | None) -> Cloud | Ec2Cloud | None:
    """Return the account where a command's cluster is one of AWS's; None on this machine and on nodes."""
    kind = place.provider_kind(provider)
    if kind == "local" and not region and not profile:
        return None
    if kind == "ec2":
        from hyperpod.cli.ec2 import open_ec2

        return open_ec2(place, region, profile)
    from hyperpod.cli.cloud import open_cloud

    return open_cloud(place, provider, region, profile)


# --- list -------------------------------------------------------------------------------------------------------


def list_nodes(
    ctx: typer.Context,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List all nodes with their states and machines.

    The provider says what machines there are, the controller how they work; a node that only one of them knows is
    shown, too.
    """
    place = place_of(ctx)
    cloud = cloud_of(place, provider, region, profile)
    if cloud is not None:
        commands = cloud.commands
        commands.list_nodes(cloud, cluster, output)
        return
    if place.is_node:
        nodes = place.controller(cluster).query("nodes")
        if output is Output.JSON:
            print_json(nodes)
        else:
            print_result(render.nodes_table(nodes))
        return
    name = place.choose(cluster)
    rows, trouble = node_rows(place, name)
    if output is Output.JSON:
        print_json(rows)
    elif rows:
        print_result(
            render.table(
                ("NODE", "ROLE", "STATE", "MACHINE", "INSTANCE", "ADDRESS", "HEARD", "JOBS", "REASON"),
                [
                    (
                        row["node"],
                        row["role"],
                        row["state"],
                        row["machine"],
                        row["instance_id"],
                        row["address"],
                        render.duration(row["heartbeat_age_s"]),
                        row["jobs"],
                        row["reason"],
                    )
                    for row in rows
                ],
            )
        )
    else:
        say(f"cluster {name} on {place.where} has no nodes")
    if trouble:
        say(f"note: {trouble}")


def node_rows(place: Place, cluster: str) -> tuple[list[dict[str, Any]], str]:
    """Return every node that the provider or the controller knows, and why the controller did not answer, if so."""
    instances = place.provider().observe(cluster)
    trouble = ""
    seen: list[dict[str, Any]] = []
    try:
        seen = place.controller(cluster).query("nodes") if instances else []
    except HyperpodError as error:
        trouble = f"{error.message}; the states are the provider's only"
    told = {node["node"]: node for node in seen}
    rows = []
    for instance in instances:
        node = told.pop(instance.node, {})
        rows.append(
            {
                "node": instance.node,
                "group": instance.group,
                "role": instance.role.value,
                "state": node.get("state") or _machine_state(instance.status),
                "machine": instance.status.value,
                "instance_id": instance.id,
                "address": instance.address,
                "created_at": instance.created_at.isoformat(),
                "heartbeat_age_s": node.get("heartbeat_age_s"),
                "jobs": node.get("jobs", []),
                "reason": render.reason_of(node),
                "findings": node.get("findings", []),
            }
        )
    for node in told.values():
        rows.append(
            {
                "node": node["node"],
                "group": node["group"],
                "role": Role.WORKER.value,
                "state": node["state"],
                "machine": "missing",
                "instance_id": "",
                "address": "",
                "created_at": None,
                "heartbeat_age_s": node["heartbeat_age_s"],
                "jobs": node["jobs"],
                "reason": render.reason_of(node),
                "findings": node["findings"],
            }
        )
    return rows, trouble


def _machine_state(status: InstanceStatus) -> str:
    return "up" if status is InstanceStatus.RUNNING else status.value


# --- drain ------------------------------------------------------------------------------------------------------


def drain(
    ctx: typer.Context,
    node: NodeArgument,
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Why (required).")],
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Keep new jobs away from a node; those on it may end.

    Only a person brings it back, with undrain. Root only."""
    text = " ".join(reason.split())
    if not text:
        raise UsageError("--reason is empty", hint="say why, for the one who finds the node drained")
    if text.lower().startswith(REASON_PREFIX):
        raise UsageError(
            f"--reason may not begin with {REASON_PREFIX!r}", hint="that marks drains which the controller may lift"
        )
    _tell(place_of(ctx).controller(cluster).command("drain", node=checked_node(node), reason=text), output)


def undrain(
    ctx: typer.Context, node: NodeArgument, cluster: ClusterOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Let a drained node take jobs again. Root only."""
    _tell(place_of(ctx).controller(cluster).command("undrain", node=checked_node(node)), output)


_STAYS = ("kernel_log", "fabric_log", "deep", "ec2_status", "ec2_event", "ec2_spot")
"""Checks that do not see for themselves that something is over."""


def clear(
    ctx: typer.Context,
    node: NodeArgument,
    finding: Annotated[str, typer.Argument(metavar="CHECK/CODE", help="As 'hyperpod why NODE' names it.")],
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Why (required).")],
    device: Annotated[str, typer.Option("--device", help="Part of the node, where the finding names one.")] = "",
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a finding of a node's logs, of its deep check or of EC2 by hand.

    Other findings end by themselves when their check passes. A node that was drained for it alone takes work again.
    Root only."""
    check, _, code = finding.partition("/")
    if check not in _STAYS or not code:
        raise UsageError(
            f"{finding} cannot be cleared: only findings of {', '.join(_STAYS)} stay when their cause is gone",
            hint="for example: hyperpod clear worker-2 kernel_log/Xid79 --device 0000:9b:00.0 --reason 'GPU replaced'",
        )
    args = {"node": checked_node(node), "check": check, "code": code, "device": device, "reason": reason}
    _tell(place_of(ctx).controller(cluster).command("clear", **args), output)


# --- repair -----------------------------------------------------------------------------------------------------


def replace_node(
    ctx: typer.Context,
    node: NodeArgument,
    force: ForceOption = False,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a node another machine.

    The node is drained first and its jobs may end, unless --force. Name, address and home directories stay. Root only.
    """
    place = place_of(ctx)
    cloud = cloud_of(place, provider, region, profile)
    if cloud is not None:
        commands = cloud.commands
        commands.repair(cloud, "replace", [node], cluster, yes=yes, output=output)
        return
    _repair(place, "replace", checked_node(node), force, yes, cluster, output)


def reboot_node(
    ctx: typer.Context,
    node: NodeArgument,
    force: ForceOption = False,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Restart a node's machine; it keeps its disks. A head or login node is restarted at once.

    A worker is drained first and its jobs may end, unless --force. Root only.
    """
    place = place_of(ctx)
    cloud = cloud_of(place, provider, region, profile)
    if cloud is not None:
        commands = cloud.commands
        commands.repair(cloud, "reboot", [node], cluster, yes=yes, output=output)
        return
    _repair(place, "reboot", checked_node(node), force, yes, cluster, output)


def _repair(place: Place, what: str, node: str, force: bool, yes: bool, cluster: str | None, output: Output) -> None:
    if place.is_node:
        _tell(place.controller(cluster).command(what, node=node, force=force), output)
        return
    from hyperpod.provisioning.directory import find_instance

    name = place.choose(cluster)
    instance = find_instance(place.provider(), name, node)
    if instance.role is not Role.WORKER:
        if what == "replace" and instance.role is Role.HEAD and not force:
            raise InvalidState(
                f"replace {node}",
                "the head node, whose disk holds Slurm's state",
                hint=f"hyperpod reboot-node {node} keeps it; with --force all jobs are lost",
            )
        _straight(place, what, name, node, yes, output)
        return
    try:
        done = place.controller(name).command(what, node=node, force=force)
    except (ConnectionLost, ProviderUnavailable) as error:
        if not force:
            raise ConnectionLost(
                error.message, hint=f"--force does it without the controller; {error.hint}".rstrip("; ")
            ) from error
        say(f"note: {error.message}; it is done without the controller")
        _straight(place, what, name, node, yes, output)
    else:
        _tell(done, output)


def _straight(place: Place, what: str, cluster: str, node: str, yes: bool, output: Output) -> None:
    """Ask the provider itself."""
    from hyperpod.provisioning.directory import find_instance

    instance = find_instance(place.provider(), cluster, node)
    question = f"{what} {node} of cluster {cluster} now"
    if not yes and not confirm(place, question, "--yes does it without asking"):
        raise InvalidState(f"{what} {node}", "as it was: not confirmed")
    if what == "replace":
        token = uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster}/{node}/{instance.id}").hex
        fresh = place.provider().replace(node, instance.id, token)
        _tell(f"{node}: its new machine is {fresh.id}", output)
    else:
        place.provider().reboot(instance.id)
        _tell(f"{node}: restarted", output)


def _tell(sentence: str, output: Output) -> None:
    if output is Output.JSON:
        print_json({"done": sentence})
    else:
        print_result(sentence)
