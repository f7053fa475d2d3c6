"""Drives a local cluster through the product's own command line, for the demo, the benchmarks and the tests.

Nothing here knows the inside of hyperpod: what a user cannot do is not done. The one exception is ``on_node``, which
stands for a user's shell.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HYPERPOD = [sys.executable, "-m", "hyperpod.cli.app"]
USER = "ubuntu"


class Failed(RuntimeError):
    """A command of the lab ended badly; the message has its output."""


class Cluster:
    """A local cluster by name. ``settings`` are environment variables for every command (HYPERPOD_HOME, …)."""

    def __init__(self, name: str, settings: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._env = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true", **(settings or {})}
        self._containers: dict[str, str] = {}

    def hyperpod(self, *args: str, timeout_s: float = 300.0, check: bool = True, show: bool = False) -> str:
        """Run one hyperpod command and return its stdout."""
        done = subprocess.run(
            [*HYPERPOD, *args],
            cwd=ROOT,
            env=self._env,
            timeout=timeout_s,
            text=True,
            stdout=None if show else subprocess.PIPE,
            stderr=None if show else subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode != 0:
            raise Failed(f"hyperpod {' '.join(args)}: status {done.returncode}\n{done.stdout or ''}{done.stderr or ''}")
        return done.stdout or ""

    def ask(self, *args: str, timeout_s: float = 60.0) -> Any:
        """Run one hyperpod command about this cluster and return its JSON."""
        return json.loads(self.hyperpod(*args, "--cluster", self.name, "--output", "json", timeout_s=timeout_s))

    def create(self, spec: Path, *, show: bool = False, timeout_s: float = 900.0) -> None:
        """Create the cluster from a specification whose name is replaced by this one's."""
        self.hyperpod("create-cluster", str(spec), "--yes", timeout_s=timeout_s, show=show)

    def delete(self) -> None:
        """Delete the cluster and all it holds."""
        self.hyperpod("delete-cluster", "--cluster", self.name, "--yes", check=False, timeout_s=120)

    def container(self, node: str) -> str:
        """Return the id of the container that is the node now."""
        filters = [f"label=hyperpod.cluster={self.name}", f"label=hyperpod.node={node}"]
        argv = ["podman", "ps", "--quiet", *(x for f in filters for x in ("--filter", f))]
        found = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.split()
        if not found:
            raise Failed(f"no running container for {node}")
        return found[0]

    def on_node(self, node: str, *argv: str, user: str = "root", check: bool = True, timeout_s: float = 60.0) -> str:
        """Run a command on a node as a user's shell would, and return its stdout."""
        command = ["podman", "exec", "--user", user, "--workdir", "/tmp" if user == "root" else f"/home/{user}"]
        if user != "root":
            command += ["--env", f"HOME=/home/{user}", "--env", f"USER={user}"]
        for _ in range(2):
            container = self._containers.get(node) or self.container(node)
            self._containers[node] = container
            done = subprocess.run([*command, container, *argv], capture_output=True, text=True, timeout=timeout_s)
            if done.returncode != 125:
                break
            # podman's own trouble, most often that the node is another machine by now.
            self._containers.pop(node, None)
        if check and done.returncode != 0:
            raise Failed(f"{node}: {' '.join(argv)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def head(self, *argv: str, user: str = "root", check: bool = True, timeout_s: float = 60.0) -> str:
        """Run a command on the head node."""
        return self.on_node("head-1", *argv, user=user, check=check, timeout_s=timeout_s)

    def head_json(self, *argv: str, user: str = "root") -> Any:
        """Run a hyperpod command on the head node and return its JSON."""
        return json.loads(self.head("hyperpod", *argv, "--output", "json", user=user))

    def upload(self, path: Path, target: str) -> None:
        """Copy a file to the shared file system of the cluster, owned by the user."""
        container = self.container("head-1")
        subprocess.run(["podman", "cp", str(path), f"{container}:{target}"], check=True, timeout=60)
        self.head("chown", f"{USER}:{USER}", target)

    def write(self, target: str, text: str, *, user: str = USER) -> None:
        """Write a file on the head node as the user."""
        container = self.container("head-1")
        argv = ["podman", "exec", "-i", "--user", user, container, "tee", target]
        subprocess.run(argv, input=text, text=True, check=True, timeout=60, stdout=subprocess.DEVNULL)

    def sbatch(self, *args: str, user: str = USER, env: Mapping[str, str] | None = None) -> int:
        """Submit a batch job from the user's home and return its id."""
        settings = [f"{k}={v}" for k, v in (env or {}).items()]
        out = self.head("env", *settings, "sbatch", "--parsable", *args, user=user)
        return int(out.strip().split(";")[0])

    def job_state(self, job: int | str) -> str:
        """Return Slurm's state of a job in one word, or an empty string when it is not known."""
        out = self.head("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T", check=False)
        return out.split()[0] if out.split() else ""

    def job_nodes(self, job: int | str) -> list[str]:
        """Return the nodes that a job runs on; the first is the batch host."""
        out = self.head("squeue", "-h", "-j", str(job), "-o", "%N", check=False).strip()
        return self.head("scontrol", "show", "hostnames", out).split() if out else []

    def show_job(self, job: int) -> dict[str, Any]:
        """Return what the controller remembers of a job."""
        shown: dict[str, Any] = self.head_json("job", "show", str(job))
        return shown

    def read(self, path: str) -> str:
        """Return a file's text on the head node, or an empty string when it is not there."""
        return self.head("cat", path, check=False)

    def node_states(self) -> dict[str, str]:
        """Return each worker's one visible state."""
        return {n["node"]: n["state"] for n in self.head_json("status")["nodes"]}

    def wait(self, what: str, ready: Callable[[], Any], timeout_s: float = 60.0, every_s: float = 0.2) -> Any:
        """Wait until ``ready`` returns something true, and return that; on time-out say what the world looks like."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                value = ready()
            except (Failed, json.JSONDecodeError, subprocess.TimeoutExpired) as error:
                value, last = None, str(error)
            else:
                last = ""
            if value:
                return value
            if time.monotonic() > deadline:
                raise Failed(f"not within {timeout_s:g} s: {what}. {last}\n{self.describe()}")
            time.sleep(every_s)

    def describe(self) -> str:
        """Return what a person would look at when something went wrong."""
        parts = []
        for argv in (["sinfo", "-a", "-N", "-l"], ["squeue", "-t", "all"], ["hyperpod", "events", "--limit", "60"]):
            try:
                parts.append(self.head(*argv, check=False, timeout_s=20))
            except (Failed, subprocess.TimeoutExpired) as error:
                parts.append(str(error))
        return "\n".join(parts)


def spec_named(template: Path, name: str, folder: Path, changes: Sequence[tuple[str, str]] = ()) -> Path:
    """Write a copy of a specification with another cluster name (and other replacements) and return its path."""
    text = template.read_text()
    lines = [f"ClusterName: {name}" if line.startswith("ClusterName:") else line for line in text.splitlines()]
    text = "\n".join(lines) + "\n"
    for old, new in changes:
        if old not in text:
            raise Failed(f"{template}: {old!r} is not in it")
        text = text.replace(old, new)
    target = folder / f"{name}.yaml"
    target.write_text(text)
    return target
