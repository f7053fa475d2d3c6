"""Commands about whole clusters: create, update, describe, list, delete, and what this machine needs for them.

Owns their options and output. What has to be done is decided in ``core.provision`` and done in ``provisioning``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyperpod.cli import render
from hyperpod.cli.node import cloud_of, node_rows
from hyperpod.cli.options import (
    ClusterArgument,
    ClusterOption,
    OutputOption,
    ProfileOption,
    ProviderOption,
    RegionOption,
    YesOption,
    confirm,
    examples,
    one_name,
    place_of,
)
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.errors import HyperpodError, InvalidState, NotFound, UsageError

if TYPE_CHECKING:
    from hyperpod.cli.cloud import Cloud
    from hyperpod.cli.ec2 import Ec2Cloud
    from hyperpod.core.provision import ProvisionPlan
    from hyperpod.core.spec import ClusterSpec
    from hyperpod.ports.provider import Instance
    from hyperpod.provisioning.apply import ClusterResult

SpecArgument = Annotated[
    Path | None, typer.Argument(metavar="[SPEC]", help="YAML or JSON file with the cluster, see docs/guides.")
]
FileOption = Annotated[Path | None, typer.Option("--file", "-f", metavar="SPEC", help="The same as SPEC.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set one value, stronger than SPEC; may be repeated."),
]
ParametersOption = Annotated[
    Path | None,
    typer.Option(
        "--provisioning-parameters",
        metavar="FILE",
        help="provisioning_parameters.json, when it does not lie beside SPEC.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
InputOption = Annotated[
    str | None,
    typer.Option("--cli-input-json", metavar="FILE", help="SPEC as the AWS CLI names it: file://create-cluster.json"),
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="HyperPod: wait until all instances are there, and show how far it is.")
]
FollowOption = Annotated[bool, typer.Option("--follow", help="Show the output of the lifecycle scripts as it comes.")]
KeepFailedOption = Annotated[
    bool, typer.Option("--keep-failed", help="Leave a machine whose script failed, for a look at it.")
]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command(
        "create-cluster",
        epilog=examples(
            "hyperpod create-cluster configs/laptop.yaml",
            "hyperpod create-cluster -f cluster.json --dry-run",
            "hyperpod create-cluster cluster.yaml --set Hyperpod.Local.MemoryPerNode=2048 --follow",
            "hyperpod create-cluster --cli-input-json file://create-cluster.json --region us-west-2",
        ),
    )(create_cluster)
    app.command(
        "update-cluster",
        epilog=examples(
            "hyperpod update-cluster --group worker --count 6",
            "hyperpod update-cluster cluster.yaml --dry-run",
            "hyperpod update-cluster --group worker --count 2 --force",
            "hyperpod update-cluster --provider sagemaker --cluster ml --group worker --count 8",
        ),
    )(update_cluster)
    app.command("list-clusters", epilog=examples("hyperpod list-clusters", "hyperpod list-clusters --output json"))(
        list_clusters
    )
    app.command(
        "describe-cluster", epilog=examples("hyperpod describe-cluster", "hyperpod describe-cluster demo -o json")
    )(describe_cluster)
    app.command(
        "delete-cluster",
        epilog=examples("hyperpod delete-cluster demo", "hyperpod delete-cluster demo --keep-data --yes"),
    )(delete_cluster)
    app.command("provider-serve", hidden=True, epilog=examples("hyperpod provider-serve demo"))(provider_serve)


# --- create and update ------------------------------------------------------------------------------------------


def create_cluster(
    ctx: typer.Context,
    spec: SpecArgument = None,
    file: FileOption = None,
    dry_run: DryRunOption = False,
    follow: FollowOption = False,
    keep_failed: KeepFailedOption = False,
    yes: YesOption = False,
    set_: SetOption = None,
    provisioning_parameters: ParametersOption = None,
    cli_input_json: InputOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    wait: WaitOption = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make the cluster that SPEC describes.

    Returns when Slurm can use it. Safe to repeat at any time, also after an interruption: with the same SPEC what is
    there stays and what is missing is made. With a changed SPEC the changes are shown, and made when you agree (or
    with --yes).

    A file of the AWS CLI (aws sagemaker create-cluster) makes a HyperPod cluster, unless it says another provider.
    """
    place = place_of(ctx)
    place.refuse_on_node("create-cluster")
    path = _input(_one_spec(spec, file, cli_input_json))
    wanted, cloud = _load(place, path, provisioning_parameters, set_, provider, region, profile)
    if cloud is not None:
        cloud.commands.create(cloud, wanted, dry_run=dry_run, yes=yes, wait=wait, output=output)
        return
    old = _stored(place, wanted.cluster_name)
    _change(place, wanted, old, dry_run, follow, keep_failed, yes or old is None, False, output)


def update_cluster(
    ctx: typer.Context,
    spec: SpecArgument = None,
    file: FileOption = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Change only this group's size.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=0, help="Instances of --group, spares included.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Remove nodes that a job runs on, too.")] = False,
    dry_run: DryRunOption = False,
    follow: FollowOption = False,
    keep_failed: KeepFailedOption = False,
    set_: SetOption = None,
    provisioning_parameters: ParametersOption = None,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    wait: WaitOption = True,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a cluster: to SPEC, or the size of one group.

    Nodes with the highest numbers go first. A node that a job runs on is never removed without --force; it is named and
    the exit status is 4. On HyperPod the service chooses the nodes; changes by SPEC are confirmed, or made with --yes.
    """
    place = place_of(ctx)
    place.refuse_on_node("update-cluster")
    if (group is None) != (count is None):
        raise UsageError("--group and --count belong together", hint="for example --group worker --count 4")
    if group is not None and count is not None:
        if spec or file:
            raise UsageError("give SPEC, or --group and --count, not both")
        if place.provider_kind(provider) != "local":
            cloud = cloud_of(place, provider, region, profile)
            assert cloud is not None
            cloud.commands.set_count(cloud, cluster, group, count, dry_run=dry_run, wait=wait, output=output)
            return
        from hyperpod.core.spec import with_counts

        name = place.choose(cluster)
        old = _stored(place, name)
        if old is None:
            raise _half_made(name)
        wanted = with_counts(old, {group: count})
    else:
        path = _spec_path(spec, file)
        wanted, cloud = _load(place, path, provisioning_parameters, set_, provider, region, profile)
        if cluster and cluster != wanted.cluster_name:
            raise UsageError(f"SPEC is for cluster {wanted.cluster_name}, --cluster says {cluster}")
        if cloud is not None:
            cloud.commands.create(cloud, wanted, dry_run=dry_run, yes=yes, wait=wait, output=output, update_only=True)
            return
        place.choose(wanted.cluster_name)
        old = _stored(place, wanted.cluster_name)
    _change(place, wanted, old, dry_run, follow, keep_failed, True, force, output)


def _spec_path(spec: Path | None, file: Path | None) -> Path:
    if spec and file and spec != file:
        raise UsageError(f"two specifications are named: {spec} and --file {file}", hint="name one")
    path = spec or file
    if path is None:
        raise UsageError("no specification is named", hint="for example configs/laptop.yaml")
    return path


def _one_spec(spec: Path | None, file: Path | None, cli_input: str | None) -> Path | str:
    """Return the specification, by whichever of its three names."""
    if cli_input is None:
        return _spec_path(spec, file)
    if spec or file:
        raise UsageError("give SPEC, or --cli-input-json, not both")
    return cli_input


def _input(spec: Path | str) -> Path:
    if isinstance(spec, Path):
        return spec
    from hyperpod.cli.cloud import input_path

    return input_path(spec)


def _load(
    place: Place,
    path: Path,
    parameters: Path | None,
    settings: list[str] | None,
    provider: str | None,
    region: str | None,
    profile: str | None,
) -> tuple[ClusterSpec, Cloud | Ec2Cloud | None]:
    """Load a specification; with the account where it is a cluster of AWS's."""
    from hyperpod.cli.spec import load_for_command
    from hyperpod.core.spec import Provider

    settings = list(settings or ())
    if provider:
        settings.append(f"Hyperpod.Provider={place.provider_kind(provider)}")
    cloud = None
    if parameters is None and _is_for_hyperpod(path, settings, place.env.get("HYPERPOD_PROVIDER", "")):
        from hyperpod.cli.cloud import open_cloud, read_request, remote_parameters

        if not (path.parent / "provisioning_parameters.json").is_file():
            cloud = open_cloud(place, Provider.SAGEMAKER.value, region, profile)
            parameters = remote_parameters(cloud, read_request(path)) if cloud is not None else None
    loaded = load_for_command(path, parameters, settings)
    for note in loaded.notes:
        say(f"note: {note}")
    kind = loaded.spec.provider
    if kind is Provider.SAGEMAKER:
        from hyperpod.cli.cloud import open_cloud

        return loaded.spec, cloud or open_cloud(place, kind.value, region, profile)
    if kind is Provider.EC2:
        from hyperpod.cli.ec2 import open_ec2

        return loaded.spec, open_ec2(place, region, profile)
    return loaded.spec, None


def _is_for_hyperpod(path: Path, settings: list[str], by_env: str) -> bool:
    """Say whether a file is one for the HyperPod API whose roles may lie with its scripts; judges nothing else."""
    from hyperpod.config.document import read_document

    named = [setting.partition("=")[2] for setting in settings if setting.partition("=")[0] == "Hyperpod.Provider"]
    data = read_document(path).data
    block = data.get("Hyperpod")
    in_file = block.get("Provider", "sagemaker") if isinstance(block, dict) else "sagemaker"
    return str(named[-1] if named else by_env or in_file) == "sagemaker"


def _stored(place: Place, cluster: str) -> ClusterSpec | None:
    """Return the specification of a cluster; None when there is none, or it is half-made."""
    from hyperpod.provisioning.apply import stored_spec

    provider = place.provider()
    return stored_spec(provider, cluster) if cluster in provider.clusters() else None


def _half_made(cluster: str) -> InvalidState:
    return InvalidState(
        f"change cluster {cluster}",
        "half-made",
        hint=f"hyperpod create-cluster SPEC goes on with it; hyperpod delete-cluster {cluster} removes it",
    )


def _change(
    place: Place,
    spec: ClusterSpec,
    old: ClusterSpec | None,
    dry_run: bool,
    follow: bool,
    keep_failed: bool,
    yes: bool,
    force: bool,
    output: Output,
) -> None:
    from hyperpod.cli.progress import CreationScreen
    from hyperpod.provisioning import apply

    provider = place.provider()
    plan = apply.plan_cluster(spec, provider, force=force)
    changes = spec_changes(old, spec) if old is not None else []
    if dry_run:
        _show_plan(spec.cluster_name, plan, changes, output)
        return
    if changes and not yes:
        for line in (*changes, *plan.lines()):
            say(line)
        if not confirm(place, f"Change cluster {spec.cluster_name}", "--yes makes these changes"):
            raise InvalidState(f"change cluster {spec.cluster_name}", "as it was: not confirmed")
    with CreationScreen(provider, spec.cluster_name, place.clock, follow=follow) as screen:
        result = apply.create_cluster(
            spec,
            provider,
            screen,
            force=force,
            keep_failed=keep_failed,
            start_service=place.serve,
            sleep=place.sleep,
        )
    _show_result(place, spec, result, changes, output)
    for failure in result.failures:
        first, *rest = failure.lines()
        say(f"error: {first}")
        for line in rest:
            say(line)
    if result.failures:
        node = result.failures[0].node
        look = f"hyperpod ssh {node} --cluster {spec.cluster_name}"
        say(
            f"hint: correct the script, then run the same command again; {look} looks at it"
            + ("" if keep_failed else " (--keep-failed leaves the first machine as it is)")
        )
        raise typer.Exit(1)
    if result.plan.refused:
        raise typer.Exit(InvalidState.exit_code)


def spec_changes(old: ClusterSpec, new: ClusterSpec) -> list[str]:
    """Return what differs between two specifications, one setting a line."""
    before, after = _flat(_comparable(old)), _flat(_comparable(new))
    return [
        f"~ {path}: {_shown(before.get(path))} -> {_shown(after.get(path))}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]


def _comparable(spec: ClusterSpec) -> dict[str, Any]:
    # The request is compared by what it means: it says the same things, and may say them in another order.
    data = spec.to_json()
    del data["aws_request"], data["provisioning_parameters"]
    data["instance_groups"] = {group["name"]: group for group in data["instance_groups"]}
    return data


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        flat: dict[str, Any] = {}
        for key, item in value.items():
            flat |= _flat(item, f"{path}.{key}" if path else str(key))
        return flat
    return {path: value}


def _shown(value: Any) -> str:
    return "none" if value in (None, {}, []) else str(value)


def _show_plan(cluster: str, plan: ProvisionPlan, changes: list[str], output: Output) -> None:
    if output is Output.JSON:
        print_json({"cluster": cluster, "changes": changes, "plan": _plan_json(plan)})
        return
    lines = [*changes, *plan.lines()]
    if lines:
        print_result(*lines)
    else:
        say(f"cluster {cluster}: nothing to do")


def _plan_json(plan: ProvisionPlan) -> dict[str, Any]:
    return {
        "create": [{"node": node.name, "role": node.role.value, "spare": node.is_spare} for node in plan.create],
        "start": [{"node": node.name, "instance_id": node.instance_id} for node in plan.start],
        "replace": [{"node": node.name, "instance_id": node.instance_id} for node in plan.retry],
        "remove": [{"node": node.name, "instance_id": node.instance_id} for node in plan.remove],
        "refused": [{"node": refusal.node, "reason": refusal.reason} for refusal in plan.refused],
    }


def _show_result(place: Place, spec: ClusterSpec, result: ClusterResult, changes: list[str], output: Output) -> None:
    name = spec.cluster_name
    if output is Output.JSON:
        print_json(
            {
                "cluster": name,
                "changes": changes,
                "plan": _plan_json(result.plan),
                "seconds": result.seconds,
                "nodes": [_instance_json(instance) for instance in result.instances],
                "failures": [
                    {"node": f.node, "instance_id": f.birth.instance_id, "script": f.birth.script,
                     "exit_code": f.birth.exit_code, "tail": list(f.birth.tail), "log_path": f.birth.log_path}
                    for f in result.failures
                ],
            }
        )  # fmt: skip
        return
    for refusal in result.plan.refused:
        say(f"not done: {refusal.node}: {refusal.reason}")
    if result.failures:
        return
    spent = ", ".join(f"{phase} {render.duration(seconds)}" for phase, seconds in result.seconds.items())
    print_result(_machines_table(result.instances))
    if result.plan.is_empty and result.plan.refused:
        return
    if result.plan.is_empty:
        say(f"cluster {name} is as the specification says (looked for {render.duration(sum(result.seconds.values()))})")
        return
    made = {wanted.name for wanted in result.plan.create}
    made |= {seen.name for seen in (*result.plan.start, *result.plan.retry)}
    slowest = _slowest_birth(place, [instance for instance in result.instances if instance.node in made])
    say(f"ready after {render.duration(sum(result.seconds.values()))}: {spent}" + (f"; {slowest}" if slowest else ""))
    head = next((instance.node for instance in result.instances if instance.role is Role.HEAD), "head-1")
    say(f"next: hyperpod status --cluster {name}; hyperpod ssh {head} --cluster {name}")


def _slowest_birth(place: Place, instances: Iterable[Instance]) -> str:
    """Return where the time of the slowest machine went, by its scripts' own record."""
    births = [(instance.node, place.provider().birth(instance.id).timings_ms) for instance in instances]
    timed = [(timings.get("total", sum(timings.values())), node, timings) for node, timings in births if timings]
    if not timed:
        return ""
    _, node, timings = max(timed, key=lambda item: item[0])
    parts = [(step, ms) for step, ms in timings.items() if step != "total"]
    steps = sorted(parts, key=lambda item: -item[1])[:3]
    return f"slowest was {node} with " + ", ".join(f"{step} {render.duration(ms / 1000)}" for step, ms in steps)


def _instance_json(instance: Instance) -> dict[str, Any]:
    return {
        "node": instance.node,
        "group": instance.group,
        "role": instance.role.value,
        "instance_id": instance.id,
        "address": instance.address,
        "status": instance.status.value,
        "created_at": instance.created_at.isoformat(),
    }


def _machines_table(instances: Iterable[Instance]) -> Any:
    return render.table(
        ("NODE", "ROLE", "STATE", "ADDRESS", "INSTANCE"),
        [(i.node, i.role.value, i.status.value, i.address, i.id) for i in instances],
    )


# --- list and describe ------------------------------------------------------------------------------------------


def list_clusters(
    ctx: typer.Context,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the clusters on this machine, half-made ones too; with --provider sagemaker those of an account."""
    place = place_of(ctx)
    cloud = cloud_of(place, provider, region, profile)
    if cloud is not None:
        commands = cloud.commands
        commands.list_clusters(cloud, output)
        return
    if place.is_node:
        own = place.node_settings()
        rows = [
            {"cluster": own.cluster, "provider": "", "status": "this node's own", "nodes": "", "head": own.head_address}
        ]
    else:
        rows = [_cluster_row(place, name) for name in place.cluster_names()]
    if output is Output.JSON:
        print_json(rows)
    elif rows:
        print_result(
            render.table(
                ("CLUSTER", "PROVIDER", "HEAD", "NODES", "STATUS"),
                [(row["cluster"], row["provider"], row["head"], row["nodes"], row["status"]) for row in rows],
            )
        )
    else:
        say(f"no clusters on {place.where}")


def _cluster_row(place: Place, cluster: str) -> dict[str, Any]:
    instances: tuple[Instance, ...] = ()
    try:
        instances = place.provider().observe(cluster)
        spec = _stored(place, cluster)
        wanted = None if spec is None else sum(group.count for group in spec.instance_groups)
        status = _cluster_status(wanted, instances)
    except HyperpodError as error:
        # One damaged file must not hide the other clusters.
        wanted, status = None, f"damaged: {error.message}"
    running = sum(1 for instance in instances if instance.status is InstanceStatus.RUNNING)
    head = next((instance.address for instance in instances if instance.role is Role.HEAD), "")
    total = len(instances) if wanted is None else wanted
    return {
        "cluster": cluster, "provider": "local", "status": status, "nodes": f"{running} of {total} up", "head": head,
    }  # fmt: skip


def _cluster_status(wanted: int | None, instances: Iterable[Instance]) -> str:
    statuses = [instance.status for instance in instances]
    if wanted is None:
        return "half-made: create-cluster goes on, delete-cluster removes it"
    if len(statuses) >= wanted and all(status is InstanceStatus.RUNNING for status in statuses):
        return "in service"
    if InstanceStatus.PENDING in statuses:
        return "machines are being set up"
    return "degraded: hyperpod describe-cluster shows what is missing"


def describe_cluster(
    ctx: typer.Context,
    name: ClusterArgument = None,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one cluster: its groups, machines and controller.

    Machines that are not set up are shown with the record of their lifecycle scripts."""
    place = place_of(ctx)
    asked = one_name(name, cluster)
    cloud = cloud_of(place, provider, region, profile)
    if cloud is not None:
        commands = cloud.commands
        commands.describe(cloud, asked, output)
        return
    answer = _describe_from_node(place, asked) if place.is_node else _describe(place, place.choose(asked))
    if output is Output.JSON:
        print_json(answer)
        return
    facts = [
        ("cluster", answer["cluster"]),
        ("status", answer["status"]),
        ("provider", answer["provider"]),
        ("controller", answer["controller"]),
        ("folder", answer["folder"]),
        ("shared storage", answer["shared_storage"]),
    ]
    width = max(len(label) for label, _ in facts)
    parts: list[Any] = [f"{label.ljust(width)}  {value}" for label, value in facts if value]
    groups = render.table(
        ("GROUP", "ROLE", "TYPE", "UP", "WANTED", "SPARES", "PARTITION"),
        [
            (g["group"], g["role"], g["instance_type"], g["up"], g["wanted"], g["spares"] or "", g["partition"])
            for g in answer["groups"]
        ],
    )
    nodes = render.table(
        ("NODE", "STATE", "MACHINE", "INSTANCE", "ADDRESS", "JOBS", "REASON"),
        [
            (n["node"], n["state"], n["machine"], n["instance_id"], n["address"], n["jobs"], n["reason"])
            for n in answer["nodes"]
        ],
    )
    births = [line for birth in answer["births"] for line in render.birth_lines(birth)]
    print_result(*parts, "", groups, "", nodes, *(["", *births] if births else []))


def _describe(place: Place, cluster: str) -> dict[str, Any]:
    provider = place.provider()
    instances = provider.observe(cluster)
    spec = _stored(place, cluster)
    nodes, trouble = node_rows(place, cluster)
    births = []
    for instance in instances:
        birth = provider.birth(instance.id)
        if instance.status is not InstanceStatus.RUNNING:
            births.append(
                {
                    "node": instance.node, "instance_id": instance.id, "status": birth.status.value,
                    "script": birth.script, "exit_code": birth.exit_code, "tail": list(birth.tail),
                    "log_path": birth.log_path,
                }
            )  # fmt: skip
    home = provider.cluster(cluster)
    wanted = None if spec is None else sum(group.count for group in spec.instance_groups)
    groups = () if spec is None else spec.instance_groups
    return {
        "cluster": cluster,
        "status": _cluster_status(wanted, instances),
        "provider": f"local, on {place.host}",
        "controller": trouble or ("answers" if instances else ""),
        "folder": str(home.path),
        "shared_storage": str((spec.hyperpod.shared_storage if spec else None) or home.fsx),
        "groups": [
            {
                "group": group.name,
                "role": group.role.value,
                "instance_type": group.instance_type,
                "wanted": group.count,
                "up": sum(1 for i in instances if i.group == group.name and i.status is InstanceStatus.RUNNING),
                "spares": group.spares,
                "partition": group.partition or "",
            }
            for group in groups
        ],
        "nodes": nodes,
        "births": births,
    }


def _describe_from_node(place: Place, asked: str | None) -> dict[str, Any]:
    """Describe what a node can know: the workers, as the controller sees them."""
    nodes = place.controller(asked).query("nodes")
    names = sorted({str(node["group"]) for node in nodes})
    return {
        "cluster": place.node_settings().cluster,
        "status": "",
        "provider": "",
        "controller": "answers",
        "folder": "",
        "shared_storage": "",
        "groups": [
            {
                "group": group,
                "role": Role.WORKER.value,
                "instance_type": "",
                "wanted": sum(1 for node in nodes if node["group"] == group),
                "up": sum(1 for n in nodes if n["group"] == group and n["instance_status"] == "running"),
                "spares": 0,
                "partition": ",".join(sorted({str(n["partition"]) for n in nodes if n["group"] == group} - {""})),
            }
            for group in names
        ],
        "nodes": [
            {**node, "machine": node["instance_status"], "address": "", "reason": render.reason_of(node)}
            for node in nodes
        ],
        "births": [],
    }


# --- delete -----------------------------------------------------------------------------------------------------


def delete_cluster(
    ctx: typer.Context,
    name: ClusterArgument = None,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Keep the shared file systems (/fsx and /home).")
    ] = False,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    wait: WaitOption = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a cluster with its machines, network and data.

    One that is gone already is done. Of a HyperPod cluster the instances go; file systems and buckets stay."""
    place = place_of(ctx)
    place.refuse_on_node("delete-cluster")
    cloud = cloud_of(place, provider, region, profile)
    if cloud is not None:
        commands = cloud.commands
        commands.delete(cloud, one_name(name, cluster), yes=yes, wait=wait, output=output)
        return
    asked = one_name(name, cluster) or place.env.get("HYPERPOD_CLUSTER")
    if not asked and yes:
        # What cannot be undone is not guessed.
        raise UsageError("--yes needs the name of the cluster", hint="hyperpod delete-cluster NAME --yes")
    from hyperpod.provisioning import apply

    machines = place.provider()
    try:
        chosen = place.choose(asked)
    except NotFound as error:
        if not asked:
            raise
        home = machines.cluster(asked)
        if not home.exists() and not machines.observe(asked):
            say(f"nothing to delete: {error.message}")
            _tell_deleted(asked, None, False, output)
            return
        chosen = asked
    home = machines.cluster(chosen)
    what = "its machines and network; the data stays" if keep_data else "its machines, network and all data on /fsx"
    if not yes and not confirm(place, f"Delete cluster {chosen}: {what}", "--yes deletes without asking"):
        raise InvalidState(f"delete cluster {chosen}", "as it was: not confirmed")
    apply.delete_cluster(chosen, machines, keep_data=keep_data)
    _tell_deleted(chosen, str(home.path) if keep_data else None, True, output)


def _tell_deleted(cluster: str, kept: str | None, was_there: bool, output: Output) -> None:
    if output is Output.JSON:
        print_json({"cluster": cluster, "deleted": was_there, "kept_data": kept})
    elif was_there:
        print_result(f"deleted {cluster}" + (f"; its data is kept in {kept}" if kept else ""))


# --- this machine -----------------------------------------------------------------------------------------------


def provider_serve(
    ctx: typer.Context, cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of the cluster.")]
) -> None:
    """Serve a cluster's controller with what only this machine can do.

    Started by create-cluster; ends at SIGTERM."""
    place = place_of(ctx)
    place.refuse_on_node("provider-serve")
    chosen = place.choose(cluster)
    from hyperpod.adapters.local.service import main

    raise typer.Exit(main([str(place.home), chosen]))
