"""Answers of a controller, as ``controller/queries.py`` forms them."""

from __future__ import annotations

from typing import Any


def node(name: str, state: str = "idle", **changes: Any) -> dict[str, Any]:
    return {
        "node": name, "group": "worker", "state": state, "partition": "dev", "instance_id": "i-0000000000000000b",
        "instance_status": "running", "heartbeat_age_s": 0.4, "jobs": [], "reason": "", "findings": [], **changes,
    }  # fmt: skip


def job(job_id: int = 42, **changes: Any) -> dict[str, Any]:
    return {
        "job_id": job_id, "user": "ubuntu", "name": "train", "status": "running", "pending_reason": "",
        "nodes": ["worker-1", "worker-3"], "armed_by": "job", "attempt": 2, "max_attempts": 5,
        "checkpoint_dir": "/fsx/ckpt", "resume_from": "/fsx/ckpt/step_400", "verdict": "", "verdict_message": "",
        **changes,
    }  # fmt: skip


def attempt(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "number": number, "restart_count": number - 1, "started_at": "2026-01-02T03:00:00+00:00",
        "nodes": ["worker-1", "worker-2"], "instance_ids": [], "first_task_at": "2026-01-02T03:00:01+00:00",
        "ended_at": None, "cause": None, "message": "", "signature": "", "resume_from": "", "resume_step": -1,
        "last_step": None, "failure_seen_at": None, "decided_at": None, "lost_seconds": None, **changes,
    }  # fmt: skip


def event(number: int, kind: str = "NodeDead", **changes: Any) -> dict[str, Any]:
    return {
        "id": number, "at": "2026-01-02T03:10:00+00:00", "kind": kind, "message": "worker-2 is silent",
        "node": "worker-2", "job_id": None, "data": {}, **changes,
    }  # fmt: skip


def job_history() -> dict[str, Any]:
    """A job that lost a node, and went on from an older checkpoint than its newest."""
    first = attempt(
        1, ended_at="2026-01-02T03:10:05+00:00", cause="NodeDead", message="worker-2 was silent for 3 s",
        last_step=900, failure_seen_at="2026-01-02T03:10:00+00:00", decided_at="2026-01-02T03:10:00.5+00:00",
        lost_seconds=5.0,
    )  # fmt: skip
    second = attempt(
        2, started_at="2026-01-02T03:10:06+00:00", first_task_at="2026-01-02T03:10:07+00:00",
        nodes=["worker-1", "worker-3"], resume_from="/fsx/ckpt/step_400", resume_step=400,
    )  # fmt: skip
    return {
        **job(), "attempts": [first, second], "lost_seconds": 5.0, "events": [event(1, job_id=42)],
        "avoids": {"i-0000000000000000b": "worker-2"},
    }  # fmt: skip


def status(**changes: Any) -> dict[str, Any]:
    return {
        "cluster": "demo",
        "at": "2026-01-02T03:10:10+00:00",
        "missing": [],
        "nodes": [
            node("worker-1", "in use", jobs=[42]),
            node("worker-2", "replacing", heartbeat_age_s=None, reason="hyperpod:heartbeat/NodeDead silent [node]"),
            node("worker-3", "spare", partition=""),
        ],
        "jobs": [job()],
        "repairs": [
            {
                "node": "worker-2", "status": "replacing", "cause": "heartbeat/NodeDead", "message": "silent for 3 s",
                "action": "Replace", "attempt": 2, "attempts": 3, "since_s": 720.0, "last_error": "no disk space left",
            }
        ],
        "spares": {"worker": {"wanted": 1, "ready": 1}},
        "budget": {
            "under_repair": 1, "max_parallel_repaired": 2, "unhealthy_limit": 3,
            "open_breakers": {"epilog/KillTaskFailed": ["worker-1", "worker-2"]},
        },
        "notes": [{"code": "WaitingForSlurm", "message": "slurmctld is slow", "node": "worker-1", "job_id": None}],
        **changes,
    }  # fmt: skip
