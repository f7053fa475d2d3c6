"""NVMe drives are there, answer, and do not report that they fail."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.sysfs import names, shares_devices, word
from hyperpod.ports.host import Host

NAME = "nvme"
_CONTROLLER = re.compile(r"nvme\d+")

_BAD = {2: "its reliability is degraded", 3: "it has become read-only"}
_WEAK = {0: "its spare blocks run out", 1: "it is too hot", 4: "its backup of volatile memory failed"}
_SILENT = frozenset({errno.ENOTTY, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL})
"""Answers of drives and virtual drives that have no health log, and of nodes that may not ask."""


@dataclass
class NvmeCheck:
    """Reads each controller's state, and now and then its health log."""

    about: ClassVar[About] = About(
        title="NVMe drives are there, answer, and do not report that they fail",
        reads="/sys/class/nvme/*/{state,model,transport}, and the drive's health log (SMART) by an ioctl "
        "every health_every_s.",
        means="The driver has given up a drive that is dead. Resetting is what it does about a slow answer and is "
        "told by the kernel log. Virtual drives without a health log are no fault. Volumes of the network (Elastic "
        "Block Store, NVMe over fabrics) come and go by a person's wish and are not counted. How many local drives "
        "there are is compared within the group too (the check group).",
        does="A dead drive, a missing one, and one that reports degraded reliability or read-only: FATAL, REPLACE. "
        "Heat, spare blocks and wear are WARN.",
        codes={
            "NvmeDead": "The driver has given a drive up.",
            "NvmeMissing": "There are fewer local drives than the instance type has.",
            "NvmeFails": "A drive reports that its reliability is degraded, or that it is read-only.",
            "NvmeWeak": "A drive reports heat or few spare blocks.",
            "NvmeWorn": "A drive has used up its rated life.",
            "NvmeUnreadable": "A drive does not answer when asked for its health.",
        },
        source="NVM Express Base Specification, SMART / Health Information; the kernel's nvme driver for states.",
    )
    health_every_s: float = setting(
        600.0, "Seconds between two looks at a drive's health log; each is a command to it."
    )
    grace_s: float = setting(120.0, "Seconds after the boot before missing drives count.")
    interval_s: float = setting(60.0, "Seconds between two looks at the states.")
    deadline_s: float = 15.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE
    _next_health: float = field(default=0.0, repr=False)
    _health: tuple[Finding, ...] = field(default=(), repr=False)

    def run(self, ports: Ports) -> Result:
        """Look at the states, and at the health logs when it is time."""
        if shares_devices(ports):
            return Result()
        host, now = ports.host, ports.host.monotonic()
        root = f"{ports.facts.sysfs}/class/nvme"
        drives = [name for name in names(host, root) if _CONTROLLER.fullmatch(name)]
        expected = int(ports.facts.expected.get("nvme_disks", 0))
        findings: list[Finding] = []
        alive = []
        for drive in drives:
            state = word(host, f"{root}/{drive}/state")
            if state == "dead":
                text = f"{drive} is dead: its driver has given it up"
                findings.append(fatal(NAME, "NvmeDead", text, action=Action.REPLACE, device=drive))
            else:
                alive.append(drive)
        local = [drive for drive in drives if _is_local(host, f"{root}/{drive}")]
        if len(local) < expected and ports.facts.uptime_s >= self.grace_s:
            text = f"{len(local)} of {expected} local NVMe drives are there"
            findings.append(fatal(NAME, "NvmeMissing", text, action=Action.REPLACE))
        if alive and now >= self._next_health:
            self._next_health = now + self.health_every_s
            self._health = tuple(finding for drive in alive for finding in self._ask(ports, drive))
        findings += [finding for finding in self._health if finding.device in alive]
        # Also when there is none: a node that has lost its only drive differs from its group.
        return Result(tuple(findings), inventory={"nvme_disks": str(len(local))})

    def _ask(self, ports: Ports, drive: str) -> list[Finding]:
        try:
            health = ports.devices.nvme_health(f"/dev/{drive}")
        except OSError as error:
            if error.errno in _SILENT:
                return []
            return [unknown(NAME, "NvmeUnreadable", f"{drive}: {error.strerror or error}", device=drive)]
        out = []
        bits = {bit for bit in range(8) if health.warning >> bit & 1}
        bad = [_BAD[bit] for bit in sorted(bits & _BAD.keys())]
        if bad:
            text = f"{drive} reports that {' and '.join(bad)}"
            out.append(fatal(NAME, "NvmeFails", text, action=Action.REPLACE, device=drive))
        weak = [_WEAK[bit] for bit in sorted(bits & _WEAK.keys())]
        if weak:
            out.append(warn(NAME, "NvmeWeak", f"{drive} reports that {' and '.join(weak)}", device=drive))
        if health.used_percent >= 100:
            text = f"{drive} has used {health.used_percent} % of its rated life"
            out.append(warn(NAME, "NvmeWorn", text, device=drive))
        return out


def _is_local(host: Host, path: str) -> bool:
    """Say whether a drive is in the machine; older kernels do not tell the transport."""
    return "Elastic Block" not in (word(host, f"{path}/model") or "") and word(host, f"{path}/transport") in (
        None,
        "pcie",
    )
