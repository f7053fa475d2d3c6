"""Which checks a node has, and what its configuration may say about them."""

from __future__ import annotations

import pytest

from hyperpod.core.finding import Severity
from hyperpod.core.node import Role
from hyperpod.core.policy import JUDGED_BY_CONTROLLER, Mode
from hyperpod.errors import ConfigError
from hyperpod.health import registry
from hyperpod.health.check import Damping, Settings
from hyperpod.health.elsewhere import Place
from hyperpod.health.registry import (
    CHECKS,
    build_check,
    build_checks,
    observe_only,
    overrides,
    parse_settings,
    setting_rows,
)


def test_every_check_is_known_by_its_own_name() -> None:
    assert [check.name for check in build_checks(Role.WORKER, {})] == list(CHECKS)


@pytest.mark.parametrize("role", [Role.HEAD, Role.LOGIN])
def test_only_workers_look_for_the_plugin(role: Role) -> None:
    assert "plugin" not in [check.name for check in build_checks(role, {})]


def test_the_quick_checks_fit_into_two_seconds_unless_something_hangs() -> None:
    quick = [check.name for check in build_checks(Role.WORKER, {}) if check.is_quick]
    assert "shared_fs" in quick
    assert "plugin" not in quick


def test_settings_reach_their_check() -> None:
    data = {"load": {"per_cpu": 2.5, "damping": [3, 5]}, "disk": {"paths": ["/"]}}
    checks = {check.name: check for check in build_checks(Role.WORKER, parse_settings(data))}
    assert checks["load"].per_cpu == 2.5  # type: ignore[attr-defined]
    assert checks["load"].damping == Damping(3, 5)
    assert checks["disk"].paths == ("/",)  # type: ignore[attr-defined]


def test_a_disabled_check_is_not_made() -> None:
    settings = parse_settings({"load": {"mode": "off"}})
    assert "load" not in [check.name for check in build_checks(Role.WORKER, settings)]


def test_observe_only_is_kept_apart() -> None:
    assert observe_only(parse_settings({"disk": {"mode": "observe"}, "load": {}})) == {"disk"}


def test_the_default_mode_holds_for_checks_that_name_none() -> None:
    settings = parse_settings({"default": {"mode": "observe"}, "disk": {"mode": "act"}, "load": {"per_cpu": 2.0}})
    assert observe_only(settings) == {*registry.names()} - {"disk", "lease", "agent", "user"}
    assert not build_checks(Role.WORKER, parse_settings({"default": {"mode": "off"}}))


def test_what_only_tells_what_was_done_always_acts() -> None:
    for data in ({"default": {"mode": "off"}}, {"default": {"mode": "off"}, "lease": {}}, {"lease": {"mode": "act"}}):
        assert registry.policy_of("lease", parse_settings(data)).mode is Mode.ACT


@pytest.mark.parametrize("name", ["slurm", "ec2_status", "ec2_event", "ec2_spot", "deep"])
def test_what_the_controller_finds_has_a_mode(name: str) -> None:
    assert registry.policy_of(name, parse_settings({name: {"mode": "observe"}})).mode is Mode.OBSERVE
    assert registry.policy_of(name, parse_settings({"default": {"mode": "off"}, name: {}})).mode is Mode.OFF
    assert name in JUDGED_BY_CONTROLLER


def test_every_check_that_the_controller_judges_has_its_page() -> None:
    assert {name for name in registry.names() if registry.place(name) is Place.CONTROLLER} == JUDGED_BY_CONTROLLER


def test_overrides_are_severities_by_code() -> None:
    data = {"kernel_log": {"overrides": {"Xid94": "fatal"}}, "disk": {"overrides": {"DiskFull": "WARN"}}}
    assert overrides(parse_settings(data)) == {
        "kernel_log": {"Xid94": Severity.FATAL},
        "disk": {"DiskFull": Severity.WARN},
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"lode": {}}, "health.lode: there is no such check; did you mean load"),
        ({"load": {"per_cpus": 1}}, "health.load.per_cpus: there is no such setting; did you mean per_cpu"),
        ({"load": {"name": "x"}}, "health.load.name: there is no such setting"),
        ({"load": 3}, "health.load: must be an object"),
        ({"kernel_log": {"path": "/x"}}, "health.kernel_log.path: there is no such setting"),
        ({"disk": {"mode": "on"}}, "health.disk.mode: must be one of act, observe, off"),
        ({"default": {"interval_s": 3}}, "health.default: must be an object with a mode only"),
        ({"kernel_log": {"overrides": {"Xidd94": "warn"}}}, "overrides.Xidd94: there is no such code"),
        ({"disk": {"overrides": {"DiskFul": "warn"}}}, "overrides.DiskFul: there is no such code; did you mean DiskFu"),
        ({"disk": {"overrides": {"DiskFull": "unknown"}}}, "overrides.DiskFull: must be one of ok, warn, fatal"),
        ({"slurm": {"mode": "no"}}, "health.slurm.mode: must be one of act, observe, off"),
        ({"ec2_spto": {}}, "health.ec2_spto: there is no such check; did you mean ec2_spot"),
        ({"slurm": {"overrides": {"GresMissing": "warn"}}}, "slurm.overrides: its codes keep their severity"),
        ({"ec2_event": {"interval_s": 5.0}}, "ec2_event.interval_s: there is no such setting; it has a Mode only"),
        ({"deep": {"seconds": 5}}, "deep.seconds: there is no such setting; they are in Hyperpod.Health.Deep"),
        ({"lease": {"mode": "off"}}, "health.lease.mode: its mode stays act: .* fencing has killed"),
        ({"lease": {"mode": "observe"}}, "health.lease.mode: its mode stays act"),
        ({"agent": {"mode": "off"}}, "health.agent.mode: its mode stays act"),
        ({"user": {"mode": "off"}}, "health.user.mode: its mode stays act"),
    ],
)
def test_a_misspelt_setting_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(data)


@pytest.mark.parametrize(
    "values",
    [{"damping": [3, 2]}, {"damping": [1]}, {"damping": 2}, {"interval_s": -1}, {"per_cpu": "4"}, {"per_cpu": True}],
)
def test_a_value_that_makes_no_sense_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"health\.load"):
        build_checks(Role.WORKER, parse_settings({"load": values}))


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"min_nodes": 1}, "min_nodes must be a whole number from 2"),
        ({"majority": 0.3}, "majority must be above 0.5"),
        ({"ignore": "gpus"}, "ignore must be a list of names"),
    ],
)
def test_limits_of_the_group_that_cannot_be_meant_are_refused_before_the_controller_reads_them(
    limits: dict[str, object], error: str
) -> None:
    with pytest.raises(ConfigError, match=f"health.group: {error}"):
        registry.build_checks(Role.WORKER, registry.parse_settings({"group": limits}))
    given = {"min_nodes": 5, "majority": 0.9, "most_broken": 1, "settle_s": 30, "ignore": ["gpu_driver"]}
    own = registry.policy_of("group", registry.parse_settings({"group": given}))
    assert registry.group_limits(own).ignores("gpu_driver")


@pytest.mark.parametrize(
    "values",
    [
        {"fatal_percent": 1000},
        {"warn_percent": float("nan")},
        {"warn_percent": float("inf")},
        {"interval_s": float("inf")},
        {"paths": [1, 2]},
        {"paths": ["/", None]},
    ],
)
def test_a_limit_that_every_node_or_none_would_break_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"health\.disk: \w+ must be"):
        build_checks(Role.WORKER, parse_settings({"disk": values}))


@pytest.mark.parametrize("name", CHECKS)
def test_the_defaults_of_every_check_are_values_that_it_accepts(name: str) -> None:
    values = {row.name: row.default for row in setting_rows(name)}
    assert build_check(name, Settings(values=values)).name == name
