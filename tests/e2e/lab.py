"""What the end-to-end tests do on a cluster, in their words: submit, break, wait, and look at what was written.

Owns no knowledge of hyperpod's inside. Times are only ever waited for, never judged: several suites may share the
machine.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tools.cluster import HYPERPOD, ROOT, USER, Cluster

HERE = Path(__file__).parent
HOME = f"/home/{USER}"
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, GPU has fallen off the bus."
XID_64 = "NVRM: Xid (PCI:0000:9b:00): 64, pid=1234, name=python3, Failed to persist a row remapping"


@dataclass(frozen=True)
class Line:
    """One line of a rank's trace."""

    kind: str
    time: float
    attempt: int
    rank: int
    node: str
    step: int


@dataclass(frozen=True)
class Job:
    """A submitted job and the directory that it writes to."""

    id: int
    directory: str


class Lab(Cluster):
    """A cluster under test."""

    mark = 0
    """Events up to this id belong to earlier tests."""

    _count = 0

    # --- files

    @cached_property
    def fsx(self) -> Path:
        """The shared file system, seen from this machine."""
        return Path(self.ask("describe-cluster")["shared_storage"])

    def install(self) -> None:
        """Put the jobs' programs into the user's home."""
        for name in ("rank.sh", "batch.sh", "style.sh", "het.sh", "kill_controller.py"):
            self.write(f"{HOME}/{name}", (HERE / name).read_text())
            self.head("chmod", "755", f"{HOME}/{name}")
        self.head("mkdir", "-p", "/fsx/e2e", user=USER)

    # --- the provider's service

    @cached_property
    def home(self) -> Path:
        """The cluster's folder on this machine."""
        return Path(self.ask("describe-cluster")["folder"])

    def stop_provider_service(self) -> None:
        """Kill what the controller reaches the provider through."""
        os.kill(int((self.home / "provider.pid").read_text()), signal.SIGKILL)
        wait_until("the provider's service to be gone", lambda: not self.provider_is_served())

    def provider_is_served(self) -> bool:
        """Say whether the provider's service of this cluster lives."""
        try:
            pid = int((self.home / "provider.pid").read_text())
            return self.name in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except (OSError, ValueError):
            return False

    def host_path(self, path: str) -> Path:
        """Return where a file below /fsx is on this machine."""
        return self.fsx / path.removeprefix("/fsx/")

    def trace(self, job: Job) -> list[Line]:
        """Return all that the job's ranks have written, in the order of writing."""
        try:
            text = self.host_path(f"{job.directory}/trace").read_text()
        except FileNotFoundError:
            return []
        lines = []
        for row in text.splitlines():
            words = row.split()
            if len(words) == 6:
                lines.append(Line(words[0], float(words[1]), int(words[2]), int(words[3]), words[4], int(words[5])))
        return lines

    def file_text(self, path: str) -> str:
        """Return a file below /fsx, or an empty string."""
        found = self.host_path(path)
        return found.read_text() if found.is_file() else ""

    # --- jobs

    def submit(
        self,
        *options: str,
        script: str = "batch.sh",
        steps: int = 1_000_000,
        step_time: float = 0.1,
        save_every: int = 2,
        armed: bool = True,
        directory: str | None = None,
        **settings: str | int,
    ) -> Job:
        """Submit a job that counts; ``settings`` are rank.sh's, in lower case.

        ``directory`` is where it saves: one of its own, or (an empty string) what the cluster gives it.
        """
        Lab._count += 1
        own = f"/fsx/e2e/{self.mark}-{Lab._count}"
        folder = own if directory is None else directory
        values: dict[str, str] = {k.upper(): str(v) for k, v in settings.items()}
        values |= {"STEPS": str(steps), "STEP_TIME": str(step_time), "SAVE_EVERY": str(save_every)}
        job_id = self.sbatch(
            *(["--auto-resume"] if armed else []),
            *([f"--checkpoint-dir={folder}"] if folder else []),
            f"--output={own}.out",
            *options,
            *script.split(),
            env=values,
        )
        return Job(job_id, folder)

    def wait_running(self, job: Job, *, attempt: int | None = None, step: int = 1, ranks: int = 1) -> None:
        """Wait until so many ranks of an attempt (of any, for unarmed jobs) have got as far as a step."""

        def reached() -> bool:
            there = {
                (x.attempt, x.rank)
                for x in self.trace(job)
                if x.step >= step and x.kind != "start" and attempt in (None, x.attempt)
            }
            return len(there) >= ranks

        self.wait(f"job {job.id}: {ranks} ranks at step {step} of attempt {attempt}", reached, 120, every_s=0.05)

    def wait_state(self, job: Job | int, *states: str, timeout_s: float = 120) -> str:
        """Wait until Slurm says one of these states."""
        job_id = job.id if isinstance(job, Job) else job

        def state() -> str:
            now = self.job_state(job_id)
            return now if now in states else ""

        found: str = self.wait(f"job {job_id} to be {' or '.join(states)}", state, timeout_s)
        return found

    def wait_verdict(self, job: Job | int, verdict: str) -> dict[str, Any]:
        """Wait until the controller has done with a job, and return its history."""
        job_id = job.id if isinstance(job, Job) else job
        shown: dict[str, Any] = {}

        def done() -> bool:
            shown.update(self.show_job(job_id))
            return bool(shown["verdict"])

        self.wait(f"a verdict on job {job_id}", done, 120)
        assert shown["verdict"] == verdict, (shown["verdict"], shown["verdict_message"], self.describe())
        return shown

    def finish(self, job: Job, verdict: str = "Completed") -> dict[str, Any]:
        """Have the job come to its end now, wait until the controller knows, and return its history."""
        self.end(job)
        return self.wait_verdict(job, verdict)

    def end(self, job: Job) -> None:
        """Have the job come to its end now."""
        self.host_path(f"{job.directory}/stop").touch()

    def restarts(self, job_id: int) -> int:
        """Return how often Slurm has started the job again."""
        text = self.head("scontrol", "show", "job", str(job_id))
        return int(text.partition("Restarts=")[2].split()[0])

    def batch_host(self, job: Job) -> str:
        """Return the node that the job's script runs on."""
        return self.job_nodes(job.id)[0]

    # --- nodes

    def inject(self, fault: str, node: str, *arguments: str) -> str:
        """Break a node."""
        return self.hyperpod("inject", fault, node, *arguments, "--cluster", self.name)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the controller's view of each worker."""
        return {n["node"]: n for n in self.head_json("status")["nodes"]}

    def workers(self) -> list[str]:
        """Return the nodes that wait for users' jobs: not the spare, which is another one after every repair."""
        return sorted(name for name, told in self.nodes().items() if told["state"] == "idle")

    def instance(self, node: str) -> str:
        """Return the machine in a slot."""
        found: str = self.nodes()[node]["instance_id"]
        return found

    def wait_replaced(self, node: str, old: str, timeout_s: float = 180) -> None:
        """Wait until another machine is in the slot, and takes work or waits as a spare."""

        def is_back() -> bool:
            now = self.nodes()[node]
            return now["instance_id"] != old and now["state"] in ("idle", "spare", "in use")

        self.wait(f"{node} to have another machine than {old}", is_back, timeout_s)

    def count_births(self) -> int:
        """Return how many machines the cluster has had in its life; their records outlive them."""
        return len(list((self.home / "instances").iterdir()))

    def is_settled(self) -> bool:
        """Say whether every node works and nothing is under way."""
        status = self.head_json("status")
        spares = {name: s for name, s in status["spares"].items() if s["ready"] != s["wanted"]}
        states = {n["state"] for n in status["nodes"]}
        return states <= {"idle", "spare"} and not (status["repairs"] or status["missing"] or spares)

    def clean_up(self) -> None:
        """End all jobs, lift what tests have drained, and wait until every node works again."""
        self.head("scancel", "--user", USER, check=False)
        self.wait("no job to be left", lambda: not self.head("squeue", "-h", "-t", "PD,R,CG,CF"), 120)
        self.wait("every node to work again", self._is_tidy, 240, every_s=0.5)

    def _is_tidy(self) -> bool:
        drained = [node for node, view in self.nodes().items() if view["state"] == "drained (person)"]
        for node in drained:
            self.head("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        return not drained and self.is_settled()

    # --- the controller

    def events(self, kind: str = "", *, job: int | None = None, node: str = "") -> list[dict[str, Any]]:
        """Return what happened since the test began."""
        found = self.head_json("events", "--limit", "2000")
        return [
            e
            for e in found
            if e["id"] > self.mark
            and kind in ("", e["kind"])
            and job in (None, e["job_id"])
            and node in ("", e["node"])
        ]

    def begin(self) -> None:
        """Forget what happened before."""
        self.mark = self.latest_event()

    def latest_event(self) -> int:
        """Return the id of the newest event."""
        return max((e["id"] for e in self.head_json("events", "--limit", "1")), default=0)

    def notes(self) -> list[dict[str, Any]]:
        """Return what the controller remarks now."""
        found: list[dict[str, Any]] = self.head_json("status")["notes"]
        return found

    def start_on_head(self, *argv: str) -> subprocess.Popen[str]:
        """Start a program on the head node and return its handle at once."""
        command = ["podman", "exec", self.container("head-1"), *argv]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def leftovers(name: str) -> dict[str, list[str]]:
    """Return what is left of a cluster on this machine: containers, networks, processes, folders."""

    def lines(*argv: str) -> list[str]:
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.split()

    services, monitors = [], []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if name in words and any(w in ("hyperpod.adapters.local.service", "provider-serve") for w in words):
            services.append(entry.name)
        if any(word.startswith(f"hyperpod.{name}.") for word in words):
            monitors.append(entry.name)
    home = Path(os.environ.get("HYPERPOD_HOME") or "/var/lib/hyperpod")
    found = {
        "containers": lines("podman", "ps", "-aq", "--filter", f"label=hyperpod.cluster={name}"),
        "networks": [n for n in lines("podman", "network", "ls", "--format", "{{.Name}}") if n == f"hyperpod-{name}"],
        "volumes": [v for v in lines("podman", "volume", "ls", "--format", "{{.Name}}") if name in v],
        "services": services,
        "monitors": monitors,
        "folders": [str(path) for path in home.glob(f"clusters/{name}*")],
    }
    return {what: names for what, names in found.items() if names}


def run_hyperpod(*argv: str, env: Mapping[str, str] | None = None, timeout_s: float = 400) -> tuple[int, str]:
    """Run a command of the program; return its status, and its output with what it said to people."""
    done = subprocess.run(
        [*HYPERPOD, *argv],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    return done.returncode, done.stdout


def assert_no_overlap(trace: Iterable[Line]) -> None:
    """Check that an attempt wrote only after the one before it had written for the last time."""
    spans: dict[int, tuple[float, float]] = {}
    for line in trace:
        first, last = spans.get(line.attempt, (line.time, line.time))
        spans[line.attempt] = (min(first, line.time), max(last, line.time))
    ordered = sorted(spans.items())
    assert len(ordered) > 1, "there is only one attempt"
    for (before, (_, ended)), (after, (began, _)) in itertools.pairwise(ordered):
        assert ended < began, f"attempt {before} wrote {ended - began:.2f} s after attempt {after} had begun"


def wait_until(what: str, ready: Any, timeout_s: float = 60, every_s: float = 0.1) -> Any:
    """Wait until ``ready()`` is true, where no cluster is there yet to describe."""
    deadline = time.monotonic() + timeout_s
    while not (value := ready()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(every_s)
    return value
