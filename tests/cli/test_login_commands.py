"""Going onto nodes: ssh, run, submit and logs on this machine's clusters, with logins that only remember."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from surroundings import Fakes, on_node

from hyperpod.core.node import InstanceStatus
from hyperpod.errors import ConnectionLost, InvalidState, NotFound
from hyperpod.ports.login import Answer
from hyperpod.ports.process import Completed


@pytest.fixture
def demo(fakes: Fakes) -> Fakes:
    fakes.machines.add("demo", "head-1", "worker-1", "worker-2")
    secrets = fakes.machines.cluster("demo").secrets
    for node in ("head-1", "worker-1", "worker-2"):
        (secrets / f"host_{node}.pub").write_text(f"ssh-ed25519 KEY{node} comment\n")
    return fakes


def attached(fakes: Fakes) -> list[tuple[str, ...]]:
    return [entry[1:] for entry in fakes.logins.done if entry[0] == "attach"]


# --- ssh and run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["ssh", "--", "date"], ("head-1", "root", "date")),
        (["ssh", "demo", "--", "date"], ("head-1", "root", "date")),
        (["ssh", "head", "--", "date"], ("head-1", "root", "date")),
        (["ssh", "demo", "worker-1", "--", "ls", "-l", "--debug"], ("worker-1", "root", "ls", "-l", "--debug")),
        (["ssh", "worker-1", "--user", "ubuntu", "--", "ls", "-l"], ("worker-1", "ubuntu", "ls", "-l")),
        (["ssh", "worker-1", "-c", "demo", "--", "x", "--", "y"], ("worker-1", "root", "x", "--", "y")),
        (["ssh", "worker-1", "date"], ("worker-1", "root", "date")),
        (["ssh", "i-00000000000000002", "--", "date"], ("worker-1", "root", "date")),
        (["ssh", "worker-2"], ("worker-2", "root", "bash", "-l")),
        (["run", "demo", "--", "sinfo", "-N"], ("head-1", "root", "sinfo", "-N")),
        (["run", "-u", "ubuntu", "--", "a b"], ("head-1", "ubuntu", "a b")),
    ],
    ids=" ".join,
)
def test_a_command_runs_where_and_as_whom_it_was_said(demo: Fakes, argv: list[str], expected: tuple[str, ...]) -> None:
    result = demo.run(*argv)
    assert (result.code, attached(demo)) == (7, [expected]), result.err
    assert demo.logins.done[-1] == ("close",)


def test_a_local_node_is_reached_by_its_slot_with_the_clusters_keys(demo: Fakes) -> None:
    demo.run("ssh", "worker-1", "--", "true")
    (target,) = demo.logins.targets
    assert target.host_key == "ssh-ed25519 KEYworker-1"
    assert target.key_files == (demo.machines.cluster("demo").secrets / "admin",)
    assert "hyperpod.demo.worker-1" in target.proxy


def test_the_users_name_may_come_from_the_environment(demo: Fakes) -> None:
    demo.place.env = {**demo.place.env, "HYPERPOD_USER": "alice"}
    demo.run("run", "--", "id")
    demo.run("run", "--user", "bob", "--", "id")
    assert [entry[1] for entry in attached(demo)] == ["alice", "bob"]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["ssh", "nope"], 3, "no cluster nope on box"),
        (["ssh", "nope", "worker-1"], 3, "no cluster nope on box"),
        (["ssh", "demo", "worker-9"], 3, "cluster demo has no node worker-9"),
        (["ssh", "demo", "ls"], 2, "'ls' is not a node name"),
        (["ssh", "demo", "worker-1", "ls", "--", "x"], 2, "before -- stands one word too many: ls"),
        (["ssh", "demo", "-L", "8888"], 2, "-L 8888: must be [ADDRESS:]PORT:HOST:PORT"),
        (["ssh", "demo", "-N"], 2, "-N without -L does nothing"),
        (["ssh", "demo", "-N", "-L", "1:a:1", "--", "ls"], 2, "-N runs no command"),
        (["ssh", "demo", "--user", "-oX"], 2, "'-oX' is not a login name"),
        (["run", "demo"], 2, "there is no command"),
        (["run", "demo", "sinfo"], 2, "there is no command"),
        (["run", "demo", "x", "--", "sinfo"], 2, "before -- stands one word too many: x"),
        (["run", "nope", "--", "sinfo"], 3, "no cluster nope on box"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_one_clear_line(demo: Fakes, argv: list[str], code: int, message: str) -> None:
    result = demo.run(*argv)
    assert (result.code, result.out) == (code, "")
    assert result.err.splitlines()[0].startswith(f"error: {message}")
    assert len([line for line in result.err.splitlines() if line.startswith("error:")]) == 1
    assert demo.logins.done == []


def test_ports_are_forwarded_until_ctrl_c(demo: Fakes) -> None:
    result = demo.run("ssh", "demo", "-N", "-L", "8888:worker-1:80", "-L", "0:localhost:22")
    assert result.code == 0
    assert demo.logins.done == [("forward", 8888, "worker-1", 80), ("forward", 0, "localhost", 22), ("close",)]
    assert "localhost:8888 leads to worker-1:80 by head-1\nlocalhost:40000 leads to localhost:22" in result.err


def test_a_command_may_run_beside_forwarded_ports(demo: Fakes) -> None:
    assert demo.run("ssh", "worker-1", "-L", "8888:localhost:80", "--", "serve").code == 7
    assert [entry[0] for entry in demo.logins.done] == ["forward", "attach", "close"]


def test_a_stopped_machine_is_refused(demo: Fakes) -> None:
    demo.machines.add("demo", "worker-1", status=InstanceStatus.STOPPED)
    assert demo.run("ssh", "worker-1").code == 4
    assert demo.logins.targets == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidState("log in to worker-1", "showing another host key"), 4),
        (NotFound("there is no user nosuch on worker-1"), 3),
        (ConnectionLost("worker-1 cannot be reached"), 75),
    ],
    ids=["host key", "user", "away"],
)
def test_a_login_that_fails_has_its_own_status(demo: Fakes, error: InvalidState, code: int) -> None:
    demo.logins.error = error
    result = demo.run("ssh", "worker-1", "--", "true")
    assert (result.code, result.err.splitlines()[0]) == (code, f"error: {error.message}")


def test_a_node_without_sshd_is_entered_from_below(demo: Fakes) -> None:
    from dataclasses import replace

    key = ("demo", "worker-1")
    demo.machines.instances[key] = replace(demo.machines.instances[key], labels={"hyperpod.container": "x"})
    demo.logins.error = ConnectionLost("no ssh server answers on worker-1")
    result = demo.run("ssh", "worker-1", "--", "ls")
    assert (result.code, demo.terminal) == (7, [["shell", "i-00000000000000002", "root", "ls"]])
    assert "note: no ssh server answers on worker-1; entering it from below" in result.err
    assert demo.run("ssh", "worker-1", "-N", "-L", "1:a:1").code == 75


# --- on a node --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["ssh", "worker-2", "--", "date"], ["ssh", "root@worker-2", "--", "date"]),
        (["ssh", "demo", "worker-2", "--", "a b"], ["ssh", "root@worker-2", "--", "'a b'"]),
        (["ssh"], ["ssh", "root@10.0.0.1"]),
        (["ssh", "-N", "-L", "8:x:9"], ["ssh", "-L", "127.0.0.1:8:x:9", "-N", "root@10.0.0.1"]),
        (["run", "--", "sinfo"], ["ssh", "root@10.0.0.1", "--", "sinfo"]),
    ],
    ids=str,
)
def test_between_nodes_it_is_the_nodes_own_ssh(
    fakes: Fakes, tmp_path: Path, argv: list[str], expected: list[str]
) -> None:
    on_node(fakes, tmp_path)
    assert fakes.run(*argv).code == 7
    assert fakes.terminal == [expected]


def test_a_login_between_nodes_that_is_refused_says_whose_keys_there_are(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    fakes.place.terminal = lambda argv: 255
    result = fakes.run("ssh", "worker-2")
    assert result.code == 255
    assert "hint: if ssh to root@worker-2 was refused: between nodes root has no keys" in result.err


def test_on_the_head_node_a_command_just_runs(fakes: Fakes, tmp_path: Path) -> None:
    on_node(fakes, tmp_path)
    config = json.loads(fakes.place.agent_config.read_text())
    fakes.place.agent_config.write_text(json.dumps({**config, "node": "head-1", "role": "head"}))
    assert fakes.run("run", "--", "sinfo", "-N").code == 7
    assert fakes.run("logs", "--unit", "slurmctld").code == 7
    assert fakes.terminal[0] == ["sinfo", "-N"]
    assert fakes.terminal[1][:1] == ["journalctl"]


def test_on_a_node_a_script_is_submitted_without_a_login(fakes: Fakes, tmp_path: Path, script: Path) -> None:
    on_node(fakes, tmp_path)

    class Runner:
        def run(self, argv: list[str], **_: object) -> Completed:
            return Completed("12\n" if "sbatch" in argv else "/root/hyperpod-jobs/train-1/train.sh\n", "", 0)

    fakes.place.processes = Runner  # type: ignore[assignment]
    assert fakes.run("submit", str(script)).out == "job 12\n"


# --- submit -----------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/bash\ntrue\n")
    return path


def job(state: str, code: str = "0:0", restarts: int = 0) -> str:
    return f"JobId=12 JobState={state} Reason=None Restarts={restarts} ExitCode={code} NodeList=w-1 StdOut=/home/o.out"


class Slurm:
    """Answers what submit asks on the head node; one look after another."""

    def __init__(self, *looks: tuple[str, bytes], sbatch: Answer | None = None, shown: dict[str, str] | None = None):
        self.looks = list(looks)
        self.sbatch = sbatch or Answer(b"12;cluster\n", b"", 0)
        self.shown = shown
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str]) -> Answer:
        self.asked.append(argv)
        if "sbatch" in argv:
            return self.sbatch
        if argv[:3] == ["hyperpod", "job", "show"]:
            return Answer(json.dumps(self.shown).encode(), b"", 0 if self.shown else 3)
        if "scontrol" not in argv[2]:
            return Answer(b"", b"", 0)
        about, file = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        start = int(argv[6])
        data = base64.b64encode(file[start:]).decode() if argv[5] and file else "-"
        return Answer(f"{about}\n--hyperpod-output--\n{data}\n".encode(), b"", 0)


def test_a_script_is_copied_and_submitted_with_the_options_as_they_are(demo: Fakes, script: Path) -> None:
    slurm = demo.logins.asks = Slurm()
    result = demo.run("submit", "demo", str(script), "--", "--auto-resume", "--job-name=a b", "--", "arg", "x y")
    assert (result.code, result.out) == (0, "job 12\n")
    assert demo.logins.done[0] == ("put", "hyperpod-jobs", "train.sh", b"#!/bin/bash\ntrue\n")
    assert demo.logins.targets[0].user == "ubuntu"
    folder = "/home/ubuntu/hyperpod-jobs/train-1"
    assert slurm.asked[0][4:] == [
        folder, "sbatch", "--parsable", "--auto-resume", "--job-name=a b", f"{folder}/train.sh", "arg", "x y",
    ]  # fmt: skip
    found = demo.run("submit", str(script), "-o", "json").json
    assert found == {"cluster": "demo", "job_id": 12, "script": f"{folder}/train.sh"}


@pytest.mark.parametrize(
    ("state", "code", "status"), [("COMPLETED", "0:0", 0), ("FAILED", "5:0", 5), ("CANCELLED", "0:15", 143)]
)
def test_following_ends_with_the_jobs_exit_status(
    demo: Fakes, script: Path, state: str, code: str, status: int
) -> None:
    demo.logins.asks = Slurm(
        (job("PENDING"), b""),
        (job("RUNNING"), b"one\n"),
        (job("RUNNING"), b"one\ntwo\n"),
        (job(state, code), b"one\ntwo\nend\n"),
    )
    result = demo.run("submit", str(script), "--follow")
    assert (result.code, result.out) == (status, "one\ntwo\nend\n")
    assert f"job 12: {state.lower()}, exit status {status}" in result.err


def test_following_goes_on_through_the_attempts_of_an_armed_job(demo: Fakes, script: Path) -> None:
    slurm = Slurm(
        (job("RUNNING"), b"first\n"),
        (job("FAILED", "9:0"), b"first\n"),
        *[(job("FAILED", "9:0"), b"first\n")] * 3,
        (job("PENDING", restarts=1), b"first\n"),
        (job("RUNNING", restarts=1), b"second, begun anew\n"),
        *[(job("RUNNING", restarts=1), b"second, begun anew\n")] * 2,
        (job("COMPLETED", restarts=1), b"second, begun anew\n"),
        shown={"armed_by": "job", "verdict": ""},
    )
    was = slurm.__call__

    def asks(argv: list[str]) -> Answer:
        if len(slurm.looks) == 1:
            slurm.shown = {"armed_by": "job", "verdict": "Completed"}
        return was(argv)

    demo.logins.asks = asks
    result = demo.run("submit", str(script), "--follow", "-o", "json")
    assert result.code == 0
    assert (result.json["state"], result.json["attempts"]) == ("COMPLETED", 2)
    assert "first\n" in result.err
    assert result.err.count("second, begun anew\n") == 1
    assert "job 12: running on w-1, attempt 2" in result.err


def test_an_attempt_that_ran_between_two_looks_is_told_at_the_end(demo: Fakes, script: Path) -> None:
    demo.logins.asks = Slurm((job("PENDING"), b""), (job("COMPLETED", restarts=1), b"first\nsecond\n"))
    result = demo.run("submit", str(script), "--follow")
    assert (result.code, result.out) == (0, "first\nsecond\n")
    assert result.err.endswith("job 12: completed, exit status 0, attempt 2\n")


def test_ctrl_c_leaves_the_job_and_says_how_to_end_it(demo: Fakes, script: Path) -> None:
    # The clock of these tests interrupts after 100 s.
    demo.logins.asks = Slurm((job("RUNNING"), b"one\n"))
    result = demo.run("submit", str(script), "--follow")
    assert (result.code, result.out) == (130, "one\n")
    assert result.err.endswith("job 12 goes on; hyperpod run demo -- scancel 12 ends it\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"echo", "is not a script"),
        (b"#!/bin/sh\r\ntrue\r\n", "has Windows line ends"),
        (b"#!/bin/sh\n" + b"#" * 4_194_304, "Slurm takes 4194304"),
        (None, "No such file or directory"),
    ],
    ids=["no shebang", "crlf", "size", "missing"],
)
def test_a_script_that_slurm_would_not_take_is_refused_here(
    demo: Fakes, tmp_path: Path, text: bytes | None, message: str
) -> None:
    path = tmp_path / "bad.sh"
    if text is not None:
        path.write_bytes(text)
    result = demo.run("submit", str(path))
    assert (result.code, demo.logins.targets) == (2, [])
    assert message in result.err.splitlines()[0]


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (b"sbatch: error: Batch job submission failed: Invalid account\n", 1, "not submitted: Batch job submission"),
        (b"sbatch: unrecognized option '--x'\nTry sbatch --help\n", 1, "not submitted: unrecognized option '--x'"),
        (b"sbatch: error: Unable to contact slurm controller (connect failure)\n", 75, "Slurm does not answer"),
    ],
    ids=["refused", "option", "away"],
)
def test_what_sbatch_says_is_one_line_and_the_copy_is_taken_away(
    demo: Fakes, script: Path, said: bytes, code: int, message: str
) -> None:
    slurm = demo.logins.asks = Slurm(sbatch=Answer(b"", said, 1))
    result = demo.run("submit", str(script))
    assert (result.code, result.out) == (code, "")
    assert result.err.splitlines()[0].startswith(f"error: {message}")
    assert "rmdir" in slurm.asked[-1][2]


# --- logs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def born(demo: Fakes, tmp_path: Path) -> Fakes:
    from hyperpod.ports.provider import Birth, BirthStatus

    log = tmp_path / "provisioning.log"
    log.write_text("booting\nborn\x1b[31m\n")
    for number in (1, 2, 3):
        identity = f"i-{number:017x}"
        demo.machines.births[identity] = Birth(identity, BirthStatus.OK, log_path=str(log))
    return demo


def test_logs_are_the_birth_and_the_journal(born: Fakes) -> None:
    result = born.run("logs", "demo", "worker-1", "--since", "15m", "-n", "50")
    assert (result.code, result.out) == (7, "booting\nborn\\x1b[31m\n")
    ((node, user, *argv),) = attached(born)
    assert (node, user, argv[0]) == ("worker-1", "root", "journalctl")
    assert {"--unit=slurmd", "--unit=hyperpod-agent", "--since=@100", "--lines=50"} <= set(argv)
    assert "--follow" not in argv


def test_an_old_birth_is_not_among_newer_lines(born: Fakes, tmp_path: Path) -> None:
    log = tmp_path / "provisioning.log"
    log.write_text("1970-01-01T00:00:10+0000 a: old\nits rest\n1970-01-01T00:16:30+0000 a: new\nits rest\n")
    assert born.run("logs", "worker-1", "--since", "15m").out == "1970-01-01T00:16:30+0000 a: new\nits rest\n"
    assert born.run("logs", "worker-1", "--since", "1s").out == ""


def test_one_unit_is_followed(born: Fakes) -> None:
    born.run("logs", "demo", "--unit", "controller", "--follow")
    ((node, _, *argv),) = attached(born)
    assert node == "head-1"
    assert [word for word in argv if word.startswith("--unit")] == ["--unit=hyperpod-controller"]
    assert "--follow" in argv


def test_a_node_that_does_not_answer_still_has_its_birth(born: Fakes) -> None:
    born.logins.error = ConnectionLost("worker-1 cannot be reached")
    result = born.run("logs", "worker-1")
    assert (result.code, result.out.splitlines()[0]) == (0, "booting")
    assert "note: no journal: worker-1 cannot be reached" in result.err
    assert born.run("logs", "worker-1", "--source", "journal").code == 75


def test_a_birth_is_followed_to_its_end(born: Fakes, tmp_path: Path) -> None:
    from dataclasses import replace

    from hyperpod.ports.provider import BirthStatus

    identity = "i-00000000000000002"
    birth = born.machines.births[identity] = replace(born.machines.births[identity], status=BirthStatus.RUNNING)
    log = Path(birth.log_path)
    steps = ["third\nfour", "th\n"]
    own = born.place.sleep

    def sleep(seconds: float) -> None:
        own(seconds)
        if steps:
            log.write_text(log.read_text() + steps.pop(0))
        else:
            born.machines.births[identity] = replace(birth, status=BirthStatus.FAILED)

    born.place.sleep = sleep
    result = born.run("logs", "worker-1", "--source", "lifecycle", "--follow", "-n", "1")
    assert (result.code, result.out) == (0, "born\\x1b[31m\nthird\nfourth\n")
    assert "the scripts have ended: failed" in result.err


def test_a_machine_that_is_gone_is_named_by_its_id(born: Fakes, tmp_path: Path) -> None:
    born.machines.cluster("demo").instance("i-000000000000000aa").mkdir(parents=True)
    born.machines.births["i-000000000000000aa"] = born.machines.births["i-00000000000000001"]
    result = born.run("logs", "demo", "i-000000000000000aa")
    assert (result.code, result.out.splitlines()[0]) == (0, "booting")
    assert born.run("logs", "demo", "i-000000000000000bb").code == 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--since", "x"], "--since x"),
        (["--source", "health"], "only HyperPod has"),
        (["--source", "lifecycle", "--unit", "slurmd"], "--unit is about journals"),
        (["demo", "worker-1", "more"], "one word too many: more"),
    ],
    ids=str,
)
def test_wrong_wishes_for_logs_are_refused(born: Fakes, argv: list[str], message: str) -> None:
    result = born.run("logs", *argv)
    assert result.code == 2
    assert message in result.err


def test_the_library_for_ssh_is_loaded_only_for_a_login() -> None:
    import subprocess
    import sys

    program = "import sys, hyperpod.cli.app as a; a.create_app(); print('paramiko' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "False\n"
