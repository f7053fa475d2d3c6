"""Whom an agent is told of: everybody in a small cluster, the next workers in a large one."""

from __future__ import annotations

from collections import Counter

from hyperpod.adapters.nodeconfig import MOST_PEERS, peers_of


def peers(names: list[str], own: str) -> list[str]:
    return peers_of(names, names.index(own), lambda name: name.startswith("w"))


def test_everybody_knows_everybody_in_a_small_cluster() -> None:
    assert peers(["head", "w1", "w2", "w3"], "w2") == ["head", "w1", "w3"]


def test_a_node_of_a_large_cluster_knows_the_workers_after_it() -> None:
    names = ["head", *(f"w{i}" for i in range(1, 1001))]

    assert peers(names, "w1")[:2] == ["w2", "w3"]
    assert peers(names, "w1000")[:2] == ["w1", "w2"]
    known = Counter(peer for name in names[1:] for peer in peers(names, name))
    # No node is asked by more than the others.
    assert set(known.values()) == {MOST_PEERS}
    assert len(known) == 1000
