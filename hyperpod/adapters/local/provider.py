"""The local provider: every instance is a podman container that boots systemd, in a cluster's own network.

Owns containers, their folders and the network. What should exist is podman's labels and the cluster's folder;
what a node does inside is the lifecycle scripts' business. Every call may be repeated, and may be killed anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from pathlib import Path
from typing import Any

from hyperpod.adapters.local.home import ClusterHome, clusters, read_json, write_file, write_json
from hyperpod.adapters.local.image import NodeImages, Progress
from hyperpod.adapters.local.network import Networks, assign_addresses, network_name
from hyperpod.adapters.local.nodeconfig import render_hosts, render_known_hosts, resource_config
from hyperpod.adapters.local.podman import Container, Podman, ulimits
from hyperpod.adapters.local.secrets import ClusterSecrets
from hyperpod.errors import (
    ConfigError,
    InvalidState,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    StoreError,
)
from hyperpod.ports.process import Completed, ProcessRunner
from hyperpod.ports.provider import Birth, BirthStatus, Instance, InstanceStatus, NodeLaunch, Role

logger = logging.getLogger(__name__)

# Boots of more nodes than this at once only take the cores from each other.
_PARALLEL = 8
# How long an orderly shutdown may take before power is cut.
_SHUTDOWN_S = 10
_DEATH_S = 20.0
_NEVER_RAN = ("created", "configured", "initialized")
_STATES: Mapping[str, InstanceStatus] = {
    "created": InstanceStatus.PENDING,
    "configured": InstanceStatus.PENDING,
    "initialized": InstanceStatus.PENDING,
    "running": InstanceStatus.RUNNING,
    "paused": InstanceStatus.RUNNING,
    "stopping": InstanceStatus.STOPPED,
    "stopped": InstanceStatus.STOPPED,
    "exited": InstanceStatus.STOPPED,
    "removing": InstanceStatus.GONE,
}


class LocalProvider:
    """Machines of local clusters.

    Args:
        home: Our folder on this machine (``HYPERPOD_HOME``).
        processes: Runs podman.
        images: Builds node images when one is missing.
        environment: Variables of this machine that jobs on nodes need as well (numerics libraries' settings).
        sleep, monotonic: The clock, while waiting for a machine's death.
    """

    def __init__(
        self,
        home: Path,
        processes: ProcessRunner,
        images: NodeImages,
        *,
        environment: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.home = home
        self._processes = processes
        self._podman = Podman(processes)
        self._networks = Networks(self._podman, processes)
        self._images = images
        self._environment = dict(environment or {})
        self._sleep = sleep
        self._monotonic = monotonic

    def cluster(self, name: str) -> ClusterHome:
        """Return the folder of a cluster, existing or not."""
        return ClusterHome(self.home, name)

    def clusters(self) -> list[str]:
        """Return the names of the clusters on this machine, half-made ones too."""
        # The slots come first and go last; a cluster that has lost them must still be seen, so that it can be deleted.
        found = ((name, self.cluster(name)) for name in clusters(self.home))
        return [name for name, home in found if home.slots.exists() or home.spec.exists()]

    def prepare(
        self, cluster: str, nodes: Sequence[str], *, subnet: str | None = None, internet: bool = False
    ) -> dict[str, str]:
        """Make folder and network of a cluster and return the address of each of ``nodes``.

        A node name keeps its address for the life of the cluster, whatever machines serve it.

        Raises:
            ProviderError: The subnet is taken. ConfigError: It has too little room.
        """
        home = self.cluster(cluster)
        home.create()
        with home.lock("slots"):
            # Written first, so that an interrupted creation is seen by list-clusters and delete-cluster.
            slots = read_json(home.slots) or {"addresses": {}}
            write_json(home.slots, slots)
            network = self._networks.ensure(cluster, subnet=subnet, internet=internet)
            addresses = assign_addresses(network, slots["addresses"], nodes)
            write_json(home.slots, {"subnet": str(network), "addresses": addresses})
            keys = ClusterSecrets(home, self._processes)
            _ = keys.munge_key
            keys.admin_key()
            for node in nodes:
                keys.host_key(node)
        return {node: addresses[node] for node in nodes}

    def ensure_image(self, kind: str, progress: Progress = lambda _what, _share: None) -> str:
        """Build the node image of this kind if it is missing."""
        return self._images.ensure(kind, progress)

    def configure(self, specs: Sequence[NodeLaunch]) -> set[str]:
        """Write the configuration of nodes, which they read at their next boot or when told to.

        Returns:
            The names of those whose configuration is another one than before.
        """
        changed = set()
        for spec in specs:
            home = self.cluster(spec.cluster)
            with home.lock("slots"):
                if self._write_config(home, spec):
                    changed.add(spec.node)
        return changed

    def launch(self, specs: Sequence[NodeLaunch]) -> list[Instance]:
        """Make or start the machines that are missing, in parallel; see ``ports.provider.Provider.launch``.

        ``prepare`` must have given every node its address.
        """
        if not specs:
            return []
        by_cluster = {spec.cluster for spec in specs}
        if len(by_cluster) != 1:
            raise ConfigError(f"one launch is for one cluster, got {', '.join(sorted(by_cluster))}")
        home = self.cluster(specs[0].cluster)
        self.configure(specs)
        present = {container.labels["hyperpod.node"]: container for container in self._containers(home.cluster)}
        planned = {
            spec.node: present[spec.node].labels["hyperpod.instance-id"] if spec.node in present else new_instance_id()
            for spec in specs
        }
        self._publish(home, planned)

        def one(spec: NodeLaunch) -> None:
            with home.lock(f"node-{spec.node}"):
                container = self._in_slot(home.cluster, spec.node)
                if container is not None and container.state in _NEVER_RAN:
                    self._remove(container)
                    container = None
                if container is None:
                    self._start_new(home, spec, planned[spec.node], self._image_of(spec), token="")
                elif container.state not in ("running", "paused"):
                    self._start(home, container)

        self._parallel(one, specs)
        found = {instance.node: instance for instance in self.observe(home.cluster)}
        return [found[spec.node] for spec in specs if spec.node in found]

    def terminate(self, instance_id: str) -> None:
        """End a machine for good; its records stay in ``instances/<id>``."""
        container = self._find(instance_id)
        if container is not None:
            self._remove(container)

    def power_off(self, instance_id: str) -> None:
        """Cut a machine's power; returns when no process of it is left.

        Raises:
            NotFound: There never was such a machine.
            ProviderUnavailable: It could not be made sure that it is dead.
        """
        container = self._find(instance_id)
        if container is None:
            self._home_of(instance_id)
            return
        if container.state == "paused":
            self._kill_frozen(container)
        elif container.state in ("running", "stopping", "unknown"):
            with contextlib.suppress(ProviderError):
                # A failure to kill shows below, where the process is looked for.
                self._podman.run("kill", "--signal", "KILL", container.id)
        self._await_death(container)

    def power_on(self, instance_id: str) -> None:
        """Start a machine that was powered off; a running one is left alone."""
        container = self._require(instance_id)
        if container.state not in ("running", "paused"):
            self._start(self._home_of(instance_id), container)

    def reboot(self, instance_id: str) -> None:
        """Restart a machine: orderly within some seconds, else by cutting its power."""
        container = self._require(instance_id)
        if container.state == "paused":
            self.power_off(instance_id)
        elif container.state == "running":
            self._podman.run("stop", "--time", str(_SHUTDOWN_S), container.id, timeout_s=_SHUTDOWN_S + 30)
            self._await_death(container)
        self._start(self._home_of(instance_id), container)

    def replace(self, node: str, instance_id: str, token: str, *, cluster: str = "") -> Instance:
        """End a slot's machine and make another; see ``ports.provider.Provider.replace``.

        ``cluster`` is needed when there is no machine, so that its id is not known.
        """
        home = self.cluster(cluster) if cluster else self._home_of(instance_id)
        launch = self._read_launch(home, node)
        with home.lock(f"node-{node}"):
            container = self._in_slot(home.cluster, node)
            # One that never ran is the rest of an earlier call of ours, killed between making and starting it.
            if (
                container is None
                or container.labels["hyperpod.instance-id"] == instance_id
                or container.state in _NEVER_RAN
            ):
                image = self._image_of(launch)
                if container is not None:
                    self._remove(container)
                fresh = replacement_id(home.cluster, node, instance_id, token)
                self._publish(home, {node: fresh})
                self._start_new(home, launch, fresh, image, token=token)
        for instance in self.observe(home.cluster):
            if instance.node == node:
                return instance
        raise ProviderUnavailable(f"the new machine of {node} has vanished again", hint="try again")

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        """Return every machine of a cluster, by node name order of its making; one podman call."""
        home = self.cluster(cluster)
        addresses = self.addresses(cluster)
        order = {node: number for number, node in enumerate(addresses)}
        instances = [self._instance(home, container, addresses) for container in self._containers(cluster)]
        return tuple(sorted(instances, key=lambda instance: (order.get(instance.node, len(order)), instance.node)))

    def addresses(self, cluster: str) -> dict[str, str]:
        """Return the address of every node name that the cluster has or had."""
        slots = read_json(self.cluster(cluster).slots) or {}
        addresses = slots.get("addresses", {})
        if not isinstance(addresses, dict):
            raise StoreError(
                f"{self.cluster(cluster).slots} is damaged: at addresses: an object is needed",
                hint="delete-cluster removes the cluster; --keep-data keeps its shared files",
            )
        return dict(addresses)

    def connect(self, instance_id: str) -> PodmanConnection:
        """Return a connection to a machine; whether it answers shows at the first command."""
        return PodmanConnection(self._podman, self._require(instance_id).id)

    def birth(self, instance_id: str) -> Birth:
        """Return how the lifecycle scripts of a machine went, also when it is gone."""
        return read_birth(self._home_of(instance_id).instance(instance_id), instance_id)

    def forget_node(self, cluster: str, node: str) -> None:
        """Remove what is left of a node name after its machine was terminated by a scale-down."""
        home = self.cluster(cluster)
        with home.lock("slots"):
            shutil.rmtree(home.node(node), ignore_errors=True)
            slots = read_json(home.slots) or {"addresses": {}}
            slots["addresses"].pop(node, None)
            write_json(home.slots, slots)
        self._publish(home, {})

    def delete(self, cluster: str, *, keep_data: bool = False) -> None:
        """Remove every trace of a cluster; with ``keep_data`` its shared file systems stay."""
        home = self.cluster(cluster)
        containers = self._containers(cluster)
        self._parallel(self._remove, containers)
        self._networks.remove(cluster)
        if not home.exists():
            return
        for entry in home.path.iterdir():
            if keep_data and entry in (home.fsx, home.home):
                continue
            # The slots last: as long as they are there, the cluster is listed and can be deleted again.
            if entry != home.slots:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink(missing_ok=True)
        home.slots.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            home.path.rmdir()

    # --- containers

    def _containers(self, cluster: str) -> tuple[Container, ...]:
        return self._podman.containers(f"hyperpod.cluster={cluster}")

    def _in_slot(self, cluster: str, node: str) -> Container | None:
        found = self._podman.containers(f"hyperpod.cluster={cluster}", f"hyperpod.node={node}")
        return found[0] if found else None

    def _find(self, instance_id: str) -> Container | None:
        found = self._podman.containers(f"hyperpod.instance-id={instance_id}")
        return found[0] if found else None

    def _require(self, instance_id: str) -> Container:
        container = self._find(instance_id)
        if container is None:
            raise NotFound(f"no instance {instance_id} on this machine", hint="hyperpod list-nodes shows them")
        return container

    def _start_new(self, home: ClusterHome, spec: NodeLaunch, instance_id: str, image: str, *, token: str) -> None:
        address = self.addresses(home.cluster).get(spec.node)
        if address is None:
            raise InvalidState(f"launch {spec.node}", "without an address", hint="create-cluster gives it one")
        folder = home.instance(instance_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(home.config(spec.node) / "instance.env", f"HP_INSTANCE_ID={instance_id}\nHP_ADDRESS={address}\n")
        arguments = run_arguments(
            home,
            spec,
            instance_id=instance_id,
            address=address,
            image=image,
            token=token,
            environment=self._environment,
        )
        try:
            self._podman.run(*arguments)
        except ProviderError:
            container = self._in_slot(home.cluster, spec.node)
            if container is not None and container.state in _NEVER_RAN:
                self._remove(container)
            raise
        logger.info("launched cluster=%s node=%s instance=%s", home.cluster, spec.node, instance_id)

    def _image_of(self, launch: NodeLaunch) -> str:
        """Return the image of a node: the one it was configured with if it is still there, else the present one."""
        if launch.image_reference and self._images.has(launch.image_reference):
            return launch.image_reference
        return self._images.ensure(launch.image)

    def _start(self, home: ClusterHome, container: Container) -> None:
        # The record of the last boot must not be taken for that of the next.
        (home.instance(container.labels["hyperpod.instance-id"]) / "result.json").unlink(missing_ok=True)
        self._podman.run("start", container.id)

    def _remove(self, container: Container) -> None:
        if container.state == "paused":
            self._kill_frozen(container)
        with contextlib.suppress(NotFound):
            self._podman.run("rm", "--force", "--time", "0", container.id)
        logger.info(
            "terminated node=%s instance=%s",
            container.labels.get("hyperpod.node"),
            container.labels.get("hyperpod.instance-id"),
        )

    def _kill_frozen(self, container: Container) -> None:
        """Kill every process of a paused machine before it is thawed, so that none of them runs again."""
        for pid in _pids_in_namespace_of(container.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProviderError):
            self._podman.run("unpause", container.id)

    def _await_death(self, container: Container) -> None:
        deadline = self._monotonic() + _DEATH_S
        while True:
            now = self._podman.containers(f"hyperpod.instance-id={container.labels['hyperpod.instance-id']}")
            if not any(other.state in ("running", "paused", "stopping", "unknown") for other in now):
                return
            if self._monotonic() >= deadline:
                raise ProviderUnavailable(
                    f"{container.name} still runs {_DEATH_S:g} s after its power was cut", hint="look at: podman ps"
                )
            self._sleep(0.05)

    def _instance(self, home: ClusterHome, container: Container, addresses: Mapping[str, str]) -> Instance:
        labels = container.labels
        instance_id = labels["hyperpod.instance-id"]
        status = _STATES.get(container.state, InstanceStatus.UNKNOWN)
        birth = read_birth(home.instance(instance_id), instance_id)
        if status is InstanceStatus.RUNNING and birth.status is not BirthStatus.OK:
            status = InstanceStatus.FAILED if birth.status is BirthStatus.FAILED else InstanceStatus.PENDING
        return Instance(
            id=instance_id,
            node=labels["hyperpod.node"],
            group=labels["hyperpod.group"],
            role=Role(labels["hyperpod.role"]),
            address=addresses.get(labels["hyperpod.node"], labels.get("hyperpod.address", "")),
            status=status,
            created_at=container.created_at.astimezone(UTC),
            labels={**labels, "hyperpod.birth": birth.status.value, "hyperpod.container": container.name},
        )

    # --- folders

    def _write_config(self, home: ClusterHome, spec: NodeLaunch) -> bool:
        config = home.config(spec.node)
        config.mkdir(parents=True, exist_ok=True)
        config.chmod(0o700)
        keys = ClusterSecrets(home, self._processes)
        host_key = keys.host_key(spec.node)
        files: dict[str, str | bytes] = dict(spec.files)
        files["munge.key"] = keys.munge_key.read_bytes()
        files["ssh_host_ed25519_key"] = host_key.read_bytes()
        files["ssh_host_ed25519_key.pub"] = Path(f"{host_key}.pub").read_bytes()
        files["authorized_keys"] = Path(f"{keys.admin_key()}.pub").read_bytes()
        if spec.lifecycle_source:
            _copy_lifecycle(Path(spec.lifecycle_source), config / "lifecycle")
        has_changed = False
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            path = config / name
            if not path.is_file() or path.read_bytes() != data:
                write_file(path, data, 0o600)
                has_changed = True
        write_json(home.launch(spec.node), dataclasses.asdict(spec) | {"files": {}}, 0o600)
        return has_changed

    def _read_launch(self, home: ClusterHome, node: str) -> NodeLaunch:
        data = read_json(home.launch(node))
        if data is None:
            raise NotFound(f"cluster {home.cluster} has no node {node}", hint="hyperpod list-nodes shows them")
        return _launch_from(data)

    def _publish(self, home: ClusterHome, planned: Mapping[str, str]) -> None:
        """Write what all nodes may read. ``planned`` are instances about to be made, by node."""
        with home.lock("public"):
            addresses = self.addresses(home.cluster)
            launches = [_launch_from(data) for node in addresses if (data := read_json(home.launch(node))) is not None]
            present = {
                container.labels["hyperpod.node"]: container.labels["hyperpod.instance-id"]
                for container in self._containers(home.cluster)
            }
            keys = {
                node: path.read_text() for node in addresses if (path := home.secrets / f"host_{node}.pub").exists()
            }
            config = resource_config(home.cluster, launches, addresses, {**present, **planned})
            write_file(home.public / "hosts", render_hosts(addresses))
            write_file(home.public / "known_hosts", render_known_hosts(addresses, keys))
            write_json(home.public / "resource_config.json", config)

    def _home_of(self, instance_id: str) -> ClusterHome:
        # Without an id the path would be the folder of all instances, which every cluster has.
        for name in clusters(self.home) if instance_id else ():
            home = self.cluster(name)
            if home.instance(instance_id).is_dir():
                return home
        raise NotFound(f"no instance {instance_id} on this machine", hint="hyperpod list-nodes shows them")

    def _parallel(self, work: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Do all the work, also when one item fails; then raise the first failure."""
        with ThreadPoolExecutor(_PARALLEL) as pool:
            futures = [pool.submit(work, item) for item in items]
        for future in futures:
            future.result()


_PODMAN_EXEC = ("podman", "--runtime", "runc", "exec")
# One line, because it stands in ssh's configuration, too.
_RELAY = (
    'import os,socket,threading;s=socket.create_connection(("127.0.0.1",22));'
    'threading.Thread(target=lambda:[s.sendall(b) for b in iter(lambda:os.read(0,65536),b"")]+[os._exit(0)],'
    'daemon=True).start();[os.write(1,b) for b in iter(lambda:s.recv(65536),b"")]'
)


class PodmanConnection:
    """Runs commands on a machine as root, without its network."""

    def __init__(self, podman: Podman, container: str) -> None:
        self._podman = podman
        self._container = container

    def run(self, argv: Sequence[str], *, timeout_s: float, input: str | None = None, check: bool = True) -> Completed:
        """Run a command there; see ``ports.provider.Connection.run``."""
        return self._podman.exec(self._container, argv, timeout_s=timeout_s, input=input, check=check)

    def shell_argv(self, argv: Sequence[str] = (), *, user: str = "root", interactive: bool = True) -> list[str]:
        """Return the command for the caller's terminal; without ``argv`` a login shell."""
        options = ["-it"] if interactive else ["-i"]
        home = "/root" if user == "root" else f"/home/{user}"
        return [
            *_PODMAN_EXEC, *options, "--user", user, "--workdir", home,
            "--env", f"HOME={home}", "--env", f"USER={user}", "--env", "TERM",
            self._container, *(argv or ("/bin/bash", "-l")),
        ]  # fmt: skip


def relay_argv(cluster: str, node: str) -> list[str]:
    """Return the command whose input and output are a connection to the ssh server of a slot's machine.

    The nodes' network has no way to this machine, unless the specification asks for one.
    """
    return [*_PODMAN_EXEC, "-i", container_name(cluster, node), "python3", "-S", "-c", _RELAY]


def run_arguments(
    home: ClusterHome,
    spec: NodeLaunch,
    *,
    instance_id: str,
    address: str,
    image: str,
    token: str,
    environment: Mapping[str, str],
) -> list[str]:
    """Return the arguments of ``podman run`` for one machine. Pure but for this machine's resource limits."""
    labels = {
        "cluster": home.cluster,
        "node": spec.node,
        "group": spec.group,
        "role": spec.role.value,
        "instance-id": instance_id,
        "instance-type": spec.instance_type,
        "address": address,
        "token": token,
    }
    folder = home.instance(instance_id)
    volumes = [
        f"{home.config(spec.node)}:/opt/hyperpod/node:ro",
        f"{home.public}:/opt/hyperpod/cluster:ro",
        f"{folder}:/var/log/provision",
        f"{spec.shared_storage or home.fsx}:/fsx",
        f"{home.home}:/home",
        # The kernel log belongs to the whole host: no node may read it as its own, or write to it.
        "/dev/null:/dev/kmsg",
    ]
    if spec.role is Role.HEAD:
        volumes.append(f"{home.cloud}:/run/hyperpod-cloud")
    variables = {"SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE": "1", **environment}
    return [
        "run", "--detach",
        # The name is the slot: podman refuses a second machine in it.
        "--name", container_name(home.cluster, spec.node), "--hostname", spec.node,
        "--network", network_name(home.cluster), "--ip", address, "--no-hosts",
        "--privileged", "--systemd=always", "--shm-size", "1g", *ulimits(),
        "--log-driver", "k8s-file", "--log-opt", f"path={folder}/console.log", "--log-opt", "max-size=10mb",
        *(part for name, value in labels.items() for part in ("--label", f"hyperpod.{name}={value}")),
        *(part for name, value in variables.items() for part in ("--env", f"{name}={value}")),
        *(part for volume in volumes for part in ("--volume", volume)),
        image, "/sbin/init",
    ]  # fmt: skip


def container_name(cluster: str, node: str) -> str:
    """Return podman's name for a slot; dots cannot be part of either name, so no two slots share one."""
    return f"hyperpod.{cluster}.{node}"


def new_instance_id() -> str:
    """Return an identity for a new machine."""
    return f"i-{secrets.token_hex(9)[:17]}"


def replacement_id(cluster: str, node: str, instance_id: str, token: str) -> str:
    """Return the identity of the machine that replaces another: the same call gives the same machine."""
    text = "\0".join((cluster, node, instance_id, token))
    return f"i-{hashlib.sha256(text.encode()).hexdigest()[:17]}"


def read_birth(folder: Path, instance_id: str) -> Birth:
    """Return the record that the lifecycle scripts left in an instance's folder."""
    log = folder / "provisioning.log"
    try:
        data = read_json(folder / "result.json")
        if data is None:
            return Birth(instance_id, BirthStatus.PENDING, log_path=str(log))
        return Birth(
            instance_id=instance_id,
            status=BirthStatus(data["status"]),
            script=str(data.get("script", "")),
            exit_code=data.get("exit_code"),
            attempt=int(data.get("attempt", 0)),
            message=str(data.get("message", "")),
            tail=tuple(str(line) for line in data.get("tail", ()) if line),
            log_path=str(log),
            timings_ms={str(name): int(ms) for name, ms in data.get("timings_ms", {}).items()},
        )
    except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
        # One damaged record must not hide all other machines; not born, as far as anybody can say.
        return Birth(instance_id, BirthStatus.PENDING, message=f"its record is damaged: {error}", log_path=str(log))


def _launch_from(data: Mapping[str, Any]) -> NodeLaunch:
    return NodeLaunch(**{**data, "role": Role(data["role"])})


def _copy_lifecycle(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise ConfigError(
            f"the folder with lifecycle scripts does not exist: {source}",
            hint="LifeCycleConfig.SourceS3Uri of a local cluster is a folder on this machine",
        )
    fresh = target.with_name(".lifecycle.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh, symlinks=True)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def _pids_in_namespace_of(pid: int) -> list[int]:
    """Return the processes that share a process's pid namespace; empty if it is gone or is our own."""
    try:
        namespace = os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return []
    if pid <= 1 or namespace == os.readlink("/proc/self/ns/pid"):
        return []
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/pid") == namespace:
                    found.append(int(entry))
    return found
