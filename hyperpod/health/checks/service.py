"""slurmd (on workers), munged and the node's time service run.

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
from hyperpod.health.sysfs import names, shares_kernel
from hyperpod.ports.host import Host

NAME = "service"
HELD = "slurmd waits until the controller has closed this node to jobs, because a deep check comes before the first one"

_TIME_UNITS = {
    "chronyd.service": "chronyd",
    "chrony.service": "chronyd",
    "ntp.service": "ntpd",
    "ntpd.service": "ntpd",
    "ntpsec.service": "ntpd",
    "openntpd.service": "ntpd",
    "systemd-timesyncd.service": "systemd-timesyncd",
}
"""Units that keep the clock right, and the process of each."""

_KEEP_TIME = (*sorted(set(_TIME_UNITS.values())), "ptp4l", "phc2sys", "timemaster", "VBoxService")
"""Any of these keeps the clock: one that is enabled may stand back for another by its unit's own conditions."""

_SYSTEMD = "/etc/systemd/system"
_WANTS = tuple(f"{_SYSTEMD}/{target}.target.wants" for target in ("multi-user", "sysinit", "basic"))
_ENABLED_EVERY_S = 600.0
_TIME_EVERY_S = 60.0

_PID_FILES = {"slurmd": ("/run/slurmd.pid", "/run/slurm/slurmd.pid"), "munged": ("/run/munge/munged.pid",)}
"""Where a service writes down its process. A boot begins with an empty /run, so what stands there is of this one."""


@dataclass
class ServiceCheck:
    """Sees which services run, and counts changes of their process ids."""

    about: ClassVar[About] = About(
        title="slurmd, munged and the time service run",
        reads="The names in /proc/PID/stat of all processes; which time service systemd is to start, from the links in "
        "/etc/systemd/system/*.target.wants; no program is started.",
        means="Without munged nothing in Slurm is believed, without slurmd the node cannot start jobs. A service that "
        "is still starting after a boot is no fault, and neither is one that was restarted a few times by a person. "
        "One that has run in this boot and is gone is not starting: it gets no grace. Of the time services (chronyd, "
        "systemd-timesyncd, ntpd) only the one that is enabled is looked for, another that keeps the clock (PTP too) "
        "does as well, and a node that shares its kernel with others has none by design.",
        does="FATAL, drain: the node takes no job until the service is back. Many restarts are WARN: somebody should "
        "read the service's log. A dead time service is WARN and drains nothing: clock_sync judges the offset itself.",
        codes={
            "ServiceDown": "A service does not run.",
            "ServiceRestarts": "A service was restarted restarts_limit times within restarts_window_s (WARN).",
            "TimeServiceDown": "A time service is enabled, and nothing that keeps the clock runs (WARN).",
        },
        source="Slurm's and munge's own manuals; the grace after a boot is what NHC and gpud users ask for.",
    )
    services: tuple[str, ...] = setting(
        (), "Names of further processes that must run; default none beside slurmd (workers) and munged."
    )
    grace_s: float = setting(
        300.0,
        "Seconds after the boot in which a service that has not run yet only keeps the first job away; slow machines "
        "need minutes.",
    )
    restart_s: float = setting(
        10.0, "Seconds within grace_s that a service which has run may be away; scripts of a boot restart slurmd."
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
    _gone_since: dict[str, float] = field(default_factory=dict, repr=False)
    _time_units: tuple[str, ...] = field(default=(), repr=False)
    _next_enabled: float = field(default=0.0, repr=False)
    _next_time: float = field(default=0.0, repr=False)
    _time_is_down: bool = field(default=False, repr=False)

    def run(self, ports: Ports) -> Result:
        """Look for each service among the processes."""
        wanted = ["munged", *(["slurmd"] if ports.facts.role is Role.WORKER else []), *self.services]
        running = self._running(ports.host, wanted)
        findings: list[Finding] = []
        not_ready: list[str] = []
        now = ports.host.monotonic()
        for service in wanted:
            pid = running.get(service[:15])
            if pid is not None:
                self._note(service, pid, now)
                findings += self._restarted(service)
            elif service == "slurmd" and ports.facts.is_held:
                # It is kept from starting: that is no fault, however long the controller is away.
                not_ready.append(HELD)
            elif ports.facts.uptime_s < self.grace_s and self._may_be_starting(ports.host, service, now):
                not_ready.append(f"{service} is not running yet")
            else:
                text = f"{service} does not run"
                findings.append(fatal(NAME, "ServiceDown", text, action=Action.DRAIN, device=service))
        if not shares_kernel(ports):
            findings += self._time_service(ports, now)
        return Result(tuple(findings), not_ready=not_ready[0] if not_ready else "")

    def _running(self, host: Host, wanted: Sequence[str]) -> dict[str, int]:
        # The kernel cuts process names at 15 characters. A daemon's helpers have it as parent: the oldest counts.
        running = self._still_running(host, wanted)
        if len(running) < len(wanted):
            running = self._all(host)
        return running

    def _all(self, host: Host) -> dict[str, int]:
        found: dict[str, int] = {}
        for process in host.processes():
            if process.state != "Z":
                found[process.name] = min(process.pid, found.get(process.name, process.pid))
        return found

    def _still_running(self, host: Host, wanted: Sequence[str]) -> dict[str, int]:
        """Return the services whose process of the last time is there: to read all others would cost far more."""
        found = {}
        for service in wanted:
            pid = self._pids.get(service)
            process = host.process(pid) if pid is not None else None
            if process is not None and process.name == service[:15] and process.state != "Z":
                found[service[:15]] = process.pid
        return found

    def _may_be_starting(self, host: Host, service: str, now: float) -> bool:
        """Say whether a service that is missing soon after the boot may still come by itself."""
        if service not in self._pids and not _has_died(host, service):
            return True
        return now - self._gone_since.setdefault(service, now) < self.restart_s

    def _note(self, service: str, pid: int, now: float) -> None:
        times = self._restarts.setdefault(service, deque())
        if self._pids.get(service, pid) != pid:
            times.append(now)
        self._pids[service] = pid
        self._gone_since.pop(service, None)
        while times and now - times[0] > self.restarts_window_s:
            times.popleft()

    def _restarted(self, service: str) -> list[Finding]:
        count = len(self._restarts.get(service, ()))
        if count < self.restarts_limit:
            return []
        minutes = self.restarts_window_s / 60
        text = f"{service} was restarted {count} times within {minutes:.0f} minutes"
        return [warn(NAME, "ServiceRestarts", text, device=service)]

    def _time_service(self, ports: Ports, now: float) -> list[Finding]:
        """Look for what keeps the clock, where something is to keep it; a known process costs one read."""
        host = ports.host
        if now >= self._next_enabled:
            self._next_enabled = now + _ENABLED_EVERY_S
            self._time_units = _enabled(host)
        if not self._time_units:
            return []
        known = [name for name in _KEEP_TIME if name in self._pids]
        if not (found := self._still_running(host, known)) and now >= self._next_time:
            # All processes are looked at once a minute only: nothing is drained for this.
            self._next_time = now + _TIME_EVERY_S
            found = self._all(host)
            self._time_is_down = not any(name[:15] in found for name in _KEEP_TIME)
        for name in _KEEP_TIME:
            if name[:15] in found:
                self._time_is_down = False
                self._note(name, found[name[:15]], now)
                return self._restarted(name)
        if not self._time_is_down or (not known and ports.facts.uptime_s < self.grace_s):
            return []
        text = f"{' and '.join(self._time_units)} should keep the clock right and does not run"
        return [warn(NAME, "TimeServiceDown", text, device=_TIME_UNITS[self._time_units[0]])]


def _enabled(host: Host) -> tuple[str, ...]:
    """Return the time services that systemd starts by itself: wanted by a target, and not masked."""
    if "system" not in names(host, "/run/systemd"):
        # Another init: links that a package has left start nothing. The same sign as sd_booted(3).
        return ()
    wanted = {unit for folder in _WANTS for unit in names(host, folder)}
    return tuple(unit for unit in _TIME_UNITS if unit in wanted and not _is_masked(host, unit))


def _is_masked(host: Host, unit: str) -> bool:
    try:
        return host.read_link(f"{_SYSTEMD}/{unit}") == "/dev/null"
    except OSError:
        return False


def _has_died(host: Host, service: str) -> bool:
    """Say whether the service left its pid file behind in this boot without its process."""
    for path in _PID_FILES.get(service, ()):
        try:
            pid = int(host.read_text(path, 32))
        except (OSError, ValueError):
            continue
        process = host.process(pid)
        if process is None or process.name != service:
            return True
    return False
