"""Users' checks in the agent: they come and go while it runs, and none can end it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from test_agent_mind import Stage, make_settings

from hyperpod.adapters.host import LocalHost
from hyperpod.adapters.process import Processes
from hyperpod.agent.mind import SEARCH_INTERVAL_S
from hyperpod.agent.plugins import installed, load_packaged
from hyperpod.core.finding import Finding, Severity
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import EVERYWHERE, Facts, Ports, Result, fatal, warn
from hyperpod.health.registry import parse_settings
from hyperpod.health.runner import Runner
from hyperpod.health.users import Found, UserCheck, find_user_checks
from hyperpod.ports.host import FileKind
from tests.fakes.clock import FakeClock
from tests.fakes.host import FakeMunge

GPU = UserCheck("user.gpu", "/etc/hyperpod/checks.d/gpu", interval_s=5.0)
REFUSED = Finding("user", "UserCheckRefused", Severity.WARN, "refused", device="/x")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, make_settings())


def bring(stage: Stage, found: Found) -> None:
    stage.mind.on_user_checks(found, stage.now, stage.clock.now())


def test_they_are_looked_for_at_the_start_and_every_minute(stage: Stage) -> None:
    stage.tick()
    assert stage.actions.searches == 1
    stage.run(SEARCH_INTERVAL_S + 1)
    assert stage.actions.searches == 2


def test_one_that_is_brought_runs_in_its_rhythm_and_one_that_is_taken_away_no_more(stage: Stage) -> None:
    bring(stage, Found((GPU,)))
    stage.run(20)
    assert sum(name == "user.gpu" for name, _, _ in stage.actions.started) == 1, "its run has not come back"
    stage.finish("user.gpu", Result((fatal("user.gpu", "Bad", "bad", is_hard=True),)))
    assert "Bad" in [f.code for f in stage.mind.findings]
    bring(stage, Found())
    assert "Bad" not in [f.code for f in stage.mind.findings]
    stage.finish("user.gpu", Result((fatal("user.gpu", "Bad", "bad", is_hard=True),)))
    assert "Bad" not in [f.code for f in stage.mind.findings]


def test_one_that_is_refused_is_a_finding_for_as_long_as_it_is(stage: Stage) -> None:
    stage.connect()
    stage.actions.sent.clear()
    bring(stage, Found(findings=(REFUSED,)))
    (beat,) = stage.beats()
    (finding,) = (f for f in beat.findings if f.code == "UserCheckRefused")
    assert (finding.since, finding.instance_id) == (stage.clock.now(), "i-1")
    since = finding.since
    stage.tick(30)
    bring(stage, Found(findings=(REFUSED,)))
    assert [f.since for f in stage.mind.findings if f.code == "UserCheckRefused"] == [since]
    bring(stage, Found())
    assert [f for f in stage.mind.findings if f.code == "UserCheckRefused"] == []


def at(clock: FakeClock) -> Any:
    return clock.now()


def test_an_unchanged_check_keeps_what_it_has_found() -> None:
    clock, runner = FakeClock(), Runner([])
    runner.set_extra([GPU], (), 0.0)
    ((_, run_id),) = runner.force(["user.gpu"], 0.0)
    runner.finished("user.gpu", run_id, Result((warn("user.gpu", "Odd", "odd"),)), 0.0, clock.now())
    assert not runner.set_extra([replace(GPU)], (), 1.0)
    assert runner.names == ("user.gpu",)
    assert [f.code for f in runner.suspicions(["user.gpu"])] == ["Odd"]
    runner.set_extra([replace(GPU, interval_s=9.0)], (), 1.0)
    assert runner.suspicions(["user.gpu"]) == ()


def test_a_check_of_ours_is_never_replaced_by_one_that_is_brought() -> None:
    runner = Runner([replace(GPU, name="disk")])
    runner.set_extra([replace(GPU, name="disk", path="/evil")], (), 0.0)
    runner.set_extra([], (), 0.0)
    assert runner.names == ("disk",)


# --- packages -----------------------------------------------------------------------------------------------------


@dataclass
class Entry:
    """An entry point."""

    name: str
    loads: Any
    value: str = "package:Check"

    def load(self) -> Any:
        if isinstance(self.loads, BaseException):
            raise self.loads
        return self.loads


class Good:
    """A check with the least that one may have."""

    interval_s = 5.0

    def run(self, ports: Ports) -> Result:
        return Result((warn("whatever", "Odd", "odd"),))


class NoCheck:
    """Something else."""


def load(*entries: Entry, **policy: Any) -> Found:
    return load_packaged(parse_settings(policy), lambda: entries)


def test_a_package_brings_a_check_under_our_name_for_it() -> None:
    (check,) = load(Entry("fans", Good)).checks
    assert (check.name, check.interval_s, check.deadline_s, check.roles) == ("user.fans", 5.0, 10.0, EVERYWHERE)
    (finding,) = check.run(None).findings  # type: ignore[arg-type]
    assert finding.check == "user.fans"


@pytest.mark.parametrize(
    "bad", [ImportError("no module"), SystemExit(1), NoCheck, 3, lambda: 1 / 0, lambda: Good, RecursionError()]
)
def test_a_bad_package_is_a_finding_and_the_others_go_on(bad: Any) -> None:
    found = load(Entry("bad", bad), Entry("fans", Good))
    assert [check.name for check in found.checks] == ["user.fans"]
    assert [(f.check, f.severity) for f in found.findings] == [("user.bad", Severity.UNKNOWN)]


def test_policy_holds_for_packages() -> None:
    assert load(Entry("fans", Good), **{"user.fans": {"mode": "off"}}).checks == ()
    found = load(Entry("fans", Good), **{"user.fans": {"mode": "observe", "interval_s": 9}})
    assert (found.observe_only, found.checks[0].interval_s) == ({"user.fans"}, 9)


def test_the_library_for_entry_points_is_loaded_only_if_a_package_has_some(tmp_path: Path) -> None:
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text("[console_scripts]\nx = y:z\n")
    assert installed([str(tmp_path), str(tmp_path / "none")]) == ()


# --- a real program -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a program as root")
def test_a_program_runs_apart_with_little_environment_and_bounded_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/secret")
    host = LocalHost(Processes())
    done = host.run_apart(["/bin/sh", "-c", "env; pwd; exit 2"], 5.0)
    assert (done.code, "NOTIFY_SOCKET" in done.stdout, done.stdout.splitlines()[-1]) == (2, False, "/")
    with pytest.raises(CommandTimeout):
        host.run_apart(["/bin/sh", "-c", "sleep 30"], 0.2)
    with pytest.raises(CommandError, match="printed more"):
        host.run_apart([sys.executable, "-c", "while True: print('x' * 60000)"], 10.0)


def test_a_files_owner_and_rights_are_read_without_following_links(tmp_path: Path) -> None:
    host, file, link = LocalHost(Processes()), tmp_path / "file", tmp_path / "link"
    file.write_text("x")
    file.chmod(0o640)
    link.symlink_to(file)
    assert (host.stat(str(file)).mode, host.stat(str(file)).uid) == (0o640, os.geteuid())
    assert host.stat(str(link)).kind is FileKind.LINK
    assert host.stat(str(link), follow=True).size_bytes == 1
    assert host.stat(str(tmp_path)).kind is FileKind.FOLDER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's files are checks")
def test_a_real_folder_of_checks_is_found_and_run(tmp_path: Path) -> None:
    folder = tmp_path / "checks.d"
    folder.mkdir(mode=0o755)
    script = folder / "fans.sh"
    script.write_text("#!/bin/sh\n# hyperpod: deadline=5 mode=observe\necho 'fan 3 stands still'; exit 2\n")
    script.chmod(0o755)
    (folder / "open.sh").write_text("#!/bin/sh\n")
    (folder / "open.sh").chmod(0o777)
    host = LocalHost(Processes())
    found = find_user_checks(host, {}, str(folder))
    assert [finding.code for finding in found.findings] == ["UserCheckRefused"]
    (check,) = found.checks
    ports = Ports(host, FakeMunge(), Facts(host.now(), 100.0, "worker-1"))
    (finding,) = check.run(ports).findings
    assert (finding.check, finding.message, found.observe_only) == ("user.fans", "fan 3 stands still", {"user.fans"})


BY_MISTAKE = {
    "interpreter": (b"#!/usr/bin/pyhton3\n", "its first line asks for /usr/bin/pyhton3, which does not exist"),
    "env": (b"#!/usr/bin/env pyhton3\n", "its first line asks for pyhton3, which is not in PATH"),
    "windows": (b"#!/bin/sh\r\nexit 0\r\n", "its lines end as on Windows"),
    "bare": (b"exit 0\n", "its first line names no interpreter"),
    "empty": (b"", "it is empty"),
    "machine": (b"", "it is a program for machine type 4660, and this machine is"),
    "shell": (b"#!/bin/sh\nif true\n", "the shell does not understand it: "),
    "python": (f"#!{sys.executable}\nimport no_such_module\n".encode(), "its own program failed: ModuleNotFound"),
    "hangs": (b"#!/bin/sh\n# hyperpod: deadline=0.5\nsleep 60\n", "did not end within 0.3 s and was killed"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's files are checks")
@pytest.mark.parametrize("case", BY_MISTAKE)
def test_a_real_file_that_cannot_run_says_why(case: str, tmp_path: Path) -> None:
    text, expected = BY_MISTAKE[case]
    if case == "machine":
        own = bytearray(Path(sys.executable).resolve().read_bytes()[:4096])
        own[18:20] = (4660).to_bytes(2, "little" if own[5] == 1 else "big")
        text = bytes(own)
    path = tmp_path / case
    path.write_bytes(text)
    path.chmod(0o755)
    host = LocalHost(Processes())
    (check,) = find_user_checks(host, {}, str(tmp_path)).checks
    (finding,) = check.run(Ports(host, FakeMunge(), Facts(host.now(), 100.0, "worker-1"))).findings
    assert (finding.severity, finding.code) == (Severity.UNKNOWN, "UserCheckUnknown")
    assert str(path) in finding.message
    assert expected in finding.message
