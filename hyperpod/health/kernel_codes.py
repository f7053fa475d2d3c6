"""The codes that the kernel log's check can report, one sentence each. Data only, for people.

A code that ends in ``<N>`` stands for all with a number there. A test compares this list with the rules.
"""

from __future__ import annotations

from collections.abc import Mapping

KERNEL_CODES: Mapping[str, str] = {
    "Xid<N>": "The NVIDIA driver reports an error of a GPU; the table below says what each number means.",
    "SXid<N>": "The NVIDIA driver reports an error of an NVSwitch; FATAL only where the line says Fatal.",
    "GpuStartFailed": "The driver could not start or take a GPU.",
    "DriverMismatch": "A program uses another version of the driver's library (WARN: often one old container).",
    "MachineCheck": "An uncorrected machine check of a processor.",
    "MachineCheckCorrected": "More than a hundred corrected machine checks within an hour (WARN).",
    "MemoryUncorrected": "EDAC reports a memory error that could not be corrected.",
    "MemoryCorrected": "More than a hundred corrected memory errors of one place within an hour (WARN).",
    "HardwareErrorFatal": "The firmware (GHES) reports a fatal error.",
    "HardwareErrorRecoverable": "The firmware reports an error that the system recovered from (WARN).",
    "HardwareErrorCorrected": "The firmware reports a hundred corrected errors within an hour (WARN).",
    "PcieFatal": "An uncorrected fatal PCIe error of a device.",
    "PcieUncorrected": "An uncorrected PCIe error that is not fatal (WARN).",
    "PcieCorrected": "A hundred corrected PCIe errors of a device within a minute (WARN).",
    "FileSystemError": "A file system reports an error; FATAL for the root file system, else WARN: it may be scratch.",
    "DiskError": "Reads or writes of a disk fail, or it had to be reset; FATAL for the root's disk, else WARN.",
    "RaidDegraded": "A disk of a RAID has failed (WARN).",
    "OutOfMemoryJob": "A job reached its own memory limit (WARN, the user's).",
    "OutOfMemoryNode": "The whole node ran out of memory (WARN).",
    "HungTask": "A process has been stuck in the kernel for minutes (WARN).",
    "HungTaskNvidia": "It is stuck in NVIDIA's driver (WARN).",
    "HungTaskLustre": "It is stuck in the Lustre client (WARN).",
    "HungTaskNfs": "It is stuck in the NFS client (WARN).",
    "HungTaskReportsEnded": "The kernel stopped to report stuck processes, so this part is blind (UNKNOWN).",
    "SoftLockup": "A processor did not schedule for a long time, twice within ten minutes.",
    "HardLockup": "A processor is locked up with interrupts off.",
    "RcuStall": "The kernel reports stalled processors (WARN).",
    "KernelOops": "The kernel has crashed in part.",
    "KernelPanic": "The kernel has panicked.",
    "LustreBug": "The Lustre client has stopped itself (LBUG).",
    "LustreLost": "The connection to a Lustre target was lost (WARN, the site's); ended by LustreRestored.",
    "LustreRestored": "The connection to a Lustre target is back; ends LustreLost.",
    "NfsSilent": "An NFS server does not answer (WARN, the site's); ended by NfsBack.",
    "NfsBack": "An NFS server answers again; ends NfsSilent.",
    "NetworkCardFailed": "A network card no longer answers its driver.",
    "NeuronHardwareError": "A Neuron device reports an error; FATAL only where the line asks for a reload or reboot.",
    "NeuronTimeout": "The Neuron driver reports time-outs, twice within an hour.",
    "LinesLost": "The kernel wrote faster than we read, so lines were lost (UNKNOWN).",
    "LogUnreadable": "The kernel's log cannot be read (UNKNOWN).",
}
