"""What checks say of themselves is complete and true: codes, settings and their reasons."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hyperpod
from hyperpod.adapters.aws import machines
from hyperpod.core import deep
from hyperpod.health import parse_slurm_reason, registry, users
from hyperpod.health.checks import group, kernel_log
from hyperpod.health.checks.kernel_log import KernelLog, Limits
from hyperpod.health.elsewhere import ELSEWHERE
from hyperpod.health.gpu import UNREADABLE

CODE = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+|S?Xid\d*")
PARTS = ("hyperpod.health", "hyperpod.core.majority")
MAKERS = frozenset({"fatal", "warn", "unknown", "Finding", "Verdict"})
OF_MODULES = tuple(name for name in registry.names() if name not in ELSEWHERE)
"""Checks that have a module of their own."""

SOURCES = Path(hyperpod.__file__).parent


def _module(name: str) -> ModuleType:
    """The module of a check; what it imports from the health package belongs to it."""
    if name == group.NAME:
        return group
    make: Any = KernelLog if name == kernel_log.NAME else registry.CHECKS[name]
    found = inspect.getmodule(make)
    assert found is not None
    return found


@cache
def _trees(name: str) -> tuple[ast.Module, ...]:
    trees, todo, seen = [], [_module(name).__name__], set()
    while todo:
        module = todo.pop()
        if module in seen or module in ("hyperpod.health.check", "hyperpod.health.runner"):
            continue
        seen.add(module)
        try:
            source = inspect.getsource(importlib.import_module(module))
        except OSError:
            # An empty file.
            continue
        tree = ast.parse(source)
        trees.append(tree)
        for node in ast.walk(tree):
            # Another check's codes stay its own, also where one of its functions is used.
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").startswith(PARTS)
                and ".checks" not in node.module
            ):
                todo.append(node.module or "")
    return tuple(trees)


def _name_of(call: ast.Call) -> set[str]:
    return {n.id for n in ast.walk(call.func) if isinstance(n, ast.Name)}


def made_codes(name: str) -> set[str]:
    """Codes that stand in calls which make a finding, or in a helper's call that passes one on."""
    found = set()
    for tree in _trees(name):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not _name_of(node) & MAKERS:
                continue
            for argument in node.args[:2]:
                if (
                    isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                    and CODE.fullmatch(argument.value)
                ):
                    found.add(argument.value)
                if isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
                    found.add(str(argument.values[0].value))
    return found


def texts(name: str) -> set[str]:
    """Every text in the sources outside of what describes the check."""
    found: set[str] = set()
    for tree in _trees(name):
        described = {
            id(inner)
            for node in ast.walk(tree)
            if (isinstance(node, ast.Call) and "About" in _name_of(node))
            or (isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "KERNEL_CODES")
            for inner in ast.walk(node)
        }
        found |= {
            n.value
            for n in ast.walk(tree)
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in described
        }
    return found


def _calls_look(name: str) -> bool:
    """Say whether a check calls the look at GPUs, which reports what cannot be read; others use its small functions."""
    return any(isinstance(n, ast.Call) and getattr(n.func, "id", "") == "look" for n in ast.walk(_trees(name)[0]))


def _is_declared(code: str, known: set[str]) -> bool:
    begins = {k.partition("<")[0] for k in known if "<" in k}
    return (
        registry.is_code(code, known) or code in begins or any(k.startswith(code) for k in known if code == "HungTask")
    )


@pytest.mark.parametrize("name", registry.names())
def test_every_check_explains_itself(name: str) -> None:
    about = registry.about(name)
    assert all((about.title, about.reads, about.means, about.does, about.codes, about.source))
    assert not about.title.endswith(".")
    assert all(text.endswith(".") for text in (about.reads, about.means, about.does, *about.codes.values()))


@pytest.mark.parametrize("name", OF_MODULES)
def test_every_code_that_is_reported_is_declared(name: str) -> None:
    known = set(registry.codes(name)) | (UNREADABLE.keys() if not _calls_look(name) else set())
    assert [code for code in sorted(made_codes(name)) if not _is_declared(code, known)] == []


@pytest.mark.parametrize("name", OF_MODULES)
def test_every_code_that_is_declared_stands_in_the_source(name: str) -> None:
    found = texts(name)
    missing = [
        code
        for code in registry.about(name).codes
        if code not in found and code.partition("<")[0] not in found and not _is_put_together(code, found)
    ]
    assert missing == []


def _is_put_together(code: str, found: set[str]) -> bool:
    return any(code.startswith(text) and code.removeprefix(text) in found for text in found if CODE.fullmatch(text))


@pytest.mark.parametrize("name", registry.names())
def test_every_setting_has_a_reason(name: str) -> None:
    rows = registry.setting_rows(name)
    assert bool(rows) == (name not in ELSEWHERE)
    assert [row.name for row in rows if not row.why.endswith(".")] == []


def test_the_kernel_logs_settings_are_its_parameters() -> None:
    parameters = inspect.signature(KernelLog.__init__).parameters
    assert {f.name: f.default for f in fields(Limits)} == {f.name: parameters[f.name].default for f in fields(Limits)}


def test_a_code_that_nobody_declared_would_be_noticed() -> None:
    assert not _is_declared("SomethingElse", set(registry.codes("disk")))
    assert "DiskFull" in made_codes("disk")
    assert "PluginMissing" in texts("plugin")


# --- findings that no run of a check makes --------------------------------------------------------------------------


def _finding_calls() -> list[tuple[Path, ast.Call]]:
    """Every call in our sources that makes a finding, by the class itself."""
    return [
        (path, node)
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    ]


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    named = next((k.value for k in call.keywords if k.arg == name), None)
    return named or (call.args[position] if len(call.args) > position else None)


def _literals(name: str, position: int, path_part: str = "") -> dict[str, set[str]]:
    """Texts in the place of an argument, by the check that they are used with."""
    found: dict[str, set[str]] = {}
    for path, call in _finding_calls():
        check, value = _argument(call, "check", 0), _argument(call, name, position)
        if isinstance(check, ast.Constant) and isinstance(value, ast.Constant) and path_part in str(path):
            found.setdefault(str(check.value), set()).add(str(value.value))
    return found


def test_no_finding_of_ours_bears_a_name_that_cannot_be_described() -> None:
    used = set(_literals("check", 0))
    constants = {
        value
        for path, call in _finding_calls()
        if isinstance(check := _argument(call, "check", 0), ast.Name) and check.id.isupper()
        if isinstance(value := getattr(importlib.import_module(_module_name(path)), check.id), str)
    }
    assert {"lease", "agent", "user", "ec2_status", "ec2_event", "ec2_spot", "munge"} <= used
    assert {"slurm", "deep", "group"} <= constants
    assert used | constants <= set(registry.names())


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)


def _codes_of_events() -> set[str]:
    return {"".join(word.capitalize() for word in code.split("-")) for code in machines._EVENT_ACTIONS}


def _codes_of_deep_checks() -> set[str]:
    """Codes in the judgement's tables and in its own calls."""
    tree = ast.parse(inspect.getsource(deep))
    calls = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    kinds = {kind.value for kind in deep.Kind}
    return {text for text in calls if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", text)} - kinds


CODES: Mapping[str, Callable[[], set[str]]] = {
    "slurm": lambda: {meaning.code for _, meaning in parse_slurm_reason._REASONS},
    "ec2_status": lambda: {
        n.value
        for n in ast.walk(ast.parse(inspect.getsource(machines.findings_of_status)))
        if isinstance(n, ast.Constant) and str(n.value).endswith("CheckFailed")
    },
    "ec2_event": lambda: {*_codes_of_events(), "ScheduledEvent"},
    "ec2_spot": lambda: _literals("code", 1)["ec2_spot"],
    "deep": _codes_of_deep_checks,
    "lease": lambda: _literals("code", 1)["lease"],
    "agent": lambda: _literals("code", 1)["agent"],
    "user": lambda: {users.REFUSED, users.IGNORED},
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_found_without_a_run_declares_exactly_the_codes_that_are_made(name: str) -> None:
    assert set(registry.codes(name)) == CODES[name]()
