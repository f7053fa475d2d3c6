"""Who ended an attempt: tables of what is seen and what is said about it, and what must never be said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperpod.core.attribution import AFTER, BEFORE, SETTLED, Witness, attribute
from hyperpod.core.finding import ANY_PEER, Action, Finding, Severity, Whose
from hyperpod.core.job import Attempt, ExitCause
from hyperpod.core.verdict import Kind, Verdict
from tests.core.worlds import NOW, ago, attempt, exit_of, fatal, findings, machine

FAILED_AT = NOW
T = NOW.timestamp()


def ended(number: int = 1, *, on: tuple[int, ...] = (1, 2, 3, 4), **fields: Any) -> Attempt:
    """An attempt over some workers whose program failed just now."""
    values: dict[str, Any] = {
        "nodes": tuple(f"worker-{i}" for i in on),
        "instance_ids": tuple(machine(i) for i in on),
        "started_at": ago(3600),
        "ended_at": NOW,
        "failure_seen_at": NOW,
        "cause": ExitCause.APPLICATION,
        "signature": "task:1:0",
        "message": "rank 0 failed",
    }
    return attempt(number, **{**values, **fields})


def falls(rank: int, node: int, after: float = 0.0, code: int | None = 1, signal: int | None = None) -> Any:
    return exit_of(rank, code=code, signal=signal, node=f"worker-{node}", time=T + after)


def warns(code: str = "EccUncorrected", **fields: Any) -> Finding:
    values: dict[str, Any] = {"check": "gpu_memory", "message": f"{code} was seen", "since": ago(60)}
    return Finding(code=code, severity=Severity.WARN, **{**values, **fields})


def seen(node: int, *told: Finding, **fields: Any) -> Witness:
    return Witness(f"worker-{node}", told, **{"heard_at": NOW, **fields})


def judge(*witnesses: Witness, exits: Any = (), of: Attempt | None = None, **fields: Any) -> Verdict:
    others = [seen(i) for i in (1, 2, 3, 4) if f"worker-{i}" not in {w.node for w in witnesses}]
    verdict = attribute(of or ended(), exits, [*witnesses, *others], **fields)
    assert verdict is not None
    return verdict


ALONE = (falls(3, 2),)
ALL = tuple(falls(i, i, 0.1 * i) for i in (1, 2, 3, 4))
SOFT = fatal("EfaLinkDown", Action.REBOOT, check="efa", is_hard=False)
APP = warns("Xid13", check="kernel_log", whose=Whose.USER)

TABLE: list[tuple[str, list[Witness], Any, Kind, tuple[str, ...], bool, str]] = [
    # what, witnesses, exits, kind, nodes, may drain, words of the reason
    ("a dead machine", [seen(2, dead="worker-2 is dead")], ALONE, Kind.NODE, ("worker-2",), True, "worker-2 is dead"),
    ("a hard fact", [seen(2, fatal())], ALL, Kind.NODE, ("worker-2",), True, "kernel_log/Xid79"),
    ("a hard fact elsewhere than the first exit", [seen(4, fatal())], ALONE, Kind.NODE, ("worker-4",), True, "Xid79"),
    ("a soft fatal finding", [seen(2, SOFT)], (), Kind.NODE, ("worker-2",), False, "efa/EfaLinkDown"),
    ("the first exit alone", [], ALONE, Kind.UNKNOWN, (), False, "rank 3 of step 0 on worker-2"),
    ("a warning alone", [seen(2, warns())], (), Kind.UNKNOWN, (), False, "EccUncorrected"),
    ("first exit and warning", [seen(2, warns())], ALONE, Kind.NODE, ("worker-2",), True, ", and "),
    (
        "first exit, where memory was measured as slow",
        [seen(2, warns("MemorySlow", check="deep"))],
        ALONE,
        Kind.UNKNOWN,
        (),
        False,
        "which is not enough to blame a node",
    ),
    (
        "first exit, where a GPU is warmer than the others",
        [seen(2, warns("TemperatureOutlier", check="gpu_temperature"))],
        ALONE,
        Kind.UNKNOWN,
        (),
        False,
        "which is not enough to blame a node",
    ),
    (
        "first exit, where the time service is dead",
        [seen(2, warns("TimeServiceDown", check="service"))],
        ALONE,
        Kind.UNKNOWN,
        (),
        False,
        "which is not enough to blame a node",
    ),
    ("first exit here, warning there", [seen(3, warns())], ALONE, Kind.UNKNOWN, (), False, ""),
    ("all alike at once", [], ALL, Kind.UNKNOWN, (), False, "4 ranks on 4 nodes failed alike"),
    ("all alike and an application's Xid", [seen(1, APP)], ALL, Kind.UNKNOWN, (), False, ""),
    ("the program's own error alone", [seen(2, APP)], ALONE, Kind.UNKNOWN, (), False, ""),
    (
        "several reporters against one peer",
        [seen(i, warns("Unanswered", peer="worker-3", check="efa")) for i in (1, 2, 4)],
        ALL,
        Kind.UNKNOWN,
        (),
        False,
        "accused by worker-1, worker-2, worker-4",
    ),
    (
        "reporters against the one that fell first",
        [seen(i, warns("Unanswered", peer="worker-2", check="efa")) for i in (1, 3)],
        ALONE,
        Kind.NODE,
        ("worker-2",),
        True,
        "accused by worker-1, worker-3",
    ),
    (
        "all but one complain of somebody",
        [seen(i, warns("Unanswered", peer=ANY_PEER, check="efa")) for i in (1, 3, 4)],
        (),
        Kind.UNKNOWN,
        (),
        False,
        "(worker-1, worker-3, worker-4) count errors of a peer, and only worker-2 counts none",
    ),
    (
        "all but the one that fell first, whose end their counters see too",
        [seen(i, warns("Unanswered", peer=ANY_PEER, check="efa")) for i in (1, 3, 4)],
        ALONE,
        Kind.UNKNOWN,
        (),
        False,
        "which is not enough to blame a node",
    ),
    (
        "all but one complain of somebody, and it has a fault of its own",
        [
            *(seen(i, warns("Unanswered", peer=ANY_PEER, check="efa")) for i in (1, 3, 4)),
            seen(2, warns()),
        ],
        ALONE,
        Kind.NODE,
        ("worker-2",),
        True,
        "only worker-2 counts none",
    ),
    (
        "all complain of somebody",
        [seen(i, warns("Unanswered", peer=ANY_PEER, check="efa")) for i in (1, 2, 3, 4)],
        (),
        Kind.UNKNOWN,
        (),
        False,
        "nothing points",
    ),
    (
        "somebody accuses itself and a node of another job",
        [seen(1, warns("A", peer="worker-1", check="efa"), warns("B", peer="worker-99", check="efa"))],
        (),
        Kind.UNKNOWN,
        (),
        False,
        "nothing points",
    ),
    (
        "one cause on three nodes",
        [seen(i, fatal("LinkDown", check="ib")) for i in (1, 2, 3)],
        ALONE,
        Kind.UNKNOWN,
        (),
        False,
        "it may be the site",
    ),
    (
        "a file server that hangs",
        [seen(1, fatal("MountHangs", check="shared_fs", whose=Whose.SITE))],
        (),
        Kind.UNKNOWN,
        (),
        False,
        "it may be the site",
    ),
    (
        "its own memory limit",
        [seen(2, warns("OutOfMemoryJob", check="kernel_log", whose=Whose.USER, job_id=7))],
        (falls(3, 2, code=None, signal=9),),
        Kind.APPLICATION,
        (),
        False,
        "OutOfMemoryJob",
    ),
    (
        "the memory limit of another job",
        [seen(2, warns("OutOfMemoryJob", check="kernel_log", whose=Whose.USER, job_id=99))],
        (falls(3, 2, code=None, signal=9),),
        Kind.UNKNOWN,
        (),
        False,
        "SIGKILL",
    ),
    (
        "the machine's memory",
        [seen(2, warns("OutOfMemoryNode", check="kernel_log"))],
        (falls(3, 2, code=None, signal=9),),
        Kind.UNKNOWN,
        (),
        False,
        "OutOfMemoryNode",
    ),
    (
        "a machine that other jobs have left",
        [seen(2, suspicion=2.5)],
        ALONE,
        Kind.UNKNOWN,
        (),
        False,
        "suspicion of 2.5",
    ),
    ("such a machine beside the first exit", [seen(3, suspicion=2.5)], ALONE, Kind.UNKNOWN, (), False, ""),
]


@pytest.mark.parametrize(
    ("witnesses", "exits", "kind", "nodes", "may_drain", "words"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_the_verdict_on(
    witnesses: list[Witness], exits: Any, kind: Kind, nodes: tuple[str, ...], may_drain: bool, words: str
) -> None:
    verdict = judge(*witnesses, exits=exits, job_id=7)
    assert (verdict.kind, verdict.nodes, verdict.may_drain) == (kind, nodes, may_drain), verdict
    assert words in verdict.reason
    assert verdict.reason.startswith(("node ", "application, because ", "unknown, because "))


@pytest.mark.parametrize(
    ("exits", "node"),
    [
        ((falls(0, 1, 0.5, None, 9), falls(1, 2, 0.0), falls(2, 3, 0.6, None, 9)), "worker-2"),
        ((falls(0, 1, -1.0, None, 15), falls(1, 2, 0.0)), "worker-2"),
        ((falls(0, 3, 0.0, None, 9), falls(1, 2, 0.8), falls(2, 1, 0.9)), "worker-3"),
        ((falls(0, 4, 0.0, None, 7), falls(1, 2, 5.0, None, 7)), "worker-4"),
    ],
    ids=["SIGKILL follows", "SIGTERM never counts", "SIGKILL that came first", "the same much later"],
)
def test_the_first_exit_is_the_one_that_dragged_the_others_along(exits: Any, node: str) -> None:
    assert list(judge(exits=exits).suspects) == [node]


@pytest.mark.parametrize(
    ("since", "counts"),
    [
        (FAILED_AT - BEFORE, True),
        (FAILED_AT - BEFORE * 1.01, False),
        (FAILED_AT + AFTER, True),
        (FAILED_AT + AFTER * 1.01, False),
    ],
)
def test_a_warning_counts_from_ten_minutes_before_to_five_minutes_after(since: Any, counts: bool) -> None:
    verdict = judge(seen(2, warns(since=since)), exits=ALONE)
    assert (verdict.kind is Kind.NODE) is counts


def test_a_clock_that_is_wrong_beyond_measure_does_not_move_the_window() -> None:
    astray = (exit_of(3, node="worker-2", time=1000.0),)
    assert judge(seen(2, warns(since=ago(60))), exits=astray).kind is Kind.NODE


def test_a_fatal_finding_that_began_during_the_attempt_counts_however_long_ago() -> None:
    assert judge(seen(2, fatal(since=ago(3000)))).kind is Kind.NODE
    assert judge(seen(2, fatal(since=ago(4000)))).kind is Kind.UNKNOWN


@pytest.mark.parametrize(
    "cause", [ExitCause.COMPLETED, ExitCause.USER_CANCELLED, ExitCause.TIME_LIMIT, ExitCause.PREEMPTED, ExitCause.OTHER]
)
def test_there_is_nobody_to_look_for_when_it_ended_by(cause: ExitCause) -> None:
    assert attribute(ended(cause=cause), ALONE, [seen(2, fatal())]) is None


# --- the same failure elsewhere ---------------------------------------------------------------------------------

FIRST = ended(1, on=(1, 2), ended_at=ago(600))


def test_the_same_failure_on_a_disjoint_set_of_machines_is_the_program() -> None:
    verdict = judge(exits=(falls(0, 3),), of=ended(2, on=(3, 4)), earlier=(FIRST,))
    assert (verdict.kind, verdict.suspects, verdict.may_drain) == (Kind.APPLICATION, {}, False)
    assert "attempt 1 on worker-1, worker-2, attempt 2 on worker-3, worker-4" in verdict.reason


@pytest.mark.parametrize(
    ("second", "earlier"),
    [
        (ended(2, on=(2, 3)), FIRST),
        (ended(2, on=(3, 4), signature="task:0:11"), FIRST),
        (ended(2, on=(3, 4)), replace(FIRST, attribution=Verdict(Kind.NODE, "node worker-1, because …"))),
        (ended(2, on=(3, 4)), replace(FIRST, cause=ExitCause.NODE_DEAD, signature="")),
        (ended(2, on=(3, 4), cause=ExitCause.NODE_UNHEALTHY), FIRST),
    ],
    ids=["a common machine", "another failure", "the first was a node's", "the first was a dead node", "now a node's"],
)
def test_it_is_not_the_program_when_there_was(second: Attempt, earlier: Attempt) -> None:
    assert judge(of=second, earlier=(earlier,)).kind is not Kind.APPLICATION


def test_attempts_of_which_no_node_is_known_convict_nobody() -> None:
    nowhere = ended(2, on=())
    verdict = attribute(nowhere, (), [], (FIRST,))
    assert verdict is not None
    assert verdict.kind is Kind.UNKNOWN


def test_a_replaced_machine_under_the_same_name_counts_as_another() -> None:
    again = replace(ended(2, on=(1, 2)), instance_ids=(machine(11), machine(12)))
    assert judge(of=again, earlier=(FIRST,)).kind is Kind.APPLICATION


def test_a_machine_that_was_there_each_time_is_more_suspect_than_the_others() -> None:
    verdict = judge(of=ended(2, on=(2, 3)), earlier=(FIRST,))
    assert list(verdict.suspects) == ["worker-2"]
    assert verdict.kind is Kind.UNKNOWN


# --- late findings and other properties -------------------------------------------------------------------------


def test_a_late_finding_revises_the_verdict_and_keeps_what_was_known() -> None:
    first = judge(exits=ALONE)
    of = ended(attribution=first)
    later = judge(seen(2, warns(since=FAILED_AT + AFTER / 2)), of=of)
    assert (later.kind, later.nodes) == (Kind.NODE, ("worker-2",))
    assert first.evidence[0] in later.evidence


def test_coincidence_is_counted_over_the_whole_cluster() -> None:
    verdict = judge(seen(2, fatal("LinkDown", check="ib")), coincident={"ib/LinkDown": 5})
    assert (verdict.kind, verdict.may_drain) == (Kind.UNKNOWN, False)
    assert "on 5 nodes at once" in verdict.reason


def test_a_verdict_survives_the_journal() -> None:
    verdict = judge(seen(2, warns()), exits=ALONE)
    assert Verdict.from_dict(verdict.to_dict()) == verdict
    kept = ended(attribution=verdict)
    assert Attempt.from_dict(kept.to_dict()) == kept


witnesses = st.lists(
    st.builds(
        Witness,
        node=st.sampled_from(["worker-1", "worker-2", "worker-3", "worker-4"]),
        findings=st.lists(findings, max_size=3).map(tuple),
        suspicion=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    ),
    max_size=4,
    unique_by=lambda w: w.node,
)
failures = st.lists(
    st.builds(
        falls,
        rank=st.integers(0, 3),
        node=st.integers(1, 4),
        after=st.sampled_from([0.0, 0.1, 3.0]),
        code=st.sampled_from([None, 1, 2]),
        signal=st.sampled_from([None, 7, 9, 11, 15]),
    ),
    max_size=5,
)
FEW = settings(max_examples=25, deadline=None)


@FEW
@given(witnesses, failures, st.randoms())
def test_the_order_of_what_is_seen_does_not_matter(seen_by: list[Witness], fallen: list[Any], random: Any) -> None:
    first = attribute(ended(), fallen, seen_by)
    random.shuffle(seen_by)
    random.shuffle(fallen)
    assert attribute(ended(), fallen, seen_by) == first


@FEW
@given(witnesses, failures)
def test_looking_again_at_the_same_changes_nothing(seen_by: list[Witness], fallen: list[Any]) -> None:
    first = attribute(ended(), fallen, seen_by)
    assert attribute(ended(attribution=first), fallen, seen_by) == first


@FEW
@given(witnesses, failures)
def test_only_a_hard_fact_or_two_methods_that_agree_may_drain(seen_by: list[Witness], fallen: list[Any]) -> None:
    verdict = attribute(ended(), fallen, seen_by)
    assert verdict is not None
    if verdict.may_drain:
        for name in verdict.nodes:
            against = {e.method for e in verdict.evidence if e.node == name and e.points_to is Kind.NODE} - {"history"}
            assert "fact" in against or len(against) >= 2


# --- which findings explain a rank's death ----------------------------------------------------------------------

KILLED = (falls(3, 2, code=None, signal=9),)
BUS_ERROR = (falls(3, 2, code=None, signal=7),)
ABORTED = (falls(3, 2, code=None, signal=6),)
CRASHED = (falls(3, 2, code=None, signal=11),)
ACCUSED = [seen(i, warns("EfaPeerErrors", peer="worker-2", check="efa")) for i in (1, 3)]


def says(check: str, code: str, **fields: Any) -> Witness:
    return seen(2, warns(code, check=check, **fields))


STORIES: list[tuple[str, list[Witness], Any, bool]] = [
    # what, witnesses, exits, whether worker-2 is convicted
    ("a disk that is 91 % full, and an exit code", [says("disk", "DiskFull")], ALONE, False),
    ("a frequency governor that differs, and a crash", [says("cpu", "GovernorSlow")], CRASHED, False),
    ("a clock that nobody keeps in step", [says("clock_sync", "ClockUnsynchronised")], ALONE, False),
    ("a clock that is two seconds off", [says("munge", "ClockOffset")], ABORTED, False),
    ("a name that did not resolve for a moment", [says("name", "NameUnknown")], ALONE, False),
    ("a process that another job has left", [says("leftovers", "ProcessesLeft")], ALONE, False),
    ("a GPU's memory that is held by nobody", [says("gpu_processes", "MemoryHeld")], ALONE, False),
    ("many corrected memory errors, and a bus error", [says("edac", "MemoryCorrected")], BUS_ERROR, False),
    ("corrected machine checks in the kernel's log", [says("kernel_log", "MachineCheckCorrected")], CRASHED, False),
    ("an uncorrected machine check of unused data", [says("kernel_log", "MachineCheckUnused")], BUS_ERROR, False),
    ("another driver than the rest of the group", [says("group", "DriverDiffers")], ALONE, False),
    ("a link that is slower than the others", [says("infiniband", "LinkSlow")], ABORTED, False),
    ("a GPU that is too warm", [says("gpu_temperature", "GpuHot")], ALONE, False),
    ("a page that waits to be remapped", [says("gpu_memory", "RemapPending")], ALONE, False),
    ("an Xid that says that a remapping waits", [says("kernel_log", "Xid63")], ALONE, False),
    ("an Xid of an application, told as the node's", [says("kernel_log", "Xid31")], ALONE, False),
    ("an Xid that nobody knows", [says("kernel_log", "Xid999")], ALONE, False),
    ("a word that begins like an Xid", [says("kernel_log", "Xid94x")], ALONE, False),
    ("the code of another check", [says("disk", "EccUncorrected")], ALONE, False),
    ("a line of the site's own checks", [says("nhc", "NhcFailed")], ALONE, False),
    ("a program of the site's own", [says("users.scratch", "ScratchFull")], ALONE, False),
    ("the machine's memory ran out, and the kernel killed", [says("kernel_log", "OutOfMemoryNode")], KILLED, False),
    ("the machine's memory ran out, and an exit code", [says("kernel_log", "OutOfMemoryNode")], ALONE, False),
    ("five oddities at once", [seen(2, *(warns(f"Odd{i}", check="disk") for i in range(5)))], BUS_ERROR, False),
    ("a clock that is wrong beyond munge, and an exit", [seen(2, fatal("ClockOffset", check="munge", is_hard=False))],
     ALONE, False),
    ("it is being drained for something else", [seen(2, leaving="disk/DiskFull: full")], ALONE, False),
    ("a contained error of a GPU's memory, and an exit code", [says("kernel_log", "Xid94")], ALONE, True),
    ("an NVLink error, and an abort", [says("kernel_log", "Xid74")], ABORTED, True),
    ("NVLink errors, and a crash in a library", [says("gpu_nvlink", "LinkErrors")], CRASHED, True),
    ("a Neuron device's hardware error", [says("neuron", "NeuronHardwareErrors")], ALONE, True),
    ("an EFA without a carrier, and an exit code", [says("efa", "EfaLinkDown")], ALONE, True),
    ("an EFA without a carrier, and a crash", [says("efa", "EfaLinkDown")], CRASHED, False),
    ("a flapping InfiniBand port, and an abort", [says("infiniband", "LinkFlaps")], ABORTED, True),
    ("a flapping InfiniBand port, and a kill", [says("infiniband", "LinkFlaps")], KILLED, False),
    ("an error of scratch, and an exit code", [says("kernel_log", "FileSystemError")], ALONE, True),
    ("an error of scratch, and a bus error of a mapped file", [says("kernel_log", "FileSystemError")], BUS_ERROR, True),
    ("an error of scratch, and a kill", [says("kernel_log", "FileSystemError")], KILLED, False),
    ("the firmware recovered from an error, and a bus error", [says("kernel_log", "HardwareErrorRecoverable")],
     BUS_ERROR, True),
    ("the firmware recovered from an error, and an exit code", [says("kernel_log", "HardwareErrorRecoverable")],
     ALONE, False),
    ("a processor that stood still, and a kill", [says("kernel_log", "RcuStall"), ], KILLED, False),
    ("a fault that is damped, and an exit code", [seen(2, SOFT)], ALONE, True),
    ("the first exit, peers that accuse it, and a full disk", [*ACCUSED, says("disk", "DiskFull")], ALONE, True),
    ("peers that accuse it, and a full disk", [*ACCUSED, says("disk", "DiskFull")], (), False),
    ("peers that accuse it, and an EFA without a carrier, but no exit is known", [*ACCUSED, says("efa", "EfaLinkDown")],
     (), False),
    ("peers that accuse it, and a memory error of a GPU", [*ACCUSED, says("gpu_memory", "EccUncorrected")], (), True),
]  # fmt: skip


@pytest.mark.parametrize(("told", "exits", "is_convicted"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES])
def test_a_node_is_convicted_only_by_what_explains_the_exit(
    told: list[Witness], exits: Any, is_convicted: bool
) -> None:
    verdict = judge(*told, exits=exits)
    assert verdict.may_drain is is_convicted, verdict.reason
    assert verdict.nodes == (("worker-2",) if is_convicted else verdict.nodes)
    assert verdict.suspects["worker-2"] > 0, "weak or not: the job's next attempt avoids it"


def test_a_weak_finding_makes_the_first_to_fall_more_suspect_than_it_was() -> None:
    plain = judge(exits=ALONE)
    odd = judge(says("disk", "DiskFull"), exits=ALONE)
    assert odd.suspects["worker-2"] > plain.suspects["worker-2"]
    assert odd.kind is Kind.UNKNOWN
    assert "disk/DiskFull" in odd.reason
    assert "not enough to blame a node" in odd.reason


def test_of_one_code_on_two_parts_of_a_node_the_graver_counts() -> None:
    told = (fatal("DiskFull", check="disk", is_hard=False), warns("DiskFull", check="disk", device="/tmp"))
    assert judge(seen(2, *told)).kind is judge(seen(2, *reversed(told))).kind is Kind.NODE


def test_an_exit_that_is_heard_late_takes_its_explanation_back() -> None:
    told = says("kernel_log", "HardwareErrorRecoverable")
    first = judge(told, exits=BUS_ERROR)
    assert first.may_drain
    earlier = (falls(1, 2, -1.0),)
    later = judge(exits=(*BUS_ERROR, *earlier), of=ended(attribution=first))
    assert not later.may_drain


WEAK_CODES = [
    ("disk", "DiskFull"),
    ("cpu", "GovernorSlow"),
    ("munge", "ClockOffset"),
    ("edac", "MemoryCorrected"),
    ("kernel_log", "Xid63"),
    ("deep", "MemorySlow"),
    ("group", "DriverDiffers"),
    ("users.mine", "Anything"),
]
STRONG_CODES = [
    ("gpu_memory", "EccUncorrected"),
    ("efa", "EfaLinkDown"),
    ("efa", "EfaPeerErrors"),
    ("slurm_view", "SlurmCountsFewer"),
    ("kernel_log", "OutOfMemoryNode"),
    ("kernel_log", "HardwareErrorRecoverable"),
]


def strong(where: tuple[str, str], severity: Severity, whose: Whose, peer: str) -> Finding:
    check, code = where
    return Finding(check, code, severity, "something", Action.DRAIN, ago(60), whose=whose, peer=peer)


strong_findings = st.builds(
    strong,
    where=st.sampled_from(STRONG_CODES),
    severity=st.sampled_from([Severity.WARN, Severity.FATAL]),
    whose=st.sampled_from([Whose.NODE, Whose.NODE, Whose.USER]),
    peer=st.sampled_from(["", "", "worker-1", "worker-2", ANY_PEER]),
)
WITNESSED = st.lists(
    st.builds(
        Witness,
        node=st.sampled_from(["worker-1", "worker-2", "worker-3", "worker-4"]),
        findings=st.lists(strong_findings, max_size=3).map(tuple),
        suspicion=st.sampled_from([0.0, 2.0]),
        heard_at=st.just(NOW),
    ),
    max_size=4,
    unique_by=lambda w: w.node,
)
ADDED = st.dictionaries(
    st.sampled_from(["worker-1", "worker-2", "worker-3", "worker-4"]),
    st.lists(st.sampled_from(WEAK_CODES), min_size=1, max_size=8, unique=True),
    min_size=1,
)


@settings(max_examples=300, deadline=None)
@given(WITNESSED, failures, ADDED)
def test_adding_weak_findings_never_turns_an_outcome_into_a_conviction(
    seen_by: list[Witness], fallen: list[Any], added: dict[str, list[tuple[str, str]]]
) -> None:
    by_name = {w.node: w for w in seen_by}
    with_weak = dict(by_name)
    for name, codes in added.items():
        before = by_name.get(name, Witness(name))
        weak = tuple(warns(code, check=check) for check, code in codes)
        with_weak[name] = replace(before, findings=(*before.findings, *weak))
    plain = attribute(ended(), fallen, [*by_name.values(), *(Witness(n) for n in added if n not in by_name)])
    more = attribute(ended(), fallen, list(with_weak.values()))
    assert plain is not None
    assert more is not None
    assert (more.kind is Kind.NODE, more.may_drain, more.nodes) == (
        plain.kind is Kind.NODE,
        plain.may_drain,
        plain.nodes,
    )
    # Nor does a second look, which has only what was kept of the first.
    again = attribute(ended(attribution=more), fallen, list(with_weak.values()))
    assert again is not None
    assert (again.kind, again.may_drain, again.nodes) == (more.kind, more.may_drain, more.nodes)


@FEW
@given(st.lists(findings, max_size=4), failures)
def test_findings_that_are_the_applications_never_blame_a_node(told: list[Finding], fallen: list[Any]) -> None:
    users = tuple(replace(f, whose=Whose.USER) for f in told)
    without = attribute(ended(), fallen, [Witness("worker-1")])
    verdict = attribute(ended(), fallen, [Witness("worker-1", users)])
    assert verdict is not None
    assert without is not None
    assert verdict.kind is not Kind.NODE
    assert not verdict.may_drain
    assert verdict.suspects == without.suspects


# --- the one that is silent -------------------------------------------------------------------------------------


def complains(node: int, **fields: Any) -> Witness:
    return seen(node, warns("EfaPeerErrors", **{"peer": ANY_PEER, "check": "efa", "device": "rdmap0s6 peer", **fields}))


COMPLAINTS = [complains(i) for i in (1, 3, 4)]
SILENT_CASES: dict[str, tuple[list[Witness], list[str]]] = {
    "all but one": ([*COMPLAINTS, seen(2)], ["worker-2"]),
    "two against one": ([complains(1), complains(2), seen(3)], ["worker-3"]),
    "one against one": ([complains(1), seen(2)], []),
    "two are silent": ([complains(1), complains(3), seen(2), seen(4)], []),
    "nobody is silent": ([*COMPLAINTS, complains(2)], []),
    "nobody complains": ([seen(i) for i in (1, 2, 3, 4)], []),
    "its agent is not heard": ([*COMPLAINTS, seen(2, heard_at=None)], []),
    "it may not have read its counters yet": ([*COMPLAINTS, seen(2, heard_at=ago(60) + SETTLED / 2)], []),
    "it has had its time": ([*COMPLAINTS, seen(2, heard_at=ago(60) + SETTLED)], ["worker-2"]),
    "the last complaint counts": (
        [*COMPLAINTS[:2], complains(4, since=ago(10)), seen(2, heard_at=ago(10) + SETTLED / 2)], []
    ),
    "it says that it cannot tell": (
        [*COMPLAINTS, seen(2, Finding("efa", "Unknown", Severity.UNKNOWN, "not readable"))], []
    ),
    "another check of it cannot tell": (
        [*COMPLAINTS, seen(2, Finding("dcgm", "Unknown", Severity.UNKNOWN, "not readable"))], ["worker-2"]
    ),
    "complaints of long ago": ([complains(i, since=ago(4000)) for i in (1, 3, 4)] + [seen(2)], []),
    "one complains by name": ([complains(1), complains(3), complains(4, peer="worker-3"), seen(2)], ["worker-3"]),
}  # fmt: skip


@pytest.mark.parametrize(("told", "suspects"), SILENT_CASES.values(), ids=list(SILENT_CASES))
def test_counters_that_name_nobody_accuse_the_one_node_that_counts_nothing(
    told: list[Witness], suspects: list[str]
) -> None:
    on = tuple(int(w.node.removeprefix("worker-")) for w in told)
    verdict = attribute(ended(on=on), (), told)
    assert verdict is not None
    assert (list(verdict.suspects), verdict.kind, verdict.may_drain) == (suspects, Kind.UNKNOWN, False)


def test_who_complains_later_is_not_the_silent_one_any_more() -> None:
    first = judge(*COMPLAINTS)
    assert list(first.suspects) == ["worker-2"]
    later = judge(*COMPLAINTS, complains(2, since=NOW), of=ended(attribution=first))
    assert later.suspects == {}
    gone = judge(of=ended(attribution=first))
    assert list(gone.suspects) == ["worker-2"]


def test_who_reports_errors_of_a_peer_is_no_suspect_itself() -> None:
    assert judge(complains(2), exits=()).suspects == {}


# --- the job's own output -------------------------------------------------------------------------------------------


def told_by_output(job_id: int | None = 7, code: str = "Nrt1202") -> Finding:
    return warns(code, check="neuron", device="nd3", job_id=job_id)


def test_a_status_in_the_jobs_output_and_a_first_exit_do_not_convict_a_node() -> None:
    alone = ended(nodes=("worker-2",))
    for exits in ((), [falls(1, 2)], [falls(1, 2, signal=7, code=None)]):
        verdict = attribute(alone, exits, [seen(2, told_by_output(), told_by_output(code="Nrt1201"))], job_id=7)
        assert verdict is not None
        assert (verdict.kind, verdict.may_drain) == (Kind.UNKNOWN, False)
        assert verdict.suspects["worker-2"] >= 0.3
        assert any(e.key == "neuron/Nrt1202" for e in verdict.evidence)


def test_on_several_nodes_the_output_accuses_nobody_and_is_kept_as_evidence() -> None:
    verdict = attribute(ended(), [falls(1, 2)], [seen(1, told_by_output())], job_id=7)
    assert verdict is not None
    assert "worker-1" not in verdict.suspects
    assert [(e.node, e.points_to) for e in verdict.evidence if e.key == "Nrt1202"] == [("", Kind.UNKNOWN)]


@pytest.mark.parametrize("job_id", [8, None])
def test_the_output_of_another_job_says_nothing_of_this_one(job_id: int | None) -> None:
    verdict = attribute(ended(nodes=("worker-2",)), (), [seen(2, told_by_output(job_id))], job_id=7)
    assert verdict is not None
    assert verdict.suspects == {}


def test_a_counter_of_the_device_convicts_whatever_the_output_says() -> None:
    hard = Finding(
        "neuron", "NeuronMemoryUncorrected", Severity.FATAL, "counted", Action.REPLACE, since=ago(60), is_hard=True
    )
    verdict = attribute(ended(nodes=("worker-2",)), (), [seen(2, hard, told_by_output())], job_id=7)
    assert verdict is not None
    assert (verdict.nodes, verdict.may_drain) == (("worker-2",), True)
