"""Findings: the typed result of a health check, and the rules that combine them.

Owns severities, actions and the finding record. Must not know where a finding came from or act on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any


class Severity(IntEnum):
    """What a check says. The numbers are the exit codes of Nagios plugins."""

    OK = 0
    WARN = 1
    FATAL = 2
    UNKNOWN = 3


class Action(StrEnum):
    """What a finding asks for. ``REQUEUE`` concerns jobs, the others nodes; Reboot and Replace as AWS says them."""

    NONE = "None"
    DRAIN = "Drain"
    REBOOT = "Reboot"
    REPLACE = "Replace"
    REQUEUE = "Requeue"


ANY_PEER = "?"
"""``Finding.peer`` of a counter that accuses somebody at the other end without saying whom."""


class Whose(StrEnum):
    """Whose fault a finding is; printed in drain reasons."""

    NODE = "node"
    USER = "user"
    SITE = "site"


@dataclass(frozen=True)
class Finding:
    """One thing a check believes about one node since one boot.

    Attributes:
        check: Stable id of the check, e.g. ``kernel_log``.
        code: CamelCase reason, stable for programs, e.g. ``Xid79``.
        severity: UNKNOWN never leads to a destructive action.
        message: One sentence for people.
        action: What to do about it when it is FATAL.
        since: When it was first seen (aware UTC).
        boot_id: Boot of the node that it belongs to; a later boot makes it void.
        instance_id: Machine that it belongs to; another machine makes it void.
        device: Part of the node (PCI address, mount, interface), empty for the whole node.
        whose: Whose fault it is.
        is_hard: A fact that needs no second look; soft facts are damped before they get here.
        evidence: The raw text that proves it, at most a few hundred characters.
        job_id: The job concerned, where known.
        peer: Node that it accuses instead of its own, as counters of unanswered messages do; ``?`` when it does not
            say which. Such a finding is held against the peer, never against the node that reports it.
        would: What a finding of a check that is only observed would have asked for; NONE for all others.
        deadline: When the machine is taken away or stopped, as its provider announced; until shortly before, jobs may
            go on. None: nothing is announced.
    """

    check: str
    code: str
    severity: Severity
    message: str
    action: Action = Action.NONE
    since: datetime | None = None
    boot_id: str = ""
    instance_id: str = ""
    device: str = ""
    whose: Whose = Whose.NODE
    is_hard: bool = False
    evidence: str = ""
    job_id: int | None = None
    peer: str = ""
    would: Action = Action.NONE
    deadline: datetime | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the finding on its node: check, code, device."""
        return (self.check, self.code, self.device)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; ``since`` in ISO 8601."""
        return {
            "check": self.check,
            "code": self.code,
            "severity": self.severity.name,
            "message": self.message,
            "action": self.action.value,
            "since": self.since.isoformat() if self.since else None,
            "boot_id": self.boot_id,
            "instance_id": self.instance_id,
            "device": self.device,
            "whose": self.whose.value,
            "is_hard": self.is_hard,
            "evidence": self.evidence,
            "job_id": self.job_id,
            "peer": self.peer,
            "would": self.would.value,
            "deadline": self.deadline.isoformat() if self.deadline else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Build a finding from ``to_dict``'s output.

        Raises:
            KeyError, ValueError: if the mapping is not a finding.
        """
        since, deadline = data.get("since"), data.get("deadline")
        job_id = data.get("job_id")
        return cls(
            check=str(data["check"]),
            code=str(data["code"]),
            severity=Severity[str(data["severity"])],
            message=str(data.get("message", "")),
            action=Action(str(data.get("action", "None"))),
            since=datetime.fromisoformat(since) if since else None,
            boot_id=str(data.get("boot_id", "")),
            instance_id=str(data.get("instance_id", "")),
            device=str(data.get("device", "")),
            whose=Whose(str(data.get("whose", "node"))),
            is_hard=bool(data.get("is_hard", False)),
            evidence=str(data.get("evidence", ""))[:500],
            job_id=int(job_id) if job_id is not None else None,
            peer=str(data.get("peer", "")),
            would=Action(str(data.get("would", "None"))),
            deadline=datetime.fromisoformat(deadline) if deadline else None,
        )


_BADNESS = {Severity.OK: 0, Severity.WARN: 1, Severity.UNKNOWN: 2, Severity.FATAL: 3}
_STRENGTH = {Action.NONE: 0, Action.REQUEUE: 1, Action.DRAIN: 2, Action.REBOOT: 3, Action.REPLACE: 4}


def worst_severity(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity; FATAL before UNKNOWN before WARN before OK; OK for no findings."""
    return worst_of(f.severity for f in findings)


def worst_of(severities: Iterable[Severity]) -> Severity:
    """Return the worst of some severities, in the same order."""
    return max(severities, key=_BADNESS.__getitem__, default=Severity.OK)


def strongest_action(findings: Iterable[Finding]) -> Action:
    """Return the strongest action asked for by FATAL findings; NONE when there is none."""
    return max(
        (f.action for f in findings if f.severity is Severity.FATAL), key=_STRENGTH.__getitem__, default=Action.NONE
    )


def is_announced(finding: Finding) -> bool:
    """Say whether a finding tells of an end still to come: new work is kept away, jobs may end by themselves."""
    return (
        finding.severity is Severity.WARN
        and finding.deadline is not None
        and finding.action in (Action.DRAIN, Action.REBOOT, Action.REPLACE)
    )


def observed(finding: Finding) -> Finding:
    """Return a finding of a check that is only observed.

    One that would take the node out of service is a WARN that says what would have been done; for a user's or the
    site's fault, nothing. All others stay as they are.
    """
    if finding.severity is not Severity.FATAL and not is_announced(finding):
        return finding
    is_drained = finding.whose is Whose.NODE and finding.action is not Action.NONE
    would = finding.action if is_drained else Action.NONE
    then = "" if would in (Action.NONE, Action.DRAIN) else f" and asked for {would.value}"
    what = f"observed only: would have drained the node{then}" if is_drained else "observed only"
    message = f"{finding.message} ({what})"
    return replace(finding, severity=Severity.WARN, action=Action.NONE, message=message, would=would)


@dataclass(frozen=True)
class OpenFindings:
    """The set of open findings of one node; it is drained exactly while one of them is FATAL.

    Findings open and close in any order; a change of boot or instance closes those of the one before.
    """

    findings: Mapping[tuple[str, str, str], Finding] = field(default_factory=dict)

    def opened(self, finding: Finding) -> OpenFindings:
        """Return the set with this finding; one with the same key keeps its first ``since``."""
        before = self.findings.get(finding.key)
        if before is not None and before.boot_id == finding.boot_id and before.since is not None:
            finding = Finding(**{**finding.__dict__, "since": before.since})
        return OpenFindings({**self.findings, finding.key: finding})

    def closed(self, key: tuple[str, str, str]) -> OpenFindings:
        """Return the set without the finding of this key."""
        return OpenFindings({k: f for k, f in self.findings.items() if k != key})

    def of_machine(self, instance_id: str, boot_id: str) -> OpenFindings:
        """Return only the findings of this machine in this boot."""
        kept = {k: f for k, f in self.findings.items() if f.instance_id == instance_id and f.boot_id == boot_id}
        return OpenFindings(kept)

    @property
    def is_fatal(self) -> bool:
        """True while one of the findings is FATAL."""
        return any(f.severity is Severity.FATAL for f in self.findings.values())
