"""The lease: when a node that lost contact must stop its jobs, because they may run elsewhere by now. Pure.

What is guaranteed: a node that can reach neither the head node nor any of the peers that it tried kills the processes
of resumable jobs once the controller has been silent for the lease. It does not when the head node's machine answers
(the controller is restarting) or a peer answers (the head node is rebooting): then the node is not cut off, and the
controller will find it again. The other half of the fence is the controller's: it powers a lost node off, or waits
longer than the lease, before it starts the job elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hyperpod.agent.settings import Peer
from hyperpod.ports.host import Contact

PEERS_PROBED = 3
"""Peers asked in one round. Three that are all down while the network works are rare."""

PROBE_TIMEOUT_S = 1.0
PROBE_LEAD_S = 1.5
"""Probing begins this long before the lease ends, so that the answer is there when it does."""


class Fence(StrEnum):
    """What to do about the lease now."""

    KEEP = "keep"
    PROBE = "probe"
    KILL = "kill"


@dataclass(frozen=True)
class LeaseView:
    """What is known about contact; times are monotonic seconds.

    Attributes:
        now: The present moment.
        heard_at: When the controller last answered (or the agent started).
        head: How the last attempt to connect to the controller ended, None: none since ``heard_at``.
        peers: Answers of the round of probes begun since ``heard_at``, by address; None: not in yet.
        probed_at: When that round was begun; None: no round yet.
        is_fenced: The jobs have been killed already since ``heard_at``.
    """

    now: float
    heard_at: float
    head: Contact | None
    peers: Mapping[str, Contact | None]
    probed_at: float | None
    is_fenced: bool


@dataclass(frozen=True)
class FenceDecision:
    """What to do, and why."""

    fence: Fence
    why: str


def decide_fence(view: LeaseView, lease_s: float) -> FenceDecision:
    """Decide whether this node is cut off and must kill its jobs' processes.

    Args:
        view: What is known at ``view.now``.
        lease_s: Silence of the controller that is allowed.
    """
    silence = view.now - view.heard_at
    if silence < lease_s - PROBE_LEAD_S:
        return FenceDecision(Fence.KEEP, "the controller has answered")
    if view.is_fenced:
        return FenceDecision(Fence.KEEP, "the jobs have been killed already")
    if view.head is None:
        return FenceDecision(Fence.KEEP, "no attempt to connect has ended yet")
    if view.head.is_reached:
        return FenceDecision(Fence.KEEP, "the head node answers, only its controller is away")
    if view.probed_at is None:
        return FenceDecision(Fence.PROBE, "the head node is silent, asking the peers")
    reached = sorted(a for a, contact in view.peers.items() if contact is not None and contact.is_reached)
    if reached:
        if view.now - view.probed_at >= lease_s / 2:
            return FenceDecision(Fence.PROBE, "a peer answered some time ago, asking again")
        return FenceDecision(Fence.KEEP, f"{reached[0]} answers, so this node is not cut off")
    if any(contact is None for contact in view.peers.values()):
        return FenceDecision(Fence.KEEP, "the peers have not answered yet")
    if silence < lease_s:
        return FenceDecision(Fence.KEEP, "the lease has not ended yet")
    asked = ", ".join(sorted(view.peers)) or "nobody else"
    why = f"the controller was silent for {silence:.1f} s, and neither the head node nor {asked} can be reached"
    return FenceDecision(Fence.KILL, why)


def choose_peers(peers: Sequence[Peer], node: str, round_number: int) -> tuple[str, ...]:
    """Return the addresses to probe in this round; each round goes on where the last one ended.

    Nodes begin at different peers, so that no single one is asked by all.
    """
    ordered = sorted(peers, key=lambda p: (p.node <= node, p.node))
    if not ordered:
        return ()
    first = round_number * PEERS_PROBED % len(ordered)
    turned = ordered[first:] + ordered[:first]
    return tuple(peer.address for peer in turned[:PEERS_PROBED])
