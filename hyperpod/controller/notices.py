"""What the provider knows to be wrong with its machines: asked for now and then beside the tick, kept for the next.

Owns when it is asked. A provider that does not answer changes nothing: what it said last stands, for the machines that
it was said of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta

from hyperpod.controller.memory import Report
from hyperpod.controller.world import World
from hyperpod.core.backoff import delay_after
from hyperpod.core.finding import Finding
from hyperpod.core.notices import settle
from hyperpod.core.policy import Mode
from hyperpod.errors import HyperpodError

log = logging.getLogger(__name__)

TOLD = "provider_findings"
EVERY = timedelta(seconds=15)
"""A spot machine is taken away two minutes after it was announced; five calls a quarter of a minute cost nothing."""


def ask(world: World) -> None:
    """Ask the provider for its findings when it is time; the answer comes as a report."""
    tells = _way(world)
    due = world.memory.ask_notices_at
    if tells is None or (due is not None and world.clock.now() < due):
        return

    def work() -> None:
        data: dict[str, object] = {"error": "", "findings": {}}
        try:
            data["findings"] = dict(tells())
        except HyperpodError as error:
            data["error"] = str(error)
        world.inbox.put(Report(TOLD, world.clock.now(), data))

    world.memory.ask_notices_at = world.clock.now() + EVERY
    world.jobs.submit("notices", work)


def told(world: World, report: Report) -> None:
    """Take the provider's answer in."""
    memory = world.memory
    error = str(report.data["error"])
    if error:
        memory.notices_failed += 1
        memory.ask_notices_at = report.at + delay_after(memory.notices_failed, first=EVERY, most=timedelta(minutes=5))
        world.repeats.warning(log, ("findings",), report.at, "the provider tells no findings error=%s", error)
        return
    memory.notices_failed = 0
    said: Mapping[str, tuple[Finding, ...]] = report.data["findings"]
    boots = {node: word.boot_id for node, word in memory.nodes.items()}
    before, memory.notices = memory.notices, settle(memory.notices, said, boots, report.at)
    memory.are_notices_known = True
    known = {(n, f.instance_id, f.key, f.severity) for n, found in before.findings.items() for f in found}
    groups = {slot.name: slot.group for slot in world.slots()}
    for node, found in memory.notices.findings.items():
        for finding in found:
            if world.repair_policy.mode_of(groups.get(node, ""), finding.check) is Mode.OFF:
                continue
            if (node, finding.instance_id, finding.key, finding.severity) not in known:
                data = {"check": finding.check, "code": finding.code, "severity": finding.severity.name}
                world.store.add_event("ProviderFinding", finding.message, report.at, node=node, data=data)
    present = {(n, f.instance_id, f.key) for n, found in said.items() for f in found}
    memory.cleared_notices &= present


def is_known(world: World) -> bool:
    """Say whether the provider has told once, or never will."""
    return world.memory.are_notices_known or _way(world) is None


def _way(world: World) -> Callable[[], Mapping[str, tuple[Finding, ...]]] | None:
    """Return the way to ask the provider (``TellsFindings``); None for one that has nothing to tell."""
    return getattr(world.machines, "findings", None)


def of_node(world: World, node: str, instance_id: str) -> tuple[Finding, ...]:
    """Return what the provider says of one machine, less what a person has cleared."""
    return tuple(
        f
        for f in world.memory.notices.findings.get(node, ())
        if f.instance_id == instance_id and (node, f.instance_id, f.key) not in world.memory.cleared_notices
    )


def clear(world: World, node: str, key: tuple[str, str, str]) -> bool:
    """Forget one of the provider's findings until it has ended; False when it is not one of its."""
    found = [f for f in world.memory.notices.findings.get(node, ()) if f.key == key]
    world.memory.cleared_notices |= {(node, f.instance_id, f.key) for f in found}
    return bool(found)
