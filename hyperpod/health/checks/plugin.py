"""Slurm loads our plugin on this node.

What is proved, in this order:

1. a plugstack.conf that Slurm reads here names the plugin exactly once;
2. the file is there, is a shared object, and holds the three symbols that Slurm looks for;
3. ``srun --help`` lists ``--auto-resume``: this release of Slurm accepts and loads the file. slurmd itself keeps a
   SPANK plugin only for the moment of a launch, so its memory map proves nothing.

The third is asked again only when the file or plugstack.conf has changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hyperpod.core.finding import Finding, Severity
from hyperpod.core.node import Role
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown, warn
from hyperpod.ports.host import Host

NAME = "plugin"

_SYMBOLS = (b"spank_plugin_version", b"plugin_name", b"plugin_type", b"slurm_spank_init")

ASK_AGAIN_S = 600.0
"""A refusal is doubted after so long although no file has changed: a library below the plugin may have."""

BOOTING_S = 5.0
"""A booting node gets slurm.conf from slurmctld, which may be away for a moment."""

NEVER_S = float("inf")


@dataclass
class PluginCheck:
    """Follows the plugin from plugstack.conf to Slurm's own word."""

    about: ClassVar[About] = About(
        title="Slurm loads our plugin on this node",
        reads="plugstack.conf where Slurm looks for it, the plugin's file, and once per change what srun --help lists.",
        means="Without the plugin --auto-resume would be ignored in silence. slurmd keeps a SPANK plugin only for the "
        "moment of a launch, so its memory tells nothing. A booting node gets plugstack.conf from slurmctld, which may "
        "be away for a while.",
        does="FATAL, drain, after two of three looks; named twice is WARN.",
        codes={
            "PluginNotConfigured": "No plugstack.conf names the plugin.",
            "PluginMissing": "The file that plugstack.conf names is not there.",
            "PluginDamaged": "The file is no plugin of Slurm.",
            "PluginRefused": "Slurm does not load the file: srun --help has no --auto-resume.",
            "PluginTwice": "plugstack.conf names the plugin more than once (WARN).",
            "PluginUnproved": "srun could not be asked.",
        },
        source="spank(7); tried with Slurm 24.11.",
    )
    plugstack_paths: tuple[str, ...] = setting(
        (
            "/run/slurm/conf/plugstack.conf",
            "/var/spool/slurmd/conf-cache/plugstack.conf",
            "/etc/slurm/plugstack.conf",
            "/opt/slurm/etc/plugstack.conf",
        ),
        "Where plugstack.conf may be; the first that can be read counts.",
    )
    folders: tuple[str, ...] = setting(
        ("/usr/lib/x86_64-linux-gnu/slurm-wlm", "/opt/slurm/lib/slurm", "/usr/lib/slurm"),
        "Where Slurm looks for a plugin named without a folder.",
    )
    file_name: str = setting("hyperpod.so", "Name of the plugin's file.")
    grace_s: float = setting(
        300.0, "Seconds after the boot in which a missing plugstack.conf only keeps the first job away."
    )
    interval_s: float = setting(60.0, "Seconds between two looks; files change at upgrades only.")
    deadline_s: float = 15.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = True
    roles: frozenset[Role] = WORKERS
    _proved: tuple[str, int] | None = field(default=None, repr=False)
    _asked: tuple[tuple[str, int], float, tuple[Finding, ...]] | None = field(default=None, repr=False)

    def run(self, ports: Ports) -> Result:
        """Prove that the plugin is loaded, or say which step fails."""
        plugstack = _first_readable(ports.host, self.plugstack_paths)
        if plugstack is None:
            # It comes with slurmd's configuration, so not before that starts.
            if ports.facts.uptime_s < self.grace_s or ports.facts.is_held:
                return Result(not_ready="there is no plugstack.conf yet")
            return _fails("PluginNotConfigured", "no plugstack.conf is found where Slurm looks")
        where, text = plugstack
        lines = parse_plugstack(text, self.file_name)
        if not lines:
            return _fails("PluginNotConfigured", f"{where} does not name {self.file_name}")
        findings: list[Finding] = []
        if len(lines) > 1:
            findings.append(warn(NAME, "PluginTwice", f"{where} names {self.file_name} {len(lines)} times"))
        path, data = self._read(ports.host, lines[0])
        if data is None:
            return _fails("PluginMissing", f"{path}, named in {where}, cannot be read")
        if not data.startswith(b"\x7fELF") or any(symbol not in data for symbol in _SYMBOLS):
            return _fails("PluginDamaged", f"{path} is not a plugin for Slurm (size {len(data)} bytes)")
        state = (f"{where} {path} {text}", hash(data))
        if state != self._proved:
            now = ports.host.monotonic()
            if self._asked is not None and self._asked[0] == state and now < self._asked[1]:
                return Result((*findings, *self._asked[2]))
            answer = self._ask(ports.host, path)
            if answer is None:
                self._proved = state
            elif any(finding.severity is Severity.UNKNOWN for finding in answer):
                findings += answer
            else:
                # Nothing has changed: a program every minute would not find out more.
                again_s = BOOTING_S if ports.facts.uptime_s < self.grace_s else ASK_AGAIN_S
                self._asked = (state, now + (again_s if answer else NEVER_S), answer)
                findings += answer
        return Result(tuple(findings))

    def _ask(self, host: Host, path: str) -> tuple[Finding, ...] | None:
        """Ask Slurm whether it loads the plugin: None when it does, nothing where there is no srun to ask."""
        try:
            listed = "--auto-resume" in host.run(["srun", "--help"], 10.0)
        except CommandTimeout:
            return (unknown(NAME, "PluginUnproved", "srun --help does not answer"),)
        except CommandError as error:
            if error.code == 127:
                # No srun on this node: the file is all that can be looked at.
                return ()
            return (unknown(NAME, "PluginUnproved", f"srun --help: {error}"),)
        if not listed:
            text = f"Slurm does not load {path}: srun --help has no --auto-resume"
            return (fatal(NAME, "PluginRefused", text),)
        return None

    def _read(self, host: Host, path: str) -> tuple[str, bytes | None]:
        candidates = [path] if path.startswith("/") else [f"{folder}/{path}" for folder in self.folders]
        for candidate in candidates:
            try:
                return candidate, host.read_bytes(candidate)
            except OSError:
                continue
        return candidates[0], None


def parse_plugstack(text: str, file_name: str) -> tuple[str, ...]:
    """Return the paths by which a plugstack.conf names the plugin, one for each line that does."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*(?:required|optional)\s+(\S+)", line)
        if match and match.group(1).rpartition("/")[2] == file_name:
            found.append(match.group(1))
    return tuple(found)


def _first_readable(host: Host, paths: Sequence[str]) -> tuple[str, str] | None:
    for path in paths:
        try:
            return path, host.read_text(path)
        except OSError:
            continue
    return None


def _fails(code: str, message: str) -> Result:
    return Result((fatal(NAME, code, message),))
