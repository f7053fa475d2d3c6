"""What EC2 tells the machine itself: a spot interruption, a recommendation to rebalance, scheduled events.

The machine hears of an interruption first, two minutes ahead. It asks only where the agent's configuration or
``AWS_EC2_METADATA_SERVICE_ENDPOINT`` names a metadata service; elsewhere the check does nothing. An interruption is
FATAL and moves the job at once; a scheduled event is a WARN with a deadline, which keeps new work away; a word about
rebalancing is a WARN alone, since many of them are never followed by an interruption. Settings: only every check's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.node import Role
from hyperpod.errors import ProviderUnavailable
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, unknown

NAME = "ec2_notice"
SPOT, REBALANCE, EVENTS = "spot/instance-action", "events/recommendations/rebalance", "events/maintenance/scheduled"
_ACTIONS: Mapping[str, Action] = {
    "instance-reboot": Action.REBOOT,
    "system-reboot": Action.REPLACE,
    "system-maintenance": Action.REPLACE,
    "instance-retirement": Action.REPLACE,
    "instance-stop": Action.REPLACE,
}
_EVENT_TIME = "%d %b %Y %H:%M:%S GMT"


@dataclass
class Ec2NoticeCheck:
    """Reads the three notices."""

    interval_s: float = 5.0
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
    try:
        begins = datetime.strptime(str(entry.get("NotBefore")), _EVENT_TIME).replace(tzinfo=UTC)
    except ValueError:
        begins = None
    when = f" from {begins:%Y-%m-%d %H:%M} UTC" if begins else ""
    return Finding(
        NAME,
        "".join(word.capitalize() for word in code.split("-"))[:60],
        Severity.WARN,
        f"EC2 has scheduled {code.replace('-', ' ')[:60]}{when}: {str(entry.get('Description') or '')[:100]}",
        _ACTIONS.get(code, Action.NONE),
        device=str(entry.get("EventId") or ""),
        is_hard=True,
        deadline=begins if code in _ACTIONS else None,
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
