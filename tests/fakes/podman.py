"""A podman that keeps containers and networks in memory, behind the port that runs processes.

Machines are born as soon as they start (``births`` says otherwise, by node), and Slurm on the head node calls every
worker that runs idle. ``break_next`` makes the next call of a subcommand fail, before or after its effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hyperpod.errors import CommandError
from hyperpod.ports.process import Completed


@dataclass
class FakeContainer:
    """A container as far as anybody asks."""

    id: str
    name: str
    labels: dict[str, str]
    arguments: list[str]
    state: str = "running"
    pid: int = 0


@dataclass
class FakePodman:
    """Implements ``ProcessRunner``."""

    containers: dict[str, FakeContainer] = field(default_factory=dict)
    networks: dict[str, str] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)
    births: dict[str, str] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    routes: str = "default via 192.0.2.1 dev eth0\n10.88.0.0/16 dev podman0\n"
    exec_replies: dict[str, Completed | Callable[[Sequence[str], str | None], Completed]] = field(default_factory=dict)
    _breaks: list[tuple[str, str, BaseException]] = field(default_factory=list)
    _count: int = 0

    def break_next(self, subcommand: str, stderr: str, *, when: str = "before", code: int = 125) -> None:
        """Make the next ``podman subcommand`` fail with this message, before or after it took effect."""
        self._breaks.append((subcommand, when, CommandError(["podman", subcommand], code, stderr)))

    def kill_next(self, subcommand: str, *, when: str) -> None:
        """Stand in for kill -9 of the caller at the next ``podman subcommand``."""
        self._breaks.append((subcommand, when, KeyboardInterrupt()))

    def node(self, name: str) -> FakeContainer:
        """Return the container that serves a node."""
        return next(box for box in self.containers.values() if box.labels["hyperpod.node"] == name)

    def subcommands(self) -> list[str]:
        """Return the podman subcommands that were called, in order."""
        return [call[3] for call in self.calls if call[0] == "podman"]

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        check: bool = True,
    ) -> Completed:
        self.calls.append(list(argv))
        if argv[0] == "ssh-keygen":
            path = Path(argv[-1])
            path.write_text(f"private {path.name}\n")
            Path(f"{path}.pub").write_text(f"ssh-ed25519 AAAA{path.name} comment\n")
            return Completed("", "", 0)
        if argv[0] == "ip":
            return Completed(self.routes, "", 0)
        if argv[0] != "podman":
            return Completed("", "", 0)
        words = [word for word in argv[1:] if word not in ("--runtime", "runc")]
        self._maybe_break(words, "before")
        done: Completed = getattr(self, f"_{words[0]}")(words[1:], input)
        self._maybe_break(words, "after")
        if check and done.code != 0:
            raise CommandError(argv, done.code, done.stderr)
        return done

    def _maybe_break(self, words: Sequence[str], when: str) -> None:
        for entry in self._breaks:
            subcommand = entry[0].split()
            if list(words[: len(subcommand)]) == subcommand and entry[1] == when:
                self._breaks.remove(entry)
                raise entry[2]

    def _image(self, _words: list[str], _input: str | None) -> Completed:
        return Completed("", "", 0)

    def _ps(self, words: list[str], _input: str | None) -> Completed:
        wanted = [word.removeprefix("label=") for word in words if word.startswith("label=")]
        rows = [
            {
                "Id": box.id, "Names": [box.name], "State": box.state, "Pid": box.pid, "ExitCode": 0,
                "Created": 1_700_000_000, "Labels": box.labels,
            }
            for box in self.containers.values()
            if all(box.labels.get(key) == value for key, _, value in (text.partition("=") for text in wanted))
        ]  # fmt: skip
        return Completed(json.dumps(rows), "", 0)

    def _run(self, words: list[str], _input: str | None) -> Completed:
        name = words[words.index("--name") + 1]
        if any(box.name == name for box in self.containers.values()):
            return Completed("", f'Error: the container name "{name}" is already in use', 125)
        pairs = [words[i + 1] for i, word in enumerate(words) if word == "--label"]
        labels = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
        self._count += 1
        box = FakeContainer(f"c{self._count}", name, labels, words, pid=1_000_000_000 + self._count)
        self.containers[box.id] = box
        self._bear(box)
        return Completed(box.id, "", 0)

    def _bear(self, box: FakeContainer) -> None:
        volume = next(word for word in box.arguments if word.endswith(":/var/log/provision"))
        status = self.births.get(box.labels["hyperpod.node"], "ok")
        code = 9 if status == "failed" else 0
        result = {"status": status, "script": "on_create.sh", "exit_code": code, "attempt": 3, "tail": ["boom"]}
        (Path(volume.partition(":")[0]) / "result.json").write_text(json.dumps(result))

    def _start(self, words: list[str], _input: str | None) -> Completed:
        box = self.containers[words[-1]]
        box.state = "running"
        self._bear(box)
        return Completed("", "", 0)

    def _rm(self, words: list[str], _input: str | None) -> Completed:
        if self.containers.pop(words[-1], None) is None:
            return Completed("", f"Error: no container with ID {words[-1]} found: no such container", 1)
        return Completed("", "", 0)

    def _kill(self, words: list[str], _input: str | None) -> Completed:
        self.containers[words[-1]].state = "exited"
        return Completed("", "", 0)

    _stop = _kill

    def _pause(self, words: list[str], _input: str | None) -> Completed:
        self.containers[words[-1]].state = "paused"
        return Completed("", "", 0)

    def _unpause(self, words: list[str], _input: str | None) -> Completed:
        # Whoever was killed while frozen dies as soon as it is thawed.
        self.containers[words[-1]].state = "exited"
        return Completed("", "", 0)

    def _network(self, words: list[str], _input: str | None) -> Completed:
        name = words[-1]
        if words[0] == "ls":
            return Completed("\n".join(self.networks), "", 0)
        if words[0] == "inspect":
            found = [{"name": known, "subnets": [{"subnet": self.networks[known]}]} for known in words[1:]]
            return Completed(json.dumps(found), "", 0)
        if words[0] == "create":
            self.networks[name] = words[words.index("--subnet") + 1]
            return Completed(name, "", 0)
        if self.networks.pop(name, None) is None:
            return Completed("", f"Error: unable to find network with name or ID {name}: network not found", 1)
        return Completed("", "", 0)

    def _exec(self, words: list[str], input: str | None) -> Completed:
        words = [word for word in words if word != "-i"]
        argv = words[1:]
        reply = self.exec_replies.get(argv[0])
        if reply is not None:
            return reply(argv, input) if callable(reply) else reply
        workers = [box for box in self.containers.values() if box.labels["hyperpod.role"] == "worker"]
        if argv[0] == "sinfo" and "--list-reasons" in argv:
            lines = [f"{node} \x1f{reason}" for node, reason in self.reasons.items()]
            return Completed("\n".join(lines), "", 0)
        if argv[0] == "sinfo":
            lines = [f"{box.labels['hyperpod.node']} idle" for box in workers if box.state == "running"]
            return Completed("\n".join(lines), "", 0)
        if argv[0] == "squeue":
            return Completed("\n".join(sorted(self.busy)), "", 0)
        if argv[:3] == ["scontrol", "show", "hostnames"]:
            return Completed("\n".join(argv[3].split(",")), "", 0)
        if argv[:2] == ["scontrol", "update"]:
            nodes = argv[2].removeprefix("nodename=").split(",")
            for node in nodes:
                if argv[3] == "state=resume":
                    self.reasons.pop(node, None)
                else:
                    self.reasons[node] = argv[4].removeprefix("reason=")
        return Completed("", "", 0)
