"""Which checks a node has, and what its configuration may say about them."""

from __future__ import annotations

import pytest

from hyperpod.core.node import Role
from hyperpod.errors import ConfigError
from hyperpod.health.check import Damping
from hyperpod.health.registry import CHECKS, build_checks, observe_only, parse_settings


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
    settings = parse_settings({"load": {"is_disabled": True}})
    assert "load" not in [check.name for check in build_checks(Role.WORKER, settings)]


def test_observe_only_is_kept_apart() -> None:
    assert observe_only(parse_settings({"disk": {"observe_only": True}, "load": {}})) == {"disk"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"lode": {}}, "health.lode: there is no such check; did you mean load"),
        ({"load": {"per_cpus": 1}}, "health.load.per_cpus: there is no such setting; did you mean per_cpu"),
        ({"load": {"name": "x"}}, "health.load.name: there is no such setting"),
        ({"load": 3}, "health.load: must be an object"),
        ({"kernel_log": {"path": "/x"}}, "health.kernel_log.path: there is no such setting"),
    ],
)
def test_a_misspelt_setting_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(data)


@pytest.mark.parametrize("values", [{"damping": [3, 2]}, {"damping": [1]}, {"interval_s": -1}])
def test_a_value_that_makes_no_sense_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"health\.load"):
        build_checks(Role.WORKER, parse_settings({"load": values}))
