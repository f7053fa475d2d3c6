"""Checks from Python packages: entry points of the group ``hyperpod.checks``.

An entry point names a callable without arguments that returns a check (see ``health.check.Check``); what is missing
in it has a default. One that cannot be loaded is a finding, never the end of the agent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hyperpod.core.finding import Finding, Severity
from hyperpod.core.node import Role
from hyperpod.core.policy import Mode
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Check, Damping, Ports, Result, Settings
from hyperpod.health.users import ABOUT, NOT_LOADED, PREFIX, Found, policy_values

GROUP = "hyperpod.checks"


@dataclass
class PackagedCheck:
    """A check of a package, under a name that cannot be taken for one of ours."""

    about: ClassVar[About] = ABOUT
    name: str
    inner: Any
    interval_s: float = 60.0
    deadline_s: float = 10.0
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    is_job_start: bool = False
    is_job_end: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Run it; its findings get our name for it."""
        result = self.inner.run(ports)
        if not isinstance(result, Result):
            raise TypeError(f"run() gave {type(result).__name__}, not a Result")
        return replace(result, findings=tuple(replace(f, check=self.name) for f in result.findings))


_FIELDS = (
    "interval_s",
    "deadline_s",
    "damping",
    "is_quick",
    "is_basic",
    "is_job_start",
    "is_job_end",
    "roles",
)


def wrap(name: str, inner: Any) -> PackagedCheck:
    """Return a packaged check with our name and defaults.

    Raises:
        TypeError, ValueError: if it is no check.
    """
    if isinstance(inner, type) or not callable(getattr(inner, "run", None)):
        raise TypeError("it has no method run")
    check = PackagedCheck(name, inner, **{f: getattr(inner, f) for f in _FIELDS if hasattr(inner, f)})
    if not isinstance(check.damping, Damping):
        raise TypeError("damping must be a Damping")
    if not float(check.interval_s) >= 1 or not 0 < float(check.deadline_s) <= 600:
        raise ValueError("interval_s must be at least 1, deadline_s more than 0 and at most 600")
    return check


def load_packaged(policy: Mapping[str, Settings], entry_points: Callable[[], Sequence[Any]] | None = None) -> Found:
    """Load the checks of installed packages. It runs their code, so it belongs into a thread of its own.

    Args:
        policy: The configuration's policy by check.
        entry_points: Gives the entry points; by default those of this interpreter.
    """
    checks: list[Check] = []
    observed, findings = set(), []
    default = (policy.get("default") or Settings()).mode
    for entry in (entry_points or installed)():
        name = f"{PREFIX}{entry.name}"
        own = policy.get(name)
        mode = own.mode if own is not None else default
        if mode is Mode.OFF:
            continue
        try:
            check = wrap(name, entry.load()())
            checks.append(replace(check, **policy_values(own)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's code
            text = f"the check {entry.name} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
            findings.append(Finding(name, NOT_LOADED, Severity.UNKNOWN, text[:300]))
            continue
        if mode is Mode.OBSERVE:
            observed.add(name)
    return Found(tuple(checks), frozenset(observed), tuple(findings))


def installed(paths: Sequence[str] | None = None) -> Sequence[Any]:
    """Return the entry points of our group. The library for them is heavy, so it is loaded only if there are some."""
    if not _has_group(sys.path if paths is None else paths):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _has_group(paths: Sequence[str]) -> bool:
    for folder in paths:
        try:
            names = [name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for name in names:
            try:
                with open(f"{folder or '.'}/{name}/entry_points.txt", encoding="utf-8", errors="replace") as file:
                    if f"[{GROUP}]" in file.read(1 << 20):
                        return True
            except OSError:
                continue
    return False
