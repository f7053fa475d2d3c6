"""Every check on the cases in ``cases/<check>``: raw text and figures in, findings out.

A case file holds ``facts``, ``settings`` and ``host`` (see ``tests.fakes.host``), what munge does, and ``expect``: the
findings as ``CODE SEVERITY [device]``, with a part of the message where it matters; ``not_ready`` is a part of that
sentence. ``host.trees`` holds folders as ``{root: {path below it: value}}``; ``devices`` and ``streams`` are those of
``tests.fakes.devices``. ``gpus`` says what NVML knows: ``count`` GPUs that are well, with changes for ``all`` or for
one by its index; ``errors`` of one are ``attribute: ANSWER``. ``gpu_error`` (an answer) and ``no_library`` (a fault)
are what the library says instead. ``inventory`` is compared where it is given. ``again`` lists changes to the host for
further runs of the same check, each with its own ``expect``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hyperpod.core.node import Role
from hyperpod.health.check import Check, Facts, Ports, Result
from hyperpod.health.registry import CHECKS, build_checks, codes, is_code, parse_settings
from hyperpod.ports.devices import NvmeHealth
from hyperpod.ports.host import DiskUsage, Process
from tests.fakes.clock import FakeClock
from tests.fakes.devices import FakeDevices, FakeStreams
from tests.fakes.gpus import FakeGpus
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
    for root, tree in data.get("trees", {}).items():
        host.files.update({f"{root}/{path}": f"{value}\n" for path, value in tree.items()})
    for name in ("files", "links", "sources", "writes", "outputs", "refusals", "sockets", "inodes"):
        getattr(host, name).update(data.get(name, {}))
    host.executables |= frozenset(data.get("executables", ()))
    host.booted = data.get("booted", host.booted)
    for path in data.get("gone", []):
        for name in [n for n in host.files if n == path or n.startswith(f"{path}/")]:
            del host.files[name]
    host.disks.update({path: _disk(value) for path, value in data.get("disks", {}).items()})
    host.blobs.update({path: text.encode("latin-1") for path, text in data.get("blobs", {}).items()})
    host.names.update({name: tuple(found) for name, found in data.get("names", {}).items()})
    host.addresses = tuple(data.get("addresses", host.addresses))
    host.cpus = data.get("cpus", host.cpus)
    host.mounted = tuple(data.get("mounted", host.mounted))
    if isinstance(data.get("processes"), list):
        host.process_list = [Process(**process) for process in data["processes"]]
    elif "processes" in data:
        host.process_list = [Process(pid, 1, 0, name) for name, pid in data["processes"].items()]
    host.environments.update(data.get("environments", {}))
    host.clock.advance(data.get("later_s", 0))


def _facts(host: FakeHost, data: dict[str, Any]) -> Facts:
    values = {"uptime_s": 1000.0, **data}
    values["role"] = Role(values.get("role", "worker"))
    if values.get("jobs") is not None:
        values["jobs"] = frozenset(values["jobs"])
    values["shared_mounts"] = tuple(values.get("shared_mounts", ()))
    return Facts(now=host.now(), node="worker-1", **values)


def _devices(data: dict[str, Any]) -> FakeDevices:
    health = {d: v if isinstance(v, int) else NvmeHealth(**v) for d, v in data.get("health", {}).items()}
    return FakeDevices(data.get("statistics", {}), health, data.get("is_synchronised"))


def _streams(data: dict[str, Any]) -> FakeStreams:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in data.get("lines", [])]
    return FakeStreams(lines, data.get("age_s", 1.0 if lines else None), data.get("problem", ""))


def _run(check: Check, host: FakeHost, case: dict[str, Any]) -> Result:
    told = case.get("metadata")
    return check.run(
        Ports(
            host,
            FakeMunge(case.get("munge_error", "")),
            _facts(host, case.get("facts", {})),
            FakeGpus.of_case(case),
            streams=_streams(case.get("streams", {})),
            devices=_devices(case.get("devices", {})),
            metadata=None if told is None else FakeMetadata(told),
        )
    )


def _compare(result: Result, expected: dict[str, Any]) -> None:
    found = [f"{f.code} {f.severity.name}" + (f" [{f.device}]" if f.device else "") for f in result.findings]
    assert found == expected.get("expect", [])
    assert all(is_code(f.code, codes(f.check)) for f in result.findings), "a code that the check does not declare"
    for part in expected.get("messages", []):
        assert any(part in f.message for f in result.findings), [f.message for f in result.findings]
    assert expected.get("not_ready", "") in result.not_ready
    assert bool(expected.get("not_ready")) == bool(result.not_ready)
    for key, value in expected.get("inventory", {}).items():
        assert result.inventory.get(key) == value
    for key in ("whose", "action"):
        if key in expected:
            assert [getattr(f, key).value for f in result.findings] == expected[key]
    if "deadline" in expected:
        assert [f.deadline.isoformat() if f.deadline else None for f in result.findings] == expected["deadline"]
    if "peer" in expected:
        assert [f.peer for f in result.findings] == expected["peer"]
    if "is_hard" in expected:
        assert [f.is_hard for f in result.findings] == expected["is_hard"]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's local time, in which some logs are written."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("path", _load())
def test_a_check_finds_what_is_written_down(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    name = path.parent.name
    role = Role(case.get("facts", {}).get("role", "worker"))
    (check,) = (c for c in build_checks(role, parse_settings({name: case.get("settings", {})})) if c.name == name)
    host = FakeHost(FakeClock())
    _set_up(host, case.get("host", {}))
    _compare(_run(check, host, case), case)
    assert case.get("started") in (None, _started(host))
    for again in case.get("again", []):
        _set_up(host, again.get("host", {}))
        _compare(_run(check, host, {**case, **again}), again)
        assert again.get("started") in (None, _started(host))


def _started(host: FakeHost) -> int:
    return sum(call[0] != "try_write" for call in host.calls)


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_a_healthy_and_an_ill_case(name: str) -> None:
    cases = [yaml.safe_load(path.read_text()) for path in (CASES / name).glob("*.yaml")]
    assert any(not case.get("expect") and not case.get("not_ready") for case in cases)
    assert any(run.get("expect") for case in cases for run in (case, *case.get("again", [])))
