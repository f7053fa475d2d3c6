"""What starts containers is there and answers. Nothing is looked at unless it is named in the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Finding
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting

NAME = "container_runtime"
_PING = b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n"


@dataclass
class ContainerRuntimeCheck:
    """Connects to sockets, and looks whether programs and plugins are there."""

    about: ClassVar[About] = About(
        title="The container runtime that jobs use is there and answers",
        reads="The unix sockets and files that the settings name (none by default).",
        means="docker is asked for its ping; of containerd and others a connection is enough. Just after a boot a "
        "service that still starts only keeps the first job away. A file of no bytes is a broken installation.",
        does="FATAL, drain after two of three looks: every job in a container would fail at its start.",
        codes={
            "RuntimeSilent": "A socket does not exist, refuses, or does not answer within answer_s.",
            "RuntimeMissing": "A program or plugin of the runtime is missing, empty or cannot be executed.",
        },
        source="gpud's and soperator's checks of docker, containerd and enroot, with their grace after a start.",
    )
    sockets: tuple[str, ...] = setting(
        (), "Sockets that must answer, e.g. /run/containerd/containerd.sock, /var/run/docker.sock."
    )
    files: tuple[str, ...] = setting(
        (), "Programs (e.g. /usr/bin/enroot) and plugins (e.g. spank_pyxis.so, whole path) that must be there."
    )
    answer_s: float = setting(2.0, "Seconds that a socket may take to answer.")
    grace_s: float = setting(300.0, "Seconds after the boot in which a silent socket only keeps the first job away.")
    interval_s: float = setting(60.0, "Seconds between two looks.")
    deadline_s: float = 15.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = True
    roles: frozenset[Role] = WORKERS

    def run(self, ports: Ports) -> Result:
        """Ask each socket and look at each file."""
        findings: list[Finding] = []
        silent = ""
        for path in self.sockets:
            try:
                is_docker = path.endswith("/docker.sock")
                answer = ports.host.ask_socket(path, _PING if is_docker else b"", self.answer_s)
                why = "" if not is_docker or answer.startswith(b"HTTP/1.") else "it answers something else"
            except OSError as error:
                why = error.strerror or str(error)
            if why:
                silent = silent or f"{path} does not answer: {why}"
                findings.append(fatal(NAME, "RuntimeSilent", f"{path} does not answer: {why}", device=path))
        if silent and ports.facts.uptime_s < self.grace_s:
            return Result(not_ready=silent)
        for path in self.files:
            try:
                state = ports.host.file_state(path)
                why = "it is empty" if not state.size_bytes else ""
                if not why and not path.endswith(".so") and not state.is_executable:
                    why = "it cannot be executed"
            except OSError as error:
                why = error.strerror or str(error)
            if why:
                findings.append(fatal(NAME, "RuntimeMissing", f"{path}: {why}", device=path))
        return Result(tuple(findings))
