"""A Neuron line in the kernel log costs a machine only when a second fact agrees."""

from __future__ import annotations

from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.health.correlate import correlate
from hyperpod.health.kernel import classify

LINE = "NEURON_HW_ERR=HBM_UE instance-id=i-1 hostname=h nd-id={} nc-id=0 serial-num=5 action=TERMINATE_INSTANCE"


def line(device: int = 3) -> Finding:
    # What the kernel log makes of the first such line; one that comes again it calls FATAL by itself.
    (verdict,) = classify(LINE.format(device))
    return Finding("kernel_log", verdict.code, verdict.below, verdict.message, device=verdict.device)


def counter(device: str, code: str = "NeuronHardwareErrors") -> Finding:
    return Finding("neuron", code, Severity.WARN, "counted", device=device)


def test_a_line_alone_is_a_warning() -> None:
    assert correlate((line(),)) == (line(),)
    assert line().severity is Severity.WARN


def test_a_counter_of_the_same_device_or_of_the_node_makes_it_a_replacement() -> None:
    for device in ("nd3", ""):
        found, _ = correlate((line(), counter(device)))
        assert (found.severity, found.action, found.is_hard) == (Severity.FATAL, Action.REPLACE, True)
        assert "a counter rose too" in found.message


def test_another_devices_counter_and_a_failed_tool_prove_nothing() -> None:
    others = (counter("nd4"), counter("nd3", "NeuronToolFailed"), counter("", "NeuronCountersMissing"))
    assert correlate((line(), *others))[0] == line()


def test_the_same_request_after_a_reboot_makes_it_a_replacement() -> None:
    assert correlate((line(),), {"nd3"})[0].action is Action.REPLACE
    assert correlate((line(),), {"nd4"})[0] == line()


def test_other_lines_and_findings_stay_as_they_are() -> None:
    found = (Finding("kernel_log", "Xid79", Severity.FATAL, "off", Action.REBOOT), counter("nd3"))
    assert correlate(found, {"nd3"}) == found


def test_an_error_of_a_switch_that_both_logs_tell_counts_once() -> None:
    def sxid(check: str, device: str = "0000:86:00.0", code: str = "SXid20034") -> Finding:
        return Finding(check, code, Severity.FATAL, "told", Action.REBOOT, device=device, is_hard=True)

    kernel = sxid("kernel_log")
    assert correlate((kernel, sxid("fabric_log"))) == (kernel,)
    assert correlate((sxid("fabric_log", ""), kernel)) == (kernel,), "the line does not name the switch"
    for other in (sxid("fabric_log", "0000:87:00.0"), sxid("fabric_log", code="SXid19049")):
        assert correlate((other, kernel)) == (other, kernel)
    assert correlate((sxid("fabric_log"),)) == (sxid("fabric_log"),)


def test_the_kernels_word_stands_where_the_fabric_manager_calls_the_same_error_fatal() -> None:
    kernel = Finding("kernel_log", "SXid12028", Severity.WARN, "Non-fatal", device="0000:86:00.0")
    fabric = Finding("fabric_log", "SXid12028", Severity.FATAL, "fatal", Action.REBOOT, device="0000:86:00.0")
    assert correlate((kernel, fabric)) == (kernel,)
