"""libfabric offers the EFA devices that the machine has. Asked once after the agent's start, not by the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action
from hyperpod.core.node import Role
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.links import is_efa
from hyperpod.health.sysfs import names, shares_devices
from hyperpod.ports.host import Host

NAME = "fi_info"

_VENDORS = "/opt/amazon/"
"""Where the vendor installs; its libfabric has the provider, that of a distribution may be built without."""

_NO_DATA = 61
_CANNOT_START = 127
_HANGING_S = 600.0


@dataclass
class FiInfoCheck:
    """Runs ``fi_info -p efa`` until it has answered well."""

    about: ClassVar[About] = About(
        title="libfabric offers the EFA devices to programs",
        reads="fi_info -p efa, once after the agent's start and again when devices have come or gone; on machines with "
        "EFA devices in /sys/class/infiniband only.",
        means="Without the provider NCCL and MPI fall back to TCP, or end at their start, although all devices are "
        "there. A program that is missing, cannot be loaded or does not answer says nothing of the node: containers "
        "bring their own libfabric.",
        does="Asked again every interval_s while it fails; two tries of three are FATAL, drain. Of another "
        "installation than the vendor's it is WARN: it may be built without the provider. Nothing is started once it "
        "has answered well; hyperpod checks run fi_info asks anew.",
        codes={
            "EfaNotOffered": "There are EFA devices, and libfabric finds none that it can use.",
            "FiInfoMissing": "There are EFA devices, and no fi_info that can be started (UNKNOWN).",
            "FiInfoSilent": "fi_info failed for another reason, or did not answer (UNKNOWN).",
        },
        source="AWS's guide and libfabric's own test scripts ask it to see whether EFA works; fi_info(1), fi_efa(7).",
    )
    programs: tuple[str, ...] = setting(
        ("/opt/amazon/efa/bin/fi_info", "/usr/bin/fi_info"), "Where fi_info may be; the first that is there is asked."
    )
    answer_s: float = setting(10.0, "Seconds that it may take; with 32 devices it takes about one.")
    interval_s: float = setting(
        120.0, "Seconds between two looks whether the devices have changed, and between two tries while it fails."
    )
    deadline_s: float = 15.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = WORKERS
    _passed: Sequence[str] = field(default=(), repr=False)
    _hanging: Result | None = field(default=None, repr=False)
    _next_try: float = field(default=0.0, repr=False)

    def run(self, ports: Ports) -> Result:
        """Ask, unless it has answered well for these devices."""
        host = ports.host
        root = f"{ports.facts.sysfs}/class/infiniband"
        devices = () if shares_devices(ports) else names(host, root)
        if not devices or devices == self._passed:
            return Result()
        efa = [device for device in devices if is_efa(host, f"{root}/{device}")]
        result = self._ask(host, len(efa)) if efa else Result()
        if not result.findings:
            self._passed = devices
        return result

    def _ask(self, host: Host, count: int) -> Result:
        program = next((path for path in self.programs if _is_there(host, path)), None)
        if program is None:
            text = f"{count} EFA devices are there, and no fi_info to ask whether libfabric can use them"
            return Result((unknown(NAME, "FiInfoMissing", text),))
        if self._hanging is not None and host.monotonic() < self._next_try:
            # It may hang in the kernel: no heap of processes is made.
            return self._hanging
        self._hanging = None
        try:
            said = host.run([program, "-p", "efa"], self.answer_s)
        except CommandTimeout:
            self._next_try = host.monotonic() + _HANGING_S
            self._hanging = Result((unknown(NAME, "FiInfoSilent", f"{program} -p efa does not answer"),))
            return self._hanging
        except CommandError as error:
            if error.code == _CANNOT_START:
                return Result((unknown(NAME, "FiInfoMissing", f"{program} cannot be started: {error}"),))
            if error.code != _NO_DATA and "fi_getinfo: " not in error.stderr_tail:
                return Result((unknown(NAME, "FiInfoSilent", f"{program} -p efa failed: {error}"),))
            text = f"libfabric offers none of {count} EFA devices: {error}"
            if not program.startswith(_VENDORS):
                return Result((warn(NAME, "EfaNotOffered", text),))
            return Result((fatal(NAME, "EfaNotOffered", text, action=Action.DRAIN),))
        if "provider: efa" in said:
            return Result()
        return Result((unknown(NAME, "FiInfoSilent", f"{program} -p efa says nothing that is understood"),))


def _is_there(host: Host, path: str) -> bool:
    try:
        return bool(host.read_bytes(path, 4))
    except OSError:
        return False
