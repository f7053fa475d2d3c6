"""What dcgmi prints, as values; and that a tool which failed says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hyperpod.errors import UnexpectedOutput
from hyperpod.health.parse_dcgm import DcgmResult, DcgmTable, Verdict, parse_diag, parse_document, parse_health


def diag(*tests: Any, root: str = "DCGM Diagnostic", **more: Any) -> str:
    return json.dumps({root: {"test_categories": [{"category": "Hardware", "tests": list(tests)}], **more}})


def result(status: str, number: int = 0, *warnings: Any) -> dict[str, Any]:
    return {"entity_group": "GPU", "entity_id": number, "status": status, "warnings": list(warnings)}


def test_a_passed_diagnostic_of_release_four() -> None:
    text = diag({"name": "memory", "results": [result("Pass", 0), result("Pass", 1)]}, {"name": "pcie", "results": []})
    assert parse_diag(text) == (
        DcgmResult("GPU 0", "memory", Verdict.PASS),
        DcgmResult("GPU 1", "memory", Verdict.PASS),
    )


def test_a_failure_is_told_with_its_words() -> None:
    broken = {"error_id": 45, "error_severity": 2, "warning": "Detected 1 DBE\nfor GPU 3."}
    text = diag({"name": "memory", "results": [result("Fail", 3, broken, "and more")]})
    assert parse_diag(text) == (
        DcgmResult("GPU 3", "memory", Verdict.FAIL, "Detected 1 DBE for GPU 3.; and more"),
    )  # fmt: skip


def test_a_failure_for_configuration_alone_is_a_warning() -> None:
    off = {"error_category": 8, "error_severity": 5, "warning": "Persistence mode for GPU 0 is disabled."}
    assert parse_diag(diag({"name": "software", "results": [result("Fail", 0, off)]}))[0].verdict is Verdict.WARN
    broken = {"error_severity": 2, "warning": "broken"}
    assert parse_diag(diag({"name": "software", "results": [result("Fail", 0, off, broken)]}))[0].verdict is (
        Verdict.FAIL
    )
    assert parse_diag(diag({"name": "software", "results": [result("Fail", 0)]}))[0].verdict is Verdict.FAIL


def test_older_releases_number_gpus_in_a_list_print_nulls_and_warn_before_the_object() -> None:
    test = {"name": "Denylist", "results": [{"gpu_ids": "0,1,2,3", "status": "PASS"}]}
    text = "WARNING: something\n" + diag(test, None, root="DCGM GPU Diagnostic")
    assert parse_diag(text) == (DcgmResult("GPU 0,1,2,3", "Denylist", Verdict.PASS),)


def test_every_result_knows_its_line() -> None:
    text = json.dumps(
        json.loads(
            diag(
                {"name": "pcie", "results": [result("Pass", 0), result("Fail", 1)]},
                {"name": "x", "results": [result("Pass")]},
            )
        ),
        indent=1,
    )
    lines = text.split("\n")
    assert [lines[found.line - 1].strip(' ",') for found in parse_diag(text)] == [
        'status": "Pass',
        'status": "Fail',
        'status": "Pass',
    ]


def test_a_document_of_another_tool_is_not_taken() -> None:
    for text in ("", "[]", "{", '{"a": 1}', '{"body": {"a": 1}, "header": ["other"]}', "[" * 100_000):
        assert parse_document(text) is None


def test_a_word_above_counts_only_without_details_below() -> None:
    table = DcgmTable()
    for number, text in enumerate(["| Diagnostic | Result |", "| pcie | Fail |", "|  | GPU3: Fail |"], 1):
        found = table.feed(number, text)
    assert [(f.entity, f.test, f.line) for f in found] == [("GPU 3", "pcie", 3)]
    assert table.end() == []
    table.feed(1, "| Diagnostic | Result |")
    table.feed(2, "| pcie | Fail - All |")
    assert [(f.entity, f.test, f.verdict) for f in table.end()] == [("", "pcie", Verdict.FAIL)]


def test_skipped_is_neither_passed_nor_failed() -> None:
    assert parse_diag(diag({"name": "pulse", "results": [result("Skip")]}))[0].verdict is Verdict.SKIP


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Error: unable to establish a connection to the specified host: localhost",
        "{",
        "[]",
        "{}",
        '{"DCGM Diagnostic": null}',
        '{"DCGM Diagnostic": {"version": "4.2.3"}}',
        diag(),
        diag({"name": "memory", "results": []}),
        diag({"name": "memory", "results": [{"status": "Splendid"}]}),
        diag({"name": "memory", "results": [{"status": None}]}),
        diag({"name": "memory"}),
        diag({"results": [result("Pass")]}),
        diag({"name": "memory", "results": [result("Pass")]}, runtime_error="the host engine went away"),
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_what_is_no_diagnostic_is_refused(text: str) -> None:
    with pytest.raises(UnexpectedOutput):
        parse_diag(text)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"Overall Health": None},
        {"Overall Health": {"value": "Internal error"}},
        {"Overall Health": {"value": "Failure"}},
        {"Overall Health": {"value": "Healthy"}, "GPU": {"children": []}},
        {"Overall Health": {"value": "Warning"}, "GPU": {"children": {"0": {"children": {}}}}},
    ],
)
def test_what_is_no_health_report_is_refused(body: Any) -> None:
    with pytest.raises(UnexpectedOutput):
        parse_health(json.dumps({"body": body}))
