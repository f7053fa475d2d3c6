"""Whether a node works: silence, death, and the findings that make it unfit. Only computes."""

from __future__ import annotations

from datetime import timedelta

from hyperpod.core.explains import Exits, explains
from hyperpod.core.finding import Action, Finding, Severity, Whose, is_announced
from hyperpod.core.node import (
    REASON_PREFIX,
    InstanceStatus,
    NodeView,
)
from hyperpod.core.policy import RepairPolicy
from hyperpod.core.snapshot import Snapshot

OFF = (InstanceStatus.STOPPED, InstanceStatus.GONE)

DEAD_CAUSE = "node/NodeDead"

SHUTDOWN_CAUSE = "node/Shutdown"

RETURNED_CAUSE = "node/Returned"

FIRST_CHECK_CAUSE = "deep/BeforeFirstJob"

OFFENDER_CAUSE = "offender/RepeatOffender"

AGREED_CAUSE = "attribution/TwoMethodsAgree"


def is_before_first_job(reason: str) -> bool:
    """Say whether a node is drained only because its deep check has not been done."""
    return reason.startswith(f"{REASON_PREFIX}{FIRST_CHECK_CAUSE}")


def is_silent(node: NodeView, policy: RepairPolicy, snapshot: Snapshot) -> bool:
    """Say whether the node's agent has missed its heartbeats, or has announced that it is going down.

    Just after the controller's start nobody has missed any: its own absence must not count against the nodes. A
    machine that was never heard gets the time of a birth.
    """
    if node.said_goodbye:
        return True
    listening_since = snapshot.started_at + timedelta(seconds=policy.first_contact_grace_s)
    if node.heartbeat_at is None:
        born = node.created_at + timedelta(seconds=policy.replace_timeout_s) if node.created_at else listening_since
        return snapshot.now > max(listening_since, born)
    return snapshot.now - node.heartbeat_at > policy.silence


def is_dead(node: NodeView, policy: RepairPolicy, snapshot: Snapshot) -> bool:
    """Say whether the node is surely not working: it is silent, and its machine is off or a second opinion agrees.

    A provider that says "off" while the agent is heard is not believed. One that was never heard is given the time
    in which agents report after the controller's start.
    """
    if node.instance_status in OFF:
        if node.heartbeat_at is None and node.added_at is not None and not node.instance_id:
            # A slot just added: its first machine is still being made.
            return snapshot.now > node.added_at + timedelta(seconds=policy.replace_timeout_s)
        if node.heartbeat_at is None:
            return snapshot.now > snapshot.started_at + timedelta(seconds=policy.first_contact_grace_s)
        return is_silent(node, policy, snapshot)
    if not is_silent(node, policy, snapshot) or node.is_reachable is not False or node.reachable_at is None:
        return False
    return node.heartbeat_at is None or node.reachable_at > node.heartbeat_at


def is_fresh(node: NodeView, policy: RepairPolicy, snapshot: Snapshot) -> bool:
    """Say whether the node's agent is being heard now."""
    return node.heartbeat_at is not None and not is_silent(node, policy, snapshot)


def fatal_findings(node: NodeView) -> tuple[Finding, ...]:
    """Return the FATAL findings that are the node's own fault and belong to its present machine.

    What a node says about a peer is not held against the node itself.
    """
    return tuple(
        f
        for f in node.findings
        if f.severity is Severity.FATAL
        and f.whose is Whose.NODE
        and f.action is not Action.NONE
        and not f.peer
        and _is_of_this_machine(f, node)
    )


def urgent_findings(node: NodeView) -> tuple[Finding, ...]:
    """Return those fatal findings that a running job must not wait for.

    The machine is to be repaired, or what is broken ends ranks or has them wait for ever. Any other only closes the
    node: no new job comes, and the one that computes there goes on to its end.
    """
    return tuple(
        f for f in fatal_findings(node) if f.action is not Action.DRAIN or explains(f.check, f.code) is not Exits.NONE
    )


def announced_findings(node: NodeView) -> tuple[Finding, ...]:
    """Return what the provider has announced for the node's present machine, for a time still to come."""
    return tuple(f for f in node.findings if is_announced(f) and _is_of_this_machine(f, node))


def _is_of_this_machine(finding: Finding, node: NodeView) -> bool:
    is_same_machine = not finding.instance_id or not node.instance_id or finding.instance_id == node.instance_id
    return is_same_machine and (not finding.boot_id or not node.boot_id or finding.boot_id == node.boot_id)
