"""Elastic Fabric Adapters are all there, their links carry, and their driver gets answers."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import ANY_PEER, Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import THREE_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.links import OUTAGE_WHY, Outages, is_efa
from hyperpod.health.sysfs import Rises, names, number, shares_devices, word
from hyperpod.ports.host import Host

NAME = "efa"
HOUR_S = 3600.0

_PEER = (
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
    "retrans_timeout_events",
)
"""Counters that rise because the other side does not answer."""


@dataclass
class EfaCheck:
    """Reads /sys/class/infiniband for Amazon's devices."""

    about: ClassVar[About] = About(
        title="EFA devices are all there, carry, and answer their driver",
        reads="/sys/class/infiniband/*/ of devices made by Amazon: device/net/*/{carrier,operstate}, hw_counters and "
        "ports/1/hw_counters; once the driver's version, for the group's comparison.",
        means="The files state and phys_state are written into the driver (always ACTIVE and LinkUp) and say nothing. "
        "EFA-only devices have no network interface and so no carrier. Errors towards remote nodes accuse a peer, and "
        "this node only says so; when a job dies and all its nodes but one say so, that one is the suspect. A "
        "protection domain that is refused with -12 is the job's limit.",
        does="A command that the device never answered is a hard fact: REBOOT. Missing devices REBOOT, a lost carrier "
        "drains after three looks. The rest is evidence for who is to blame, and drains nobody.",
        codes={
            "EfaMissing": "There are fewer devices than the instance type has, or than there were.",
            "EfaLinkDown": "An EFA's interface has lost its carrier.",
            "EfaNoCompletion": "The device did not answer a command of its driver.",
            "EfaCommandErrors": "Commands of the driver fail, more than ten a minute.",
            "EfaDrops": "Packets are dropped on receipt, more than drops_per_s.",
            "EfaPeerErrors": "Work towards other nodes fails: a peer is suspect, not this node.",
        },
        source="The EFA driver's source (hw_counters, port attributes); NVSentinel and the EKS agent for limits.",
    )
    drops_per_s: float = setting(100.0, "Dropped packets per second that a person should know of.")
    commands_limit: int = setting(10, "Failed driver commands per minute that are still normal.")
    peer_limit: int = setting(10, "Failed pieces of work within five minutes from which a peer is suspect.")
    outage_s: float = setting(30.0, OUTAGE_WHY)
    grace_s: float = setting(120.0, "Seconds after the boot before missing devices count; the driver comes up late.")
    interval_s: float = setting(15.0, "Seconds between two looks.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = THREE_OF_THREE
    is_quick: bool = True
    is_basic: bool = False
    is_job_start: bool = True
    roles: frozenset[Role] = WORKERS
    _most: int = field(default=0, repr=False)
    _driver: str | None = field(default=None, repr=False)
    _kinds: dict[str, bool] = field(default_factory=dict, repr=False)
    _carried: set[str] = field(default_factory=set, repr=False)
    _unanswered: set[str] = field(default_factory=set, repr=False)
    _outages: Outages = field(default_factory=Outages, repr=False)
    _rises: Rises = field(default_factory=lambda: Rises(HOUR_S), repr=False)

    def run(self, ports: Ports) -> Result:
        """Look at every device."""
        if shares_devices(ports):
            return Result()
        host, now = ports.host, ports.host.monotonic()
        root = f"{ports.facts.sysfs}/class/infiniband"
        expected = int(ports.facts.expected.get("efa", 0))
        devices = [device for device in names(host, root) if self._is_efa(host, root, device)]
        self._most = max(self._most, len(devices))
        wanted = max(expected, self._most)
        if not wanted:
            return Result()
        findings: list[Finding] = []
        if len(devices) < wanted and ports.facts.uptime_s >= self.grace_s:
            text = f"{len(devices)} of {wanted} EFA devices are there"
            findings.append(fatal(NAME, "EfaMissing", text, action=Action.REBOOT, is_hard=True))
        for device in devices:
            findings += self._carrier(host, f"{root}/{device}", device, now)
            findings += self._counters(host, f"{root}/{device}", device, now)
        inventory = {"efa": str(len(devices))}
        if self._driver is None:
            self._driver = word(host, f"{ports.facts.sysfs}/module/efa/version") or ""
        if self._driver:
            inventory["efa_driver"] = self._driver
        return Result(tuple(findings), inventory=inventory)

    def _is_efa(self, host: Host, root: str, device: str) -> bool:
        if device not in self._kinds:
            self._kinds[device] = is_efa(host, f"{root}/{device}")
        return self._kinds[device]

    def _carrier(self, host: Host, base: str, device: str, now: float) -> list[Finding]:
        out = []
        for interface in names(host, f"{base}/device/net"):
            folder = f"{base}/device/net/{interface}"
            carries = carrier(host, folder)
            if carries:
                self._carried.add(interface)
                self._outages.up(interface)
            elif carries is None:
                self._carried.discard(interface)
                self._outages.up(interface)
            elif interface in self._carried:
                state = word(host, f"{folder}/operstate") or "unknown"
                text = f"{device}: its interface {interface} has no carrier (state {state})"
                is_short = self._outages.down_s(interface, now) < self.outage_s
                out.append((warn if is_short else fatal)(NAME, "EfaLinkDown", text, device=device))
        return out

    def _counters(self, host: Host, base: str, device: str, now: float) -> list[Finding]:
        out = []
        silent = number(host, f"{base}/hw_counters/no_completion_cmds")
        if self._rises.see((device, "no_completion_cmds"), silent, now):
            self._unanswered.add(device)
        if device in self._unanswered:
            text = f"{device} did not answer a command of its driver"
            out.append(fatal(NAME, "EfaNoCompletion", text, action=Action.REBOOT, device=device, is_hard=True))
        rates: Mapping[str, tuple[str, float, float, str]] = {
            "hw_counters/cmds_err": ("EfaCommandErrors", 60.0, self.commands_limit, "driver commands failed"),
            "ports/1/hw_counters/rx_drops": ("EfaDrops", 60.0, self.drops_per_s * 60, "packets were dropped"),
        }
        for counter, (code, window_s, limit, what) in rates.items():
            self._rises.see((device, counter), number(host, f"{base}/{counter}"), now)
            count = self._rises.within((device, counter), window_s, now)
            if count > limit:
                out.append(warn(NAME, code, f"{device}: {count} {what} within a minute", device=device))
        errors = {}
        for counter in _PEER:
            value = number(host, f"{base}/ports/1/hw_counters/{counter}")
            self._rises.see((device, counter), value, now)
            if count := self._rises.within((device, counter), 300.0, now):
                errors[counter] = count
        if sum(errors.values()) > self.peer_limit:
            what = ", ".join(f"{count} {counter}" for counter, count in errors.items())
            text = f"{device}: a peer does not answer as it should ({what} within five minutes)"
            # Held against the others of the job: this node is the one that noticed.
            out.append(warn(NAME, "EfaPeerErrors", text, device=f"{device} peer", peer=ANY_PEER))
        return out


def carrier(host: Host, interface: str) -> bool | None:
    """Say whether an interface has a carrier; None when it is switched off, which is a person's wish, or not there."""
    try:
        return host.read_text(f"{interface}/carrier", 16).strip() == "1"
    except OSError as error:
        # The kernel refuses the question for an interface that is administratively down.
        return None if error.errno == errno.EINVAL else False
