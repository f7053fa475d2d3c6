"""Trainium and Inferentia devices are there and count no new hardware errors.

Two sources that know nothing of each other: the driver's counters in sysfs, and the stream of ``neuron-monitor``,
which runs beside the agent for as long as there is a device. Each kind of error is one finding per device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import AT_ONCE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.parse_neuron import ECC_REPAIRABLE, ECC_UNCORRECTED, HARDWARE_ERRORS, parse_neuron_monitor
from hyperpod.health.sysfs import Rises, names, number, word
from hyperpod.ports.host import Host

NAME = "neuron"
HOUR_S = 3600.0

_DEVICE = re.compile(r"neuron(\d+)")
_CORE = re.compile(r"neuron_core(\d+)")
_ECC = (*sorted(ECC_UNCORRECTED), *sorted(ECC_REPAIRABLE))

# Where a device's error counters are. Driver 2.31 moved nodes; its guide says that old and new places never coexist.
_ECC_FOLDERS = ("stats/hardware", "hardware/ecc", "hardware", "stats/ecc")
_CORE_FOLDERS = ("stats/status", "status")
_RESET_FOLDERS = ("stats/other_info", "other_info")

_SETTINGS_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "neuron_monitor.json")
"""Tells neuron-monitor to report only what is judged here, every 30 s."""


@dataclass
class NeuronCheck:
    """Counts devices and errors."""

    about: ClassVar[About] = About(
        title="Trainium and Inferentia devices are there and report no new hardware errors",
        reads="/sys/devices/virtual/neuron_device/neuron*/ (counters are folders with a file total) and the lines of "
        "neuron-monitor, which runs beside the agent where there is a device. When a job fails, on its first node, the "
        "last 64 KiB of its output, read with its user's rights.",
        means="Only an increase counts: totals are of the whole boot, and a decrease is a reset by whoever wrote to "
        "the file. An error text of the tool, no line for three minutes, or a count of 0 is UNKNOWN. Numerical, model "
        "and generic errors are the program's. A line NEURON_HW_ERR in the kernel log is the runtime's word, which any "
        "process with the device may write: it costs a machine only together with a counter, or when it comes again "
        "after a reboot.",
        does="Uncorrectable memory errors REPLACE at once; repairable ones, missing devices and repeated execution or "
        "reset errors REBOOT.",
        codes={
            "NeuronDevicesMissing": "There are fewer devices than the instance type has, or than there were.",
            "NeuronMemoryUncorrected": "An uncorrectable error of HBM or on-chip memory was counted.",
            "NeuronMemoryRepairable": "An error of HBM was counted that a reset repairs.",
            "NeuronHardwareErrors": "Executions ended with a hardware error: once WARN, again within an hour REBOOT.",
            "NeuronResetFails": "A core's reset failed: once WARN, again within an hour REBOOT.",
            "NeuronToolFailed": "neuron-monitor does not run, says that it could not look, or is silent.",
            "Nrt<N>": "The end of a failed job's output names this status of the runtime (WARN): users can write it, "
            "so it is a hint who ended the job and drains nobody.",
            "NeuronCountersMissing": "The driver's counters are not where this version knows them.",
        },
        source="Neuron documentation (sysfs, neuron-monitor, driver 2.24 to 2.31); rates are our judgement.",
    )
    monitors: tuple[str, ...] = setting(
        ("/opt/aws/neuron/bin/neuron-monitor", "/usr/local/bin/neuron-monitor", "/usr/bin/neuron-monitor"),
        "Where neuron-monitor may be; the first that exists is run. Empty: it is not used.",
    )
    silent_s: float = setting(180.0, "Seconds without a line from which neuron-monitor counts as silent; six periods.")
    errors_limit: int = setting(2, "Hardware errors of executions within an hour that make the node be rebooted.")
    grace_s: float = setting(120.0, "Seconds after the boot before missing devices count; the driver comes up late.")
    interval_s: float = setting(30.0, "Seconds between two looks; the period of neuron-monitor.")
    deadline_s: float = 5.0
    name: str = NAME
    damping: Damping = AT_ONCE
    is_quick: bool = True
    is_basic: bool = False
    is_job_start: bool = True
    roles: frozenset[Role] = WORKERS
    _most: int = field(default=0, repr=False)
    _driver: str | None = field(default=None, repr=False)
    _rises: Rises = field(default_factory=lambda: Rises(HOUR_S), repr=False)
    _proved: dict[tuple[str, str], Finding] = field(default_factory=dict, repr=False)
    _next_look: float = field(default=0.0, repr=False)

    def run(self, ports: Ports) -> Result:
        """Look at both sources."""
        host, now = ports.host, ports.host.monotonic()
        root = f"{ports.facts.sysfs}/devices/virtual/neuron_device"
        expected = int(ports.facts.expected.get("neuron_devices", 0))
        if now < self._next_look:
            return Result()
        devices = sorted(int(m[1]) for m in map(_DEVICE.fullmatch, names(host, root)) if m)
        if not devices and not expected and not self._most:
            # Machines do not grow devices; a driver that is loaded later is seen some minutes later.
            self._next_look = now + 300.0
            return Result()
        self._most = max(self._most, len(devices))
        findings = self._missing(ports, len(devices), expected)
        if devices:
            findings += self._counters(host, root, devices, now)
            findings += self._stream(ports, len(devices), now)
        inventory = {"neuron_devices": str(len(devices))}
        cores = [number(host, f"{root}/neuron{index}/core_count") for index in devices]
        if cores and None not in cores:
            inventory["neuron_cores"] = str(sum(count or 0 for count in cores))
        if self._driver is None and devices:
            self._driver = word(host, f"{ports.facts.sysfs}/module/neuron/version") or ""
        if self._driver:
            inventory["neuron_driver"] = self._driver
        return Result((*findings, *self._proved.values()), inventory=inventory)

    def _missing(self, ports: Ports, found: int, expected: int) -> list[Finding]:
        wanted = max(expected, self._most)
        if found >= wanted or ports.facts.uptime_s < self.grace_s:
            return []
        text = f"{found} of {wanted} Neuron devices are there"
        return [fatal(NAME, "NeuronDevicesMissing", text, action=Action.REBOOT, is_hard=True)]

    def _counters(self, host: Host, root: str, devices: Iterable[int], now: float) -> list[Finding]:
        found_any = False
        for index in devices:
            device, base = f"nd{index}", f"{root}/neuron{index}"
            for kind in _ECC:
                value = _counter(host, base, _ECC_FOLDERS, kind)
                found_any = found_any or value is not None
                if self._rises.see((device, "sysfs", kind), value, now):
                    self._prove_ecc(device, kind)
            for core in (m[1] for m in map(_CORE.fullmatch, names(host, base)) if m):
                where = f"{base}/neuron_core{core}"
                errors = _counter(host, where, _CORE_FOLDERS, "hw_error")
                self._count(device, "NeuronHardwareErrors", ("core", core), errors, now)
                fails = _counter(host, where, _RESET_FOLDERS, "reset_fail_count")
                self._count(device, "NeuronResetFails", ("core", core), fails, now)
            self._judge(device, now)
        if found_any:
            return []
        version = word(host, f"{root.partition('/devices/')[0]}/module/neuron/version") or "of unknown version"
        text = f"the Neuron driver {version} has no error counters where they are known to be"
        return [unknown(NAME, "NeuronCountersMissing", text)]

    def _count(self, device: str, code: str, part: tuple[str, ...], value: int | None, now: float) -> None:
        self._rises.count((device, code), self._rises.see((device, code, *part), value, now), now)

    def _stream(self, ports: Ports, found: int, now: float) -> list[Finding]:
        monitor = next((path for path in self.monitors if _is_program(ports.host, path)), None)
        if monitor is None:
            return []
        told = ports.streams.read((monitor, "-c", _SETTINGS_FILE))
        problem = ""
        for line in told.lines:
            report = parse_neuron_monitor(line)
            if report is None:
                problem = "neuron-monitor printed something that is no report"
                continue
            problem = report.problem
            for index, counters in report.counters.items():
                for kind in _ECC:
                    if self._rises.see((f"nd{index}", "monitor", kind), counters.get(kind), now):
                        self._prove_ecc(f"nd{index}", kind)
            # The tool counts these anew for each period.
            amount = sum(errors.get(kind, 0) for errors in report.errors.values() for kind in HARDWARE_ERRORS)
            self._rises.count(("", "NeuronHardwareErrors"), amount, now)
            if not problem and report.devices is not None and report.devices < found:
                problem = f"neuron-monitor counts {report.devices} devices, the driver {found}"
        self._judge("", now)
        if not problem and told.age_s is not None and told.age_s > self.silent_s:
            problem = f"neuron-monitor is silent for {told.age_s:.0f} s"
        if not problem and told.age_s is None and told.problem:
            problem = f"neuron-monitor: {told.problem}"
        return [unknown(NAME, "NeuronToolFailed", problem[:200])] if problem else []

    def _prove_ecc(self, device: str, kind: str) -> None:
        """An uncorrectable error has happened: that stays true until the machine or the boot is another."""
        if kind in ECC_REPAIRABLE:
            text = f"{device} counts a memory error that a reset repairs ({kind})"
            found = fatal(NAME, "NeuronMemoryRepairable", text, action=Action.REBOOT, device=device, is_hard=True)
        else:
            text = f"{device} counts an uncorrectable memory error ({kind})"
            found = fatal(NAME, "NeuronMemoryUncorrected", text, action=Action.REPLACE, device=device, is_hard=True)
        self._proved.setdefault((found.code, device), found)

    def _judge(self, device: str, now: float) -> None:
        for code, what in (
            ("NeuronHardwareErrors", "executions ended with a hardware error"),
            ("NeuronResetFails", "resets of a core failed"),
        ):
            times = self._rises.within((device, code), HOUR_S, now)
            key = (code, device)
            if times >= self.errors_limit:
                text = f"{times} {what} on {device or 'this node'} within an hour"
                self._proved[key] = fatal(NAME, code, text, action=Action.REBOOT, device=device, is_hard=True)
            elif times:
                self._proved[key] = warn(NAME, code, f"{times} {what} on {device or 'this node'}", device=device)
            elif key in self._proved and self._proved[key].action is Action.NONE:
                del self._proved[key]


def _counter(host: Host, base: str, folders: Iterable[str], kind: str) -> int | None:
    """Return a counter's total: a folder with a file ``total``, or, for a few, a plain file."""
    for folder in folders:
        for path in (f"{base}/{folder}/{kind}/total", f"{base}/{folder}/{kind}"):
            value = number(host, path)
            if value is not None:
                return value
    return None


def _is_program(host: Host, path: str) -> bool:
    try:
        return host.file_state(path).is_executable
    except OSError:
        return False
