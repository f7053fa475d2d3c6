"""Lines of an nhc.conf, for people who come from NHC. Each is tested by our own means; NHC itself is not needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.health.nhc import COVERED, Line, matches, parse_conf
from hyperpod.health.nhc_tests import CannotTell, Test, is_warning, prepare
from hyperpod.health.users import why_refused

NAME = "nhc"

_MOST_FINDINGS = 30


@dataclass
class NhcCheck:
    """Tests what the lines for this node ask for; without lines and file it costs nothing."""

    about: ClassVar[About] = About(
        title="What your nhc.conf asks for",
        reads="The lines in the settings, or the file that they name; then what each line is about.",
        means="The common checks of NHC, made by our own means: mounts, room on file systems, memory, swap, "
        "processors, interfaces, InfiniBand, services, load, files, commands, ports. Hosts are matched against the "
        "node's name. A command that cannot be run or hangs could not tell, which is no fault.",
        does="FATAL, drain, as NHC marks a node offline; lines with -0 are WARN. Nothing of the file goes through a "
        "shell, and actions in it (-e, -r of mounts) are left out.",
        codes={
            "NhcFailed": "What a line asks for is not so; the device is the line.",
            "NhcUnknown": "It could not be looked at (UNKNOWN).",
            "NhcIgnored": "Some lines are not understood and are left out (WARN).",
            "NhcFileRefused": "The file cannot be read, or others than root could change it (UNKNOWN).",
        },
        source="NHC's documentation. hyperpod checks import-nhc FILE shows what becomes of each line.",
    )
    lines: tuple[str, ...] = setting((), "Lines as in nhc.conf: hosts || check arguments. Default none.")
    file: str = setting("", "A file with such lines, such as /etc/nhc/nhc.conf; root's alone. Default none.")
    interval_s: float = setting(60.0, "Seconds between two rounds; NHC is usually run every five minutes.")
    deadline_s: float = setting(60.0, "Seconds for all lines together; commands have 5 each unless they say more.")
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = False
    roles: frozenset[Role] = EVERYWHERE
    _read: tuple[str, str] | None = field(default=None, repr=False)
    _tests: tuple[tuple[Line, Test], ...] = field(default=(), repr=False)
    _ignored: tuple[str, ...] = field(default=(), repr=False)

    def run(self, ports: Ports) -> Result:
        """Test every line that is for this node."""
        if not self.lines and not self.file:
            return Result()
        text = "\n".join(self.lines)
        if self.file:
            why = why_refused(ports.host, self.file)
            if why:
                return Result((unknown(NAME, "NhcFileRefused", why, device=self.file),))
            try:
                text += "\n" + ports.host.read_text(self.file, 1 << 20)
            except OSError as error:
                text = f"{self.file}: {error.strerror or error}"
                return Result((unknown(NAME, "NhcFileRefused", text, device=self.file),))
        self._understand(text, ports.facts.node)
        findings = [self._ignored_finding()] if self._ignored else []
        for line, test in self._tests:
            if len(findings) >= _MOST_FINDINGS:
                break
            found = _one(line, test, ports)
            if found is not None:
                findings.append(found)
        return Result(tuple(findings))

    def _understand(self, text: str, node: str) -> None:
        if self._read == (text, node):
            return
        conf = parse_conf(text)
        tests: list[tuple[Line, Test]] = []
        ignored = [f"{trouble.text[:60]} ({trouble.why})" for trouble in conf.troubles]
        for line in conf.lines:
            if not matches(line.target, node) or line.check in COVERED:
                continue
            try:
                tests.append((line, prepare(line)))
            except ValueError as error:
                ignored.append(f"{line.text[:60]} ({error})")
        self._read, self._tests, self._ignored = (text, node), tuple(tests), tuple(ignored)

    def _ignored_finding(self) -> Finding:
        more = f", and {len(self._ignored) - 1} more" if len(self._ignored) > 1 else ""
        text = f"not understood: {self._ignored[0]}{more}; hyperpod checks import-nhc shows all"
        return warn(NAME, "NhcIgnored", text[:300])


def _one(line: Line, test: Test, ports: Ports) -> Finding | None:
    device = line.text.partition("||")[2].strip()[:100]
    try:
        wrong = test(ports)
    except CannotTell as error:
        return unknown(NAME, "NhcUnknown", f"{line.check}: {error}"[:300], device=device)
    if not wrong:
        return None
    if is_warning(line):
        return warn(NAME, "NhcFailed", wrong[:300], device=device)
    return fatal(NAME, "NhcFailed", wrong[:300], action=Action.DRAIN, device=device)
