"""One question to the controller and its answer, as values; also the hidden command ``hyperpod ask``.

On a node the question goes to the controller's port, signed by the caller's munge credential. From the machine that
carries a local cluster it goes through ``hyperpod ask JSON`` run on the head node, so that both ways have one form.
Must stay light: it runs for every refresh of a screen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hyperpod import errors
from hyperpod.core import messages as words
from hyperpod.errors import ConfigError, ConnectionLost, HyperpodError, UsageError

QUERY_TIMEOUT_S = 8.0
COMMAND_TIMEOUT_S = 15.0
"""The controller itself answers a command within 10 s, if only to say that it is busy."""

Send = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
"""Sends a message and returns the reply, within so many seconds."""


class Controller:
    """Asks the controller of one cluster. ``send`` is the way to it."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def query(self, what: str, **args: Any) -> Any:
        """Return the answer to a question, see ``controller/queries.py``.

        Raises:
            ConnectionLost: The controller does not answer.
            HyperpodError: What the controller said, in its own class.
        """
        return result_of(self._send({"type": words.QUERY, "what": what, "args": args}, QUERY_TIMEOUT_S))

    def command(self, what: str, **args: Any) -> str:
        """Have the controller do something and return what it did, see ``controller/commands.py``."""
        return str(result_of(self._send({"type": words.COMMAND, "what": what, "args": args}, COMMAND_TIMEOUT_S)))


def result_of(reply: Mapping[str, Any]) -> Any:
    """Return the result in a reply, or raise the error that it tells, in its own class and with its exit code."""
    if reply.get("ok"):
        return reply.get("result")
    raise error_from(reply)


def error_from(reply: Mapping[str, Any]) -> HyperpodError:
    """Return the error that a reply tells; one of an unknown name is a plain ``HyperpodError``."""
    kind = getattr(errors, str(reply.get("error", "")), HyperpodError)
    if not (isinstance(kind, type) and issubclass(kind, HyperpodError)):
        kind = HyperpodError
    # Some classes build their message from other arguments; the message here is finished already.
    error = kind.__new__(kind)
    HyperpodError.__init__(error, str(reply.get("message") or "no message"), hint=str(reply.get("hint") or ""))
    return error


def reply_of(error: HyperpodError) -> dict[str, Any]:
    """Return the reply that tells an error."""
    return {"ok": False, "error": type(error).__name__, "message": error.message, "hint": error.hint}


def send_from_node(head_address: str, port: int) -> Send:
    """Return the way to the controller from a node of its cluster."""

    def send(message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        from hyperpod.adapters.munge import Munge
        from hyperpod.adapters.wire import request

        return request(head_address, port, message, Munge(), timeout_s)

    return send


def send_by_agent_config(path: Path) -> Send:
    """Return the way to the controller that the node's agent uses.

    Raises:
        ConfigError: The agent's configuration cannot be read.
    """
    from hyperpod.agent.settings import parse_settings

    try:
        settings = parse_settings(path.read_text(), str(path))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}",
            hint="this machine is no ready node of a cluster; see /var/log/provision/provisioning.log",
        ) from error
    return send_from_node(settings.head_address, settings.controller_port)


def parse_reply(text: str, head: str) -> Mapping[str, Any]:
    """Read what ``hyperpod ask`` printed on a head node.

    Raises:
        ConnectionLost: It is no reply.
    """
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        last = text.strip().splitlines()[-1][:200] if text.strip() else "no answer"
        raise ConnectionLost(
            f"the head node {head} does not answer for its controller: {last}",
            hint=f"hyperpod ssh {head} -- systemctl status hyperpod-controller",
        )
    return reply


def main(argv: list[str], agent_config: Path) -> int:
    """Send the message in ``argv`` and print the reply, which also tells errors. Always 0 when there is a reply."""
    try:
        message = json.loads(argv[0])
        timeout_s = float(argv[1])
        if not isinstance(message, dict):
            raise UsageError("ask: the message must be a JSON object")
        reply = send_by_agent_config(agent_config)(message, timeout_s)
    except (IndexError, ValueError):
        reply = reply_of(UsageError("ask: needs a message in JSON and a number of seconds"))
    except HyperpodError as error:
        reply = reply_of(error)
    sys.stdout.write(json.dumps(reply) + "\n")
    return 0
