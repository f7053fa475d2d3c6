"""What a line of the fabric manager's log means. Pure: text in, findings out; for the agent and for pasted text."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.health.pci_name import device_of

NAME = "fabric_log"

_ERROR = re.compile(
    r"detected NVSwitch (?P<word>fatal|non-fatal) error (?P<code>\d{1,6})(?!\d)"
    r"(?:.* pci bus id (?P<bus>[0-9a-fA-F:.]+))?"
)
_TOPOLOGY = re.compile(r"number of NVSwitches don't match with any supported system topology|topology mismatch")
_NO_SWITCH = re.compile(r"NV_WARN_NOTHING_TO_DO")
_TIME = re.compile(r"\[([A-Z][a-z]{2}) (\d\d) (\d{4}) (\d\d):(\d\d):(\d\d)\] \[[A-Z]+\] (?:\[tid \d+\] )?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def is_fabric_line(text: str) -> bool:
    """Say whether a line begins as those of the fabric manager's own log."""
    return _TIME.match(text) is not None


def written_at(text: str) -> datetime | None:
    """Return when a line was written; None when it does not say. The log has this machine's local time."""
    found = _TIME.match(text)
    if found is None or found[1] not in _MONTHS:
        return None
    try:
        day, year, hour, minute, second = (int(found[number]) for number in range(2, 7))
        local = datetime(year, _MONTHS.index(found[1]) + 1, day, hour, minute, second)
        return local.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def classify_fabric(text: str) -> Finding | None:
    """Return what a line says of the NVSwitches; None when it says nothing of health.

    Codes and devices are those of the same event in the kernel log.
    """
    found = _ERROR.search(text)
    if found:
        device = device_of(found["bus"]) if found["bus"] and ":" in found["bus"] else ""
        code = f"SXid{found['code']}"
        if found["word"] == "fatal":
            why = f"fatal error {found['code']} of an NVSwitch: all GPUs of the node"
            return Finding(NAME, code, Severity.FATAL, why, Action.REBOOT, device=device, is_hard=True)
        return Finding(NAME, code, Severity.WARN, f"error {found['code']} of an NVSwitch, not fatal", device=device)
    if _TOPOLOGY.search(text):
        why = "the NVSwitches that were found fit no known machine: one is missing; the fabric manager ends"
        return Finding(NAME, "TopologyMismatch", Severity.FATAL, why, Action.REBOOT, is_hard=True)
    if _NO_SWITCH.search(text):
        return Finding(NAME, "NoSwitch", Severity.OK, "this machine has no NVSwitch: no fault")
    return None
