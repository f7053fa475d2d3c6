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
from hyperpod.health.pci_name import device_of
from hyperpod.health.xid import (
    NVLINK5_CODES,
    NVLINK74_ECC,
    NVLINK74_HARDWARE,
    NVLINK74_IGNORED,
    NVLINK74_SIGNAL,
    NVLINK74_SYMPATHETIC,
    PEER_SUBCODES,
    RECOVERY_ACTIONS,
    XIDS,
)

DAY_S = 86400.0
HOUR_S = 3600.0

_W, _F = Severity.WARN, Severity.FATAL


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
        again: Action when it comes a second time; NONE: the same as the first time.
        merges: Lines with the same word here (and device, where both name one) within five seconds are one event.
        fold_s: Lines that follow within this time are the same event as far as ``times`` goes.
        unit: Part of the device that the line names; the same one under a second job is suspect.
        unless: What the line cannot prove and what would change the verdict; empty when it stands alone.
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
    again: Action = Action.NONE
    merges: str = ""
    fold_s: float = 0.0
    unit: str = ""
    unless: str = ""


# A cheap look at a line's beginning that lets ordinary lines pass: every pattern below begins with one of these …
_BEGINS = re.compile(
    r"(?:\[[ \d.]+\] )?"
    r"(?:NVRM: |nvidia|mce: |EDAC |(?:\{\d+\})?\[Hardware Error|Memory |[Oo]ut of memory|EXT4-fs|XFS \(|BTRFS|"
    r"blk_update|print_req|end_request|critical medium|I/O error|Buffer I/O|nvme nvme|md[/:]|oom-kill:|INFO: |"
    r"Future hung|NMI |watchdog: |BUG: |kernel BUG|rcu: |Oops|general protection|invalid opcode|divide error|"
    r"double fault|stack segment|Kernel panic|Unable to handle kernel|Internal error: |Aborting journal|NFS: |Lustre|"
    r"nfs: |lockd: |mlx5_core |efa |ena |infiniband |NETDEV |"
    r"neuron:|ata\d|(?:\S+ )?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
)
# … or holds one of these.
_ANYWHERE = ("NEURON_HW_ERR=", "segfault at", "Neuron Driver", "ink is", "ink down", "ink up", "ink D", "ink U")


def _says_something(text: str) -> bool:
    return _BEGINS.match(text) is not None or any(word in text for word in _ANYWHERE)


# dmesg's time, where a log was copied from it; the raw record has none.
_LEAD = r"^(?:\[[ \d.]+\] )?"
_PCI = (
    r"(?:PCI:)?(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F]{1,4})?)"
    r"(?![0-9a-fA-F])"
)
_EFA_NAME = r"efa_\d+|rdmap\d+s\d+\w*"
"""Names of EFA devices, by which the driver calls them where it does not give the address."""
_BDF = r"(?P<dev>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"

_XID = re.compile(_LEAD + rf"NVRM: Xid \({_PCI}(?: GPU-C?I:\d+)*\): ?(?P<code>\d{{1,4}})(?!\d)(?P<rest>.*)", re.DOTALL)
_SXID = re.compile(
    _LEAD + rf"nvidia[-_]nvswitch\d*: SXid \({_PCI}\): (?P<code>\d{{4,6}}), "
    r"(?P<word>Fatal|Non-fatal), (?P<rest>.*)"
)
_OFF_BUS = re.compile(_LEAD + rf"NVRM: (?:GPU (?:at )?{_PCI}:? (?:GPU )?has |.*\b)fallen off the bus\b")
GPU_NAMED = re.compile(_LEAD + rf"NVRM: (?:The NVIDIA GPU|GPU at) {_PCI}")
"""First line of a three-line event, which names the GPU."""

_WHO = re.compile(r"^,?\s*(?:pid=(?:'[^']*'|[^,]*)(?:, |$))?(?:name=[^,]*(?:, |$))?")
"""Who was using the GPU: a process may be called ``Fatal``, so its name is cut off before words are looked for."""

_HEX = re.compile(r"\b0x([0-9a-fA-F]+)\b")
_LINK = re.compile(r"\blink (\d+)", re.IGNORECASE)
_NVLINK5_WORD = re.compile(r"\b[A-Z][A-Z0-9_]+\s+(?P<word>Fatal|Non-?[Ff]atal)\s+XC|\b(?P<bare>Fatal|Non-?[Ff]atal)\b")
_CHANGED = re.compile(r"\brecovery action changed from (?P<before>.*?) to (?P<after>.*)", re.DOTALL)
_CAUSED_BY = re.compile(r"\bcaused by previous Xid (\d+)")
_PLACE = re.compile(r"\bGPC (\d+), TPC (\d+)\b")
_RESET_BITS = re.compile(r"\bRST: (Yes|No), D-RST: (Yes|No)")

_COMES_BACK = frozenset(
    {46, 48, 62, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158, 167, 168, 169, 171, 172}
)
"""Codes for which a reboot is tried once: the second time asks for another machine."""


def _xid(match: re.Match[str]) -> Verdict:
    code, device = int(match["code"]), device_of(match["pci"])
    rest = _WHO.sub("", match["rest"], count=1)
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
        again=Action.REPLACE if code in _COMES_BACK else Action.NONE,
        merges="off the bus" if code == 79 else "",
        unless=known.unless,
    )
    if code == 154:
        return _recovery(verdict, rest)
    if code == 74:
        return _nvlink4(verdict, rest)
    if 144 <= code <= 150:
        return _nvlink5(verdict, code, rest)
    if code == 45 and (cause := _CAUSED_BY.search(rest)):
        # The program's end follows from the other event, which is judged by itself: nothing is counted twice.
        message = f"{verdict.message}: here Xid {cause.group(1)}, no second event"
        return replace(verdict, severity=Severity.OK, message=message)
    if code in (13, 31):
        place = _PLACE.search(rest) if code == 13 else None
        return replace(verdict, unit=f"GPC {place[1]} TPC {place[2]}" if place else device)
    if code == 94 and (bits := _RESET_BITS.search(rest)) and "Yes" in bits.groups():
        return replace(verdict, message=f"{verdict.message}; the GPU wants a reset after the job")
    return verdict


def _recovery(verdict: Verdict, rest: str) -> Verdict:
    """Xid 154: only the half after "to" counts."""
    changed = _CHANGED.search(rest)
    half = changed["after"] if changed else ""
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
    device = f"{verdict.device} link {int(link.group(1))}" if link else verdict.device
    verdict = replace(verdict, device=device, severity=Severity.WARN)
    registers = [int(word[-8:], 16) for word in words]
    bits = {bit for bit in range(32) if registers and registers[0] >> bit & 1}
    if bits and bits <= NVLINK74_IGNORED and not any(registers[1:]):
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
            fold_s=5.0,
        )
    if bits and bits <= NVLINK74_SIGNAL | NVLINK74_IGNORED:
        return replace(verdict, message=f"{verdict.message} (signal integrity)")
    if bits and bits <= NVLINK74_SYMPATHETIC | NVLINK74_IGNORED:
        return replace(verdict, message=f"{verdict.message} (follows another error)")
    return verdict


def _nvlink5(verdict: Verdict, code: int, rest: str) -> Verdict:
    found = _NVLINK5_WORD.search(rest)
    word = (found["word"] or found["bare"]) if found else ""
    link = _LINK.search(rest)
    hexes = _HEX.findall(rest)
    subcode = int(hexes[0][-8:], 16) >> 20 & 0x3F if hexes else None
    device = f"{verdict.device} link {int(link.group(1))}" if link else verdict.device
    message = verdict.message
    if subcode in PEER_SUBCODES:
        message += f"; sub-code {subcode} makes the GPU at the link's other end a suspect"
    verdict = replace(verdict, device=device, severity=Severity.WARN, action=Action.NONE, message=message)
    if word == "Fatal":
        if code not in NVLINK5_CODES:
            return replace(verdict, message=f"{message} (Fatal, but this code never asks for more)")
        if code == 145:
            # The vendor's own rule: the recovery action (Xid 154) that follows decides.
            return replace(
                verdict, message=f"{message} (Fatal)", unless="the recovery action (Xid 154) after it decides"
            )
        return replace(verdict, severity=Severity.FATAL, action=Action.REBOOT, message=f"{message} (Fatal)")
    if not word:
        return replace(verdict, unless="the line is cut off before the word Fatal or Nonfatal, which decides")
    return replace(verdict, message=f"{message} (not fatal)", times=3, within_s=HOUR_S, below=Severity.OK)


def _sxid(match: re.Match[str]) -> Verdict:
    device, code = device_of(match["pci"]), match["code"]
    is_fatal = match["word"] == "Fatal"
    message = f"NVSwitch {device} reports SXid {code} ({match['word']}): {match['rest'][:80]}"
    if is_fatal:
        return Verdict(f"SXid{code}", Severity.FATAL, message, Action.REBOOT, device)
    return Verdict(f"SXid{code}", Severity.WARN, message, device=device)


def _off_bus(match: re.Match[str]) -> Verdict:
    device = device_of(match["pci"]) if match["pci"] else ""
    message = f"GPU {device or '?'} has fallen off the bus"
    return Verdict("Xid79", _F, message, Action.REBOOT, device, again=Action.REPLACE, merges="off the bus")


def _no_start(match: re.Match[str]) -> Verdict:
    device = device_of(match["pci"]) if match["pci"] else ""
    message = f"GPU {device or '?'} does not start"
    return Verdict("GpuStartFailed", _F, message, Action.REBOOT, device, again=Action.REPLACE, merges="start")


def _machine_check(match: re.Match[str]) -> Verdict | None:
    status = int(match["status"], 16) if match["status"] else 0
    device = f"CPU {match['cpu']} bank {int(match['bank'])}"
    is_uncorrected = bool(status >> 61 & 1)
    if is_uncorrected and match["kind"] == "Machine Check" and not status >> 55 & 0b111:
        # No corrupt context, not signalled, no action required: the data was not used (UCNA).
        message = f"uncorrected machine check on {device} that asks for nothing"
        return Verdict("MachineCheckUnused", Severity.WARN, message, device=device)
    if is_uncorrected or match["kind"] == "Machine Check Exception":
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


def _edac(match: re.Match[str]) -> Verdict | None:
    where = (match.groupdict().get("where") or match.groupdict().get("mc") or "").strip()[:60]
    count = int(match.groupdict().get("count") or 1)
    if not count:
        return None
    if match["kind"] == "UE":
        message = f"uncorrected memory error at {where}"
        return Verdict("MemoryUncorrected", Severity.FATAL, message, Action.REPLACE, where)
    return Verdict(
        "MemoryCorrected",
        Severity.WARN,
        f"corrected memory errors at {where}",
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


_HARMLESS_DRIVERS = frozenset(
    {
        "xhci_hcd",
        "ehci-pci",
        "ohci-pci",
        "iwlwifi",
        "ath10k_pci",
        "ath11k_pci",
        "snd_hda_intel",
        "i915",
        "thunderbolt",
        "ast",
        "mgag200",
        "radeon",
        "snd_hda_codec",
    }
)
"""Drivers of parts that no job depends on."""


def _aer(match: re.Match[str]) -> Verdict:
    device, word = match["dev"], match["word"]
    driver = match.groupdict().get("driver") or ""
    if word in ("Uncorrected (Fatal)", "Uncorrectable (Fatal)"):
        message = f"fatal PCIe error at {device}"
        if driver in _HARMLESS_DRIVERS:
            return Verdict("PcieUncorrected", Severity.WARN, f"{message}, a part that no job needs", device=device)
        return Verdict("PcieFatal", Severity.FATAL, message, Action.REBOOT, device, merges="PCIe")
    if word.startswith("Uncorrect"):
        return Verdict(
            "PcieUncorrected", _W, f"uncorrected PCIe error at {device}", device=device, merges="PCIe nonfatal"
        )
    return Verdict(
        "PcieCorrected",
        Severity.WARN,
        f"corrected PCIe errors at {device}",
        device=device,
        times=100,
        within_s=60.0,
        below=Severity.OK,
    )


def _file_system(match: re.Match[str]) -> Verdict:
    device = match["dev"]
    return Verdict("FileSystemError", Severity.FATAL, f"file system error on {device}", Action.REPLACE, device)


_NO_DISK = re.compile(r"fd\d+|sr\d+|loop\d+|nbd\d+|zram\d+|ram\d+")
"""Drives without a medium and devices made of files: their errors are no disk's."""


def _disk(match: re.Match[str]) -> Verdict | None:
    device = match["dev"]
    if _NO_DISK.fullmatch(device):
        return None
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
        return Verdict("OutOfMemoryJob", _W, message, device=device, whose=Whose.USER, job_id=job_id, merges="memcg")
    task = re.search(r"\btask=([^,]+)", match.string)
    return _global_oom(task.group(1) if task else "a process")


_DAEMONS = frozenset({"slurmd", "slurmstepd", "munged", "slurmctld", "hyperpod-agent", "sshd", "systemd"})


def _global_oom(victim: str) -> Verdict:
    tail = ", one of the node's own services" if victim in _DAEMONS else ""
    return Verdict("OutOfMemoryNode", _W, f"the node ran out of memory and killed {victim}{tail}", merges="oom")


def _oom_kill(match: re.Match[str]) -> Verdict:
    if match["memcg"]:
        message = "a memory limit (cgroup) was reached"
        return Verdict("OutOfMemoryJob", _W, message, whose=Whose.USER, merges="memcg")
    return _global_oom(match["name"])


def _hung_task(match: re.Match[str]) -> Verdict:
    name, seconds = match["name"], match["s"]
    return Verdict("HungTask", Severity.WARN, f"process {name} is stuck in the kernel for more than {seconds} s")


def _lockup(match: re.Match[str]) -> Verdict:
    message = f"CPU {match['cpu']} is locked up in the kernel"
    return Verdict("SoftLockup", Severity.FATAL, message, Action.REBOOT, times=2, within_s=600.0)


def _raid(match: re.Match[str]) -> Verdict:
    device, text = match["dev"], match.string
    if "failing array" in text or "Cannot continue operation" in text:
        return Verdict("RaidFailed", _F, f"{device} has failed", Action.REPLACE, device)
    return Verdict("RaidDegraded", _W, f"a disk of {device} has failed", device=device, merges="raid")


def _memory_failure(match: re.Match[str]) -> Verdict:
    message = "the kernel took a damaged page of memory away"
    return Verdict("MemoryUncorrected", _F, message, Action.REPLACE, merges="memory failure")


def _fixed(verdict: Verdict) -> Callable[[re.Match[str]], Verdict]:
    """Return a builder that gives the same verdict for every match; a group ``dev`` (or ``ib``) becomes its device."""

    def build(match: re.Match[str]) -> Verdict:
        groups = match.groupdict()
        device = groups.get("dev") or groups.get("ib") or ""
        return replace(verdict, device=device, message=verdict.message.replace("{dev}", device))

    return build


def _ignore(match: re.Match[str]) -> None:
    return None


def _neuron(match: re.Match[str]) -> Verdict:
    fields = dict(re.findall(r"(\S+?)=(\S*)", match.string))
    action, device = fields.get("action", "").rstrip(",.;"), f"nd{fields.get('nd-id', '?').rstrip(',.;')}"
    kind = match["kind"]
    message = f"Neuron device {device} reports {kind}, asks for {action or 'nothing'}"
    if "TERMINATE" in action.upper() or "REPLACE" in action.upper():
        # Any process that may open the device can write this line, so it alone does not cost a machine.
        return Verdict(
            "NeuronHardwareError",
            Severity.FATAL,
            message,
            Action.REPLACE,
            device,
            times=2,
            within_s=DAY_S,
            fold_s=60.0,
            unless="a program can write this line: it needs an error counter of the device that rose, or a repeat",
        )
    if action:
        return Verdict("NeuronHardwareError", Severity.FATAL, message, Action.REBOOT, device)
    return Verdict("NeuronHardwareError", Severity.WARN, message, device=device)


def _neuron_timeout(match: re.Match[str]) -> Verdict:
    named = re.search(r"\bnd\d+\b", match.string)
    device = f"nd{int(named.group()[2:])}" if named else ""
    message = f"the Neuron driver reports time-outs{f' of {device}' if device else ''}"
    return Verdict("NeuronTimeout", _F, message, Action.REBOOT, device, times=2, within_s=HOUR_S)


_CARD_FAILED = Verdict(
    "NetworkCardFailed",
    Severity.FATAL,
    "the network card {dev} no longer answers its driver",
    Action.REBOOT,
    again=Action.REPLACE,
    merges="card",
)


def _link(match: re.Match[str]) -> Verdict:
    device = match["dev"] or match["dev2"] or match["dev3"]
    if match["state"].lower() == "down":
        message = f"the link of {device} went down"
        return Verdict("LinkDown", _W, message, device=device, times=2, within_s=300.0, below=Severity.OK)
    return Verdict("LinkUp", Severity.OK, f"the link of {device} came up", device=device)


_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Verdict | None]], ...] = (
    (_XID, _xid),
    (_SXID, _sxid),
    (re.compile(_LEAD + r"nvidia-peermem\b.*invalid context"), _ignore),
    (_OFF_BUS, _off_bus),
    (re.compile(_LEAD + rf"NVRM: (?:GPU {_PCI}: |.*\b)?(?:RmInitAdapter|rm_init_adapter) failed"), _no_start),
    (re.compile(_LEAD + rf"NVRM: (?:GPU {_PCI}: |.*\b)?probe failed\b"), _no_start),
    (re.compile(_LEAD + r"NVRM: (?P<pci>)The NVIDIA probe routine failed for [1-9]\d* device"), _no_start),
    (re.compile(_LEAD + rf"nvidia(?:: probe of)? {_PCI}(?:: probe with driver nvidia)? failed with error"), _no_start),
    (
        re.compile(_LEAD + r"NVRM: .*knvlink\w*: .*\bfailed\b|" + _LEAD + r"NVRM: knvlink\w+\b.*\bfailed\b"),
        _fixed(Verdict("NvlinkMaskFailed", _W, "the driver could not read the state of the NVLinks")),
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
    (re.compile(_LEAD + r"EDAC (?P<mc>MC\d+): (?P<kind>CE|UE) (?:page|row|-)"), _edac),
    (
        re.compile(_LEAD + r"mce: Uncorrected hardware memory error in user-access at [0-9a-f]+"),
        _memory_failure,
    ),
    (
        re.compile(
            _LEAD + r"Memory failure: 0x[0-9a-f]+: (?:Killing |Sending SIGBUS|recovery action for (?!.*\bIgnored\b))"
        ),
        _memory_failure,
    ),
    (
        re.compile(
            _LEAD
            + r"\[Hardware Error\]: (?:System Fatal error|Uncorrected, software (?:restartable|containable) error)"
        ),
        _fixed(Verdict("MachineCheck", _F, "uncorrected machine check", Action.REPLACE)),
    ),
    (re.compile(_LEAD + r"(?:\{\d+\})?\[Hardware Error\]: event severity: (?P<word>[a-z]+)"), _ghes),
    (
        re.compile(
            _LEAD + rf"(?:(?P<driver>[\w-]+) )?{_BDF}: (?:AER: )?"
            r"PCIe Bus Error: severity=(?P<word>Uncorrect(?:ed|able) \((?:Non-)?Fatal\)|Correct(?:ed|able))"
        ),
        _aer,
    ),
    (
        re.compile(
            _LEAD + r"pcieport \S+: AER: (?:Multiple )?(?P<word>Uncorrect(?:ed|able) \((?:Non-)?Fatal\)) "
            rf"error (?:message )?received(?: from)?:? {_BDF}"
        ),
        _aer,
    ),
    (
        re.compile(
            _LEAD + rf"pcieport {_BDF}: AER: (?:Multiple )?(?P<word>Uncorrect(?:ed|able) \((?:Non-)?Fatal\)) "
            r"error (?:message )?received"
        ),
        _aer,
    ),
    (
        re.compile(_LEAD + rf"pcieport {_BDF}: DPC: containment event"),
        _fixed(Verdict("PcieContained", _W, "the PCIe port {dev} cut its device off after an error")),
    ),
    (
        re.compile(_LEAD + rf"(?:\S+ )?{_BDF}:? .*\bavailable PCIe bandwidth, limited by\b"),
        _fixed(Verdict("PcieLimited", _W, "{dev} has a slower place on the bus than it could use")),
    ),
    (re.compile(_LEAD + r"EXT4-fs error \(device (?P<dev>[^)]+)\)"), _file_system),
    (re.compile(_LEAD + r"Aborting journal on device (?P<dev>[\w-]+?)(?:-\d+)?\.?$"), _file_system),
    (re.compile(_LEAD + r"EXT4-fs \((?P<dev>[^)]+)\): Remounting filesystem read-only"), _file_system),
    (
        re.compile(_LEAD + r"XFS \((?P<dev>[^)]+)\): User initiated shutdown"),
        _fixed(Verdict("FileSystemShutDown", _W, "somebody shut down the file system on {dev}")),
    ),
    (re.compile(_LEAD + r"XFS \((?P<dev>[^)]+)\): .*(?:Shutting down filesystem|has been shut down)"), _file_system),
    (
        re.compile(_LEAD + r"BTRFS(?:: error| error| critical) \(device (?P<dev>[^):]+).*\bforced readonly\b"),
        _file_system,
    ),
    (re.compile(_LEAD + r"(?:blk_update_request: )?critical medium error, dev (?P<dev>[\w-]+)"), _disk),
    (
        re.compile(_LEAD + r"(?:blk_update_request: |print_req_error: |end_request: )?I/O error, dev (?P<dev>[\w-]+)"),
        _disk,
    ),
    (re.compile(_LEAD + r"Buffer I/O error on dev(?:ice)? (?P<dev>[\w-]+)"), _disk),
    (
        re.compile(
            _LEAD + r"nvme (?P<dev>nvme\d+): (?:I/O .*\breset controller|I/O .*\btimeout, disable controller|"
            r"controller is down; will reset|Device not ready; aborting reset|Removing after probe failure|"
            r"frozen state error detected, reset controller|Disabling device after reset failure)"
        ),
        _nvme,
    ),
    (
        re.compile(_LEAD + r"nvme (?P<dev>nvme\d+): I/O .*\btimeout, aborting"),
        _fixed(Verdict("DiskSlow", _W, "{dev} did not answer in time")),
    ),
    (re.compile(_LEAD + r"md/raid\S*:(?P<dev>md\d+): (?:Disk failure on \S+|Cannot continue operation)"), _raid),
    (re.compile(_LEAD + r"oom-kill:constraint=CONSTRAINT_(?P<kind>[A-Z_]+),"), _oom),
    (
        re.compile(_LEAD + r"(?P<memcg>Memory cgroup )?[Oo]ut of memory: Kill(?:ed)? process \d+ \((?P<name>[^)]*)\)"),
        _oom_kill,
    ),
    (re.compile(_LEAD + r"INFO: task (?P<name>.+):\d+ blocked for more than (?P<s>\d+) seconds"), _hung_task),
    (
        re.compile(_LEAD + r"(?:INFO: )?Future hung task reports are suppressed"),
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
            _LEAD + r"(?:BUG: (?:kernel NULL pointer dereference|unable to handle)|Unable to handle kernel |"
            r"Internal error: .*\[#\d+\]|"
            r"Oops(?:: |\b.*?)[0-9a-f]{4} \[#\d+\]|general protection fault(?:,.*)?: [0-9a-f]{4} \[#\d+\]|"
            r"kernel BUG at \S+:\d+!|(?:invalid opcode|divide error|double fault|stack segment): [0-9a-f]{4} \[#\d+\])"
        ),
        _fixed(Verdict("KernelOops", _F, "the kernel has crashed in part (oops)", Action.REBOOT, merges="oops")),
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
        re.compile(_LEAD + r"(?:nfs|lockd): server (?P<dev>\S+) not responding"),
        _fixed(Verdict("NfsSilent", _W, "the NFS server {dev} does not answer", whose=Whose.SITE)),
    ),
    (
        re.compile(_LEAD + r"(?:nfs|lockd): server (?P<dev>\S+) OK\b"),
        _fixed(Verdict("NfsBack", Severity.OK, "the NFS server {dev} answers again", closes="NfsSilent")),
    ),
    (
        re.compile(_LEAD + r"NFS: .*[Ll]ock reclaim failed"),
        _fixed(Verdict("NfsLocksLost", _W, "an NFS server gave locks back to nobody", whose=Whose.SITE)),
    ),
    (
        re.compile(
            _LEAD + rf"mlx5_core {_BDF}\b.*(?:health compromised - reached miss count|"
            r"Will cause a leak of a command resource|unrecoverable hardware error)"
        ),
        _fixed(_CARD_FAILED),
    ),
    (
        re.compile(
            _LEAD + rf"(?:(?:efa|ena) {_BDF}\b|infiniband (?P<ib>{_EFA_NAME}): )"
            r".*(?:didn't send any completion for admin cmd|Admin queue is closed|"
            r"[Rr]eset attempt failed|[Rr]eset (?:has )?failed)"
        ),
        _fixed(_CARD_FAILED),
    ),
    (
        re.compile(_LEAD + rf"(?:efa {_BDF}\b|infiniband (?P<ib>{_EFA_NAME}): ).*\bALLOC_PD\b.*\berr -12\b"),
        _fixed(
            Verdict("EfaLimit", _W, "a program asked {dev} for more than its limit allows (err -12)", whose=Whose.USER)
        ),
    ),
    (
        re.compile(
            _LEAD + rf"mlx5_core {_BDF}\b.*Port module event(?:\[error\])?: module \d+, .*[Hh]igh [Tt]emperature"
        ),
        _fixed(Verdict("NetworkCardHot", _W, "the module of the network card {dev} is too hot")),
    ),
    (
        re.compile(_LEAD + rf"mlx5_core {_BDF}\b.*Port module event(?:\[error\])?: module \d+, .*[Uu]nplugged"),
        _fixed(
            Verdict(
                "CableUnplugged",
                _W,
                "a cable of the network card {dev} is out",
                times=3,
                within_s=HOUR_S,
                below=Severity.OK,
                unless="an empty cage says so at every boot",
            )
        ),
    ),
    (
        re.compile(
            _LEAD
            + rf"(?:NETDEV WATCHDOG: .*\btransmit queue \d+ timed out|ena {_BDF}\b.*[Kk]eep alive watchdog timeout|"
            rf"mlx5_core (?P<mlx>\S+)\b.*\bTX timeout)"
        ),
        _fixed(
            Verdict(
                "NetworkTimeout",
                _W,
                "a network card did not send in time",
                times=3,
                within_s=HOUR_S,
                below=Severity.WARN,
            )
        ),
    ),
    (
        re.compile(
            _LEAD
            + r"(?:[\w-]+ [0-9a-f:.]+ (?P<dev>\w+):|[\w-]+ [0-9a-f:.]+: (?P<dev2>\w+):|(?:\w+: )?(?P<dev3>\w+):?) "
            r"(?:NIC )?(?:Port: \d+ )?Link (?:is )?(?P<state>[Dd]own|DOWN|[Uu]p|UP)\b"
        ),
        _link,
    ),
    (re.compile(_LEAD + r"(?:\S.{0,60} )?NEURON_HW_ERR=(?P<kind>\w+)\b"), _neuron),
    (
        re.compile(
            _LEAD + r"neuron:.*\b(?:DMA completion timeout on nd\d+|reset request \d+ .*failed to complete|"
            r"seq: \d+, cmd: \d+ timed out)"
        ),
        _neuron_timeout,
    ),
    (
        re.compile(_LEAD + r"[^:]*\[\d+\]: segfault at .* in libnccl\.so"),
        _fixed(
            Verdict("SegfaultNccl", _W, "a program crashed in NCCL: the library is where, not why", whose=Whose.USER)
        ),
    ),
)


_BENIGN: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(_LEAD + pattern), code, why)
    for pattern, code, why in (
        (
            r"nvidia-peermem\b.*invalid context",
            "PeermemTeardown",
            "printed when a process ends; no fault",
        ),
        (
            r"mlx5_core \S+\b.*ACCESS_REG\b.*\bfailed\b",
            "AccessRegister",
            "a monitor read a register that it may not; no fault",
        ),
        (
            r"mlx5_core \S+\b.*insufficient power on the PCIe slot",
            "SlotPower",
            "printed at every boot; no fault",
        ),
        (
            r".*\bNeuron Driver Started with Version",
            "NeuronDriverStarted",
            "the driver's load line, printed at error level; no fault",
        ),
        (
            r"neuron:.*Failed to copy memory during a NeuronCore reset.*Retrying",
            "NeuronRetry",
            "the driver tries again by itself; no fault",
        ),
        (
            r"(?:mce: )?\[Hardware Error\]: Machine check events logged",
            "MachineCheckNotice",
            "says only that others follow",
        ),
        (
            r"(?:\{\d+\})?\[Hardware Error\]: .*(?:no (?:further )?action required|requires no further action)",
            "HardwareErrorHandled",
            "the hardware has handled it; no fault",
        ),
        (
            r"EXT4-fs \([^)]+\): .*errors=remount-ro",
            "MountOption",
            "an option of the mount; no fault",
        ),
        (
            r"EXT4-fs \([^)]+\): (?:error count since last fsck|initial error at|last error at)",
            "OldErrors",
            "counts errors of the past; no fault of now",
        ),
        (
            r"ata\d+(?:\.\d+)?: SATA link down",
            "SataEmpty",
            "a port without a disk; no fault",
        ),
        (
            r"md: (?:data-check|requested-resync|resync) of RAID array",
            "RaidCheck",
            "the regular check; no fault",
        ),
        (
            r"(?:blk_update_request: |print_req_error: )?(?:critical medium error|I/O error), "
            r"dev (?:fd|sr|loop|nbd|zram)\d+",
            "NoMedium",
            "a drive without a medium, or no disk at all; no fault",
        ),
        (
            r"Buffer I/O error on dev(?:ice)? (?:fd|sr|loop|nbd|zram)\d+",
            "NoMedium",
            "a drive without a medium, or no disk at all; no fault",
        ),
    )
)


def explain_benign(text: str) -> tuple[str, str] | None:
    """Return code and reason for a line that looks like a fault and is none; None for any other line.

    The agent passes such lines over; people who read a log want to know why.
    """
    if not _says_something(text):
        return None
    return next(((code, why) for pattern, code, why in _BENIGN if pattern.match(text)), None)


def classify(text: str, *, root_devices: Collection[str] = ()) -> tuple[Verdict, ...]:
    """Say what one line that the kernel wrote means; empty for lines without a meaning for health.

    Args:
        text: The record's text, without prefix or time.
        root_devices: Devices below the root file system (``sda1``, ``sda``); an error on another one does not
            take the node away from its job, because it may be a scratch disk.
    """
    if not _says_something(text):
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
        return (verdict,)
    return ()


def is_root_device(device: str, root_devices: Collection[str]) -> bool:
    """True when a device is, holds, or is a partition of one below the root file system."""
    return any(
        device == root or re.fullmatch(rf"{re.escape(device)}(?:n\d+)?p?\d*", root) is not None for root in root_devices
    )
