"""The provider as a service: what the controller on the head node asks of this machine, which has the containers.

One process per cluster, on a unix socket that only the head node sees. Requests and replies are one JSON line each;
only root may ask. It holds no state: every answer comes from podman.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import socketserver
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from hyperpod.adapters.local.home import ClusterHome
from hyperpod.adapters.local.image import NodeImages
from hyperpod.adapters.local.provider import LocalProvider
from hyperpod.adapters.process import Processes
from hyperpod.core.names import parse_instance_id
from hyperpod.errors import HyperpodError, InvalidState, NotFound, UsageError
from hyperpod.ports.provider import Birth, Instance

logger = logging.getLogger(__name__)

_MAX_REQUEST = 64 * 1024
_START_S = 10.0


def answer(provider: LocalProvider, cluster: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one request and return the reply's fields.

    Raises:
        HyperpodError: As the provider says.
    """
    op = request.get("op")
    if op == "observe":
        return {"instances": [instance_fields(instance) for instance in provider.observe(cluster)]}
    if op == "ping":
        return {"cluster": cluster, "pid": os.getpid()}
    instance_id = str(request.get("instance_id", ""))
    # It becomes part of a path below. A node that lost its machine before anybody knew it has none to name.
    if instance_id or op != "replace":
        parse_instance_id(instance_id)
    own = {instance.id for instance in provider.observe(cluster)}
    if op == "replace":
        # The machine to replace may be gone already; the node must be ours.
        node = str(request.get("node", ""))
        if node not in provider.addresses(cluster):
            raise NotFound(f"cluster {cluster} has no node {node!r}")
        if not provider.cluster(cluster).instance(instance_id).is_dir():
            raise NotFound(f"cluster {cluster} never had an instance {instance_id!r}")
        token = str(request.get("token", ""))
        return {"instance": instance_fields(provider.replace(node, instance_id, token, cluster=cluster))}
    if instance_id not in own and not (instance_id and provider.cluster(cluster).instance(instance_id).is_dir()):
        raise NotFound(f"cluster {cluster} has no instance {instance_id!r}")
    if op == "birth":
        return {"birth": birth_fields(provider.birth(instance_id))}
    actions: Mapping[str, Callable[[str], None]] = {
        "power_off": provider.power_off,
        "power_on": provider.power_on,
        "reboot": provider.reboot,
    }
    action = actions.get(str(op))
    if action is None:
        known = "observe, ping, birth, replace, " + ", ".join(sorted(actions))
        raise UsageError(f"unknown operation {op!r}; known are {known}")
    action(instance_id)
    return {}


def instance_fields(instance: Instance) -> dict[str, Any]:
    """Return an instance as it goes over the socket."""
    return {
        "id": instance.id,
        "node": instance.node,
        "group": instance.group,
        "role": instance.role.value,
        "address": instance.address,
        "status": instance.status.value,
        "created_at": instance.created_at.isoformat(),
        "labels": dict(instance.labels),
    }


def birth_fields(birth: Birth) -> dict[str, Any]:
    """Return a birth record as it goes over the socket."""
    return {
        "instance_id": birth.instance_id,
        "status": birth.status.value,
        "script": birth.script,
        "exit_code": birth.exit_code,
        "attempt": birth.attempt,
        "message": birth.message,
        "tail": list(birth.tail),
    }


def reply_to(provider: LocalProvider, cluster: str, line: bytes) -> dict[str, Any]:
    """Return the reply to a request line, whatever it holds."""
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise UsageError("a request is a JSON object")
        return {"ok": True, **answer(provider, cluster, request)}
    except (ValueError, RecursionError) as error:
        return {"ok": False, "error": "UsageError", "message": f"not a JSON line: {error}", "hint": ""}
    except HyperpodError as error:
        retry = None if error.retry_after is None else error.retry_after.total_seconds()
        return {
            "ok": False,
            "error": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            "retry_after_s": retry,
        }
    except OSError as error:
        return {
            "ok": False, "error": "ProviderUnavailable", "message": str(error), "hint": "", "retry_after_s": 5.0,
        }  # fmt: skip


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        if peer_uid(self.connection) != 0:
            self.wfile.write(_line({"ok": False, "error": "AccessDenied", "message": "only root may ask", "hint": ""}))
            return
        while line := _read_line(self.rfile):
            reply = reply_to(self.server.provider, self.server.cluster, line)
            logger.info("request=%s ok=%s", line[:300].decode(errors="replace").strip(), reply["ok"])
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(_line(reply))


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, provider: LocalProvider, cluster: str) -> None:
        self.provider = provider
        self.cluster = cluster
        super().__init__(address, _Handler)


def serve(provider: LocalProvider, cluster: str, *, stop: threading.Event | None = None) -> None:
    """Answer requests until told to stop, or until the cluster's folder is gone.

    Raises:
        InvalidState: Another process serves this cluster.
    """
    home = provider.cluster(cluster)
    stop = stop or threading.Event()
    with _hold_pid_file(home), _folder(home.cloud) as folder:
        fresh = home.cloud / f".{home.socket.name}"
        fresh.unlink(missing_ok=True)
        # By the folder's descriptor: the full path may be longer than a socket address can be.
        with _Server(f"/proc/self/fd/{folder}/{fresh.name}", provider, cluster) as server:
            # Moved into place when it listens, so that nobody sees it deaf or with wrong rights.
            fresh.chmod(0o600)
            fresh.replace(home.socket)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
            thread.start()
            logger.info("serving cluster=%s pid=%d", cluster, os.getpid())
            while not stop.wait(1.0) and home.slots.exists():
                pass
            server.shutdown()
        home.socket.unlink(missing_ok=True)


def is_served(home: ClusterHome) -> bool:
    """Say whether a living process serves this cluster."""
    try:
        with home.pid_file.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def ensure_service(
    provider: LocalProvider,
    cluster: str,
    *,
    processes: Processes | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Start the service of a cluster if it is not there, and wait until it answers.

    Raises:
        InvalidState: It does not come up; its log is named.
    """
    home = provider.cluster(cluster)
    with home.lock("service"):
        if is_served(home):
            return
        runner = processes or Processes()
        runner.start_detached(
            [sys.executable, "-m", "hyperpod.adapters.local.service", str(provider.home), cluster],
            log=home.service_log,
            env={"PYTHONPATH": str(_source_folder())},
        )
        for _ in range(int(_START_S / 0.05)):
            if is_served(home) and home.socket.exists():
                return
            sleep(0.05)
    raise InvalidState(
        f"start the provider service of cluster {cluster}", "not answering", hint=f"its log is {home.service_log}"
    )


def stop_service(home: ClusterHome, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """End the service of a cluster; one that does not run is done."""
    for attempt in range(100):
        if not is_served(home):
            return
        pid = _served_by(home)
        if pid is None:
            raise InvalidState(
                f"end the provider service of cluster {home.cluster}",
                f"running, but {home.pid_file} does not hold its process id",
                hint=f"fuser {home.pid_file} shows who holds it; end that process and run the same command again",
            )
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if attempt < 60 else signal.SIGKILL)
        sleep(0.05)


def _served_by(home: ClusterHome) -> int | None:
    """Return the process that the pid file names, if it is one of our services: a damaged file must end nobody else.

    0, negative numbers and 1 would address whole groups of processes, every process, or the machine.
    """
    try:
        pid = int(home.pid_file.read_text())
        if pid <= 1:
            return None
        return pid if b"hyperpod" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
    except (OSError, ValueError):
        return None


def peer_uid(connection: socket.socket) -> int:
    """Return the user id at the other end of a unix socket, as the kernel says."""
    size = struct.calcsize("3i")
    _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def _read_line(file: BufferedIOBase) -> bytes:
    line = file.readline(_MAX_REQUEST)
    return line if line.endswith(b"\n") else b""


def _line(reply: Mapping[str, Any]) -> bytes:
    return json.dumps(reply).encode() + b"\n"


@contextlib.contextmanager
def _hold_pid_file(home: ClusterHome) -> Iterator[None]:
    with home.pid_file.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidState(f"serve cluster {home.cluster}", "served by another process already") from error
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _source_folder() -> Path:
    return Path(__file__).resolve().parents[3]


def local_provider(home: Path) -> LocalProvider:
    """Return the local provider as every program uses it."""
    processes = Processes()
    images = NodeImages(processes, home, _source_folder())
    # Some processors need these for right results of the numerics library in the nodes, too.
    numerics = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
    return LocalProvider(home, processes, images, environment=numerics)


def main(argv: list[str]) -> int:
    """Serve one cluster: ``HOME CLUSTER``. Ends at SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        serve(local_provider(Path(argv[0])), argv[1], stop=stop)
    except HyperpodError as error:
        logger.error("%s", error.message)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
