"""What has to be made, started or removed so that a cluster becomes what its specification says. Pure.

Owns the list of nodes that a specification means, and the difference to what is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hyperpod.core.node import InstanceStatus, Role
from hyperpod.core.spec import ClusterSpec


@dataclass(frozen=True)
class WantedNode:
    """A node that the specification asks for. ``partition`` is the users' one, also for a spare."""

    name: str
    group: str
    role: Role
    index: int
    instance_type: str
    partition: str | None = None
    is_spare: bool = False


@dataclass(frozen=True)
class SeenNode:
    """A machine that is there, with what matters for provisioning.

    ``is_busy``: a job runs on it, or may. ``partition``: the one it was made for, as far as is known.
    """

    name: str
    group: str
    instance_id: str
    status: InstanceStatus
    is_busy: bool = False
    partition: str | None = None


@dataclass(frozen=True)
class Refusal:
    """Something that the specification asks for and that is not done now, with the reason."""

    node: str
    reason: str


@dataclass(frozen=True)
class ProvisionPlan:
    """The difference. Applying it twice does no more than applying it once.

    Attributes:
        create: Nodes without a machine, head first.
        start: Machines that are there and powered off.
        retry: Machines whose birth failed, to be replaced.
        remove: Machines that are wanted no more, highest index first.
        refused: What is left undone, and why.
        wait: Machines that are being born.
        keep: Nodes that are wanted no more and stay for now; Slurm must go on knowing them, or their jobs die.
    """

    create: tuple[WantedNode, ...] = ()
    start: tuple[SeenNode, ...] = ()
    retry: tuple[SeenNode, ...] = ()
    remove: tuple[SeenNode, ...] = ()
    refused: tuple[Refusal, ...] = ()
    wait: tuple[SeenNode, ...] = ()
    keep: tuple[WantedNode, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do (waiting and refused things are not done by us)."""
        return not (self.create or self.start or self.retry or self.remove)

    def lines(self) -> tuple[str, ...]:
        """Return the plan for people, one action a line."""
        spare = {True: ", spare", False: ""}
        texts = [f"+ create {node.name} ({node.role.value}{spare[node.is_spare]})" for node in self.create]
        texts += [f"+ start {node.name} ({node.instance_id}, powered off)" for node in self.start]
        texts += [f"~ replace {node.name} ({node.instance_id}, its lifecycle script failed)" for node in self.retry]
        texts += [f"- remove {node.name} ({node.instance_id})" for node in self.remove]
        texts += [f"! {refusal.node}: {refusal.reason}" for refusal in self.refused]
        return tuple(texts)


def wanted_nodes(spec: ClusterSpec) -> tuple[WantedNode, ...]:
    """Return the nodes of a specification: head, login, then workers, each group by index.

    The spares of a group are its last nodes; the controller moves them later as it needs.
    """
    nodes = []
    for role in (Role.HEAD, Role.LOGIN, Role.WORKER):
        for group in spec.groups(role):
            for index, name in enumerate(group.node_names, start=1):
                nodes.append(
                    WantedNode(
                        name=name,
                        group=group.name,
                        role=role,
                        index=index,
                        instance_type=group.instance_type,
                        partition=group.partition,
                        is_spare=index > group.count - group.spares,
                    )
                )
    return tuple(nodes)


def diff_cluster(
    spec: ClusterSpec,
    observed: Iterable[SeenNode],
    *,
    force: bool = False,
) -> ProvisionPlan:
    """Return what to do so that the observed machines become those of the specification.

    Pure; the order of ``observed`` does not matter. A machine that is wanted no more is removed only when no job
    runs on it, unless ``force``. A machine whose status is unknown is left alone.

    Args:
        observed: All machines of the cluster.
        force: Remove busy nodes as well.
    """
    wanted = wanted_nodes(spec)
    names = {node.name for node in wanted}
    seen = {node.name: node for node in sorted(observed, key=lambda node: (node.name, node.instance_id))}
    create, start, retry, wait, remove, refused, keep = [], [], [], [], [], [], []
    for node in wanted:
        there = seen.get(node.name)
        if there is None or there.status is InstanceStatus.GONE:
            create.append(node)
        elif there.status is InstanceStatus.STOPPED:
            start.append(there)
        elif there.status is InstanceStatus.FAILED:
            retry.append(there)
        elif there.status is InstanceStatus.PENDING:
            wait.append(there)
        elif there.status is InstanceStatus.UNKNOWN:
            refused.append(Refusal(node.name, "the provider does not say how it is; nothing is done to it"))
    surplus = [node for name, node in seen.items() if name not in names and node.status is not InstanceStatus.GONE]
    for extra in sorted(surplus, key=lambda node: (node.group, -_index(node.name), node.name)):
        is_unknown = extra.status is InstanceStatus.UNKNOWN
        if force or not (extra.is_busy or is_unknown):
            remove.append(extra)
            continue
        why = "the provider does not say how it is; nothing is done to it"
        refused.append(Refusal(extra.name, why if is_unknown else "a job runs on it; drain it first, or use --force"))
        keep.append(WantedNode(extra.name, extra.group, Role.WORKER, _index(extra.name), "", extra.partition))
    return ProvisionPlan(
        tuple(create), tuple(start), tuple(retry), tuple(remove), tuple(refused), tuple(wait), tuple(keep)
    )


def _index(name: str) -> int:
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0
