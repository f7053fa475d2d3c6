"""Findings of several checks that mean more together than each alone. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hyperpod.core.finding import Action, Finding, Severity

_KERNEL_LOG, _LINE = "kernel_log", "NeuronHardwareError"
_FABRIC_LOG = "fabric_log"
_COUNTED = frozenset({"NeuronMemoryUncorrected", "NeuronMemoryRepairable", "NeuronHardwareErrors", "NeuronResetFails"})
_ASKS = "TERMINATE"


def asks_for_replacement(finding: Finding) -> bool:
    """True for a kernel line in which the Neuron runtime asks for another machine."""
    return finding.check == _KERNEL_LOG and finding.code == _LINE and _ASKS in finding.message


def correlate(findings: Sequence[Finding], asked_before: Collection[str] = ()) -> tuple[Finding, ...]:
    """Return the findings, each event once, and with a Neuron line that asks for another machine as FATAL where a
    second fact agrees.

    The fabric manager tells of the kernel's SXids once more; the kernel's word stands.

    The text of such a line is the runtime's, written through the driver: any process that may open the device can
    write it. A counter of the same device (or of the node) that rose is a second fact, and so is the same request in
    an earlier boot of this machine.

    Args:
        findings: Open findings of this node.
        asked_before: Devices for which the same was asked in an earlier boot of this machine.
    """
    findings = _without_echoes(findings)
    if not any(asks_for_replacement(f) for f in findings):
        return tuple(findings)
    counted = {f.device for f in findings if f.check == "neuron" and f.code in _COUNTED}
    out = []
    for finding in findings:
        if asks_for_replacement(finding) and finding.severity is not Severity.FATAL:
            if finding.device in counted or "" in counted:
                why = "a counter rose too"
            elif finding.device in asked_before:
                why = "for the second time, after a reboot"
            else:
                out.append(finding)
                continue
            message = f"{finding.message}; {why}"
            finding = replace(finding, severity=Severity.FATAL, action=Action.REPLACE, is_hard=True, message=message)
        out.append(finding)
    return tuple(out)


def _without_echoes(findings: Sequence[Finding]) -> Sequence[Finding]:
    if not any(f.check == _FABRIC_LOG for f in findings):
        return findings
    told = {(f.code, device) for f in findings if f.check == _KERNEL_LOG for device in (f.device, "")}
    return [f for f in findings if f.check != _FABRIC_LOG or (f.code, f.device) not in told]
