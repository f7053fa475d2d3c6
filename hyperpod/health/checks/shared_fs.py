"""Shared file systems answer: a small file is written, read back and removed within a deadline.

It runs in a process of its own that is given up when the mount hangs; this agent goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Finding, Whose
from hyperpod.core.node import Role
from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import EVERYWHERE, TWO_OF_THREE, About, Damping, Ports, Result, fatal, setting, warn

NAME = "shared_fs"


@dataclass
class SharedFsCheck:
    """Writes, reads back and removes one small file on each shared mount."""

    about: ClassVar[About] = About(
        title="Shared file systems answer",
        reads="A small file, written, read back and removed on each shared mount by a process of its own.",
        means="A job hangs at its first access when a mount does. A server that refuses root (root_squash) has "
        "answered. Three nodes with the same finding mean the server, not the nodes.",
        does="A missing mount is FATAL and drains the node. One that hangs or fails is FATAL and the site's: it is "
        "shown, keeps a booting node from its first job, and drains nothing: no machine pays for a file server.",
        codes={
            "MountMissing": "Nothing is mounted there: a folder of the root file system would be filled unseen.",
            "MountHangs": "The mount does not answer within answer_s.",
            "MountFailed": "The file could not be written or read back.",
            "MountRefusesRoot": "The server answers, but root may not write (WARN).",
        },
        source="What Lustre and NFS users report; NHC and soperator test mounts by writing too.",
    )
    mounts: tuple[str, ...] = setting((), "Folders that are tried; default those that the cluster's nodes share.")
    answer_s: float = setting(5.0, "Seconds that a mount may take; a busy metadata server answers in one or two.")
    must_be_mounted: bool = setting(
        True, "Whether a folder that is no mount counts as a fault; off for a shared folder of the root file system."
    )
    interval_s: float = setting(20.0, "Seconds between two tries; each costs the server one small file.")
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
