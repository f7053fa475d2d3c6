"""Where the program runs, and how it reaches clusters from there: on a node, or on the machine that carries them.

Owns the choice between the two and all wiring of the command line; nothing is built before a command asks for it, so
that a node without the provider's libraries, and ``--help``, stay quick. Tests give a place with fakes.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperpod.cli.ask import Controller, parse_reply, send_by_agent_config
from hyperpod.errors import AccessDenied, CommandError, ConnectionLost, UsageError

if TYPE_CHECKING:
    from hyperpod.adapters.aws.client import Aws
    from hyperpod.adapters.local.doctor import Diagnosis
    from hyperpod.adapters.local.faults import LocalFaults
    from hyperpod.adapters.local.provider import LocalProvider
    from hyperpod.agent.settings import AgentSettings
    from hyperpod.health.check import Facts, Ports
    from hyperpod.ports.host import Host
    from hyperpod.ports.login import SshSession, SshTarget
    from hyperpod.ports.process import ProcessRunner
    from hyperpod.ports.provider import Instance

DEFAULT_HOME = "/var/lib/hyperpod"
AGENT_CONFIG = Path("/etc/hyperpod/agent.json")
PROVIDERS = ("local", "ec2", "sagemaker")
_FIX_TIMEOUT_S = 900.0
_OVERHEAD_S = 10.0
"""Starting our program on a busy head node takes a moment of its own."""


def build_provider(home: Path) -> LocalProvider:
    """Return the real provider of local clusters."""
    from hyperpod.adapters.local.service import local_provider

    return local_provider(home)


def build_aws(region: str, profile: str) -> Aws:
    """Return the way to an account; nothing is asked of it yet."""
    from hyperpod.adapters.aws.client import Aws

    return Aws(region, profile)


def serve_cluster(provider: LocalProvider, cluster: str) -> None:
    """Start the cluster's provider service if it has gone; its controller needs it to repair nodes."""
    from hyperpod.adapters.local.service import ensure_service

    ensure_service(provider, cluster)


def build_faults(provider: LocalProvider) -> LocalFaults:
    """Return what breaks nodes of local clusters on purpose."""
    from hyperpod.adapters.local.faults import LocalFaults
    from hyperpod.adapters.process import Processes

    return LocalFaults(provider, Processes())


def build_node_host() -> Host:
    """Return this node as its agent sees it."""
    from hyperpod.adapters.host import LocalHost
    from hyperpod.adapters.process import Processes

    return LocalHost(Processes())


def build_node_ports(host: Host, facts: Facts) -> Ports:
    """Return what the agent gives to a check."""
    from hyperpod.adapters.devices import LocalDevices
    from hyperpod.adapters.munge import Munge
    from hyperpod.adapters.nvml import Nvml
    from hyperpod.adapters.process import Processes
    from hyperpod.adapters.stream import ProgramStreams
    from hyperpod.health.check import Ports

    streams = ProgramStreams(Processes())
    return Ports(host, Munge(), facts, Nvml(host.monotonic), streams=streams, devices=LocalDevices())


def diagnose_machine(home: Path) -> list[Diagnosis]:
    """Look at what local clusters need of this machine."""
    from hyperpod.adapters.local.doctor import diagnose, this_machine
    from hyperpod.adapters.process import Processes

    return diagnose(this_machine(), home, Processes())


def run_fix(argv: Sequence[str], on_line: Callable[[str], None]) -> None:
    """Run a command that installs something, showing its output as it comes."""
    from hyperpod.adapters.process import Processes

    Processes().stream(argv, timeout_s=_FIX_TIMEOUT_S, on_line=on_line, env={"DEBIAN_FRONTEND": "noninteractive"})


def run_on_terminal(argv: Sequence[str]) -> int:
    """Run a program on the caller's terminal and return its exit status."""
    from hyperpod.adapters.process import Processes

    return Processes().exec(argv)


@contextlib.contextmanager
def hold_running(argvs: Sequence[Sequence[str]]) -> Iterator[None]:
    """Run programs beside what is done meanwhile, and end them with it."""
    from hyperpod.adapters.process import Processes

    with Processes().hold(argvs):
        yield


def build_processes() -> ProcessRunner:
    """Return what runs programs."""
    from hyperpod.adapters.process import Processes

    return Processes()


def open_ssh(target: SshTarget, timeout_s: float | None) -> SshSession:
    """Log in to a node; the library for it is loaded only now."""
    from hyperpod.adapters.ssh import CONNECT_S, open_session
    from hyperpod.cli.render import say

    session: SshSession = open_session(target, timeout_s=timeout_s or CONNECT_S, tell=say)
    return session


@dataclass
class Place:
    """The surroundings of one run of the program.

    Attributes:
        env: Environment variables.
        agent_config: Its existence makes this machine a node.
        is_root: Whether the caller may handle local machines.
        make_provider, make_faults, make_aws, diagnose, fix, serve, terminal, hold, processes, open_ssh,
            node_controller, node_host, node_ports: The ways out; fakes in tests.
        sleep, clock: Time, for what refreshes itself.
        host: Name of this machine, for messages.
    """

    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    agent_config: Path = AGENT_CONFIG
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    make_provider: Callable[[Path], LocalProvider] = build_provider
    make_faults: Callable[[LocalProvider], LocalFaults] = build_faults
    diagnose: Callable[[Path], list[Diagnosis]] = diagnose_machine
    fix: Callable[[Sequence[str], Callable[[str], None]], None] = run_fix
    serve: Callable[[LocalProvider, str], None] = serve_cluster
    terminal: Callable[[Sequence[str]], int] = run_on_terminal
    hold: Callable[[Sequence[Sequence[str]]], AbstractContextManager[None]] = hold_running
    processes: Callable[[], ProcessRunner] = build_processes
    open_ssh: Callable[[SshTarget, float | None], SshSession] = open_ssh
    make_aws: Callable[[str, str], Aws] = build_aws
    node_controller: Callable[[Path], Controller] = field(default=lambda path: Controller(send_by_agent_config(path)))
    node_host: Callable[[], Host] = build_node_host
    node_ports: Callable[[Host, Facts], Ports] = build_node_ports
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time
    is_interactive: Callable[[], bool] = field(default=lambda: sys.stdin.isatty() and sys.stderr.isatty())
    host: str = field(default_factory=platform.node)
    _provider: LocalProvider | None = None

    @property
    def home(self) -> Path:
        """Folder with everything about this machine's clusters."""
        # Absolute, because the provider service and the machines' mounts outlive this process and its working folder.
        home = os.path.abspath(self.env.get("HYPERPOD_HOME") or DEFAULT_HOME)
        if set(home) & set(":,\n"):
            raise UsageError(
                f"HYPERPOD_HOME={home}: ':', ',' and line breaks have a meaning in a mount",
                hint="name a folder without them, such as /var/lib/hyperpod",
            )
        if os.path.lexists(home) and not os.path.isdir(home):
            raise UsageError(f"HYPERPOD_HOME={home}: is not a folder", hint="name a folder, or one that can be made")
        return Path(home)

    @property
    def where(self) -> str:
        """The machine that was asked, for people."""
        return f"{self.host} ({self.home})"

    @property
    def is_node(self) -> bool:
        """True on a node of a cluster."""
        return self.agent_config.exists()

    def provider_kind(self, asked: str | None) -> str:
        """Return where the cluster is that a command is about: ``local``, ``ec2`` or ``sagemaker``.

        Raises:
            UsageError: There is no such provider.
        """
        if self.is_node and not asked:
            return "local"
        kind = (asked or self.env.get("HYPERPOD_PROVIDER") or "local").strip().lower()
        if kind not in PROVIDERS:
            raise UsageError(f"there is no provider {kind!r}", hint=f"providers are {', '.join(PROVIDERS)}")
        return kind

    def aws(self, region: str | None, profile: str | None) -> Aws:
        """Return the way to the account that the flags and the environment mean."""
        return self.make_aws(region or "", profile or "")

    def node_settings(self) -> AgentSettings:
        """Return what this node's agent is told.

        Raises:
            ConfigError: The file cannot be read or is wrong.
        """
        from hyperpod.agent.settings import parse_settings

        return parse_settings(self.agent_config.read_text(), str(self.agent_config))

    def refuse_on_node(self, what: str) -> None:
        """Refuse a command that needs the machine below the nodes.

        Raises:
            UsageError: This is a node.
        """
        if self.is_node:
            raise UsageError(
                f"{what} does not work on a node of a cluster",
                hint="run it on the machine where the cluster was created",
            )

    def provider(self) -> LocalProvider:
        """Return the provider of this machine's clusters.

        Raises:
            AccessDenied: The caller is not root.
        """
        if not self.is_root:
            raise AccessDenied("clusters on this machine are handled by root only", hint="put sudo before the command")
        if self._provider is None:
            self._provider = self.make_provider(self.home)
        return self._provider

    def cluster_names(self) -> list[str]:
        """Return the clusters of this machine, half-made ones too."""
        return self.provider().clusters()

    def choose(self, asked: str | None) -> str:
        """Return the cluster that is meant; see ``directory.choose_cluster``."""
        from hyperpod.provisioning.directory import choose_cluster

        return choose_cluster(self.cluster_names(), asked or self.env.get("HYPERPOD_CLUSTER"), self.where)

    def controller(self, asked: str | None) -> Controller:
        """Return the way to the controller of a cluster.

        Raises:
            NotFound, UsageError: As ``choose``; on a node, when another cluster than the node's own is asked for.
        """
        if self.is_node:
            self._check_own_cluster(asked)
            return self.node_controller(self.agent_config)
        cluster = self.choose(asked)
        return Controller(lambda message, timeout_s: self._send_to_head(cluster, message, timeout_s))

    def _check_own_cluster(self, asked: str | None) -> None:
        if not asked:
            return
        from hyperpod.provisioning.directory import choose_cluster

        choose_cluster([self.node_settings().cluster], asked, f"node {self.host}")

    def head(self, cluster: str) -> Instance:
        """Return the head node's machine; see ``directory.find_head``."""
        from hyperpod.provisioning.directory import find_head

        return find_head(self.provider(), cluster)

    def _send_to_head(self, cluster: str, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        head = self.head(cluster)
        if self.provider().cluster(cluster).spec.exists():
            self.serve(self.provider(), cluster)
        argv = ["hyperpod", "ask", json.dumps(message), f"{timeout_s:g}"]
        try:
            done = self.provider().connect(head.id).run(argv, timeout_s=timeout_s + _OVERHEAD_S, check=False)
        except CommandError as error:
            raise ConnectionLost(
                f"the head node {head.node} of cluster {cluster} does not answer: {error.message}",
                hint=f"hyperpod reboot-node {head.node} --cluster {cluster} --force",
            ) from error
        reply = parse_reply(done.stdout if done.code == 0 else done.stderr or done.stdout, head.node)
        if reply.get("error") == "ConfigError":
            raise ConnectionLost(
                f"the head node {head.node} of cluster {cluster} is not set up yet",
                hint=f"hyperpod describe-cluster {cluster} shows how far it is",
            )
        if reply.get("error") == "ConnectionLost":
            raise ConnectionLost(
                f"the head node {head.node} of cluster {cluster} is up, but its controller does not answer",
                hint=f"hyperpod ssh {head.node} --cluster {cluster} -- systemctl status hyperpod-controller",
            )
        return reply
