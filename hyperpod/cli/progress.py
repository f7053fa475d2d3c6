"""The screen of a cluster in the making: what is being done, each machine's state, and its scripts' output.

Owns only the showing, on stderr. On a terminal it is one table that changes; elsewhere one line for each change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hyperpod.cli import render
from hyperpod.errors import HyperpodError
from hyperpod.ports.provider import Birth, BirthStatus, Instance, InstanceStatus

if TYPE_CHECKING:
    from rich.console import Group

_LOOK_EVERY_S = 0.5
_MAX_TAIL_BYTES = 65536


class Machines(Protocol):
    """The part of a provider that the screen needs."""

    def observe(self, cluster: str) -> tuple[Instance, ...]: ...

    def birth(self, instance_id: str) -> Birth: ...


class CreationScreen:
    """Shows progress while it is told of it. Use as a context; call it with what is done and how far (0 to 1)."""

    def __init__(self, machines: Machines, cluster: str, clock: Callable[[], float], *, follow: bool = False) -> None:
        self._machines = machines
        self._cluster = cluster
        self._clock = clock
        self._follow = follow
        self._is_terminal = sys.stderr.isatty()
        self._live: Any = None
        self._looked_at: float | None = None
        self._began_at = clock()
        self._what = ""
        self._share = 0.0
        self._states: dict[str, tuple[str, float]] = {}
        self._read: dict[str, int] = {}

    def __enter__(self) -> CreationScreen:
        if self._is_terminal:
            from rich.live import Live

            self._live = Live(console=render.console_for(sys.stderr), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        if self._live is not None:
            self._live.stop()

    def __call__(self, what: str, share: float) -> None:
        """Take in what is being done."""
        # What changes with every look at a waiting node is shown by the node's own line.
        is_new = what.partition(";")[0] != self._what.partition(";")[0]
        self._what, self._share = what, share
        if is_new and self._live is None:
            render.say(f"{self._elapsed()}  {what.partition(';')[0]}")
        now = self._clock()
        # Machines exist only in the second half; before that an image is built, and podman is busy enough.
        if share >= 0.5 and (self._looked_at is None or now - self._looked_at >= _LOOK_EVERY_S):
            self._looked_at = now
            self._look()
        if self._live is not None:
            self._live.update(self._screen(), refresh=True)

    def _elapsed(self) -> str:
        return f"{self._clock() - self._began_at:6.1f} s"

    def _look(self) -> None:
        try:
            instances = self._machines.observe(self._cluster)
            births = {instance.node: self._machines.birth(instance.id) for instance in instances}
        except HyperpodError:
            return  # only the showing suffers; who makes the cluster meets the same error
        for node in self._states.keys() - births.keys():
            del self._states[node]
            if self._live is None:
                render.say(f"{self._elapsed()}  {node}: removed")
        for instance in instances:
            birth = births[instance.node]
            state = state_of(instance, birth)
            if self._states.get(instance.node, ("",))[0] != state:
                self._states[instance.node] = (state, self._clock() - self._began_at)
                if self._live is None:
                    render.say(f"{self._elapsed()}  {instance.node} ({instance.id}): {state}")
            if self._follow:
                self._show_output(instance.node, birth)

    def _show_output(self, node: str, birth: Birth) -> None:
        if not birth.log_path:
            return
        begin = self._read.get(birth.instance_id, 0)
        try:
            with Path(birth.log_path).open("rb") as file:
                file.seek(begin)
                data = file.read(_MAX_TAIL_BYTES)
        except OSError:
            return
        whole, newline, _ = data.rpartition(b"\n")
        self._read[birth.instance_id] = begin + len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            self._print(f"[{node}] {line}")

    def _print(self, line: str) -> None:
        if self._live is None:
            render.say(line)
        else:
            self._live.console.print(line)

    def _screen(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar

        rows = [(node, state, render.duration(at)) for node, (state, at) in self._states.items()]
        parts: list[Any] = [
            f"{self._elapsed()}  {self._what}", ProgressBar(total=1.0, completed=self._share, width=60),
        ]  # fmt: skip
        if rows:
            parts.append(render.table(("NODE", "STATE", "SINCE"), rows))
        return Group(*parts)


def state_of(instance: Instance, birth: Birth) -> str:
    """Return how far a machine is, in a few words."""
    if instance.status is InstanceStatus.PENDING:
        is_named = birth.status is BirthStatus.RUNNING and birth.message not in ("", "booting")
        return f"setting up: {birth.message}" if is_named else "booting"
    if instance.status is InstanceStatus.FAILED:
        return f"failed: {birth.script or 'its boot'} ended with status {birth.exit_code}"
    return "set up" if instance.status is InstanceStatus.RUNNING else instance.status.value
