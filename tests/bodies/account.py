"""An account behind a socket: moto, with what it lacks and what its machines must do for real.

Owns the listeners and what is answered here instead of by moto: placement groups, and commands by Systems Manager,
which run on the bodies. Calls that end, stop, start or restart machines are passed through ``Machines`` first, so that
what EC2 says of a machine is true of its body.
"""

from __future__ import annotations

import io
import json
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_IP_FREEBIND = 15
"""Linux: the bridge's address comes and goes with the first and the last body; the listener stays."""
_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_BACKLOG = 128


class Machines(Protocol):
    """The bodies, as the account needs them."""

    @contextmanager
    def changing(self, action: str, ids: list[str], is_forced: bool) -> Iterator[None]:
        """Surround a call that changes the power of machines."""

    def run(self, instance_id: str, script: str, timeout_s: float) -> tuple[int, str, str]:
        """Run a script as root; LookupError if there is no such body, or it does not run."""


@dataclass
class Account:
    """The WSGI application. ``calls`` has every operation of EC2 and SSM with the access key that made it."""

    machines: Machines
    calls: list[tuple[str, str]] = field(default_factory=list)
    _groups: dict[str, dict[str, str]] = field(default_factory=dict)
    _commands: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _moto: Any = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kind = str(environ.get("CONTENT_TYPE") or "")
        if not kind.startswith(("application/x-www-form-urlencoded", "application/x-amz-json")):
            return self._moto(environ, start_response)  # type: ignore[no-any-return]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        target = str(environ.get("HTTP_X_AMZ_TARGET") or "")
        form = {} if target else {k: v[0] for k, v in parse_qs(body.decode()).items()}
        name = target or form.get("Action", "")
        _, _, credential = str(environ.get("HTTP_AUTHORIZATION") or "").partition("Credential=")
        self.calls.append((name, credential.partition("/")[0]))
        if name in ("AmazonSSM.SendCommand", "AmazonSSM.GetCommandInvocation"):
            answer = self._send if name.endswith("SendCommand") else self._invocation
            status, reply = answer(json.loads(body))
            start_response(f"{status} X", [("Content-Type", "application/x-amz-json-1.1")])
            return [json.dumps(reply).encode()]
        if name.endswith(("PlacementGroup", "PlacementGroups")):
            start_response("200 OK", [("Content-Type", "text/xml")])
            return [self._placement(name, form).encode()]
        if name in ("TerminateInstances", "StopInstances", "StartInstances", "RebootInstances"):
            ids = [value for key, value in form.items() if key.startswith("InstanceId.")]
            is_forced = form.get("Force") == "true"
            if form.get("DryRun") != "true":
                with self.machines.changing(name, ids, is_forced):
                    return list(self._moto(environ, start_response))
        return self._moto(environ, start_response)  # type: ignore[no-any-return]

    # --- Systems Manager

    def _send(self, request: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        command = str(uuid.uuid4())
        script = "\n".join(request["Parameters"]["commands"])
        timeout_s = float(request["Parameters"].get("executionTimeout", ["3600"])[0])
        for identity in request["InstanceIds"]:
            try:
                self.machines.run(identity, "true", 10)
            except LookupError:
                return 400, {"__type": "InvalidInstanceId", "message": f"Instances not in a valid state: {identity}"}
            self._commands[command, identity] = {"Status": "InProgress"}
            threading.Thread(target=self._run, args=(command, identity, script, timeout_s), daemon=True).start()
        return 200, {"Command": {"CommandId": command, "Status": "Pending", "InstanceIds": request["InstanceIds"]}}

    def _run(self, command: str, identity: str, script: str, timeout_s: float) -> None:
        try:
            code, stdout, stderr = self.machines.run(identity, script, timeout_s)
            done: dict[str, Any] = {"Status": "Failed" if code else "Success", "ResponseCode": code}
            done |= {"StandardOutputContent": stdout[:24000], "StandardErrorContent": stderr[:8000]}
        except (LookupError, TimeoutError):
            done = {"Status": "TimedOut", "ResponseCode": -1}
        self._commands[command, identity] = done

    def _invocation(self, request: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        found = self._commands.get((request["CommandId"], request["InstanceId"]))
        if found is None:
            return 400, {"__type": "InvocationDoesNotExist", "message": ""}
        return 200, {"CommandId": request["CommandId"], "InstanceId": request["InstanceId"], **found}

    # --- placement groups

    def _placement(self, name: str, form: Mapping[str, str]) -> str:
        inner = "<return>true</return>"
        if name == "CreatePlacementGroup":
            tags = {}
            for key, value in form.items():
                if key.startswith("TagSpecification.1.Tag.") and key.endswith(".Key"):
                    tags[value] = form.get(f"{key.removesuffix('Key')}Value", "")
            self._groups[form["GroupName"]] = tags
        elif name == "DeletePlacementGroup":
            self._groups.pop(form["GroupName"], None)
        else:
            wanted = {}
            for key, value in form.items():
                if key.startswith("Filter.") and key.endswith(".Name") and value.startswith("tag:"):
                    start = key.removesuffix("Name")
                    values = {v for k, v in form.items() if k.startswith(f"{start}Value.")}
                    wanted[value.removeprefix("tag:")] = values
            items = []
            for group, tags in self._groups.items():
                if all(tags.get(key) in values for key, values in wanted.items()):
                    own = "".join(
                        f"<item><key>{escape(k)}</key><value>{escape(v)}</value></item>" for k, v in tags.items()
                    )
                    items.append(
                        f"<item><groupName>{escape(group)}</groupName><state>available</state>"
                        f"<strategy>cluster</strategy><tagSet>{own}</tagSet></item>"
                    )
            inner = f"<placementGroupSet>{''.join(items)}</placementGroupSet>"
        return f'<{name}Response xmlns="{_NAMESPACE}"><requestId>x</requestId>{inner}</{name}Response>'


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing."""


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a listening socket at an address that need not be there yet."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
    listener.bind((address, port))
    listener.listen(_BACKLOG)
    return listener


@contextmanager
def serving(app: Any, address: str) -> Iterator[str]:
    """Answer requests at an address; yields the endpoint."""
    with listen(address) as listener:
        port = listener.getsockname()[1]
        server = make_server(address, port, app, threaded=True, request_handler=_Quiet, fd=listener.fileno())
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://{address}:{port}"
        finally:
            server.shutdown()
            thread.join(5)
