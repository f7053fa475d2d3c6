"""What checks need to know of slurm.conf."""

from __future__ import annotations

import re

from hyperpod.ports.host import Host

PATHS = (
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/etc/slurm/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
)
"""Where a node's Slurm reads its configuration: a configless one from its cache."""

_OVERRIDES = re.compile(r"^\s*SlurmdParameters\s*=\s*\S*\bconfig_overrides\b", re.IGNORECASE | re.MULTILINE)


def figures_are_declared(host: Host) -> bool:
    """True when slurm.conf tells Slurm to believe its figures whatever the machine has (``config_overrides``).

    Sites do so on purpose, to share a machine between several nodes; comparing with the machine means nothing then.
    """
    for path in PATHS:
        try:
            return _OVERRIDES.search(host.read_text(path, 1 << 20)) is not None
        except OSError:
            continue
    return False
