"""The typed specification: policies, the rules between groups, and the form the daemons read."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hyperpod.core import policy
from hyperpod.core.majority import Limits
from hyperpod.core.node import Role
from hyperpod.core.settings import HealthPolicy, parse_duration, plain_checks
from hyperpod.core.spec import (
    ClusterSpec,
    HyperpodBlock,
    InstanceGroup,
    group_conflicts,
    spec_policies,
    with_counts,
)
from hyperpod.errors import ConfigError
from hyperpod.health import registry


def head(**more: Any) -> InstanceGroup:
    """Return a head node group."""
    return InstanceGroup.model_validate({"name": "head", "count": 1, "role": Role.HEAD} | more)


def worker(**more: Any) -> InstanceGroup:
    """Return a worker group of four nodes with a spare."""
    base = {"name": "worker", "count": 4, "role": Role.WORKER, "partition": "dev", "spares": 1}
    return InstanceGroup.model_validate(base | more)


def cluster(*groups: InstanceGroup, **block: Any) -> ClusterSpec:
    """Return a cluster on this machine."""
    return ClusterSpec(
        cluster_name="demo",
        instance_groups=groups or (head(), worker()),
        hyperpod=HyperpodBlock.model_validate({"Provider": "local"} | block),
        aws_request={"InstanceGroups": [{"InstanceGroupName": g.name, "InstanceCount": g.count} for g in groups]},
    )


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(90, 90), (0.3, 0.3), ("90", 90), ("90s", 90), ("300ms", 0.3), ("5m", 300), ("1.5h", 5400), (" 2 d ", 172800)],
)
def test_a_duration_is_read_in_every_unit(value: object, seconds: float) -> None:
    assert parse_duration(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value", [-1, "-1s", "1w", "", "h", True, None, [1], "1h30m", "1e3", float("nan"), float("inf"), "9" * 400]
)
def test_what_is_no_duration_is_refused_in_words(value: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(value)


@given(st.integers(min_value=0, max_value=86400 * 366))
def test_a_duration_in_seconds_and_its_text_are_the_same(seconds: int) -> None:
    assert parse_duration(seconds) == parse_duration(f"{seconds}s") == timedelta(seconds=seconds)


def test_a_duration_beyond_a_year_is_a_mistake_in_the_unit() -> None:
    with pytest.raises(ValueError, match="at most a year, got '1000d'"):
        parse_duration("1000d")


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        cluster().cluster_name = "other"  # type: ignore[misc]


def test_a_spec_survives_its_stored_form() -> None:
    spec = cluster(
        head(),
        worker(lifecycle={"source": "/scripts", "on_create": "a.sh"}),
        Resume={"Lease": "20s", "Default": "on"},
        Health={"Checks": {"disk": {"Interval": "1m"}}},
        Slurm={"Parameters": {"MaxJobCount": 5, "EnforcePartLimits": True}},
    )
    assert ClusterSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("data", [{}, {"cluster_name": 1}, {"cluster_name": "a", "instance_groups": []}])
def test_a_damaged_stored_form_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not a stored cluster specification"):
        ClusterSpec.from_json(data)


def test_the_parts_of_a_cluster_are_found_by_role_and_name() -> None:
    spec = cluster(head(), worker(), worker(name="more", count=2, spares=0, partition="big"))
    assert (spec.head.name, [group.name for group in spec.workers]) == ("head", ["worker", "more"])
    assert spec.group("more").node_names == ("more-1", "more-2")
    assert spec.default_partition == "dev"
    with pytest.raises(ConfigError, match="has no instance group 'mor'; it has head, worker, more"):
        spec.group("mor")


def test_the_default_partition_can_be_given() -> None:
    spec = cluster(head(), worker(), worker(name="more", partition="big"), Slurm={"DefaultPartition": "big"})
    assert spec.default_partition == "big"


CONFLICTS: dict[str, tuple[list[InstanceGroup], list[tuple[int | None, str]]]] = {
    "none": ([head(), worker()], []),
    "no groups": ([], [(None, "no head node group"), (None, "no workers")]),
    "two heads": ([head(), head(name="b"), worker()], [(1, "second head node group b")]),
    "a head of two": ([head(count=2), worker()], [(0, "needs InstanceCount 1, got 2")]),
    "no workers at all": ([head()], [(None, "no workers")]),
    "an empty worker group": ([head(), worker(count=0, spares=0)], [(None, "no workers")]),
    "one empty worker group of two": ([head(), worker(), worker(name="b", count=0, spares=0)], []),
    "only spares": ([head(), worker(spares=4)], [(1, "at most 3 can be spares, got 4")]),
    "spares of a login group": (
        [head(), worker(), InstanceGroup(name="l", count=2, role=Role.LOGIN, spares=1)],
        [(2, "login group l cannot have spares")],
    ),
    "a login group in a partition": (
        [head(), worker(), InstanceGroup(name="l", count=1, role=Role.LOGIN, partition="dev")],
        [(2, "login group l cannot be in a partition")],
    ),
    "no partition": ([head(), worker(partition=None)], [(1, "needs the name of a partition")]),
    "Slurm's word": ([head(), worker(partition="Default")], [(1, "partition name Default is reserved")]),
    "a name twice": ([head(), worker(), worker()], [(2, "worker is already the name of another group")]),
    "a name in capitals": ([head(), worker(), worker(name="Worker")], [(2, "Worker differs from worker only in case")]),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_groups_that_make_no_sense_together_are_named(case: str) -> None:
    groups, expected = CONFLICTS[case]
    found = group_conflicts(groups)
    assert [conflict.group for conflict in found] == [group for group, _ in expected]
    for conflict, (_, text) in zip(found, expected, strict=True):
        assert text in conflict.message
    if expected:
        with pytest.raises(ValidationError, match="Value error"):
            ClusterSpec(cluster_name="demo", instance_groups=tuple(groups))


@given(st.integers(min_value=0, max_value=50), st.integers(min_value=0, max_value=50))
def test_a_valid_worker_group_always_keeps_a_node_that_works(count: int, spares: int) -> None:
    conflicts = group_conflicts([head(), worker(count=count, spares=spares)])
    assert (not conflicts) == (count - spares >= 1)


def test_counts_can_be_changed_in_the_spec_and_in_the_request() -> None:
    spec = with_counts(cluster(head(), worker()), {"worker": 6})
    assert spec.group("worker").count == 6
    assert spec.aws_request["InstanceGroups"][1]["InstanceCount"] == 6


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"worker": 1}, "at most 0 can be spares"),
        ({"worker": 0}, "no workers"),
        ({"head": 2}, "needs InstanceCount 1"),
        ({"wroker": 2}, "has no instance group 'wroker'"),
    ],
)
def test_counts_that_make_no_sense_are_refused(counts: dict[str, int], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        with_counts(cluster(head(), worker()), counts)


def test_the_daemons_read_plain_data_with_units_in_the_keys() -> None:
    checks = {"disk": {"Interval": "1m", "Settings": {"fatal_percent": 1}}, "load": {"Mode": False}}
    data = spec_policies(cluster(Resume={"Lease": "20s"}, Health={"Checks": checks}))
    assert json.loads(json.dumps(data)) == data
    assert data["groups"][1] == {
        "name": "worker",
        "role": "worker",
        "count": 4,
        "spares": 1,
        "partition": "dev",
        "instance_type": "local.node",
        "health": data["health"],
    }
    assert data["health"] == {
        "disk": {"interval_s": 60.0, "fatal_percent": 1},
        "load": {"mode": "off"},
    }
    registry.build_checks(Role.WORKER, registry.parse_settings(data["health"]))
    assert data["slurm"]["default_partition"] == "dev"
    assert data["resume"]["lease_s"] == 20.0


def test_a_groups_health_policy_is_laid_over_the_clusters() -> None:
    health = HealthPolicy.model_validate(
        {
            "Default": "observe",
            "Checks": {
                "disk": {"Mode": "act", "Damping": [2, 4], "Settings": {"fatal_percent": 1, "warn_percent": 9}},
                "kernel_log": {"Overrides": {"Xid94": "FATAL", "Xid63": "ok"}},
            },
            "Groups": {
                "worker": {
                    "Default": "act",
                    "Checks": {
                        "disk": {"Mode": "off", "Interval": "5m", "Settings": {"fatal_percent": 3}},
                        "kernel_log": {"Overrides": {"Xid63": "warn"}},
                        "load": {"Mode": "observe"},
                    },
                }
            },
        }
    )
    assert plain_checks(health, "other") == {
        "default": {"mode": "observe"},
        "disk": {"mode": "act", "damping": [2, 4], "fatal_percent": 1, "warn_percent": 9},
        "kernel_log": {"overrides": {"Xid94": "fatal", "Xid63": "ok"}},
    }
    assert plain_checks(health, "worker") == {
        "disk": {"mode": "off", "damping": [2, 4], "fatal_percent": 3, "warn_percent": 9, "interval_s": 300.0},
        "kernel_log": {"overrides": {"Xid94": "fatal", "Xid63": "warn"}},
        "load": {"mode": "observe"},
    }
    for group in ("worker", "other"):
        registry.build_checks(Role.WORKER, registry.parse_settings(plain_checks(health, group)))


def test_defaults_are_the_same_in_the_spec_and_in_the_daemons() -> None:
    data = spec_policies(cluster())
    assert policy.policies_from(data) == (
        policy.RepairPolicy(spare_count={"head": 0, "worker": 1}),
        policy.ResumePolicy(),
    )


def test_what_the_spec_says_reaches_the_daemons() -> None:
    spec = cluster(
        Repair={"MaxParallelRepaired": 7, "BreakerWindow": "2h"},
        Resume={"Lease": "20s", "HeartbeatMisses": 5, "OnTimeLimit": "resume"},
    )
    repair, resume = policy.policies_from(spec_policies(spec))
    assert (repair.max_parallel_repaired, repair.breaker_window_s, repair.lease_s) == (7, 7200.0, 20.0)
    assert (repair.heartbeat_misses, resume.on_time_limit) == (5, "resume")


def test_the_limits_of_a_groups_comparison_reach_the_controller() -> None:
    checks = {"Checks": {"group": {"Settings": {"most_broken": 4}}}}
    own = {"Groups": {"worker": {"Checks": {"group": {"Settings": {"min_nodes": 5, "ignore": ["gpu_driver"]}}}}}}
    repair, _ = policy.policies_from(spec_policies(cluster(Health={**checks, **own})))
    assert repair.group_limits == {
        "head": Limits(most_broken=4),
        "worker": Limits(min_nodes=5, most_broken=4, ignore=("gpu_driver",)),
    }


def test_the_modes_of_checks_reach_the_controller_by_group() -> None:
    checks = {"Checks": {"ec2_spot": {"Mode": "act"}, "slurm": {"Mode": "off"}}}
    own = {"Groups": {"worker": {"Default": "observe", "Checks": {"slurm": {"Mode": "act"}, "ec2_event": {}}}}}
    repair, _ = policy.policies_from(spec_policies(cluster(Health={**checks, **own})))
    modes = {
        check: (repair.mode_of("head", check), repair.mode_of("worker", check))
        for check in ("ec2_spot", "slurm", "ec2_event", "deep")
    }
    assert modes == {
        "ec2_spot": ("act", "act"),
        "slurm": ("off", "act"),
        "ec2_event": ("act", "observe"),
        "deep": ("act", "observe"),
    }
    assert repair.mode_of("a group that was added since", "slurm") is policy.Mode.ACT


def test_every_policy_of_the_daemons_can_be_given_in_the_spec() -> None:
    data = spec_policies(cluster())
    assert set(vars(policy.RepairPolicy())) <= set(data["repair"]) | set(data["resume"]) | {
        "spare_count",
        "check_modes",
        "group_limits",
    }
    assert set(vars(policy.ResumePolicy())) <= set(data["resume"])
