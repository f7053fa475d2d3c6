"""The kernel log as a whole: records, positions, floods, rates, what closes findings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.finding import Action, Severity
from hyperpod.health.checks.kernel_log import KernelLog
from hyperpod.health.kmsg import Position, Record, parse_record

XID79 = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
XID63 = "NVRM: Xid (PCI:0000:9b:00): 63, Row Remapper"
LOCKUP = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:77]"
ZERO = datetime(2025, 1, 1, tzinfo=UTC)


def new_log(**values: object) -> KernelLog:
    return KernelLog(boot_id="b1", instance_id="i-1", wall_clock_zero=ZERO, **values)  # type: ignore[arg-type]


def record(text: str, sequence: int = 1, at_s: float = 100.0, prefix: int = 4) -> str:
    return f"{prefix},{sequence},{int(at_s * 1e6)},-;{text}\n"


def feed(log: KernelLog, *texts: str, first: int = 1, at_s: float = 100.0, step_s: float = 1.0) -> list[bool]:
    return [log.feed(record(t, first + n, at_s + n * step_s), at_s) for n, t in enumerate(texts)]


def codes(log: KernelLog) -> list[str]:
    return [f"{f.code} {f.severity.name}" for f in log.findings]


def test_a_record_is_read() -> None:
    assert parse_record("6,339,5140900,-;NET: Registered\n SUBSYSTEM=net\n") == Record(
        339, 5.1409, 6, 0, "NET: Registered"
    )


def test_more_fields_and_escapes_are_read() -> None:
    found = parse_record("30,7,1000000,c,caller=T77;a\\x0ab;c\n DEVICE=+x\n")
    assert found == Record(7, 1.0, 6, 3, "a\nb;c")


@pytest.mark.parametrize("raw", ["", "text", "6,1;short", "a,b,c,-;x", "6,1,2,-", "-1,1,1,-;x", ";;;", "²,1,1,-;x"])
def test_what_is_no_record_is_none(raw: str) -> None:
    assert parse_record(raw) is None
    assert not new_log().feed(raw, 1.0)


def test_a_finding_carries_time_machine_boot_and_evidence() -> None:
    log = new_log()
    assert feed(log, XID79) == [True]
    (finding,) = log.findings
    assert (finding.check, finding.code, finding.action) == ("kernel_log", "Xid79", Action.REBOOT)
    assert (finding.since, finding.boot_id, finding.instance_id) == (ZERO + timedelta(seconds=100), "b1", "i-1")
    assert finding.evidence == XID79
    assert finding.is_hard


@pytest.mark.parametrize("prefix", [12, 14, 30, 86])
def test_lines_that_users_write_do_not_count(prefix: int) -> None:
    log = new_log()
    assert not log.feed(record(XID79, prefix=prefix), 100.0)
    assert log.findings == ()


@pytest.mark.parametrize("prefix", range(8))
def test_every_level_of_the_kernel_counts(prefix: int) -> None:
    log = new_log()
    assert log.feed(record(XID79, prefix=prefix), 100.0)


def test_the_same_record_twice_counts_once() -> None:
    log = new_log()
    log.feed(record(LOCKUP, 5, 100.0), 100.0)
    log.feed(record(LOCKUP, 5, 100.0), 100.0)
    assert codes(log) == ["SoftLockup WARN"]


def test_lines_of_an_earlier_boot_do_not_count() -> None:
    log = new_log(booted_at=500.0)
    assert not log.feed(record(XID79, 1, at_s=400.0), 600.0)
    assert log.feed(record(XID79, 2, at_s=501.0), 600.0)


def test_lines_of_this_boot_from_before_the_agents_start_count() -> None:
    log = new_log(booted_at=500.0)
    assert log.feed(record(XID79, 1, at_s=510.0), 9000.0)


def test_a_record_without_a_time_gets_the_present_one() -> None:
    log = new_log(booted_at=500.0)
    assert log.feed(record(XID79, 1, at_s=0.0), 600.0)
    assert log.findings[0].since == ZERO + timedelta(seconds=600)


def test_after_a_restart_old_lines_are_not_new_and_findings_stay() -> None:
    before = new_log()
    feed(before, XID79, XID63)
    after = new_log()
    after.restore(before.to_dict())
    assert after.findings == before.findings
    assert feed(after, XID79, XID63) == [False, False]


def test_the_state_of_another_boot_is_ignored() -> None:
    before = new_log()
    feed(before, XID79)
    after = KernelLog(boot_id="b2")
    after.restore(before.to_dict())
    assert after.findings == ()
    assert after.position == Position("b2")


def test_a_flood_of_equal_lines_is_few_changes_and_is_counted() -> None:
    log = new_log()
    changes = sum(log.feed(record(XID63, n, 100 + n * 0.0006), 100.0) for n in range(1, 100_001))
    assert changes == 6
    assert log.findings[0].message.endswith("(seen 100000 times)")
    assert len(log.findings) == 1


def test_a_rate_is_reached_by_the_second_event_within_the_window() -> None:
    log = new_log()
    feed(log, LOCKUP)
    assert codes(log) == ["SoftLockup WARN"]
    assert feed(log, LOCKUP, first=2, at_s=650.0) == [True]
    assert codes(log) == ["SoftLockup FATAL"]
    assert log.findings[0].action is Action.REBOOT


def test_events_further_apart_than_the_window_stay_a_warning() -> None:
    log = new_log()
    feed(log, LOCKUP, LOCKUP, LOCKUP, step_s=601.0)
    assert codes(log) == ["SoftLockup WARN"]


def test_a_count_within_a_line_counts() -> None:
    log = new_log()
    feed(log, "EDAC MC0: 120 CE memory read error on DIMM_A1 (channel:0)")
    assert codes(log) == ["MemoryCorrected WARN"]


def test_a_fatal_finding_does_not_become_better_by_silence() -> None:
    log = new_log(forget_s=60.0)
    feed(log, XID79, XID63)
    assert log.forget(1000.0)
    assert codes(log) == ["Xid79 FATAL"]
    assert not log.forget(1e9)


def test_the_drivers_recovery_action_outweighs_the_table() -> None:
    log = new_log()
    feed(
        log,
        "NVRM: Xid (PCI:0000:9b:00): 64, Row Remapper Error",
        "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    )
    assert {f.code: f.action for f in log.findings} == {"Xid64": Action.REBOOT, "Xid154": Action.REBOOT}


def test_the_drivers_none_closes_the_gpus_findings_and_no_others() -> None:
    log = new_log()
    feed(
        log,
        XID79,
        "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    )
    assert [f.device for f in log.findings] == ["0000:01:00.0"]


def test_the_drivers_none_closes_the_findings_of_the_gpus_links_too() -> None:
    log = new_log()
    feed(
        log,
        "NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x00000000 0x00000000)",
        "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)",
    )
    assert {f.device: f.action for f in log.findings}["0000:9b:00.0 link 3"] is Action.DRAIN
    none = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x3 (Drain P2P) to 0x0 (None)"
    feed(log, none, first=3)
    assert log.findings == ()


def test_the_drivers_last_word_on_its_recovery_action_wins() -> None:
    log = new_log()
    first = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)"
    second = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x3 (Drain P2P) to 0x2 (Node Reboot)"
    assert feed(log, first, second, second) == [True, True, False]
    assert log.findings[0].action is Action.REBOOT


def test_three_lines_of_one_event_are_one_finding_with_its_gpu() -> None:
    log = new_log()
    feed(
        log,
        "NVRM: The NVIDIA GPU 0000:9b:00.0",
        "NVRM: (PCI ID: 10de:20b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        XID79,
        step_s=0.001,
    )
    assert [(f.code, f.device) for f in log.findings] == [("Xid79", "0000:9b:00.0")]


def test_a_hung_task_in_the_drivers_module_is_named() -> None:
    log = new_log()
    feed(
        log,
        "INFO: task python:77 blocked for more than 122 seconds.",
        "Call Trace:",
        " rpc+0x1/0x2 [nvidia]",
        step_s=0.01,
    )
    assert codes(log) == ["HungTask WARN", "HungTaskNvidia WARN"]


def test_a_line_of_another_moment_is_no_part_of_the_stack() -> None:
    log = new_log()
    feed(log, "INFO: task python:77 blocked for more than 122 seconds.", " rpc+0x1/0x2 [nvidia]", step_s=10.0)
    assert codes(log) == ["HungTask WARN"]


def test_pairs_of_file_system_lines_close_each_other() -> None:
    log = new_log()
    feed(log, "nfs: server fsx not responding, still trying")
    assert codes(log) == ["NfsSilent WARN"]
    assert feed(log, "nfs: server fsx OK", first=2) == [True]
    assert log.findings == ()


def test_lost_lines_are_unknown_not_health() -> None:
    log = new_log()
    assert log.overrun(100.0)
    assert codes(log) == ["LinesLost UNKNOWN"]


def test_an_unreadable_log_is_unknown_until_it_can_be_read() -> None:
    log = new_log()
    assert log.unreadable("/dev/kmsg: Permission denied", 1.0)
    assert not log.unreadable("/dev/kmsg: Permission denied", 2.0)
    assert codes(log) == ["LogUnreadable UNKNOWN"]
    assert log.readable()
    assert log.findings == ()


def test_a_cut_file_begins_to_count_anew_but_its_old_lines_stay_old() -> None:
    log = new_log()
    feed(log, XID63, first=50, at_s=100.0)
    log.restart_file()
    assert not log.feed(record(XID79, 1, at_s=90.0), 100.0)
    assert log.feed(record(XID79, 2, at_s=101.0), 101.0)


def test_a_site_may_judge_a_code_otherwise() -> None:
    log = new_log(overrides={"Xid79": "warn", "Xid63": "fatal"})
    feed(log, XID79, XID63)
    assert codes(log) == ["Xid79 WARN", "Xid63 FATAL"]
    assert [f.action for f in log.findings] == [Action.NONE, Action.DRAIN]


def test_observe_only_never_says_fatal() -> None:
    log = new_log(observe_only=True)
    feed(log, XID79)
    (finding,) = log.findings
    assert finding.severity is Severity.WARN
    assert "would have drained the node and asked for Reboot" in finding.message


XID13 = "NVRM: Xid (PCI:0000:9b:00): 13, pid=7, name=a, Graphics SM Warp Exception on (GPC {}, TPC 3, SM 1): Illegal"
XID31 = "NVRM: Xid (PCI:0000:9b:00): 31, pid=7, name=a, Ch 00000008, intr 00000000. MMU Fault"


@pytest.mark.parametrize(
    ("events", "is_suspect"),
    [
        ([(XID31, 0, {11}), (XID31, 600, {12})], True),
        ([(XID13.format(2), 0, {11}), (XID13.format(2), 600, {12})], True),
        ([(XID31, 0, {11}), (XID31, 600, {11}), (XID31, 1200, {12})], True),
        # One job, one that goes on beside another, another unit, another kind, too long ago, jobs not known.
        ([(XID31, 0, {11}), (XID31, 600, {11})], False),
        ([(XID31, 0, {11, 12}), (XID31, 600, {12, 13})], False),
        ([(XID13.format(2), 0, {11}), (XID13.format(4), 600, {12})], False),
        ([(XID13.format(2), 0, {11}), (XID31, 600, {12})], False),
        ([(XID31, 0, {11}), (XID31, 90_000, {12})], False),
        ([(XID31, 0, set()), (XID31, 600, {12})], False),
        ([(XID31, 0, {11}), (XID31, 600, set())], False),
    ],
)
def test_the_same_unit_of_a_gpu_under_a_second_job_is_suspect(
    events: list[tuple[str, float, set[int]]], is_suspect: bool
) -> None:
    log = new_log()
    for number, (text, later_s, jobs) in enumerate(events, 1):
        log.jobs = frozenset(jobs)
        log.feed(record(text, number, 100.0 + later_s), 100.0 + later_s)
    suspects = [f for f in log.findings if f.code == "GpuSuspect"]
    assert [f.whose.value for f in suspects] == (["node"] if is_suspect else [])
    assert not any(f.severity is Severity.FATAL for f in log.findings)


def test_which_jobs_ran_when_old_lines_were_written_is_not_known() -> None:
    log = new_log()
    for number, jobs in enumerate([{11}, {12}], 1):
        log.jobs = frozenset(jobs)
        log.feed(record(XID31, number, 100.0 * number), 5000.0)
    assert "GpuSuspect" not in [f.code for f in log.findings]


def test_a_person_can_clear_a_finding() -> None:
    log = new_log()
    feed(log, XID79)
    assert log.clear("Xid79", "0000:9b:00")
    assert not log.clear("Xid79", "0000:9b:00.0")
    assert log.findings == ()


def test_memory_is_bounded_and_fatal_findings_stay() -> None:
    log = new_log(limit=10)
    texts = [f"NVRM: Xid (PCI:0000:{n:02x}:00): 63, Row Remapper" for n in range(40)]
    feed(log, XID79, *texts)
    assert len(log.findings) == 10
    assert "Xid79 FATAL" in codes(log)


@given(
    st.text(max_size=200),
    st.sampled_from(["NVRM: Xid (PCI:0000:9b:00): ", "EDAC MC0: ", "mce: [Hardware Error]: ", ""]),
)
def test_no_text_can_break_the_reader(text: str, head: str) -> None:
    log = new_log()
    log.feed(f"4,1,1000000,-;{head}{text}", 1.0)
    log.feed(text, 1.0)
    assert len(log.findings) <= 2
