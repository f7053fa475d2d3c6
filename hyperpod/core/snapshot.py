"""Snapshots: everything observed at one moment, and whether the observation is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from hyperpod.core.job import JobRecord, JobView, TaskExit
from hyperpod.core.node import Availability, NodeView, Role
from hyperpod.core.offenders import Offender


@dataclass(frozen=True)
class PastRepair:
    """A repair that was begun: which node, for what cause, when. The breaker counts these.

    ``is_reboot`` marks the moment in which its machine, ``instance_id``, was rebooted for it.
    """

    node: str
    cause: str
    at: datetime
    instance_id: str = ""
    is_reboot: bool = False


@dataclass(frozen=True)
class JobFacts:
    """What agents and the checkpoint scan told about the newest attempts of a job.

    ``first_tasks`` says when the first task of an attempt was started, by the job's restart count (from 0);
    ``killed_steps`` names the steps that we ended, as (restart count, step id).
    ``scanned_attempt`` is the attempt whose end the newest scan belongs to; ``scan_step`` its newest complete
    checkpoint's step (-1: none, None: the scan could not tell). ``resumes`` says which checkpoint an attempt was
    given, as (path, step) by restart count.
    """

    exits: tuple[TaskExit, ...] = ()
    first_tasks: Mapping[int, datetime] = field(default_factory=dict)
    scanned_attempt: int = 0
    scan_step: int | None = None
    killed_steps: frozenset[tuple[int, int]] = frozenset()
    resumes: Mapping[int, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The world at ``now`` (aware UTC).

    ``missing`` names the sources that did not answer (``slurm``, ``provider``); while one is missing, no
    destructive action may be planned. ``started_at`` is when this controller began to listen. ``suspicion`` is what
    failures have left on machines, by instance id and then by job; ``offenders`` are machines that fail too often, and
    ``accused`` those that two methods have just blamed for a job's end, each with the sentence, by instance id.
    ``are_notices_known`` is False until the provider has told once what it knows to be wrong with its machines.
    """

    now: datetime
    started_at: datetime
    nodes: tuple[NodeView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    records: Mapping[int, JobRecord] = field(default_factory=dict)
    facts: Mapping[int, JobFacts] = field(default_factory=dict)
    history: tuple[PastRepair, ...] = ()
    suspicion: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    offenders: Mapping[str, Offender] = field(default_factory=dict)
    accused: Mapping[str, str] = field(default_factory=dict)
    breaker_reset_at: datetime | None = None
    missing: tuple[str, ...] = ()
    are_notices_known: bool = True

    @property
    def is_complete(self) -> bool:
        """True when every source answered."""
        return not self.missing

    @cached_property
    def troubled(self) -> frozenset[str]:
        """Names of the nodes that are down, in repair, or have a finding: the only ones that may concern a job."""
        return frozenset(
            n.name for n in self.nodes if n.findings or n.repair is not None or n.availability is Availability.DOWN
        )

    @cached_property
    def workers(self) -> tuple[NodeView, ...]:
        """The nodes that run jobs."""
        return tuple(n for n in self.nodes if n.role is Role.WORKER)

    @cached_property
    def causes(self) -> Mapping[str, tuple[tuple[str, datetime | None], ...]]:
        """Causes that are seen now, as ``check/code``, each with the nodes that have it and since when."""
        found: dict[str, list[tuple[str, datetime | None]]] = {}
        for node in self.nodes:
            for finding in node.findings:
                found.setdefault(f"{finding.check}/{finding.code}", []).append((node.name, finding.since))
            if node.repair is not None and "/" in node.repair.cause:
                found.setdefault(node.repair.cause, []).append((node.name, node.repair.since))
        return {cause: tuple(where) for cause, where in found.items()}

    @cached_property
    def by_name(self) -> Mapping[str, NodeView]:
        """Nodes by their names."""
        return {n.name: n for n in self.nodes}
