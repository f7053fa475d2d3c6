"""The agent's mind: what it knows, and what it has done about every event. No I/O; time is passed in.

Events come in as ``on_*`` calls, effects go out through ``Actions``. Everything here is level-based: a heartbeat
carries the whole set of open findings, so a lost message costs a second and nothing else.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hyperpod import __version__
from hyperpod.agent.actions import Actions
from hyperpod.agent.deep import DeepChecks, parse_order
from hyperpod.agent.environment import fallback, fallback_of_script, lines_of, peer_lost_path
from hyperpod.agent.facts import facts_from
from hyperpod.agent.jobs import KnownJob
from hyperpod.agent.lease import Fence, LeaseView, choose_peers, decide_fence
from hyperpod.agent.link import Connected, LinkEvent, Lost, Received
from hyperpod.agent.outbox import Outbox
from hyperpod.agent.outputs import JobOutputs, parse_output
from hyperpod.agent.quiet import QuietLog
from hyperpod.agent.residents import Residents
from hyperpod.agent.settings import AgentSettings
from hyperpod.core import messages as words
from hyperpod.core.finding import Finding, Severity, Whose
from hyperpod.core.job import BATCH_STEP
from hyperpod.core.messages import Heartbeat
from hyperpod.core.node import Role
from hyperpod.health.check import Facts, Result
from hyperpod.health.checks import munge
from hyperpod.health.checks.kernel_log import KernelLog
from hyperpod.health.correlate import asks_for_replacement, correlate
from hyperpod.health.runner import Runner
from hyperpod.health.users import Found
from hyperpod.ports.host import Contact

log = logging.getLogger(__name__)

ENV_DEADLINE_S = 1.25
"""The plugin waits 1.4 s for an environment."""

ENV_PATIENCE_S = 0.5
"""The controller gets this long before we begin to look for a checkpoint ourselves."""

QUICK_DEADLINE_S = 1.8
SILENCE_RESET_S = 3.0
"""A connection without an answer for this long is given up: only a new attempt shows whether the way is open."""

HEALTH = "health"
"""Requests of the command line, beside those of the plugin."""

SAVE_INTERVAL_S = 30.0
SEARCH_INTERVAL_S = 60.0
"""How often users' checks and the processes of jobs are looked for; without the folder that is one failed call."""

MOST_DELAY_S = 1.0
"""A check may start so much later than it is due, so that the agent wakes up less often."""

JOB_CHECK_GAP_S = 5.0
LEASE_FINDING_S = 600.0
STARTS_S = 60.0
"""A slurmd that was held until now has so long before its absence is a fault."""

JOBS_REMEMBERED = 2000
_SSH_PORT = 22
_MOST_OUTPUT = 100_000


@dataclass
class _Asked:
    """An environment that a client waits for."""

    client: int
    job: KnownJob
    looks_at: float
    ends_at: float
    is_script: bool = False
    is_looking: bool = False
    checkpoint: str | None = None


@dataclass
class _Quick:
    names: tuple[str, ...]
    began: float
    ends_at: float


@dataclass
class _Lease:
    heard_at: float
    head: Contact | None = None
    answers: dict[str, Contact | None] = field(default_factory=dict)
    probed_at: float | None = None
    round: int = 0
    is_fenced: bool = False
    finding: Finding | None = None
    back_at: float | None = None


def _job_id(request: Mapping[str, Any]) -> int:
    """Read a job's id; one that Slurm cannot have given would be carried to the journal and refused there for ever."""
    job_id = int(request["job_id"])
    if not 0 < job_id < 2**32:
        raise ValueError(f"{job_id} is not a job id")
    return job_id


class Mind:
    """Decides for one agent.

    Args:
        settings: The configuration.
        runner, kernel_log, outbox: Its parts.
        actions: Carries the effects out.
        boot_id: This boot.
        gateway: Address of the default gateway, asked about when the cluster has no peers; may be empty.
        notes: Findings about the agent itself, for as long as it lives.
        start: Monotonic time now.
    """

    def __init__(
        self,
        settings: AgentSettings,
        runner: Runner,
        kernel_log: KernelLog | None,
        outbox: Outbox,
        actions: Actions,
        *,
        boot_id: str,
        gateway: str = "",
        notes: Sequence[Finding] = (),
        start: float = 0.0,
    ) -> None:
        self._settings = settings
        self._notes = tuple(notes)
        self._quiet = QuietLog(log)
        self.runner = runner
        self.kernel_log = kernel_log
        self._outbox = outbox
        self._do = actions
        self._boot_id = boot_id
        self._gateway = gateway
        self._is_connected = False
        self._sequence = 0
        self._next_heartbeat = start
        self._sent: OrderedDict[int, tuple[float, float]] = OrderedDict()
        self._offsets: deque[tuple[float, float]] = deque(maxlen=8)
        self._jobs: OrderedDict[int, KnownJob] = OrderedDict()
        self._asked: dict[str, _Asked] = {}
        self._quick: dict[str, _Quick] = {}
        self._count = 0
        self._lease = _Lease(heard_at=start)
        self._connected_at = start
        self._is_ready = False
        self._must_save = False
        self._next_search = start
        self._residents = Residents()
        self._told_inventory: dict[str, str] | None = None
        self._said: tuple[object, ...] | None = None
        self._beat: dict[str, Any] = {}
        """The last heartbeat, and what it said, apart from the moment."""

        self._user_notes: tuple[Finding, ...] = ()
        self._next_save = start + SAVE_INTERVAL_S
        self._is_leaving = False
        self._uptime_s = 0.0
        self._wants_munge = False
        self.deep = DeepChecks(settings.deep_on_start, boot_id, settings.instance_id)
        self._is_closed = False
        self._closed_at: float | None = None
        self._asked_before: frozenset[str] = frozenset()
        self._outputs = JobOutputs(boot_id, settings.instance_id)
        self._logged: dict[tuple[str, str, str], Finding] = {}

    # --- what the agent believes ------------------------------------------------------------------------------

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every open finding of this node."""
        kernel = self.kernel_log.findings if self.kernel_log else ()
        lease = (self._lease.finding,) if self._lease.finding else ()
        others = (*self.deep.findings, *self._outputs.findings)
        own = (*self._notes, *self._user_notes, *self.runner.findings(), *kernel, *lease, *others)
        return correlate(own, self._asked_before) if own else own

    @property
    def why_not_ready(self) -> str:
        """Why the node must not take its first job of this boot; empty once every basic check has passed.

        Deep checks that the specification wants before the first job come after the basic ones.
        """
        why = "" if self._is_ready else self.runner.why_not_ready()
        if not why and self.deep.wants:
            why = f"it waits for its deep check ({', '.join(self.deep.wants)})"
        return why

    def _is_held(self, now: float) -> bool:
        """Whether slurmd waits for the controller (``agent.first_check``), or has just been let go and still starts."""
        is_let_go = self._closed_at is not None and now - self._closed_at > STARTS_S
        return bool(self.deep.wants) and not is_let_go

    @property
    def is_calm(self) -> bool:
        """Whether nobody waits for anything: then good news may wait for the next heartbeat. For any thread."""
        return self._is_ready and not self._quick and not self.deep.running

    @property
    def clock_offset_s(self) -> float | None:
        """The head node's clock minus ours, from the answer that took the shortest time; None before the first."""
        return min(self._offsets)[1] if self._offsets else None

    def facts(self, now: float, at: datetime, uptime_s: float) -> Facts:
        """Return what checks are told when they start."""
        return facts_from(
            self._settings,
            at,
            uptime_s,
            clock_offset_s=self.clock_offset_s,
            jobs=self._residents.jobs,
            is_held=self._is_held(now),
        )

    # --- the controller ---------------------------------------------------------------------------------------

    def on_link(self, event: LinkEvent, now: float, at: datetime) -> None:
        """The connection has changed, or a message has come."""
        if isinstance(event, Received):
            self._on_message(event.message, now, at)
        elif isinstance(event, Connected):
            self._quiet.say(logging.INFO, f"connected to the controller head={self._settings.head_address}", now)
            self._is_connected = True
            self._connected_at = now
            self._told_inventory = None
            self._lease.head = Contact.OPEN
            s = self._settings
            self._do.send(
                {
                    "type": words.HELLO,
                    "v": words.PROTOCOL,
                    "id": self._new_id(),
                    "cluster": s.cluster,
                    "node": s.node,
                    "group": s.group,
                    "role": s.role.value,
                    "instance_id": s.instance_id,
                    "boot_id": self._boot_id,
                    "agent_version": __version__,
                }
            )
            self._heartbeat(now, at)
            self._send_outbox(now)
        else:
            self._on_lost(event, now)

    def _on_lost(self, event: Lost, now: float) -> None:
        if self._is_connected:
            self._quiet.say(logging.WARNING, f"the connection to the controller is lost: {event.why}", now)
        self._is_connected = False
        if event.contact is not None:
            self._lease.head = event.contact
        self._outbox.disconnected()
        self._sent.clear()

    def _on_message(self, message: Mapping[str, Any], now: float, at: datetime) -> None:
        kind = message.get("type")
        if kind == words.ACK:
            self._on_ack(message, now)
        elif kind == words.REPLY:
            self._on_reply(message, now)
        elif kind == words.FETCH_FILES:
            log.info("fetching the cluster's files: a node has moved")
            self._do.fetch_files()
        elif kind == words.QUICK_CHECK:
            self._on_quick_check(str(message.get("id")), now, at)
            output = parse_output(message.get("output"))
            if output is not None:
                self._do.read_output(output)
        elif kind == words.CLEAR:
            was_open = self._clear(message, now, at)
            if message.get("id") is not None:
                self._do.send({"type": words.REPLY, "id": message["id"], "ok": True, "cleared": was_open})
        elif kind in (words.DEEP, words.DEEP_STOP, words.DEEP_JUDGED):
            self._on_deep(kind, message, now, at)
        elif kind in (words.KILL_JOB, words.PEER_LOST):
            try:
                job_id = int(message["job_id"])
            except (KeyError, TypeError, ValueError):
                log.warning("a command of the controller has no job_id type=%s", kind)
                return
            if kind == words.PEER_LOST:
                log.info("a peer is lost job=%d peer=%s", job_id, message.get("node"))
                self._do.mark_peer_lost(job_id, str(message.get("node", "")))
                if message.get("id") is not None:
                    self._do.send({"type": words.REPLY, "id": message["id"], "ok": True})
            else:
                ended = message.get("ended_s")
                log.warning("ending a job's processes by the controller's order job=%d ended_s=%s", job_id, ended)
                ended_s = float(ended) if isinstance(ended, int | float) else None
                self._do.kill_jobs([job_id], f"command {message.get('id') or ''}", ended_s)
        else:
            log.warning("a message of the controller is not known type=%r", kind)

    def _on_ack(self, message: Mapping[str, Any], now: float) -> None:
        self._heard(now)
        try:
            sequence, time = int(message["sequence"]), float(message["time"])
        except (KeyError, TypeError, ValueError):
            return
        self._is_closed = bool(message.get("is_closed"))
        if not self._is_closed:
            self._closed_at = None
        elif self._closed_at is None:
            self._closed_at = now
        sent = self._sent.pop(sequence, None)
        if sent is not None:
            took = now - sent[0]
            if not self._offsets and not self._is_ready:
                # The munge check waits for the first answer of the controller; a booting node need not wait for it.
                self._wants_munge = True
            self._offsets.append((took, time - (sent[1] + took / 2)))

    def _heard(self, now: float) -> None:
        lease = self._lease
        lease.heard_at = now
        lease.head = Contact.OPEN
        lease.probed_at, lease.answers = None, {}
        if lease.is_fenced:
            lease.is_fenced = False
            lease.back_at = now

    def _on_reply(self, message: Mapping[str, Any], now: float) -> None:
        self._heard(now)
        key = message.get("id")
        if isinstance(key, str) and key in self._asked:
            env = message.get("env")
            if message.get("ok") and isinstance(env, Mapping):
                self._answer(key, env, is_armed=bool(env))
            return
        if message.get("ok", True):
            self._outbox.confirm(key)
        elif message.get("error") in ("UsageError", "AccessDenied"):
            # It would say the same tomorrow; keeping it would only block the others.
            log.warning("the controller refused a report id=%s error=%s", key, message.get("message"))
            self._outbox.confirm(key)
        else:
            self._outbox.retry_later(key, now)
        self._send_outbox(now)

    def _send_outbox(self, now: float) -> None:
        if self._is_connected:
            for message in self._outbox.due(now):
                self._do.send(message)

    def _heartbeat(self, now: float, at: datetime) -> None:
        self._next_heartbeat = now + self._settings.heartbeat_interval_s
        if not self._is_connected or self._is_leaving:
            return
        self._sequence += 1
        why = self.why_not_ready
        inventory, told = self.runner.inventory(), self._told_inventory
        news = None if inventory is told or inventory == told else inventory
        findings, wants = self.findings, self.deep.wants
        said = (why, findings, wants, self._is_ready)
        sent_at = at.timestamp()
        if news is None and said == self._said:
            # Nothing is new but the moment, as most of the time.
            beat = {**self._beat, "sequence": self._sequence, "sent_at": sent_at}
        else:
            beat = Heartbeat(
                node=self._settings.node,
                instance_id=self._settings.instance_id,
                boot_id=self._boot_id,
                sequence=self._sequence,
                sent_at=sent_at,
                is_ready=not why,
                not_ready_because=why,
                findings=findings,
                agent_version=__version__,
                # First the quick look, then the long one: a node that fails it needs no burn-in.
                wants=wants if self._is_ready else (),
                inventory=news,
                owes_deep=bool(wants),
            ).to_dict()
            self._said, self._beat = (said, beat) if news is None else (None, {})
        self._told_inventory = inventory
        self._sent[self._sequence] = (now, sent_at)
        while len(self._sent) > 30:
            self._sent.popitem(last=False)
        self._do.send(beat)

    def _new_id(self) -> str:
        self._count += 1
        return f"{self._boot_id[:8]}-{self._settings.node}-m{self._count}"

    # --- the plugin -------------------------------------------------------------------------------------------

    def on_request(self, client: int, request: Mapping[str, Any], now: float, at: datetime, uptime_s: float) -> None:
        """A client of the socket asks or tells something; every request gets one answer."""
        kind = request.get("type")
        try:
            if kind in (words.TASK_START, words.ENV) and self.deep.running:
                log.info("a job has come: deep checks give way")
                self._do.stop_programs()
            if kind in (words.TASK_START, words.TASK_EXIT, words.STEP_END):
                self._on_report(request)
                self._do.reply(client, ())
                self._send_outbox(now)
                self._mind_residents(request, now, at)
            elif kind == words.ENV:
                self._on_env(client, request, now)
                self._mind_residents(request, now, at)
            elif kind == HEALTH:
                self._do.reply(client, (self.describe(now, at, uptime_s),))
            elif kind == words.GOODBYE:
                self.say_goodbye()
                self._do.reply(client, ())
            else:
                log.warning("a request is not known type=%r", kind)
                self._do.reply(client, ())
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            log.warning("a request was not understood type=%r error=%r", kind, error)
            self._do.reply(client, ())

    def _on_report(self, request: Mapping[str, Any]) -> None:
        # Read here so that nonsense is refused at the door and cannot block the outbox for ever.
        _job_id(request), int(request["step_id"]), float(request["time"])
        if request["type"] == words.TASK_EXIT:
            words.parse_task_exit(request)
        self._outbox.add({**request, "node": self._settings.node})

    def _on_env(self, client: int, request: Mapping[str, Any], now: float) -> None:
        job = KnownJob(
            job_id=_job_id(request),
            uid=int(request["uid"]),
            restart_count=int(request.get("restart_count") or 0),
            checkpoint_dir=str(request.get("checkpoint_dir") or ""),
            is_armed=True if request.get("armed_by") and str(request.get("auto_resume") or "0") != "0" else None,
        )
        known = self._jobs.get(job.job_id)
        if known is None or known.restart_count != job.restart_count:
            self._do.make_job_folder(job.job_id)
        if known is not None:
            job = replace(
                job,
                is_armed=job.is_armed if job.is_armed is not None else known.is_armed,
                checkpoint_dir=job.checkpoint_dir or known.checkpoint_dir,
            )
        self._remember(job)
        key = self._new_id()
        is_script = int(request.get("step_id") or 0) == BATCH_STEP and not job.restart_count
        asked = _Asked(client, job, now + ENV_PATIENCE_S, now + ENV_DEADLINE_S, is_script)
        self._asked[key] = asked
        if self._is_connected:
            self._do.send({**request, "type": words.ENV, "id": key, "node": self._settings.node})
        else:
            asked.looks_at = now
        self._mind_asked(now)

    def _remember(self, job: KnownJob) -> None:
        if self._jobs.get(job.job_id) != job:
            self._jobs[job.job_id] = job
            self._must_save = True
        self._jobs.move_to_end(job.job_id)
        while len(self._jobs) > JOBS_REMEMBERED:
            self._jobs.popitem(last=False)

    def _answer(self, key: str, env: Mapping[str, Any], *, is_armed: bool | None) -> None:
        asked = self._asked.pop(key)
        job = replace(asked.job, is_armed=is_armed)
        directory = env.get("HYPERPOD_CHECKPOINT_DIR")
        if isinstance(directory, str) and directory:
            job = replace(job, checkpoint_dir=directory)
        self._remember(job)
        variables = dict(env)
        if variables:
            variables["HYPERPOD_PEER_LOST"] = peer_lost_path(self._settings.jobs_dir, job.job_id)
        if str(variables.get("HYPERPOD_ATTEMPT", "1")) != "1":
            self._do.clean_shared_memory(job.job_id, job.uid)
        self._do.reply(asked.client, lines_of(variables))

    def _mind_asked(self, now: float) -> None:
        """Answer for the controller where it takes too long."""
        for key, asked in list(self._asked.items()):
            job = asked.job
            if job.is_armed is not True:
                # Nothing here says that the job wants to be resumed; only the controller knows the default.
                if now >= asked.ends_at or not self._is_connected:
                    self._asked.pop(key)
                    self._do.reply(asked.client, ())
                continue
            needs_look = (job.restart_count > 0 or asked.is_script) and bool(job.checkpoint_dir)
            if needs_look and not asked.is_looking and now >= asked.looks_at:
                asked.is_looking = True
                timeout_s = max(0.2, asked.ends_at - now - 0.05)
                self._do.find_checkpoint(key, job.checkpoint_dir, job.uid, timeout_s)
            is_known = asked.checkpoint is not None or not needs_look
            if (is_known and (not self._is_connected or now >= asked.ends_at)) or now >= asked.ends_at:
                build = fallback_of_script if asked.is_script else fallback
                self._answer(key, build(job, asked.checkpoint or ""), is_armed=True)

    def on_checkpoint(self, key: str, path: str, now: float) -> None:
        """The newest good checkpoint was looked up for a waiting client; empty when there is none."""
        asked = self._asked.get(key)
        if asked is not None:
            asked.checkpoint = path
            self._mind_asked(now)

    def _clear(self, message: Mapping[str, Any], now: float, at: datetime) -> bool:
        """A person says that a finding of a log or of a deep check is dealt with; other checks close theirs by
        themselves."""
        code, device = str(message.get("code") or ""), str(message.get("device") or "")
        was_open = self.kernel_log is not None and self.kernel_log.clear(code, device)
        was_open = self.deep.clear(code, device) or was_open
        was_open = self.runner.clear(code, device) or was_open
        if was_open:
            log.warning("finding cleared by hand code=%s device=%s reason=%s", code, device, message.get("reason"))
            self._news(now, at)
        return was_open

    def describe(self, now: float, at: datetime, uptime_s: float) -> str:
        """Return what the agent thinks as one line of JSON, for ``hyperpod health``."""
        offset = self.clock_offset_s
        return json.dumps(
            {
                "node": self._settings.node,
                "role": self._settings.role.value,
                "instance_id": self._settings.instance_id,
                "boot_id": self._boot_id,
                "uptime_s": round(uptime_s, 1),
                "time": at.timestamp(),
                "agent_version": __version__,
                "is_connected": self._is_connected,
                "heard_s_ago": round(now - self._lease.heard_at, 1),
                "clock_offset_s": None if offset is None else round(offset, 4),
                "is_ready": not self.why_not_ready,
                "not_ready_because": self.why_not_ready,
                "owes_deep": list(self.deep.wants),
                "is_closed": self._is_closed,
                "waiting_reports": len(self._outbox),
                "findings": [f.to_dict() for f in self.findings],
                "checks": [
                    {
                        "name": s.name,
                        "runs": s.runs,
                        "is_running": s.is_running,
                        "hangs": s.hangs,
                        "last_problem": s.last_problem,
                    }
                    for s in self.runner.states()
                ],
                "kernel_lines": self.kernel_log.lines if self.kernel_log else None,
            }
        )

    # --- checks -----------------------------------------------------------------------------------------------

    def on_check(self, name: str, run_id: int, result: Result | BaseException, now: float, at: datetime) -> None:
        """A check has come back."""
        was_ready = not self.why_not_ready
        changed = self.runner.finished(name, run_id, result, now, at)
        if not self._is_ready and not self.runner.why_not_ready():
            self._is_ready = self._must_save = True
            log.info("every basic check has passed, the node is ready")
        if changed or was_ready != self._is_ready:
            self._news(now, at)
        self._mind_quick(now)

    def on_user_checks(self, found: Found, now: float, at: datetime) -> None:
        """The checks that users bring were looked for."""
        known = {f.key: f.since for f in self._user_notes}
        boot, machine = self._boot_id, self._settings.instance_id
        notes = tuple(
            replace(f, since=known.get(f.key) or at, boot_id=boot, instance_id=machine) for f in found.findings
        )
        changed = self.runner.set_extra(found.checks, found.observe_only, now)
        if changed or notes != self._user_notes:
            self._user_notes = notes
            self._news(now, at)

    def on_kernel(self, records: Sequence[str], kernel_now: float, now: float, at: datetime) -> None:
        """Records of the kernel log have come."""
        if self.kernel_log is None:
            return
        changed = False
        self.kernel_log.jobs = frozenset(self._residents.jobs or ())
        for raw in records:
            changed = self.kernel_log.feed(raw, kernel_now) or changed
        if records:
            self._must_save = True
        if changed:
            self._news(now, at)

    def on_output(self, job_id: int, text: str, now: float, at: datetime) -> None:
        """The end of a failed job's output was read."""
        if self._outputs.took(job_id, text, now, at):
            log.info("the output of a failed job tells of the machine job=%d", job_id)
            self._news(now, at)

    def on_kernel_state(self, *, overrun: bool, restarted: bool, error: str, kernel_now: float) -> None:
        """Something happened to the kernel log itself."""
        if self.kernel_log is None:
            return
        if restarted:
            self.kernel_log.restart_file()
        if overrun:
            self.kernel_log.overrun(kernel_now)
        if error:
            self.kernel_log.unreadable(error, kernel_now)
        else:
            self.kernel_log.readable()

    def _news(self, now: float, at: datetime) -> None:
        """The findings have changed: say it at once, and keep it."""
        self._must_save = True
        self._heartbeat(now, at)
        self._log_findings()
        self.save()

    def _log_findings(self) -> None:
        """Write which findings have opened and ended, for whoever reads this node's own journal."""
        known, self._logged = self._logged, {f.key: f for f in self.findings}
        for key, finding in self._logged.items():
            if key not in known:
                name = f"{finding.check}/{finding.code}"
                log.info("finding %s %s %s: %s", finding.severity.name, name, finding.device or "-", finding.message)
        for key in known.keys() - self._logged.keys():
            log.info("finding ended %s %s", "/".join(key[:2]), key[2] or "-")

    def _mind_residents(self, request: Mapping[str, Any], now: float, at: datetime) -> None:
        """Follow which jobs are here; the first sign of a job has the checks for its start run, beside it."""
        try:
            job_id, step_id = _job_id(request), int(request.get("step_id", 0))
            restart_count = int(request.get("restart_count") or 0)
        except (TypeError, ValueError, ArithmeticError):
            # Its answer has been given already.
            return
        if request["type"] == words.STEP_END:
            self._residents.step_ended(job_id, step_id, now)
            return
        is_begun = request["type"] != words.TASK_EXIT
        if is_begun and self._residents.step_began(job_id, restart_count, step_id, now):
            self._on_job(self.runner.job_start_names, now, at)

    def on_jobs(self, jobs: Collection[int], asked_at: float, now: float, at: datetime) -> None:
        """It was looked which jobs have processes here."""
        ended = self._residents.saw(jobs, asked_at)
        if ended:
            log.debug("jobs have left this node jobs=%s", ended)
            self._on_job(self.runner.job_end_names, now, at)

    def _on_job(self, names: Sequence[str], now: float, at: datetime) -> None:
        if not names:
            return
        self._do.read_kernel_log()
        # Jobs of seconds come by the hundred; a look that is a moment old serves the next one too.
        self._start(self.runner.force(names, now, gap_s=JOB_CHECK_GAP_S), now, at)

    def _on_quick_check(self, key: str, now: float, at: datetime) -> None:
        self._do.read_kernel_log()
        names = self.runner.quick_names
        self._quick[key] = _Quick(names, now, now + QUICK_DEADLINE_S)
        self._start(self.runner.force(names, now), now, at)
        self._mind_quick(now)

    def _mind_quick(self, now: float) -> None:
        for key, quick in list(self._quick.items()):
            unfinished = self.runner.running(quick.names)
            if unfinished and now < quick.ends_at:
                continue
            del self._quick[key]
            late = ",".join(unfinished) or "-"
            log.info("quick check answered id=%s took_s=%.3f unfinished=%s", key, now - quick.began, late)
            self._do.send(
                {
                    "type": words.REPLY,
                    "id": key,
                    "ok": True,
                    "node": self._settings.node,
                    "findings": [f.to_dict() for f in self.findings],
                    "suspicions": [f.to_dict() for f in self.runner.suspicions(quick.names)],
                    "unfinished": list(unfinished),
                }
            )

    def _start(self, started: Sequence[tuple[Any, int]], now: float, at: datetime) -> None:
        for check, run_id in started:
            self._do.start_check(check, run_id, self.facts(now, at, self._uptime_s))

    # --- deep checks ------------------------------------------------------------------------------------------

    def _on_deep(self, kind: str, message: Mapping[str, Any], now: float, at: datetime) -> None:
        try:
            if kind == words.DEEP:
                order = parse_order(message)
                self.deep.running.add(order.key)
                self._do.start_program(order)
            elif kind == words.DEEP_STOP:
                self._do.stop_programs()
            else:
                kinds = [str(item) for item in message["kinds"]]
                self.deep.judged(kinds, [Finding.from_dict(f) for f in message["findings"]], at)
                self._news(now, at)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("an order of the controller is not understood type=%s error=%r", kind, error)

    def on_program(self, key: str, output: str, *, gave_way: bool, error: str) -> None:
        """A deep check's program has ended: what it printed, whether it gave way to a job, what went wrong."""
        self.deep.running.discard(key)
        self._do.send(
            {
                "type": words.REPLY,
                "id": key,
                "ok": not error,
                "node": self._settings.node,
                "output": output[-_MOST_OUTPUT:],
                "gave_way": gave_way,
                "message": error,
            }
        )

    # --- fencing ----------------------------------------------------------------------------------------------

    def on_probe(self, target: str, contact: Contact, now: float) -> None:
        """A peer has answered, or not."""
        if target in self._lease.answers:
            self._lease.answers[target] = contact
            self._mind_lease(now)

    def _mind_lease(self, now: float) -> None:
        if self._settings.role is not Role.WORKER or self._is_leaving:
            return
        lease = self._lease
        view = LeaseView(now, lease.heard_at, lease.head, lease.answers, lease.probed_at, lease.is_fenced)
        decision = decide_fence(view, self._settings.lease_s)
        if decision.fence is Fence.PROBE:
            targets = self._probe_targets()
            lease.round += 1
            lease.probed_at = now
            lease.answers = {f"{address}:{port}": None for address, port in targets}
            self._quiet.say(logging.WARNING, f"no contact with the controller: {decision.why}", now)
            self._do.probe(targets)
        elif decision.fence is Fence.KILL:
            lease.is_fenced = True
            log.error("cut off, killing jobs that may be started elsewhere: %s", decision.why)
            self._do.kill_jobs(None, decision.why)

    def _probe_targets(self) -> list[tuple[str, int]]:
        s = self._settings
        peers = choose_peers(s.peers, s.node, self._lease.round)
        if peers:
            return [(address, s.slurmd_port) for address in peers]
        # A single worker has only the head node and the router to tell "I am cut off" from "it is down".
        return [(address, _SSH_PORT) for address in (s.head_address, self._gateway) if address]

    def on_killed(self, key: str, killed: Mapping[int, int], at: datetime) -> None:
        """Processes of jobs were killed: how many, by job."""
        if key.startswith("command "):
            asked = key.removeprefix("command ")
            if asked:
                self._do.send({"type": words.REPLY, "id": asked, "ok": True, "killed": sum(killed.values())})
            return
        jobs = ", ".join(str(job) for job in sorted(killed)) or "none"
        message = f"this node was cut off and killed the processes of its jobs ({jobs}): {key}"
        self._lease.finding = Finding(
            "lease",
            "LeaseLost",
            Severity.WARN,
            message,
            since=at,
            boot_id=self._boot_id,
            instance_id=self._settings.instance_id,
            whose=Whose.SITE,
            evidence=f"jobs {jobs}",
        )
        self._must_save = True

    def jobs_known(self) -> Mapping[int, KnownJob]:
        """Return what is known of jobs, for deciding which are fenced."""
        return dict(self._jobs)

    # --- time -------------------------------------------------------------------------------------------------

    def on_tick(self, now: float, at: datetime, uptime_s: float, kernel_now: float) -> None:
        """Do everything whose time has come."""
        self._uptime_s = uptime_s
        changed = self.runner.tick(now, at)
        changed = self._outputs.forget(now) or changed
        self._start(self.runner.due(now), now, at)
        if self._wants_munge:
            self._wants_munge = False
            self._start(self.runner.force([munge.NAME], now), now, at)
        if now >= self._next_search:
            self._next_search = now + SEARCH_INTERVAL_S
            self._do.find_user_checks()
            self._residents.looks_at = now
        if self._residents.looks_at is not None and now >= self._residents.looks_at:
            self._residents.looks(now)
            self._do.find_jobs()
        self._mind_asked(now)
        self._mind_quick(now)
        if self._is_connected and now - max(self._lease.heard_at, self._connected_at) > SILENCE_RESET_S:
            self._is_connected = False
            self._lease.head = None
            self._do.reset_link()
        self._mind_lease(now)
        lease = self._lease
        if lease.back_at is not None and now - lease.back_at > LEASE_FINDING_S:
            lease.finding, lease.back_at = None, None
        if self.kernel_log is not None and now >= self._next_save:
            changed = self.kernel_log.forget(kernel_now) or changed
        if changed:
            self._news(now, at)
        elif now >= self._next_heartbeat:
            self._heartbeat(now, at)
        self._send_outbox(now)
        if now >= self._next_save:
            self._next_save = now + SAVE_INTERVAL_S
            self.save()

    def next_wake(self, now: float) -> float:
        """Return the moment of the next ``on_tick`` if nothing else happens."""
        # Saving and searching wait for a heartbeat.
        times = [self._next_heartbeat]
        check = self.runner.next_deadline()
        if check is not None:
            # A check that is due within a second of the next heartbeat waits for it: each wake-up costs more than
            # most checks do.
            is_near = self.is_calm and check < self._next_heartbeat <= check + MOST_DELAY_S
            times.append(self._next_heartbeat if is_near else check)
        if self._residents.looks_at is not None:
            times.append(self._residents.looks_at)
        times += [min(a.ends_at, a.ends_at if a.is_looking else a.looks_at) for a in self._asked.values()]
        times += [q.ends_at for q in self._quick.values()]
        if self._is_connected:
            resend = self._outbox.next_resend()
            if resend is not None:
                times.append(resend)
        return min(times)

    # --- the end ----------------------------------------------------------------------------------------------

    def say_goodbye(self) -> None:
        """The machine shuts down in order: the controller moves its jobs before slurmd stops."""
        if self._is_leaving:
            return
        log.info("the machine shuts down, telling the controller")
        self._is_leaving = True
        self._do.send(
            {
                "type": words.GOODBYE,
                "v": words.PROTOCOL,
                "id": self._new_id(),
                "node": self._settings.node,
                "instance_id": self._settings.instance_id,
                "boot_id": self._boot_id,
            }
        )

    def save(self) -> None:
        """Keep what has to outlive a restart, if it has changed."""
        if self._must_save:
            self._must_save = False
            self._do.save(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return what has to outlive a restart of the agent within this boot."""
        return {
            "boot_id": self._boot_id,
            "is_ready": self._is_ready,
            "jobs": [job.to_dict() for job in self._jobs.values()],
            "kernel_log": self.kernel_log.to_dict() if self.kernel_log else None,
            "deep": self.deep.to_dict(),
            "asked_before": sorted(self._asked_before),
            "asked": sorted({f.device for f in self.findings if asks_for_replacement(f)}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``to_dict`` gave, if it is of this boot.

        Raises:
            KeyError, ValueError, TypeError: if it is not such a state.
        """
        before = state.get("asked_before") or []
        if state["boot_id"] != self._boot_id:
            # What the devices asked for in an earlier boot of this machine is all that outlives the boot.
            self._asked_before = frozenset(str(device) for device in (*before, *(state.get("asked") or [])))
            return
        self._asked_before = frozenset(str(device) for device in before)
        jobs = [KnownJob.from_dict(item) for item in state["jobs"]]
        if self.kernel_log is not None and state.get("kernel_log"):
            self.kernel_log.restore(state["kernel_log"])
        if state.get("deep"):
            self.deep.restore(state["deep"], is_ready=bool(state["is_ready"]))
        self._is_ready = bool(state["is_ready"])
        self._jobs = OrderedDict((job.job_id, job) for job in jobs)
