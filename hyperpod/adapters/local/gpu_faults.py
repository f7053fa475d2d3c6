"""Test GPUs on local nodes: the words for what may be wrong with one, as lines of the test library's state.

The library (``doubles/nvml.c``) stands in NVML's place on the node, so that everything above it is the real thing:
nvidia-ml-py, the agent, its checks, the controller. Pure; ``faults`` carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hyperpod.adapters.local.machine_faults import is_number
from hyperpod.errors import UsageError

SOURCE = "/opt/hyperpod/lib/hyperpod/adapters/local/doubles/nvml.c"
LIBRARY = "/usr/local/lib/libnvidia-ml.so.1"
MACHINE_STATE = "/usr/local/share/hyperpod-test/nvml.state"
"""What the machine has."""
FAULT_STATE = "/run/hyperpod-test/nvml.state"
"""What is wrong with it, until the next boot."""

MOST_GPUS = 64

WORDS: Mapping[str, tuple[str, ...]] = {
    "lost": ("gpuN.error=15",),
    "gone": ("missing=1",),
    "fails": ("gpuN.error.Temperature=999",),
    "hang": ("gpuN.hang=1",),
    "reset": ("gpuN.recovery_action=1",),
    "reboot": ("gpuN.recovery_action=2",),
    "drain": ("gpuN.recovery_action=3",),
    "memory": ("gpuN.remap_failed=1",),
    "pending": ("gpuN.remap_pending=1",),
    "nvlink": ("gpuN.links_active=17",),
    "width": ("gpuN.pcie_width=4",),
    "hot": ("gpuN.temperature=95", "gpuN.margin=-6"),
    "brake": ("gpuN.slowdowns=0x88", "gpuN.utilisation=99"),
    "cap": ("gpuN.slowdowns=0x04", "gpuN.utilisation=99"),
    "fabric": ("gpuN.fabric_status=23",),
    "mismatch": ("init=18", "count_error=999"),
}
"""What ``hyperpod inject gpu-fault`` understands; ``pending`` and ``cap`` are look-alikes, which drain nobody."""


def machine_state(count: str) -> str:
    """Return the state of a machine with so many healthy GPUs.

    Raises:
        UsageError: if that is no number of GPUs.
    """
    if not is_number(count) or not 1 <= int(count) <= MOST_GPUS:
        raise UsageError(f"a node has 1 to {MOST_GPUS} test GPUs, got {count!r}")
    return f"count={count}\n"


def fault_lines(text: str) -> str:
    """Return the lines for a fault: ``WORD``, ``WORD:GPU``, or ``KEY=VALUE`` as the library knows it.

    Raises:
        UsageError: if it is none of these.
    """
    if re.fullmatch(r"[\w.]+=[\w. ,:-]*", text):
        return f"{text}\n"
    word, _, index = text.partition(":")
    if word not in WORDS or not re.fullmatch(r"[0-9]{0,3}", index) or int(index or 0) >= MOST_GPUS:
        hint = f"WORD[:GPU] with one of {', '.join(WORDS)}, or KEY=VALUE"
        raise UsageError(f"unknown fault of a GPU {text!r}", hint=hint)
    return "".join(f"{line.replace('gpuN', f'gpu{int(index or 0)}')}\n" for line in WORDS[word])
