"""What is said of the labelled corpus: every entry exactly, and the figures over all of it."""

from __future__ import annotations

import pytest

from tests.health.labelled import Entry, confusion, grep_for_xid, load, said, table

ENTRIES = load()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_of_the_corpus_is_explained_as_it_is_labelled(entry: Entry) -> None:
    assert said(entry) == entry.expected, entry.text.decode(errors="replace")


def test_the_corpus_is_large_and_full_of_look_alikes() -> None:
    assert len(ENTRIES) >= 250
    assert sum(entry.is_look_alike for entry in ENTRIES) >= 0.4 * len(ENTRIES)


def test_look_alikes_are_labelled_as_no_fault() -> None:
    for entry in ENTRIES:
        if entry.is_look_alike and len(entry.expected) == 1:
            assert entry.expected[0][1] not in ("reboot", "replace"), entry.name


def test_faults_are_found_and_others_are_not_called_faults() -> None:
    result = confusion([(entry, said(entry)) for entry in ENTRIES])
    assert result.precision >= 0.99, table(result)
    assert result.recall >= 0.99, table(result)


def test_a_search_for_the_word_is_far_worse() -> None:
    result = confusion([(entry, grep_for_xid(entry)) for entry in ENTRIES])
    assert result.precision < 0.7
    assert result.recall < 0.7
