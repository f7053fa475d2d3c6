"""Account of checks that are only observed: what would have been drained, once for each finding that opens.

An event for each, so that people can judge a check before they let it act. What is open is kept in the journal, or a
restart of the controller would count everything that is still open a second time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hyperpod.controller.world import World
from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import NodeView
from hyperpod.core.snapshot import Snapshot

log = logging.getLogger(__name__)

WOULD_HAVE_DRAINED = "WouldHaveDrained"
_OPEN = "observed_open"

Key = tuple[str, ...]


def note_observed(world: World, snapshot: Snapshot) -> None:
    """Write down every finding that would have drained its node, when it opens."""
    before = world.memory.observed
    if before is None:
        before = world.memory.observed = _restored(world)
    now_open = {_key(node, f): (node, f) for node in snapshot.nodes for f in node.findings if _is_observed(f)}
    if not before and not now_open:
        return
    heard = {node.name for node in snapshot.nodes if node.heartbeat_at is not None}
    for key, (node, finding) in now_open.items():
        if key not in before:
            world.store.add_event(
                WOULD_HAVE_DRAINED, finding.message, snapshot.now, node=node.name, data=_data(node, finding)
            )
    # What a node that is not heard had open is still open, as far as we know.
    slots = {node.name for node in snapshot.nodes}
    silent = {key for key in before if key[0] in slots and key[0] not in heard}
    after = frozenset(now_open) | silent
    if after != before:
        world.memory.observed = after
        world.store.set_value(_OPEN, json.dumps(sorted(after)))


def _is_observed(finding: Finding) -> bool:
    return finding.would is not Action.NONE


def _key(node: NodeView, finding: Finding) -> Key:
    return (node.name, finding.instance_id, finding.boot_id, *finding.key)


def _data(node: NodeView, finding: Finding) -> Mapping[str, Any]:
    return {
        "check": finding.check,
        "code": finding.code,
        "device": finding.device,
        "would": finding.would.value,
        "instance_id": node.instance_id,
        "jobs": list(node.jobs),
        "since": finding.since.isoformat() if isinstance(finding.since, datetime) else None,
    }


def _restored(world: World) -> frozenset[Key]:
    try:
        return frozenset(tuple(map(str, key)) for key in json.loads(world.store.value(_OPEN) or "[]"))
    except (ValueError, TypeError, RecursionError) as error:
        log.warning("the list of observed findings is damaged and begins anew error=%s", error)
        return frozenset()
