"""The table of what explains a rank's death names only codes that exist, and says what each word covers."""

from __future__ import annotations

import pytest

from hyperpod.core.explains import EXPLAINING_XIDS, EXPLAINS, Exits, explains
from hyperpod.core.finding import Severity, Whose
from hyperpod.health import registry
from hyperpod.health.xid import XIDS


@pytest.mark.parametrize("check", EXPLAINS)
def test_every_code_of_the_table_is_one_that_the_check_reports(check: str) -> None:
    unknown = set(EXPLAINS[check]) - set(registry.codes(check))
    assert not unknown


def test_no_xid_of_an_application_and_no_mere_information_explains_a_death() -> None:
    harmless = {n for n, x in XIDS.items() if x.whose is Whose.USER or x.severity is Severity.OK}
    assert not EXPLAINING_XIDS & harmless
    assert set(XIDS) >= EXPLAINING_XIDS


def test_every_xid_that_asks_for_a_reset_or_a_new_machine_explains_a_death() -> None:
    assert {n for n, x in XIDS.items() if x.severity is Severity.FATAL} <= EXPLAINING_XIDS


@pytest.mark.parametrize(
    ("word", "covered"),
    [
        (Exits.NONE, set()),
        (Exits.ANY, {None, 0, 6, 7, 9, 11}),
        (Exits.ERRORS, {0, 6, 7}),
        (Exits.MEMORY, {7, 9}),
        (Exits.KILL, {9}),
    ],
)
def test_a_word_covers_its_exits_and_an_unknown_one_only_when_it_covers_all(word: Exits, covered: set[int]) -> None:
    assert {s for s in (None, 0, 6, 7, 9, 11) if word.covers(s)} == covered


@pytest.mark.parametrize(
    ("check", "code", "expected"),
    [
        ("kernel_log", "Xid79", Exits.ANY),
        ("kernel_log", "Xid63", Exits.NONE),
        ("other", "Xid79", Exits.NONE),
        ("kernel_log", "FileSystemError", Exits.ERRORS),
        ("disk", "FileSystemError", Exits.NONE),
        ("nobody", "Knows", Exits.NONE),
    ],
)
def test_what_is_not_listed_explains_nothing(check: str, code: str, expected: Exits) -> None:
    assert explains(check, code) is expected
