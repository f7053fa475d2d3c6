"""Answers to people's questions: status, jobs, one job, events, and why something is as it is.

Reads the journal and the last snapshot. A user sees the own jobs and their events; root and SlurmUser see all.
Every answer is plain JSON values; the command line renders them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hyperpod.controller.health_report import health_report
from hyperpod.controller.world import World
from hyperpod.core.budget import open_breakers, unhealthy_limit
from hyperpod.core.job import Attempt, JobRecord, JobView
from hyperpod.core.node import Availability, NodeView, Role
from hyperpod.core.offenders import WINDOW, Offender
from hyperpod.core.snapshot import Snapshot
from hyperpod.core.suspicion import suspicion_of
from hyperpod.errors import AccessDenied, NotFound, ProviderUnavailable, UsageError
from hyperpod.ports.store import Event

_MOST_STORED = 2**63 - 1
"""The largest number in the journal; sqlite3 raises an OverflowError beyond it."""


_ALL_EVENTS = 1_000_000
"""More than the journal keeps."""


class Queries:
    """Answers questions for one user at a time."""

    def __init__(
        self,
        world: World,
        trusted: Collection[int],
        more: Mapping[str, Callable[[Mapping[str, Any], int], Any]] | None = None,
    ) -> None:
        self._world = world
        self._trusted = trusted
        self._questions: dict[str, Callable[[Mapping[str, Any], int], Any]] = {
            "status": self._status,
            "nodes": self._nodes,
            "jobs": self._jobs,
            "job": self._job,
            "events": self._events,
            "health-report": self._health_report,
            "why": self._why,
            "offenders": self._offenders,
            **(more or {}),
        }

    def answer(self, what: str, args: Mapping[str, Any], uid: int) -> Any:
        """Answer one question.

        Raises:
            UsageError: if the question is not known.
            NotFound: if the job or node is not known, or is somebody else's.
        """
        question = self._questions.get(what)
        if question is None:
            raise UsageError(f"unknown question {what!r}; known are {', '.join(sorted(self._questions))}")
        return question(args, uid)

    def _snapshot(self) -> Snapshot:
        if self._world.last_snapshot is None:
            raise ProviderUnavailable("the controller has just started and has not looked yet", hint="ask again")
        return self._world.last_snapshot

    def _may_see(self, uid: int, owner: int) -> bool:
        return uid in self._trusted or uid == owner

    def _status(self, args: Mapping[str, Any], uid: int) -> dict[str, Any]:
        snapshot = self._snapshot()
        policy = self._world.repair_policy
        workers = [n for n in snapshot.nodes if n.role is Role.WORKER]
        repairs = [n for n in workers if n.repair is not None]
        breakers = open_breakers(snapshot.history, policy, snapshot.now, snapshot.breaker_reset_at)
        return {
            "cluster": self._world.cluster,
            "at": snapshot.now.isoformat(),
            "missing": list(snapshot.missing),
            "nodes": [_node(n, snapshot) for n in workers],
            "jobs": self._jobs({"running": True}, uid),
            "repairs": [_repair(n, snapshot, policy.replace_attempts) for n in repairs],
            "spares": {
                group: {
                    "wanted": count,
                    "ready": sum(1 for n in workers if n.group == group and not n.in_partition and n.repair is None),
                }
                for group, count in (policy.spare_count or {}).items()
                if count
            },
            "budget": {
                "under_repair": len(repairs),
                "max_parallel_repaired": policy.max_parallel_repaired,
                "unhealthy_limit": unhealthy_limit(len(workers), policy),
                "open_breakers": {cause: list(nodes) for cause, nodes in breakers.items()},
            },
            "notes": [
                {"code": n.code, "message": n.message, "node": n.node, "job_id": n.job_id}
                for n in self._world.last_notes
                if n.job_id is None or self._may_see(uid, self._owner(n.job_id))
            ],
        }

    def _owner(self, job_id: int) -> int:
        record = self._world.store.job(job_id)
        return record.uid if record else -1

    def _nodes(self, args: Mapping[str, Any], uid: int) -> list[dict[str, Any]]:
        snapshot = self._snapshot()
        return [_node(n, snapshot) for n in snapshot.nodes]

    def _jobs(self, args: Mapping[str, Any], uid: int) -> list[dict[str, Any]]:
        snapshot = self._snapshot()
        views = {v.job_id: v for v in snapshot.jobs}
        rows = []
        for record in sorted(self._world.store.jobs(), key=lambda r: r.job_id):
            view = views.get(record.job_id)
            is_over = view is None or (view.status.is_over and bool(record.verdict or not record.is_armed))
            if not self._may_see(uid, record.uid) or (args.get("running") and is_over):
                continue
            rows.append(_job_row(record, view, snapshot))
        return rows

    def _record(self, args: Mapping[str, Any], uid: int) -> JobRecord:
        job_id = _stored_number(args["job_id"])
        record = self._world.store.job(job_id)
        if record is None or not self._may_see(uid, record.uid):
            raise NotFound(f"job {job_id} is not known here, or is not yours", hint="hyperpod jobs lists yours")
        return record

    def _job(self, args: Mapping[str, Any], uid: int) -> dict[str, Any]:
        record = self._record(args, uid)
        snapshot = self._snapshot()
        view = next((v for v in snapshot.jobs if v.job_id == record.job_id), None)
        row = _job_row(record, view, snapshot)
        row["attempts"] = [_attempt(a) for a in record.attempts]
        row["lost_seconds"] = sum(a["lost_seconds"] or 0.0 for a in row["attempts"])
        row["events"] = [_event(e) for e in self._world.store.events(job_id=record.job_id, limit=500)]
        row["avoids"] = dict(record.avoid)
        judged = next((a for a in reversed(record.attempts) if a.attribution is not None), None)
        row["who_was_it"] = judged.attribution.reason if judged is not None and judged.attribution is not None else ""
        return row

    def _events(self, args: Mapping[str, Any], uid: int) -> list[dict[str, Any]]:
        job_id = args.get("job_id")
        limit = max(1, min(int(args.get("limit") or 200), 2000))
        after = _stored_number(args.get("after") or 0)
        events = self._seen_events(
            uid,
            after=after,
            limit=limit,
            job_id=_stored_number(job_id) if job_id is not None else None,
            node=str(args.get("node") or ""),
        )
        mine = [_event(e) for e in events if e.job_id is None or self._may_see(uid, self._event_owner(e))]
        return mine[:limit] if after else mine[-limit:]

    def _offenders(self, args: Mapping[str, Any], uid: int) -> dict[str, Any]:
        """Return every machine that had a fault or is suspect, with its chance of that being chance."""
        snapshot = self._snapshot()
        machines = {n.instance_id: n.name for n in snapshot.nodes if n.instance_id}
        return {
            "at": snapshot.now.isoformat(),
            "window_days": WINDOW.days,
            "replaced": self._world.repair_policy.replace_offenders,
            "machines": [_offender(o, machines) for o in self._world.ledger.account(snapshot.now)],
            "excluded": [
                {
                    "node": machines.get(s.machine, ""),
                    "was_node": s.node,
                    "instance_id": s.machine,
                    "users": s.users,
                    "of_users": s.of_users,
                    "expected": round(s.expected, 3),
                    "chance": s.tail,
                    "is_significant": s.is_significant,
                }
                for s in self._world.exclusions.shunned(self._world.ledger.exposures(), snapshot.now)
            ],
            "suspects": sorted(
                (
                    {"node": name, "instance_id": machine, "suspicion": round(total, 2), "jobs": len(jobs)}
                    for machine, name in machines.items()
                    if (jobs := snapshot.suspicion.get(machine, {})) and (total := sum(jobs.values())) > 0
                ),
                key=lambda row: (-float(str(row["suspicion"])), str(row["node"])),
            ),
        }

    def _seen_events(self, uid: int, **which: Any) -> Sequence[Event]:
        """Return events that a user may see. The journal itself leaves the others out, so that no question costs more
        than its answer."""
        if uid in self._trusted:
            return self._world.store.events(**which)
        own_jobs = [r.job_id for r in self._world.store.jobs() if r.uid == uid]
        return self._world.store.events(**which, seen_by=uid, own_jobs=own_jobs)

    def _event_owner(self, event: Event) -> int:
        if event.uid is not None:
            return event.uid
        return self._owner(event.job_id) if event.job_id is not None else -1

    def _health_report(self, args: Mapping[str, Any], uid: int) -> dict[str, Any]:
        if uid not in self._trusted:
            raise AccessDenied("the report over all checks is for root only", hint="put sudo before the command")
        since_s = float(args.get("since_s") or 7 * 86400)
        if not 0 < since_s <= 366 * 86400:
            raise UsageError("the report looks back a year at most")
        now = self._world.clock.now()
        since = now - timedelta(seconds=since_s)
        events = self._world.store.events(limit=_ALL_EVENTS)
        rows = health_report(events, self._world.store.jobs(), since)
        oldest = events[0].at if events else now
        return {"since": max(since, oldest).isoformat(), "at": now.isoformat(), "rows": rows}

    def _why(self, args: Mapping[str, Any], uid: int) -> dict[str, Any]:
        """Walk from a job or node to its causes: job, nodes, instances, findings, last error, what comes next."""
        snapshot = self._snapshot()
        name = str(args["name"])
        if name.isdecimal():
            record = self._record({"job_id": name}, uid)
            view = next((v for v in snapshot.jobs if v.job_id == record.job_id), None)
            names = set(view.nodes if view else ()) | set(record.avoid.values())
            return {
                "job": _job_row(record, view, snapshot),
                "lines": _why_job(record, view),
                "nodes": [
                    {"node": n.name, "lines": self._why_node(n, snapshot, uid)}
                    for n in snapshot.nodes
                    if n.name in names
                ],
                "next": _next_of_job(record, view),
            }
        node = next((n for n in snapshot.nodes if n.name == name), None)
        if node is None:
            known = ", ".join(n.name for n in snapshot.nodes)
            if any(slot.name == name for slot in self._world.slots()):
                raise NotFound(f"{name} is no worker: the controller watches workers only", hint=f"they are: {known}")
            raise NotFound(f"there is no node {name}", hint=f"known nodes: {known}")
        lines = self._why_node(node, snapshot, uid)
        return {"node": _node(node, snapshot), "lines": lines, "next": _next_of_node(node)}

    def _why_node(self, node: NodeView, snapshot: Snapshot, uid: int) -> list[str]:
        lines = [f"{node.name}: {_visible_state(node)}"]
        if node.reason and (node.is_drained or node.availability is Availability.DOWN):
            lines.append(f"reason set by {node.reason_by or 'nobody known'}: {node.reason}")
        lines.append(f"instance {node.instance_id or 'none'} is {node.instance_status.value} by the provider")
        if node.heartbeat_at is None:
            lines.append("its agent has not been heard")
        else:
            lines.append(f"its agent was heard {(snapshot.now - node.heartbeat_at).total_seconds():.1f} s ago")
        word = self._world.memory.nodes.get(node.name)
        if word is not None and word.not_ready_because:
            lines.append(f"not ready: {word.not_ready_because}")
        offender = snapshot.offenders.get(node.instance_id)
        if offender is not None:
            lines.append(f"it fails too often: {offender.sentence}")
        suspicion = suspicion_of(snapshot.suspicion, node.instance_id)
        if suspicion >= 0.05:
            count = len(snapshot.suspicion[node.instance_id])
            lines.append(f"suspicion {suspicion:.2f} from failures of {count} job{'' if count == 1 else 's'}")
        lines += [f"finding {f.severity.name} {f.check}/{f.code}: {f.message}" for f in node.findings]
        if node.repair is not None and node.repair.last_error:
            lines.append(f"last error: {node.repair.last_error}")
        # A node's history holds what happened to jobs there, too; those of others stay theirs.
        recent = self._seen_events(uid, node=node.name, limit=15)
        began = [index for index, event in enumerate(recent) if event.kind == "RepairBegan"]
        # The whole of the last repair, so that its cause is seen; else the latest few.
        recent = recent[min(began[-1], len(recent) - 5) :] if began else recent[-5:]
        lines += [f"{e.at.isoformat(timespec='seconds')} {e.kind}: {e.message}" for e in recent]
        return lines


def _stored_number(value: Any) -> int:
    """Read a number that is looked up in the journal.

    Raises:
        UsageError: if it is none, or one that no job or event can have.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{str(value)[:40]!r} is not a whole number") from error
    if not 0 <= number <= _MOST_STORED:
        raise UsageError(f"{str(value)[:40]} is not from 0 to {_MOST_STORED}")
    return number


def _visible_state(node: NodeView) -> str:
    """Return the one state that people see."""
    if node.repair is not None:
        return node.repair.status.value
    if node.is_drained:
        return f"drained ({node.drain_owner.value})"
    if node.availability.value != "up":
        return node.availability.value
    if not node.is_ready:
        return "not ready"
    if not node.in_partition:
        return "spare"
    return "in use" if node.jobs else "idle"


def _node(node: NodeView, snapshot: Snapshot) -> dict[str, Any]:
    age = (snapshot.now - node.heartbeat_at).total_seconds() if node.heartbeat_at else None
    return {
        "node": node.name,
        "group": node.group,
        "state": _visible_state(node),
        "partition": node.partition if node.in_partition else "",
        "instance_id": node.instance_id,
        "instance_status": node.instance_status.value,
        "heartbeat_age_s": age,
        "jobs": list(node.jobs),
        "reason": node.reason if node.is_drained or node.availability is Availability.DOWN else "",
        "findings": [f.to_dict() for f in node.findings],
    }


def _repair(node: NodeView, snapshot: Snapshot, most: int) -> dict[str, Any]:
    repair = node.repair
    assert repair is not None
    return {
        "node": node.name,
        "status": repair.status.value,
        "cause": repair.cause,
        "message": repair.message,
        "action": repair.action.value,
        "attempt": repair.attempt,
        "attempts": most,
        "since_s": (snapshot.now - repair.since).total_seconds(),
        "last_error": repair.last_error,
    }


def _job_row(record: JobRecord, view: JobView | None, snapshot: Snapshot) -> dict[str, Any]:
    current = record.current
    return {
        "job_id": record.job_id,
        "user": record.user,
        "name": record.name,
        "status": view.status.value if view else "gone",
        "pending_reason": view.pending_reason if view else "",
        "nodes": list(view.nodes) if view else [],
        "armed_by": record.armed_by,
        "attempt": current.number if current else 0,
        "max_attempts": record.max_attempts,
        "checkpoint_dir": record.checkpoint_dir,
        "resume_from": current.resume_from if current else "",
        "verdict": record.verdict,
        "verdict_message": record.verdict_message,
    }


def _offender(offender: Offender, machines: Mapping[str, str]) -> dict[str, Any]:
    return {
        "identity": offender.identity,
        "instance_id": offender.machine,
        "node": machines.get(offender.machine, ""),
        "was_node": offender.node,
        "faults": offender.faults,
        "days": round(offender.days, 1),
        "expected": round(offender.expected, 4),
        "chance": offender.tail,
        "is_significant": offender.is_significant,
        "causes": list(offender.causes),
    }


def _seconds(a: datetime | None, b: datetime | None) -> float | None:
    return None if a is None or b is None else (b - a).total_seconds()


def _attempt(attempt: Attempt) -> dict[str, Any]:
    lost = None
    if attempt.cause is not None and attempt.cause.value != "Completed" and attempt.failure_seen_at is not None:
        lost = _seconds(attempt.failure_seen_at, attempt.ended_at)
    return {**attempt.to_dict(), "lost_seconds": max(lost, 0.0) if lost is not None else None}


def _event(event: Event) -> dict[str, Any]:
    return {
        "id": event.event_id,
        "at": event.at.isoformat(),
        "kind": event.kind,
        "message": event.message,
        "node": event.node,
        "job_id": event.job_id,
        "data": dict(event.data) if event.data else {},
    }


def _why_job(record: JobRecord, view: JobView | None) -> list[str]:
    lines = []
    if not record.is_armed:
        lines.append("it did not ask for auto-resume: it is treated as on a stock Slurm")
    if record.verdict:
        lines.append(f"{record.verdict}: {record.verdict_message}")
    if view is None:
        lines.append("Slurm does not know it any more")
    elif view.status.value == "pending":
        lines.append(f"pending: {view.pending_reason or 'no reason given'} {view.pending_message}".strip())
    else:
        lines.append(f"{view.status.value} on {', '.join(view.nodes) or 'no node'}")
    for attempt in record.attempts:
        cause = f"{attempt.cause.value}: {attempt.message}" if attempt.cause else "running"
        start = f", from {attempt.resume_from}" if attempt.resume_from else ""
        lines.append(f"attempt {attempt.number} on {', '.join(attempt.nodes)}{start}: {cause}")
        if attempt.attribution is not None:
            lines.append(f"attempt {attempt.number} was ended by: {attempt.attribution.reason}")
    return lines


def _next_of_job(record: JobRecord, view: JobView | None) -> str:
    if record.verdict or view is None:
        return "nothing more: it is over"
    if not record.is_armed:
        return "Slurm alone decides"
    status = view.status.value
    if status == "pending" and view.is_held:
        return "it is held; release it with scontrol release"
    if status == "pending":
        return "it starts as soon as Slurm finds nodes for it"
    if status == "running":
        return "if it fails it is started again, while attempts are left"
    return "it is being judged; it is requeued unless the cause is the program, its user or its time limit"


def _next_of_node(node: NodeView) -> str:
    repair = node.repair
    if repair is None:
        if node.drain_owner.value == "person":
            return "nothing: a person drained it, and only a person brings it back"
        return "nothing to do"
    return {
        "draining": f"when its jobs have left: {repair.action.value}",
        "fencing": "its machine is powered off, then replaced",
        "rebooting": "when it has booted it is checked, then takes work",
        "replacing": "the new machine is checked when it runs",
        "checking": "when its basic checks pass it takes work, or becomes the spare",
        "asleep": "it is started when the running spares are used up",
        "waking": "when its agent is heard it is checked, then joins its partition",
        "held": "a person must look; hyperpod replace-node tries again",
    }.get(repair.status.value, "")
