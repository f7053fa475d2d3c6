"""The head node's side of the provider service: what the controller asks of the machine that holds the containers."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hyperpod import errors
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.errors import HyperpodError, ProviderError, ProviderUnavailable, UnexpectedOutput
from hyperpod.ports.provider import Instance

_MAX_REPLY = 4 * 1024 * 1024


@dataclass(frozen=True)
class ProviderClient:
    """Speaks one JSON line with the service for each question. Safe from any thread.

    ``timeout_s`` is for answers that read; ``action_timeout_s`` for those that start or end machines.
    """

    socket_path: str
    timeout_s: float = 5.0
    action_timeout_s: float = 120.0

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        """Return every machine of the cluster, by slot."""
        reply = self._ask({"op": "observe"}, self.timeout_s)
        return tuple(instance_of(fields) for fields in reply["instances"])

    def power_off(self, instance_id: str) -> None:
        """Cut a machine's power; returns when it surely runs nothing."""
        self._ask({"op": "power_off", "instance_id": instance_id}, 30.0)

    def reboot(self, instance_id: str) -> None:
        """Restart a machine; one that is off is started."""
        self._ask({"op": "reboot", "instance_id": instance_id}, self.action_timeout_s)

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        """Give a slot another machine; repeating it changes nothing."""
        request = {"op": "replace", "node": node, "instance_id": instance_id, "token": token}
        return instance_of(self._ask(request, self.action_timeout_s)["instance"])

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        data = b""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout_s)
                sock.connect(self.socket_path)
                sock.sendall(json.dumps(request).encode() + b"\n")
                while not data.endswith(b"\n") and len(data) < _MAX_REPLY:
                    sock.settimeout(max(deadline - time.monotonic(), 0.01))
                    part = sock.recv(65536)
                    if not part:
                        break
                    data += part
        except OSError as error:
            raise ProviderUnavailable(
                f"the provider service does not answer on {self.socket_path}: {error.strerror or error}",
                hint="any hyperpod command on the machine that holds the nodes starts it again",
            ) from error
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UnexpectedOutput("provider service", data[:200].decode(errors="replace")) from error
        if not isinstance(reply, dict):
            raise UnexpectedOutput("provider service", data[:200].decode(errors="replace"))
        if not reply.get("ok"):
            raise error_of(reply)
        return dict(reply)


def error_of(reply: Mapping[str, Any]) -> HyperpodError:
    """Return the error that the service named, as the class it was there."""
    kind = getattr(errors, str(reply.get("error", "")), None)
    message, hint = str(reply.get("message", "the provider refused")), str(reply.get("hint", ""))
    if isinstance(kind, type) and issubclass(kind, ProviderError):
        return kind(message, hint=hint)
    return ProviderError(message, hint=hint)


def instance_of(fields: Mapping[str, Any]) -> Instance:
    """Read an instance as the service writes it.

    Raises:
        UnexpectedOutput: if it is not one.
    """
    try:
        return Instance(
            id=str(fields["id"]),
            node=str(fields["node"]),
            group=str(fields["group"]),
            role=Role(str(fields["role"])),
            address=str(fields["address"]),
            status=InstanceStatus(str(fields["status"])),
            created_at=datetime.fromisoformat(str(fields["created_at"])),
            labels=dict(fields.get("labels", {})),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise UnexpectedOutput("provider service", str(fields)) from error
