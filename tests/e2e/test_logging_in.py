"""Going onto real nodes: ssh, scp, forwarded ports, run, submit and logs, against the nodes' own sshd."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.lab import ROOT, Lab, wait_until
from tools.cluster import HYPERPOD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120, func_only=True)]


def run(lab: Lab, *argv: str, input: bytes = b"", timeout_s: float = 60) -> tuple[int, str, str]:
    """Run a hyperpod command and return its status and both outputs."""
    done = subprocess.run([*HYPERPOD, *argv], cwd=ROOT, input=input, capture_output=True, timeout=timeout_s)
    return done.returncode, done.stdout.decode(errors="backslashreplace"), done.stderr.decode()


@contextmanager
def running(argv: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        argv,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the suite in the background has SIGINT ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture(scope="module")
def lab(shared_cluster: Lab) -> Iterator[Lab]:
    """The shared cluster; these tests break no node, so it is tidied once for all of them."""
    shared_cluster.clean_up()
    yield shared_cluster
    shared_cluster.clean_up()


@pytest.fixture(scope="module")
def ssh_config(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that ``hyperpod ssh-config`` writes."""
    path = tmp_path_factory.mktemp("ssh") / "config"
    path.write_text(lab.hyperpod("ssh-config", lab.name))
    return path


def test_a_command_has_its_words_its_input_both_outputs_and_its_status(lab: Lab) -> None:
    script = 'printf "%s|" "$@"; cat; echo bad >&2; exit 7'
    code, out, err = run(
        lab, "run", lab.name, "--", "bash", "-c", script, "x", "a  b", "$HOME", "'", input=b"typed\xff"
    )
    assert (code, err) == (7, "bad\n")
    assert out == "a  b|$HOME|'|typed\\xff"
    assert run(lab, "ssh", lab.name, "worker-2", "--user", "ubuntu", "--", "sh", "-c", "hostname; whoami; pwd")[:2] == (
        0, "worker-2\nubuntu\n/home/ubuntu\n",
    )  # fmt: skip
    assert run(lab, "ssh", lab.name, "--", "sh", "-c", "kill -9 $$")[0] == 137


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--user", "nosuch", "--", "id"], 3, "there is no user nosuch on head-1"),
        (["worker-99", "--", "id"], 3, "has no node worker-99"),
        (["-L", "1:2", "--", "id"], 2, "must be [ADDRESS:]PORT:HOST:PORT"),
    ],
    ids=["user", "node", "forward"],
)
def test_what_cannot_be_is_one_clear_line(lab: Lab, words: list[str], code: int, message: str) -> None:
    got, out, err = run(lab, "ssh", lab.name, *words)
    assert (got, out) == (code, "")
    assert message in err.splitlines()[0]
    assert err.count("error:") == 1


def test_plain_ssh_and_scp_work_with_the_written_entries(lab: Lab, ssh_config: Path, tmp_path: Path) -> None:
    def plain(*argv: str) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert plain("ssh", "-F", str(ssh_config), lab.name, "hostname") == "head-1\n"
    data = os.urandom(2_000_000)
    (tmp_path / "sent").write_bytes(data)
    plain("scp", "-F", str(ssh_config), str(tmp_path / "sent"), f"{lab.name}-worker-2:/tmp/login-test")
    plain("scp", "-F", str(ssh_config), f"{lab.name}-worker-2:/tmp/login-test", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data


def test_a_port_of_a_worker_is_reached_by_the_head_node(lab: Lab) -> None:
    lab.on_node("worker-1", "mkdir", "-p", "/tmp/served")
    lab.on_node("worker-1", "sh", "-c", "echo from the worker >/tmp/served/page")
    container = lab.container("worker-1")
    server = ["podman", "exec", container, "python3", "-m", "http.server", "8899", "--directory", "/tmp/served"]
    wish = [*HYPERPOD, "ssh", lab.name, "-N", "-L", "0:worker-1:8899", "-L", "0:worker-1:1"]
    with running(server), running(wish) as forward:
        assert forward.stderr is not None
        ports = [int(forward.stderr.readline().split(" leads to ")[0].rpartition(":")[2]) for _ in range(2)]

        def page() -> bytes:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/page", timeout=5) as answer:
                    return bytes(answer.read())
            except OSError:
                return b""

        assert wait_until("the page", page, 15) == b"from the worker\n"
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/", timeout=5)
        lab.on_node("worker-1", "pkill", "-f", "http.server 8899")
        forward.send_signal(signal.SIGINT)
        assert forward.wait(10) == 0


def test_a_node_with_another_host_key_is_refused_by_us_and_by_plain_ssh(lab: Lab, ssh_config: Path) -> None:
    key = "/etc/ssh/ssh_host_ed25519_key"
    lab.on_node("worker-2", "sh", "-c", f"rm {key}; ssh-keygen -q -t ed25519 -N '' -f {key} </dev/null")
    lab.on_node("worker-2", "systemctl", "reload", "ssh")
    try:
        code, out, err = run(lab, "ssh", lab.name, "worker-2", "--", "id")
        assert (code, out) == (4, "")
        assert "cannot log in to worker-2: it is showing another host key" in err.splitlines()[0]
        plain = subprocess.run(
            ["ssh", "-F", str(ssh_config), f"{lab.name}-worker-2", "id"], capture_output=True, text=True, timeout=30
        )
        assert (plain.returncode, plain.stdout) == (255, "")
        assert "Host key verification failed" in plain.stderr
    finally:
        lab.on_node("worker-2", "install", "-m", "600", "/opt/hyperpod/node/ssh_host_ed25519_key", key)
        lab.on_node("worker-2", "systemctl", "reload", "ssh")
    assert run(lab, "ssh", lab.name, "worker-2", "--", "hostname")[:2] == (0, "worker-2\n")


def test_a_job_is_followed_from_attempt_to_attempt_to_its_exit_status(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        '#!/bin/bash\necho "begins $*"\nif [[ ! -e seen ]]; then touch seen; exit 9; fi\necho ends\nexit 0\n'
    )
    code, out, err = run(lab, "submit", lab.name, str(script), "--follow", "--", "--auto-resume", "--", "a  b")
    assert (code, out) == (0, "begins a  b\nbegins a  b\nends\n"), err
    assert "attempt 2" in err
    script.write_text("#!/bin/bash\necho fails\nexit 5\n")
    assert run(lab, "submit", lab.name, str(script), "-f")[:2] == (5, "fails\n")
    refused = run(lab, "submit", lab.name, str(script), "--", "--partition=none")
    assert (refused[0], refused[1]) == (1, "")
    assert "not submitted: " in refused[2].splitlines()[0]


def test_ctrl_c_reaches_a_command_and_leaves_a_job_running(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "long.sh"
    script.write_text("#!/bin/bash\necho begun\nsleep 300\n")
    with running([*HYPERPOD, "submit", lab.name, str(script), "--follow"]) as follow:
        assert follow.stdout is not None
        assert follow.stdout.readline() == "begun\n"
        follow.send_signal(signal.SIGINT)
        _, err = follow.communicate(timeout=15)
    assert follow.returncode == 130
    job = err.split("job ")[1].split()[0]
    assert f"job {job} goes on" in err
    assert lab.job_state(job) == "RUNNING"
    with running([*HYPERPOD, "run", lab.name, "--", "sh", "-c", "echo up; sleep 299"]) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "up\n"
        began = time.monotonic()
        command.send_signal(signal.SIGINT)
        assert command.wait(15) == 130
        assert time.monotonic() - began < 10
    assert lab.head("pgrep", "-f", "sleep 299", check=False) == ""
    lab.head("scancel", job)


def test_logs_show_the_birth_and_the_journal(lab: Lab) -> None:
    code, out, err = run(lab, "logs", lab.name, "worker-1", "-n", "200")
    assert code == 0, err
    assert "the node is born" in out
    assert "slurmd" in out
    only = run(lab, "logs", lab.name, "--unit", "controller", "-n", "20")[1]
    assert "hyperpod-controller" in only
    assert "slurmctld[" not in only


def test_on_the_head_node_the_same_commands_work(lab: Lab) -> None:
    assert lab.head("hyperpod", "run", "--", "hostname") == "head-1\n"
    assert lab.head("hyperpod", "ssh", "worker-1", "--", "hostname", user="ubuntu") == "worker-1\n"
    lab.write("/home/ubuntu/tiny.sh", "#!/bin/bash\necho from the head\n")
    assert lab.head("hyperpod", "submit", "tiny.sh", "--follow", user="ubuntu") == "from the head\n"
