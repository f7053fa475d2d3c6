"""NHC's configuration file understood: lines ``hosts || check arguments``. Pure: text in, values out.

What a line asks for is either a test that we can make ourselves (``health.nhc_tests``), or covered by a check of ours,
or a setting of NHC itself, or not understood, with the reason. Nothing of the file is ever given to a shell.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MOST_LINES = 500
_MOST_LENGTH = 2000
_MOST_REGEX = 300

_ASSIGNMENT = re.compile(r"^(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$", re.DOTALL)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgtpe]?)(?P<b>i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


@dataclass(frozen=True)
class Line:
    """One line of the file: its number, which hosts it is for, and the check with its arguments."""

    number: int
    target: str
    check: str
    arguments: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Trouble:
    """A line that is not used, and why."""

    number: int
    text: str
    why: str


@dataclass(frozen=True)
class Conf:
    """What a file says.

    Attributes:
        lines: Checks.
        variables: Settings of NHC, by name; the last one counts.
        troubles: Lines that are no line of such a file.
    """

    lines: tuple[Line, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()


def parse_conf(text: str) -> Conf:
    """Read a whole file; what is wrong in it is told, the rest counts."""
    lines: list[Line] = []
    variables: dict[str, str] = {}
    troubles: list[Trouble] = []
    for number, raw in enumerate(_joined(text), 1):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if number > MOST_LINES:
            troubles.append(Trouble(number, stripped[:80], f"the file has more than {MOST_LINES} lines"))
            break
        try:
            found = _parse_line(number, stripped)
        except ValueError as error:
            troubles.append(Trouble(number, stripped[:200], str(error)))
            continue
        if isinstance(found, Line):
            lines.append(found)
        else:
            variables[found[0]] = found[1]
    return Conf(tuple(lines), variables, tuple(troubles))


def _joined(text: str) -> Iterable[str]:
    """Yield lines, one that ends with a backslash together with what follows it."""
    pending, blank = "", 0
    for raw in text.splitlines():
        if raw.endswith("\\") and not raw.lstrip().startswith("#"):
            pending, blank = pending + raw[:-1] + " ", blank + 1
            continue
        yield pending + raw
        # The numbers of later lines stay those of the file.
        yield from [""] * blank
        pending, blank = "", 0
    if pending:
        yield pending


def _parse_line(number: int, text: str) -> Line | tuple[str, str]:
    """Return a check, or a variable's name and value.

    Raises:
        ValueError: with the reason why it is neither.
    """
    if len(text) > _MOST_LENGTH:
        raise ValueError(f"longer than {_MOST_LENGTH} characters")
    target, bars, rest = text.partition("||")
    target, rest = target.strip(), rest.strip()
    if not bars:
        raise ValueError("not of the form: hosts || check arguments")
    if not target or not rest:
        raise ValueError("hosts or check are missing")
    _check_hosts(target)
    assignment = _ASSIGNMENT.match(rest)
    if assignment:
        return assignment["name"], assignment["value"].strip().strip("\"'")
    why = _shell_in(rest)
    if why:
        raise ValueError(why)
    try:
        words = shlex.split(rest, comments=True)
    except ValueError as error:
        raise ValueError(f"quotes do not match: {error}") from error
    if not words:
        raise ValueError("the check is missing")
    return Line(number, target, words[0], tuple(words[1:]), text)


_HOSTS = "hosts are *, a glob, /regex/ or {node-[1-8],other}, each with ! before it for all others"


def _check_hosts(target: str) -> None:
    """Refuse hosts that no node could match as they were meant.

    Raises:
        ValueError: with the reason, and what is allowed.
    """
    plain = target.lstrip("! ")
    why = ""
    try:
        matches(target, "")
    except ValueError as error:
        why = str(error)
    if not why and plain[:1] not in ("/", "{"):
        if "," in plain:
            why = f"{plain}: a list of nodes stands in braces"
        elif re.search(r"\[[^\]]*(?:\d{2,}-|-\d{2,})[^\]]*\]", plain):
            why = f"{plain}: outside of braces [...] is one character, so that is no range of numbers"
        elif plain.count("[") != plain.count("]"):
            why = f"{plain}: brackets do not match"
    if why:
        raise ValueError(f"{why}; {_HOSTS}")


_NO_SHELL = "lines are plain words; an executable in /etc/hyperpod/checks.d can do it"


def _shell_in(text: str) -> str:
    """Say which work for a shell a check holds; empty when it is plain words."""
    text = re.sub(r"\\.", "", text)
    outside_single = re.sub(r"'[^']*'", "''", text)
    if re.search(r"`|\$[A-Za-z_{(]", outside_single):
        return f"it needs a shell (a variable or a command within); {_NO_SHELL}"
    outside = re.sub(r'"[^"]*"', '""', outside_single)
    outside = re.sub(r"\s#.*", "", outside)
    if re.search(r"[;|<>&()]", outside):
        return f"it needs a shell (a pipe, a redirection or several commands); {_NO_SHELL}"
    return ""


# --- match strings ------------------------------------------------------------------------------------------------


def matches(pattern: str, text: str) -> bool:
    """Say whether a text matches one of NHC's match strings.

    They are ``glob*``, ``/regex/``, ``{list[0-9],of,nodes}``, and each of these with ``!`` before it.

    Raises:
        ValueError: if it is none.
    """
    if pattern.startswith("!"):
        return not matches(pattern[1:].strip(), text)
    if len(pattern) >= 2 and pattern.startswith("/") and pattern.endswith("/"):
        return _regex(pattern[1:-1]).search(text) is not None
    if pattern.startswith("{"):
        if not pattern.endswith("}"):
            raise ValueError(f"{pattern}: the closing brace is missing")
        if re.search(r"\[[^\]]*,", pattern):
            raise ValueError(f"{pattern}: a comma stands between nodes, not within brackets")
        # Each part is looked at, or a mistake behind one that matches would stay unseen.
        return any([_in_range(part.strip(), text) for part in pattern[1:-1].split(",")])
    if not pattern:
        raise ValueError("an empty match string")
    return fnmatch.fnmatchcase(text, pattern)


_CLASSES = {
    "alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "space": r"\s", "upper": "A-Z", "lower": "a-z",
    "xdigit": "0-9A-Fa-f", "blank": r" \t", "punct": r"!-/:-@\[-`{-~",
}  # fmt: skip


def _regex(pattern: str) -> re.Pattern[str]:
    """Return bash's extended regular expression as one of ours."""
    if len(pattern) > _MOST_REGEX:
        raise ValueError(f"a regular expression of more than {_MOST_REGEX} characters")
    if re.search(r"\([^)]*[*+][^)]*\)\s*[*+{]", pattern):
        raise ValueError(f"/{pattern}/: a repeated group of repetitions could take for ever")
    translated = re.sub(r"\[:(\w+):\]", lambda m: _CLASSES.get(m[1], ""), pattern)
    try:
        return re.compile(translated)
    except (re.error, OverflowError) as error:
        raise ValueError(f"/{pattern}/: {error}") from error


def _in_range(part: str, text: str) -> bool:
    """Say whether a name is in one node range such as ``n00[00-99].phys``."""
    match = re.fullmatch(r"(?P<before>[^\[\]]*)\[(?P<low>\d+)-(?P<high>\d+)\](?P<after>[^\[\]]*)", part)
    if match is None:
        if "[" in part or "]" in part:
            raise ValueError(f"{part}: only one range of numbers with a dash is understood in a list of nodes")
        return part == text
    before, after = match["before"], match["after"]
    if int(match["low"]) > int(match["high"]):
        raise ValueError(f"{part}: the range ends before it begins")
    if not (text.startswith(before) and text.endswith(after) and len(text) > len(before) + len(after)):
        return False
    number = text[len(before) : len(text) - len(after)]
    width = len(match["low"])
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        return False
    is_padded = width > 1 and match["low"].startswith("0")
    is_written_so = len(number) == width if is_padded else number == str(int(number))
    return is_written_so and int(match["low"]) <= int(number) <= int(match["high"])


# --- figures ------------------------------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """Return a size in bytes: a bare number means kB, as everywhere in NHC; ``1b`` is one byte.

    Raises:
        ValueError: if it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size such as 128MB or 2GB")
    is_bytes = not match["unit"] and match["b"]
    power = 0 if is_bytes else _UNITS[match["unit"].lower()]
    return int(float(match["number"]) * 1024**power)


def parse_number(text: str, what: str, *, is_whole: bool = False) -> float:
    """Return a number that is not negative.

    Raises:
        ValueError: if it is none, naming what it was to be.
    """
    if not re.fullmatch(r"\d{1,12}" if is_whole else r"\d{1,12}(?:\.\d*)?|\.\d+", text, re.ASCII):
        raise ValueError(f"{text!r} is no {what}")
    return float(text)


@dataclass(frozen=True)
class Amount:
    """A size in bytes, or a share in percent."""

    size_bytes: int = 0
    percent: float | None = None


def parse_amount(text: str) -> Amount:
    """Return ``5%`` or ``128MB``.

    Raises:
        ValueError: if it is neither.
    """
    if text.endswith("%"):
        try:
            percent = float(text[:-1])
        except ValueError as error:
            raise ValueError(f"{text!r} is no share in percent") from error
        if not 0 <= percent <= 100:
            raise ValueError(f"{text!r} is no share from 0 to 100 %")
        return Amount(percent=percent)
    return Amount(parse_size(text))


def parse_count(text: str) -> int:
    """Return a plain number with a suffix by thousands: ``1k`` inodes are 1000.

    Raises:
        ValueError: if it is none.
    """
    match = re.fullmatch(r"(\d+)([kmgtKMGT]?)", text)
    if match is None:
        raise ValueError(f"{text!r} is no number such as 1000 or 1k")
    return int(match[1]) * int(1000 ** " kmgt".index(match[2].lower() or " "))


def options(arguments: Sequence[str], flags: str, with_value: str) -> tuple[dict[str, list[str]], list[str]]:
    """Split arguments as the shell's getopts does.

    Args:
        arguments: Words after the check's name.
        flags: Letters of options without a value.
        with_value: Letters of options with one.
    Returns:
        Values by letter (flags with an empty one), and the words that follow.
    Raises:
        ValueError: for an option that is not known, or lacks its value.
    """
    found: dict[str, list[str]] = {}
    words = list(arguments)
    while words and re.fullmatch(r"-[^-].*", words[0]):
        letters = words.pop(0)[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in flags:
                found.setdefault(letter, []).append("")
            elif letter in with_value:
                if not letters and not words:
                    raise ValueError(f"-{letter} needs a value")
                found.setdefault(letter, []).append(letters or words.pop(0))
                letters = ""
            else:
                raise ValueError(f"the option -{letter} is not understood")
    if words and words[0] == "--":
        words.pop(0)
    return found, words


# --- what is not a test of its own ----------------------------------------------------------------------------------

_GPUS = "the gpu checks ask NVIDIA's library themselves, and kernel_log reads what the driver says"

COVERED: Mapping[str, str] = {
    "check_nv_healthmon": _GPUS,
    "check_nvsmi_healthmon": _GPUS,
    "check_hw_mcelog": "kernel_log reads machine checks and memory errors",
    "check_ps_kswapd": "load and kernel_log show memory that is short",
}
"""Checks of NHC that ours make needless, with the reason."""

NOT_NEEDED: Mapping[str, str] = {
    "check_ps_unauth_users": "whose processes may be on a node is Slurm's business (pam_slurm_adopt, epilog)",
    "check_ps_userproc_lineage": "whose processes may be on a node is Slurm's business (pam_slurm_adopt, epilog)",
    "check_moab_sched": "there is no Moab here",
    "check_moab_rm": "there is no Moab here",
    "check_moab_torque": "there is no TORQUE here",
    "check_ps_blacklist": "an executable in /etc/hyperpod/checks.d can do it",
    "check_ps_cpu": "an executable in /etc/hyperpod/checks.d can do it",
    "check_ps_mem": "an executable in /etc/hyperpod/checks.d can do it",
    "check_ps_physmem": "an executable in /etc/hyperpod/checks.d can do it",
    "check_ps_time": "an executable in /etc/hyperpod/checks.d can do it",
    "check_file_stat": "an executable in /etc/hyperpod/checks.d can do it",
    "check_file_contents": "an executable in /etc/hyperpod/checks.d can do it",
}
"""Checks of NHC that have no equal here, with what to do instead."""
