"""When a node that lost contact kills its jobs: the table of the fence."""

from __future__ import annotations

import pytest

from hyperpod.agent.lease import Fence, LeaseView, choose_peers, decide_fence
from hyperpod.agent.settings import Peer
from hyperpod.ports.host import Contact

LEASE_S = 10.0
SILENT, REFUSED, OPEN = Contact.SILENT, Contact.REFUSED, Contact.OPEN


def view(
    silence: float,
    head: Contact | None = SILENT,
    peers: dict[str, Contact | None] | None = None,
    probed_ago: float | None = None,
    is_fenced: bool = False,
) -> LeaseView:
    now = 1000.0
    probed_at = None if probed_ago is None else now - probed_ago
    return LeaseView(now, now - silence, head, peers or {}, probed_at, is_fenced)


@pytest.mark.parametrize(
    ("what", "seen", "expected"),
    [
        ("the controller answered just now", view(0.1, OPEN), Fence.KEEP),
        ("a short silence", view(5.0), Fence.KEEP),
        ("shortly before the lease ends", view(8.6), Fence.PROBE),
        ("only the daemon is away", view(60.0, REFUSED), Fence.KEEP),
        ("the daemon accepts but says nothing", view(60.0, OPEN), Fence.KEEP),
        ("no attempt to connect has ended", view(60.0, None), Fence.KEEP),
        ("peers have not answered", view(60.0, peers={"a": None}, probed_ago=0.5), Fence.KEEP),
        ("one peer has not answered", view(60.0, peers={"a": SILENT, "b": None}, probed_ago=0.5), Fence.KEEP),
        ("the head node reboots", view(12.0, peers={"a": OPEN, "b": SILENT}, probed_ago=0.5), Fence.KEEP),
        ("a peer without slurmd refuses", view(12.0, peers={"a": REFUSED}, probed_ago=0.5), Fence.KEEP),
        ("a peer's answer is old", view(60.0, peers={"a": OPEN}, probed_ago=5.0), Fence.PROBE),
        ("nobody answers before the lease ends", view(9.6, peers={"a": SILENT}, probed_ago=1.1), Fence.KEEP),
        ("nobody answers when it has ended", view(10.0, peers={"a": SILENT}, probed_ago=1.5), Fence.KILL),
        ("nobody is there to be asked", view(10.0, peers={}, probed_ago=1.5), Fence.KILL),
        ("killed already", view(60.0, peers={"a": SILENT}, probed_ago=1.5, is_fenced=True), Fence.KEEP),
    ],
)
def test_the_fence_falls_only_when_nobody_can_be_reached(what: str, seen: LeaseView, expected: Fence) -> None:
    decision = decide_fence(seen, LEASE_S)
    assert decision.fence is expected, what
    assert decision.why


def test_the_reason_names_who_was_asked() -> None:
    decision = decide_fence(view(12.0, peers={"10.0.0.2:6818": SILENT}, probed_ago=1.5), LEASE_S)
    assert decision.why == (
        "the controller was silent for 12.0 s, and neither the head node nor 10.0.0.2:6818 can be reached"
    )


PEERS = tuple(Peer(f"worker-{n}", f"10.0.0.{n}") for n in (1, 2, 3, 4, 5, 6, 7))


def test_three_peers_are_asked_beginning_with_the_next_one() -> None:
    assert choose_peers(PEERS, "worker-3", 0) == ("10.0.0.4", "10.0.0.5", "10.0.0.6")


def test_the_next_round_asks_others() -> None:
    assert choose_peers(PEERS, "worker-3", 1) == ("10.0.0.7", "10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_peers_are_all_asked_every_time(count: int) -> None:
    for number in range(4):
        assert sorted(choose_peers(PEERS[:count], "worker-9", number)) == [p.address for p in PEERS[:count]]
