"""Checks that users bring: who may write them, what their headers and answers mean."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.core.finding import Action, Severity
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import Damping, Facts, Ports
from hyperpod.health.registry import parse_settings
from hyperpod.health.users import FOLDER, Found, UserCheck, find_user_checks, parse_answer
from hyperpod.ports.host import FileKind, FileStat
from hyperpod.ports.process import Completed
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
        (FileStat(0, 0o755, FileKind.SOCKET), "is a socket, not a file: take it away"),
        (FileStat(0, 0o755, FileKind.FOLDER), "is a folder, not a file: take it away"),
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


# --- what cannot run --------------------------------------------------------------------------------------------

ERRNO = {"ENOENT": "[Errno 2] No such file or directory", "ENOEXEC": "[Errno 8] Exec format error"}
DENIED = "[Errno 13] Permission denied"
PYTHON = "/usr/bin/python3"
LOADER = b"/lib64/ld-linux-x86-64.so.2"


def elf(machine: int = 0x3E, loader: bytes = LOADER, *, size: int = 4096) -> bytes:
    """The beginning of a 64-bit little-endian program that names a loader."""
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    header = struct.pack("<IIQQQQQQ", 3, 4, 200, 0, 0, len(loader) + 1, 0, 1)
    return (head + header + bytes(80) + loader + b"\0")[:size]


# (the file, what the system says, the sentence after the file's name)
CANNOT_START: dict[str, tuple[bytes, str, str]] = {
    "an interpreter with a misspelt name": (
        b"#!/usr/bin/pyhton3\n",
        ERRNO["ENOENT"],
        "its first line asks for /usr/bin/pyhton3, which does not exist (did you mean /usr/bin/python3?): correct the "
        "line, or install it",
    ),
    "an interpreter that is not installed": (
        b"#!/opt/site/bin/ksh93 -e\n",
        ERRNO["ENOENT"],
        "its first line asks for /opt/site/bin/ksh93, which does not exist: correct the line, or install it",
    ),
    "line ends of Windows": (
        b"#!/bin/sh\r\nexit 0\r\n",
        ERRNO["ENOENT"],
        r"its lines end as on Windows, so that its interpreter is not found: sed -i 's/\r$//' on it",
    ),
    "an interpreter that is a folder": (
        b"#!/usr/bin\n",
        DENIED,
        "its first line asks for /usr/bin, which is a folder, not a program",
    ),
    "an interpreter without the right to be run": (
        b"#!/usr/bin/plain\n",
        DENIED,
        "its first line asks for /usr/bin/plain, which is not executable",
    ),
    "no interpreter after the sign": (b"#!\n", ERRNO["ENOEXEC"], "its first line names no interpreter after #!"),
    "a script without a first line": (
        b"exit 0\n",
        ERRNO["ENOEXEC"],
        "its first line names no interpreter: begin it with #!/bin/sh, or what it is written for",
    ),
    "nothing": (b"\n", ERRNO["ENOEXEC"], "it is empty: write the check, or take it away"),
    "a byte-order mark": (
        b"\xef\xbb\xbf#!/bin/sh\n",
        ERRNO["ENOEXEC"],
        "it begins with a byte-order mark: save it as UTF-8 without one",
    ),
    "a program for Windows": (b"MZ\x90\0", ERRNO["ENOEXEC"], "it is a program for Windows"),
    "a program for macOS": (b"\xcf\xfa\xed\xfe\0", ERRNO["ENOEXEC"], "it is a program for macOS"),
    "some data": (b"PK\x03\x04\0\0", ERRNO["ENOEXEC"], "it is neither a script nor a program for Linux"),
    "a program for another machine": (
        elf(0xB7),
        ERRNO["ENOEXEC"],
        "it is a program for aarch64, and this machine is x86_64: bring one that is built for it",
    ),
    "a program for an unheard of machine": (
        elf(0x1234),
        ERRNO["ENOEXEC"],
        "it is a program for machine type 4660, and this machine is x86_64: bring one that is built for it",
    ),
    "a program without its loader": (
        elf(loader=b"/lib/ld-musl-x86_64.so.1"),
        ERRNO["ENOENT"],
        "it needs the loader /lib/ld-musl-x86_64.so.1, which does not exist: bring one that is built for this system",
    ),
    "half a program": (elf(size=70), ERRNO["ENOEXEC"], "it is a damaged program: copy it anew"),
    "three bytes of a program more than its sign": (
        b"\x7fELF\x02",
        ERRNO["ENOEXEC"],
        "it is a damaged program: copy it anew",
    ),
    "a file system without programs": (
        b"#!/usr/bin/python3\n",
        DENIED,
        "no program may run from /etc/hyperpod: it is mounted with noexec",
    ),
    "a reason that nobody knows": (
        b"#!/usr/bin/python3\n",
        "[Errno 12] Cannot allocate memory: '/etc/hyperpod/checks.d/gpu'",
        "Cannot allocate memory",
    ),
}


def ends(host: FakeHost, ended: Exception | Completed) -> str:
    """The one sentence of a check that ended so."""
    host.ended[f"{FOLDER}/gpu"] = ended
    (finding,) = UserCheck("user.gpu", f"{FOLDER}/gpu").run(Ports(host, FakeMunge(), facts(host))).findings
    assert (finding.code, finding.severity) == ("UserCheckUnknown", Severity.UNKNOWN)
    return finding.message


@pytest.mark.parametrize("case", CANNOT_START)
def test_a_file_that_cannot_be_started_says_why_and_what_to_do(case: str) -> None:
    head, said, expected = CANNOT_START[case]
    host = host_with(gpu="")
    host.blobs |= {f"{FOLDER}/gpu": head, "/proc/self/exe": elf(), PYTHON: b""}
    host.stats |= {
        PYTHON: MINE,
        "/bin/sh": MINE,
        "/usr/bin/plain": TEXT,
        "/usr/bin": FileStat(0, 0o755, FileKind.FOLDER),
        LOADER.decode(): MINE,
    }
    host.mounted, host.options = ("/", "/etc/hyperpod"), {"/etc/hyperpod": frozenset({"rw", "noexec"})}
    message = ends(host, CommandError(["x"], 127, said))
    assert message == f"{FOLDER}/gpu: {expected}"
    assert "Errno" not in message


def test_a_file_that_was_taken_away_or_closed_in_between_says_so() -> None:
    host = host_with(gpu="")
    stats = iter([MINE, FileStat(0, 0o644)])
    host.stat = lambda path, *, follow=False: next(stats)  # type: ignore[method-assign]
    assert "is not executable: chmod +x" in ends(host, CommandError(["x"], 127, DENIED))
    gone = host_with(gpu="")
    gone.refusals[f"{FOLDER}/gpu"] = 5
    assert ends(gone, CommandError(["x"], 127, DENIED)) == f"{FOLDER}/gpu: Input/output error"


def test_a_check_that_hangs_says_how_to_give_it_longer() -> None:
    message = ends(host_with(gpu=""), CommandTimeout(["x"], 9.8))
    assert message.startswith(f"{FOLDER}/gpu did not end within 9.8 s and was killed: it hangs, or what it has started")
    assert "'# hyperpod: deadline=29'" in message


# (how it ended, the first line, its output, its errors, the message; empty where its answer counts)
ANSWERS: dict[str, tuple[int, str, str, str, str]] = {
    "a program that env does not find": (
        127, "#!/usr/bin/env pyhton3", "", "/usr/bin/env: ‘pyhton3’: No such file or directory",
        f"{FOLDER}/gpu: its first line asks for pyhton3, which is not in PATH: correct the line, or install it",
    ),
    "the same with options": (
        127, "#!/usr/bin/env -S LANG=C pyhton3 -u", "", "env: 'pyhton3': No such file or directory",
        f"{FOLDER}/gpu: its first line asks for pyhton3, which is not in PATH: correct the line, or install it",
    ),
    "a command in it that is not there": (
        127, "#!/bin/sh", "", f"{FOLDER}/gpu: 3: ibstatt: not found",
        f"user.gpu ended with code 127: {FOLDER}/gpu: 3: ibstatt: not found",
    ),
    "a script that the shell does not understand": (
        2, "#!/bin/sh", "", f'{FOLDER}/gpu: 3: Syntax error: end of file unexpected (expecting "then")',
        f'{FOLDER}/gpu: the shell does not understand it: 3: Syntax error: end of file unexpected (expecting "then")',
    ),
    "one that bash does not understand from some line on": (
        2, "#!/bin/bash", "all well so far", f"{FOLDER}/gpu: line 9: syntax error near unexpected token `fi'",
        f"{FOLDER}/gpu: the shell does not understand it: line 9: syntax error near unexpected token `fi'",
    ),
    "an exception of Python": (
        1, "#!/usr/bin/python3", "", "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module 'x'",
        f"{FOLDER}/gpu: its own program failed: ModuleNotFoundError: No module 'x'",
    ),
    "a program that Python does not understand": (
        1, "#!/usr/bin/python3", "", '  File "x", line 2\n    print(\n         ^\nSyntaxError: never closed',
        f"{FOLDER}/gpu: its own program failed: SyntaxError: never closed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_a_check_whose_own_program_fails_could_not_tell(case: str) -> None:
    code, first, output, errors, expected = ANSWERS[case]
    host = host_with(gpu=f"{first}\n")
    assert ends(host, Completed(output, errors, code)) == expected


@pytest.mark.parametrize(
    ("code", "output", "errors", "severity"),
    [
        (2, "nginx: syntax error in its configuration", "", Severity.FATAL),
        (2, "", "other: 3: Syntax error: of another program", Severity.FATAL),
        (1, "8 % free", "Traceback (most recent call last):\nx\nValueError: 3", Severity.WARN),
        (2, "", "Traceback (most recent call last):\nx\nValueError: 3", Severity.FATAL),
        (1, "", "one fan is slow", Severity.WARN),
    ],
)
def test_an_answer_stays_an_answer(code: int, output: str, errors: str, severity: Severity) -> None:
    host = host_with(gpu="#!/bin/sh\n")
    host.ended[f"{FOLDER}/gpu"] = Completed(output, errors, code)
    (finding,) = UserCheck("user.gpu", f"{FOLDER}/gpu").run(Ports(host, FakeMunge(), facts(host))).findings
    assert finding.severity is severity


def test_what_cannot_be_read_is_a_finding_and_the_others_run() -> None:
    host = host_with(disk="#!/bin/sh\n", gpu="#!/bin/sh\n")
    host.refusals[f"{FOLDER}/gpu"] = 5
    found = find(host)
    assert [check.name for check in found.checks] == ["user.disk"]
    assert [f.message for f in found.findings] == [f"{FOLDER}/gpu: Input/output error"]


def test_a_folder_that_is_none_is_told() -> None:
    host = FakeHost()

    def refuse(path: str) -> list[str]:
        raise NotADirectoryError(20, "Not a directory", path)

    host.list_dir = refuse  # type: ignore[method-assign]
    assert refused(host) == [f"{FOLDER} cannot be listed, so none of its checks runs: Not a directory"]


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
