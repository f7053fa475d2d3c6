"""Findings: how several of them combine, and when an old one counts no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperpod.core.finding import (
    Action,
    Finding,
    OpenFindings,
    Severity,
    Whose,
    observed,
    strongest_action,
    worst_severity,
)
from tests.core.worlds import ago, fatal, findings, machine


def of_severity(severity: Severity) -> Finding:
    return replace(fatal(severity.name), severity=severity)


@pytest.mark.parametrize(
    ("severities", "worst"),
    [
        ([], Severity.OK),
        ([Severity.OK, Severity.WARN], Severity.WARN),
        ([Severity.WARN, Severity.UNKNOWN], Severity.UNKNOWN),
        ([Severity.UNKNOWN, Severity.FATAL], Severity.FATAL),
    ],
)
def test_fatal_is_worse_than_not_knowing_and_not_knowing_is_worse_than_a_warning(
    severities: list[Severity], worst: Severity
) -> None:
    assert worst_severity(map(of_severity, severities)) is worst


def test_the_numbers_are_the_exit_codes_of_nagios() -> None:
    assert [int(s) for s in (Severity.OK, Severity.WARN, Severity.FATAL, Severity.UNKNOWN)] == [0, 1, 2, 3]


def test_only_fatal_findings_ask_for_an_action() -> None:
    unknown = replace(fatal(action=Action.REPLACE), severity=Severity.UNKNOWN)
    assert strongest_action([unknown]) is Action.NONE
    assert strongest_action([unknown, fatal(action=Action.DRAIN), fatal(action=Action.REBOOT)]) is Action.REBOOT


def test_a_finding_that_opens_again_in_the_same_boot_keeps_its_beginning() -> None:
    first = fatal(since=ago(60), boot_id="b1")
    opened = OpenFindings().opened(first).opened(replace(first, since=ago(1), message="again"))
    [kept] = opened.findings.values()
    assert (kept.since, kept.message) == (ago(60), "again")
    other_boot = opened.opened(replace(first, since=ago(1), boot_id="b2"))
    assert next(iter(other_boot.findings.values())).since == ago(1)


def test_findings_of_another_boot_or_machine_are_void() -> None:
    mine = fatal("A", instance_id=machine(1), boot_id="b1")
    others = [fatal("B", instance_id=machine(2), boot_id="b1"), fatal("C", instance_id=machine(1), boot_id="b0")]
    opened = OpenFindings()
    for finding in (mine, *others):
        opened = opened.opened(finding)
    assert set(opened.of_machine(machine(1), "b1").findings) == {mine.key}


def test_closing_what_is_not_open_changes_nothing() -> None:
    opened = OpenFindings().opened(fatal())
    assert opened.closed(("disk", "Full", "/")).findings == opened.findings


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(findings, st.booleans()), max_size=8))
def test_the_set_is_fatal_exactly_while_one_of_its_findings_is_whatever_the_order(
    steps: list[tuple[Finding, bool]],
) -> None:
    opened = OpenFindings()
    wanted: dict[tuple[str, str, str], Severity] = {}
    for finding, is_open in steps:
        if is_open:
            opened = opened.opened(finding)
            wanted[finding.key] = finding.severity
        else:
            opened = opened.closed(finding.key)
            wanted.pop(finding.key, None)
        assert opened.is_fatal is (Severity.FATAL in wanted.values())


@settings(max_examples=30, deadline=None)
@given(findings)
def test_a_finding_survives_the_wire(finding: Finding) -> None:
    assert Finding.from_dict(finding.to_dict()) == finding


def test_a_mapping_that_is_no_finding_is_refused() -> None:
    with pytest.raises((KeyError, ValueError)):
        Finding.from_dict({"check": "disk", "code": "Full", "severity": "VERY_BAD"})
    assert fatal().whose is Whose.NODE


@pytest.mark.parametrize(
    ("whose", "action", "would", "text"),
    [
        (Whose.NODE, Action.REBOOT, Action.REBOOT, "would have drained the node and asked for Reboot"),
        (Whose.NODE, Action.DRAIN, Action.DRAIN, "would have drained the node)"),
        (Whose.SITE, Action.DRAIN, Action.NONE, "(observed only)"),
        (Whose.USER, Action.DRAIN, Action.NONE, "(observed only)"),
        (Whose.NODE, Action.NONE, Action.NONE, "(observed only)"),
    ],
)
def test_an_observed_finding_says_what_would_really_have_been_done(
    whose: Whose, action: Action, would: Action, text: str
) -> None:
    found = observed(Finding("disk", "DiskFull", Severity.FATAL, "full", action, whose=whose))
    assert (found.severity, found.action, found.would) == (Severity.WARN, Action.NONE, would)
    assert text in found.message
    assert Finding.from_dict(found.to_dict()) == found
