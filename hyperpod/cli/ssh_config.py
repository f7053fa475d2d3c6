"""``hyperpod ssh-config``: host entries by which plain ssh, scp, rsync and editors reach a cluster's nodes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from hyperpod.cli.reach import DirectOption, KeyOption
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
    key: KeyOption = None,
    direct: DirectOption = False,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write host entries for plain ssh, scp, rsync and VS Code.

    Each node is CLUSTER-NODE; the head node is CLUSTER, too. On EC2 the cluster's host keys, and its key where you may
    read it, are put into ~/.ssh; workers are reached through a head node with a public address, else everything goes
    through Session Manager. HyperPod's nodes need your public key in the login's authorized_keys.
    """
    place = place_of(ctx)
    place.refuse_on_node("ssh-config")
    asked = one_name(name, cluster)
    from hyperpod.cli.node import cloud_of

    cloud: Any = cloud_of(place, provider, region, profile)
    wish = _Wish(asked, user, key.absolute() if key is not None else None, direct)
    if cloud is None:
        chosen, hosts = _of_this_machine(place, wish)
    elif cloud.kind == "ec2":
        chosen, hosts = _of_ec2(place, cloud, wish)
    else:
        chosen, hosts = _of_hyperpod(cloud, wish)
    if output is Output.JSON:
        print_json([{"hosts": list(names), **options} for names, options in hosts])
        return
    sys.stdout.write("\n".join(_entry(names, options) for names, options in hosts))
    say(f"use it: save it as ~/.ssh/hyperpod-{chosen} and put 'Include hyperpod-{chosen}' at the top of ~/.ssh/config")


@dataclass(frozen=True)
class _Wish:
    """What was asked for."""

    cluster: str | None
    user: str | None
    key: Path | None
    direct: bool


Host = tuple[Sequence[str], Mapping[str, str]]


def _entry(names: Sequence[str], options: Mapping[str, str]) -> str:
    return f"Host {' '.join(names)}\n" + "".join(f"    {key} {value}\n" for key, value in options.items())


def _of_ec2(place: Place, cloud: Ec2Cloud, wish: _Wish) -> tuple[str, list[Host]]:
    from hyperpod.adapters.aws.cluster_keys import admin_key, host_keys
    from hyperpod.adapters.aws.session import proxy_command

    provider = cloud.provider(wish.cluster)
    name = provider.cluster
    folder = Path(place.env.get("HOME") or Path.home()) / ".ssh"
    known = {f"{name}-{node}": key for node, key in host_keys(provider.folder).items()}
    known_hosts = folder / f"hyperpod-{name}.known_hosts"
    _write(known_hosts, "".join(f"{alias} {key}\n" for alias, key in known.items()), 0o644)
    identity = wish.key
    if identity is None and (text := admin_key(provider.folder)):
        identity = folder / f"hyperpod-{name}.key"
        _write(identity, text, 0o600)
    machines = [one for one in provider.observe(name) if one.node]
    head = next((one for one in machines if one.role is Role.HEAD), None)
    entrance = head.labels.get("public-address", "") if head is not None and not wish.direct else ""
    hosts: list[Host] = []
    for instance in machines:
        is_head = instance is head
        public = "" if wish.direct else instance.labels.get("public-address", "")
        options = {
            "HostName": public or instance.address,
            "User": wish.user or "ubuntu",
            # A replaced machine keeps name, address and keys.
            "HostKeyAlias": f"{name}-{instance.node}",
            "UserKnownHostsFile": str(known_hosts),
            "StrictHostKeyChecking": "yes",
        }
        if identity is not None:
            options |= {"IdentityFile": str(identity)}
        if entrance and not public:
            options["ProxyJump"] = name
        elif not public and not wish.direct:
            options["ProxyCommand"] = proxy_command(instance.id, cloud.aws)
        hosts.append(([f"{name}-{instance.node}", *([name] if is_head else [])], options))
    return name, hosts


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file of the user's whole, and say so when it is another than before."""
    if path.is_file() and path.read_text() == text:
        path.chmod(mode)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    fresh.replace(path)
    say(f"wrote {path}")


def _of_hyperpod(cloud: Cloud, wish: _Wish) -> tuple[str, list[Host]]:
    from hyperpod.adapters.aws.sagemaker import session_target
    from hyperpod.adapters.aws.session import proxy_command

    cluster = cloud.choose(wish.cluster)
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
            "User": wish.user or "ubuntu",
            # A replaced machine keeps its address and has other keys.
            "HostKeyAlias": f"{cluster.name}-{node.instance_id}",
            "UserKnownHostsFile": _KNOWN_HOSTS,
            "StrictHostKeyChecking": "accept-new",
            "ProxyCommand": proxy_command(session_target(cluster, node), cloud.api.aws),
        }
        if wish.key is not None:
            options["IdentityFile"] = str(wish.key)
        hosts.append((names, options))
    return cluster.name, hosts


def _of_this_machine(place: Place, wish: _Wish) -> tuple[str, list[Host]]:
    from hyperpod.adapters.local.provider import relay_argv

    chosen = place.choose(wish.cluster)
    home = place.provider().cluster(chosen)
    hosts: list[Host] = []
    for instance in place.provider().observe(chosen):
        names = [f"{chosen}-{instance.node}", *([chosen] if instance.role is Role.HEAD else [])]
        options = {
            "HostName": instance.address,
            "User": wish.user or "root",
            "HostKeyAlias": instance.node,
            "UserKnownHostsFile": str(home.public / "known_hosts"),
            "StrictHostKeyChecking": "yes",
            "IdentityFile": str(wish.key or home.secrets / "admin"),
            "IdentitiesOnly": "yes",
            # The nodes' network has no way to this machine; the container's name is the slot's, whatever is in it.
            "ProxyCommand": shlex.join(relay_argv(chosen, instance.node)),
        }
        hosts.append((names, options))
    return chosen, hosts
