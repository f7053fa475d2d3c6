"""What the provider says of its machines, before it becomes a finding that may take a node out of service.

Owns the second look at failed status checks, and the moment from which jobs no longer wait for an announced end. Only
computes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hyperpod.core.finding import Finding, Severity, is_announced

STATUS_CHECK = "ec2_status"
"""Findings of this check are opinions of a prober, which also errs: they are looked at twice."""

ANNOUNCED_CHECKS = frozenset({"ec2_event", "ec2_spot", "ec2_notice"})
"""What comes at a time that the provider has set. It is no sign of a fault of ours: the breaker does not count it."""

LAST_MINUTES = timedelta(minutes=15)
"""So long before an announced end the jobs of the machine no longer wait: time to save and to start elsewhere."""

SECOND_LOOK_AFTER = timedelta(minutes=2)
"""EC2 looks every minute: a check that fails for less may be one lost packet, or the boot before."""

Key = tuple[str, str, str, tuple[str, str, str]]
"""Node, machine, boot and finding."""


@dataclass(frozen=True)
class Notices:
    """The provider's last word: open findings by node, and since when each failed check has been seen."""

    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    first_seen: Mapping[Key, datetime] = field(default_factory=dict)


def settle(
    before: Notices, said: Mapping[str, tuple[Finding, ...]], boots: Mapping[str, str], now: datetime
) -> Notices:
    """Take in what the provider says now.

    Pure. A failed status check counts only when it has been seen in the same boot for ``SECOND_LOOK_AFTER``; until
    then it is a WARN. Everything else the provider announces as a fact, and is taken as one.

    Args:
        before: The word before this one.
        said: Every finding by node; what is no longer in it has ended.
        boots: The present boot of every node that is heard.
        now: When it was said (UTC).
    """
    first_seen: dict[Key, datetime] = {}
    findings: dict[str, tuple[Finding, ...]] = {}
    for node, found in sorted(said.items()):
        settled = []
        for finding in found:
            if finding.check == STATUS_CHECK and finding.severity is Severity.FATAL:
                key = (node, finding.instance_id, boots.get(node, ""), finding.key)
                first_seen[key] = before.first_seen.get(key, now)
                if now - first_seen[key] < SECOND_LOOK_AFTER:
                    finding = _as_warning(finding, "not seen for long enough to count")
            settled.append(finding)
        findings[node] = tuple(settled)
    return Notices(findings, first_seen)


def due_findings(findings: Collection[Finding], *, is_heard: bool, now: datetime) -> tuple[Finding, ...]:
    """Return a node's findings as they count at ``now``.

    Pure. An announced end becomes FATAL ``LAST_MINUTES`` before it. A failed check of the system on the machine is a
    WARN as long as that system's agent is heard: it knows better.
    """
    due = []
    for finding in findings:
        if finding.check == STATUS_CHECK and finding.code == "InstanceCheckFailed" and is_heard:
            if finding.severity is Severity.FATAL:
                finding = _as_warning(finding, "its agent is heard all the same")
        elif is_announced(finding) and finding.deadline is not None and finding.deadline - now <= LAST_MINUTES:
            finding = replace(finding, severity=Severity.FATAL)
        due.append(finding)
    return tuple(due)


def is_announced_cause(cause: str) -> bool:
    """Say whether a repair's cause is something that the provider has announced."""
    return cause.partition("/")[0] in ANNOUNCED_CHECKS


def is_providers_cause(cause: str) -> bool:
    """Say whether a repair's cause is known from the provider alone."""
    return cause.partition("/")[0] in {"ec2_event", "ec2_spot", STATUS_CHECK}


def _as_warning(finding: Finding, why: str) -> Finding:
    return replace(finding, severity=Severity.WARN, message=f"{finding.message} ({why})")
