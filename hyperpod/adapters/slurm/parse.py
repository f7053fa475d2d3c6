"""What Slurm's tools print, as our own values.

Pure: text in, values out. The only place that knows Slurm's words for states and reasons. Reads the JSON of
Slurm 23.02 and later (data_parser/v0.0.39 to v0.0.42) and, for older releases, the one-line text of
``scontrol -o`` with ``SLURM_TIME_FORMAT=%s``.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from hyperpod.core.job import JobStatus, JobView
from hyperpod.core.node import Availability
from hyperpod.errors import SlurmUnavailable, UnexpectedOutput
from hyperpod.ports.slurm import NodeState

MAX_ENVIRONMENT_BYTES = 4 * 1024 * 1024

# Base states in which a node is in service. UNKNOWN (slurmctld has just started) is deliberately in none.
_UP = frozenset({"IDLE", "ALLOCATED", "MIXED"})
_DOWN = frozenset({"DOWN", "ERROR", "FUTURE"})
_POWERED_OFF = frozenset({"POWERED_DOWN", "POWER_DOWN", "POWERING_DOWN"})
_REBOOTING = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT^", "REBOOT@"})

_JOB_STATUS: Mapping[str, JobStatus] = {
    "PENDING": JobStatus.PENDING,
    "RUNNING": JobStatus.RUNNING,
    "SUSPENDED": JobStatus.SUSPENDED,
    "COMPLETED": JobStatus.COMPLETED,
    "CANCELLED": JobStatus.CANCELLED,
    "FAILED": JobStatus.FAILED,
    "TIMEOUT": JobStatus.TIMEOUT,
    "NODE_FAIL": JobStatus.NODE_FAIL,
    "PREEMPTED": JobStatus.PREEMPTED,
    "BOOT_FAIL": JobStatus.BOOT_FAIL,
    "DEADLINE": JobStatus.DEADLINE,
    "OUT_OF_MEMORY": JobStatus.OUT_OF_MEMORY,
}
# Flags beside the base state. Those of a job waiting in the queue stand for PENDING where the base is missing.
_WAITING = frozenset({"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})

_HELD_REASONS = frozenset({"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"})
_NO_NUMBER = 0xFFFFFFFE


# The same few lists come back at every look; expanding is most of the cost of reading jobs.
@lru_cache(maxsize=4096)
def expand(text: str) -> tuple[str, ...]:
    """Return the node names of a host list such as ``worker-[1-3,7]``, in its order without repeats.

    Raises:
        UnexpectedOutput: if it is not a host list.
    """
    if not text or text in ("(null)", "None", "none"):
        return ()
    if "[" not in text and "," not in text:
        return (text,)
    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise UnexpectedOutput("host list", text) from error


# --- JSON -------------------------------------------------------------------------------------------------------


def _document(text: str, key: str, source: str) -> list[dict[str, Any]]:
    """Return the list under ``key``, or refuse: an answer that is not complete is never an empty one."""
    try:
        document = json.loads(text)
        records = document[key]
        if isinstance(records, dict):
            # data_parser before v0.0.40 wraps nodes and partitions once more.
            records = records[key]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnexpectedOutput(source, text[:200]) from error
    for told in document.get("errors") or ():
        raise SlurmUnavailable(f"{source}: {_error_text(told)}")
    if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
        raise UnexpectedOutput(source, text[:200])
    updated = document.get("last_update")
    if updated is not None and _number(updated) in (None, 0) and not records:
        # A tool that could not ask slurmctld prints this; a real answer carries the time of the last change.
        raise SlurmUnavailable(f"{source}: an empty answer without a time of update")
    return records


def _error_text(told: Any) -> str:
    if isinstance(told, dict):
        return str(told.get("error") or told.get("description") or told)
    return str(told)


def _number(value: Any) -> int | None:
    """Read a number or a ``{"set", "infinite", "number"}`` object; None when unset or infinite."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value)


def _time(value: Any) -> datetime | None:
    number = _number(value)
    # 0 and Slurm's NO_VAL mean "never"; INFINITE dates come as far-away numbers that no calendar holds.
    if not number or number >= _NO_NUMBER:
        return None
    return datetime.fromtimestamp(number, UTC)


def _words(value: Any) -> tuple[str, ...]:
    """Read a state: a list of words, or one string of words joined by ``+``."""
    if isinstance(value, str):
        value = value.replace(" ", "+").split("+")
    return tuple(str(word).upper() for word in value or () if word)


def _text(value: Any) -> str:
    return "" if value in (None, "(null)", "N/A") else str(value)


def parse_nodes(text: str) -> tuple[NodeState, ...]:
    """Read ``scontrol show nodes --json``.

    Raises:
        SlurmUnavailable: if the answer says that slurmctld was not reached.
        UnexpectedOutput: if it is not such an answer.
    """
    return tuple(_node_from_json(record) for record in _document(text, "nodes", "scontrol show nodes"))


def _node_from_json(record: Mapping[str, Any]) -> NodeState:
    try:
        return _node(
            name=str(record["name"]),
            words=_words(record["state"]),
            reason=_text(record.get("reason")),
            reason_by=_text(record.get("reason_set_by_user")),
            reason_at=_time(record.get("reason_changed_at")),
            address=_text(record.get("address")),
            cpus=_number(record.get("cpus")) or 0,
            memory_mib=_number(record.get("real_memory")) or 0,
            boot_at=_time(record.get("boot_time")),
            slurmd_started_at=_time(record.get("slurmd_start_time")),
            partitions=tuple(record.get("partitions") or ()),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedOutput("scontrol show nodes", json.dumps(record)[:200]) from error


def _node(*, words: tuple[str, ...], reason: str, reason_by: str, **values: Any) -> NodeState:
    base, flags = (words[0] if words else "UNKNOWN"), frozenset(words[1:])
    if base.endswith("*"):
        base, flags = base.rstrip("*"), flags | {"NOT_RESPONDING"}
    if base in _DOWN or flags & _POWERED_OFF:
        availability = Availability.DOWN
    elif base in _UP:
        availability = Availability.UP
    else:
        availability = Availability.UNKNOWN
    return NodeState(
        availability=availability,
        is_drained=bool(flags & {"DRAIN", "FAIL"}),
        is_fail="FAIL" in flags,
        is_completing="COMPLETING" in flags,
        is_responding=not flags & {"NOT_RESPONDING", "NO_RESPOND"},
        is_rebooting=bool(flags & _REBOOTING),
        is_allocated=base in ("ALLOCATED", "MIXED"),
        reason=reason,
        # Without a reason Slurm prints the user of uid 0, who did nothing.
        reason_by=reason_by if reason else "",
        **values,
    )


def parse_jobs(text: str) -> tuple[JobView, ...]:
    """Read ``squeue --json``.

    Raises:
        SlurmUnavailable: if the answer says that slurmctld was not reached.
        UnexpectedOutput: if it is not such an answer.
    """
    return tuple(_job_from_json(record) for record in _document(text, "jobs", "squeue"))


def _job_from_json(record: Mapping[str, Any]) -> JobView:
    try:
        exit_code, exit_signal = _exit(record.get("exit_code"))
        return _job(
            job_id=int(record["job_id"]),
            words=_words(record["job_state"]),
            reason=_text(record.get("state_reason")),
            described=_text(record.get("state_description")),
            priority=_number(record.get("priority")),
            start=_time(record.get("start_time")),
            end=_time(record.get("end_time")),
            eligible=_time(record.get("eligible_time")),
            array_job_id=_number(record.get("array_job_id")),
            array_task_id=_number(record.get("array_task_id")),
            het_job_id=_number(record.get("het_job_id")),
            het_offset=_number(record.get("het_job_offset")),
            user=_text(record.get("user_name")),
            uid=_number(record.get("user_id")) if record.get("user_id") is not None else -1,
            name=_text(record.get("name")),
            partition=_text(record.get("partition")),
            is_batch=bool(record.get("batch_flag", True)),
            is_requeue_allowed=bool(record.get("requeue", True)),
            exit_code=exit_code,
            exit_signal=exit_signal,
            restart_count=_number(record.get("restart_cnt")) or 0,
            nodes=expand(_text(record.get("nodes"))),
            node_count=_number(record.get("node_count")) or 1,
            batch_host=_text(record.get("batch_host")),
            submitted_at=_time(record.get("submit_time")),
            excluded=expand(_text(record.get("excluded_nodes"))),
            required=expand(_text(record.get("required_nodes"))),
            dependency=_text(record.get("dependency")),
            output=_text(record.get("stdout_expanded") or record.get("standard_output")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedOutput("squeue", json.dumps(record)[:200]) from error


def _exit(value: Any) -> tuple[int, int]:
    """Return (status, signal) of the batch script."""
    if isinstance(value, dict):
        signal = value.get("signal") or {}
        number = signal.get("id", signal.get("signal_id")) if isinstance(signal, dict) else signal
        return _number(value.get("return_code")) or 0, _number(number) or 0
    raw = _number(value) or 0
    return (raw >> 8) & 0xFF, raw & 0x7F


def _job(
    *,
    words: tuple[str, ...],
    reason: str,
    described: str,
    priority: int | None,
    start: datetime | None,
    end: datetime | None,
    eligible: datetime | None,
    array_job_id: int | None,
    array_task_id: int | None,
    het_job_id: int | None,
    het_offset: int | None,
    **values: Any,
) -> JobView:
    base = next((_JOB_STATUS[word] for word in words if word in _JOB_STATUS), None)
    flags = frozenset(words)
    if base is None:
        base = JobStatus.PENDING if flags & _WAITING else JobStatus.UNKNOWN
    if base is JobStatus.RUNNING and "CONFIGURING" in flags:
        base = JobStatus.CONFIGURING
    is_pending = base is JobStatus.PENDING
    is_held = is_pending and (
        priority == 0 or reason in _HELD_REASONS or bool(flags & {"REQUEUE_HOLD", "SPECIAL_EXIT"})
    )
    return JobView(
        status=base,
        is_completing="COMPLETING" in flags,
        is_held=is_held,
        pending_reason=("" if reason == "None" else reason) if is_pending else "",
        pending_message=described if is_pending else "",
        # Of a running job Slurm gives the end by its time limit, of a pending one the expected start.
        started_at=start if not is_pending else None,
        ended_at=end if base.is_over else None,
        begin_at=eligible,
        priority=priority or 0,
        array_job_id=array_job_id or None,
        array_task_id=array_task_id if array_job_id else None,
        het_job_id=het_job_id or None,
        het_offset=het_offset if het_job_id else None,
        **values,
    )


def parse_partitions(text: str) -> dict[str, tuple[str, ...]]:
    """Read ``scontrol show partitions --json``: name to expanded node names."""
    found: dict[str, tuple[str, ...]] = {}
    for record in _document(text, "partitions", "scontrol show partitions"):
        nodes = record.get("nodes")
        found[str(record.get("name", ""))] = expand(
            _text(nodes.get("configured") if isinstance(nodes, dict) else nodes)
        )
    return found


# --- one-line text ----------------------------------------------------------------------------------------------

_PAIR = re.compile(r"(?:^| )([A-Za-z][A-Za-z/:&]*)=")


def _lines(text: str, first_key: str, source: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each line; a field that occurs twice on its line is left out, as nobody can tell
    which one is Slurm's and which came from a name or comment that a user chose."""
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("No "):
            continue
        if not line.startswith(f"{first_key}="):
            raise UnexpectedOutput(source, line)
        marks = list(_PAIR.finditer(line))
        counts = Counter(mark.group(1) for mark in marks)
        ends = [mark.start() for mark in marks[1:]] + [len(line)]
        yield {
            mark.group(1): line[mark.end() : end].strip()
            for mark, end in zip(marks, ends, strict=True)
            if counts[mark.group(1)] == 1
        }


def _line_time(text: str | None) -> datetime | None:
    return _time(int(text)) if text and text.isdigit() else None


def _line_number(text: str | None) -> int | None:
    match = re.match(r"-?\d+", text or "")
    return int(match.group()) if match else None


def parse_nodes_text(text: str) -> tuple[NodeState, ...]:
    """Read ``scontrol -o show nodes`` with times in epoch seconds."""
    found = []
    for fields in _lines(text, "NodeName", "scontrol show nodes"):
        reason, by, at = _reason(_text(fields.get("Reason")))
        found.append(
            _node(
                name=fields["NodeName"],
                words=_words(fields.get("State", "UNKNOWN")),
                reason=reason,
                reason_by=by,
                reason_at=at,
                address=_text(fields.get("NodeAddr")),
                cpus=_line_number(fields.get("CPUTot")) or 0,
                memory_mib=_line_number(fields.get("RealMemory")) or 0,
                boot_at=_line_time(fields.get("BootTime")),
                slurmd_started_at=_line_time(fields.get("SlurmdStartTime")),
                partitions=tuple(p for p in _text(fields.get("Partitions")).split(",") if p),
            )
        )
    return tuple(found)


def _reason(text: str) -> tuple[str, str, datetime | None]:
    match = re.fullmatch(r"(.*) \[([^\[\]@]+)@([^\[\]]+)\]", text)
    return (match.group(1), match.group(2), _line_time(match.group(3))) if match else (text, "", None)


def parse_jobs_text(text: str) -> tuple[JobView, ...]:
    """Read ``scontrol -o show jobs`` with times in epoch seconds.

    A job whose name or comment imitates other fields has those fields unknown; one whose id appears twice (a
    line break in a name can imitate a whole job) is UNKNOWN altogether.
    """
    found = [_job_from_text(fields) for fields in _lines(text, "JobId", "scontrol show jobs")]
    counts = Counter(job.job_id for job in found)
    return tuple(
        job if counts[job.job_id] == 1 else JobView(job_id=job.job_id)
        for number, job in enumerate(found)
        if counts[job.job_id] == 1 or job.job_id not in {j.job_id for j in found[:number]}
    )


def _job_from_text(fields: Mapping[str, str]) -> JobView:
    owner = re.fullmatch(r"(.*)\((\d+)\)", fields.get("UserId", ""))
    status, _, signal = fields.get("ExitCode", "0:0").partition(":")
    reason = _text(fields.get("Reason"))
    # The text shows the description, where there is one, in the place of the reason, with blanks made "_".
    is_word = re.fullmatch(r"[A-Za-z0-9]*", reason) is not None
    task = fields.get("ArrayTaskId", "")
    try:
        job_id = int(fields["JobId"])
    except (KeyError, ValueError) as error:
        raise UnexpectedOutput("scontrol show jobs", str(dict(fields))) from error
    return _job(
        job_id=job_id,
        words=_words(fields.get("JobState", "")),
        reason=reason if is_word else "",
        described="" if is_word else reason.replace("_", " "),
        priority=_line_number(fields.get("Priority")),
        start=_line_time(fields.get("StartTime")),
        end=_line_time(fields.get("EndTime")),
        eligible=_line_time(fields.get("EligibleTime")),
        array_job_id=_line_number(fields.get("ArrayJobId")),
        array_task_id=int(task) if task.isdigit() else None,
        het_job_id=_line_number(fields.get("HetJobId")),
        het_offset=_line_number(fields.get("HetJobOffset")),
        user=owner.group(1) if owner else "",
        uid=int(owner.group(2)) if owner else -1,
        name=fields.get("JobName", ""),
        partition=_text(fields.get("Partition")),
        is_batch=fields.get("BatchFlag", "1") != "0",
        is_requeue_allowed=fields.get("Requeue", "1") != "0",
        exit_code=_line_number(status) or 0,
        exit_signal=_line_number(signal) or 0,
        restart_count=_line_number(fields.get("Restarts")) or 0,
        nodes=expand(_text(fields.get("NodeList"))),
        node_count=_line_number(fields.get("NumNodes")) or 1,
        batch_host=_text(fields.get("BatchHost")),
        submitted_at=_line_time(fields.get("SubmitTime")),
        excluded=expand(_text(fields.get("ExcNodeList"))),
        required=expand(_text(fields.get("ReqNodeList"))),
        dependency=_text(fields.get("Dependency")),
        output=_text(fields.get("StdOut")),
    )


def parse_partitions_text(text: str) -> dict[str, tuple[str, ...]]:
    """Read ``scontrol -o show partitions``."""
    return {
        fields["PartitionName"]: expand(_text(fields.get("Nodes")))
        for fields in _lines(text, "PartitionName", "scontrol show partitions")
    }


# --- slurmctld's files ------------------------------------------------------------------------------------------


def parse_environment(data: bytes) -> dict[str, str]:
    """Read a job's saved environment: a 4-byte count in the machine's byte order, then NUL-ended ``NAME=VALUE``.

    Entries without a name are left out; a later entry of the same name wins, as in execve.

    Raises:
        UnexpectedOutput: if the file is truncated or over ``MAX_ENVIRONMENT_BYTES``.
    """
    if len(data) > MAX_ENVIRONMENT_BYTES:
        raise UnexpectedOutput("saved job environment", f"{len(data)} bytes")
    if len(data) < 4:
        raise UnexpectedOutput("saved job environment", repr(data))
    count = int.from_bytes(data[:4], sys.byteorder)
    entries = data[4:].split(b"\0")
    if entries and not entries[-1]:
        entries.pop()
    if len(entries) != count:
        raise UnexpectedOutput("saved job environment", f"{count} entries announced, {len(entries)} found")
    return dict(_entries(entries))


def _entries(entries: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if name and equals:
            yield name.decode(errors="surrogateescape"), value.decode(errors="surrogateescape")
