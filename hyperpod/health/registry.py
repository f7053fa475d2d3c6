"""The list of checks, and how the configuration's settings reach them. Importing it starts nothing.

A new check is a file in ``health/checks`` and one line in ``CHECKS``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast

from hyperpod.core.node import Role
from hyperpod.errors import ConfigError
from hyperpod.health.check import Check, Damping, Settings
from hyperpod.health.checks import kernel_log
from hyperpod.health.checks.cpu_count import CpuCountCheck
from hyperpod.health.checks.disk import DiskCheck
from hyperpod.health.checks.ec2_notice import Ec2NoticeCheck
from hyperpod.health.checks.load import LoadCheck
from hyperpod.health.checks.memory import MemoryCheck
from hyperpod.health.checks.munge import MungeCheck
from hyperpod.health.checks.name import NameCheck
from hyperpod.health.checks.plugin import PluginCheck
from hyperpod.health.checks.readonly_fs import ReadonlyFsCheck
from hyperpod.health.checks.service import ServiceCheck
from hyperpod.health.checks.shared_fs import SharedFsCheck

CHECKS: Mapping[str, Callable[..., Any]] = {
    "service": ServiceCheck,
    "munge": MungeCheck,
    "name": NameCheck,
    "shared_fs": SharedFsCheck,
    "plugin": PluginCheck,
    "memory": MemoryCheck,
    "cpu_count": CpuCountCheck,
    "disk": DiskCheck,
    "readonly_fs": ReadonlyFsCheck,
    "load": LoadCheck,
    "ec2_notice": Ec2NoticeCheck,
}
"""Checks that the runner starts, by name. ``kernel_log`` is driven by events and has its place in the agent."""

_KERNEL_LOG_SETTINGS = ("forget_s", "overrides", "limit")
_WITHOUT_MEANING = ("interval_s",)
"""Accepted for ``kernel_log`` as for every check, although it is driven by events."""


def parse_settings(data: Mapping[str, Any]) -> dict[str, Settings]:
    """Read the ``health`` block of the agent's configuration: settings by check.

    Raises:
        ConfigError: for a check or a setting that does not exist; names the nearest one.
    """
    known = (*CHECKS, kernel_log.NAME)
    out = {}
    for name, values in data.items():
        if name not in known:
            raise ConfigError(f"health.{name}: there is no such check{_nearest(name, known)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"health.{name}: must be an object of settings")
        own = dict(values)
        is_disabled, observe_only = bool(own.pop("is_disabled", False)), bool(own.pop("observe_only", False))
        allowed = _KERNEL_LOG_SETTINGS if name == kernel_log.NAME else _setting_names(CHECKS[name])
        if name == kernel_log.NAME:
            own = {key: value for key, value in own.items() if key not in _WITHOUT_MEANING}
        for key in own:
            if key not in allowed:
                raise ConfigError(f"health.{name}.{key}: there is no such setting{_nearest(key, allowed)}")
        out[name] = Settings(is_disabled, observe_only, own)
    return out


def build_checks(role: Role, settings: Mapping[str, Settings]) -> tuple[Check, ...]:
    """Make the checks of a node with this role.

    Raises:
        ConfigError: if a setting's value does not fit.
    """
    out = []
    for name, make in CHECKS.items():
        own = settings.get(name, Settings())
        if own.is_disabled:
            continue
        try:
            check = cast(Check, make(**{key: _value(key, value) for key, value in own.values.items()}))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"health.{name}: {error}") from error
        if role in check.roles:
            out.append(check)
    return tuple(out)


def observe_only(settings: Mapping[str, Settings]) -> frozenset[str]:
    """Return the names of checks that may not take the node out of service."""
    return frozenset(name for name, own in settings.items() if own.observe_only)


def _setting_names(make: Callable[..., Any]) -> tuple[str, ...]:
    hidden = {"name", "is_quick", "is_basic", "roles"}
    return tuple(f.name for f in fields(cast(Any, make)) if f.name not in hidden and not f.name.startswith("_"))


def _value(key: str, value: object) -> object:
    if key == "damping" and isinstance(value, (list, tuple)):
        needed, of = value
        if not 1 <= int(needed) <= int(of):
            raise ValueError("damping must be [n, m] with 1 <= n <= m")
        return Damping(int(needed), int(of))
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        raise ValueError(f"{key} must not be negative")
    return value


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
