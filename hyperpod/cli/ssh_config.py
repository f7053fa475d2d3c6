"""``hyperpod ssh-config``: host entries by which plain ssh, scp, rsync and editors reach a cluster's nodes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hyperpod.cli.options import (
    ClusterArgument,
    ClusterOption,
    OutputOption,
    ProfileOption,
    ProviderOption,
    RegionOption,
    examples,
    one_name,
    place_of,
)
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, say
from hyperpod.core.node import Role

if TYPE_CHECKING:
    from hyperpod.cli.cloud import Cloud
    from hyperpod.cli.ec2 import Ec2Cloud

_KNOWN_HOSTS = "~/.ssh/known_hosts_hyperpod"


def register(app: typer.Typer) -> None:
    """Add ``ssh-config`` to the program."""
    app.command(
        "ssh-config",
        epilog=examples(
            "hyperpod ssh-config demo > ~/.ssh/hyperpod-demo",
            "hyperpod ssh-config ml --provider sagemaker > ~/.ssh/hyperpod-ml",
        ),
    )(ssh_config)


def ssh_config(
    ctx: typer.Context,
    name: ClusterArgument = None,
    cluster: ClusterOption = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="NAME", help="Login name. Default: root here, ubuntu on AWS.")
    ] = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write host entries for plain ssh, scp, rsync and VS Code.

    Each node is CLUSTER-NODE; the head node is CLUSTER, too. HyperPod's nodes are reached through Session Manager, and
    need your public key in the login's authorized_keys.
    """
    place = place_of(ctx)
    place.refuse_on_node("ssh-config")
    asked = one_name(name, cluster)
    from hyperpod.cli.node import cloud_of

    cloud = cloud_of(place, provider, region, profile)
    chosen, hosts = _of_cloud(cloud, asked, user) if cloud is not None else _of_this_machine(place, asked, user)
    if output is Output.JSON:
        print_json([{"hosts": list(names), **options} for names, options in hosts])
        return
    sys.stdout.write("\n".join(_entry(names, options) for names, options in hosts))
    say(f"use it: save it as ~/.ssh/hyperpod-{chosen} and put 'Include hyperpod-{chosen}' at the top of ~/.ssh/config")


Host = tuple[Sequence[str], Mapping[str, str]]


def _entry(names: Sequence[str], options: Mapping[str, str]) -> str:
    return f"Host {' '.join(names)}\n" + "".join(f"    {key} {value}\n" for key, value in options.items())


def _of_cloud(cloud: Cloud | Ec2Cloud, asked: str | None, user: str | None) -> tuple[str, list[Host]]:
    from hyperpod.cli.cloud import Cloud

    return _of_hyperpod(cloud, asked, user) if isinstance(cloud, Cloud) else _of_ec2(cloud, asked, user)


def _of_ec2(cloud: Ec2Cloud, asked: str | None, user: str | None) -> tuple[str, list[Host]]:
    from hyperpod.adapters.aws.session import proxy_command

    provider = cloud.provider(asked)
    hosts: list[Host] = []
    for instance in provider.observe(provider.cluster):
        if not instance.node:
            continue
        names = [f"{provider.cluster}-{instance.node}"]
        names += [provider.cluster] if instance.role is Role.HEAD else []
        options = {
            "HostName": instance.address,
            "User": user or "ubuntu",
            # A replaced machine keeps name, address and keys.
            "HostKeyAlias": f"{provider.cluster}-{instance.node}",
            "UserKnownHostsFile": _KNOWN_HOSTS,
            "StrictHostKeyChecking": "accept-new",
            "ProxyCommand": proxy_command(instance.id, cloud.aws),
        }
        hosts.append((names, options))
    return provider.cluster, hosts


def _of_hyperpod(cloud: Cloud, asked: str | None, user: str | None) -> tuple[str, list[Host]]:
    from hyperpod.adapters.aws.sagemaker import session_target
    from hyperpod.adapters.aws.session import proxy_command

    cluster = cloud.choose(asked)
    roles = cloud.roles(cluster)
    hosts: list[Host] = []
    counts: dict[str, int] = {}
    has_head = False
    for node in cloud.api.nodes(cluster.name):
        counts[node.group] = counts.get(node.group, 0) + 1
        names = [f"{cluster.name}-{node.group}-{counts[node.group]}", f"{cluster.name}-{node.name}"]
        if roles.get(node.group) is Role.HEAD and not has_head:
            names.append(cluster.name)
            has_head = True
        options = {
            "HostName": node.address or node.name,
            "User": user or "ubuntu",
            # A replaced machine keeps its address and has other keys.
            "HostKeyAlias": f"{cluster.name}-{node.instance_id}",
            "UserKnownHostsFile": _KNOWN_HOSTS,
            "StrictHostKeyChecking": "accept-new",
            "ProxyCommand": proxy_command(session_target(cluster, node), cloud.api.aws),
        }
        hosts.append((names, options))
    return cluster.name, hosts


def _of_this_machine(place: Place, asked: str | None, user: str | None) -> tuple[str, list[Host]]:
    chosen = place.choose(asked)
    home = place.provider().cluster(chosen)
    hosts: list[Host] = []
    for instance in place.provider().observe(chosen):
        names = [f"{chosen}-{instance.node}", *([chosen] if instance.role is Role.HEAD else [])]
        options = {
            "HostName": instance.address,
            "User": user or "root",
            "HostKeyAlias": instance.node,
            "UserKnownHostsFile": str(home.public / "known_hosts"),
            "StrictHostKeyChecking": "yes",
            "IdentityFile": str(home.secrets / "admin"),
            "IdentitiesOnly": "yes",
        }
        hosts.append((names, options))
    return chosen, hosts
