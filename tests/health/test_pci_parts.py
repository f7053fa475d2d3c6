"""What hangs below a PCIe port, and that a fatal error of a port without anything that matters drains nobody."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hyperpod.core.finding import Severity
from hyperpod.health.kernel_events import KernelEvents
from hyperpod.health.pci_parts import is_needed
from tests.fakes.clock import FakeClock
from tests.fakes.host import FakeHost

PORT = "0000:00:1c.0"
GPU, VGA, USB, SOUND = {"class": "0x030200"}, {"class": "0x030000"}, {"class": "0x0c0330"}, {"class": "0x040300"}


def host_with(parts: Mapping[str, Mapping[str, str]]) -> FakeHost:
    host = FakeHost(FakeClock())
    for path, files in parts.items():
        host.files.update({f"/sys/bus/pci/devices/{path}/{name}": f"{value}\n" for name, value in files.items()})
    return host


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({PORT: {"class": "0x060400"}, f"{PORT}/0000:01:00.0": GPU}, True),
        ({PORT: {"class": "0x060400"}, f"{PORT}/0000:01:00.0": {"class": "0x010802"}}, True),
        ({PORT: {"class": "0x060400"}, f"{PORT}/0000:01:00.0": {"class": "0x020000"}}, True),
        ({PORT: {"class": "0x060400"}, f"{PORT}/0000:01:00.0": USB}, False),
        ({PORT: {"class": "0x060400"}, f"{PORT}/0000:01:00.0": SOUND, f"{PORT}/0000:01:00.1": GPU}, True),
        ({PORT: {"class": "0x060400"}, f"{PORT}/0000:01:00.0": {**VGA, "vendor": "0x1a03"}}, False),
        ({PORT: {"class": "0x060400"}, f"{PORT}/0000:01:00.0": {**VGA, "vendor": "0x10de"}}, True),
        (
            {
                PORT: {"class": "0x060400"},
                f"{PORT}/0000:01:00.0": {"class": "0x060400"},
                f"{PORT}/0000:01:00.0/0000:02:00.0": GPU,
            },
            True,
        ),
        # Nothing is left below it, nothing is known of it, or what is there makes no sense.
        ({PORT: {"class": "0x060400"}}, True),
        ({}, True),
        ({PORT: {"class": "?"}}, True),
        ({PORT: USB}, False),
    ],
)
def test_a_port_matters_when_something_below_it_does(parts: Mapping[str, Mapping[str, str]], expected: bool) -> None:
    assert is_needed(host_with(parts), "/sys", PORT) is expected


@pytest.mark.parametrize(("needed", "severity"), [(True, Severity.FATAL), (False, Severity.WARN)])
def test_a_fatal_error_above_parts_that_nobody_needs_drains_nobody(needed: bool, severity: Severity) -> None:
    events = KernelEvents(is_needed=lambda address: needed)
    (judged,) = events.feed(f"pcieport {PORT}: AER: Uncorrected (Fatal) error received: {PORT}", 1.0)
    assert judged.severity is severity
