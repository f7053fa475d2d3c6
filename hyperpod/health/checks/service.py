"""slurmd (on workers) and munged run.

A process is found by its name; a systemd call would cost ten times as much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.ports.host import Host

NAME = "service"
HELD = "slurmd waits until the controller has closed this node to jobs, because a deep check comes before the first one"


@dataclass
class ServiceCheck:
    """Sees which services run, and counts changes of their process ids."""

    about: ClassVar[About] = About(
        title="slurmd and munged run",
        reads="The names in /proc/PID/stat of all processes; no program is started.",
        means="Without munged nothing in Slurm is believed, without slurmd the node cannot start jobs. A service that "
        "is still starting after a boot is no fault, and neither is one that was restarted a few times by a person.",
        does="FATAL, drain: the node takes no job until the service is back. Many restarts are WARN: somebody should "
        "read the service's log.",
        codes={
            "ServiceDown": "A service does not run.",
            "ServiceRestarts": "A service was restarted restarts_limit times within restarts_window_s.",
        },
        source="Slurm's and munge's own manuals; the grace after a boot is what NHC and gpud users ask for.",
    )
    services: tuple[str, ...] = setting(
        (), "Names of further processes that must run; default none beside slurmd (workers) and munged."
    )
    grace_s: float = setting(
        300.0,
        "Seconds after the boot in which a missing service only keeps the first job away; slow machines need minutes.",
    )
    restarts_limit: int = setting(
        5, "Restarts within the window that a person should look at; a package upgrade makes one or two."
    )
    restarts_window_s: float = setting(
        600.0, "Seconds of the window in which restarts are counted; ten minutes catch a crash loop."
    )
    interval_s: float = setting(
        10.0, "Seconds between two looks; a missing slurmd costs jobs at once, and a look costs a millisecond."
    )
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
        if "slurmd" in missing and ports.facts.is_held:
            # It is kept from starting: that is no fault, however long the controller is away.
            missing.remove("slurmd")
            if not missing:
                return Result(tuple(findings), not_ready=HELD)
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
