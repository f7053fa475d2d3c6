"""The network of a local cluster: one bridge with a subnet that nothing else on this machine uses.

Owns the choice of the subnet and the address of every node name.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hyperpod.adapters.local.podman import Podman
from hyperpod.errors import AlreadyExists, ConfigError, NoCapacity, NotFound, ProviderError
from hyperpod.ports.process import ProcessRunner

# The first addresses of a subnet are the bridge's own and room for what may come.
FIRST_HOST = 10
_POOL = ipaddress.IPv4Network("10.89.0.0/16")
LABEL = "hyperpod.cluster"


class Networks:
    """Makes and removes the bridges of clusters."""

    def __init__(self, podman: Podman, processes: ProcessRunner) -> None:
        self._podman = podman
        self._processes = processes

    def ensure(self, cluster: str, *, subnet: str | None, internet: bool) -> ipaddress.IPv4Network:
        """Return the subnet of the cluster's network, made if it is missing.

        Raises:
            ProviderError: The wanted subnet is taken, or none is free.
        """
        present = self._find(cluster)
        if present is not None:
            if subnet is not None and present != ipaddress.IPv4Network(subnet):
                raise AlreadyExists(
                    f"cluster {cluster} has the subnet {present}, the specification says {subnet}",
                    hint="delete the cluster to move it to another subnet",
                )
            return present
        taken = self._taken()
        candidates = [ipaddress.IPv4Network(subnet)] if subnet is not None else choose_subnets(cluster, taken)
        for candidate in candidates:
            clash = next((other for other in taken if other.overlaps(candidate)), None)
            if clash is None and self._create(cluster, candidate, internet=internet):
                return candidate
            if subnet is not None:
                used = f"{clash} is used on this machine" if clash else "podman says that it is in use"
                raise ProviderError(
                    f"the subnet {subnet} is taken: {used}",
                    hint="name a free one in Hyperpod.Local.Subnet, or leave it out and a free one is chosen",
                )
        raise NoCapacity("no free subnet on this machine", hint="delete clusters that are no longer needed")

    def remove(self, cluster: str) -> None:
        """Remove the cluster's network; one that is gone already is done."""
        try:
            self._podman.run("network", "rm", "-f", network_name(cluster))
        except NotFound:
            return

    def _find(self, cluster: str) -> ipaddress.IPv4Network | None:
        for network in self._podman.networks():
            if network.get("name") == network_name(cluster):
                subnets = _subnets([network])
                if not subnets:
                    raise ProviderError(f"the network {network_name(cluster)} has no subnet", hint="delete the cluster")
                return subnets[0]
        return None

    def _taken(self) -> list[ipaddress.IPv4Network]:
        routes = self._processes.run(["ip", "-4", "-o", "route", "show", "table", "all"], timeout_s=10, check=False)
        return _subnets(self._podman.networks()) + parse_routes(routes.stdout)

    def _create(self, cluster: str, subnet: ipaddress.IPv4Network, *, internet: bool) -> bool:
        try:
            self._podman.run(
                "network", "create", "--subnet", str(subnet), "--label", f"{LABEL}={cluster}",
                # Names come from a file: podman's resolver forgets a node that was killed, and slurmctld then blocks.
                "--disable-dns",
                *([] if internet else ["--internal"]),
                network_name(cluster),
            )  # fmt: skip
        except (AlreadyExists, ProviderError) as error:
            if "used" in error.message or "in use" in error.message:
                return False
            raise
        return True


def network_name(cluster: str) -> str:
    """Return podman's name for the cluster's network."""
    return f"hyperpod-{cluster}"


def choose_subnets(cluster: str, taken: Sequence[ipaddress.IPv4Network]) -> list[ipaddress.IPv4Network]:
    """Return free /24 networks, in an order that depends on the cluster's name so that two creators differ."""
    pool = list(_POOL.subnets(new_prefix=24))
    first = int.from_bytes(hashlib.sha256(cluster.encode()).digest()[:2], "big") % len(pool)
    ordered = pool[first:] + pool[:first]
    return [candidate for candidate in ordered if not any(candidate.overlaps(other) for other in taken)]


def assign_addresses(
    subnet: ipaddress.IPv4Network, assigned: Mapping[str, str], nodes: Iterable[str]
) -> dict[str, str]:
    """Return the address of every node: those assigned before stay, new ones take the lowest free place.

    Raises:
        ConfigError: More nodes than the subnet has room for.
    """
    result = dict(assigned)
    used = set(result.values())
    free = (str(host) for host in list(subnet.hosts())[FIRST_HOST - 1 :] if str(host) not in used)
    # Small subnets use the lower addresses too, except the bridge's own.
    low = (str(host) for host in list(subnet.hosts())[1 : FIRST_HOST - 1] if str(host) not in used)
    for node in nodes:
        if node not in result:
            address = next(free, None) or next(low, None)
            if address is None:
                raise ConfigError(
                    f"the subnet {subnet} has no room for node {node}",
                    hint="give a larger one in Hyperpod.Local.Subnet, for example a /22",
                )
            result[node] = address
    return result


def parse_routes(text: str) -> list[ipaddress.IPv4Network]:
    """Read the destinations in the output of ``ip -4 -o route``; default routes do not count."""
    networks = []
    for line in text.splitlines():
        words = line.split()
        while words and words[0] in (
            "local",
            "broadcast",
            "blackhole",
            "unreachable",
            "unicast",
            "prohibit",
            "multicast",
        ):
            words.pop(0)
        if not words:
            continue
        try:
            networks.append(ipaddress.IPv4Network(words[0], strict=False))
        except ValueError:
            continue
    return networks


def _subnets(networks: Iterable[Mapping[str, Any]]) -> list[ipaddress.IPv4Network]:
    found = []
    for network in networks:
        for entry in network.get("subnets") or ():
            try:
                found.append(ipaddress.IPv4Network(entry["subnet"], strict=False))
            except ValueError:
                continue
    return found
