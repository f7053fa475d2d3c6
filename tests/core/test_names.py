"""Names: what is allowed, and that node names can be taken apart again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.names import (
    is_name,
    node_name,
    parse_cluster_name,
    parse_group_name,
    parse_instance_id,
    parse_job_id,
    parse_node_name,
    split_node_name,
)
from hyperpod.errors import UsageError

GROUP_NAMES = st.from_regex(r"[a-zA-Z0-9](-{0,3}[a-zA-Z0-9]){0,15}", fullmatch=True)


@pytest.mark.parametrize("text", ["a", "A9", "worker-group-1", "a--b", "x" * 63, "1"])
def test_a_valid_name_is_taken(text: str) -> None:
    assert parse_cluster_name(text) == text
    assert parse_group_name(text) == text


@pytest.mark.parametrize("text", ["", "-a", "a-", "a_b", "a b", "x" * 64, "é", "a\n", "٣"])
def test_an_invalid_name_is_refused_with_the_rule(text: str) -> None:
    assert not is_name(text)
    with pytest.raises(UsageError, match="is not a valid cluster name: allowed are 1 to 63 letters"):
        parse_cluster_name(text)
    with pytest.raises(UsageError, match="is not a valid instance group name"):
        parse_group_name(text)


@given(GROUP_NAMES, st.integers(min_value=1, max_value=6758))
def test_a_node_name_is_taken_apart_into_what_it_was_made_of(group: str, index: int) -> None:
    node = node_name(group, index)
    assert parse_node_name(node) == node
    assert split_node_name(node) == (group, index)


@pytest.mark.parametrize("text", ["worker", "worker-0", "worker-01", "-1", "a_b-1", "worker-1-", "w" * 62 + "-1", ""])
def test_what_is_no_node_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a node name"):
        parse_node_name(text)


def test_a_node_has_an_index_from_1() -> None:
    with pytest.raises(UsageError):
        node_name("worker", 0)


def test_an_instance_id_has_17_digits() -> None:
    assert parse_instance_id("i-0123456789abcdef0") == "i-0123456789abcdef0"
    for text in ("i-0123", "0123456789abcdef0", "i-0123456789ABCDEF0", "i-0123456789abcdef01"):
        with pytest.raises(UsageError, match="is not an instance id"):
            parse_instance_id(text)


def test_a_job_id_is_a_number_of_slurm() -> None:
    assert parse_job_id("42") == 42
    for text in ("0", "-1", "4.2", "", "x", "4294967296", "9" * 5000, "٣"):
        with pytest.raises(UsageError, match="is not a job id"):
            parse_job_id(text)
