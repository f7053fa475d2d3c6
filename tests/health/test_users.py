"""Checks that users bring: who may write them, what their headers and answers mean."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.finding import Action, Severity
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import Damping, Facts, Ports
from hyperpod.health.registry import parse_settings
from hyperpod.health.users import FOLDER, Found, UserCheck, find_user_checks, parse_answer
from hyperpod.ports.host import FileKind, FileStat
from tests.fakes.host import FakeHost, FakeMunge

MINE = FileStat(0, 0o755)
TEXT = FileStat(0, 0o644)


def host_with(**files: str) -> FakeHost:
    """A machine with these checks; every file is root's and executable."""
    host = FakeHost()
    host.stats[FOLDER] = FileStat(0, 0o755, FileKind.FOLDER)
    for name, text in files.items():
        host.files[f"{FOLDER}/{name}"] = text
        host.stats[f"{FOLDER}/{name}"] = MINE
    return host


def find(host: FakeHost, **policy: object) -> Found:
    return find_user_checks(host, parse_settings(policy))


def refused(host: FakeHost) -> list[str]:
    found = find(host)
    assert not found.checks
    return [f.message for f in found.findings]


# --- the folder -------------------------------------------------------------------------------------------------


def test_without_a_folder_there_is_nothing_and_nothing_is_said() -> None:
    assert find(FakeHost()) == Found()


def test_a_file_becomes_a_check_with_a_name_that_is_none_of_ours() -> None:
    (check,) = find(host_with(**{"scratch_free.sh": "#!/bin/sh\n"})).checks
    assert (check.name, check.interval_s, check.deadline_s) == ("user.scratch_free", 60.0, 10.0)


def test_a_header_gives_rhythm_deadline_and_mode() -> None:
    found = find(host_with(gpu="#!/bin/sh\n# hyperpod: interval=300 deadline=2.5 mode=observe\n"))
    (check,) = found.checks
    assert (check.interval_s, check.deadline_s, found.observe_only) == (300.0, 2.5, {"user.gpu"})


def test_a_file_beside_it_says_the_same_for_a_binary() -> None:
    host = host_with(gpu="\x7fELF")
    host.files[f"{FOLDER}/gpu.conf"] = "interval=30  # often\nmode=act\n"
    host.stats[f"{FOLDER}/gpu.conf"] = TEXT
    (check,) = find(host).checks
    assert check.interval_s == 30.0


def test_the_specification_counts_before_the_header() -> None:
    host = host_with(gpu="# hyperpod: interval=300 mode=observe\n")
    found = find(host, **{"user.gpu": {"mode": "act", "interval_s": 20, "damping": [1, 1]}})
    assert (found.checks[0].interval_s, found.checks[0].damping) == (20, Damping(1, 1))
    assert found.observe_only == frozenset()
    assert find(host, **{"user.gpu": {"mode": "off"}}).checks == ()


def test_the_default_mode_holds_for_them_too() -> None:
    assert find(host_with(gpu="#!/bin/sh\n"), default={"mode": "observe"}).observe_only == {"user.gpu"}


@pytest.mark.parametrize(
    ("stat", "why"),
    [
        (FileStat(1000, 0o755), "belongs to user 1000, not to root"),
        (FileStat(0, 0o775), "can be written by others than root (mode 775)"),
        (FileStat(0, 0o757), "can be written by others than root"),
        (FileStat(0, 0o777, FileKind.LINK), "is a link"),
        (FileStat(0, 0o755, FileKind.SOCKET), "is no file"),
        (FileStat(0, 0o644), "is not executable"),
    ],
)
def test_what_others_could_change_does_not_run(stat: FileStat, why: str) -> None:
    host = host_with(gpu="#!/bin/sh\n")
    host.stats[f"{FOLDER}/gpu"] = stat
    (message,) = refused(host)
    assert why in message


def test_a_folder_that_others_could_change_is_refused_whole() -> None:
    host = host_with(gpu="#!/bin/sh\n", disk="#!/bin/sh\n")
    host.stats[FOLDER] = FileStat(0, 0o777, FileKind.FOLDER)
    assert len(refused(host)) == 1


def test_a_file_beside_it_that_others_could_change_refuses_the_check() -> None:
    host = host_with(gpu="#!/bin/sh\n")
    host.files[f"{FOLDER}/gpu.conf"] = "mode=off\n"
    host.stats[f"{FOLDER}/gpu.conf"] = FileStat(1000, 0o644)
    assert "gpu.conf belongs to user 1000" in refused(host)[0]


@pytest.mark.parametrize(
    "header", ["intervall=3", "interval=0.1", "interval=1e9", "deadline=-1", "mode=maybe", "often", "interval=nan"]
)
def test_a_header_that_is_not_understood_refuses_the_check(header: str) -> None:
    (message,) = refused(host_with(gpu=f"#!/bin/sh\n# hyperpod: {header}\n"))
    assert header.partition("=")[0] in message


@pytest.mark.parametrize("name", ["GPU", "a b", "-x", "x" * 41])
def test_a_strange_name_is_refused(name: str) -> None:
    assert "a check's name has small letters" in refused(host_with(**{name: "#!/bin/sh\n"}))[0]


def test_two_files_of_one_name_are_one_check_and_a_finding() -> None:
    found = find(host_with(**{"gpu.sh": "", "gpu.py": ""}))
    assert len(found.checks) == 1
    assert "another check named user.gpu" in found.findings[0].message


@pytest.mark.parametrize("name", [".hidden", "gpu~", "gpu.bak", "README.md", "gpu.dpkg-old", "gpu.rpmsave"])
def test_files_that_are_no_checks_are_left_alone(name: str) -> None:
    assert find(host_with(**{name: ""})) == Found()


def test_a_check_whose_file_was_given_away_later_does_not_run() -> None:
    host = host_with(gpu="")
    (check,) = find(host).checks
    host.stats[f"{FOLDER}/gpu"] = FileStat(1000, 0o755)
    (finding,) = check.run(Ports(host, FakeMunge(), facts(host))).findings
    assert (finding.severity, host.calls) == (Severity.UNKNOWN, [])


# --- answers ----------------------------------------------------------------------------------------------------


def facts(host: FakeHost) -> Facts:
    return Facts(host.now(), 1000.0, "worker-1")


def outcome(ended: tuple[int, str] | Exception) -> list[tuple[str, Severity, str]]:
    host = host_with(gpu="")
    host.ended[f"{FOLDER}/gpu"] = ended
    result = UserCheck("user.gpu", f"{FOLDER}/gpu").run(Ports(host, FakeMunge(), facts(host)))
    return [(f.code, f.severity, f.message) for f in result.findings]


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, "OK - all well\n", []),
        (1, "WARNING - 8 % free | free=8%;10\nmore\n", [("UserCheckFailed", Severity.WARN, "WARNING - 8 % free")]),
        (2, "\n\nCRITICAL - gone\n", [("UserCheckFailed", Severity.FATAL, "CRITICAL - gone")]),
        (2, "", [("UserCheckFailed", Severity.FATAL, "user.gpu ended with code 2")]),
        (3, "cannot tell\n", [("UserCheckUnknown", Severity.UNKNOWN, "cannot tell")]),
        (127, "not found\n", [("UserCheckUnknown", Severity.UNKNOWN, "user.gpu ended with code 127: not found")]),
        (-9, "", [("UserCheckUnknown", Severity.UNKNOWN, "user.gpu was ended by signal 9")]),
        (2, "bad\x1b[2Jtext\n", [("UserCheckFailed", Severity.FATAL, "bad [2Jtext")]),
    ],
)
def test_exit_codes_are_those_of_nagios(code: int, output: str, expected: list[object]) -> None:
    assert outcome((code, output)) == expected


def test_a_check_that_hangs_or_cannot_be_started_is_unknown() -> None:
    ((code, severity, message),) = outcome(CommandTimeout(["x"], 9.8))
    assert (code, severity) == ("UserCheckUnknown", Severity.UNKNOWN)
    assert "did not end within 9.8 s" in message
    assert outcome(CommandError(["x"], 126, "Exec format error"))[0][1] is Severity.UNKNOWN


def test_a_line_of_json_says_more() -> None:
    line = {"severity": "fatal", "code": "FanDead", "message": "fan 3", "device": "fan3", "action": "replace"}
    (finding,) = parse_answer("user.fan", 2, json.dumps(line)).findings
    assert (finding.check, finding.code, finding.severity) == ("user.fan", "FanDead", Severity.FATAL)
    assert (finding.action, finding.device) == (Action.REPLACE, "fan3")


def test_several_lines_of_json_are_several_findings() -> None:
    lines = [{"severity": s, "code": f"Code{n}"} for n, s in enumerate(("ok", "warn", "fatal"))]
    found = parse_answer("user.x", 2, "\n".join(map(json.dumps, lines))).findings
    assert [(f.code, f.action) for f in found] == [("Code1", Action.NONE), ("Code2", Action.DRAIN)]


@pytest.mark.parametrize(
    "line",
    [
        "{", '{"severity": "deadly"}', '{"severity": "fatal", "code": "no code"}', "{}", '{"severity": []}',
        '{"severity": "fatal", "action": "requeue"}', '{"severity": "warn"}\n[1]', "{" * 5000,
    ],
)  # fmt: skip
def test_json_that_is_not_understood_is_unknown(line: str) -> None:
    (finding,) = parse_answer("user.x", 2, line).findings
    assert (finding.code, finding.severity) == ("UserCheckUnknown", Severity.UNKNOWN)


@given(st.integers(-64, 255), st.text(max_size=200), st.text(max_size=50))
def test_no_output_makes_more_than_a_finding_a_line_and_all_are_printable(code: int, out: str, err: str) -> None:
    for finding in parse_answer("user.x", code, out, err).findings:
        assert finding.message.isprintable()
        assert len(finding.message) <= 300
        assert finding.severity is not Severity.FATAL or code in (0, 1, 2, 3)
