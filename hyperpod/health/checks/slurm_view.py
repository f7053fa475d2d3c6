"""The machine is what slurm.conf says it is, as slurmd itself counts: fewer makes slurmctld refuse the node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Finding
from hyperpod.core.node import Role
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health import slurm_conf
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown
from hyperpod.ports.host import FileState, Host

NAME = "slurm_view"
_RETRY_S = 60.0


@dataclass
class SlurmViewCheck:
    """Compares ``slurmd -C`` with the node's line in slurm.conf."""

    about: ClassVar[About] = About(
        title="slurmd counts what slurm.conf promises",
        reads="slurmd -C, once after the agent's start, and the node's line in the slurm.conf that slurmd uses.",
        means="With fewer processors, cores or megabytes than configured slurmctld sets the node INVALID (Low "
        "RealMemory, Low CPUs). More than configured is no fault. Where slurm.conf says config_overrides Slurm does "
        "not compare, and neither do we.",
        does="FATAL, drain. What the kernel counts later on is watched by memory and cpu_count without any program.",
        codes={
            "SlurmCountsFewer": "slurmd counts fewer of something than slurm.conf promises.",
            "SlurmdSilent": "slurmd -C failed or gave no answer that is understood.",
        },
        source="slurmd(8) -C, slurm.conf(5) on INVALID_REG.",
    )
    programs: tuple[str, ...] = setting(
        ("slurmd", "/opt/slurm/sbin/slurmd"), "Where slurmd may be; the first that can be started is asked."
    )
    interval_s: float = setting(120.0, "Seconds between two looks whether slurm.conf has changed.")
    deadline_s: float = 15.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = True
    roles: frozenset[Role] = WORKERS
    _counted: Mapping[str, int] | None = field(default=None, repr=False)
    _has_slurmd: bool = field(default=True, repr=False)
    _next_try: float = field(default=0.0, repr=False)
    _problem: tuple[Finding, ...] = field(default=(), repr=False)
    _read: tuple[str, FileState] | None = field(default=None, repr=False)
    _promised: Mapping[str, int] = field(default_factory=dict, repr=False)

    def run(self, ports: Ports) -> Result:
        """Compare; asks slurmd only while it has not answered yet."""
        self._look_at_conf(ports.host, ports.facts.node)
        if not self._promised:
            return Result()
        if self._counted is None and self._has_slurmd and ports.host.monotonic() >= self._next_try:
            self._ask(ports.host)
        if self._counted is None:
            return Result(self._problem)
        short = [
            f"{self._counted[name]} {what} instead of {self._promised[name]}"
            for name, what in (("cpus", "processors"), ("cores", "cores"), ("memory_mib", "MiB of memory"))
            if name in self._promised and name in self._counted and self._counted[name] < self._promised[name]
        ]
        if not short:
            return Result()
        text = f"slurmd counts {', '.join(short)} in slurm.conf"
        return Result((fatal(NAME, "SlurmCountsFewer", text),))

    def _look_at_conf(self, host: Host, node: str) -> None:
        for path in slurm_conf.PATHS:
            try:
                state = host.file_state(path)
                if self._read == (path, state):
                    return
                text = host.read_text(path, 1 << 20)
            except OSError:
                continue
            self._read = (path, state)
            is_compared = not slurm_conf.declares_figures(text)
            self._promised = figures(slurm_conf.node_line(text, node)) if is_compared else {}
            return
        self._read, self._promised = None, {}

    def _ask(self, host: Host) -> None:
        self._next_try = host.monotonic() + _RETRY_S
        self._problem = ()
        for program in self.programs:
            try:
                found = figures(dict(_words(host.run([program, "-C"], 10.0))))
            except CommandTimeout:
                self._problem = (unknown(NAME, "SlurmdSilent", "slurmd -C does not answer"),)
                return
            except CommandError as error:
                if error.code == 127:
                    continue
                self._problem = (unknown(NAME, "SlurmdSilent", f"slurmd -C failed: {error}"),)
                return
            if found:
                self._counted = found
            else:
                self._problem = (unknown(NAME, "SlurmdSilent", "slurmd -C says nothing that is understood"),)
            return
        self._has_slurmd = False


def figures(words: Mapping[str, str]) -> dict[str, int]:
    """Return processors, cores and memory from the words of a node's line; what it does not say is left out."""
    numbers = {key.lower(): int(value) for key, value in words.items() if value.isascii() and value.isdigit()}
    sockets = numbers.get("sockets") or numbers.get("socketsperboard", 0) * numbers.get("boards", 1)
    cores = sockets * numbers.get("corespersocket", 0)
    threads = numbers.get("threadspercore", 1)
    found = {"cpus": numbers.get("cpus") or cores * threads, "cores": cores, "memory_mib": numbers.get("realmemory", 0)}
    return {name: value for name, value in found.items() if value}


def _words(text: str) -> list[tuple[str, str]]:
    return re.findall(r"\b(\w+)=(\S+)", text.partition("\nUpTime")[0])
