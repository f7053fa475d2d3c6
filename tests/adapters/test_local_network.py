"""Subnets and addresses: nothing on this machine is disturbed, and a node name keeps its address."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.adapters.local.network import (
    Networks,
    assign_addresses,
    choose_subnets,
    network_name,
    parse_routes,
)
from hyperpod.adapters.local.podman import Podman
from hyperpod.errors import AlreadyExists, ConfigError, ProviderError
from tests.fakes.podman import FakePodman

NET = IPv4Network("10.89.7.0/24")


def networks(fake: FakePodman) -> Networks:
    return Networks(Podman(fake), fake)


def test_reads_routes_of_all_kinds_but_no_default() -> None:
    text = "default via 1.2.3.4 dev eth0\n10.0.0.0/8 dev a\nlocal 10.89.3.1 dev b\nblackhole 169.254.169.254\n\nbad x\n"

    assert parse_routes(text) == [
        IPv4Network("10.0.0.0/8"), IPv4Network("10.89.3.1/32"), IPv4Network("169.254.169.254/32"),
    ]  # fmt: skip


def test_chosen_subnets_never_overlap_what_is_taken() -> None:
    taken = [IPv4Network("10.89.0.0/17"), IPv4Network("10.89.200.5/32")]

    chosen = choose_subnets("demo", taken)

    assert len(chosen) == 127
    assert not any(subnet.overlaps(other) for subnet in chosen for other in taken)


def test_two_clusters_begin_their_search_at_different_places() -> None:
    assert choose_subnets("one", [])[0] != choose_subnets("two", [])[0]


def test_makes_a_closed_network_and_finds_it_again() -> None:
    fake = FakePodman()

    first = networks(fake).ensure("demo", subnet=None, internet=False)
    again = networks(fake).ensure("demo", subnet=None, internet=False)

    assert first == again
    created = [call for call in fake.calls if call[3:5] == ["network", "create"]]
    assert len(created) == 1
    assert "--internal" in created[0]
    assert "--disable-dns" in created[0]


def test_a_clash_that_only_podman_knows_leads_to_the_next_subnet() -> None:
    fake = FakePodman()
    first = str(choose_subnets("demo", [])[0])
    fake.break_next("network create", f"Error: subnet {first} is already used on the host or by another config")

    chosen = networks(fake).ensure("demo", subnet=None, internet=False)

    assert str(chosen) == str(choose_subnets("demo", [])[1])


def test_a_subnet_asked_for_and_taken_names_who_has_it() -> None:
    fake = FakePodman(routes="10.89.40.0/22 dev other\n")

    with pytest.raises(ProviderError, match=r"10\.89\.40\.0/24 is taken: 10\.89\.40\.0/22 is used") as caught:
        networks(fake).ensure("demo", subnet="10.89.40.0/24", internet=False)

    assert "Hyperpod.Local.Subnet" in caught.value.hint


def test_a_cluster_does_not_move_to_another_subnet() -> None:
    fake = FakePodman(networks={network_name("demo"): "10.89.1.0/24"})

    with pytest.raises(AlreadyExists, match=r"10\.89\.1\.0/24"):
        networks(fake).ensure("demo", subnet="10.89.2.0/24", internet=False)


def test_removing_a_network_twice_is_removing_it_once() -> None:
    fake = FakePodman(networks={network_name("demo"): "10.89.1.0/24"})

    networks(fake).remove("demo")
    networks(fake).remove("demo")

    assert fake.networks == {}


def test_an_internet_cluster_has_an_open_network() -> None:
    fake = FakePodman()

    networks(fake).ensure("demo", subnet=None, internet=True)

    assert not any("--internal" in call for call in fake.calls)


def test_names_keep_their_addresses_and_newcomers_take_the_lowest_free() -> None:
    first = assign_addresses(NET, {}, ["head-1", "worker-1"])
    later = assign_addresses(NET, {"worker-1": first["worker-1"]}, ["worker-2", "worker-1"])

    assert first == {"head-1": "10.89.7.10", "worker-1": "10.89.7.11"}
    assert later == {"worker-1": "10.89.7.11", "worker-2": "10.89.7.10"}


def test_a_small_subnet_is_used_to_its_last_address_and_then_refused() -> None:
    small = IPv4Network("10.89.7.0/29")
    names = [f"worker-{i}" for i in range(1, 6)]

    assert len(set(assign_addresses(small, {}, names).values())) == 5
    assert "10.89.7.1" not in assign_addresses(small, {}, names).values()
    with pytest.raises(ConfigError, match="no room for node worker-6"):
        assign_addresses(small, {}, [*names, "worker-6"])


@given(st.lists(st.sampled_from([f"n-{i}" for i in range(1, 60)]), unique=True), st.integers(1, 59))
def test_no_two_names_ever_share_an_address(names: list[str], cut: int) -> None:
    addresses = assign_addresses(NET, assign_addresses(NET, {}, names[:cut]), names)

    assert len(set(addresses.values())) == len(names)
