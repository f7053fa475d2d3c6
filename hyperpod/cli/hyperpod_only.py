"""Commands that only HyperPod clusters know: delete-node, update-software, deep-health-check, service-events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hyperpod.cli import render
from hyperpod.cli.options import (
    ClusterOption,
    OutputOption,
    ProfileOption,
    RegionOption,
    YesOption,
    confirm,
    examples,
    place_of,
)
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.errors import InvalidState, UsageError

if TYPE_CHECKING:
    from hyperpod.cli.cloud import Cloud

NodesArgument = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Nodes, by Slurm's name, instance id, or GROUP-NUMBER.")
]
GroupOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="GROUP", help="Only this instance group; may be repeated.")
]
_CHECKS = ("InstanceStress", "InstanceConnectivity")


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command(
        "delete-node", epilog=examples("hyperpod delete-node ip-10-1-2-3 --cluster ml", "hyperpod delete-node worker-4")
    )(delete_node)
    app.command("update-software", epilog=examples("hyperpod update-software --cluster ml --group worker --yes"))(
        update_software
    )
    app.command(
        "deep-health-check",
        epilog=examples(
            "hyperpod deep-health-check --cluster ml --group worker",
            "hyperpod deep-health-check --cluster ml --node ip-10-1-2-3 --check InstanceStress",
        ),
    )(deep_health_check)
    app.command("service-events", epilog=examples("hyperpod service-events --cluster ml --limit 20"))(service_events)


def _cloud(ctx: typer.Context, region: str | None, profile: str | None) -> Cloud:
    from hyperpod.cli.cloud import open_cloud

    place = place_of(ctx)
    place.refuse_on_node(str(ctx.info_name))
    cloud = open_cloud(place, "sagemaker", region, profile)
    assert cloud is not None
    return cloud


def delete_node(
    ctx: typer.Context,
    nodes: NodesArgument,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove nodes of a HyperPod cluster for good; their groups become smaller. Jobs on them end."""
    from hyperpod.cli.cloud import repair

    repair(_cloud(ctx, region, profile), "delete", nodes, cluster, yes=yes, output=output)


def update_software(
    ctx: typer.Context,
    group: GroupOption = None,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Bring the nodes of a HyperPod cluster to the newest image of the service.

    Root volumes are lost and the lifecycle scripts run again; jobs end."""
    cloud = _cloud(ctx, region, profile)
    chosen = cloud.choose(cluster)
    what = ", ".join(group) if group else "all groups"
    question = f"Update {what} of cluster {chosen.name}: root volumes are lost and jobs end"
    if not yes and not confirm(cloud.place, question, "--yes updates without asking"):
        raise InvalidState(f"update cluster {chosen.name}", "as it was: not confirmed")
    cloud.api.update_software(chosen.name, group or ())
    if output is Output.JSON:
        print_json({"cluster": chosen.name, "groups": group or [g.name for g in chosen.groups]})
    else:
        print_result(f"{chosen.name}: {what} is being updated")


def deep_health_check(
    ctx: typer.Context,
    group: GroupOption = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NODE", help="Only this node; may be repeated.")
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="CHECK", help=f"Default: {' and '.join(_CHECKS)}.")
    ] = None,
    cluster: ClusterOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start deep health checks on nodes of a HyperPod cluster.

    They take up to two hours, and the nodes take no jobs then."""
    from hyperpod.adapters.aws.sagemaker import pick_node

    cloud = _cloud(ctx, region, profile)
    chosen = cloud.choose(cluster)
    wanted: dict[str, list[str]] = {name: [] for name in group or ()}
    if node:
        nodes = cloud.api.nodes(chosen.name)
        for name in node:
            picked = pick_node(nodes, chosen.name, name)
            if group and picked.group not in group:
                raise UsageError(f"{name} is in group {picked.group}, not in {', '.join(group)}")
            wanted.setdefault(picked.group, []).append(picked.instance_id)
    if not wanted:
        raise UsageError("no nodes are named", hint="--group GROUP, or --node NODE")
    checks = check or list(_CHECKS)
    cloud.api.start_health_check(chosen.name, wanted, checks)
    if output is Output.JSON:
        print_json({"cluster": chosen.name, "groups": wanted, "checks": checks})
    else:
        print_result(f"{chosen.name}: {', '.join(checks)} started on {', '.join(wanted)}")


def service_events(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="The newest N.")] = 50,
    cluster: ClusterOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what the HyperPod service did to a cluster. Only clusters with continuous provisioning have such events."""
    cloud = _cloud(ctx, region, profile)
    chosen = cloud.choose(cluster)
    events = cloud.api.events(chosen.name, limit)
    if output is Output.JSON:
        print_json([vars(event) for event in events])
    elif events:
        columns = ("TIME", "LEVEL", "GROUP", "INSTANCE", "EVENT")
        rows = [(render.when(e.at.isoformat()), e.level, e.group, e.instance_id, e.text) for e in events]
        print_result(render.table(columns, rows))
    else:
        say(f"no events of cluster {chosen.name} in {cloud.where}")
