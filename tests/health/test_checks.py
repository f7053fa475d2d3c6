"""Every check on the cases in ``cases/<check>``: raw text and figures in, findings out.

A case file holds ``facts``, ``settings`` and ``host`` (see ``tests.fakes.host``), what munge does, and ``expect``: the
findings as ``CODE SEVERITY [device]``, with a part of the message where it matters; ``not_ready`` is a part of that
sentence. ``again`` lists changes to the host for further runs of the same check, each with its own ``expect``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hyperpod.core.node import Role
from hyperpod.health.check import Check, Facts, Ports, Result
from hyperpod.health.registry import CHECKS, build_checks, parse_settings
from hyperpod.ports.host import DiskUsage, Process
from tests.fakes.clock import FakeClock
from tests.fakes.host import FakeHost, FakeMetadata, FakeMunge

CASES = Path(__file__).parent / "cases"


def _load() -> list[Any]:
    found = []
    for path in sorted(CASES.glob("*/*.yaml")):
        if path.parent.name != "kernel_log":
            found.append(pytest.param(path, id=f"{path.parent.name}-{path.stem}"))
    return found


def _disk(value: Any) -> DiskUsage | OSError:
    if isinstance(value, str):
        return OSError(5, value)
    return DiskUsage(
        total_bytes=value.get("total", 100_000_000_000),
        free_bytes=value.get("free", 50_000_000_000),
        total_inodes=value.get("inodes", 1_000_000),
        free_inodes=value.get("free_inodes", 900_000),
        is_read_only=value.get("read_only", False),
    )


def _set_up(host: FakeHost, data: dict[str, Any]) -> None:
    for name in ("files", "writes", "outputs"):
        getattr(host, name).update(data.get(name, {}))
    for path in data.get("gone", []):
        host.files.pop(path, None)
    host.disks.update({path: _disk(value) for path, value in data.get("disks", {}).items()})
    host.blobs.update({path: text.encode("latin-1") for path, text in data.get("blobs", {}).items()})
    host.names.update({name: tuple(found) for name, found in data.get("names", {}).items()})
    host.addresses = tuple(data.get("addresses", host.addresses))
    host.cpus = data.get("cpus", host.cpus)
    host.mounted = tuple(data.get("mounted", host.mounted))
    if "processes" in data:
        host.process_list = [Process(pid, 1, 0, name) for name, pid in data["processes"].items()]
    host.clock.advance(data.get("later_s", 0))


def _facts(host: FakeHost, data: dict[str, Any]) -> Facts:
    values = {"uptime_s": 1000.0, **data}
    values["role"] = Role(values.get("role", "worker"))
    values["shared_mounts"] = tuple(values.get("shared_mounts", ()))
    return Facts(now=host.now(), node="worker-1", **values)


def _run(check: Check, host: FakeHost, case: dict[str, Any]) -> Result:
    told = case.get("metadata")
    metadata = None if told is None else FakeMetadata(told)
    munge = FakeMunge(case.get("munge_error", ""))
    return check.run(Ports(host, munge, _facts(host, case.get("facts", {})), metadata))


def _compare(result: Result, expected: dict[str, Any]) -> None:
    found = [f"{f.code} {f.severity.name}" + (f" [{f.device}]" if f.device else "") for f in result.findings]
    assert found == expected.get("expect", [])
    for part in expected.get("messages", []):
        assert any(part in f.message for f in result.findings), [f.message for f in result.findings]
    assert expected.get("not_ready", "") in result.not_ready
    assert bool(expected.get("not_ready")) == bool(result.not_ready)
    for key in ("whose", "action"):
        if key in expected:
            assert [getattr(f, key).value for f in result.findings] == expected[key]
    if "deadline" in expected:
        assert [f.deadline.isoformat() if f.deadline else None for f in result.findings] == expected["deadline"]
    if "is_hard" in expected:
        assert [f.is_hard for f in result.findings] == expected["is_hard"]


@pytest.mark.parametrize("path", _load())
def test_a_check_finds_what_is_written_down(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    name = path.parent.name
    role = Role(case.get("facts", {}).get("role", "worker"))
    (check,) = (c for c in build_checks(role, parse_settings({name: case.get("settings", {})})) if c.name == name)
    host = FakeHost(FakeClock())
    _set_up(host, case.get("host", {}))
    _compare(_run(check, host, case), case)
    for again in case.get("again", []):
        _set_up(host, again.get("host", {}))
        _compare(_run(check, host, {**case, **again}), again)


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_a_healthy_and_an_ill_case(name: str) -> None:
    cases = [yaml.safe_load(path.read_text()) for path in (CASES / name).glob("*.yaml")]
    assert any(not case.get("expect") and not case.get("not_ready") for case in cases)
    assert any(case.get("expect") for case in cases)


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_explains_itself(name: str) -> None:
    module = __import__(f"hyperpod.health.checks.{name}", fromlist=["__doc__"])
    assert "etting" in module.__doc__
