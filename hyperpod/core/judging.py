"""Judging the attempts of a job: what the snapshot knows of their machines is handed to ``core.attribution``.

Owns which attempt is judged, how long, and what a new verdict changes in older ones. Only computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hyperpod.core.attempts import dead_nodes, is_leaving
from hyperpod.core.attribution import AFTER, BEFORE, JUDGED, Witness, attribute, failure_time
from hyperpod.core.finding import Action, Finding
from hyperpod.core.job import Attempt, ExitCause, JobRecord
from hyperpod.core.liveness import AGREED_CAUSE, DEAD_CAUSE
from hyperpod.core.node import NodeView, refuses_launches
from hyperpod.core.snapshot import JobFacts, PastRepair, Snapshot
from hyperpod.core.suspicion import suspicion_of
from hyperpod.core.verdict import Kind, Method, Verdict


def judged(record: JobRecord, facts: JobFacts, snapshot: Snapshot) -> JobRecord:
    """Return the record with its last ended attempt judged by what is known now.

    Pure and idempotent. Findings that come up to five minutes after the end may revise the verdict.
    """
    attempts = record.attempts
    if not attempts:
        return record
    attempt = attempts[-1]
    if attempt.ended_at is None:
        # Nearly every job is in its first attempt, or long past the end of the one before.
        if len(attempts) == 1:
            return record
        attempt = attempts[-2]
    if attempt.cause not in JUDGED or attempt.ended_at is None:
        return record
    if attempt.attribution is not None and snapshot.now > attempt.ended_at + AFTER + timedelta(seconds=10):
        return record
    witnesses = _witnesses(record, attempt, snapshot)
    is_news = any(w.is_of_interest for w in witnesses) or bool(facts.exits)
    if attempt.attribution is not None and not is_news:
        return record
    earlier = tuple(a for a in record.attempts if a.number < attempt.number)
    coincident = _coincident(attempt, facts, snapshot, witnesses)
    verdict = attribute(attempt, facts.exits, witnesses, earlier, coincident, record.job_id)
    if verdict is None or verdict == attempt.attribution:
        return record
    record = record.with_attempt(replace(attempt, attribution=verdict))
    if verdict.is_elsewhere:
        record = _acquitted(record, attempt, verdict)
    return record


def accused_machines(records: Iterable[JobRecord], history: Sequence[PastRepair], now: datetime) -> Mapping[str, str]:
    """Return the machines that two methods have blamed for a job's end within minutes, each with the sentence.

    One whose repair has begun for that is not named again: it would be rebooted once more as soon as it is back.
    """
    found = {}
    done = {(p.instance_id, p.cause): p.at for p in history}
    for record in records:
        for attempt in record.attempts[-2:]:
            verdict = attempt.attribution
            if verdict is None or not verdict.may_drain or attempt.ended_at is None or now - attempt.ended_at > AFTER:
                continue
            machines = dict(zip(attempt.nodes, attempt.instance_ids, strict=False))
            for name in verdict.nodes:
                machine = machines.get(name, "")
                begun = done.get((machine, AGREED_CAUSE))
                is_fact = any(e.node == name and e.method is Method.FACT for e in verdict.evidence)
                if machine and not is_fact and (begun is None or begun < attempt.ended_at):
                    found[machine] = verdict.reason
    return found


def _acquitted(record: JobRecord, attempt: Attempt, verdict: Verdict) -> JobRecord:
    """The program is to blame: its earlier failures of the same kind hold nothing against their nodes any more."""
    for before in record.attempts:
        told = before.attribution
        is_alike = before.number < attempt.number and before.signature == attempt.signature
        if is_alike and told is not None and told.kind is Kind.UNKNOWN:
            acquitted = replace(told, kind=Kind.APPLICATION, reason=verdict.reason, score=verdict.score, suspects={})
            record = record.with_attempt(replace(before, attribution=acquitted))
    return record


def _witnesses(record: JobRecord, attempt: Attempt, snapshot: Snapshot) -> list[Witness]:
    dead = {n.name: why for n, why in dead_nodes(attempt, snapshot.by_name)}
    found = []
    for position, name in enumerate(attempt.nodes):
        machine = attempt.instance_ids[position] if position < len(attempt.instance_ids) else ""
        node = snapshot.by_name.get(name)
        is_same = node is not None and (not machine or node.instance_id in ("", machine))
        found.append(
            Witness(
                name,
                findings=_findings(node) if node is not None and is_same else (),
                dead=dead.get(name, "") or _remembered(record, attempt, machine),
                refused=_refusal(node, attempt) if node is not None and is_same else "",
                leaving=_leaving(node) if node is not None and is_same and name not in dead else "",
                heard_at=node.heartbeat_at if node is not None and is_same else None,
                suspicion=suspicion_of(snapshot.suspicion, machine, except_job=record.job_id) if machine else 0.0,
            )
        )
    return found


def _findings(node: NodeView) -> tuple[Finding, ...]:
    """Return open and just closed findings of a node's present machine and boot.

    What a check finds that is only observed is no evidence: it must not drain by way of a failed job either.
    """
    return tuple(
        f
        for f in (*node.findings, *node.closed)
        if f.would is Action.NONE
        if not f.instance_id or not node.instance_id or f.instance_id == node.instance_id
    )


def _remembered(record: JobRecord, attempt: Attempt, machine: str) -> str:
    """A machine that the job avoids since this attempt is remembered as its end, also when another is in its slot."""
    is_node = attempt.cause in (ExitCause.NODE_DEAD, ExitCause.NODE_UNHEALTHY) and attempt.attribution is None
    return attempt.message if is_node and machine in record.avoid else ""


def _refusal(node: NodeView, attempt: Attempt) -> str:
    if attempt.cause is not ExitCause.LAUNCH_FAILED:
        return ""
    if refuses_launches(node):
        return f"it could not launch the job: {node.reason}"
    # Of a single node it is known which one refused; Slurm does not say it of several.
    return attempt.message if len(attempt.nodes) == 1 else ""


def _leaving(node: NodeView) -> str:
    """Say why a node is being taken out of work, unless it is for our own verdict: that would be its own evidence."""
    repair = node.repair
    if repair is None or repair.cause == AGREED_CAUSE or not is_leaving(node):
        return ""
    return f"{repair.cause}: {repair.message}"


def _coincident(attempt: Attempt, facts: JobFacts, snapshot: Snapshot, witnesses: list[Witness]) -> dict[str, int]:
    """Count the nodes of the cluster that have one of the attempt's causes since about the same time."""
    keys = {f"{f.check}/{f.code}" for w in witnesses for f in w.findings}
    keys |= {DEAD_CAUSE for w in witnesses if w.dead}
    if not keys:
        return {}
    at = failure_time(attempt, facts.exits)
    found = {}
    for key in sorted(keys):
        where = snapshot.causes.get(key, ())
        near = {n for n, since in where if since is None or at is None or abs(since - at) <= BEFORE}
        found[key] = len(near)
    return found
