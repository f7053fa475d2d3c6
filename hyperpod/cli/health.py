"""``hyperpod health``: what the agent of this node thinks of it, and why.

Asks the running agent over its socket, so it needs root. Exit codes are those of Nagios plugins: 0 healthy, 1 a
person should look, 2 the node must not work, 3 unknown (the agent does not answer).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from hyperpod.cli import deep, explain, health_report, offenders, render
from hyperpod.cli.render import Output
from hyperpod.core.finding import Finding, Severity, worst_severity
from hyperpod.errors import HyperpodError

SOCKET = "/run/hyperpod/agent.sock"
TIMEOUT_S = 5.0
_MAX_BYTES = 1_000_000

HEALTH_HELP = """Say what the agent of this node thinks of it, and why.

Run it on a node, as root. Exit codes as Nagios: 0 OK, 1 WARN, 2 FATAL, 3 UNKNOWN.

Examples:

    hyperpod health

    hyperpod ssh worker-2 -- hyperpod health --output json
"""


class AgentSilent(HyperpodError):
    """The agent cannot be asked, so the node's health is unknown."""

    exit_code = int(Severity.UNKNOWN)


def ask(path: str, request: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> list[str]:
    """Send one request to the agent's socket and return the lines of its answer.

    Raises:
        AgentSilent: if it may not be asked, is not there, or does not answer.
    """
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(path)
            sock.sendall(json.dumps(request).encode() + b"\n")
            while data != b".\n" and not data.endswith(b"\n.\n"):
                part = sock.recv(65536)
                if not part:
                    raise AgentSilent("the agent closed the connection", hint="journalctl -u hyperpod-agent")
                data += part
                if len(data) > _MAX_BYTES:
                    raise AgentSilent("the agent's answer is too long", hint="journalctl -u hyperpod-agent")
    except PermissionError as error:
        raise AgentSilent("only root may ask the agent", hint="sudo hyperpod health") from error
    except FileNotFoundError as error:
        hint = "systemctl status hyperpod-agent; run this on a node, e.g. hyperpod ssh worker-1 -- hyperpod health"
        raise AgentSilent(f"there is no agent here ({path} does not exist)", hint=hint) from error
    except OSError as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise AgentSilent(
            f"the agent at {path} does not answer: {why}", hint="systemctl status hyperpod-agent"
        ) from error
    return data.decode(errors="replace").splitlines()[:-1]


def verdict(answer: Mapping[str, Any]) -> Severity:
    """Return the node's severity: the worst finding's, at least WARN while the node is not ready."""
    worst = worst_severity(Finding.from_dict(item) for item in answer["findings"])
    return Severity.WARN if worst is Severity.OK and not answer["is_ready"] else worst


def register(app: typer.Typer) -> None:
    """Add the commands to the program: ``health`` by itself asks the agent, its subcommands don't."""
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=False)

    @group.callback(invoke_without_command=True)
    def health(
        ctx: typer.Context,
        output: Annotated[Output, typer.Option("--output", "-o", help="Form of the answer.")] = Output.TABLE,
        path: Annotated[str, typer.Option("--socket", help="The agent's socket.", hidden=True)] = SOCKET,
    ) -> None:
        if ctx.invoked_subcommand is None:
            _health(output, path)

    explain.register(group)
    health_report.register(group)
    group.command("deep", epilog=deep.EPILOG)(deep.deep)
    group.command("offenders", epilog=offenders.EPILOG)(offenders.offenders)
    app.add_typer(group, name="health", help=HEALTH_HELP)


def _health(output: Output, path: str) -> None:
    if path == SOCKET and os.geteuid() != 0:
        raise AgentSilent("only root may ask the agent", hint="sudo hyperpod health")
    lines = ask(path, {"v": 1, "type": "health"})
    try:
        answer = json.loads("\n".join(lines))
        severity = verdict(answer)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AgentSilent("the agent's answer is not understood", hint="journalctl -u hyperpod-agent") from error
    if output is Output.JSON:
        render.print_json({"severity": severity.name, **answer})
    else:
        _print(answer, severity)
    raise typer.Exit(int(severity))


def _print(answer: Mapping[str, Any], severity: Severity) -> None:
    """Print for people: the verdict, what is open, and what each check last said."""
    state = "ready" if answer["is_ready"] else f"not ready: {answer['not_ready_because']}"
    heard = "connected" if answer["is_connected"] else f"not connected, last heard {answer['heard_s_ago']:.0f} s ago"
    offset = answer["clock_offset_s"]
    clock = "unknown" if offset is None else f"{offset:+.3f} s"
    parts: list[Any] = [
        f"{severity.name} {answer['node']} ({answer['role']}, {answer['instance_id'] or 'no instance id'}), {state}",
        f"controller {heard}, its clock {clock}, {answer['waiting_reports']} reports waiting",
    ]
    if answer["findings"]:
        found = [
            (f["severity"], f"{f['check']}/{f['code']}", f["action"], f["whose"], render.when(f["since"]), f["message"])
            for f in answer["findings"]
        ]
        parts += ["", render.table(("SEVERITY", "FINDING", "ACTION", "WHOSE", "SINCE", "WHY"), found)]
    rows: list[Sequence[Any]] = [(c["name"], c["runs"], _state_of(c), c["last_problem"]) for c in answer["checks"]]
    if answer["kernel_lines"] is not None:
        rows.append(("kernel_log", answer["kernel_lines"], "reading", ""))
    parts += ["", render.table(("CHECK", "RUNS", "STATE", "LAST PROBLEM"), rows)]
    render.print_result(*parts)


def _state_of(check: Mapping[str, Any]) -> str:
    if check["hangs"]:
        return "hangs"
    return "running" if check["is_running"] else "done" if check["runs"] else "not yet run"
