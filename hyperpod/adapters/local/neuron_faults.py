"""Test Neuron devices on local nodes: the files of a device tree, and the words for what may be wrong with a device.

Two sources speak, as on a real machine: counters of the driver in the node's own device tree, and ``neuron-monitor``
and ``neuron-ls``, in whose place ``doubles/`` puts programs with the same output. Everything above them is real. Pure;
``faults`` carries it out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hyperpod.adapters.local.machine_faults import SYSFS, is_number
from hyperpod.errors import UsageError

TOOLS = ("neuron-monitor", "neuron-ls")
SOURCES = "/opt/hyperpod/lib/hyperpod/adapters/local/doubles"
PROGRAMS = "/usr/local/bin"
MACHINE_STATE = "/usr/local/share/hyperpod-test/neuron.json"
"""What the machine has."""
FAULT_STATE = "/run/hyperpod-test/neuron.json"
"""What the tools say instead, until the next boot."""
TREE = "/etc/tmpfiles.d/hyperpod-test-neuron.conf"
"""Makes the device tree, also after a boot."""
ROOT = "devices/virtual/neuron_device"

MOST_DEVICES = 64
CORES = 2
_ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected", "sram_ecc_uncorrected")


@dataclass(frozen=True)
class NeuronFault:
    """What is changed: files of the device below its folder, keys of the tools' state, or the whole device goes."""

    values: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, object] = field(default_factory=dict)
    is_gone: bool = False


WORDS: Mapping[str, NeuronFault] = {
    "uncorrected": NeuronFault({"stats/hardware/mem_ecc_uncorrected/total": "1"}),
    "sram": NeuronFault({"stats/hardware/sram_ecc_uncorrected/total": "1"}),
    "repairable": NeuronFault({"stats/hardware/mem_ecc_repairable_uncorrected/total": "1"}),
    "corrected": NeuronFault({"stats/hardware/mem_ecc_corrected/total": "1000"}),
    "hardware": NeuronFault({"neuron_core0/stats/status/hw_error/total": "3"}),
    "reset": NeuronFault({"neuron_core0/stats/other_info/reset_fail_count/total": "3"}),
    "gone": NeuronFault(is_gone=True),
    "tool": NeuronFault(state={"error": "neuron-monitor: cannot open the device"}),
    "silent": NeuronFault(state={"silent": True}),
    "program": NeuronFault(state={"errors": {"numerical": 5, "model": 2}}),
}
"""What ``neuron-fault`` understands; ``corrected`` and ``program`` are look-alikes, ``tool`` and ``silent`` say nothing
of the hardware: none of them drains a node."""


def machine_state(count: str) -> str:
    """Return the tools' state for a machine with so many healthy devices.

    Raises:
        UsageError: if that is no number of devices.
    """
    return json.dumps({"devices": _devices(count), "cores": CORES, "period_s": 5})


def tree(count: str) -> str:
    """Return the lines for ``systemd-tmpfiles`` that make the device tree of such a machine."""
    lines = []
    for device in range(_devices(count)):
        base = f"{SYSFS}/{ROOT}/neuron{device}"
        files = {"core_count": str(CORES)} | {f"stats/hardware/{name}/total": "0" for name in _ECC}
        for core in range(CORES):
            files[f"neuron_core{core}/stats/status/hw_error/total"] = "0"
            files[f"neuron_core{core}/stats/other_info/reset_fail_count/total"] = "0"
        folders = {f"{base}/{path}".rpartition("/")[0] for path in files}
        lines += [f"d {folder} 0755 root root -" for folder in sorted(folders)]
        lines += [f"f {base}/{path} 0644 root root - {value}" for path, value in files.items()]
    return "\n".join(lines) + "\n"


def fault_of(text: str) -> tuple[int, NeuronFault]:
    """Return the device and what is wrong with it: ``WORD`` or ``WORD:DEVICE``.

    Raises:
        UsageError: if it is none.
    """
    word, _, index = text.partition(":")
    if word not in WORDS or not re.fullmatch(r"[0-9]{0,3}", index) or int(index or 0) >= MOST_DEVICES:
        hint = f"WORD[:DEVICE] with one of {', '.join(WORDS)}"
        raise UsageError(f"unknown fault of a Neuron device {text!r}", hint=hint)
    return int(index or 0), WORDS[word]


def _devices(count: str) -> int:
    if not is_number(count) or not 1 <= int(count) <= MOST_DEVICES:
        raise UsageError(f"a node has 1 to {MOST_DEVICES} test Neuron devices, got {count!r}")
    return int(count)
