"""The table of NVIDIA XID codes: what the driver's number means and what it asks for. Data only.

Source: NVIDIA's Xid catalogue (GPU deployment and management documentation) and the judgement recorded in
docs/guides/health-checks.md. Codes that the line itself decides (74, 144-150, 154) are handled in
``health.kernel``; their rows here are what holds when the line is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod.core.finding import Action, Severity, Whose


@dataclass(frozen=True)
class Xid:
    """What one code means."""

    meaning: str
    severity: Severity
    action: Action = Action.NONE
    whose: Whose = Whose.NODE
    unless: str = ""


def _fatal(action: Action, **codes: str) -> dict[int, Xid]:
    return {int(code[1:]): Xid(text, Severity.FATAL, action) for code, text in codes.items()}


def _warn(**codes: str) -> dict[int, Xid]:
    return {int(code[1:]): Xid(text, Severity.WARN) for code, text in codes.items()}


def _application(meaning: str, *codes: int) -> dict[int, Xid]:
    return {code: Xid(meaning, Severity.WARN, Action.NONE, Whose.USER) for code in codes}


def _information(*codes: int) -> dict[int, Xid]:
    return {code: Xid("information of the driver", Severity.OK) for code in codes}


_SAME_UNIT = "the same unit under a second user or job within 24 h makes the GPU a suspect"

XIDS: dict[int, Xid] = {
    **_fatal(
        Action.REBOOT,
        x79="GPU has fallen off the bus",
        x48="double-bit ECC error",
        x171="uncorrectable DRAM error",
        x172="uncorrectable SRAM error",
        x95="uncontained memory error",
        x140="unrecovered ECC error",
        x46="GPU stopped processing",
        x62="micro-controller halt",
        x109="context switch timeout",
        x110="security fault",
        x119="GSP RPC timeout",
        x120="GSP error",
        x136="link training failed",
        x143="GPU initialisation error",
        x151="key rotation error",
        x155="NVLink software-defined error",
        x156="resource retirement event",
        x158="GPU fatal timeout",
        x167="PCIe fatal timeout",
        x168="errors in protected memory",
        x169="GSP microcode halt",
        x173="chip-to-chip fatal link error",
        x175="reset required",
        x144="NVLink SAW error",
        x145="NVLink RLW error",
        x146="NVLink TLW error",
        x149="NVLink NETIR error",
        x150="NVLink MSE error",
    ),
    **_fatal(Action.REPLACE, x64="row-remap or page-retirement failure", x54="auxiliary power is not connected"),
    **_warn(
        x74="NVLink error",
        x154="GPU recovery action changed",
        x147="NVLink TREX error",
        x148="NVLink NVLPW control error",
        x94="contained memory error: the job must restart",
        x63="row-remap or page-retirement event: reset the GPU when it is idle",
        x92="high rate of single-bit ECC errors",
        x78="vGPU start error",
        x142="vGPU information",
        x164="channel repair event",
        x165="channel repair pending",
        x166="channel repair failed",
        x170="interrupt error",
        x176="newer code",
    ),
    **_application("preemptive removal, follows other errors", 45),
    **_application(
        "application, engine, copy-engine or decoder error",
        *(8, 11, 25, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89),
        *range(96, 106),
        *range(126, 136),
        139,
        174,
    ),
    159: Xid("CHI non-data error", Severity.WARN, unless="a reboot when unified memory (UVM) is in use"),
    157: Xid(
        "row-remap event that could not be recorded",
        Severity.WARN,
        unless="a replacement when NVML reports a remapping failure",
    ),
    13: Xid("graphics engine exception", Severity.WARN, Action.NONE, Whose.USER, _SAME_UNIT),
    31: Xid("memory page fault of the application", Severity.WARN, Action.NONE, Whose.USER, _SAME_UNIT),
    **_information(37, 38, 43, 44, 66, 67, 93, 106, 107, 121, 137, 141, 152, 153, 160, 161, 162, 163),
}
"""Every code that is known. Other numbers are WARN and recorded."""

RECOVERY_ACTIONS: dict[int, tuple[str, Severity, Action]] = {
    0: ("None", Severity.OK, Action.NONE),
    1: ("GPU Reset", Severity.FATAL, Action.REBOOT),
    2: ("Node Reboot", Severity.FATAL, Action.REBOOT),
    3: ("Drain P2P", Severity.FATAL, Action.DRAIN),
    4: ("Drain and Reset", Severity.FATAL, Action.REBOOT),
    5: ("Recover IMEX Domain", Severity.FATAL, Action.DRAIN),
    6: ("Bus Reset", Severity.FATAL, Action.REBOOT),
    7: ("System Reboot", Severity.FATAL, Action.REBOOT),
}
"""Values of Xid 154 and of NVML's recovery action (6 and 7 from nvidia-ml-py 13.615): name, severity, action."""

NVLINK5_CODES = frozenset({144, 145, 146, 149, 150})
"""Codes for which the line's own word Fatal or Nonfatal decides; 147 and 148 never drain."""

PEER_SUBCODES = frozenset({21, *range(32, 38)})
"""Sub-codes (bits 20-25 of the first hex word) of 144-150 that accuse the GPU at the link's other end."""

NVLINK74_ECC = frozenset({4, 5})
NVLINK74_HARDWARE = frozenset({8, 9, 12, 16, 17, 24, 28})
NVLINK74_SIGNAL = frozenset({21, 22})
NVLINK74_SYMPATHETIC = frozenset({1, 20})
NVLINK74_IGNORED = frozenset({0, 23, 30})
"""Bits of the first register of Xid 74 on parts before the fifth NVLink generation."""
