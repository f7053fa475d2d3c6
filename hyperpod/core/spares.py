"""Which spares join the users' partition, and which nodes wait as spares again. Only computes."""

from __future__ import annotations

from hyperpod.core import plan as do
from hyperpod.core.liveness import RETURNED_CAUSE, fatal_findings, is_before_first_job, is_silent
from hyperpod.core.node import (
    Availability,
    InstanceStatus,
    NodeView,
    Role,
)
from hyperpod.core.plan import Note
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.snapshot import Snapshot
from hyperpod.core.stopped_spares import decide_rest, decide_start, decide_stop, is_asleep, is_waking
from hyperpod.core.suspicion import suspicion_of


def _is_usable(node: NodeView, policy: RepairPolicy, snapshot: Snapshot) -> bool:
    return (
        node.repair is None
        and node.availability is Availability.UP
        and not node.is_drained
        and node.is_responding
        and node.is_ready
        and not is_silent(node, policy, snapshot)
        and node.instance_status in (InstanceStatus.RUNNING, InstanceStatus.UNKNOWN)
        and not fatal_findings(node)
    )


def _is_out(node: NodeView) -> bool:
    """Say whether a node is known to take no work: in repair, drained or down. A new one before its deep check is not
    out: it will be there soon, and on a new cluster there is no spare that could be sooner."""
    is_new = is_before_first_job(node.reason) and (node.repair is None or node.repair.cause == RETURNED_CAUSE)
    is_out = node.repair is not None or node.is_drained
    return (is_out and not is_new) or node.availability is Availability.DOWN


def _group(snapshot: Snapshot, group: str) -> list[NodeView]:
    return sorted((n for n in snapshot.nodes if n.role is Role.WORKER and n.group == group), key=lambda n: n.name)


def _suspicion(node: NodeView, snapshot: Snapshot) -> float:
    return round(suspicion_of(snapshot.suspicion, node.instance_id), 2)


def should_park(node: NodeView, snapshot: Snapshot, policy: RepairPolicy) -> bool:
    spares = (policy.spare_count or {}).get(node.group, 0)
    if not spares or not node.in_partition:
        return False
    members = _group(snapshot, node.group)
    in_use = [n for n in members if n.in_partition and n.name != node.name and _is_usable(n, policy, snapshot)]
    return len(in_use) >= len(members) - spares


def decide_spares(snapshot: Snapshot, policy: RepairPolicy) -> tuple[list[do.NodeAction], list[Note]]:
    """Bring a spare into the partition for each node that it lacks, and park idle ones that are too many.

    Pure; moves one node a group and tick in the direction "too many", because a parked node is taken from users.
    """
    actions: list[do.NodeAction] = []
    notes: list[Note] = []
    if not snapshot.is_complete:
        return actions, notes
    for group, spares in sorted((policy.spare_count or {}).items()):
        members = _group(snapshot, group) if spares else []
        if not members:
            continue
        wanted = len(members) - spares
        # A spare is brought in for nodes that are known to be out, not for those that have not been heard just now;
        # one is taken back only when enough are known to work.
        inside = [n for n in members if n.in_partition]
        left = [n for n in inside if not _is_out(n)]
        lacking = wanted - len(left)
        for node in left:
            if node.in_spares:
                actions.append(do.UseSpare("its move out of the spares was cut short", node.name, node.partition))
        waiting = []
        if lacking > 0:
            waiting = [n for n in members if not n.in_partition and _is_usable(n, policy, snapshot)]
            waiting.sort(key=lambda n: _suspicion(n, snapshot))
        for node in waiting[: max(lacking, 0)]:
            actions.append(do.UseSpare(f"{group} has {len(left)} of {wanted} nodes in use", node.name, node.partition))
        missing = lacking - len(waiting)
        coming = sum(1 for n in members if is_waking(n))
        sleeping = [n for n in members if is_asleep(n)]
        if missing > coming:
            why = f"{group} lacks {missing} of {wanted} nodes and its running spares are used up"
            actions += decide_start(sleeping, missing - coming, why, snapshot)
        elif not policy.are_spares_stopped:
            actions += decide_start(sleeping, len(sleeping), "spares are not stopped any more", snapshot)
        elif missing <= 0:
            idle = [n for n in members if not n.in_partition and _is_usable(n, policy, snapshot)]
            actions += decide_stop(idle[max(lacking, 0) :], snapshot)
            actions += decide_rest(members, snapshot)
        if missing > coming + len(sleeping):
            notes.append(Note("NoSpare", f"{group} lacks {missing} of {wanted} nodes and has no spare left"))
        in_use = []
        if lacking < 0:
            # A node that is out is not in use either, so most of the time nobody needs the closer look.
            in_use = [n for n in left if _is_usable(n, policy, snapshot)]
        if len(in_use) > wanted:
            # The most suspect one waits as the spare; when that one is about to be free it is worth waiting for.
            free = [n for n in in_use if not n.jobs]
            free.sort(key=lambda n: _suspicion(n, snapshot))
            for node in [n for n in free[-1:] if not n.is_completing]:
                actions.append(do.ParkSpare(f"{group} has more nodes in use than asked", node.name, node.partition))
    return actions, notes
