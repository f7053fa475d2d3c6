"""What becomes of an nhc.conf: a block for the specification, and what was left out with the reason. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hyperpod.health.nhc import COVERED, NOT_NEEDED, Line, Trouble, parse_conf
from hyperpod.health.nhc_tests import prepare

_OURS = frozenset({"slurmd", "munged", "munge"})
"""Services that the check ``service`` looks for anyway."""


@dataclass
class Imported:
    """The result.

    Attributes:
        services: For the setting ``services`` of the check ``service``.
        lines: For the setting ``lines`` of the check ``nhc``.
        is_observing: NHC was told not to mark nodes offline.
        covered: Lines that our own checks make needless.
        left_out: Lines that have no equal here, or are not understood.
        variables: Settings of NHC itself, which nothing here needs.
    """

    services: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    is_observing: bool = False
    covered: list[Trouble] = field(default_factory=list)
    left_out: list[Trouble] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def import_conf(text: str) -> Imported:
    """Translate a whole file."""
    conf = parse_conf(text)
    result = Imported(left_out=list(conf.troubles), variables=dict(conf.variables))
    result.is_observing = conf.variables.get("MARK_OFFLINE") == "0"
    for line in conf.lines:
        _place(line, result)
    result.left_out.sort(key=lambda trouble: trouble.number)
    return result


def _place(line: Line, result: Imported) -> None:
    if line.check in COVERED:
        result.covered.append(Trouble(line.number, line.text, COVERED[line.check]))
        return
    if line.check in NOT_NEEDED:
        result.left_out.append(Trouble(line.number, line.text, NOT_NEEDED[line.check]))
        return
    service = _plain_service(line)
    if service in _OURS:
        result.covered.append(Trouble(line.number, line.text, "the check service looks for it"))
        return
    try:
        prepare(line)
    except ValueError as error:
        result.left_out.append(Trouble(line.number, line.text, str(error)))
        return
    if service and service not in result.services:
        result.services.append(service)
    elif not service:
        result.lines.append(line)


def _plain_service(line: Line) -> str:
    """Return the service that a line looks for on every node, if it asks for nothing more."""
    if line.target != "*":
        return ""
    words = [word for word in line.arguments if word not in ("-S", "-r", "-c", "-s", "-k")]
    is_plain = len(words) == 1 and not words[0].startswith("-")
    is_service = line.check in ("check_ps_service", "check_ps_daemon")
    return words[0].removesuffix(".service") if is_plain and is_service else ""


def render_block(result: Imported) -> str:
    """Return the block of the specification, in YAML."""
    out = ["Hyperpod:", "  Health:", "    Checks:"]
    if result.services:
        listed = ", ".join(json.dumps(service) for service in result.services)
        out += ["      service:", f"        Settings: {{services: [{listed}]}}"]
    if result.lines:
        out.append("      nhc:")
        if result.is_observing:
            out.append("        Mode: observe    # the file says MARK_OFFLINE=0")
        out += ["        Settings:", "          lines:"]
        out += [f"            - {json.dumps(' '.join(line.text.split()))}" for line in result.lines]
    if len(out) == 3:
        out[2] = "    Checks: {}"
    return "\n".join(out) + "\n"
