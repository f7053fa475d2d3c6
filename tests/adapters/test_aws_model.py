"""The walk over botocore's model: what ParamValidator lets pass, and typos named by the closest key."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import botocore.model
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.adapters.aws import model
from hyperpod.adapters.aws.model import (
    _create_cluster_shape,
    instance_types,
    python_pattern,
    validate_create_cluster,
)
from hyperpod.config.problem import Kind, format_path
from hyperpod.errors import ConfigError

GROUP: dict[str, Any] = {
    "InstanceGroupName": "worker",
    "InstanceType": "ml.p5.48xlarge",
    "InstanceCount": 4,
    "ExecutionRole": "arn:aws:iam::111122223333:role/HyperPod",
    "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x/y", "OnCreate": "on_create.sh"},
    "ThreadsPerCore": 1,
    "InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": 500}}],
    "OnStartDeepHealthChecks": ["InstanceStress"],
    "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["dev"]},
    "AutoPatchConfig": {
        "PatchingStrategy": "WhenIdle",
        "PatchSchedule": {"NextPatchDate": "2026-01-31T00:00:00+00:00"},
    },
}
REQUEST: dict[str, Any] = {
    "ClusterName": "demo",
    "InstanceGroups": [GROUP],
    "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]},
    "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Managed"}},
    "NodeRecovery": "Automatic",
    "Tags": [{"Key": "größe", "Value": ""}],
}
SHAPES = {
    shape.name: sorted(shape.members)
    for shape in [_create_cluster_shape(), _create_cluster_shape().members["InstanceGroups"].member]
}


def problems(**changes: Any) -> list[tuple[str, str, Kind]]:
    """Return the problems of the request with other values at the top or in its group."""
    request = copy.deepcopy(REQUEST)
    for key, value in changes.items():
        (request if key in REQUEST else request["InstanceGroups"][0])[key] = value
    return [(format_path(p.path), p.message, p.kind) for p in validate_create_cluster(request)]


def test_a_full_request_has_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("changes", "path", "message", "kind"),
    [
        ({"ClusterName": "my_demo"}, "ClusterName", "'my_demo' does not match the pattern", Kind.PATTERN),
        ({"ClusterName": ""}, "ClusterName", "must have 1 to 63 characters, got 0", Kind.SIZE),
        ({"ClusterName": ["a"]}, "ClusterName", "must be text, got a list", Kind.TYPE),
        ({"NodeRecovery": "automatic"}, "NodeRecovery", "did you mean Automatic?", Kind.ENUM),
        ({"NodeRecovery": True}, "NodeRecovery", "must be text, got true; put it in quotes", Kind.TYPE),
        ({"Tags": [{"Key": "a"}]}, "Tags[0].Value", "is required but missing", Kind.MISSING),
        ({"Tags": [{"Key": "a", "Value": "b"}] * 51}, "Tags", "must have 0 to 50 entries, got 51", Kind.SIZE),
        ({"InstanceGroups": []}, "InstanceGroups", "must have 1 to 100 entries, got 0", Kind.SIZE),
        ({"InstanceCount": 7000}, "InstanceGroups[0].InstanceCount", "must be 0 to 6758, got 7000", Kind.SIZE),
        ({"InstanceCount": True}, "InstanceGroups[0].InstanceCount", "must be a whole number, got true", Kind.TYPE),
        ({"InstanceCount": 1.5}, "InstanceGroups[0].InstanceCount", "must be a whole number, got 1.5", Kind.TYPE),
        ({"InstanceCount": None}, "InstanceGroups[0].InstanceCount", "is required but missing", Kind.MISSING),
        ({"ThreadsPerCore": 3}, "InstanceGroups[0].ThreadsPerCore", "must be 1 to 2, got 3", Kind.SIZE),
        ({"ThreadsPerCore": None}, "InstanceGroups[0].ThreadsPerCore", "has no value", Kind.TYPE),
        ({"InstanceType": "ml.p5.48xlarg"}, "InstanceGroups[0].InstanceType", "mean ml.p5.48xlarge?", Kind.ENUM),
        ({"InstanceType": "p5.48xlarge"}, "InstanceGroups[0].InstanceType", "mean ml.p5.48xlarge?", Kind.ENUM),
        ({"ExecutionRole": "arn:aws:iam::1:role/abc"}, "InstanceGroups[0].ExecutionRole", "pattern", Kind.PATTERN),
        ({"InstanceStorageConfigs": [{}]}, "InstanceGroups[0].InstanceStorageConfigs[0]", "exactly one of", Kind.SIZE),
        (
            {"OnStartDeepHealthChecks": ["Stress"]},
            "InstanceGroups[0].OnStartDeepHealthChecks[0]",
            "did you mean InstanceStress?",
            Kind.ENUM,
        ),
        (
            {"SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["a", "b"]}},
            "InstanceGroups[0].SlurmConfig.PartitionNames",
            "must have 0 to 1 entries, got 2",
            Kind.SIZE,
        ),
        (
            {"AutoPatchConfig": {"PatchingStrategy": "WhenIdle", "PatchSchedule": {"NextPatchDate": "soon"}}},
            "InstanceGroups[0].AutoPatchConfig.PatchSchedule.NextPatchDate",
            "must be a date and time such as 2026-01-31T00:00:00Z, got 'soon'",
            Kind.TYPE,
        ),
        (
            {"KubernetesConfig": {"Labels": {"-": "v"}}},
            "InstanceGroups[0].KubernetesConfig.Labels.-",
            "'-' does not match the pattern",
            Kind.PATTERN,
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    changes: dict[str, Any], path: str, message: str, kind: Kind
) -> None:
    ((found_path, found_message, found_kind),) = problems(**changes)
    assert (found_path, found_kind) == (path, kind)
    assert message in found_message


@pytest.mark.parametrize("date", [1769817600, datetime.date(2026, 1, 31), "2026-01-31", "2026-01-31T00:00:00Z"])
def test_a_date_may_be_written_in_many_ways(date: Any) -> None:
    patch = {"PatchingStrategy": "WhenIdle", "PatchSchedule": {"NextPatchDate": date}}
    assert problems(AutoPatchConfig=patch) == []


def test_an_old_botocore_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.Loader, "load_service_model", lambda *_: {"metadata": {}, "operations": {}, "shapes": {}})
    _create_cluster_shape.cache_clear()
    try:
        with pytest.raises(ConfigError, match="the installed botocore does not know CreateCluster") as caught:
            validate_create_cluster(REQUEST)
    finally:
        _create_cluster_shape.cache_clear()
    assert caught.value.hint == "pip install 'botocore>=1.44'"


def test_a_pattern_of_another_dialect_is_left_to_the_service() -> None:
    assert python_pattern("(") is None
    assert python_pattern(r"[\p{L}]+") is not None


def test_a_misspelt_required_key_is_one_mistake() -> None:
    request = copy.deepcopy(REQUEST)
    request["InstanceGroups"][0]["InstanceCont"] = request["InstanceGroups"][0].pop("InstanceCount")
    (problem,) = validate_create_cluster(request)
    assert (format_path(problem.path), problem.kind) == ("InstanceGroups[0].InstanceCont", Kind.UNKNOWN_KEY)


@st.composite
def typos(draw: st.DrawFn) -> tuple[str, str, str]:
    """Draw a shape, one of its longer keys, and that key with one letter lost, doubled, changed or swapped."""
    shape = draw(st.sampled_from(sorted(SHAPES)))
    key = draw(st.sampled_from([key for key in SHAPES[shape] if len(key) >= 6]))
    at = draw(st.integers(min_value=0, max_value=len(key) - 2))
    typo = draw(
        st.sampled_from(
            [
                key[:at] + key[at + 1 :],
                key[:at] + key[at] * 2 + key[at + 1 :],
                key[:at] + "z" + key[at + 1 :],
                key[:at] + key[at + 1] + key[at] + key[at + 2 :],
                key.lower(),
                key[:1].lower() + key[1:],
            ]
        )
    )
    return shape, key, typo


@given(typos())
def test_any_small_typo_names_the_key_that_was_meant(case: tuple[str, str, str]) -> None:
    shape, key, typo = case
    if typo in SHAPES[shape]:
        return
    request = copy.deepcopy(REQUEST)
    place = request if shape == "CreateClusterRequest" else request["InstanceGroups"][0]
    place.pop(key, None)
    place[typo] = 1
    found = [problem.message for problem in validate_create_cluster(request) if problem.path[-1] == typo]
    assert found == [f"unknown key; did you mean {key}?"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(SHAPES["ClusterInstanceGroupSpecification"]), VALUES)
def test_any_value_anywhere_is_judged_and_never_crashes(key: str, value: Any) -> None:
    for _, message, _ in problems(**{key: value}):
        assert len(message.splitlines()) == 1


def _patterns(shape: botocore.model.Shape, seen: set[str]) -> list[str]:
    if shape.name in seen:
        return []
    seen.add(shape.name)
    found = [shape.metadata["pattern"]] if "pattern" in shape.metadata else []
    inner = list(getattr(shape, "members", {}).values())
    inner += [getattr(shape, name) for name in ("member", "key", "value") if hasattr(shape, name)]
    return found + [pattern for child in inner for pattern in _patterns(child, seen)]


def test_every_pattern_of_the_model_is_understood() -> None:
    patterns = _patterns(_create_cluster_shape(), set())
    assert len(patterns) > 15
    assert all(python_pattern(pattern) is not None for pattern in patterns)


def test_the_instance_types_are_those_of_the_model() -> None:
    assert {"ml.p5.48xlarge", "ml.trn1.32xlarge", "ml.t3.medium"} <= set(instance_types())
