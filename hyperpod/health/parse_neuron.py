"""What the Neuron tools print: lines of ``neuron-monitor``, ``neuron-ls`` as JSON, statuses of the runtime. Pure.

Owns their formats. Says what was counted, not what it means: counters are totals, and only their increase between two
reports is a fact about now. A tool that failed is a value of its own (``problem``), never a fault of the hardware.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hyperpod.core.finding import Action, Finding, Severity, Whose

ECC_UNCORRECTED = frozenset({"mem_ecc_uncorrected", "sram_ecc_uncorrected"})
"""Counters whose increase is a hard fact."""

ECC_REPAIRABLE = frozenset({"mem_ecc_repairable_uncorrected"})
"""Repaired by a reset of the device."""

HARDWARE_ERRORS = frozenset({"hardware"})
"""Kinds of execution errors that accuse the machine; the others are the program's."""


@dataclass(frozen=True)
class NeuronReport:
    """One line of ``neuron-monitor``.

    Attributes:
        devices: Devices that the tool counts; None when the line does not say.
        cores_per_device: As it says; None when it does not.
        counters: Totals by device number, then by name (``mem_ecc_uncorrected``).
        errors: Execution errors of each runtime since its start, by process id, then by kind (``hardware``).
        problem: Why the tool could not tell; empty when it could. What could be read is in the rest.
    """

    devices: int | None = None
    cores_per_device: int | None = None
    counters: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    errors: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class NeuronDevice:
    """One device of ``neuron-ls``."""

    index: int
    bdf: str = ""
    cores: int | None = None
    connected_to: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class RuntimeStatus:
    """What a status of the Neuron runtime in a job's log means.

    Attributes:
        accuses: Whose part failed, in words.
        needs: What must also hold before the action is taken; empty when it stands alone.
    """

    name: str
    severity: Severity
    action: Action
    whose: Whose
    accuses: str
    needs: str = ""


RUNTIME_STATUSES: Mapping[int, RuntimeStatus] = {
    5: RuntimeStatus("NRT_TIMEOUT", Severity.FATAL, Action.REBOOT, Whose.NODE, "the device did not answer in time"),
    1200: RuntimeStatus(
        "NRT_EXEC_HW_ERR_COLLECTIVES",
        Severity.WARN,
        Action.NONE,
        Whose.NODE,
        "the node that reports it is the victim: suspect the others of the collective",
    ),
    1201: RuntimeStatus(
        "NRT_EXEC_HW_ERR_HBM_UE", Severity.FATAL, Action.REPLACE, Whose.NODE, "uncorrectable error of the memory (HBM)"
    ),
    1202: RuntimeStatus(
        "NRT_EXEC_HW_ERR_NC_UE", Severity.FATAL, Action.REPLACE, Whose.NODE, "uncorrectable error of a core"
    ),
    1203: RuntimeStatus(
        "NRT_EXEC_HW_ERR_DMA_ABORT",
        Severity.FATAL,
        Action.REPLACE,
        Whose.NODE,
        "a transfer was aborted",
        needs="unless the same job does it on a second node: then it is the program's",
    ),
    1204: RuntimeStatus(
        "NRT_EXEC_SW_NQ_OVERFLOW", Severity.WARN, Action.NONE, Whose.USER, "the program's queue ran over"
    ),
    1205: RuntimeStatus(
        "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE",
        Severity.FATAL,
        Action.REBOOT,
        Whose.NODE,
        "error of the memory (HBM) that a reset repairs",
    ),
    1206: RuntimeStatus(
        "NRT_NETWORK_PROXY_FAILURE", Severity.WARN, Action.NONE, Whose.NODE, "the network proxy failed: look at the net"
    ),
}
"""Statuses with a meaning for the machine. Others belong to the program."""

_NAMES = {status.name: number for number, status in RUNTIME_STATUSES.items()}
_STATUS = re.compile(
    r"\b(?:status(?:[ _]code)?|error[ _]code|err|code)\s*[=:]?\s*\(?(?P<status>\d{1,4})\b(?!\.\d)", re.IGNORECASE
)
_RUNTIME = re.compile(r"nrt|NRT|[Nn]euron|NEURON|\bNMGR:|\bTDRV:")
_NAME = re.compile(r"\bNRT_[A-Z_]+\b")
_NAMED_DEVICE = re.compile(r"\bn(?:euron_device|d) ?[=:]? ?(?P<nd>\d+)\b")
_MOST_STATUSES = 4
_LONGEST = 2000


def runtime_status(text: str) -> tuple[int, str] | None:
    """Return the runtime's status that a line of a log names, and the device (``nd3``, or empty); None when none."""
    if not _RUNTIME.search(text):
        return None
    names = [name for name in _NAME.findall(text) if name in _NAMES]
    status = _NAMES[names[0]] if names else None
    if status is None:
        found = _STATUS.search(text)
        status = int(found["status"]) if found else None
    if status is None or (status == 5 and not names and "execut" not in text.lower()):
        # Five is also many other things.
        return None
    device = _NAMED_DEVICE.search(text)
    return status, f"nd{device['nd']}" if device else ""


def output_findings(text: str, job_id: int) -> list[Finding]:
    """Return what the end of a job's output says of the machine, each status and device once: WARN, evidence only."""
    found: dict[tuple[int, str], Finding] = {}
    for line in text.splitlines():
        told = runtime_status(line[:_LONGEST])
        known = RUNTIME_STATUSES.get(told[0]) if told else None
        if told is None or known is None or told in found:
            continue
        status, device = told
        where = f" of {device}" if device else ""
        message = f"the output of job {job_id} names the Neuron runtime's status {status}{where}: {known.accuses}"
        found[told] = Finding(
            "neuron", f"Nrt{status}", Severity.WARN, message, device=device, whose=known.whose, job_id=job_id
        )
        if len(found) >= _MOST_STATUSES:
            break
    return list(found.values())


def parse_neuron_monitor(line: str) -> NeuronReport | None:
    """Read one line of ``neuron-monitor``; None when it is not one.

    Args:
        line: One JSON object.
    """
    data = _loaded(line)
    if not isinstance(data, dict):
        return None
    known = {"neuron_runtime_data", "system_data", "neuron_hardware_info"}
    if not known & data.keys():
        return None
    problems: list[str] = []
    hardware = _mapping(data.get("neuron_hardware_info"))
    problems += _problem(hardware)
    devices = _number(hardware.get("neuron_device_count"))
    if devices == 0:
        problems.append("neuron-monitor counts no device")
    cores = _number(hardware.get("neuroncore_per_device_count"))
    counters: dict[int, dict[str, int]] = {}
    system = _mapping(data.get("system_data"))
    for name in ("neuron_hw_counters", "neuron_device_counters"):
        block = _mapping(system.get(name))
        problems += _problem(block)
        for device in _list(block.get("neuron_devices")):
            index = _number(_mapping(device).get("neuron_device_index"))
            if index is not None:
                values = {key: _number(value) for key, value in device.items() if key != "neuron_device_index"}
                counters[index] = {key: value for key, value in values.items() if value is not None}
    errors: dict[int, dict[str, int]] = {}
    for runtime in _list(data.get("neuron_runtime_data")):
        runtime = _mapping(runtime)
        problems += _problem(runtime)
        stats = _mapping(_mapping(runtime.get("report")).get("execution_stats"))
        problems += _problem(stats)
        summary = {key: _number(value) for key, value in _mapping(stats.get("error_summary")).items()}
        pid = _number(runtime.get("pid"))
        errors[pid or 0] = {key: value for key, value in summary.items() if value is not None}
    return NeuronReport(devices, cores, counters, errors, "; ".join(dict.fromkeys(problems)))


def parse_neuron_ls(text: str) -> tuple[NeuronDevice, ...] | None:
    """Read ``neuron-ls -j`` (a list) or its later form (an object with a list of devices); None when it is neither."""
    data = _loaded(text)
    if isinstance(data, dict):
        lists = [data[key] for key in ("neuron_devices", "devices") if isinstance(data.get(key), list)]
        data = lists[0] if lists else None
    if not isinstance(data, list):
        return None
    found = []
    for item in data:
        item = _mapping(item)
        index = _number(item.get("neuron_device", item.get("neuron_device_index")))
        if index is None:
            return None
        connected = item.get("connected_to", item.get("connected_devices"))
        pids = (_number(_mapping(process).get("pid")) for process in _list(item.get("neuron_processes")))
        found.append(
            NeuronDevice(
                index,
                str(item.get("bdf", "")),
                _number(item.get("nc_count")),
                tuple(n for n in (_number(c) for c in _list(connected)) if n is not None),
                tuple(pid for pid in pids if pid is not None),
            )
        )
    return tuple(found)


def increases(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the counters that rose, with by how much. A decrease is a reset: counting begins anew, nothing rose."""
    return {name: value - before[name] for name, value in after.items() if name in before and value > before[name] >= 0}


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return int(value) if abs(value) < 1e18 else None
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18 else None


def _problem(block: Mapping[str, Any]) -> list[str]:
    error = block.get("error")
    return [error.strip()[:200]] if isinstance(error, str) and error.strip() else []
