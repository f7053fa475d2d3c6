"""Machines in memory: power, births, refusals. Implements ``controller.world.Machines``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hyperpod.core.node import InstanceStatus, Role
from hyperpod.errors import NotFound
from hyperpod.ports.provider import Instance
from tests.fakes.clock import FakeClock


@dataclass
class Machine:
    """One machine; ``ready_at`` is when its agent begins to speak, ``boot`` counts its boots."""

    instance: Instance
    boot: int = 1
    ready_at: datetime | None = None

    @property
    def boot_id(self) -> str:
        """Identity of its present boot."""
        return f"{self.instance.id[-4:]}-boot-{self.boot}"


class FakeMachines:
    """The provider as the head node sees it.

    ``calls`` records what was asked; ``made`` how many machines each slot has had. ``next_error`` is raised by the
    next call, ``is_silent`` makes every call fail. ``on_power`` is told (node, is_on) when a machine's power changes.
    ``births`` holds the outcome of coming births: FAILED makes a machine whose scripts do not end well.
    """

    def __init__(self, nodes: Sequence[str], clock: FakeClock, *, boot_s: float = 5.0, group: str = "worker") -> None:
        self.clock = clock
        self.boot_s = boot_s
        self.group = group
        self.calls: list[tuple[str, ...]] = []
        self.made: dict[str, int] = {}
        self.machines: dict[str, Machine] = {}
        self.births: list[InstanceStatus] = []
        self.next_error: Exception | None = None
        self.silence: Exception | None = None
        self.on_power: Callable[[str, bool], None] = lambda node, is_on: None
        self._tokens: dict[str, str] = {}
        self._serial = 0
        for node in nodes:
            self._make(node, at=clock.now() - timedelta(days=1))

    def _make(self, node: str, at: datetime) -> Instance:
        self._serial += 1
        self.made[node] = self.made.get(node, 0) + 1
        status = self.births.pop(0) if self.births and self.made[node] > 1 else InstanceStatus.RUNNING
        instance = Instance(
            f"i-{self._serial:017x}", node, self.group, Role.WORKER, f"10.0.0.{self._serial}", status, at
        )
        is_first = self.made[node] == 1
        ready_at = at if is_first else at + timedelta(seconds=self.boot_s)
        self.machines[node] = Machine(instance, ready_at=ready_at if status is InstanceStatus.RUNNING else None)
        return instance

    def is_ready(self, node: str) -> bool:
        """Say whether the machine in a slot runs and its agent speaks by now."""
        machine = self.machines[node]
        is_on = machine.instance.status is InstanceStatus.RUNNING
        return is_on and machine.ready_at is not None and self.clock.now() >= machine.ready_at

    def fail(self, node: str) -> None:
        """Cut a machine's power from outside."""
        self._set(node, InstanceStatus.STOPPED)
        self.on_power(node, False)

    def _set(self, node: str, status: InstanceStatus) -> None:
        machine = self.machines[node]
        machine.instance = replace(machine.instance, status=status)

    def _find(self, instance_id: str) -> str:
        for node, machine in self.machines.items():
            if machine.instance.id == instance_id:
                return node
        raise NotFound(f"there is no instance {instance_id}")

    def _called(self, *call: str) -> None:
        if call[0] != "observe":
            self.calls.append(call)
        error, self.next_error = self.next_error or self.silence, None
        if error is not None:
            raise error

    # --- the port ---

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        self._called("observe")
        return tuple(m.instance for m in self.machines.values())

    def power_off(self, instance_id: str) -> None:
        self._called("power_off", instance_id)
        node = self._find(instance_id)
        if self.machines[node].instance.status is not InstanceStatus.STOPPED:
            self.fail(node)

    def reboot(self, instance_id: str) -> None:
        self._called("reboot", instance_id)
        node = self._find(instance_id)
        machine = self.machines[node]
        self.on_power(node, False)
        machine.boot += 1
        machine.ready_at = self.clock.now() + timedelta(seconds=self.boot_s)
        self._set(node, InstanceStatus.RUNNING)
        self.on_power(node, True)

    def park(self, instance_id: str) -> None:
        self._called("park", instance_id)
        node = self._find(instance_id)
        if self.machines[node].instance.status is not InstanceStatus.STOPPED:
            self.fail(node)

    def power_on(self, instance_id: str) -> None:
        self._called("power_on", instance_id)
        node = self._find(instance_id)
        machine = self.machines[node]
        if machine.instance.status is InstanceStatus.STOPPED:
            machine.boot += 1
            machine.ready_at = self.clock.now() + timedelta(seconds=self.boot_s)
            self._set(node, InstanceStatus.RUNNING)
            self.on_power(node, True)

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        self._called("replace", node, instance_id, token)
        present = self.machines[node].instance
        if token in self._tokens or present.id != instance_id:
            return present
        self.on_power(node, False)
        made = self._make(node, self.clock.now())
        self._tokens[token] = made.id
        self.on_power(node, True)
        return made
