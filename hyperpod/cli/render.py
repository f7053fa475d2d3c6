"""What people see: tables, one screen of status, the history of a job. JSON for programs.

Owns every form of output. Gets plain values as ``controller/queries.py`` answers them; asks nobody. Results go to
stdout, talk goes to stderr. Without a terminal nothing is coloured, cut or wrapped, so that lines can be searched.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_UNLIMITED = 4000
"""Columns when there is no terminal: as wide as the content."""


class Output(StrEnum):
    """Form of the results on stdout."""

    TABLE = "table"
    JSON = "json"


def say(text: str) -> None:
    """Tell the person something; never part of the result."""
    sys.stderr.write(printable(text, keep="\n\t") + "\n")
    sys.stderr.flush()


def printable(text: str, keep: str = "") -> str:
    """Return a text with every character shown that would otherwise act on the terminal.

    Names of jobs, comments and paths are their users' choice, and administrators look at them: an escape sequence, a
    line break or a change of writing direction must not be able to show them something that is not so.

    Args:
        text: Any text.
        keep: Control characters to leave as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c == " " or c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode() if ord(character) < 0xD800 or ord(character) > 0xDFFF else "?"


def cleaned(value: Any) -> Any:
    """Return an answer with every text in it made ``printable``."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Print a result for programs."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def print_json_line(value: Any) -> None:
    """Print one of many results, one a line, at once."""
    sys.stdout.write(json.dumps(value, default=_plain) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def console_for(stream: TextIO) -> Console:
    """Return a console that prints texts as they are: no mark-up, no guessing of colours."""
    from rich.console import Console

    is_terminal = stream.isatty()
    width = None
    if not is_terminal:
        width = int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdecimal() else _UNLIMITED
    return Console(
        file=stream, width=width, force_terminal=is_terminal, markup=False, highlight=False, emoji=False,
        no_color=None if is_terminal else True,
    )  # fmt: skip


def print_result(*parts: RenderableType) -> None:
    """Print renderables or texts to stdout, without blanks at the ends of lines."""
    target = console_for(sys.stdout)
    buffer = io.StringIO()
    real, target.file = target.file, buffer
    for part in parts:
        text = printable(part, keep="\n\t") if isinstance(part, str) else part
        target.print(text, soft_wrap=isinstance(part, str))
    target.file = real
    sys.stdout.write("".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines()))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> Table:
    """Return a table without lines. Numbers stand right; a cell that is None or empty is shown as ``-``.

    Args:
        columns: Headings. The last column takes the room that is left, and is folded when there is too little.
        rows: Cells by column.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(value) for value in row] for row in rows]
    made = Table(box=None, pad_edge=False, title=title or None, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        is_last = number == len(columns) - 1
        texts = {row[number] for row in cells} - {"-"}
        is_number = bool(texts) and all(map(_is_number, texts))
        # A word cut in two cannot be copied; only the last column, a sentence, is folded.
        made.add_column(
            name, justify="right" if is_number else "left", no_wrap=not is_last, overflow="fold",
            min_width=None if is_last else min(len(name), 20),
        )  # fmt: skip
    for row in cells:
        made.add_row(*(Text(cell, style=_style(columns[number], cell)) for number, cell in enumerate(row)))
    return made


def _cell(value: Any) -> str:
    if value is None or value == "" or value == [] or value == ():
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(",".join(map(str, value)))
    return printable(" ".join(str(value).split()))


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


_GOOD = ("idle", "in use", "spare", "running", "completed", "ok", "ready", "set up", "Completed")
_BAD = ("down", "held", "failed", "node_fail", "gone", "missing", "NodeDead", "NodeUnhealthy", "ApplicationFailed")


def _style(column: str, cell: str) -> str:
    if column not in ("STATE", "STATUS", "INSTANCE STATE", "CAUSE", "MACHINE", "BIRTH"):
        return ""
    word = cell.split(" (")[0]
    if word in _GOOD:
        return "green"
    return "red" if word in _BAD else "yellow" if cell != "-" else ""


# --- values -----------------------------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """Return a length of time for people: ``0.8 s``, ``42 s``, ``12 min``, ``3.5 h``, ``2 d``."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


def when(text: str | None) -> str:
    """Return an instant in this machine's zone, to the second."""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S") if text else ""


def clock_time(text: str | None) -> str:
    """Return the time of day of an instant, in this machine's zone."""
    return datetime.fromisoformat(text).astimezone().strftime("%H:%M:%S") if text else ""


def between(first: str | None, second: str | None) -> float | None:
    """Return the seconds from one instant to another; None when one is not known."""
    if not first or not second:
        return None
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


# --- status -----------------------------------------------------------------------------------------------------


def status_screen(status: Mapping[str, Any]) -> list[RenderableType]:
    """Return the one screen of a cluster: nodes, jobs, repairs, spares, budget, notes."""
    status = cleaned(status)
    nodes: list[Mapping[str, Any]] = status["nodes"]
    counts: dict[str, int] = {}
    for node in nodes:
        counts[str(node["state"])] = counts.get(str(node["state"]), 0) + 1
    summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no workers"
    parts: list[RenderableType] = [f"cluster {status['cluster']} at {when(status['at'])}: {summary}"]
    if status["missing"]:
        parts.append(f"not seen, so nothing is destroyed now: {', '.join(status['missing'])}")
    parts += ["", nodes_table(nodes)]
    if status["jobs"]:
        parts += ["", jobs_table(status["jobs"])]
    if status["repairs"]:
        parts += ["", "repairs under way"]
        parts += [f"  {line}" for repair in status["repairs"] for line in repair_lines(repair)]
    parts += ["", *_reserve_lines(status)]
    repaired = {repair["node"] for repair in status["repairs"]}
    notes = [note for note in status["notes"] if note["code"] not in _PHASES or note.get("node") not in repaired]
    parts += [f"note    {_note(note)}" for note in notes]
    return parts


_OUR_REASON = re.compile(r"hyperpod:(?P<cause>\S+) (?P<message>.*?)(?: \[\w+\] \([^()]*\))?")
"""A reason of the controller, see ``core.node.drain_reason``."""

_PHASES = ("Rebooting", "Replacing", "Checking")
"""Notes that repeat what a repair's own line says."""


def repair_lines(repair: Mapping[str, Any]) -> list[str]:
    """Return a repair in one or two lines: state, try, since, cause, last error."""
    tries = f"try {repair['attempt']} of {repair['attempts']}, " if repair["status"] == "replacing" else ""
    line = f"{repair['node']}: {repair['status']} ({tries}since {duration(repair['since_s'])})"
    line += f", {repair['cause']}: {repair['message']}"
    return [line, *([f"    last error: {repair['last_error']}"] if repair["last_error"] else [])]


def _reserve_lines(status: Mapping[str, Any]) -> list[str]:
    spares = [f"{group} {spare['ready']} of {spare['wanted']} ready" for group, spare in status["spares"].items()]
    budget = status["budget"]
    lines = [
        f"spares  {', '.join(spares) or 'none configured'}",
        f"budget  {budget['under_repair']} of at most {budget['max_parallel_repaired']} repairs at a time; "
        f"repairs stop above {budget['unhealthy_limit']} unhealthy node{'' if budget['unhealthy_limit'] == 1 else 's'}",
    ]
    for cause, names in budget["open_breakers"].items():
        lines.append(
            f"breaker open: {cause} on {', '.join(names)}: one cause on many nodes. No repairs for it until "
            "somebody has looked; then: hyperpod breaker reset"
        )
    return lines


def _note(note: Mapping[str, Any]) -> str:
    about = note.get("node") or (f"job {note['job_id']}" if note.get("job_id") else "")
    start = f"{about}: " if about and not str(note["message"]).startswith(about) else ""
    return f"{start}{note['message']} ({note['code']})"


def nodes_table(nodes: Iterable[Mapping[str, Any]]) -> Table:
    """Return workers as the controller sees them."""
    return table(
        ("NODE", "STATE", "PARTITION", "INSTANCE", "HEARD", "JOBS", "FINDINGS AND REASON"),
        [
            (
                node["node"],
                node["state"],
                node["partition"],
                node["instance_id"],
                f"{duration(node['heartbeat_age_s'])} ago" if node["heartbeat_age_s"] is not None else "never",
                node["jobs"],
                _trouble(node),
            )
            for node in nodes
        ],
    )


def _trouble(node: Mapping[str, Any]) -> str:
    found = {f"{f['check']}/{f['code']}": f["message"] for f in node.get("findings", ())}
    reason = reason_of(node)
    ours = _OUR_REASON.fullmatch(reason)
    if ours is not None:
        # Machine and boot are for the controller; a drain for a finding that is shown says nothing more.
        reason = "" if ours["cause"] in found else f"{ours['cause']}: {ours['message']}"
    return "; ".join([*(f"{code}: {message}" for code, message in found.items()), *([reason] if reason else [])])


def reason_of(node: Mapping[str, Any]) -> str:
    """Return the reason for a node's state; Slurm keeps the last one, which says nothing of a node that works."""
    return "" if node.get("state") in ("idle", "in use", "spare") else str(node.get("reason") or "")


# --- jobs -------------------------------------------------------------------------------------------------------


def jobs_table(jobs: Iterable[Mapping[str, Any]]) -> Table:
    """Return jobs with what auto-resume thinks of them."""
    return table(
        ("JOB", "NAME", "USER", "STATUS", "ATTEMPT", "NODES", "RESUMED FROM", "REMARK"),
        [
            (
                job["job_id"],
                job["name"],
                job["user"],
                job["status"],
                _attempt_of(job),
                job["nodes"],
                _last_parts(job["resume_from"]),
                _remark(job),
            )
            for job in jobs
        ],
    )


def _attempt_of(job: Mapping[str, Any]) -> str:
    if not job["armed_by"]:
        return "-"
    return f"{job['attempt']} of {job['max_attempts']}" if job["max_attempts"] else str(job["attempt"])


def _last_parts(path: str) -> str:
    """Return the end of a path: the checkpoint's own name says enough in a table."""
    return path.rstrip("/").rpartition("/")[2] if path else ""


def _remark(job: Mapping[str, Any]) -> str:
    if job["verdict"]:
        return f"{job['verdict']}: {job['verdict_message']}"
    if job["status"] == "pending" and job["pending_reason"]:
        return str(job["pending_reason"])
    return "" if job["armed_by"] else "not armed: Slurm alone decides"


def job_page(job: Mapping[str, Any]) -> list[RenderableType]:
    """Return the history of one job: attempts, nodes, causes, evidence, checkpoints, what was lost."""
    job = cleaned(job)
    attempts: Sequence[Mapping[str, Any]] = job["attempts"]
    downs = [down_seconds(a, b) for a, b in itertools.pairwise(attempts)]
    facts = [
        ("job", f"{job['job_id']} {job['name']} of {job['user']}"),
        ("status", " ".join(x for x in (str(job["status"]), str(job["pending_reason"])) if x)),
        ("nodes", ", ".join(job["nodes"])),
        ("auto-resume", _armed(job)),
        ("checkpoints", job["checkpoint_dir"]),
        ("lost time", _lost_time(downs, job["lost_seconds"])),
        ("avoids", ", ".join(f"{node} ({machine})" for machine, node in job["avoids"].items())),
        ("verdict", f"{job['verdict']}: {job['verdict_message']}" if job["verdict"] else ""),
        ("who was it", job.get("who_was_it", "")),
    ]
    width = max(len(name) for name, _ in facts)
    parts: list[RenderableType] = [f"{name.ljust(width)}  {text}" for name, text in facts if text]
    if attempts:
        parts += ["", attempts_table(attempts)]
    evidence = [line for index, attempt in enumerate(attempts) for line in _evidence(attempt, attempts[index + 1 :])]
    if evidence:
        parts += ["", "what happened", *(f"  {line}" for line in evidence)]
    if job.get("events"):
        parts += ["", "events", *(f"  {event_line(event)}" for event in job["events"])]
    return parts


def _lost_time(downs: Sequence[float | None], ending_s: float) -> str:
    """Return how long nothing ran; before a job runs again only how long its attempts took to end is known."""
    if any(downs):
        return f"{duration(sum(down or 0.0 for down in downs))} from the failures seen until it ran again"
    return duration(ending_s) if ending_s else ""


def _armed(job: Mapping[str, Any]) -> str:
    if not job["armed_by"]:
        return "not asked for"
    by = {"job": "for the whole job", "step": "by srun in its script"}.get(job["armed_by"], job["armed_by"])
    most = f", at most {job['max_attempts']} attempts" if job["max_attempts"] else ""
    return f"{by}, attempt {job['attempt']}{most}"


def attempts_table(attempts: Sequence[Mapping[str, Any]]) -> Table:
    """Return the attempts of a job, one a line."""
    rows = []
    for index, attempt in enumerate(attempts):
        later = attempts[index + 1] if index + 1 < len(attempts) else None
        rows.append(
            (
                attempt["number"],
                when(attempt["started_at"]),
                duration(between(attempt["started_at"], attempt["ended_at"])),
                resume_text(attempt),
                lost_progress(attempt, later),
                duration(down_seconds(attempt, later)),
                attempt["cause"] or "running",
                attempt["nodes"],
            )
        )
    return table(("#", "STARTED", "RAN", "FROM", "PROGRESS", "DOWN", "CAUSE", "NODES"), rows)


def resume_text(attempt: Mapping[str, Any]) -> str:
    """Return what an attempt began with."""
    if not attempt["resume_from"]:
        return "the beginning"
    return f"step {attempt['resume_step']}" if attempt["resume_step"] >= 0 else _last_parts(attempt["resume_from"])


def lost_progress(attempt: Mapping[str, Any], later: Mapping[str, Any] | None) -> str:
    """Return what became of an attempt's progress: ``step 900 -> 400`` when the next began further back."""
    reached = attempt["last_step"]
    start = later["resume_step"] if later is not None and later["first_task_at"] else None
    if reached is None:
        # Nobody has looked after this attempt; what the next one was given is known.
        return f"step {start}" if start is not None and start >= 0 else ""
    if reached < 0:
        return ""
    if start is None or start >= reached:
        return f"step {reached}"
    return f"step {reached} -> {max(start, 0)}"


def down_seconds(attempt: Mapping[str, Any], later: Mapping[str, Any] | None) -> float | None:
    """Return how long nothing ran: from the end seen to the next attempt's first task."""
    if later is None:
        return None
    return between(attempt["failure_seen_at"] or attempt["ended_at"], later["first_task_at"])


def _evidence(attempt: Mapping[str, Any], rest: Sequence[Mapping[str, Any]]) -> list[str]:
    if not attempt["cause"]:
        return []
    lines = [f"attempt {attempt['number']}: {attempt['cause']}: {attempt['message'] or 'no message'}"]
    seen, decided = attempt["failure_seen_at"], attempt["decided_at"]
    later = rest[0] if rest else None
    steps = [f"seen {clock_time(seen)}"] if seen else []
    if decided and seen:
        steps.append(f"decided {duration(between(seen, decided))} later")
    down = down_seconds(attempt, later)
    if down is not None:
        steps.append(f"training again {duration(down)} after it was seen")
    if later is not None and later["resume_from"]:
        steps.append(f"went on from {later['resume_from']}")
    return [*lines, *([f"  {', '.join(steps)}"] if steps else []), *_attribution(attempt.get("attribution"))]


_EVIDENCE_SHOWN = 5


def _attribution(verdict: Mapping[str, Any] | None) -> list[str]:
    """Return who ended an attempt, with the weightiest evidence, a line each."""
    if not verdict:
        return []
    lines = [f"  who: {verdict['reason']}"]
    for piece in verdict["evidence"][:_EVIDENCE_SHOWN]:
        seen = clock_time(piece["when"]) if piece["when"] else "-"
        points = piece["node"] if piece["points_to"] == "node" else piece["points_to"]
        lines.append(f"    {piece['weight']:.2f} {points}  {seen}  {piece['what']}")
    more = len(verdict["evidence"]) - _EVIDENCE_SHOWN
    return [*lines, *([f"    and {more} more"] if more > 0 else [])]


def offenders_page(answer: Mapping[str, Any]) -> list[RenderableType]:
    """Return machines by how unlikely their faults are by chance, then those that failed jobs point at."""
    answer = cleaned(answer)
    parts: list[RenderableType] = []
    if answer["machines"]:
        rows = [
            (
                m["node"] or f"{m['was_node']} (gone)",
                m["identity"],
                m["faults"],
                f"{m['expected']:.2f}",
                f"{m['chance']:.1g}",
                "offender" if m["is_significant"] else "",
                m["causes"],
            )
            for m in answer["machines"]
        ]
        parts.append(table(("NODE", "MACHINE", "FAULTS", "EXPECTED", "CHANCE", "", "CAUSES"), rows))
    else:
        parts.append(f"no faults of nodes in {answer['window_days']} days")
    if answer["suspects"]:
        marked = [(s["node"], s["instance_id"], f"{s['suspicion']:.2f}", s["jobs"]) for s in answer["suspects"]]
        parts += ["", table(("NODE", "MACHINE", "SUSPICION", "JOBS"), marked)]
    # A controller of before does not tell it.
    if answer.get("excluded"):
        shunned = [
            (
                e["node"] or f"{e['was_node']} (gone)",
                e["instance_id"],
                f"{e['users']} of {e['of_users']}",
                f"{e['expected']:.2f}",
                f"{e['chance']:.1g}",
                "shunned" if e["is_significant"] else "",
            )
            for e in answer["excluded"]
        ]
        parts += ["", table(("NODE", "MACHINE", "EXCLUDED BY USERS", "EXPECTED", "CHANCE", ""), shunned)]
    if any(m["is_significant"] for m in answer["machines"]):
        done = (
            "replaced when their jobs have left" if answer["replaced"] else "only named (Repair.ReplaceOffenders: off)"
        )
        parts += ["", f"offenders are {done}"]
    return parts


# --- events and reasons -----------------------------------------------------------------------------------------


def event_line(event: Mapping[str, Any]) -> str:
    """Return an event as a line: time, kind, node or job, sentence."""
    event = cleaned(event)
    about = " ".join(x for x in (event["node"], f"job {event['job_id']}" if event["job_id"] else "") if x)
    return f"{when(event['at'])}  {event['kind']:<19}  {about:<15}  {event['message']}".rstrip()


def why_page(answer: Mapping[str, Any]) -> list[RenderableType]:
    """Return the walk from a job or node to its causes, and what comes next."""
    answer = cleaned(answer)
    parts: list[RenderableType] = []
    if "job" in answer:
        job = answer["job"]
        parts.append(f"job {job['job_id']} {job['name']} of {job['user']}: {job['status']}")
        parts += [f"  {line}" for line in answer["lines"]]
        for node in answer["nodes"]:
            parts += ["", *_node_lines(node["node"], node["lines"])]
    else:
        title = f"{answer['node']['node']}: {answer['node']['state']}"
        parts += _node_lines(title, [line for line in answer["lines"] if line != title])
    for birth in answer.get("births", ()):
        parts += ["", *birth_lines(birth)]
    return [*parts, "", f"next: {answer['next']}"]


def _node_lines(title: str, lines: Sequence[str]) -> list[str]:
    if lines and lines[0].startswith(f"{title}: "):
        title, *lines = lines
    return [f"node {title}", *(f"  {line}" for line in lines)]


def birth_lines(birth: Mapping[str, Any]) -> list[str]:
    """Return how a machine's lifecycle scripts went, with the last lines when they failed."""
    birth = cleaned(birth)
    head = f"lifecycle scripts of {birth['node']} ({birth['instance_id']}): {birth['status']}"
    if birth["status"] == "failed":
        head += f": {birth['script'] or 'its boot'} ended with status {birth['exit_code']}"
    lines = [head, *(f"    {line}" for line in birth["tail"])]
    return [*lines, f"  whole log: {birth['log_path']}"] if birth["log_path"] else lines
