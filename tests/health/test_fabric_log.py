"""The fabric manager's log as a file: rotation, floods, times, and what a person ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from hyperpod.core.finding import Finding
from hyperpod.health.check import Facts, Ports
from hyperpod.health.checks.fabric_log import FabricLogCheck
from hyperpod.health.fabric_log import classify_fabric, written_at
from tests.fakes.clock import FakeClock
from tests.fakes.host import FakeHost, FakeMunge

LOG = "/var/log/fabricmanager.log"
FATAL = (
    "[Jan 01 2025 00:00:{s:02}] [ERROR] [tid 8] detected NVSwitch fatal error {code} on fid 0 on NVSwitch pci bus id "
    "00000000:86:00.0 physical id 3 port 33\n"
)
NOISE = "[Jan 01 2025 00:00:00] [INFO] [tid 8] NVSwitch is configured\n"


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


utc = pytest.mark.parametrize("zone", ["UTC"], indirect=True)


class Stand:
    """A machine with this log, and the check that follows it."""

    def __init__(self, text: str = "") -> None:
        self.host = FakeHost(FakeClock())
        self.host.clock.advance(60)
        self.host.files[LOG] = text
        self.check = FabricLogCheck()

    def look(self) -> list[str]:
        return [f"{f.code} {f.severity.name}" for f in self.findings()]

    def findings(self) -> tuple[Finding, ...]:
        facts = Facts(self.host.now(), 1000.0, "worker-1")
        return self.check.run(Ports(self.host, FakeMunge(), facts)).findings


@utc
@pytest.mark.usefixtures("zone")
def test_only_what_was_added_is_read() -> None:
    stand = Stand(NOISE * 10)
    reads = []
    real = stand.host.read_part

    def counted(path: str, offset: int, limit: int) -> bytes:
        part = real(path, offset, limit)
        reads.append((offset, len(part)))
        return part

    stand.host.read_part = counted  # type: ignore[method-assign]
    assert stand.look() == []
    reads.clear()
    assert stand.look() == []
    assert reads == []
    stand.host.files[LOG] += FATAL.format(s=5, code=20034)
    assert stand.look() == ["SXid20034 FATAL"]
    assert [offset for offset, _ in reads if offset] == [len(NOISE) * 10, len(stand.host.files[LOG])]


@utc
@pytest.mark.usefixtures("zone")
def test_half_a_line_is_read_when_it_is_whole() -> None:
    line = FATAL.format(s=5, code=20034)
    stand = Stand(NOISE + line[:40])
    assert stand.look() == []
    stand.host.files[LOG] = NOISE + line
    assert stand.look() == ["SXid20034 FATAL"]


@utc
@pytest.mark.usefixtures("zone")
def test_what_was_written_before_a_rotation_is_read_too() -> None:
    stand = Stand(NOISE)
    stand.look()
    stand.host.files[f"{LOG}.1"] = NOISE + FATAL.format(s=5, code=20034)
    stand.host.inodes = {f"{LOG}.1": 1, LOG: 2}
    stand.host.files[LOG] = FATAL.format(s=6, code=19049)
    assert sorted(stand.look()) == ["SXid19049 FATAL", "SXid20034 FATAL"]
    stand.host.inodes[LOG] = 3
    stand.host.files[LOG] = FATAL.format(s=7, code=11001)
    assert "SXid11001 FATAL" in stand.look(), "the old one is away"


@utc
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("padding", [0, 200])
def test_a_log_that_is_written_anew_in_place_is_read_from_its_beginning(padding: int) -> None:
    stand = Stand("[Dec 31 2024 23:50:00] [INFO] [tid 1] start\n" + NOISE * 50)
    stand.look()
    anew = "[Jan 01 2025 00:00:01] [INFO] [tid 2] start\n" + FATAL.format(s=5, code=20034) + NOISE * padding
    stand.host.files[LOG] = anew
    assert stand.look() == ["SXid20034 FATAL"]


@utc
@pytest.mark.usefixtures("zone")
def test_a_long_log_is_read_from_its_end_and_a_flood_bit_by_bit() -> None:
    stand = Stand(FATAL.format(s=1, code=11001) + NOISE * 8000)
    assert stand.look() == [], "more than the last 256 KiB are not looked at"
    stand.host.files[LOG] += NOISE * 30_000 + FATAL.format(s=5, code=20034)
    assert stand.look() == []
    assert stand.look() == ["SXid20034 FATAL"], "the file is as before, and there is more to read"


@utc
@pytest.mark.usefixtures("zone")
def test_an_endless_line_is_passed_over() -> None:
    stand = Stand("NVSwitch" * 200_000)
    stand.look()
    stand.host.files[LOG] += "NVSwitch" * 200_000 + "\n" + FATAL.format(s=5, code=20034)
    assert [stand.look() for _ in range(3)][-1] == ["SXid20034 FATAL"]


@utc
@pytest.mark.usefixtures("zone")
def test_memory_stays_small_whatever_is_logged() -> None:
    stand = Stand("".join(FATAL.format(s=5, code=code) for code in range(10_000, 10_500)))
    assert len(stand.look()) == 64


@utc
@pytest.mark.usefixtures("zone")
def test_what_a_person_has_ended_comes_back_only_with_a_new_line() -> None:
    stand = Stand(FATAL.format(s=5, code=20034))
    (finding,) = stand.findings()
    assert finding.since == datetime(2025, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert not stand.check.clear("SXid20034", "")
    assert stand.check.clear("SXid20034", "0000:86:00.0")
    assert stand.look() == []
    stand.host.files[LOG] += FATAL.format(s=9, code=20034)
    assert stand.look() == ["SXid20034 FATAL"]


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("UTC", datetime(2025, 1, 1, 12, 0, 5, tzinfo=UTC)),
        ("America/New_York", datetime(2025, 1, 1, 17, 0, 5, tzinfo=UTC)),
        ("Asia/Kolkata", datetime(2025, 1, 1, 6, 30, 5, tzinfo=UTC)),
    ],
    indirect=["zone"],
)
@pytest.mark.usefixtures("zone")
def test_its_times_are_the_machines_local_ones(expected: datetime) -> None:
    assert written_at("[Jan 01 2025 12:00:05] [ERROR] [tid 8] x") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[Foo 01 2025 12:00:05] [ERROR] x",
        "[Feb 30 2025 12:00:05] [ERROR] x",
        "[Jan 01 0000 00:00:05] [INFO] x",
    ],
)
def test_a_line_without_a_time_has_none(text: str) -> None:
    assert written_at(text) is None


@pytest.mark.parametrize(
    "text", ["detected NVSwitch fatal error", "detected NVSwitch Fatal error 20034", "NVSwitch fatal error 20034", "0"]
)
def test_words_that_are_not_the_fabric_managers_mean_nothing(text: str) -> None:
    assert classify_fabric(text) is None
