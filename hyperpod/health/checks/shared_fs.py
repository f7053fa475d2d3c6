"""Shared file systems answer: a small file is written, read back and removed within a deadline.

It runs in a process of its own that is given up when the mount hangs; this agent goes on. Settings: ``mounts``
(default: the configuration's ``shared_mounts``), ``answer_s`` (5: a slow metadata server answers in one or two),
``must_be_mounted`` (true: a folder of the root file system in a mount's place would be filled unseen). A server that
refuses root (root_squash) has answered, so that is WARN.
FATAL asks for a drain only, and names the site: three nodes with the same finding are the server's fault, and the
controller's breaker then calls a person.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperpod.core.finding import Finding, Whose
from hyperpod.core.node import Role
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, Damping, Ports, Result, fatal, warn

NAME = "shared_fs"


@dataclass
class SharedFsCheck:
    """Writes, reads back and removes one small file on each shared mount."""

    mounts: tuple[str, ...] = ()
    answer_s: float = 5.0
    must_be_mounted: bool = True
    interval_s: float = 20.0
    deadline_s: float = 20.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = True
    roles: frozenset[Role] = EVERYWHERE

    def run(self, ports: Ports) -> Result:
        """Probe each mount; the token makes sure that what is read is what this run wrote."""
        findings: list[Finding] = []
        token = f"{ports.facts.node} {ports.facts.now.timestamp():.6f}"
        mounted = {mount.path for mount in ports.host.mounts()}
        for mount in self.mounts or ports.facts.shared_mounts:
            if self.must_be_mounted and (mount.rstrip("/") or "/") not in mounted:
                text = f"{mount} is not mounted"
                findings.append(fatal(NAME, "MountMissing", text, device=mount))
                continue
            try:
                ports.host.try_write(mount, token, self.answer_s)
            except CommandTimeout:
                text = f"{mount} does not answer within {self.answer_s:g} s"
                findings.append(fatal(NAME, "MountHangs", text, device=mount, whose=Whose.SITE))
            except CommandError as error:
                why = error.stderr_tail.strip().splitlines()[-1] if error.stderr_tail.strip() else str(error)
                if "Permission denied" in why or "Operation not permitted" in why:
                    text = f"{mount} answers, but root may not write there"
                    findings.append(warn(NAME, "MountRefusesRoot", text, device=mount, whose=Whose.SITE))
                    continue
                text = f"{mount} cannot be written: {why[:150]}"
                findings.append(fatal(NAME, "MountFailed", text, device=mount, whose=Whose.SITE))
        return Result(tuple(findings))
