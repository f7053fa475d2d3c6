"""The commands ``checks``: what is checked, what each check means, and one run of it by hand.

``run`` works on a node, in this process and with the same parts as the agent, so that a check can be tried while the
agent goes on. Its exit codes are those of Nagios plugins.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyperpod.cli import render
from hyperpod.cli.health import AgentSilent, ask
from hyperpod.cli.options import OutputOption, examples, place_of
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, print_result
from hyperpod.core.explains import Exits, explains
from hyperpod.core.finding import Finding, Severity, observed, worst_severity
from hyperpod.core.node import Role
from hyperpod.core.policy import Mode
from hyperpod.errors import AccessDenied, ConfigError, NotFound, UsageError
from hyperpod.health import registry
from hyperpod.health.check import TWO_OF_THREE, About, Check, Damping, Ports, Result, Settings, stages
from hyperpod.health.checks import kernel_log
from hyperpod.health.elsewhere import Place as Where
from hyperpod.health.runner import CHECK_FAILED, CHECK_HANGS, overridden
from hyperpod.health.users import FOLDER, PREFIX, Found

if TYPE_CHECKING:
    from hyperpod.agent.settings import AgentSettings

_YEAR_S = 365 * 86400.0

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a check, such as disk.")]
NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of checks, such as disk memory.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    shown = examples("hyperpod checks list", "hyperpod checks describe kernel_log", "hyperpod checks run disk memory")
    checks = typer.Typer(
        help="Health checks: what there is, what each means, one run by hand.", no_args_is_help=True, epilog=shown
    )
    checks.callback()(lambda: None)
    checks.command("list", epilog=examples("hyperpod checks list", "hyperpod checks list --output json"))(list_checks)
    checks.command("describe", epilog=examples("hyperpod checks describe disk", "hyperpod checks describe kernel_log"))(
        describe
    )
    checks.command(
        "run", epilog=examples("hyperpod checks run disk", "hyperpod ssh worker-2 -- hyperpod checks run disk memory")
    )(run)
    checks.command(
        "import-nhc", epilog=examples("hyperpod checks import-nhc /etc/nhc/nhc.conf", "hyperpod checks import-nhc -")
    )(import_nhc)
    app.add_typer(checks, name="checks")


# --- list and describe --------------------------------------------------------------------------------------------


def list_checks(ctx: typer.Context, output: OutputOption = Output.TABLE) -> None:
    """List the checks with their rhythm and policy.

    On a node the policy is the one in force there; elsewhere it is what holds when a specification says nothing.
    """
    place = place_of(ctx)
    policy = policy_here(place)
    rows = [_row(name, registry.policy_of(name, policy)) for name in registry.names()]
    found = users_here(place)
    rows += [_users_row(check, check.name in found.observe_only) for check in found.checks]
    if output is Output.JSON:
        print_json(rows)
        return
    columns = ("CHECK", "MODE", "RUNS ON", "EVERY", "DAMPING", "STAGES", "ROLES", "WHAT")
    cells = []
    for r in rows:
        rhythm = (_every(r), _of(r["damping"]), ", ".join(r["stages"]))
        cells.append((r["name"], r["mode"], r["runs_on"], *rhythm, _roles(r["roles"]), r["title"]))
    print_result(render.table(columns, cells))


def policy_here(place: Place) -> Mapping[str, Settings]:
    """Return the policy in force on this node; off a node nothing is said, so the defaults hold."""
    if not place.is_node:
        return {}
    return registry.parse_settings(place.node_settings().health)


def users_here(place: Place) -> Found:
    """Return the checks that users have brought to this node; nothing where they cannot be seen."""
    if not place.is_node or not place.is_root:
        return Found()
    from hyperpod.agent.__main__ import UserChecks

    return UserChecks(place.node_host(), policy_here(place)).find()


def _users_row(check: Check, is_observed: bool) -> dict[str, Any]:
    return {
        "name": check.name,
        "title": check.about.title,
        "mode": (Mode.OBSERVE if is_observed else Mode.ACT).value,
        "runs_on": Where.NODE.value,
        "interval_s": check.interval_s,
        "damping": [check.damping.needed, check.damping.of],
        "stages": list(stages(check)),
        "roles": sorted(role.value for role in check.roles),
        "overrides": {},
    }


def _row(name: str, own: Settings) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "title": registry.about(name).title,
        "mode": own.mode.value,
        "runs_on": registry.place(name).value,
        "interval_s": None,
        "damping": None,
        "stages": ["quick"] if name == kernel_log.NAME else [],
        "roles": sorted(role.value for role in registry.roles(name)),
        "overrides": {code: severity.name.lower() for code, severity in own.overrides.items()},
    }
    if name in registry.CHECKS:
        check = registry.build_check(name, own)
        row |= {
            "interval_s": check.interval_s,
            "damping": [check.damping.needed, check.damping.of],
            "stages": list(stages(check)),
        }
    return row


def _every(row: Mapping[str, Any]) -> str:
    seconds = row["interval_s"]
    if seconds is None:
        return registry.rhythm(row["name"])
    # A check with a rhythm of years runs at its stages only.
    return "never" if seconds >= _YEAR_S else render.duration(seconds).replace(".0 ", " ")


def _of(damping: Sequence[int] | None) -> str:
    return "-" if damping is None else f"{damping[0]} of {damping[1]}"


def _roles(words: Sequence[str]) -> str:
    return "all" if len(words) == len(Role) else ", ".join(words)


def describe(ctx: typer.Context, name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Say everything about one check: what it reads, what a finding means, what is done, codes and settings."""
    place = place_of(ctx)
    own = registry.policy_of(name, policy_here(place))
    if name.startswith(PREFIX):
        answer = _users_description(place, name, own)
    else:
        registry.check_name(name)
        in_force = dict(own.values)
        settings = [
            (row.name, row.default, in_force.get(row.name, row.default), row.why) for row in registry.setting_rows(name)
        ]
        answer = _described(_row(name, own), registry.about(name), registry.codes(name), settings)
    if output is Output.JSON:
        print_json(answer)
        return
    rhythm = f"{_every(answer)}, damping {_of(answer['damping'])}, {', '.join(answer['stages']) or 'no stage'}"
    print_result(
        f"{name}: {answer['title']}",
        "",
        f"Mode:    {answer['mode']}",
        f"Runs:    on the {answer['runs_on']}, {rhythm}",
        f"Roles:   {_roles(answer['roles'])}",
        f"Reads:   {answer['reads']}",
        f"Means:   {answer['means']}",
        f"Does:    {answer['does']}",
        f"Source:  {answer['source']}",
        "",
        render.table(
            ("CODE", "MEANS", "EXPLAINS"),
            [(code, means, answer["explains"].get(code, "-")) for code, means in answer["codes"].items()],
        ),
        "",
        render.table(
            ("SETTING", "DEFAULT", "IN FORCE", "WHY"),
            [(s["name"], _text(s["default"]), _text(s["in_force"]), s["why"]) for s in answer["settings"]],
        )
        if answer["settings"]
        else registry.settings_elsewhere(name),
    )


def _described(
    row: Mapping[str, Any], about: About, codes: Mapping[str, str], settings: Sequence[tuple[str, object, object, str]]
) -> dict[str, Any]:
    return {
        **row,
        "reads": about.reads,
        "means": about.means,
        "does": about.does,
        "source": about.source,
        "codes": dict(codes),
        "explains": {c: word.value for c in codes if (word := explains(row["name"], c)) is not Exits.NONE},
        "settings": [
            {"name": setting, "default": plain(default), "in_force": plain(in_force), "why": why}
            for setting, default, in_force, why in settings
        ],
    }


def _users_description(place: Place, name: str, own: Settings) -> dict[str, Any]:
    check, policy = _users_check(place, name, own)
    settings = [
        ("interval_s", 60.0, check.interval_s, "Seconds between two runs, by its header or the specification."),
        ("deadline_s", 10.0, check.deadline_s, "Seconds that a run may take."),
        ("damping", TWO_OF_THREE, check.damping, "[n, m]: counts when seen in n of the last m runs."),
    ]
    return _described(_users_row(check, policy.mode is Mode.OBSERVE), check.about, check.about.codes, settings)


def plain(value: object) -> Any:
    """Return a setting's value as JSON has it."""
    if isinstance(value, Damping):
        return [value.needed, value.of]
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- run ----------------------------------------------------------------------------------------------------------


def run(ctx: typer.Context, names: NamesArgument, output: OutputOption = Output.TABLE) -> None:
    """Run checks once, now, on this node, and print what they find.

    Needs root. Nothing is reported to the controller and nothing is drained. Exit codes as Nagios: 0 OK, 1 WARN,
    2 FATAL, 3 UNKNOWN. Checks that compare counters with an earlier look have nothing to compare with here.
    """
    place = place_of(ctx)
    for name in names:
        if not name.startswith(PREFIX):
            registry.check_name(name)
        why = registry.not_by_hand(name)
        if why:
            raise UsageError(f"{name} cannot be run by hand: {why}")
    if not place.is_node:
        raise UsageError(
            "checks run on nodes, and this machine is none",
            hint=f"hyperpod ssh NODE -- hyperpod checks run {' '.join(names)}",
        )
    if not place.is_root:
        raise AccessDenied("checks read what only root may", hint="put sudo before the command")
    settings = place.node_settings()
    policy = registry.parse_settings(settings.health)
    answers = [_run_one(place, settings, name, registry.policy_of(name, policy)) for name in dict.fromkeys(names)]
    worst = worst_severity(finding for answer in answers for finding in answer.findings)
    if worst is Severity.OK and any(answer.not_ready for answer in answers):
        worst = Severity.WARN
    if output is Output.JSON:
        print_json({"severity": worst.name, "checks": [answer.to_dict() for answer in answers]})
    else:
        print_result(*(line for answer in answers for line in answer.lines()))
    raise typer.Exit(int(worst))


class Answer:
    """What one run by hand gave."""

    def __init__(self, name: str, own: Settings, damping: Damping | None, result: Result, took_s: float) -> None:
        self.name = name
        self.mode = own.mode
        self.damping = damping
        self.not_ready = result.not_ready
        self.inventory = dict(result.inventory)
        self.took_s = took_s
        findings = [overridden(f, own.overrides.get(f.code)) for f in result.findings]
        if own.mode is not Mode.ACT:
            findings = [observed(f) for f in findings]
        self.findings: tuple[Finding, ...] = tuple(findings)

    def counts(self, finding: Finding) -> str:
        """Say when such a finding counts."""
        is_at_once = finding.is_hard or finding.severity is Severity.UNKNOWN or self.damping is None
        return "at once" if is_at_once else f"when seen {_of((self.damping.needed, self.damping.of))}"  # type: ignore[union-attr]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "check": self.name,
            "severity": worst_severity(self.findings).name,
            "mode": self.mode.value,
            "took_s": round(self.took_s, 3),
            "not_ready": self.not_ready,
            "inventory": self.inventory,
            "findings": [f.to_dict() | {"counts": self.counts(f)} for f in self.findings],
        }

    def lines(self) -> list[str]:
        """Return lines for people."""
        head = f"{worst_severity(self.findings).name} {self.name}"
        if self.mode is not Mode.ACT:
            head += f" ({self.mode.value})"
        if not self.findings:
            head += f": {self.not_ready or 'nothing found'}"
        lines = [head]
        for f in self.findings:
            where = f" [{f.device}]" if f.device else ""
            action = f", {f.action.value}" if f.severity is Severity.FATAL else ""
            lines.append(
                f"  {f.severity.name} {f.code}{where}: {f.message} (counts {self.counts(f)}{action}, {f.whose.value})"
            )
        if self.inventory:
            lines.append("  counted: " + ", ".join(f"{key} {value}" for key, value in self.inventory.items()))
        return lines


def _run_one(place: Place, settings: AgentSettings, name: str, own: Settings) -> Answer:
    from hyperpod.agent.facts import facts_from

    host = place.node_host()
    started = time.monotonic()
    if name.startswith(PREFIX):
        check, own = _users_check(place, name, own)
    elif name == kernel_log.NAME:
        return Answer(name, own, None, _read_kernel_log(settings, host, own), time.monotonic() - started)
    else:
        check = registry.build_check(name, own)
    if settings.role not in check.roles:
        allowed = ", ".join(sorted(role.value for role in check.roles))
        raise UsageError(f"{name} does not run on a {settings.role.value} node", hint=f"it runs on: {allowed}")
    facts = facts_from(settings, host.now(), host.uptime_s(), clock_offset_s=_clock_offset(settings))
    result = run_within(check, place.node_ports(host, facts))
    return Answer(name, own, check.damping, result, time.monotonic() - started)


def _users_check(place: Place, name: str, own: Settings) -> tuple[Check, Settings]:
    found = users_here(place)
    check = next((check for check in found.checks if check.name == name), None)
    if check is None:
        known = ", ".join(check.name for check in found.checks) or "none"
        own_name = name.removeprefix(PREFIX)
        about_it = [f for f in found.findings if f.device.rpartition("/")[2].partition(".")[0] == own_name]
        refused = "; ".join(finding.message for finding in about_it or found.findings)
        raise ConfigError(f"there is no check {name!r} here; known: {known}", hint=refused or f"they are in {FOLDER}")
    mode = Mode.OBSERVE if name in found.observe_only else Mode.ACT
    return check, Settings(mode, own.overrides, own.values)


def run_within(check: Check, ports: Ports) -> Result:
    """Run a check in a thread that can be given up at its deadline; what it raises is UNKNOWN."""
    results: list[Result] = []

    def work() -> None:
        try:
            results.append(check.run(ports))
        except Exception as error:  # noqa: BLE001 - as in the agent: whatever a check raises, it could not tell
            text = f"the check {check.name} failed: {type(error).__name__}: {error}"
            results.append(Result((Finding(check.name, CHECK_FAILED, Severity.UNKNOWN, text[:300]),)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(check.deadline_s)
    if results:
        return results[0]
    text = f"the check {check.name} does not come back within {check.deadline_s:g} s"
    return Result((Finding(check.name, CHECK_HANGS, Severity.UNKNOWN, text),))


def _clock_offset(settings: AgentSettings) -> float | None:
    """Ask the agent how far the clock is off: only it hears the controller all the time."""
    try:
        answer = json.loads("\n".join(ask(settings.socket_path, {"v": 1, "type": "health"}, 2.0)))
        offset = answer["clock_offset_s"]
        return None if offset is None else float(offset)
    except (AgentSilent, ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_kernel_log(settings: AgentSettings, host: Any, own: Settings) -> Result:
    """Read the whole log of this boot, as an agent does that starts now."""
    from hyperpod.adapters.kmsg import KmsgReader
    from hyperpod.agent.__main__ import build_kernel_log, read_boot_id

    acting = Settings(Mode.ACT, own.overrides, own.values)
    log = build_kernel_log(settings, host, read_boot_id(settings, host), acting)
    reader = KmsgReader(settings.kmsg_path)
    has_more = True
    while has_more:
        batch = reader.read()
        if batch.error:
            log.unreadable(batch.error, host.monotonic())
        for raw in batch.records:
            log.feed(raw, host.monotonic())
        has_more = batch.has_more
    log.forget(host.monotonic())
    return Result(log.findings)


# --- import -------------------------------------------------------------------------------------------------------


def import_nhc(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An nhc.conf, or - for standard input.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Translate an nhc.conf into the part of a specification that does the same.

    The block goes to stdout, ready to be pasted; what is left out goes to stderr, one line each with the reason. Hosts
    are matched against node names (worker-1). Nothing is changed anywhere.
    """
    from hyperpod.health.nhc_import import import_conf, render_block

    result = import_conf(_text_of(file))
    if output is Output.JSON:
        print_json(
            {
                "block": render_block(result),
                "services": result.services,
                "lines": [line.text for line in result.lines],
                "is_observing": result.is_observing,
                "covered": [vars(trouble) for trouble in result.covered],
                "left_out": [vars(trouble) for trouble in result.left_out],
                "variables": result.variables,
            }
        )
        return
    sys.stdout.write(render_block(result))
    for word, troubles in (("covered", result.covered), ("left out", result.left_out)):
        for trouble in troubles:
            render.say(f"{file}:{trouble.number}: {word}: {' '.join(trouble.text.split())[:80]}: {trouble.why}")
    others = sorted(set(result.variables) - {"MARK_OFFLINE"})
    if others:
        render.say(f"{file}: settings of NHC itself, not needed: {', '.join(others)}")


def _text_of(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except OSError as error:
        raise NotFound(
            f"{file}: {error.strerror or error}", hint="NHC's file is /etc/nhc/nhc.conf by default"
        ) from error
