"""What a line of the kernel log means. Pure: text in, verdicts out.

Owns the patterns of drivers and kernel subsystems. It trusts its caller that the kernel wrote the line: see
``health.kmsg``. Words are matched whole and where the writer puts them: ``Nonfatal`` holds ``fatal``, ``SXid``
holds ``Xid``, and a process may be named after either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from hyperpod.core.finding import Action, Severity, Whose
from hyperpod.health.xid import (
    NVLINK5_CODES,
    NVLINK74_ECC,
    NVLINK74_HARDWARE,
    NVLINK74_IGNORED,
    PEER_SUBCODES,
    RECOVERY_ACTIONS,
    XIDS,
)

DAY_S = 86400.0
HOUR_S = 3600.0


@dataclass(frozen=True)
class Verdict:
    """What one line says.

    Attributes:
        code: CamelCase reason.
        severity, action, whose: As for a finding.
        message: One sentence for people.
        device: Part of the node concerned, empty for the whole node.
        times, within_s: The severity holds from this many events within the window on; before, it is ``below``.
        below: Severity while there were fewer events.
        count: Events that the line stands for.
        closes: The line says that something is over: codes that begin with this text are closed on the device
            (``*`` for all of the device's).
        job_id: Job concerned.
    """

    code: str
    severity: Severity
    message: str
    action: Action = Action.NONE
    device: str = ""
    whose: Whose = Whose.NODE
    times: int = 1
    within_s: float = 0.0
    below: Severity = Severity.WARN
    count: int = 1
    closes: str = ""
    job_id: int | None = None


# One cheap look that lets ordinary lines pass; every pattern below contains one of these.
_INTERESTING = re.compile(
    r"Xid|NVRM|GPU|Hardware Error|mce|EDAC|AER|PCIe|rror|EXT4|XFS|BTRFS|emount|oom|emory|locked for|hung_task|"
    r"lockup|LOCKUP|stall|BUG|Oops|protection|panic|Lustre|LBUG|nfs|NEURON|neuron|DMA|mlx5|efa|nvme|md/|segfault"
)

# dmesg's time, where a log was copied from it; the raw record has none.
_LEAD = r"^(?:\[[ \d.]+\] )?"
_PCI = r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?"

_XID = re.compile(_LEAD + rf"NVRM: Xid \({_PCI}(?: GPU-I:\d+)?\): (?P<code>\d{{1,4}})\b(?P<rest>.*)", re.DOTALL)
_SXID = re.compile(
    _LEAD + rf"(?:nvidia-nvswitch\d*|nvidia_nvswitch\d*): SXid \({_PCI}\): (?P<code>\d{{4,6}}), "
    r"(?P<word>Fatal|Non-fatal), (?P<rest>.*)"
)
_OFF_BUS = re.compile(_LEAD + rf"NVRM: (?:GPU {_PCI}: GPU has |.*\b)fallen off the bus\b")
GPU_NAMED = re.compile(_LEAD + rf"NVRM: (?:The NVIDIA GPU|GPU at) {_PCI}")
"""First line of a three-line event, which names the GPU."""

_RECOVERY = re.compile(r"\bto (?:0x(?P<hex>[0-9a-fA-F]+)\b|\(?(?P<name>[A-Z][A-Za-z0-9 ]*))(?!.*\bto (?:0x|\())")
_HEX = re.compile(r"\b0x([0-9a-fA-F]+)\b")
_LINK = re.compile(r"\blink (\d+)", re.IGNORECASE)
_NVLINK5_WORD = re.compile(r"\b(Fatal|Nonfatal|Non-fatal)\b")
_CAUSED_BY = re.compile(r"\bcaused by previous Xid (\d+)")


def _device(pci: str) -> str:
    domain, bus, slot = pci.lower().split(":")
    return f"{domain[-4:]}:{bus}:{slot}"


def _xid(match: re.Match[str]) -> Verdict:
    code, device, rest = int(match["code"]), _device(match["pci"]), match["rest"]
    known = XIDS.get(code)
    if known is None:
        message = f"GPU {device} reports Xid {code}, which is not known"
        return Verdict(f"Xid{code}", Severity.WARN, message, device=device)
    verdict = Verdict(
        f"Xid{code}",
        known.severity,
        f"GPU {device} reports Xid {code}: {known.meaning}",
        known.action,
        device,
        known.whose,
    )
    if code == 154:
        return _recovery(verdict, rest)
    if code == 74:
        return _nvlink4(verdict, rest)
    if 144 <= code <= 150:
        return _nvlink5(verdict, code, rest)
    return verdict


def _recovery(verdict: Verdict, rest: str) -> Verdict:
    """Xid 154: only the half after "to" counts."""
    half = rest.rpartition(" to ")[2] if " to " in rest else ""
    number = re.match(r"\s*0x([0-9a-fA-F]+)\b", half)
    value = int(number.group(1), 16) if number else None
    if value is None:
        # The longest name first: "GPU Reset" is also the end of "Drain and Reset" to a careless reader.
        names = {name: key for key, (name, _, _) in RECOVERY_ACTIONS.items()}
        text = half.strip(" ()")
        value = next((names[n] for n in sorted(names, key=len, reverse=True) if text.startswith(n)), None)
    if value is None or value not in RECOVERY_ACTIONS:
        return replace(verdict, severity=Severity.WARN, message=f"{verdict.message}, to something not understood")
    name, severity, action = RECOVERY_ACTIONS[value]
    message = f"GPU {verdict.device}: the driver's recovery action is now {name}"
    return replace(
        verdict, severity=severity, action=action, message=message, closes="Xid" if severity is Severity.OK else ""
    )


def _nvlink4(verdict: Verdict, rest: str) -> Verdict:
    words = _HEX.findall(rest)
    link = _LINK.search(rest)
    device = f"{verdict.device} link {link.group(1)}" if link else verdict.device
    verdict = replace(verdict, device=device, severity=Severity.WARN)
    if not words:
        return verdict
    register = int(words[0], 16)
    bits = {bit for bit in range(32) if register >> bit & 1}
    if bits and bits <= NVLINK74_IGNORED:
        return replace(verdict, severity=Severity.OK, message=f"{verdict.message} (bits to be ignored)")
    if bits & (NVLINK74_HARDWARE | NVLINK74_ECC):
        kind = "ECC" if bits & NVLINK74_ECC else "hardware"
        return replace(
            verdict,
            severity=Severity.FATAL,
            action=Action.REBOOT,
            message=f"{verdict.message} ({kind} bits)",
            times=2,
            within_s=DAY_S,
        )
    return verdict


def _nvlink5(verdict: Verdict, code: int, rest: str) -> Verdict:
    word = _NVLINK5_WORD.search(rest)
    link = _LINK.search(rest)
    hexes = _HEX.findall(rest)
    subcode = int(hexes[0], 16) >> 20 & 0x3F if hexes else None
    device = f"{verdict.device} link {int(link.group(1))}" if link else verdict.device
    verdict = replace(verdict, device=device)
    is_fatal = word is not None and word.group(1) == "Fatal"
    if subcode in PEER_SUBCODES:
        text = f"{verdict.message}, sub-code {subcode} accuses the peer"
        return replace(verdict, severity=Severity.WARN, action=Action.NONE, message=text)
    if is_fatal and code in NVLINK5_CODES and code != 145:
        return replace(verdict, severity=Severity.FATAL, action=Action.REBOOT, message=f"{verdict.message} (Fatal)")
    if is_fatal and code == 145:
        # The vendor's own rule: the recovery action (Xid 154) that follows decides.
        return replace(verdict, severity=Severity.WARN, action=Action.NONE, message=f"{verdict.message} (Fatal)")
    if word is None:
        return replace(verdict, severity=Severity.WARN, action=Action.NONE)
    return replace(
        verdict,
        severity=Severity.WARN,
        action=Action.NONE,
        message=f"{verdict.message} (not fatal)",
        times=3,
        within_s=HOUR_S,
        below=Severity.OK,
    )


def _sxid(match: re.Match[str]) -> Verdict:
    device, code = _device(match["pci"]), match["code"]
    is_fatal = match["word"] == "Fatal"
    message = f"NVSwitch {device} reports SXid {code} ({match['word']}): {match['rest'][:80]}"
    if is_fatal:
        return Verdict(f"SXid{code}", Severity.FATAL, message, Action.REBOOT, device)
    return Verdict(f"SXid{code}", Severity.WARN, message, device=device)


def _off_bus(match: re.Match[str]) -> Verdict:
    device = _device(match["pci"]) if match["pci"] else ""
    return Verdict("Xid79", Severity.FATAL, f"GPU {device or '?'} has fallen off the bus", Action.REBOOT, device)


def _machine_check(match: re.Match[str]) -> Verdict | None:
    status = int(match["status"], 16) if match["status"] else 0
    device = f"CPU {match['cpu']} bank {match['bank']}"
    if match["kind"] == "Machine Check Exception" or status >> 61 & 1:
        return Verdict("MachineCheck", Severity.FATAL, f"uncorrected machine check on {device}", Action.REPLACE, device)
    return Verdict(
        "MachineCheckCorrected",
        Severity.WARN,
        f"corrected machine checks on {device}",
        device=device,
        times=100,
        within_s=HOUR_S,
        below=Severity.OK,
    )


def _edac(match: re.Match[str]) -> Verdict:
    where = match["where"].strip()[:60]
    count = int(match["count"])
    if match["kind"] == "UE":
        message = f"uncorrected memory error at {where}"
        return Verdict("MemoryUncorrected", Severity.FATAL, message, Action.REPLACE, where)
    return Verdict(
        "MemoryCorrected",
        Severity.WARN,
        f"many corrected memory errors at {where}",
        device=where,
        times=100,
        within_s=HOUR_S,
        below=Severity.OK,
        count=count,
    )


def _ghes(match: re.Match[str]) -> Verdict | None:
    word = match["word"]
    if word == "fatal":
        message = "the firmware reports a fatal hardware error"
        return Verdict("HardwareErrorFatal", Severity.FATAL, message, Action.REPLACE)
    if word == "recoverable":
        return Verdict("HardwareErrorRecoverable", Severity.WARN, "the firmware reports a recoverable hardware error")
    if word == "corrected":
        return Verdict(
            "HardwareErrorCorrected",
            Severity.WARN,
            "the firmware reports many corrected hardware errors",
            times=100,
            within_s=HOUR_S,
            below=Severity.OK,
        )
    return None


def _aer(match: re.Match[str]) -> Verdict:
    device, word = match["dev"], match["word"]
    if word in ("Uncorrected (Fatal)", "Uncorrectable (Fatal)"):
        return Verdict("PcieFatal", Severity.FATAL, f"fatal PCIe error at {device}", Action.REBOOT, device)
    if word.startswith("Uncorrect"):
        return Verdict("PcieUncorrected", Severity.WARN, f"uncorrected PCIe error at {device}", device=device)
    return Verdict(
        "PcieCorrected",
        Severity.WARN,
        f"many corrected PCIe errors at {device}",
        device=device,
        times=100,
        within_s=60.0,
        below=Severity.OK,
    )


def _file_system(match: re.Match[str]) -> Verdict:
    device = match["dev"]
    return Verdict("FileSystemError", Severity.FATAL, f"file system error on {device}", Action.REPLACE, device)


def _disk(match: re.Match[str]) -> Verdict:
    device = match["dev"]
    return Verdict("DiskError", Severity.FATAL, f"read or write error of disk {device}", Action.REPLACE, device)


def _nvme(match: re.Match[str]) -> Verdict:
    device = match["dev"]
    return Verdict("DiskError", Severity.FATAL, f"{device} had to be reset or is gone", Action.REPLACE, device)


def _oom(match: re.Match[str]) -> Verdict:
    job = re.search(r"\boom_memcg=\S*?/job_(\d+)(?:/|,|$)", match.string)
    if match["kind"] == "MEMCG":
        job_id = int(job.group(1)) if job else None
        message = f"job {job_id} reached its memory limit" if job else "a memory limit (cgroup) was reached"
        device = f"job {job_id}" if job else ""
        return Verdict("OutOfMemoryJob", Severity.WARN, message, device=device, whose=Whose.USER, job_id=job_id)
    task = re.search(r"\btask=([^,]+)", match.string)
    return _global_oom(task.group(1) if task else "a process")


_DAEMONS = frozenset({"slurmd", "slurmstepd", "munged", "slurmctld", "hyperpod-agent", "sshd", "systemd"})


def _global_oom(victim: str) -> Verdict:
    tail = ", one of the node's own services" if victim in _DAEMONS else ""
    return Verdict("OutOfMemoryNode", Severity.WARN, f"the node ran out of memory and killed {victim}{tail}")


def _oom_kill(match: re.Match[str]) -> Verdict:
    if match["memcg"]:
        return Verdict("OutOfMemoryJob", Severity.WARN, "a memory limit (cgroup) was reached", whose=Whose.USER)
    return _global_oom(match["name"])


def _hung_task(match: re.Match[str]) -> Verdict:
    name, seconds = match["name"], match["s"]
    return Verdict("HungTask", Severity.WARN, f"process {name} is stuck in the kernel for more than {seconds} s")


def _lockup(match: re.Match[str]) -> Verdict:
    message = f"CPU {match['cpu']} is locked up in the kernel"
    return Verdict("SoftLockup", Severity.FATAL, message, Action.REBOOT, times=2, within_s=600.0)


def _fixed(verdict: Verdict) -> Callable[[re.Match[str]], Verdict]:
    """Return a builder that gives the same verdict for every match; a group ``dev`` becomes its device."""

    def build(match: re.Match[str]) -> Verdict:
        device = match.groupdict().get("dev") or ""
        return replace(verdict, device=device, message=verdict.message.replace("{dev}", device))

    return build


def _ignore(match: re.Match[str]) -> None:
    return None


def _neuron(match: re.Match[str]) -> Verdict:
    fields = dict(re.findall(r"(\S+?)=(\S*)", match.string))
    action, device = fields.get("action", ""), f"nd{fields.get('nd-id', '?')}"
    kind = match["kind"]
    message = f"Neuron device {device} reports {kind}, asks for {action or 'nothing'}"
    if re.search(r"RELOAD|REBOOT|RESET", action):
        return Verdict("NeuronHardwareError", Severity.FATAL, message, Action.REBOOT, device)
    # Any process that may open the device can write this line, so it alone does not cost a machine.
    return Verdict("NeuronHardwareError", Severity.WARN, message, device=device)


_W, _F = Severity.WARN, Severity.FATAL

_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Verdict | None]], ...] = (
    (_XID, _xid),
    (_SXID, _sxid),
    (re.compile(_LEAD + r"nvidia-peermem\b.*invalid context"), _ignore),
    (_OFF_BUS, _off_bus),
    (
        re.compile(_LEAD + r"NVRM: (?:.*\b)?(?:RmInitAdapter|rm_init_adapter) failed"),
        _fixed(Verdict("GpuStartFailed", _F, "a GPU does not start (RmInitAdapter failed)", Action.REBOOT)),
    ),
    (
        re.compile(_LEAD + r"NVRM: (?:.*\b)?probe failed\b|" + _LEAD + r"nvidia: probe of \S+ failed"),
        _fixed(Verdict("GpuStartFailed", _F, "the driver could not take a GPU (probe failed)", Action.REBOOT)),
    ),
    (
        re.compile(_LEAD + r"NVRM: API mismatch"),
        _fixed(Verdict("DriverMismatch", _W, "a program uses another version of the driver's library")),
    ),
    (
        re.compile(
            _LEAD + r"mce: \[Hardware Error\]: CPU (?P<cpu>\d+): (?P<kind>Machine Check(?: Exception)?|Machine Check): "
            r"[0-9a-f]+ Bank (?P<bank>\d+)(?:: (?P<status>[0-9a-f]+))?"
        ),
        _machine_check,
    ),
    (
        re.compile(_LEAD + r"EDAC \S+: (?P<count>\d+) (?P<kind>CE|UE) .*?\bon (?P<where>\S+)"),
        _edac,
    ),
    (re.compile(_LEAD + r"(?:\{\d+\})?\[Hardware Error\]: event severity: (?P<word>[a-z]+)"), _ghes),
    (
        re.compile(
            _LEAD + r"(?:\S+ )?(?P<dev>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): "
            r"PCIe Bus Error: severity=(?P<word>Uncorrect(?:ed|able) \((?:Non-)?Fatal\)|Correct(?:ed|able))"
        ),
        _aer,
    ),
    (
        re.compile(
            _LEAD + r"pcieport \S+: AER: (?:Multiple )?(?P<word>Uncorrect(?:ed|able) \((?:Non-)?Fatal\)) "
            r"error (?:message )?received(?: from)?:? (?P<dev>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
        ),
        _aer,
    ),
    (re.compile(_LEAD + r"EXT4-fs error \(device (?P<dev>[^)]+)\)"), _file_system),
    (re.compile(_LEAD + r"EXT4-fs \((?P<dev>[^)]+)\): Remounting filesystem read-only"), _file_system),
    (re.compile(_LEAD + r"XFS \((?P<dev>[^)]+)\): .*(?:Shutting down filesystem|has been shut down)"), _file_system),
    (
        re.compile(_LEAD + r"BTRFS(?:: error| error| critical) \(device (?P<dev>[^):]+).*\bforced readonly\b"),
        _file_system,
    ),
    (re.compile(_LEAD + r"(?:blk_update_request: )?critical medium error, dev (?P<dev>[\w-]+)"), _disk),
    (re.compile(_LEAD + r"(?:blk_update_request: |print_req_error: )?I/O error, dev (?P<dev>[\w-]+)"), _disk),
    (re.compile(_LEAD + r"Buffer I/O error on dev(?:ice)? (?P<dev>[\w-]+)"), _disk),
    (
        re.compile(
            _LEAD + r"nvme (?P<dev>nvme\d+): (?:I/O .*\breset controller|I/O \d+ .*timeout, disable controller|"
            r"controller is down; will reset|Device not ready; aborting reset|Removing after probe failure)"
        ),
        _nvme,
    ),
    (
        re.compile(_LEAD + r"md/raid\S*:(?P<dev>md\d+): Disk failure on \S+"),
        _fixed(Verdict("RaidDegraded", _W, "a disk of {dev} has failed")),
    ),
    (re.compile(_LEAD + r"oom-kill:constraint=CONSTRAINT_(?P<kind>[A-Z_]+),"), _oom),
    (
        re.compile(_LEAD + r"(?P<memcg>Memory cgroup )?[Oo]ut of memory: Kill(?:ed)? process \d+ \((?P<name>[^)]*)\)"),
        _oom_kill,
    ),
    (re.compile(_LEAD + r"INFO: task (?P<name>.+):\d+ blocked for more than (?P<s>\d+) seconds"), _hung_task),
    (
        re.compile(_LEAD + r"Future hung task reports are suppressed"),
        _fixed(Verdict("HungTaskReportsEnded", Severity.UNKNOWN, "the kernel no longer reports stuck processes")),
    ),
    (re.compile(_LEAD + r"(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for"), _lockup),
    (
        re.compile(_LEAD + r"(?:NMI )?watchdog: Watchdog detected hard LOCKUP on cpu"),
        _fixed(Verdict("HardLockup", _F, "a CPU is locked up with interrupts off", Action.REBOOT)),
    ),
    (
        re.compile(_LEAD + r"(?:rcu: )?INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall"),
        _fixed(Verdict("RcuStall", _W, "the kernel reports stalled CPUs")),
    ),
    (
        re.compile(
            _LEAD + r"(?:BUG: (?:kernel NULL pointer dereference|unable to handle)|"
            r"Oops(?:: |\b.*?)[0-9a-f]{4} \[#\d+\]|general protection fault(?:,.*)?: [0-9a-f]{4} \[#\d+\])"
        ),
        _fixed(Verdict("KernelOops", _F, "the kernel has crashed in part (oops)", Action.REBOOT)),
    ),
    (
        re.compile(_LEAD + r"Kernel panic - not syncing"),
        _fixed(Verdict("KernelPanic", _F, "the kernel has panicked", Action.REBOOT)),
    ),
    (
        re.compile(_LEAD + r"LustreError: .*\bLBUG\b"),
        _fixed(Verdict("LustreBug", _F, "the Lustre client has stopped itself (LBUG)", Action.REBOOT)),
    ),
    (
        re.compile(
            _LEAD + r"Lustre(?:Error)?: .*?(?P<dev>[\w.-]+-(?:OST|MDT)[0-9a-f]{4})\S*: .*?"
            r"(?:Connection to \S+ .*?was lost|[Cc]lient was evicted)"
        ),
        _fixed(Verdict("LustreLost", _W, "the connection to {dev} was lost", whose=Whose.SITE)),
    ),
    (
        re.compile(_LEAD + r"Lustre: .*?(?P<dev>[\w.-]+-(?:OST|MDT)[0-9a-f]{4})\S*: Connection restored"),
        _fixed(Verdict("LustreRestored", Severity.OK, "the connection to {dev} is back", closes="LustreLost")),
    ),
    (
        re.compile(_LEAD + r"nfs: server (?P<dev>\S+) not responding"),
        _fixed(Verdict("NfsSilent", _W, "the NFS server {dev} does not answer", whose=Whose.SITE)),
    ),
    (
        re.compile(_LEAD + r"nfs: server (?P<dev>\S+) OK\b"),
        _fixed(Verdict("NfsBack", Severity.OK, "the NFS server {dev} answers again", closes="NfsSilent")),
    ),
    (
        re.compile(
            _LEAD + r"mlx5_core (?P<dev>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]):.*"
            r"(?:health compromised - reached miss count|Will cause a leak of a command resource|"
            r"unrecoverable hardware error)"
        ),
        _fixed(Verdict("NetworkCardFailed", _F, "the network card {dev} no longer answers its driver", Action.REBOOT)),
    ),
    (
        re.compile(
            _LEAD + r"(?:efa|ena) (?P<dev>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\b.*"
            r"(?:didn't send any completion for admin cmd|Admin queue is closed)"
        ),
        _fixed(Verdict("NetworkCardFailed", _F, "the network card {dev} no longer answers its driver", Action.REBOOT)),
    ),
    (re.compile(_LEAD + r"NEURON_HW_ERR=(?P<kind>\w+)\b"), _neuron),
    (
        re.compile(
            _LEAD + r"neuron:.*\b(?:DMA completion timeout on (?P<dev>nd\d+)|reset request \d+ .*failed to complete)"
        ),
        _fixed(
            Verdict("NeuronTimeout", _F, "the Neuron driver reports timeouts", Action.REBOOT, times=2, within_s=HOUR_S)
        ),
    ),
)


def classify(text: str, *, root_devices: Collection[str] = ()) -> tuple[Verdict, ...]:
    """Say what one line that the kernel wrote means; empty for lines without a meaning for health.

    Args:
        text: The record's text, without prefix or time.
        root_devices: Devices below the root file system (``sda1``, ``sda``); an error on another one does not
            take the node away from its job, because it may be a scratch disk.
    """
    if not _INTERESTING.search(text):
        return ()
    for pattern, build in _RULES:
        match = pattern.search(text)
        if match is None:
            continue
        verdict = build(match)
        if verdict is None:
            return ()
        if verdict.code in ("FileSystemError", "DiskError") and not is_root_device(verdict.device, root_devices):
            verdict = replace(verdict, severity=Severity.WARN, action=Action.NONE)
        caused_by = _CAUSED_BY.search(text) if verdict.code == "Xid45" else None
        if caused_by:
            verdict = replace(verdict, severity=Severity.OK, message=f"{verdict.message} (Xid {caused_by.group(1)})")
        return (verdict,)
    return ()


def is_root_device(device: str, root_devices: Collection[str]) -> bool:
    """True when a device is, holds, or is a partition of one below the root file system."""
    return any(
        device == root or re.fullmatch(rf"{re.escape(device)}(?:n\d+)?p?\d*", root) is not None for root in root_devices
    )
