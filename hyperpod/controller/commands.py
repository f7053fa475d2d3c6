"""What an administrator may ask of the controller: drain, undrain, replace, reboot, reset the breaker.

A command runs inside the tick's thread, like every other change, and answers with one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from hyperpod.controller import notices
from hyperpod.controller.memory import Report
from hyperpod.controller.world import World
from hyperpod.core import messages as words
from hyperpod.core.finding import Action
from hyperpod.core.node import DrainOwner, NodeView, Repair, RepairStatus, drain_reason
from hyperpod.core.repair import jobs_on
from hyperpod.errors import HyperpodError, InvalidState, NotFound, ProviderUnavailable, UsageError

DEADLINE_S = 10.0


class Commands:
    """Runs commands in the tick's thread and waits for their answers."""

    def __init__(
        self, world: World, more: Mapping[str, Callable[[World, Mapping[str, Any]], str]] | None = None
    ) -> None:
        self._world = world
        self._commands: dict[str, Callable[[World, Mapping[str, Any]], str]] = {
            "drain": _drain,
            "undrain": _undrain,
            "replace": lambda w, a: _repair(w, a, Action.REPLACE),
            "reboot": lambda w, a: _repair(w, a, Action.REBOOT),
            "clear": _clear,
            "reset-breaker": _reset_breaker,
            **(more or {}),
        }

    def run(self, what: str, args: Mapping[str, Any], uid: int) -> str:
        """Run one command; returns what was done as one sentence.

        Raises:
            UsageError: if the command is not known.
            NotFound, InvalidState, SlurmError: as the command says.
            ProviderUnavailable: if the tick is busy for longer than the deadline; it may still run.
        """
        command = self._commands.get(what)
        if command is None:
            raise UsageError(f"unknown command {what!r}; known are {', '.join(sorted(self._commands))}")
        answer: Future[str] = Future()

        def in_tick(world: World) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(command(world, {**args, "uid": uid}))
            except HyperpodError as error:
                answer.set_exception(error)

        self._world.inbox.put(Report(words.COMMAND, self._world.clock.now(), {"run": in_tick}))
        try:
            return answer.result(timeout=DEADLINE_S)
        except FutureTimeout as error:
            answer.cancel()
            raise ProviderUnavailable("the controller is busy", hint="try again in a moment") from error


def _node(world: World, args: Mapping[str, Any]) -> NodeView:
    name = str(args.get("node", ""))
    snapshot = world.last_snapshot
    nodes = snapshot.nodes if snapshot else ()
    found = next((n for n in nodes if n.name == name), None)
    if found is None:
        known = ", ".join(n.name for n in nodes) or "none yet"
        raise NotFound(f"there is no worker {name!r} in cluster {world.cluster}", hint=f"workers are: {known}")
    return found


def _drain(world: World, args: Mapping[str, Any]) -> str:
    node = _node(world, args)
    reason = str(args.get("reason") or "drained by an administrator")
    world.slurm.drain(node.name, reason)
    world.store.add_event("NodeDrained", f"by an administrator: {reason}", world.clock.now(), node=node.name)
    return f"{node.name} takes no new work; jobs that still run on it: {len(node.jobs)}"


def _undrain(world: World, args: Mapping[str, Any]) -> str:
    node = _node(world, args)
    if node.repair is not None and node.repair.status is not RepairStatus.HELD:
        raise InvalidState(f"undrain {node.name}", node.repair.status.value, hint="wait until its repair has ended")
    if node.repair is not None:
        world.store.drop_repair(node.name)
    world.slurm.undrain(node.name)
    world.store.add_event(
        "NodeUndrained", "by an administrator", world.clock.now(), node=node.name, data={"by": "person"}
    )
    return f"{node.name} takes work again"


def _clear(world: World, args: Mapping[str, Any]) -> str:
    node = _node(world, args)
    check, code, device = (str(args.get(key) or "") for key in ("check", "code", "device"))
    found = [
        f
        for f in node.findings
        if (f.check, f.code) == (check, code) and f.device in (f"{device}.0", device or f.device)
    ]
    if not found:
        open_now = ", ".join(f"{f.check}/{f.code}" for f in node.findings) or "none"
        raise NotFound(
            f"{node.name} has no open finding {check}/{code} {device}".rstrip(), hint=f"open are: {open_now}"
        )
    reason = str(args.get("reason") or "")
    for finding in found:
        if notices.clear(world, node.name, (finding.check, finding.code, finding.device)):
            continue
        order = {"type": words.CLEAR, "code": code, "device": finding.device, "reason": reason}
        if not world.agents.send(node.name, order):
            raise ProviderUnavailable(f"the agent of {node.name} is not connected", hint="try again when it is")
    text = f"{check}/{code} was cleared by an administrator: {reason}"
    data = {"cause": f"{check}/{code}", "device": device}
    world.store.add_event("FindingCleared", text, world.clock.now(), node=node.name, data=data)
    return f"{node.name}: {check}/{code} cleared"


def _repair(world: World, args: Mapping[str, Any], action: Action) -> str:
    node = _node(world, args)
    now = world.clock.now()
    running = {RepairStatus.FENCING, RepairStatus.REBOOTING, RepairStatus.REPLACING, RepairStatus.CHECKING}
    if node.repair is not None and node.repair.status in running:
        return f"{node.name} is being repaired already: {node.repair.status.value}"
    is_forced = bool(args.get("force"))
    if node.jobs and not is_forced:
        note = f"; waits for {jobs_on(node)} to leave (--force does not wait)"
    else:
        note = ""
    message = f"{action.value} asked by an administrator"
    repair = Repair(
        node=node.name,
        status=RepairStatus.FENCING if is_forced and node.jobs else RepairStatus.DRAINING,
        cause=f"admin/{action.value}",
        message=message,
        action=action,
        instance_id=node.instance_id,
        since=now,
        changed_at=now,
        boot_id=node.boot_id,
    )
    world.store.put_repair(repair)
    if node.drain_owner is not DrainOwner.PERSON:
        # What a person drained before stays drained after the repair, with that person's words.
        reason = drain_reason(repair.cause, message, "site", node.instance_id, node.boot_id)
        world.slurm.drain(node.name, reason)
    world.store.add_event("RepairAsked", message, now, node=node.name)
    return f"{node.name}: {action.value.lower()} begun{note}"


def _reset_breaker(world: World, args: Mapping[str, Any]) -> str:
    now = world.clock.now()
    world.store.set_value("breaker_reset_at", now.isoformat())
    world.store.add_event("BreakerReset", "an administrator closed the breaker", now)
    return "the breaker is closed; repairs go on"
