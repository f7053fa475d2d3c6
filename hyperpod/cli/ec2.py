"""The commands about clusters and nodes, where the cluster is made of our own instances on EC2.

Owns what they show and ask there; ``cluster`` and ``node`` come here for provider ``ec2``. Same names and arguments as
in ``cloud``, which does the same for HyperPod clusters.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.ec2 import Ec2Provider, clusters, find_provider
from hyperpod.cli import render
from hyperpod.cli.options import confirm
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.core.node import Role
from hyperpod.errors import HyperpodError, InvalidState, NotFound, UsageError
from hyperpod.ports.provider import Instance

if TYPE_CHECKING:
    from hyperpod.core.spec import ClusterSpec
    from hyperpod.provisioning.ec2_cluster import Ec2Result


@dataclass
class Ec2Cloud:
    """Clusters on EC2 of one account and region, for one run of the program."""

    kind: ClassVar[str] = "ec2"
    place: Place
    aws: Aws

    @property
    def commands(self) -> Any:
        """The module with what the commands do with this kind of account."""
        return sys.modules[__name__]

    @property
    def where(self) -> str:
        """The account and region that were asked, for people."""
        try:
            return f"account {self.aws.account()} in {self.aws.region_name}"
        except HyperpodError:
            return self.aws.region_name

    @property
    def clock(self) -> dict[str, Any]:
        """The place's time, for those who wait."""
        return {"sleep": self.place.sleep, "monotonic": self.place.clock}

    def names(self) -> list[str]:
        """Return the clusters on EC2."""
        return list(clusters(self.aws))

    def provider(self, asked: str | None) -> Ec2Provider:
        """Return the provider of the cluster that is meant: the one asked for, or the only one."""
        from hyperpod.provisioning.directory import choose_cluster

        name = asked or self.place.env.get("HYPERPOD_CLUSTER")
        if not name:
            name = choose_cluster(list(clusters(self.aws)), None, self.where)
        return find_provider(self.aws, name, **self.clock)


def open_ec2(place: Place, region: str | None, profile: str | None) -> Ec2Cloud:
    """Return the account that the flags and the environment mean."""
    return Ec2Cloud(place, place.aws(region, profile))


def create(
    cloud: Ec2Cloud,
    spec: ClusterSpec,
    *,
    dry_run: bool,
    yes: bool,
    wait: bool,
    output: Output,
    update_only: bool = False,
) -> None:
    """Make a cluster, or bring one to what the specification says, and wait for it."""
    from hyperpod.core.provision import diff_cluster
    from hyperpod.provisioning.ec2_cluster import (
        cluster_folder,
        create_cluster,
        observe_nodes,
        open_provider,
        send_software,
    )

    name = spec.cluster_name
    is_there = name in clusters(cloud.aws)
    if update_only and not is_there:
        raise NotFound(f"no cluster {name} in {cloud.where}", hint="hyperpod create-cluster SPEC makes it")
    folder = cluster_folder(cloud.aws, spec)
    plan = diff_cluster(spec, observe_nodes(Ec2Provider(cloud.aws, name, folder, **cloud.clock), spec))
    if dry_run:
        lines = plan.lines()
        if output is Output.JSON:
            print_json({"cluster": name, "changes": list(lines)})
        elif lines:
            print_result(*lines)
        else:
            say(f"cluster {name}: nothing to do")
        return
    if is_there and plan.remove and not yes:
        for line in plan.lines():
            say(line)
        if not confirm(cloud.place, f"Change cluster {name} so", "--yes changes without asking"):
            raise InvalidState(f"change cluster {name}", "as it was: not confirmed")
    say("sending programs and scripts")
    provider = open_provider(cloud.aws, spec, software=send_software(folder), **cloud.clock)
    result = create_cluster(spec, provider, _Screen(), wait=wait, **cloud.clock)
    _finish(name, result, output)


def set_count(
    cloud: Ec2Cloud, cluster: str | None, group: str, count: int, *, dry_run: bool, wait: bool, output: Output
) -> None:
    """Change the size of one group; smaller by idle nodes only."""
    from hyperpod.core.spec import with_counts
    from hyperpod.provisioning.ec2_cluster import stored_spec

    spec = with_counts(stored_spec(cloud.provider(cluster).folder), {group: count})
    create(cloud, spec, dry_run=dry_run, yes=True, wait=wait, output=output, update_only=True)


def list_clusters(cloud: Ec2Cloud, output: Output) -> None:
    """List the account's clusters on EC2."""
    rows = [{"cluster": name, "provider": "ec2", "folder": f"s3://{at}/"} for name, at in clusters(cloud.aws).items()]
    if output is Output.JSON:
        print_json(rows)
    elif rows:
        print_result(render.table(("CLUSTER", "PROVIDER", "FOLDER"), [tuple(row.values()) for row in rows]))
    else:
        say(f"no clusters on EC2 in {cloud.where}")


def describe(cloud: Ec2Cloud, asked: str | None, output: Output) -> None:
    """Show one cluster: its nodes, and what EC2 knows to be wrong with them."""
    provider = cloud.provider(asked)
    rows = _rows(provider)
    if output is Output.JSON:
        print_json(
            {"cluster": provider.cluster, "provider": "ec2", "region": cloud.aws.region_name,
             "folder": provider.folder.uri, "nodes": rows}
        )  # fmt: skip
        return
    facts = f"cluster   {provider.cluster}\nprovider  ec2, {cloud.aws.region_name}\nfolder    {provider.folder.uri}"
    print_result(facts, "", _table(rows))


def list_nodes(cloud: Ec2Cloud, asked: str | None, output: Output) -> None:
    """List a cluster's nodes."""
    provider = cloud.provider(asked)
    rows = _rows(provider)
    if output is Output.JSON:
        print_json(rows)
    elif rows:
        print_result(_table(rows))
    else:
        say(f"cluster {provider.cluster} in {cloud.where} has no nodes")


def delete(cloud: Ec2Cloud, asked: str | None, *, yes: bool, wait: bool, output: Output) -> None:
    """Delete a cluster with everything that carries its tag."""
    name = asked or cloud.place.env.get("HYPERPOD_CLUSTER")
    if not name and yes:
        raise UsageError("--yes needs the name of the cluster", hint="hyperpod delete-cluster NAME --yes")
    try:
        provider = cloud.provider(name)
    except NotFound:
        if not name:
            raise
        say(f"nothing to delete: no cluster {name} in {cloud.where}")
        if output is Output.JSON:
            print_json({"cluster": name, "deleted": False, "kept_data": None})
        return
    count = len(provider.observe(provider.cluster))
    question = f"Delete cluster {provider.cluster} with its {count} instances and their disks"
    if not yes and not confirm(cloud.place, question, "--yes deletes without asking"):
        raise InvalidState(f"delete cluster {provider.cluster}", "as it was: not confirmed")
    report = provider.delete()
    if output is Output.JSON:
        print_json(
            {"cluster": provider.cluster, "deleted": not report.left, "kept_data": None, "removed": report.removed,
             "left": report.left}
        )  # fmt: skip
    else:
        print_result(f"deleted {provider.cluster}" if not report.left else f"{provider.cluster} is not wholly deleted")
    for line in report.left:
        say(f"error: {line}")
    if report.left:
        raise typer.Exit(1)


def repair(cloud: Ec2Cloud, what: str, names: Sequence[str], cluster: str | None, *, yes: bool, output: Output) -> None:
    """Replace or reboot nodes; each node's outcome is told, and one that failed fails the command."""
    provider = cloud.provider(cluster)
    present = {i.node: i for i in provider.observe(provider.cluster) if i.node}
    unknown = [name for name in names if name not in present and name not in provider.addresses()]
    if unknown:
        raise NotFound(f"cluster {provider.cluster} has no node {unknown[0]}", hint="hyperpod list-nodes")
    if what not in ("replace", "reboot"):
        raise UsageError(f"{what} does not work on EC2", hint="hyperpod update-cluster --group GROUP --count N")
    question = f"{what} {', '.join(names)} of cluster {provider.cluster} now; their jobs end"
    if not yes and not confirm(cloud.place, question, "--yes does it without asking"):
        raise InvalidState(f"{what} {', '.join(names)}", "as it was: not confirmed")
    results = []
    for name in names:
        results.append({"node": name, **_repair(provider, what, name, present.get(name))})
    if output is Output.JSON:
        print_json(results)
    else:
        for result in results:
            print_result(f"{result['node']}: {result['message']}")
    if not all(result["done"] for result in results):
        raise typer.Exit(1)


def _repair(provider: Ec2Provider, what: str, node: str, instance: Instance | None) -> dict[str, Any]:
    try:
        if what == "reboot":
            if instance is None:
                raise NotFound(f"{node} has no machine", hint="replace-node gives it one")
            provider.reboot(instance.id)
            return {"done": True, "message": f"{instance.id} restarts", "instance_id": instance.id}
        old = instance.id if instance is not None else ""
        fresh = provider.replace(node, old, f"person-{old}")
    except HyperpodError as error:
        return {"done": False, "message": error.message, "instance_id": instance.id if instance else ""}
    return {"done": True, "message": f"{old or 'nothing'} is replaced by {fresh.id}", "instance_id": fresh.id}


def _finish(name: str, result: Ec2Result, output: Output) -> None:
    failures = result.failures or {}
    if output is Output.JSON:
        print_json(
            {"cluster": name, "ready": not failures, "changes": list(result.plan.lines()),
             "nodes": [_row(i, ()) for i in result.instances],
             "failures": {node: {"instance_id": b.instance_id, "tail": b.tail, "log": b.log_path}
                          for node, b in failures.items()}}
        )  # fmt: skip
    elif not failures:
        print_result(f"cluster {name}: {len(result.instances)} nodes")
    for node, birth in failures.items():
        say(f"error: {node} ({birth.instance_id}): {birth.script or 'its boot'} ended with status {birth.exit_code}")
        for line in birth.tail:
            say(f"    {line}")
        say(f"    whole log: {birth.log_path}")
    if failures:
        raise typer.Exit(1)


def _rows(provider: Ec2Provider) -> list[Mapping[str, Any]]:
    findings = provider.findings()
    return [_row(i, [f.message for f in findings.get(i.node, ())]) for i in provider.observe(provider.cluster)]


def _row(instance: Instance, messages: Sequence[str]) -> Mapping[str, Any]:
    duplicate = instance.labels.get("duplicate-of")
    reasons = [*messages, *([f"one too many for {duplicate}"] if duplicate else ())]
    return {
        "node": instance.node,
        "group": instance.group,
        "role": instance.role.value if instance.role in Role else "",
        "state": instance.status.value,
        "machine": instance.labels.get("state", ""),
        "instance_id": instance.id,
        "instance_type": instance.labels.get("instance-type", ""),
        "address": instance.address,
        "created_at": instance.created_at,
        "reason": "; ".join(reasons) or instance.labels.get("state-reason", ""),
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> Any:
    keys = ("node", "group", "role", "state", "instance_id", "address", "reason")
    columns = ("NODE", "GROUP", "ROLE", "STATE", "INSTANCE", "ADDRESS", "REASON")
    return render.table(columns, [tuple(row[key] for key in keys) for row in rows])


class _Screen:
    """Says what is being done, each thing once."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, what: str, _share: float) -> None:
        if what != self._last:
            self._last = what
            say(what)
