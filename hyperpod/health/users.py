"""Checks that users bring: executables in a folder, with Nagios's exit codes or one line of JSON.

The agent runs them as root, so only root may have written them: a file or folder that somebody else could change is
refused and said. Each has a deadline and a rhythm of its own, from a comment in its first lines or from a file beside
it (``NAME.conf``): ``# hyperpod: interval=60 deadline=10 mode=observe``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.node import Role
from hyperpod.core.policy import Mode
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Check, Damping, Ports, Result, Settings
from hyperpod.health.why_not_run import why_broken, why_env_failed, why_not_started
from hyperpod.ports.host import FileKind, Host

FOLDER = "/etc/hyperpod/checks.d"
PREFIX = "user."
"""Their names begin with this, so that none can be taken for one of ours."""

FAILED = "UserCheckFailed"
UNKNOWN = "UserCheckUnknown"
REFUSED = "UserCheckRefused"
IGNORED = "UserCheckIgnored"
NOT_LOADED = "UserCheckNotLoaded"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_SUFFIX = re.compile(r"\.(?:sh|py|pl|bash)$")
_NO_CHECK = re.compile(r"^\.|~$|\.(?:conf|bak|old|orig|swp|md|txt|dpkg-\w+|rpm\w+)$")
_HEADER = re.compile(r"^#\s*hyperpod:\s*(?P<words>.+)$", re.MULTILINE)
_CODE = re.compile(r"[A-Z][A-Za-z0-9]{1,59}")
_MOST_FINDINGS = 20
_NOT_STARTED = (126, 127)
"""Exit codes of a program that could not be started."""

_MOST_TEXT = 300
_LIMITS = {"interval": (1.0, 86_400.0), "deadline": (0.1, 600.0)}

ABOUT = About(
    title="A check of this site",
    reads="What its author made it read; it runs as root.",
    means="Exit code 0 is healthy, 1 WARN, 2 FATAL, 3 UNKNOWN, with the first line of its output as the message. "
    "Lines of JSON say more: severity, code, message, device, action.",
    does="As the check says: FATAL drains the node unless action names more. Every other exit code is UNKNOWN.",
    codes={
        FAILED: "The check ended with 1 or 2.",
        UNKNOWN: "The check ended with 3 or another code, did not end in time, cannot be started, its own program "
        "failed, or its output is not understood.",
        REFUSED: "The file could be changed by others than root, or its name or header is wrong; it does not run.",
        NOT_LOADED: "The check of a Python package could not be loaded (UNKNOWN).",
        IGNORED: "The file is not executable, so it does not run (WARN).",
    },
    source="The exit codes of Nagios plugins.",
)


@dataclass
class UserCheck:
    """One executable of the folder."""

    about: ClassVar[About] = ABOUT
    name: str
    path: str
    interval_s: float = 60.0
    deadline_s: float = 10.0
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Run it and translate its answer."""
        why = why_refused(ports.host, self.path)
        if why:
            return Result((Finding(self.name, REFUSED, Severity.UNKNOWN, why),))
        # The runner's own deadline comes a moment later, so that an ordinary time-out has its own words.
        limit_s = max(0.1, self.deadline_s - 0.2)
        try:
            done = ports.host.run_apart([self.path], limit_s)
        except CommandTimeout:
            return _unknown(self.name, _hangs(self.path, limit_s))
        except CommandError as error:
            said = error.stderr_tail.strip() or str(error)
            why = why_not_started(ports.host, self.path, said) if error.code in _NOT_STARTED else f"{self.path}: {said}"
            return _unknown(self.name, why)
        why = why_broken(self.path, done.code, done.stdout, done.stderr)
        if not why and done.code in _NOT_STARTED:
            why = _why_env_failed(ports.host, self.path, done.code, done.stderr)
        return _unknown(self.name, why) if why else parse_answer(self.name, done.code, done.stdout, done.stderr)


def _hangs(path: str, limit_s: float) -> str:
    return (
        f"{path} did not end within {limit_s:g} s and was killed: it hangs, or what it has started keeps its output "
        f"open; give it longer with '# hyperpod: deadline={max(10, round(limit_s * 3))}' if it needs that"
    )


def _why_env_failed(host: Host, path: str, code: int, errors: str) -> str:
    try:
        why = why_env_failed(code, host.read_text(path, 512), errors)
    except OSError:
        return ""
    return f"{path}: {why}" if why else ""


@dataclass(frozen=True)
class Found:
    """What a look into the folder gave.

    Attributes:
        checks: To be run, by the runner.
        observe_only: Names of those whose findings may not take the node out of service.
        findings: What was refused or ignored, and why.
    """

    checks: tuple[Check, ...] = ()
    observe_only: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()


def find_user_checks(host: Host, policy: Mapping[str, Settings], folder: str = FOLDER) -> Found:
    """Look for users' checks. What the specification says of one counts before its own header.

    Args:
        host: The machine.
        policy: The configuration's policy by check.
        folder: Where they are.
    """
    try:
        entries = host.list_dir(folder)
    except FileNotFoundError:
        return Found()
    except OSError as error:
        why = f"{folder} cannot be listed, so none of its checks runs: {error.strerror or error}"
        return Found(findings=(Finding("user", REFUSED, Severity.WARN, why, device=folder),))
    why = why_refused(host, folder, is_folder=True)
    if why:
        return Found(findings=(Finding("user", REFUSED, Severity.WARN, why, device=folder),))
    checks: dict[str, Check] = {}
    observed, findings = set(), []
    for entry in entries:
        if _NO_CHECK.search(entry):
            continue
        path = f"{folder}/{entry}"
        try:
            found, mode = _read_check(host, path, policy)
        except (ValueError, OSError) as error:
            code = IGNORED if isinstance(error, _NotExecutable) else REFUSED
            text = f"{path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
            findings.append(Finding("user", code, Severity.WARN, _clean(text), device=_clean(path)))
            continue
        if found.name in checks:
            text = f"{path}: there is another check named {found.name}"
            findings.append(Finding("user", REFUSED, Severity.WARN, text, device=path))
        elif mode is not Mode.OFF:
            checks[found.name] = found
            if mode is Mode.OBSERVE:
                observed.add(found.name)
    return Found(tuple(checks.values()), frozenset(observed), tuple(findings))


class _NotExecutable(ValueError):
    """A file without the right to be run: no check, but perhaps meant as one."""


def _read_check(host: Host, path: str, policy: Mapping[str, Settings]) -> tuple[UserCheck, Mode]:
    """Return the check that a file is, and its mode.

    Raises:
        ValueError: with the reason why it is none.
        OSError: if it cannot be read.
    """
    name = _SUFFIX.sub("", path.rpartition("/")[2])
    if not _NAME.fullmatch(name):
        raise ValueError(f"{path}: a check's name has small letters, digits, '-' and '_', at most 40: rename it")
    why = why_refused(host, path)
    if why:
        raise ValueError(why)
    if not host.stat(path).mode & 0o100:
        raise _NotExecutable(f"{path} is not executable, so it does not run: chmod +x, or take it away")
    words = parse_header(host.read_text(path, 4096), path)
    beside = f"{path}.conf"
    try:
        text = host.read_text(beside, 4096)
    except OSError:
        pass
    else:
        why = why_refused(host, beside)
        if why:
            raise ValueError(why)
        words |= parse_words(" ".join(line.partition("#")[0] for line in text.splitlines()), beside)
    own = policy.get(PREFIX + name)
    mode = own.mode if own is not None else Mode(words.get("mode", (policy.get("default") or Settings()).mode.value))
    check = UserCheck(
        PREFIX + name, path, float(words.get("interval", 60.0)), min(float(words.get("deadline", 10.0)), 600.0)
    )
    return replace(check, **policy_values(own)), mode


def policy_values(own: Settings | None) -> dict[str, Any]:
    """Return what the specification says of a user's check, as the fields of a check."""
    return dict(own.values) if own is not None else {}


def why_refused(host: Host, path: str, *, is_folder: bool = False) -> str:
    """Say why root may not run a file, or what is in a folder; empty when it may."""
    try:
        facts = host.stat(path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if facts.kind is FileKind.LINK:
        return f"{path} is a link; put the file itself there"
    wanted = FileKind.FOLDER if is_folder else FileKind.FILE
    if facts.kind is not wanted:
        is_kind = f"is a {facts.kind.value}, not a {wanted.value}"
        return f"{path} {is_kind}: " + ("it holds no checks" if is_folder else "take it away")
    use = "its checks do not run" if is_folder else "it is not used"
    if facts.uid != 0:
        return f"{path} belongs to user {facts.uid}, not to root, so {use}: chown root, after a look at it"
    if facts.mode & 0o022:
        mode = f"{facts.mode & 0o777:o}"
        return f"{path} can be written by others than root (mode {mode}), so {use}: chmod go-w, after a look at it"
    return ""


def parse_header(text: str, where: str) -> dict[str, str]:
    """Return the words of the comment ``# hyperpod: …`` in a file's beginning.

    Raises:
        ValueError: if a word is not understood.
    """
    match = _HEADER.search("\n".join(text.splitlines()[:20]))
    return parse_words(match["words"], where) if match else {}


def parse_words(text: str, where: str) -> dict[str, str]:
    """Return ``interval=60 deadline=10 mode=observe`` as a mapping.

    Raises:
        ValueError: if a word is not understood.
    """
    words: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or key not in (*_LIMITS, "mode"):
            raise ValueError(f"{where}: {word!r} is not understood; known are interval=, deadline= and mode=")
        if key == "mode":
            if value not in tuple(Mode):
                raise ValueError(f"{where}: mode must be act, observe or off, got {value!r}")
        else:
            low, high = _LIMITS[key]
            if not re.fullmatch(r"\d+(?:\.\d+)?", value) or not low <= float(value) <= high:
                raise ValueError(f"{where}: {key} must be a number of seconds from {low:g} to {high:g}, got {value!r}")
        words[key] = value
    return words


def parse_answer(name: str, code: int, stdout: str, stderr: str = "") -> Result:
    """Translate what a check printed and how it ended.

    Args:
        name: Of the check.
        code: Its exit code; negative for a signal.
    """
    if code not in (0, 1, 2, 3):
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        said = _first_line(stdout) or _first_line(stderr)
        return _unknown(name, f"{name} {how}" + (f": {said}" if said else ""))
    lines = [line.strip() for line in stdout.splitlines() if line.strip()]
    if lines and lines[0].startswith("{"):
        return _from_json(name, lines)
    message = _first_line(stdout).partition("|")[0].strip() or _first_line(stderr) or f"{name} ended with code {code}"
    severity = Severity(code)
    if severity is Severity.OK:
        return Result()
    if severity is Severity.UNKNOWN:
        return _unknown(name, message)
    action = Action.DRAIN if severity is Severity.FATAL else Action.NONE
    return Result((Finding(name, FAILED, severity, message, action),))


def _from_json(name: str, lines: list[str]) -> Result:
    findings = []
    for line in lines[:_MOST_FINDINGS]:
        try:
            data = json.loads(line)
            finding = _finding(name, data)
        except (ValueError, RecursionError, TypeError, AttributeError) as error:
            return _unknown(name, f"the output of {name} is not understood: {error}")
        if finding.severity is not Severity.OK:
            findings.append(finding)
    return Result(tuple(findings))


def _finding(name: str, data: Mapping[str, Any]) -> Finding:
    if not isinstance(data, Mapping):
        raise TypeError("a line is no JSON object")
    word = str(data.get("severity", "")).upper()
    if word not in Severity.__members__:
        raise ValueError(f"severity must be ok, warn, fatal or unknown, got {data.get('severity')!r}")
    severity = Severity[word]
    code = str(data.get("code") or FAILED)
    if not _CODE.fullmatch(code):
        raise ValueError(f"code must be one CamelCase word, got {code[:60]!r}")
    actions = {action.value.lower(): action for action in Action if action is not Action.REQUEUE}
    wanted = str(data.get("action") or ("drain" if severity is Severity.FATAL else "none")).lower()
    if wanted not in actions:
        raise ValueError(f"action must be one of {', '.join(actions)}, got {wanted[:60]!r}")
    action = actions[wanted] if severity is Severity.FATAL else Action.NONE
    if severity is Severity.FATAL and action is Action.NONE:
        action = Action.DRAIN
    message = _clean(str(data.get("message") or code))
    return Finding(name, code, severity, message, action, device=_clean(str(data.get("device") or ""))[:60])


def _unknown(name: str, message: str) -> Result:
    return Result((Finding(name, UNKNOWN, Severity.UNKNOWN, _clean(message)),))


def _first_line(text: str) -> str:
    return _clean(next((line for line in text.splitlines() if line.strip()), ""))


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[: _MOST_TEXT * 2]).strip()[:_MOST_TEXT]
