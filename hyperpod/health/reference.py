"""Writes docs/reference/checks.md from what the checks say of themselves. Pure: returns the page's text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hyperpod.core.explains import EXPLAINING_XIDS, Exits, explains
from hyperpod.core.finding import Severity, Whose
from hyperpod.core.node import Role
from hyperpod.health import registry
from hyperpod.health.check import Damping, stages
from hyperpod.health.checks import kernel_log
from hyperpod.health.xid import NVLINK5_CODES, RECOVERY_ACTIONS, XIDS, Xid

OUR_JUDGEMENT_FROM = 159
"""The vendor's catalogue that we read names no action for this code and above."""

_LINE_DECIDES = frozenset({74, 154, 147, 148, *NVLINK5_CODES})

_HEAD = """# Health checks

<!-- Generated from the checks' own descriptions by tools/reference.py; do not edit. -->

Every check: what it reads, what a finding means, what is done about it, its codes and its settings.
[The guide](../guides/health-checks.md) says how findings are judged, and how policy is set per cluster and group.
`hyperpod checks list`, `describe NAME` and `run NAME` show the same on the command line.

- **Damping** *n of m*: a soft finding counts when it was seen in *n* of the last *m* runs. Hard facts count at once.
- **Stages**, beside the rhythm: *before the first job* of a boot the check must have passed once; *job start* and
  *job end* run when a job's first task comes to the node and when its last one has left; *quick* ones run on all
  nodes of a job that has failed.
- **Runs on**: the *node* itself, or the *controller*, which sees all nodes and asks Slurm and EC2.
- Every check with a rhythm has the settings `interval_s`, `deadline_s` and `damping`, and the codes `CheckHangs` (a
  run did not come back within its deadline) and `CheckFailed` (the check itself failed). Both are UNKNOWN and drain
  nothing.
- **Explains**: which exits of a job's rank the finding can be the cause of. Only such a finding convicts its node
  together with the first exit; all others make the node a suspect ([who was it](../guides/who-was-it.md)).
"""


def render_checks() -> str:
    """Return the page."""
    names = registry.names()
    lines = [_HEAD, "| Check | What | Runs on | Every | Damping | Stages | Roles |", "|---|---|---|---|---|---|---|"]
    lines += [_overview(name) for name in names]
    for name in names:
        lines += ["", *_section(name)]
    lines += ["", *_xids()]
    return "\n".join(lines) + "\n"


def _overview(name: str) -> str:
    roles = registry.roles(name)
    where = "all" if len(roles) == len(Role) else ", ".join(sorted(role.value for role in roles))
    link = f"[`{name}`](#{name})"
    title = _cell(registry.about(name).title)
    if name in registry.OTHERS:
        stage = "quick" if name == kernel_log.NAME else ""
        return f"| {link} | {title} | {registry.place(name).value} | {registry.rhythm(name)} | - | {stage} | {where} |"
    check = registry.build_check(name)
    rhythm = f"{check.interval_s:g} s | {check.damping.needed} of {check.damping.of}"
    return f"| {link} | {title} | node | {rhythm} | {', '.join(stages(check))} | {where} |"


def _section(name: str) -> Iterator[str]:
    about = registry.about(name)
    yield f"## {name}"
    yield ""
    yield f"{about.title}."
    yield ""
    for word, text in (
        ("Reads", about.reads),
        ("Means", about.means),
        ("We do", about.does),
        ("Source", about.source),
    ):
        yield f"- **{word}**: {_escaped(text)}"
    yield ""
    yield "| Code | Means | Explains |"
    yield "|---|---|---|"
    for code, text in about.codes.items():
        yield f"| `{code}` | {_cell(text)} | {_explained(name, code)} |"
    rows = registry.setting_rows(name)
    if not rows:
        yield ""
        yield registry.settings_elsewhere(name)
        return
    yield ""
    yield "| Setting | Default | Why |"
    yield "|---|---|---|"
    for row in rows:
        yield f"| `{row.name}` | `{_cell(_value(row.default))}` | {_cell(row.why)} |"


def _explained(check: str, code: str) -> str:
    if check == kernel_log.NAME and code == "Xid<N>":
        return "see the table"
    word = explains(check, code)
    return "" if word is Exits.NONE else word.value


def _value(value: object) -> str:
    if isinstance(value, Damping):
        return f"[{value.needed}, {value.of}]"
    return json.dumps(list(value) if isinstance(value, (tuple, list)) else value, default=str)


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_XID_HEAD = """## NVIDIA Xid codes

What `kernel_log` makes of each code. *App*: the application's fault most of the time; evidence, never a drain.
A mark in the last column: **L** the line itself decides (its word Fatal or Nonfatal, its register bits, or the
recovery action after "to"), and the row holds when the line is cut off; **J** our judgement, because the vendor's
catalogue that we read names no action. Numbers that are not listed are WARN.

| Xid | Meaning | Severity | Action | |
|---|---|---|---|---|"""

_RECOVERY_HEAD = """
Recovery actions that Xid 154 names:

| Value | Name | Severity | Action |
|---|---|---|---|"""


def _xids() -> Iterator[str]:
    yield _XID_HEAD
    for code, xid in sorted(XIDS.items()):
        yield f"| {code} | {_cell(xid.meaning)} | {_severity(xid)} | {xid.action.value} | {_mark(code)} |"
    yield ""
    yield f"Explain any exit of a rank: {', '.join(str(code) for code in sorted(EXPLAINING_XIDS))}."
    yield _RECOVERY_HEAD
    for value, (name, severity, action) in RECOVERY_ACTIONS.items():
        yield f"| {value} | {name} | {severity.name} | {action.value} |"


def _severity(xid: Xid) -> str:
    if xid.whose is Whose.USER:
        return "App"
    return "information" if xid.severity is Severity.OK else xid.severity.name


def _mark(code: int) -> str:
    return "L" if code in _LINE_DECIDES else "J" if code >= OUR_JUDGEMENT_FROM else ""
