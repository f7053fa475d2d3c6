"""What prepare and unprepare would do: order, repetition, and what is never removed."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.account import (
    Do,
    Found,
    Wanted,
    all_parts,
    check_wanted,
    parts_of,
    plan_prepare,
    plan_unprepare,
    spec_lines,
)
from hyperpod.errors import ConfigError

WANTED = Wanted("main", "us-west-2", "111122223333", "us-west-2a")
KEYS = [part.key for part in parts_of(WANTED)]


def everything(**changes: Found) -> dict[str, Found]:
    return {key: Found(f"id-{key}") for key in KEYS} | changes


def test_an_empty_account_gets_everything_in_an_order_that_works() -> None:
    steps = plan_prepare(WANTED, {})

    assert {step.do for step in steps} == {Do.MAKE}
    order = [step.part.key for step in steps]
    for first, second in (
        ("vpc", "private-subnet"), ("internet-gateway", "nat"), ("nat-address", "nat"), ("nat", "private-routes"),
        ("private-routes", "s3-endpoint"), ("security-group", "file-system"), ("node-role", "node-profile"),
    ):  # fmt: skip
        assert order.index(first) < order.index(second)


def test_a_prepared_account_is_left_alone() -> None:
    assert {step.do for step in plan_prepare(WANTED, everything())} == {Do.KEEP}
    assert not any(step.changes for step in plan_prepare(WANTED, everything()))


@given(st.sets(st.sampled_from(KEYS)))
def test_an_interrupted_preparation_makes_only_what_is_missing(there: set[str]) -> None:
    steps = plan_prepare(WANTED, {key: Found(f"id-{key}") for key in there})

    assert {step.part.key for step in steps if step.do is Do.MAKE} == set(KEYS) - there


def test_what_is_incomplete_is_mended_and_what_is_young_waited_for() -> None:
    found = everything(vpc=Found("vpc-1", faults=("enableDnsSupport is off",)), nat=Found("nat-1", is_ready=False))
    by_key = {step.part.key: step for step in plan_prepare(WANTED, found)}

    assert (by_key["vpc"].do, by_key["vpc"].why) == (Do.FIX, "enableDnsSupport is off")
    assert by_key["nat"].do is Do.WAIT


def test_a_network_of_somebody_else_is_used_as_it_is() -> None:
    taking = replace(WANTED, take={"vpc": "vpc-9", "private-subnet": "subnet-9"})
    found = {"vpc": Found("vpc-9"), "private-subnet": Found("subnet-9")}

    by_key = {step.part.key: step for step in plan_prepare(taking, found)}

    assert by_key["vpc"].do is Do.TAKE
    assert "nat" not in by_key
    assert by_key["security-group"].do is Do.MAKE
    with pytest.raises(ConfigError, match="subnet-9 is not there"):
        plan_prepare(taking, {"vpc": Found("vpc-9")})


def test_without_nat_the_services_are_reached_by_endpoints() -> None:
    keys = {part.key for part in parts_of(replace(WANTED, has_nat=False))}

    assert {"ec2-endpoint", "ssm-endpoint", "s3-endpoint"} <= keys
    assert not keys & {"nat", "internet-gateway"}


def test_roles_are_only_those_of_the_providers() -> None:
    assert "execution-role" not in {part.key for part in parts_of(replace(WANTED, providers=frozenset({"ec2"})))}
    assert "head-role" not in {part.key for part in parts_of(replace(WANTED, providers=frozenset({"sagemaker"})))}


def test_removal_goes_backwards_and_spares_data() -> None:
    found = everything(
        bucket=Found("bucket-1", data="objects"), **{"file-system": Found("fs-1", data="1200 GiB of files")}
    )

    by_key = {step.part.key: step for step in plan_unprepare(WANTED, found)}

    assert by_key["bucket"].do is Do.LEAVE
    assert "--delete-data bucket-1" in by_key["bucket"].why
    assert {by_key[key].do for key in ("file-system", "vpc", "private-subnet", "security-group")} == {Do.LEAVE}
    assert by_key["nat"].do is Do.REMOVE
    order = list(by_key)
    assert order.index("nat") < order.index("nat-address") < order.index("vpc")
    assert order.index("node-profile") < order.index("node-role")


def test_data_goes_when_it_is_named() -> None:
    found = everything(
        bucket=Found("bucket-1", data="objects"), **{"file-system": Found("fs-1", data="1200 GiB of files")}
    )

    steps = plan_unprepare(WANTED, found, {"bucket-1", "fs-1"})

    assert {step.do for step in steps} == {Do.REMOVE}
    with pytest.raises(ConfigError, match="vpc-9"):
        plan_unprepare(WANTED, found, {"vpc-9"})


def test_what_was_taken_over_is_never_removed() -> None:
    taking = replace(WANTED, take={"vpc": "id-vpc", "private-subnet": "id-private-subnet"})

    removed = {step.part.key for step in plan_unprepare(taking, everything()) if step.do is Do.REMOVE}

    assert not removed & {"vpc", "private-subnet"}


def test_an_empty_bucket_holds_no_data() -> None:
    assert [s.do for s in plan_unprepare(WANTED, {"bucket": Found("b")})] == [Do.REMOVE]


@given(st.sets(st.sampled_from([part.key for part in all_parts(WANTED)])))
def test_only_what_is_there_is_removed(there: set[str]) -> None:
    steps = plan_unprepare(WANTED, {key: Found(f"id-{key}") for key in there})

    assert {step.part.key for step in steps} == there


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "no_underscore"}, "no name"),
        ({"cidr": "10.1.0.0/33"}, "--cidr"),
        ({"cidr": "8.8.0.0/16"}, "private"),
        ({"file_system_gib": 1300}, "no size"),
        ({"take": {"vpc": "vpc-1"}}, "--subnet"),
        ({"take": {"private-subnet": "subnet-1"}}, "--vpc"),
        ({"providers": frozenset({"azure"})}, "--for"),
    ],
)
def test_a_wish_that_makes_no_sense_names_the_option(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_wanted(replace(WANTED, **changes))  # type: ignore[arg-type]
    assert text in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("cidr", ["10.1.0.0/16", "10.0.0.0/20", "192.168.7.0/24"])
def test_subnets_lie_in_the_network_and_apart(cidr: str) -> None:
    wanted = replace(WANTED, cidr=cidr)
    check_wanted(wanted)
    private, public = ipaddress.IPv4Network(wanted.private_cidr), ipaddress.IPv4Network(wanted.public_cidr)

    assert private.subnet_of(ipaddress.IPv4Network(cidr))
    assert public.subnet_of(ipaddress.IPv4Network(cidr))
    assert not private.overlaps(public)


def test_the_bucket_is_named_as_hyperpod_wants_it() -> None:
    assert WANTED.bucket_name.startswith("sagemaker-")
    assert len(WANTED.bucket_name) <= 63


def test_what_a_specification_needs_is_said() -> None:
    ids = {"security-group": "sg-1", "private-subnet": "subnet-1", "bucket": "b", "execution-role": "r"}

    text = "\n".join(spec_lines(WANTED, ids))

    assert "SecurityGroupIds: [sg-1]" in text
    assert "arn:aws:iam::111122223333:role/r" in text
