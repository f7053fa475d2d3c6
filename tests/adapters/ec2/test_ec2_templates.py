"""Instance types, interfaces, user data and launch templates, on moto's copy of EC2's own descriptions."""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.adapters.aws import tags
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.instance_types import (
    InstanceType,
    NetworkCard,
    describe_types,
    network_interfaces,
    parse_instance_type,
)
from hyperpod.adapters.aws.launch_template import (
    GroupSettings,
    Market,
    describe_versions,
    ensure_template,
    find_templates,
    template_data,
)
from hyperpod.adapters.aws.user_data import MAX_BYTES, BootSettings, encode_user_data, render_user_data
from hyperpod.errors import ConfigError
from tests.fakes.aws import AccountAws

SMALL = InstanceType("m5.large", vcpus=2, cores=1, memory_mib=8192)
SETTINGS = GroupSettings(SMALL, "ami-1", "subnet-1", ("sg-1",), "nodes")
EFA_CARD = frozenset({"interface", "efa", "efa-only"})


@pytest.mark.parametrize(
    ("name", "interfaces"),
    [("p4d.24xlarge", 4), ("p5.48xlarge", 32), ("trn1.32xlarge", 8), ("c5n.18xlarge", 1), ("m5.large", 1)],
)
def test_interfaces_are_those_that_ec2_describes(aws: Aws, name: str, interfaces: int) -> None:
    shape = describe_types(aws, [f"ml.{name}"])[f"ml.{name}"]

    made = network_interfaces(shape, "subnet-1", ["sg-1"])

    assert len(made) == interfaces
    assert (made[0]["NetworkCardIndex"], made[0]["DeviceIndex"]) == (0, 0)
    assert made[0].get("InterfaceType") == ("efa" if shape.efa_interfaces else None)
    assert all(other["DeviceIndex"] == 1 and other["InterfaceType"] == "efa-only" for other in made[1:])
    assert [other["NetworkCardIndex"] for other in made] == list(range(interfaces))


def test_cards_in_random_order_make_no_difference() -> None:
    cards = [{"NetworkCardIndex": i, "InterfaceTypes": sorted(EFA_CARD)} for i in (2, 0, 3, 1)]
    shape = parse_instance_type(
        {
            "InstanceType": "p4d.24xlarge",
            "NetworkInfo": {"NetworkCards": cards, "EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 4}},
        }
    )

    assert [i["NetworkCardIndex"] for i in network_interfaces(shape, "s", ["g"])] == [0, 1, 2, 3]


def test_a_first_card_without_efa_still_carries_the_address() -> None:
    cards = (NetworkCard(0), NetworkCard(1, EFA_CARD), NetworkCard(2, EFA_CARD))
    made = network_interfaces(replace(SMALL, cards=cards, efa_interfaces=2), "s", ["g"])

    assert [i.get("InterfaceType") for i in made] == [None, "efa-only", "efa-only"]


def test_efa_can_be_left_out() -> None:
    shape = replace(SMALL, cards=(NetworkCard(0, EFA_CARD), NetworkCard(1, EFA_CARD)), efa_interfaces=2)

    assert [i.get("InterfaceType") for i in network_interfaces(shape, "s", ["g"], efa=False)] == [None]


def test_a_type_that_the_region_lacks_is_named(aws: Aws) -> None:
    with pytest.raises(ConfigError, match=r"no instance type q9\.huge in this region"):
        describe_types(aws, ["ml.q9.huge", "m5.large"])


@given(st.lists(st.integers(1, 9999), unique=True, min_size=1, max_size=80).map(sorted))
def test_slots_survive_being_written_as_a_tag(indices: list[int]) -> None:
    assert tags.unfold(tags.fold(indices)) == indices


@given(st.lists(st.integers(1, 9999), unique=True, min_size=1, max_size=300), st.integers(1, 100))
def test_every_launch_is_small_enough_and_its_slots_fit_into_a_tag(indices: list[int], most: int) -> None:
    nodes = [f"worker-{index}" for index in indices]

    cut = tags.batches(nodes, most)

    assert sorted(node for batch in cut for node in batch) == sorted(nodes)
    assert all(len(batch) <= most and len(tags.slots_text(batch)) <= tags.MAX_SLOTS_TEXT for batch in cut)


def test_a_machine_knows_its_slot_by_its_number_in_the_launch() -> None:
    launch = {tags.GROUP: "worker", tags.SLOTS: "1-2,7"}

    assert [tags.node_of(launch, index) for index in range(4)] == ["worker-1", "worker-2", "worker-7", ""]
    assert tags.node_of({**launch, tags.NODE: "worker-3"}, 0) == "worker-3"
    assert tags.node_of({"Name": "somebody's"}, 0) == ""


def test_metadata_needs_a_token_and_the_root_volume_is_encrypted() -> None:
    data = template_data(SETTINGS, "demo", "worker")

    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert all(mapping["Ebs"]["Encrypted"] for mapping in data["BlockDeviceMappings"])
    assert {spec["ResourceType"] for spec in data["TagSpecifications"]} == {"instance", "volume", "network-interface"}


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"market": Market.SPOT}, "InstanceInitiatedShutdownBehavior", "terminate"),
        ({"market": Market.CAPACITY_BLOCK}, "InstanceMarketOptions", {"MarketType": "capacity-block"}),
        (
            {"reservation_id": "cr-1"},
            "CapacityReservationSpecification",
            {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}},
        ),
        ({"placement_group": "pg"}, "Placement", {"GroupName": "pg"}),
        ({"threads_per_core": 1}, "CpuOptions", {"CoreCount": 1, "ThreadsPerCore": 1}),
    ],
)
def test_every_way_to_get_machines_is_in_the_template(settings: dict[str, Any], key: str, value: object) -> None:
    assert template_data(replace(SETTINGS, **settings), "demo", "worker")[key] == value


def test_a_template_gets_a_new_version_only_when_it_changes(aws: Aws) -> None:
    first = template_data(SETTINGS, "demo", "worker")
    second = template_data(replace(SETTINGS, image_id="ami-2"), "demo", "worker")

    identity = ensure_template(aws, "demo", "worker", first)
    assert ensure_template(aws, "demo", "worker", first) == identity
    assert len(describe_versions(aws, identity)) == 1

    assert ensure_template(aws, "demo", "worker", second) == identity
    default = describe_versions(aws, identity, ["$Default"])
    assert [version["LaunchTemplateData"]["ImageId"] for version in default] == ["ami-2"]


def test_templates_are_found_by_their_cluster(aws: Aws) -> None:
    for cluster in ("demo", "other"):
        ensure_template(aws, cluster, "worker", template_data(SETTINGS, cluster, "worker"))

    assert [t["LaunchTemplateName"] for t in find_templates(aws, "demo")] == ["hyperpod.demo.worker"]


def test_old_versions_do_not_pile_up(aws: AccountAws) -> None:
    aws.answers["DeleteLaunchTemplateVersions"] = [{}]
    for number in range(9):
        changed = replace(SETTINGS, image_id=f"ami-{number}")
        identity = ensure_template(aws, "demo", "worker", template_data(changed, "demo", "worker"))

    dropped = [p["Versions"] for operation, p in aws.calls if operation == "DeleteLaunchTemplateVersions"]
    assert dropped[0] == ["1"]
    assert describe_versions(aws, identity, ["$Default"])[0]["VersionNumber"] == 9


def test_user_data_is_small_and_holds_names_only() -> None:
    script = render_user_data(BootSettings("demo", "worker", "us-east-1", "bucket", "hyperpod/demo", "abc"))

    assert len(script) < 4096
    assert base64.b64decode(encode_user_data(script)).decode() == script
    assert not any(word in script.lower() for word in ("munge", "secret", "password", "private"))


def test_a_hostile_name_stays_a_name_in_user_data() -> None:
    script = render_user_data(BootSettings("demo", "worker", "r", "b", "a$(reboot)", "abc"))

    assert "HP_PREFIX='a$(reboot)'" in script


def test_large_user_data_is_compressed_and_too_large_refused() -> None:
    large = "#!/bin/bash\n" + "echo hello\n" * 3000
    data = base64.b64decode(encode_user_data(large))
    assert gzip.decompress(data).decode() == large
    assert encode_user_data(large) == encode_user_data(large)

    with pytest.raises(ConfigError, match=str(MAX_BYTES)):
        encode_user_data("".join(hashlib.sha256(b"%d" % i).hexdigest() for i in range(1000)))
