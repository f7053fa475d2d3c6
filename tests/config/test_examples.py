"""Every file in configs/ loads, and says the truth about defaults."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.config.load import Loaded, OriginKind, load_spec
from hyperpod.config.overrides import block_fields
from hyperpod.config.problem import format_path
from hyperpod.core.node import Role
from hyperpod.core.spec import Provider
from hyperpod.errors import ConfigError
from hyperpod.health import registry

CONFIGS = Path(__file__).parents[2] / "configs"
SPECS = sorted(
    str(path.relative_to(CONFIGS))
    for path in CONFIGS.rglob("*")
    if path.suffix in (".yaml", ".json")
    and path.name != "provisioning_parameters.json"
    and path.parts[-2] not in ("jobs", "rehearsals")
)


def load(name: str, **options: Any) -> Loaded:
    """Load an example as the commands do, with no environment."""
    return load_spec(CONFIGS / name, validate=validate_create_cluster, health=registry.complaints, **options)


def test_there_are_examples_for_the_laptop_for_aws_and_for_policies() -> None:
    assert {"laptop.yaml", "hyperpod-aws/create-cluster.json", "spares-and-policies.yaml"} <= set(SPECS)


def test_provisioning_parameters_are_no_cluster() -> None:
    with pytest.raises(ConfigError, match="provisioning parameters, not a cluster"):
        load("hyperpod-aws/provisioning_parameters.json")


@pytest.mark.parametrize("name", SPECS)
def test_an_example_loads_without_a_note(name: str) -> None:
    assert load(name).notes == ()


def test_the_laptop_example_is_the_cluster_of_the_demo() -> None:
    spec = load("laptop.yaml").spec
    assert spec.provider is Provider.LOCAL
    assert (spec.head.count, [(g.count, g.spares, g.partition) for g in spec.workers]) == (1, [(4, 1, "dev")])


def test_the_aws_example_is_a_request_of_aws_and_nothing_more() -> None:
    spec = load("hyperpod-aws/create-cluster.json").spec
    assert spec.provider is Provider.SAGEMAKER
    assert "Hyperpod" not in spec.aws_request
    assert [group.role for group in spec.instance_groups] == [Role.HEAD, Role.LOGIN, Role.WORKER]
    assert len({group.execution_role for group in spec.instance_groups}) == 3


def test_the_aws_example_becomes_a_cluster_on_this_machine_by_two_settings() -> None:
    flags = {
        "Hyperpod.Provider": "local",
        "Hyperpod.Local.LifecycleScripts": str(CONFIGS.parent / "lifecycle_scripts"),
    }
    spec = load("hyperpod-aws/create-cluster.json", flags=flags).spec
    assert spec.provider is Provider.LOCAL
    assert spec.head.lifecycle.source == str(CONFIGS.parent / "lifecycle_scripts")


POLICIES = "spares-and-policies.yaml"
FIELDS = {format_path(path): default for path, _, default in block_fields()}


@pytest.mark.parametrize("setting", FIELDS)
def test_the_policies_example_shows_every_setting(setting: str) -> None:
    loaded = load(POLICIES)
    in_file = any(
        path == setting or path.startswith(f"{setting}.")
        for path, origin in loaded.origins.items()
        if origin.kind is OriginKind.FILE
    )
    as_comment = re.search(rf"# {setting.rpartition('.')[2]}: ", (CONFIGS / POLICIES).read_text())
    assert in_file or as_comment


def test_the_policies_example_calls_default_what_is_the_default() -> None:
    lines = (CONFIGS / POLICIES).read_text().splitlines()
    checked = 0
    for setting in load(POLICIES).settings:
        if setting.path not in FIELDS or setting.origin.kind is not OriginKind.FILE:
            continue
        comment = lines[int(setting.origin.where.rpartition(":")[2]) - 1].partition("# ")[2]
        is_default = re.match(r"default(;|$)", comment) is not None or comment.startswith("default; ")
        if is_default:
            assert setting.value == FIELDS[setting.path], setting.path
            checked += 1
        else:
            assert "; default" in comment or comment.startswith("default: "), setting.path
            assert setting.value != FIELDS[setting.path] or "; default" in comment, setting.path
    assert checked > 20


def test_every_setting_has_a_description_which_tells_the_default() -> None:
    for path, description, default in block_fields():
        assert "Default" in description, path
        if isinstance(default, timedelta):
            number = f"{default.total_seconds():g}"
            minutes = f"{default.total_seconds() / 60:g}m"
            hours = f"{default.total_seconds() / 3600:g}h"
            said = re.search(r"Default ([0-9.]+[mh]?)", description)
            assert said is not None, path
            assert said[1].rstrip(".") in (number, minutes, hours), path
        elif isinstance(default, int) and not isinstance(default, bool):
            assert re.search(rf"Default {default}\b", description), path
