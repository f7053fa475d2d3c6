"""EC2 with bodies: every instance in moto's EC2 is a podman node that boots, works and dies as EC2 says.

Owns the network, the bodies and the loop that watches EC2. A body runs its instance's user data by cloud-init, reaches
the account's endpoint and its metadata service on the bridge's own address, and nothing else. Each has a fresh disk.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import boto3

from hyperpod.adapters.local.network import Networks, network_name
from hyperpod.adapters.local.podman import Podman, ulimits
from hyperpod.adapters.process import Processes
from hyperpod.errors import CommandError, CommandTimeout, HyperpodError, NotFound
from tests.bodies.account import Account, serving
from tests.bodies.metadata import Identity, Metadata

REGION: Final = "us-west-2"
METADATA: Final = "169.254.169.254"
_POLL_S: Final = 0.3
_SHUTDOWN_S: Final = 10
LABEL: Final = "hyperpod.body"

# Before anything else runs in a body: whatever is behind that address outside, it is not this account's.
_INIT: Final = f"ip route replace blackhole {METADATA}/32 && exec /sbin/init"


@dataclass
class Body:
    """A machine: what it is told of itself, and its container."""

    identity: Identity
    container: str
    user_data: bytes


class Bridge:
    """Runs an account with bodies for one test or demo. Use it as a context.

    Args:
        name: Names the network and the bodies; nobody else on this machine may use it at the same time.
        image: Of the bodies; see ``image.BodyImages``.
        home: A folder for the seeds of cloud-init and for what stands for FSx; it is removed at the end.
    """

    def __init__(self, name: str, image: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.bodies: dict[str, Body] = {}
        self.problems: list[str] = []
        self.endpoint = ""
        self._image = image
        self._processes = Processes()
        self._podman = Podman(self._processes)
        self._networks = Networks(self._podman, self._processes)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._stack = ExitStack()
        self._inside: dict[str, str] = {}
        self._interface = ""
        self.account = Account(self)
        self.metadata = Metadata(self._identity_of)
        self.subnet = ipaddress.IPv4Network("192.0.2.0/24")

    # --- life

    def __enter__(self) -> Bridge:
        with self._stack as stack:
            stack.callback(shutil.rmtree, self.home, ignore_errors=True)
            for folder in ("fsx", "home", "bodies"):
                (self.home / folder).mkdir(parents=True, exist_ok=True)
            (self.home / "fsx").chmod(0o1777)
            stack.callback(self._networks.remove, self.name)
            # Those of a run that was killed, too.
            self._remove_bodies()
            stack.callback(self._remove_bodies)
            self.subnet = self._networks.ensure(self.name, subnet=None, internet=False)
            names = {network["name"]: str(network["network_interface"]) for network in self._podman.networks()}
            self._interface = names[network_name(self.name)]
            gateway = str(next(self.subnet.hosts()))
            self.endpoint = stack.enter_context(serving(self.account, "127.0.0.1"))
            self._inside = {
                "AWS_ENDPOINT_URL": stack.enter_context(serving(self.account, gateway)),
                # The slash at its end is what the AWS CLI wants.
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": stack.enter_context(serving(self.metadata, gateway)) + "/",
            }
            thread = threading.Thread(target=self._watch, daemon=True)
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(self._stop.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def environment(self) -> dict[str, str]:
        """Return the variables by which programs on this machine use the account."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def client(self, service: str) -> Any:
        """Return a client of the account."""
        session = boto3.session.Session("testing", "testing", region_name=REGION)
        return session.client(service, endpoint_url=self.endpoint)

    # --- what the account asks

    @contextmanager
    def changing(self, action: str, ids: list[str], is_forced: bool) -> Iterator[None]:
        """Surround a call that changes the power of machines: a body is dead before EC2 says so."""
        with self._lock:
            mine = [self.bodies[identity] for identity in ids if identity in self.bodies]
            for body in mine:
                if action == "TerminateInstances":
                    self._remove(body)
                elif action == "StopInstances":
                    self._halt(body, is_forced=is_forced)
            yield
            for body in mine:
                if action == "StartInstances":
                    self._podman.run("start", body.container)
                elif action == "RebootInstances":
                    self._halt(body, is_forced=False)
                    self._podman.run("start", body.container)

    def run(self, instance_id: str, script: str, timeout_s: float) -> tuple[int, str, str]:
        """Run a script on a body as root, as the agent of Systems Manager does."""
        body = self.bodies.get(instance_id)
        if body is None:
            raise LookupError(instance_id)
        try:
            done = self._podman.exec(body.container, ["sh", "-c", script], timeout_s=timeout_s, check=False)
        except (NotFound, HyperpodError) as error:
            if isinstance(error, CommandTimeout):
                raise TimeoutError(instance_id) from error
            raise LookupError(f"{instance_id}: {error.message}") from error
        return done.code, done.stdout, done.stderr

    def _identity_of(self, address: str) -> Identity | None:
        return next((b.identity for b in list(self.bodies.values()) if b.identity.address == address), None)

    # --- the loop

    def _watch(self) -> None:
        ec2 = self.client("ec2")
        while not self._stop.wait(_POLL_S):
            try:
                with self._lock:
                    off = self._step(ec2)
                # Without the lock: the call comes back to us.
                for identity in off:
                    ec2.stop_instances(InstanceIds=[identity])
            except Exception as error:  # noqa: BLE001 - the loop must go on; tests look at what went wrong
                self.problems.append(f"{type(error).__name__}: {error}")

    def _step(self, ec2: Any) -> list[str]:
        """Give bodies to new instances, and return the machines that have switched themselves off."""
        states = {c.name: c.state for c in self._podman.containers(f"{LABEL}={self.name}")}
        off = []
        for reservation in ec2.describe_instances()["Reservations"]:
            for data in reservation["Instances"]:
                identity, state = str(data["InstanceId"]), str(data["State"]["Name"])
                body = self.bodies.get(identity)
                if state in ("pending", "running"):
                    if body is None:
                        self._boot(ec2, data)
                    elif state == "running" and states.get(body.container) in ("exited", "stopped"):
                        off.append(identity)
                elif state == "terminated" and body is not None:
                    self._remove(body)
        return off

    def _boot(self, ec2: Any, data: dict[str, Any]) -> None:
        instance_id = str(data["InstanceId"])
        address = str(data["PrivateIpAddress"])
        asked = ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
        user_data = base64.b64decode(asked.get("UserData", {}).get("Value", ""))
        profile = str(data.get("IamInstanceProfile", {}).get("Arn", "none")).rpartition("/")[2]
        identity = Identity(
            instance_id, address, str(data["InstanceType"]), str(data["ImageId"]),
            str(data["Placement"]["AvailabilityZone"]), profile,
        )  # fmt: skip
        body = Body(identity, f"{self.name}.{instance_id}", user_data)
        try:
            self._podman.run(*self._arguments(body, self._seed(body)))
        except HyperpodError:
            # It is tried again with the next look.
            self._remove(body)
            raise
        self.bodies[instance_id] = body
        # The network leads nowhere, so podman gives its bridge no address; and it makes the bridge with the first body.
        address = f"{next(self.subnet.hosts())}/{self.subnet.prefixlen}"
        self._processes.run(["ip", "address", "replace", address, "dev", self._interface], timeout_s=10)

    def _seed(self, body: Body) -> Path:
        folder = self.home / "bodies" / body.identity.instance_id
        (folder / "nocloud").mkdir(parents=True, exist_ok=True)
        host = f"ip-{body.identity.address.replace('.', '-')}"
        about = {"instance-id": body.identity.instance_id, "local-hostname": host}
        (folder / "nocloud/meta-data").write_text(json.dumps(about))
        (folder / "nocloud/user-data").write_bytes(body.user_data)
        words = " ".join(f'"{name}={value}"' for name, value in self._inside.items())
        (folder / "environment.conf").write_text(f"[Manager]\nDefaultEnvironment={words}\n")
        return folder

    def _arguments(self, body: Body, folder: Path) -> list[str]:
        volumes = [
            f"{folder}/nocloud:/var/lib/cloud/seed/nocloud:ro",
            f"{folder}/environment.conf:/etc/systemd/system.conf.d/account.conf:ro",
            # As FSx would be mounted. Kernel servers for NFS do not exist in a container.
            f"{self.home}/fsx:/fsx",
            f"{self.home}/home:/home",
            # The kernel log belongs to the whole host.
            "/dev/null:/dev/kmsg",
        ]
        variables = {"SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE": "1", **self._inside}
        return [
            "run", "--detach", "--name", body.container, "--label", f"{LABEL}={self.name}",
            "--network", network_name(self.name), "--ip", body.identity.address, "--no-hosts",
            "--privileged", "--systemd=always", "--shm-size", "1g", *ulimits(),
            "--log-driver", "k8s-file", "--log-opt", f"path={folder}/console.log", "--log-opt", "max-size=10mb",
            *(part for name, value in variables.items() for part in ("--env", f"{name}={value}")),
            *(part for volume in volumes for part in ("--volume", volume)),
            self._image, "/bin/sh", "-c", _INIT,
        ]  # fmt: skip

    # --- ends

    def _halt(self, body: Body, *, is_forced: bool) -> None:
        with contextlib.suppress(HyperpodError):
            # A test may have frozen it.
            self._podman.run("unpause", body.container)
        with contextlib.suppress(NotFound):
            time_s = "0" if is_forced else str(_SHUTDOWN_S)
            self._podman.run("stop", "--time", time_s, body.container, timeout_s=_SHUTDOWN_S + 30)

    def _remove(self, body: Body) -> None:
        with contextlib.suppress(NotFound):
            self._podman.run("rm", "--force", "--time", "0", "--volumes", body.container)
        self.bodies.pop(body.identity.instance_id, None)

    def _remove_bodies(self) -> None:
        for container in self._podman.containers(f"{LABEL}={self.name}"):
            try:
                self._podman.run("rm", "--force", "--time", "0", "--volumes", container.id)
            except (HyperpodError, CommandError) as error:
                self.problems.append(f"{container.name}: {error}")
