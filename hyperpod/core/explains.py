"""Which findings can explain that a rank died, and by which exits: the table behind a second witness. Data only.

A first exit and a finding of its node convict the node together only when the one can be the cause of the other
(docs/decisions/0010-who-was-it.md). What is not listed explains nothing: figures that are merely odd, settings,
comparisons with other machines, what is corrected, slow, hot or full, and every code of a program's own error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

_SIGABRT, _SIGBUS, _SIGKILL = 6, 7, 9


class Exits(StrEnum):
    """What a cause does to a rank. The words are shown to people."""

    NONE = "none"
    ANY = "any exit"
    ERRORS = "an exit code, SIGABRT or SIGBUS"
    MEMORY = "SIGBUS or SIGKILL"
    KILL = "SIGKILL"

    def covers(self, signal: int | None) -> bool:
        """Say whether a rank may end so by this cause.

        Args:
            signal: What ended the rank; 0 for an exit code, None when no exit is known.
        """
        if self is Exits.ANY:
            return True
        return signal is not None and signal in _SIGNALS[self]


_SIGNALS: Mapping[Exits, frozenset[int]] = {
    Exits.NONE: frozenset(),
    # A link, a disk or a file system gives the program an error to die of; it neither kills nor corrupts.
    Exits.ERRORS: frozenset({0, _SIGABRT, _SIGBUS}),
    # The kernel sends SIGBUS to who touches bad memory, and SIGKILL to who cannot be told.
    Exits.MEMORY: frozenset({_SIGBUS, _SIGKILL}),
    Exits.KILL: frozenset({_SIGKILL}),
}

_ANY, _ERRORS, _MEMORY, _KILL = Exits.ANY, Exits.ERRORS, Exits.MEMORY, Exits.KILL

EXPLAINS: Mapping[str, Mapping[str, Exits]] = {
    "kernel_log": {
        "GpuStartFailed": _ANY,
        "MachineCheck": _ANY,
        "MemoryUncorrected": _MEMORY,
        "HardwareErrorFatal": _ANY,
        "HardwareErrorRecoverable": _MEMORY,
        "PcieFatal": _ANY,
        "PcieContained": _ANY,
        "FileSystemError": _ERRORS,
        "DiskError": _ERRORS,
        "RaidFailed": _ERRORS,
        "OutOfMemoryNode": _KILL,
        "HungTaskNvidia": _ANY,
        "SoftLockup": _ANY,
        "SoftLockupNetwork": _ERRORS,
        "HardLockup": _ANY,
        "KernelOops": _ANY,
        "KernelPanic": _ANY,
        "LustreBug": _ERRORS,
        "NetworkCardFailed": _ERRORS,
        "NetworkTimeout": _ERRORS,
        "CableUnplugged": _ERRORS,
        "LinkDown": _ERRORS,
        "LinkFlap": _ERRORS,
        "NeuronHardwareError": _ANY,
        "NeuronTimeout": _ANY,
    },
    "edac": {"MemoryUncorrected": _MEMORY},
    "gpu_count": {"GpuMissing": _ANY, "GpusMissing": _ANY},
    "gpu_fabric": {"FabricNotJoined": _ERRORS, "FabricStatus": _ERRORS, "FabricRoute": _ERRORS},
    "gpu_lost": {"GpuLost": _ANY, "GpuNeedsReset": _ANY, "GpuFails": _ANY, "LibraryHangs": _ANY},
    "gpu_memory": {"EccUncorrected": _ANY, "RemapFailed": _ANY, "SramErrors": _ANY},
    "gpu_nvlink": {"LinkDown": _ANY, "LinkErrors": _ANY},
    "gpu_recovery": {
        "GpuResetNeeded": _ANY,
        "NodeRebootNeeded": _ANY,
        "PeerDrainNeeded": _ANY,
        "DrainAndResetNeeded": _ANY,
        "ImexRecoveryNeeded": _ANY,
        "BusResetNeeded": _ANY,
        "SystemRebootNeeded": _ANY,
    },
    "gpu_services": {"FabricManagerDown": _ERRORS},
    "dcgm": {"DcgmFailure": _ANY},
    "neuron": {
        "NeuronDevicesMissing": _ANY,
        "NeuronMemoryUncorrected": _ANY,
        "NeuronMemoryRepairable": _ANY,
        "NeuronHardwareErrors": _ANY,
        "NeuronResetFails": _ANY,
    },
    "efa": {"EfaMissing": _ERRORS, "EfaLinkDown": _ERRORS, "EfaNoCompletion": _ERRORS, "EfaCommandErrors": _ERRORS},
    "infiniband": {"LinkDown": _ERRORS, "LinkFlaps": _ERRORS, "LinksMissing": _ERRORS, "LinkErrors": _ERRORS},
    "ethernet": {"EthernetDown": _ERRORS, "EthernetFlaps": _ERRORS},
    "nvme": {"NvmeDead": _ERRORS, "NvmeMissing": _ERRORS, "NvmeFails": _ERRORS},
    "raid": {"RaidLost": _ERRORS},
    "readonly_fs": {"ReadOnly": _ERRORS},
    "shared_fs": {"MountMissing": _ERRORS},
    "fstab": {"FstabNotMounted": _ERRORS},
    "fi_info": {"EfaNotOffered": _ERRORS},
}
"""By check and code. Where a code is told as a warning and as a fault, this holds for both."""

EXPLAINING_XIDS = frozenset(
    {
        # What the table of Xids puts down to the GPU with a reset, a reboot or a replacement.
        *(46, 48, 54, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158),
        *(167, 168, 169, 171, 172, 173, 175),
        # A contained memory error ends its program; NVLink errors do, also where they are not fatal to the link.
        *(74, 94, 144, 145, 146, 149, 150),
        # The recovery action that the GPU asks for: the same as the check gpu_recovery reads.
        154,
    }
)
"""Xid numbers that explain any exit; the others are the program's own, information, or say nothing of a death."""

_XID = re.compile(r"Xid(\d+)")


def explains(check: str, code: str) -> Exits:
    """Return which exits of a rank a finding can be the cause of; what is not known explains none."""
    xid = _XID.fullmatch(code)
    if check == "kernel_log" and xid is not None:
        return Exits.ANY if int(xid[1]) in EXPLAINING_XIDS else Exits.NONE
    return EXPLAINS.get(check, {}).get(code, Exits.NONE)
