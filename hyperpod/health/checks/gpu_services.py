"""The services that NVLink fabrics need run: fabric manager and IMEX."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.gpu import names
from hyperpod.ports.host import Host

NAME = "gpu_services"

_FABRIC_MANAGER = "nv-fabricmanager"
_IMEX = "nvidia-imex"
_STATE = re.compile(r"\b[A-Z][A-Z_]{4,}\b")
_NO_PROGRAM = 127
_CHANNELS = "nvidia-caps-imex-channels"


@dataclass
class GpuServicesCheck:
    """Looks for the device files that need a service, and then for the service."""

    about: ClassVar[About] = About(
        title="Fabric manager and IMEX run where they are needed",
        reads="/dev/nvidia-nvswitch*, the IMEX channels below /dev, and the processes of the two services; what "
        "nvidia-imex-ctl -q says, once for each change of the jobs here.",
        means="Without the fabric manager new programs on a machine with NVSwitches do not get their GPUs connected; a "
        "fleet missed that for 20 days. Machines without NVSwitch devices have none by design (PCIe cards, GB200 "
        "trays), so its absence there says nothing. IMEX carries jobs over several trays: idle without it is healthy, "
        "and while no job runs its state is not asked for (an idle GB300 was called ill for 13 days). It is asked half "
        "a minute after a job has come, because prologs start it and its peers take a moment.",
        does="FATAL, REBOOT for the fabric manager (two looks of three, five minutes after the boot). IMEX is WARN and "
        "only while a job runs.",
        codes={
            "FabricManagerDown": "There are NVSwitches, and the fabric manager does not run.",
            "ImexDown": "A job runs on a node with IMEX channels, and IMEX does not run.",
            "ImexNotReady": "A job runs on a node with IMEX channels, and IMEX does not call itself ready (WARN).",
            "ImexSilent": "IMEX runs and could not be asked for its state (UNKNOWN).",
        },
        source="Practice of other monitors; NVSentinel 883, gpud 1106, aicr 2641.",
    )
    grace_s: float = setting(300.0, "Seconds after the boot in which a service may still start.")
    imex_program: str = setting("/usr/bin/nvidia-imex-ctl", "Where IMEX's own tool is; without it nobody is asked.")
    imex_settle_s: float = setting(30.0, "Seconds after a change of the jobs before IMEX is asked for its state.")
    interval_s: float = setting(120.0, "Seconds between two looks.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = True
    roles: frozenset[Role] = WORKERS
    _pids: dict[str, int] = field(default_factory=dict, repr=False)
    _jobs: frozenset[int] = field(default=frozenset(), repr=False)
    _jobs_since: float = field(default=0.0, repr=False)
    _is_ready: bool = field(default=False, repr=False)

    def run(self, ports: Ports) -> Result:
        """Report services that are needed here and do not run."""
        files = names(ports, "/dev")
        findings: list[Finding] = []
        inventory = {}
        if any(re.fullmatch(r"nvidia-nvswitch\d+", name) for name in files):
            runs = self._runs(ports.host, _FABRIC_MANAGER)
            inventory["fabric_manager"] = "runs" if runs else "does not run"
            text = "the machine has NVSwitches, the fabric manager does not run"
            if not runs and ports.facts.uptime_s < self.grace_s:
                return Result(not_ready=f"{text} yet", inventory=inventory)
            if not runs:
                findings.append(fatal(NAME, "FabricManagerDown", text, action=Action.REBOOT))
        has_channels = _CHANNELS in files and bool(names(ports, f"/dev/{_CHANNELS}"))
        if has_channels and ports.facts.jobs:
            findings += self._imex(ports.host, ports.facts.jobs)
        return Result(tuple(findings), inventory=inventory)

    def _imex(self, host: Host, jobs: frozenset[int]) -> list[Finding]:
        if not self._runs(host, _IMEX):
            self._is_ready = False
            return [warn(NAME, "ImexDown", "a job runs on a node with IMEX channels, IMEX does not run")]
        now = host.monotonic()
        if jobs != self._jobs:
            self._jobs, self._jobs_since, self._is_ready = jobs, now, False
        if self._is_ready or now - self._jobs_since < self.imex_settle_s:
            return []
        try:
            said = host.run([self.imex_program, "-q"], 2.0)
        except (CommandError, CommandTimeout) as error:
            if isinstance(error, CommandError) and error.code == _NO_PROGRAM:
                self._is_ready = True
                return []
            return [unknown(NAME, "ImexSilent", f"IMEX cannot be asked for its state: {error}")]
        states = _STATE.findall(said)
        self._is_ready = states[-1:] == ["READY"]
        if self._is_ready:
            return []
        if not states:
            return [unknown(NAME, "ImexSilent", f"IMEX says nothing that is understood: {said.strip()[:80]!r}")]
        text = f"a job runs on a node with IMEX channels, IMEX is {states[-1]} and not READY"
        return [warn(NAME, "ImexNotReady", text)]

    def _runs(self, host: Host, name: str) -> bool:
        """Say whether a service runs. A known process costs one read; all are looked through only when it is gone."""
        short = name[:15]
        known = self._pids.get(name)
        if known is not None:
            try:
                if host.read_text(f"/proc/{known}/comm", 64).strip() == short:
                    return True
            except OSError:
                pass
        found = [process.pid for process in host.processes() if process.name == short]
        if not found:
            self._pids.pop(name, None)
            return False
        self._pids[name] = min(found)
        return True
