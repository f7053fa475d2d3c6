"""``hyperpod-agent``: the health daemon of a node. Wires its parts together.

``run`` is the daemon; ``goodbye`` is for an ExecStop that knows earlier than we do that the machine shuts down;
``first-check`` is what slurmd waits for where a deep check comes before the first job.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from hyperpod import __version__
from hyperpod.adapters.host import LocalHost
from hyperpod.adapters.imds import Imds, endpoint_of
from hyperpod.adapters.munge import Munge
from hyperpod.adapters.nvml import Nvml
from hyperpod.adapters.process import Processes
from hyperpod.adapters.wire import trusted_uids
from hyperpod.agent.first_check import ask_agent, wait_until_closed
from hyperpod.agent.link import Link
from hyperpod.agent.loop import Loop
from hyperpod.agent.mind import Mind
from hyperpod.agent.notify import Notifier
from hyperpod.agent.outbox import Outbox
from hyperpod.agent.plugins import load_packaged
from hyperpod.agent.settings import DEFAULT_PATH, AgentSettings, parse_settings
from hyperpod.core.finding import Finding, Severity, Whose
from hyperpod.core.policy import Mode
from hyperpod.errors import ConfigError, HyperpodError
from hyperpod.health import registry
from hyperpod.health.check import Check, Settings
from hyperpod.health.checks import kernel_log
from hyperpod.health.checks.kernel_log import KernelLog
from hyperpod.health.pci_parts import is_needed
from hyperpod.health.runner import Runner
from hyperpod.health.users import Found, find_user_checks
from hyperpod.ports.host import Host
from hyperpod.ports.metadata import Metadata

log = logging.getLogger("hyperpod.agent")


def load(path: str) -> AgentSettings:
    """Read the configuration file.

    Raises:
        ConfigError: if it is missing or wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="lifecycle scripts write it at birth") from error
    return parse_settings(text, path)


def build(settings: AgentSettings, host: LocalHost, munge: Munge) -> tuple[Loop, Mind]:
    """Make an agent of its parts."""
    boot_id = read_boot_id(settings, host)
    start = host.monotonic()
    health, checks, notes = build_checks(settings, host, boot_id)
    runner = Runner(
        checks,
        observe_only=registry.observe_only(health),
        overrides=registry.overrides(health),
        boot_id=boot_id,
        instance_id=settings.instance_id,
        start=start,
    )
    own = registry.policy_of(kernel_log.NAME, health)
    kernel = None if own.mode is Mode.OFF else build_kernel_log(settings, host, boot_id, own)
    try:
        os.makedirs(settings.state_dir, mode=0o700, exist_ok=True)
    except OSError as error:
        log.warning("the state cannot be kept path=%s error=%s", settings.state_dir, error.strerror)
    outbox = Outbox(f"{settings.state_dir}/outbox.jsonl", f"{settings.node}-{time.time_ns():x}")
    trusted = trusted_uids()
    loop = Loop(
        settings,
        host,
        munge,
        lambda on_event: Link(settings.head_address, settings.controller_port, munge, trusted, on_event),
        Notifier(os.environ),
        user_checks=UserChecks(host, health).find,
        gpus=Nvml(host.monotonic),
        metadata=metadata_of(settings),
    )
    gateway = default_gateway(host)
    mind = Mind(settings, runner, kernel, outbox, loop, boot_id=boot_id, gateway=gateway, notes=notes, start=start)
    restore(mind, f"{settings.state_dir}/state.json")
    return loop, mind


class UserChecks:
    """Looks for the checks that users bring: the folder each time, packages once in an agent's life."""

    def __init__(self, host: Host, policy: Mapping[str, Settings]) -> None:
        self._host = host
        self._policy = policy
        self._packaged: Found | None = None

    def find(self) -> Found:
        """Return what there is now."""
        if self._packaged is None:
            self._packaged = load_packaged(self._policy)
        found = find_user_checks(self._host, self._policy)
        return Found(
            (*found.checks, *self._packaged.checks),
            found.observe_only | self._packaged.observe_only,
            (*found.findings, *self._packaged.findings),
        )


def metadata_of(settings: AgentSettings) -> Metadata | None:
    """Return the way to the cloud's metadata service; None where neither configuration nor environment names one."""
    endpoint = endpoint_of(settings.metadata_endpoint, os.environ)
    return Imds(endpoint) if endpoint else None


def read_boot_id(settings: AgentSettings, host: LocalHost) -> str:
    """Return this boot's id: the configured file's, or the machine's own."""
    if settings.boot_id_path:
        try:
            found = host.read_text(settings.boot_id_path, 200).strip()
        except OSError as error:
            log.warning("the boot id cannot be read path=%s error=%s", settings.boot_id_path, error.strerror)
        else:
            if found:
                return found
    return host.boot_id()


def build_checks(
    settings: AgentSettings, host: LocalHost, boot_id: str
) -> tuple[Mapping[str, Settings], Sequence[Check], Sequence[Finding]]:
    """Make the checks. Settings that cannot be used are reported as a finding, and the defaults hold.

    A node without an agent would be lost over a misspelt limit.
    """
    try:
        health = registry.parse_settings(settings.health)
        own = registry.policy_of(kernel_log.NAME, health)
        build_kernel_log(settings, host, boot_id, own)
        return health, registry.build_checks(settings.role, health), ()
    except ConfigError as error:
        log.error("the checks run with their defaults: %s", error)
        message = f"the settings of the checks are not used: {error}"
        note = Finding(
            "agent",
            "SettingsRefused",
            Severity.WARN,
            message,
            since=host.now(),
            boot_id=boot_id,
            instance_id=settings.instance_id,
            whose=Whose.SITE,
        )
        return {}, registry.build_checks(settings.role, {}), (note,)


def build_kernel_log(settings: AgentSettings, host: LocalHost, boot_id: str, own: Settings) -> KernelLog:
    """Make the kernel log's part.

    Raises:
        ConfigError: if a setting does not fit.
    """
    zero = host.now() - timedelta(seconds=host.monotonic())
    try:
        return KernelLog(
            boot_id=boot_id,
            instance_id=settings.instance_id,
            booted_at=host.booted_at(),
            wall_clock_zero=zero,
            root_devices=root_devices(host),
            overrides={code: severity.name for code, severity in own.overrides.items()},
            observe_only=own.mode is Mode.OBSERVE,
            # What the machine has says nothing of a node that shares it.
            is_needed=None if host.booted_at() > 0 else partial(is_needed, host, settings.sysfs_path),
            **registry.kernel_limits(own),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"health.kernel_log: {error!r}") from error


def root_devices(host: LocalHost) -> tuple[str, ...]:
    """Return the device below the root file system, empty for one without (an overlay)."""
    roots = [mount.source for mount in host.mounts() if mount.path == "/"]
    return tuple(os.path.realpath(s).removeprefix("/dev/") for s in roots[-1:] if s.startswith("/dev/"))


def default_gateway(host: LocalHost) -> str:
    """Return the address of the default gateway, or an empty text."""
    try:
        table = host.read_text("/proc/net/route")
    except OSError:
        return ""
    match = re.search(r"^\S+\t00000000\t([0-9A-F]{8})\t", table, re.MULTILINE)
    return ".".join(str(byte) for byte in bytes.fromhex(match.group(1))[::-1]) if match else ""


def restore(mind: Mind, path: str) -> None:
    """Take up an earlier agent's state; a damaged one is left alone and said."""
    try:
        with open(path, encoding="utf-8") as file:
            mind.restore(json.load(file))
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        log.warning("the saved state is not used path=%s error=%r", path, error)


def goodbye(settings: AgentSettings) -> None:
    """Tell the running agent that the machine shuts down, if it does."""
    done = Processes().run(["systemctl", "is-system-running"], timeout_s=2.0, check=False)
    if done.stdout.strip() != "stopping":
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.0)
            sock.connect(settings.socket_path)
            sock.sendall(b'{"v":1,"type":"goodbye"}\n')
            sock.recv(100)
    except OSError as error:
        raise HyperpodError(
            f"the agent at {settings.socket_path} does not answer: {error.strerror or error}"
        ) from error


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    out = argparse.ArgumentParser(
        prog="hyperpod-agent",
        description="Health daemon of a node: checks, heartbeats, task exits.",
        epilog="example: hyperpod-agent run --config /etc/hyperpod/agent.json",
    )
    out.add_argument("--version", action="version", version=__version__)
    commands = out.add_subparsers(dest="command", required=True)
    verbs = (
        ("run", "run the daemon"),
        ("goodbye", "say that the machine shuts down (for ExecStop)"),
        ("first-check", "wait until no job can come before the deep check (for slurmd's ExecStartPre)"),
    )
    for name, text in verbs:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--config", default=DEFAULT_PATH, help=f"configuration file (default {DEFAULT_PATH})")
        command.add_argument("--debug", action="store_true", help="log more")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.debug else logging.INFO,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        settings = load(arguments.config)
        if arguments.command == "goodbye":
            goodbye(settings)
        elif arguments.command == "first-check":
            why = wait_until_closed(lambda: ask_agent(settings.socket_path), time.monotonic, time.sleep)
            sys.stderr.write(f"slurmd starts: {why}\n")
        else:
            host = LocalHost(Processes())
            loop, mind = build(settings, host, Munge())
            for key in settings.ignored:
                log.warning("%s: a key that is not known: %s", arguments.config, key)
            log.info("started node=%s role=%s instance=%s", settings.node, settings.role.value, settings.instance_id)
            loop.run(mind)
    except HyperpodError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
