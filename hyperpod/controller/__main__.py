"""The controller daemon: ``hyperpod-controller run --config FILE``. Wires the world and starts the loop."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from hyperpod import __version__
from hyperpod.adapters.checkpoints import CheckpointScanner
from hyperpod.adapters.clock import SystemClock
from hyperpod.adapters.munge import Munge
from hyperpod.adapters.probe import is_working
from hyperpod.adapters.process import Processes
from hyperpod.adapters.sdnotify import notify
from hyperpod.adapters.slurm.client import SlurmCli
from hyperpod.adapters.slurm.conf_file import save_node_address, save_partition_nodes
from hyperpod.adapters.store import open_store
from hyperpod.adapters.wire import trusted_uids
from hyperpod.controller.commands import Commands
from hyperpod.controller.deep import DeepChecks, Options, parse_options
from hyperpod.controller.loop import run
from hyperpod.controller.memory import Memory
from hyperpod.controller.metrics import serve_metrics
from hyperpod.controller.queries import Queries
from hyperpod.controller.repeats import Repeats
from hyperpod.controller.server import Server
from hyperpod.controller.world import Machines, NodeSlot, World
from hyperpod.core.node import Role
from hyperpod.core.policy import policies_from
from hyperpod.errors import ConfigError, ConnectionLost, HyperpodError

log = logging.getLogger("hyperpod.controller")

KNOWN_KEYS = {
    "cluster": str,
    "port": int,
    "metrics_port": int,
    "state_dir": str,
    "slurm_state_dir": str,
    "provider": dict,
    "policies": dict,
    "nodes": list,
}


def load_config(path: Path) -> dict[str, Any]:
    """Read the daemon's JSON configuration.

    Raises:
        ConfigError: if it is missing, not JSON, or lacks a key.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold one JSON object")
    for key, kind in KNOWN_KEYS.items():
        if not isinstance(data.get(key), kind):
            raise ConfigError(f"{path}: at {key}: a {kind.__name__} is needed, got {data.get(key)!r}")
    return dict(data)


class Slots:
    """The configured nodes; read again when the file changes, as it does when the cluster is scaled."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = 0
        self._slots: tuple[NodeSlot, ...] = ()
        self._repeats = Repeats()

    def __call__(self) -> Sequence[NodeSlot]:
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._stamp:
                self._slots = slots_of(load_config(self._path))
                self._stamp = stamp
        except (OSError, ConfigError) as error:
            # The last good one is kept: a file that is being written must not look like an empty cluster.
            self._repeats.warning(log, "slots", datetime.now(UTC), "configuration not read error=%s", error)
        return self._slots


def slots_of(config: dict[str, Any]) -> tuple[NodeSlot, ...]:
    """Return the nodes that a configuration names."""
    try:
        partitions = {g["name"]: g.get("partition") or "" for g in config["policies"].get("groups", ())}
        return tuple(
            NodeSlot(n["node"], n["group"], Role(n["role"]), n["address"], partitions.get(n["group"], ""))
            for n in config["nodes"]
        )
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"the nodes of the configuration are not understood: {error!r}") from error


class Threads:
    """Work beside the tick, one piece at a time for each key."""

    def __init__(self, workers: int = 32) -> None:
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="work")
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def submit(self, key: str, work: Callable[[], None]) -> bool:
        """Run ``work`` in a thread; False when one with this key runs already."""
        with self._lock:
            if key in self._running:
                return False
            self._running.add(key)

        def wrapped() -> None:
            try:
                work()
            except Exception:
                log.exception("work failed key=%s", key)
            finally:
                with self._lock:
                    self._running.discard(key)

        self._pool.submit(wrapped)
        return True


class LateAgents:
    """Stands for the server until it exists: the world and the server need each other."""

    def __init__(self) -> None:
        self.server: Server | None = None

    def send(self, node: str, message: Any) -> bool:
        """Send to an agent; False while there is no server."""
        return self.server is not None and self.server.send(node, message)

    def ask(self, node: str, message: Any, timeout_s: float) -> Mapping[str, Any]:
        """Order an agent to do something and return its answer; see ``Server.ask``."""
        if self.server is None:
            raise ConnectionLost("the controller does not listen yet")
        return self.server.ask(node, message, timeout_s)


def machines_of(provider: dict[str, Any]) -> Machines:
    """Return the provider that this cluster was made with.

    Raises:
        ConfigError: if its kind is not known.
    """
    if provider.get("kind") == "local":
        from hyperpod.adapters.local.client import ProviderClient

        return ProviderClient(str(provider["socket"]))
    if provider.get("kind") == "hyperpod":
        from hyperpod.adapters.aws.on_node import OnNodeMachines, api_by_instance_role

        is_asked = bool(provider.get("api") and provider.get("cluster"))
        ask = api_by_instance_role(str(provider["cluster"]), str(provider.get("region") or "")) if is_asked else None
        return OnNodeMachines(Processes(), ask_api=ask)
    if provider.get("kind") == "ec2":
        from hyperpod.adapters.aws.ec2 import on_head_node

        return on_head_node(provider)
    raise ConfigError(
        f"provider kind {provider.get('kind')!r} is not supported by this controller; allowed: local, ec2, hyperpod"
    )


def build_world(config: dict[str, Any], path: Path) -> tuple[World, LateAgents]:
    """Wire everything up; starts nothing."""
    clock = SystemClock()
    process = Processes()
    try:
        repair_policy, resume_policy = policies_from(config["policies"])
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"{path}: at policies: not understood: {error!r}") from error
    state_dir = Path(config["state_dir"])
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    agents = LateAgents()
    library = str(Path(__file__).resolve().parents[2])
    world = World(
        cluster=config["cluster"],
        slots=Slots(path),
        slurm=SlurmCli(process, state_dir=Path(config["slurm_state_dir"])),
        machines=machines_of(config["provider"]),
        store=open_store(state_dir / "controller.db", clock.now()),
        clock=clock,
        agents=agents,
        jobs=Threads(),
        checkpoints=CheckpointScanner(process, library),
        probe=is_working,
        save_address=(
            partial(save_node_address, str(config.get("slurm_conf_path", "/etc/slurm/slurm.conf")))
            if config["provider"].get("kind") == "ec2"
            else None
        ),
        save_partition=partial(save_partition_nodes, str(config.get("slurm_conf_path", "/etc/slurm/slurm.conf"))),
        repair_policy=repair_policy,
        resume_policy=resume_policy,
        memory=Memory(started_at=clock.now()),
    )
    return world, agents


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until SIGTERM; returns its exit status."""
    parser = argparse.ArgumentParser(prog="hyperpod-controller", description="Repairs nodes and resumes jobs.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run in the foreground (systemd starts it so)")
    runs.add_argument("--config", type=Path, default=Path("/etc/hyperpod/controller.json"))
    runs.add_argument("--verbose", action="store_true", help="log every tick")
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    try:
        return serve(options.config)
    except HyperpodError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def serve(path: Path) -> int:
    """Load, wire, listen, loop."""
    config = load_config(path)
    world, agents = build_world(config, path)
    trusted = trusted_uids()
    munge = Munge()
    deep = DeepChecks(world, agents.ask, parse_options(config["policies"].get("deep") or {}, Options()))
    queries = Queries(world, trusted, {"deep": deep.report})
    server = Server(world, munge, queries.answer, Commands(world, {"deep": deep.command}).run, trusted)
    agents.server = server
    stopping = threading.Event()

    def stop(signum: int, frame: object) -> None:
        stopping.set()
        world.inbox.ring()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    server.start("0.0.0.0", config["port"])
    if importlib.util.find_spec("prometheus_client") is not None:
        serve_metrics(world, "0.0.0.0", config["metrics_port"])
    log.info("listening cluster=%s port=%s version=%s", world.cluster, config["port"], __version__)
    notify("READY=1")
    run(world, is_stopping=stopping.is_set, watchdog=lambda: notify("WATCHDOG=1"), after=deep.on_tick)
    notify("STOPPING=1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
