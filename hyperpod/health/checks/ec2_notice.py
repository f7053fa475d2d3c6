"""What EC2 tells the machine itself: a spot interruption, a recommendation to rebalance, scheduled events.

The machine hears of an interruption first, two minutes ahead. It asks only where the agent's configuration or
``AWS_EC2_METADATA_SERVICE_ENDPOINT`` names a metadata service; elsewhere the check does nothing. An interruption is
FATAL and moves the job at once; a scheduled event is a WARN with a deadline, which keeps new work away; a word about
rebalancing is a WARN alone, since many of them are never followed by an interruption.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.node import Role
from hyperpod.errors import ProviderUnavailable
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, setting, unknown

NAME = "ec2_notice"
SPOT, REBALANCE, EVENTS = "spot/instance-action", "events/recommendations/rebalance", "events/maintenance/scheduled"
_EVENTS: Mapping[str, tuple[str, Action]] = {
    "instance-reboot": ("InstanceReboot", Action.REBOOT),
    "system-reboot": ("SystemReboot", Action.REPLACE),
    "system-maintenance": ("SystemMaintenance", Action.REPLACE),
    "instance-retirement": ("InstanceRetirement", Action.REPLACE),
    "instance-stop": ("InstanceStop", Action.REPLACE),
}
_EVENT_TIME = "%d %b %Y %H:%M:%S GMT"


@dataclass
class Ec2NoticeCheck:
    """Reads the three notices."""

    about: ClassVar[About] = About(
        title="EC2 announces nothing to this machine",
        reads="The instance's metadata service (version 2): the spot interruption notice, the recommendation to "
        "rebalance, and scheduled events. Only where a service is named; elsewhere nothing is asked.",
        means="A spot machine is taken back within two minutes, or a machine will be rebooted, stopped or retired at "
        "an announced time. Most recommendations to rebalance are never followed by an interruption.",
        does="An interruption is FATAL and moves the job at once. A scheduled event is WARN with a deadline: no new "
        "work, and the machine is replaced shortly before. A recommendation to rebalance is WARN alone.",
        codes={
            "SpotInterruption": "EC2 takes this spot machine back.",
            "RebalanceRecommended": "EC2 sees a raised risk that it will.",
            "InstanceReboot": "A reboot of the machine is scheduled; one of ours before it is enough.",
            "SystemReboot": "A reboot of the machine below is scheduled.",
            "SystemMaintenance": "Maintenance of the machine below is scheduled.",
            "InstanceRetirement": "The machine below is taken out of service.",
            "InstanceStop": "The machine will be stopped.",
            "ScheduledEvent": "Something else is scheduled.",
            "MetadataSilent": "The metadata service does not answer.",
            "NoticeNotUnderstood": "A notice has a form that is not known.",
        },
        source="EC2 user guide: spot instance interruption notices, scheduled events.",
    )
    interval_s: float = setting(5.0, "Seconds between two looks; an interruption is announced two minutes ahead.")
    deadline_s: float = 15.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Ask and parse; a service that does not answer is UNKNOWN, one that was not named is not asked."""
        if ports.metadata is None:
            return Result()
        try:
            texts = [ports.metadata.read(path) or "" for path in (SPOT, REBALANCE, EVENTS)]
        except ProviderUnavailable as error:
            return Result((unknown(NAME, "MetadataSilent", error.message),))
        return Result(parse_notices(*texts))


def parse_notices(spot: str, rebalance: str, events: str) -> tuple[Finding, ...]:
    """Return what the three texts say; an empty one says nothing. Pure."""
    return (*_spot(spot), *_rebalance(rebalance), *_events(events))


def _spot(text: str) -> tuple[Finding, ...]:
    if not text.strip():
        return ()
    data = _object(text)
    action = str(data.get("action") or "")
    if action == "hibernate":
        action = "stop"
    if action not in ("terminate", "stop"):
        return (unknown(NAME, "NoticeNotUnderstood", f"spot notice: {text[:150]!r}", device=SPOT),)
    when = _iso_time(data.get("time"))
    at = f" at {when:%H:%M:%S} UTC" if when else " within two minutes"
    return (
        Finding(
            NAME,
            "SpotInterruption",
            Severity.FATAL,
            f"EC2 takes this spot machine back ({action}){at}",
            Action.REPLACE,
            is_hard=True,
            evidence=text[:300],
            deadline=when,
        ),
    )


def _rebalance(text: str) -> tuple[Finding, ...]:
    if not text.strip():
        return ()
    when = _iso_time(_object(text).get("noticeTime"))
    since = f" since {when:%Y-%m-%d %H:%M} UTC" if when else ""
    message = f"EC2 sees a raised risk that this spot machine is taken back{since}"
    return (Finding(NAME, "RebalanceRecommended", Severity.WARN, message, is_hard=True, evidence=text[:300]),)


def _events(text: str) -> tuple[Finding, ...]:
    if not text.strip():
        return ()
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        return (unknown(NAME, "NoticeNotUnderstood", f"scheduled events: {text[:150]!r}", device=EVENTS),)
    return tuple(_event(entry) for entry in entries if isinstance(entry, dict) and entry.get("State") == "active")


def _event(entry: Mapping[str, Any]) -> Finding:
    code = str(entry.get("Code") or "scheduled-event")
    name, action = _EVENTS.get(code, ("ScheduledEvent", Action.NONE))
    try:
        begins = datetime.strptime(str(entry.get("NotBefore")), _EVENT_TIME).replace(tzinfo=UTC)
    except ValueError:
        begins = None
    when = f" from {begins:%Y-%m-%d %H:%M} UTC" if begins else ""
    return Finding(
        NAME,
        name,
        Severity.WARN,
        f"EC2 has scheduled {code.replace('-', ' ')[:60]}{when}: {str(entry.get('Description') or '')[:100]}",
        action,
        device=str(entry.get("EventId") or ""),
        is_hard=True,
        deadline=begins if action is not Action.NONE else None,
    )


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _iso_time(value: object) -> datetime | None:
    try:
        when = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
