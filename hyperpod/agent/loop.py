"""The agent's loop: waits for sockets, the kernel log, threads and the clock, and tells the mind.

One thread, one selector. Carries out what the mind asks for (``Actions``). Whatever can block is a worker's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import queue
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import hyperpod
from hyperpod.adapters.devices import LocalDevices
from hyperpod.adapters.host import kill
from hyperpod.adapters.kmsg import KmsgReader
from hyperpod.adapters.process import Processes
from hyperpod.adapters.stream import ProgramStreams
from hyperpod.agent.deep import Order
from hyperpod.agent.jobs import jobs_on_node, jobs_to_fence, processes_of_jobs
from hyperpod.agent.leftovers import SHARED_MEMORY, remove_shared_memory
from hyperpod.agent.link import Link, LinkEvent, Received
from hyperpod.agent.mind import Mind
from hyperpod.agent.notify import Notifier
from hyperpod.agent.outputs import Output
from hyperpod.agent.programs import Programs
from hyperpod.agent.server import SocketServer
from hyperpod.agent.settings import AgentSettings
from hyperpod.agent.workers import Workers
from hyperpod.core import messages as words
from hyperpod.errors import HyperpodError
from hyperpod.health.check import Check, Facts, Ports, Result
from hyperpod.health.users import Found
from hyperpod.ports.gpu import Gpus, NoGpus
from hyperpod.ports.host import Credentials, Host
from hyperpod.ports.metadata import Metadata
from hyperpod.ports.process import ProcessRunner

log = logging.getLogger(__name__)

KMSG_POLL_S = 0.1
"""A log that cannot be waited for is looked at this often."""

KMSG_LOOK_S = 10.0
"""One that can be is looked at this often beside, in case a notice was lost."""

SOON_S = 1.0
"""What is due within this time is done now, when the agent is awake anyway: each wake-up costs more."""

KILL_ROUNDS = 5
KILL_PAUSE_S = 0.05
PROBE_TIMEOUT_S = 1.0
FETCH, FETCH_TIMEOUT_S = "/opt/hyperpod/lifecycle_scripts/cloud/fetch.sh", 120.0
OUTPUT_BYTES, OUTPUT_TIMEOUT_S, OUTPUT_SETTLE_S = 65536, 2.0, 0.5
GOODBYE_S = 0.3
"""A stopping agent waits this long for its last words to leave."""


class Loop:
    """Runs one agent. Implements ``actions.Actions``.

    Args:
        settings: The configuration.
        host: The machine.
        munge: Credentials, for the munge check.
        link: Makes the link, given the function that takes its events.
        notifier: Speaks to systemd.
        gpus: The node's GPUs; none without.
        allowed: Uids that may use the socket.
        user_checks: Looks for the checks that users bring.
        metadata: The cloud's word about this machine, where there is one to ask.
    """

    def __init__(
        self,
        settings: AgentSettings,
        host: Host,
        munge: Credentials,
        link: Callable[[Callable[[LinkEvent], None]], Link],
        notifier: Notifier,
        *,
        gpus: Gpus | None = None,
        allowed: Collection[int] = (0,),
        user_checks: Callable[[], Found] = Found,
        metadata: Metadata | None = None,
    ) -> None:
        self._settings = settings
        self._host = host
        self._munge = munge
        self._gpus = gpus or NoGpus()
        self._metadata = metadata
        self._notifier = notifier
        self._user_checks = user_checks
        self._selector = selectors.DefaultSelector()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)
        self._workers = Workers(self._deliver)
        self._programs = Programs()
        self._streams = ProgramStreams(Processes())
        self._devices = LocalDevices()
        self._link = link(self._from_link)
        self._server = SocketServer(settings.socket_path, self._selector, self._on_request, allowed=allowed)
        self._kmsg: KmsgReader | None = None
        self._kmsg_fd = -1
        self._state_path = f"{settings.state_dir}/state.json"
        self._is_stopping = False
        self._expired_at = 0.0
        self.mind: Mind = cast(Mind, None)

    # --- running ----------------------------------------------------------------------------------------------

    def run(self, mind: Mind) -> None:
        """Run until SIGTERM or SIGINT."""
        self.mind = mind
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        if mind.kernel_log is not None:
            self._kmsg = KmsgReader(self._settings.kmsg_path)
        self._link.start()
        self._notifier.say("READY=1")
        next_watchdog = next_kmsg = wake_mind = 0.0
        has_news = True
        try:
            while not self._is_stopping:
                now = self._host.monotonic()
                if self._notifier.interval_s is not None and now >= next_watchdog - SOON_S:
                    self._notifier.say("WATCHDOG=1")
                    next_watchdog = now + self._notifier.interval_s
                is_polled = self._kmsg is not None and self._kmsg.fileno() < 0
                if self._kmsg is not None and now >= next_kmsg - (0.0 if is_polled else SOON_S):
                    is_more = False
                    try:
                        is_more = self._look_at_kernel_log()
                    except Exception:  # the agent's tick, as above
                        log.exception("the kernel log could not be read")
                    has_news = has_news or is_more
                    is_polled = self._kmsg is not None and self._kmsg.fileno() < 0
                    next_kmsg = now if is_more else now + (KMSG_POLL_S if is_polled else KMSG_LOOK_S)
                # A look at a quiet log must not cost a tick each time.
                if has_news or now >= wake_mind:
                    self._tick()
                    now = self._host.monotonic()
                    wake_mind = mind.next_wake(now)
                wake_at = min(wake_mind, next_kmsg if self._kmsg else now + 60)
                if self._notifier.interval_s is not None:
                    wake_at = min(wake_at, next_watchdog)
                has_news = self._wait(max(0.0, wake_at - now))
        finally:
            self._stop()

    def _tick(self) -> None:
        now = self._host.monotonic()
        if now - self._expired_at > 5.0:
            self._expired_at = now
            self._server.expire(now)
        self._workers.hurry()
        self._guarded(lambda: self.mind.on_tick(now, self._host.now(), self._host.uptime_s(), time.monotonic()))

    def _wait(self, timeout_s: float) -> bool:
        """Wait for events and handle them; return whether there were some."""
        self._workers.flush()
        # A little more, so that the time has come when we wake up; epoll counts in milliseconds.
        events = self._selector.select(timeout_s + 0.0005 if timeout_s else 0)
        for key, mask in events:
            self._guarded(lambda k=key, m=mask: k.data(m, self._host.monotonic()))  # type: ignore[misc]
        # What nobody was woken for is taken in before the next tick decides anything.
        return self._take_delivered() or bool(events)

    def _guarded(self, event: Callable[[], object]) -> None:
        try:
            event()
        except Exception:  # the agent's tick: one fault must not end the watch over the node
            log.exception("an event failed")

    def _deliver(self, event: Callable[[], None], is_urgent: bool = True) -> None:
        """Have the loop run this: at once, or when it is awake next (within a heartbeat)."""
        self._events.put(event)
        if not is_urgent:
            return
        # When the pipe is full there are enough wake-ups in it.
        with contextlib.suppress(BlockingIOError):
            self._wake_write.send(b"!")

    def _on_wake(self, mask: int, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_read.recv(4096):
                pass

    def _take_delivered(self) -> bool:
        if self._events.empty():
            return False
        while not self._events.empty():
            self._guarded(self._events.get_nowait())
        return True

    def _on_signal(self, number: int, frame: object) -> None:
        self._is_stopping = True

    def _from_link(self, event: LinkEvent) -> None:
        """Take an event from the link's thread, with the moment at which it came."""
        now, at = self._host.monotonic(), self._host.now()
        is_answer = isinstance(event, Received) and event.message.get("type") == words.ACK
        self._deliver(lambda: self.mind.on_link(event, now, at), not (is_answer and self.mind.is_calm))

    def _on_request(self, client: int, request: dict[str, Any]) -> None:
        now, at = self._host.monotonic(), self._host.now()
        if request.get("type") == "health":
            self._look_at_kernel_log()
        self.mind.on_request(client, request, now, at, self._host.uptime_s())

    def _look_at_kernel_log(self) -> bool:
        """Take in new records; return whether there are more."""
        reader = self._kmsg
        if reader is None:
            return False
        batch = reader.read()
        self._watch_kmsg(reader.fileno())
        kernel_now = time.monotonic()
        self.mind.on_kernel_state(
            overrun=batch.was_overrun, restarted=batch.was_restarted, error=batch.error, kernel_now=kernel_now
        )
        if batch.records:
            self.mind.on_kernel(batch.records, kernel_now, self._host.monotonic(), self._host.now())
        return batch.has_more

    def _watch_kmsg(self, descriptor: int) -> None:
        if descriptor == self._kmsg_fd:
            return
        if self._kmsg_fd >= 0:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._kmsg_fd)
        self._kmsg_fd = -1
        if descriptor >= 0:
            try:
                self._selector.register(descriptor, selectors.EVENT_READ, lambda m, t: self._look_at_kernel_log())
            except PermissionError:
                # Not a device that can be waited for; the loop looks at it once a second.
                return
            self._kmsg_fd = descriptor

    def _stop(self) -> None:
        self._programs.stop_all()
        self._notifier.say("STOPPING=1")
        if self._machine_is_stopping():
            self.mind.say_goodbye()
        self._link.stop(GOODBYE_S)
        self.mind.save()
        self._server.close()

    def _machine_is_stopping(self) -> bool:
        try:
            done = Processes().run(["systemctl", "is-system-running"], timeout_s=1.0, check=False)
        except HyperpodError:
            return False
        return done.stdout.strip() == "stopping"

    # --- effects ----------------------------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any]) -> None:
        self._link.send(message)

    def reset_link(self) -> None:
        self._link.reset()

    def reply(self, client: int, lines: Sequence[str]) -> None:
        self._server.reply(client, lines)

    def start_check(self, check: Check, run_id: int, facts: Facts) -> None:
        ports = Ports(
            self._host,
            self._munge,
            facts,
            self._gpus,
            streams=self._streams,
            devices=self._devices,
            metadata=self._metadata,
        )

        def done(result: object) -> None:
            outcome = cast("Result | BaseException", result)
            self.mind.on_check(check.name, run_id, outcome, self._host.monotonic(), self._host.now())

        def is_urgent(result: object) -> bool:
            is_well = isinstance(result, Result) and not result.findings and not result.why_not_ready
            return not (is_well and self.mind.is_calm)

        name = f"check {check.name}"
        self._workers.start(name, lambda: check.run(ports), done, is_urgent, is_patient=self.mind.is_calm)

    def find_user_checks(self) -> None:
        def done(found: object) -> None:
            if isinstance(found, Found):
                self.mind.on_user_checks(found, self._host.monotonic(), self._host.now())
            else:
                log.warning("users' checks could not be looked for error=%r", found)

        self._workers.start("users' checks", self._user_checks, done)

    def find_jobs(self) -> None:
        asked_at = self._host.monotonic()

        def done(jobs: object) -> None:
            if isinstance(jobs, frozenset):
                self.mind.on_jobs(jobs, asked_at, self._host.monotonic(), self._host.now())

        self._workers.start("jobs", lambda: jobs_on_node(self._host.processes()), done)

    def read_kernel_log(self) -> None:
        self._look_at_kernel_log()

    def start_program(self, order: Order) -> None:
        library = os.path.dirname(os.path.dirname(os.path.abspath(hyperpod.__file__)))
        # Lowest priority: whatever else the node does comes first.
        argv = ["nice", "-n", "19", sys.executable, "-s", "-P", "-m", "hyperpod.deep", order.program]
        argv.append(json.dumps(order.args))

        def work() -> tuple[str, bool, str]:
            if jobs_on_node(self._host.processes()) or not self._programs.may_start(order.key):
                return "", True, ""
            try:
                done = Processes().run(
                    argv,
                    timeout_s=order.timeout_s,
                    env={"PYTHONPATH": library},
                    check=False,
                    on_start=lambda pid: self._programs.started(order.key, pid),
                )
            except HyperpodError as error:
                return "", self._programs.ended(order.key), str(error)
            was_stopped = self._programs.ended(order.key)
            why = "" if done.code == 0 or was_stopped else (done.stderr.strip().splitlines() or ["failed"])[-1]
            return done.stdout, was_stopped, why

        def ended(result: object) -> None:
            if isinstance(result, tuple):
                output, gave_way, why = result
                self.mind.on_program(order.key, output, gave_way=gave_way, error=why)
            else:
                self.mind.on_program(order.key, "", gave_way=False, error=repr(result))

        self._programs.ordered(order.key)
        self._workers.start(f"deep {order.program}", work, ended)

    def stop_programs(self) -> None:
        self._programs.stop_all()

    def probe(self, targets: Sequence[tuple[str, int]]) -> None:
        for address, port in targets:
            self._workers.start(
                f"probe {address}",
                lambda a=address, p=port: self._host.connect(a, p, PROBE_TIMEOUT_S),  # type: ignore[misc]
                lambda contact, t=f"{address}:{port}": self.mind.on_probe(  # type: ignore[misc]
                    t, cast(Any, contact), self._host.monotonic()
                ),
            )

    def kill_jobs(self, job_ids: Collection[int] | None, key: str, ended_s: float | None = None) -> None:
        before = None if ended_s is None else time.clock_gettime(time.CLOCK_BOOTTIME) - ended_s
        known = self.mind.jobs_known()

        def work() -> dict[int, int]:
            wanted: Collection[int]
            if job_ids is None:
                wanted = jobs_to_fence(jobs_on_node(self._host.processes()), known)
            else:
                wanted = job_ids
            return kill_processes(self._host, wanted, started_before=before)

        def done(result: object) -> None:
            killed = cast("dict[int, int]", result) if isinstance(result, dict) else {}
            log.warning("killed processes by_job=%s", killed)
            self.mind.on_killed(key, killed, self._host.now())

        self._workers.start("kill", work, done)

    def find_checkpoint(self, key: str, directory: str, uid: int, timeout_s: float) -> None:
        library = os.path.dirname(os.path.dirname(os.path.abspath(hyperpod.__file__)))
        argv = [
            sys.executable,
            "-s",
            "-P",
            "-m",
            "hyperpod.checkpoint",
            "latest",
            directory,
            "--deadline",
            f"{timeout_s:.2f}",
        ]

        def work() -> str:
            user = pwd.getpwuid(uid).pw_name
            done = Processes().run(argv, timeout_s=timeout_s + 0.1, user=user, env={"PYTHONPATH": library}, check=False)
            return done.stdout.strip() if done.code == 0 else ""

        self._workers.start(
            "checkpoint",
            work,
            lambda path: self.mind.on_checkpoint(key, path if isinstance(path, str) else "", self._host.monotonic()),
        )

    def read_output(self, output: Output) -> None:
        if not os.path.isdir(f"{self._settings.sysfs_path}/devices/virtual/neuron_device"):
            return

        def done(text: object) -> None:
            if isinstance(text, str):
                self.mind.on_output(output.job_id, text, self._host.monotonic(), self._host.now())
            else:
                log.info("a failed job's output was not read job=%d error=%r", output.job_id, text)

        self._workers.start("job output", lambda: end_of_output(Processes(), output, time.sleep), done)

    def make_job_folder(self, job_id: int) -> None:
        folder = f"{self._settings.jobs_dir}/{job_id}"
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/peer_lost")
            self._remove_old_folders()
        except OSError as error:
            log.warning("the job's folder cannot be made job=%d error=%s", job_id, error.strerror)

    def _remove_old_folders(self) -> None:
        """Keep the folder small: what is older than a week belongs to no job that matters."""
        limit = time.time() - 7 * 86400
        for entry in list(os.scandir(self._settings.jobs_dir)):
            if entry.name.isdigit() and entry.stat(follow_symlinks=False).st_mtime < limit:
                with contextlib.suppress(OSError):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{entry.path}/peer_lost")
                    os.rmdir(entry.path)

    def clean_shared_memory(self, job_id: int, uid: int) -> None:
        known = self.mind.jobs_known()
        others = jobs_on_node(self._host.processes()) - {job_id}
        if uid == 0 or any(other not in known or known[other].uid == uid for other in others):
            return
        removed = remove_shared_memory(SHARED_MEMORY, uid)
        if removed:
            log.info("removed shared memory of an earlier attempt job=%d names=%s", job_id, removed)

    def fetch_files(self) -> None:
        def done(result: object) -> None:
            if isinstance(result, BaseException):
                log.warning("the cluster's files were not fetched error=%s", result)

        if os.path.exists(FETCH):
            self._workers.start("fetch files", lambda: self._host.run([FETCH], FETCH_TIMEOUT_S), done)

    def mark_peer_lost(self, job_id: int, node: str) -> None:
        folder = f"{self._settings.jobs_dir}/{job_id}"
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            _write_atomically(f"{folder}/peer_lost", f"{node}\n", 0o644)
        except OSError as error:
            log.warning("the peer_lost file cannot be written job=%d error=%s", job_id, error.strerror)

    def save(self, state: Mapping[str, Any]) -> None:
        try:
            _write_atomically(self._state_path, json.dumps(state), 0o600)
        except OSError as error:
            log.warning("the state cannot be kept path=%s error=%s", self._state_path, error.strerror)


def end_of_output(processes: ProcessRunner, output: Output, pause: Callable[[float], None]) -> str:
    """Return the end of a job's output, read by a process of its user: it sees what the user may see, and what the
    user has put there instead of a file (a link, a pipe) holds up nobody but itself.

    Raises:
        CommandError, CommandTimeout: if it cannot be read, or not in time.
        KeyError: if there is no such user.
    """
    user = pwd.getpwuid(output.uid).pw_name
    # The last lines of a step come over srun, a moment after its task has ended.
    pause(OUTPUT_SETTLE_S)
    argv = ["tail", "-c", str(OUTPUT_BYTES), "--", output.path]
    return processes.run(argv, timeout_s=OUTPUT_TIMEOUT_S, user=user).stdout


def kill_processes(
    host: Host,
    job_ids: Collection[int],
    pause: Callable[[float], None] = time.sleep,
    started_before: float | None = None,
) -> dict[int, int]:
    """Kill every process of these jobs with SIGKILL and return how many were killed, by job.

    With ``started_before`` (boot clock) only leftovers of an attempt that is over: see ``processes_of_jobs``.

    Repeated until none is left, because a process may fork between the look and the kill.
    """
    killed = dict.fromkeys(job_ids, 0)
    for _ in range(KILL_ROUNDS):
        processes = host.processes()
        left = False
        for job_id in killed:
            for pid in processes_of_jobs(processes, (job_id,), host.environment, started_before):
                left = kill(pid, signal.SIGKILL) or left
                killed[job_id] += 1
        if not left:
            break
        pause(KILL_PAUSE_S)
    return killed


def _write_atomically(path: str, text: str, mode: int) -> None:
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with open(descriptor, "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    os.replace(temporary, path)
