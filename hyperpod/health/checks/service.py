"""slurmd (on workers) and munged run.

Settings: ``services`` (names of processes beside the role's own), ``grace_s`` (300: after the boot a missing service
is still starting, so it only keeps the first job away), ``restarts_limit`` (5) within ``restarts_window_s`` (600): a
service that comes and goes is WARN. A process is found by its name; a systemd call would cost ten times as much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, fatal, warn
from hyperpod.ports.host import Host

NAME = "service"


@dataclass
class ServiceCheck:
    """Sees which services run, and counts changes of their process ids."""

    services: tuple[str, ...] = ()
    grace_s: float = 300.0
    restarts_limit: int = 5
    restarts_window_s: float = 600.0
    interval_s: float = 10.0
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = True
    roles: frozenset[Role] = EVERYWHERE
    _pids: dict[str, int] = field(default_factory=dict, repr=False)
    _restarts: dict[str, deque[float]] = field(default_factory=dict, repr=False)

    def run(self, ports: Ports) -> Result:
        """Look for each service among the processes."""
        wanted = ["munged", *(["slurmd"] if ports.facts.role is Role.WORKER else []), *self.services]
        # The kernel cuts process names at 15 characters. A daemon's helpers have it as parent: the oldest counts.
        running = self._still_running(ports.host, wanted)
        if len(running) < len(wanted):
            running = {}
            for process in ports.host.processes():
                running[process.name] = min(process.pid, running.get(process.name, process.pid))
        findings: list[Finding] = []
        missing: list[str] = []
        now = ports.host.monotonic()
        for service in wanted:
            pid = running.get(service[:15])
            if pid is None:
                missing.append(service)
                continue
            self._note(service, pid, now)
            count = len(self._restarts.get(service, ()))
            if count >= self.restarts_limit:
                minutes = self.restarts_window_s / 60
                text = f"{service} was restarted {count} times within {minutes:.0f} minutes"
                findings.append(warn(NAME, "ServiceRestarts", text, device=service))
        if missing and ports.facts.uptime_s < self.grace_s:
            return Result(tuple(findings), not_ready=f"{missing[0]} is not running yet")
        for service in missing:
            text = f"{service} does not run"
            findings.append(fatal(NAME, "ServiceDown", text, action=Action.DRAIN, device=service))
        return Result(tuple(findings))

    def _still_running(self, host: Host, wanted: Sequence[str]) -> dict[str, int]:
        """Return the services whose process of the last time is there: to read all others would cost far more."""
        found = {}
        for service in wanted:
            pid = self._pids.get(service)
            process = host.process(pid) if pid is not None else None
            if process is not None and process.name == service[:15] and process.state != "Z":
                found[service[:15]] = process.pid
        return found

    def _note(self, service: str, pid: int, now: float) -> None:
        times = self._restarts.setdefault(service, deque())
        if self._pids.get(service, pid) != pid:
            times.append(now)
        self._pids[service] = pid
        while times and now - times[0] > self.restarts_window_s:
            times.popleft()
