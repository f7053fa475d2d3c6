"""What EC2's status checks, scheduled events and spot notices become; and which machine a record is about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hyperpod.adapters.aws.folder import Entry
from hyperpod.adapters.aws.machines import births_of, findings_of_spot, findings_of_status, parse_machines
from hyperpod.core.finding import Action, Severity
from hyperpod.ports.provider import BirthStatus
from tests.adapters.ec2.test_ec2_provider import make_provider, ready
from tests.fakes.aws import AccountAws, Site

OK = {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
SINCE = datetime(2025, 1, 1, tzinfo=UTC)


def status(**changes: Any) -> dict[str, Any]:
    return {"InstanceId": "i-00000000000000abc", "SystemStatus": OK, "InstanceStatus": OK, **changes}


def impaired() -> dict[str, Any]:
    return {"Status": "impaired", "Details": [{"Name": "reachability", "Status": "failed", "ImpairedSince": SINCE}]}


@pytest.mark.parametrize(
    ("key", "code", "action"),
    [
        ("SystemStatus", "SystemCheckFailed", Action.REPLACE),
        ("InstanceStatus", "InstanceCheckFailed", Action.REBOOT),
        ("AttachedEbsStatus", "VolumeCheckFailed", Action.REPLACE),
    ],
)
def test_a_failed_status_check_asks_for_what_helps(key: str, code: str, action: Action) -> None:
    (finding,) = findings_of_status(status(**{key: impaired()}))

    assert (finding.code, finding.action, finding.severity) == (code, action, Severity.FATAL)
    assert finding.since == SINCE
    assert finding.instance_id == "i-00000000000000abc"


@pytest.mark.parametrize("word", ["ok", "initializing", "insufficient-data", "not-applicable"])
def test_only_a_failed_check_is_a_finding(word: str) -> None:
    assert findings_of_status(status(SystemStatus={"Status": word})) == ()


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("instance-retirement", Action.REPLACE),
        ("instance-stop", Action.REPLACE),
        ("system-reboot", Action.REPLACE),
        ("system-maintenance", Action.REPLACE),
        ("instance-reboot", Action.REBOOT),
    ],
)
def test_a_scheduled_event_is_told_with_its_time(code: str, action: Action) -> None:
    event = {"Code": code, "Description": "running on degraded hardware", "NotBefore": SINCE, "InstanceEventId": "e1"}

    (finding,) = findings_of_status(status(Events=[event]))

    assert (finding.action, finding.severity, finding.deadline) == (action, Severity.WARN, SINCE)
    assert "2025-01-01 00:00 UTC" in finding.message
    assert finding.device == "e1"


def test_an_event_that_is_over_or_unknown_harms_nobody() -> None:
    over = {"Code": "system-reboot", "Description": "[Completed] maintenance"}
    unknown = {"Code": "something-new", "Description": "?"}

    assert findings_of_status(status(Events=[over])) == ()
    found = findings_of_status(status(Events=[unknown]))
    assert [(f.severity, f.action, f.deadline) for f in found] == [(Severity.WARN, Action.NONE, None)]


def test_a_spot_interruption_is_a_finding_before_it_happens() -> None:
    notice = {"InstanceId": "i-1", "Status": {"Code": "marked-for-termination", "Message": "no capacity"}}

    (finding,) = findings_of_spot(notice)

    assert finding.code == "SpotInterruption"
    assert findings_of_spot({"InstanceId": "i-1", "Status": {"Code": "fulfilled"}}) == ()
    assert findings_of_spot({}) == ()


def test_findings_are_given_by_node(aws: AccountAws, site: Site) -> None:
    provider = make_provider(aws, site)
    ids = ready(provider)
    stranger = status(SystemStatus=impaired())
    aws.answers["DescribeInstanceStatus"] = [
        {"InstanceStatuses": [status(InstanceId=ids["worker-2"], SystemStatus=impaired()), stranger]}
    ]

    found = provider.findings()

    assert list(found) == ["worker-2"]
    assert [finding.code for finding in found["worker-2"]] == ["SystemCheckFailed"]


def test_the_newest_record_of_a_birth_counts() -> None:
    later = SINCE + timedelta(minutes=1)
    entries = [
        Entry("births/i-1.ok", later), Entry("births/i-1.failed", SINCE), Entry("births/i-2.running", later),
        Entry("births/i-2.ok", SINCE), Entry("births/i-3.ok", SINCE), Entry("births/i-3.failed", SINCE),
        Entry("births/i-4.log", SINCE), Entry("births/odd", SINCE),
    ]  # fmt: skip

    assert births_of(entries) == {"i-1": BirthStatus.OK, "i-2": BirthStatus.RUNNING, "i-3": BirthStatus.OK}


def test_an_instance_without_our_tags_has_no_slot() -> None:
    machines, strange = parse_machines([{"InstanceId": "i-1", "Tags": [{"Key": "hyperpod:slots", "Value": "x"}]}, {}])

    assert [machine.node for machine in machines] == [""]
    assert len(strange) == 1
