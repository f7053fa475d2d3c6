"""The table of instance types."""

from __future__ import annotations

import pytest

from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.core.instance_hardware import HARDWARE, expected_of


@pytest.mark.parametrize(
    ("name", "efa", "expected"),
    [
        ("ml.p5.48xlarge", 32, {"gpus": 8, "nvme_disks": 8, "efa": 32}),
        ("p4d.24xlarge", None, {"gpus": 8, "nvme_disks": 8}),
        ("ml.trn1.32xlarge", None, {"neuron_devices": 16, "neuron_cores": 32, "nvme_disks": 4}),
        ("trn2.48xlarge", 16, {"neuron_devices": 16, "nvme_disks": 4, "efa": 16}),
        ("ml.c5n.18xlarge", 1, {"efa": 1}),
        ("ml.c5.xlarge", 0, {}),
        ("local.node", None, {}),
        ("", None, {}),
    ],
)
def test_what_a_type_should_have(name: str, efa: int | None, expected: dict[str, int]) -> None:
    assert expected_of(name, efa=efa) == expected


def test_the_figures_make_sense() -> None:
    for name, hardware in HARDWARE.items():
        assert hardware.memory_mib >= 2 * 1024 * hardware.vcpus or name.startswith("inf1"), name
        assert not (hardware.gpus and hardware.neuron_devices), name
        assert (hardware.neuron_cores or 0) % max(hardware.neuron_devices or 1, 1) == 0, name


def test_every_accelerated_type_that_the_service_offers_is_known_or_left_to_the_group() -> None:
    def is_offered(name: str) -> bool:
        group = {"InstanceGroupName": "w", "InstanceType": f"ml.{name}", "InstanceCount": 1}
        problems = validate_create_cluster({"ClusterName": "c", "InstanceGroups": [group]})
        return not any("InstanceType" in problem.path for problem in problems)

    offered = {name for name in HARDWARE if is_offered(name)}
    assert offered >= {"p5.48xlarge", "p4d.24xlarge", "trn1.32xlarge", "g5.48xlarge", "c5n.18xlarge"}
