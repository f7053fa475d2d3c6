"""The processors are online, at the speed that was chosen, and ours. How many Slurm wants is ``cpu_count``'s."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Finding, Whose
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, setting, unknown, warn
from hyperpod.health.sysfs import shares_devices, shares_kernel, word

NAME = "cpu"


@dataclass
class CpuCheck:
    """Reads sysfs and /proc/stat."""

    about: ClassVar[About] = About(
        title="Processors are online, not slowed by their governor, and not taken by the hypervisor",
        reads="/sys/devices/system/cpu/{present,online,smt/control}, the governor of processor 0, the steal column of "
        "/proc/stat; the NUMA nodes, for the group's comparison.",
        means="Processors that are possible but not present, and the second threads of cores where SMT is switched "
        "off, are no fault. The governor powersave is the normal one of intel_pstate and amd-pstate. Steal is time "
        "that the hypervisor gave to somebody else.",
        does="WARN only; a node with fewer processors than Slurm counts on is cpu_count's to take out.",
        codes={
            "CpusOffline": "Processors that are present are switched off.",
            "GovernorSlow": "The frequency governor is not among those that are wanted.",
            "CpuSteal": "The hypervisor takes more than steal_percent of the processors' time.",
            "CpuUnreadable": "The kernel's lists cannot be understood.",
        },
        source="The kernel's cpu hotplug and cpufreq documentation; GCM and azurehpc look at the governor too.",
    )
    governors: tuple[str, ...] = setting(
        (), "Governors that are wanted, e.g. [performance]; empty: only compared within the group."
    )
    steal_percent: float = setting(5.0, "Percent of processor time that a hypervisor may take; whole instances have 0.")
    interval_s: float = setting(60.0, "Seconds between two looks, and over which steal is averaged.")
    deadline_s: float = 2.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE
    _before: tuple[int, int] | None = field(default=None, repr=False)

    def run(self, ports: Ports) -> Result:
        """Look once; steal needs the look before."""
        if shares_devices(ports):
            return Result()
        root = f"{ports.facts.sysfs}/devices/system/cpu"
        findings: list[Finding] = []
        inventory = {}
        try:
            present = parse_cpu_list(word(ports.host, f"{root}/present") or "")
            online = parse_cpu_list(word(ports.host, f"{root}/online") or "")
        except ValueError as error:
            findings.append(unknown(NAME, "CpuUnreadable", f"{root}: {error}"))
            present = online = frozenset()
        offline = present - online if online else frozenset()
        if offline and word(ports.host, f"{root}/smt/control") not in ("off", "forceoff"):
            text = f"{len(offline)} of {len(present)} processors are switched off"
            findings.append(warn(NAME, "CpusOffline", text))
        governor = word(ports.host, f"{root}/cpu0/cpufreq/scaling_governor")
        if governor:
            inventory["governor"] = governor
            if self.governors and governor not in self.governors:
                text = f"the frequency governor is {governor}, wanted is {' or '.join(self.governors)}"
                findings.append(warn(NAME, "GovernorSlow", text, whose=Whose.SITE))
        if numa := word(ports.host, f"{ports.facts.sysfs}/devices/system/node/online"):
            inventory["numa_nodes"] = numa
        if not shares_kernel(ports):
            findings += self._steal(ports)
        return Result(tuple(findings), inventory=inventory)

    def _steal(self, ports: Ports) -> list[Finding]:
        try:
            times = [int(value) for value in ports.host.read_text("/proc/stat", 512).splitlines()[0].split()[1:9]]
            total, steal = sum(times), times[7]
        except (OSError, ValueError, IndexError):
            self._before = None
            return []
        before, self._before = self._before, (total, steal)
        if before is None or total <= before[0]:
            return []
        percent = 100.0 * (steal - before[1]) / (total - before[0])
        if percent <= self.steal_percent:
            return []
        return [warn(NAME, "CpuSteal", f"the hypervisor takes {percent:.0f} % of the time", whose=Whose.SITE)]


def parse_cpu_list(text: str) -> frozenset[int]:
    """Read a list like ``0-3,8``.

    Raises:
        ValueError: if it is none.
    """
    found: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            if len(numbers) > 65536:
                raise ValueError(f"not a list of processors: {text[:40]!r}")
            found.update(numbers)
    return frozenset(found)
