"""The controller's TCP port: agents' messages and people's questions.

Owns connections and who may say what. Agents must be root or SlurmUser by their munge credential; anybody with a
valid credential may ask, and sees the own jobs only. Runs in its own thread; hands messages to the tick's inbox.

Anybody on a node can connect. So a connection on which no agent or administrator has spoken is a stranger's: strangers
are few, short-lived, served one question at a time, and by threads of their own. Nothing that they do costs the
controller its descriptors, its memory or the answers that agents wait for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import Any

from hyperpod.adapters.seal import Seal
from hyperpod.adapters.wire import Frame, Sealed, Signer, read_frame, write_frame
from hyperpod.controller.environment import Environments
from hyperpod.controller.memory import Report
from hyperpod.controller.world import World
from hyperpod.core import messages as words
from hyperpod.core.messages import MAX_FRAME_BYTES, Heartbeat
from hyperpod.core.node import Availability
from hyperpod.errors import ClockRefused, ConnectionLost, HyperpodError, MungeError, UsageError

log = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 60.0
"""Agents speak every second; a connection that says nothing for this long is a dead one."""

TICK_DEADLINE_S = 4.0
"""A report that no tick has taken in by then is not confirmed; its agent sends it again after 5 s."""

MAX_CONNECTIONS = 12_000
MAX_STRANGERS = 1_000
MAX_STRANGERS_PER_ADDRESS = 200
"""The oldest stranger makes room for a new one, so that a crowd of silent ones keeps no agent out."""

STRANGER_TIMEOUT_S = 10.0
STRANGER_FRAME_BYTES = 64_000
STRANGER_REFUSALS = 3
REFUSAL_LOG_S = 10.0
RESERVED_FILES = 500
"""Descriptors that connections leave for everything else: the journal, Slurm's tools, metrics."""

Answer = Callable[[str, Mapping[str, Any], int], Any]


class Server:
    """Serves agents and questions on one port."""

    def __init__(self, world: World, munge: Signer, answer: Answer, command: Answer, trusted: Collection[int]) -> None:
        self._world = world
        self._munge = munge
        self._answer = answer
        self._command = command
        self._trusted = trusted
        self._environments = Environments(world, self._start)
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="answer")
        self._users_pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="question")
        self._strangers = Strangers()
        self._max_connections = MAX_CONNECTIONS
        self._refused = 0
        self._log_refused_at = 0.0
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._waiting: dict[str, Future[Mapping[str, Any]]] = {}

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True).start()

    def start(self, address: str, port: int) -> None:
        """Listen in a thread of its own; returns when the port is open.

        Raises:
            OSError: if the port is taken.
        """
        self._max_connections = min(MAX_CONNECTIONS, max(1, raise_file_limit() - RESERVED_FILES))
        ready: list[BaseException | None] = []
        is_up = threading.Event()

        def thread() -> None:
            try:
                asyncio.run(self._serve(address, port, is_up))
            except OSError as error:
                ready.append(error)
                is_up.set()

        threading.Thread(target=thread, name="server", daemon=True).start()
        is_up.wait()
        if ready and ready[0] is not None:
            raise ready[0]

    async def _serve(self, address: str, port: int, is_up: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connection, address, port, backlog=1024, reuse_address=True)
        is_up.set()
        async with server:
            await server.serve_forever()

    def send(self, node: str, message: Mapping[str, Any]) -> bool:
        """Send to an agent from any thread; False when it is not connected."""
        writer = self._writers.get(node)
        if writer is None or self._loop is None:
            return False
        asyncio.run_coroutine_threadsafe(self._write(writer, message), self._loop)
        return True

    def ask(self, node: str, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Order an agent to do something and wait for its answer. Blocks: never in the tick.

        Raises:
            ConnectionLost: if the agent is not connected, or does not answer in time.
        """
        key, answer = os.urandom(12).hex(), Future[Mapping[str, Any]]()
        self._waiting[key] = answer
        try:
            if not self.send(node, {**message, "id": key}):
                raise ConnectionLost(f"the agent of {node} is not connected")
            return answer.result(timeout=timeout_s)
        except FutureTimeout as error:
            raise ConnectionLost(f"the agent of {node} did not answer within {timeout_s:.0f} s") from error
        finally:
            del self._waiting[key]

    async def _write(
        self,
        writer: asyncio.StreamWriter,
        message: Mapping[str, Any],
        only_uid: int | None = None,
        seal: Seal | None = None,
    ) -> None:
        try:
            await write_frame(writer, message, self._munge, only_uid=only_uid, seal=seal)
        except ConnectionLost as error:
            # Whoever does not read must not have answers pile up here.
            log.debug("cannot send error=%s", error)
            writer.transport.abort()
        except HyperpodError as error:
            log.debug("cannot send error=%s", error)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._count >= self._max_connections:
            writer.transport.abort()
            return
        self._count += 1
        self._strangers.add(writer)
        node = ""
        is_stranger, refusals = True, 0
        sealed: Sealed | None = None
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    frame = await read_frame(
                        reader,
                        self._munge,
                        idle_timeout_s=STRANGER_TIMEOUT_S if is_stranger else IDLE_TIMEOUT_S,
                        max_bytes=STRANGER_FRAME_BYTES if is_stranger else MAX_FRAME_BYTES,
                        sealed=sealed,
                    )
                except MungeError as error:
                    refusals += 1
                    self._log_refusal(writer, error)
                    if isinstance(error, ClockRefused) and error.uid in self._trusted:
                        memory, now = self._world.memory, self._world.clock.now()
                        memory.sees_clock(_address(writer), error.ahead_s, now)
                    if is_stranger and refusals >= STRANGER_REFUSALS:
                        break
                    continue
                if frame is None:
                    break
                if frame.uid not in self._trusted:
                    await self._handle(frame, writer)
                    continue
                if is_stranger:
                    is_stranger = False
                    self._strangers.drop(writer)
                node = self._register(frame, writer) or node
                sealed = sealed or _sealed(frame)
                # Answers may take a second; the next message must not wait for them.
                task = asyncio.create_task(self._handle(frame, writer, sealed))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except HyperpodError as error:
            log.debug("connection ended node=%s error=%s", node, error)
        finally:
            self._count -= 1
            self._strangers.drop(writer)
            if node and self._writers.get(node) is writer:
                del self._writers[node]
                # A lost connection is no verdict, but a reason to look sooner.
                self._world.inbox.ring()
            writer.close()

    def _log_refusal(self, writer: asyncio.StreamWriter, error: MungeError) -> None:
        """Tell of refused messages, seldom: whoever sends many must not fill the log with them."""
        now = asyncio.get_running_loop().time()
        self._refused += 1
        if now >= self._log_refused_at:
            log.warning("message refused address=%s count=%d error=%s", _address(writer), self._refused, error)
            self._refused, self._log_refused_at = 0, now + REFUSAL_LOG_S

    def _register(self, frame: Frame, writer: asyncio.StreamWriter) -> str:
        if frame.uid not in self._trusted or frame.message.get("type") not in (words.HELLO, words.HEARTBEAT):
            return ""
        node = str(frame.message.get("node", ""))
        self._writers[node] = writer
        return node

    async def _handle(self, frame: Frame, writer: asyncio.StreamWriter, sealed: Sealed | None = None) -> None:
        message = frame.message
        kind = str(message.get("type", ""))
        try:
            reply = await self._reply(kind, message, frame.uid)
        except HyperpodError as error:
            reply = {"ok": False, "error": type(error).__name__, "message": error.message, "hint": error.hint}
        except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
            log.debug("message not understood type=%.40s uid=%d", kind, frame.uid, exc_info=True)
            reply = {"ok": False, "error": "UsageError", "message": f"message not understood: {error}", "hint": ""}
        if reply is not None:
            reply = {"type": words.REPLY, "id": message.get("id"), **reply}
            if kind == words.HELLO and sealed is not None:
                reply[words.SEAL] = True
            if frame.is_sealed and sealed is not None:
                await self._write(writer, reply, seal=sealed.seal)
                return
            # Signed by us, with an id that the asker chose: only the asker may be able to read it, or a user could
            # keep it and hand it to an agent as the controller's answer.
            await self._write(writer, reply, None if frame.uid in self._trusted else frame.uid)

    async def _reply(self, kind: str, message: Mapping[str, Any], uid: int) -> dict[str, Any] | None:
        now = self._world.clock.now()
        if kind == words.QUERY:
            pool = self._pool if uid in self._trusted else self._users_pool
            result = await self._in_pool(self._answer, str(message["what"]), _args(message), uid, pool=pool)
            return {"ok": True, "result": result}
        if kind == words.COMMAND:
            if uid not in self._trusted:
                return {
                    "ok": False,
                    "error": "AccessDenied",
                    "message": f"{message.get('what')} is for root only",
                    "hint": "use sudo, or ask an administrator",
                }
            result = await self._in_pool(self._command, str(message["what"]), _args(message), uid)
            return {"ok": True, "result": result}
        if uid not in self._trusted:
            return {"ok": False, "error": "AccessDenied", "message": "only agents may say this", "hint": ""}
        if kind == words.HEARTBEAT:
            beat = Heartbeat.from_dict(message)
            self._world.inbox.put(Report(kind, now, message), wake=self._is_news(beat))
            # A node before its deep check starts slurmd only when it is told that no job will be sent to it.
            closed = {"is_closed": self._is_closed(beat.node)} if beat.owes_deep else {}
            return {"type": words.ACK, "sequence": beat.sequence, "time": now.timestamp(), **closed}
        if kind == words.ENV:
            variables = await self._in_pool(self._environments.answer, message)
            return {"ok": True, "env": variables}
        if kind == words.TASK_EXIT:
            return {"ok": await self._hand_over(Report(kind, now, message)), "time": now.timestamp()}
        if kind in (words.TASK_START, words.STEP_END, words.GOODBYE, words.HELLO):
            is_kept = self._world.inbox.put(Report(kind, now, message), wake=self._is_urgent(kind, message))
            return {"ok": is_kept, "time": now.timestamp()}
        if kind == words.REPLY:
            # An agent's answer to an order. Where nobody waits for it, what it did shows in its next heartbeat.
            waiting = self._waiting.get(str(message.get("id")))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            return None
        return {"ok": False, "error": "UsageError", "message": f"unknown message {kind!r}", "hint": ""}

    def _is_urgent(self, kind: str, message: Mapping[str, Any]) -> bool:
        """Say whether a report is worth a tick at once. Tasks of jobs that we do not watch come by the hundred."""
        if kind not in (words.TASK_START, words.TASK_EXIT):
            return kind != words.STEP_END
        snapshot = self._world.last_snapshot
        record = snapshot.records.get(words.whole_job(message)) if snapshot is not None else None
        return record is not None and record.is_armed and not record.verdict

    async def _hand_over(self, report: Report) -> bool:
        """Give a report to the tick and wait until it is in the journal: what is confirmed survives a kill."""
        loop, taken = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(taken.set)

        is_urgent = self._is_urgent(report.kind, report.data)
        if not self._world.inbox.put(replace(report, on_taken=tell), wake=is_urgent):
            return False
        try:
            await asyncio.wait_for(taken.wait(), TICK_DEADLINE_S)
        except TimeoutError:
            return False
        return True

    def _is_news(self, beat: Heartbeat) -> bool:
        """A heartbeat that says the same as the one before need not wake anybody."""
        word = self._world.memory.nodes.get(beat.node)
        if word is None or word.boot_id != beat.boot_id or word.instance_id != beat.instance_id:
            return True
        if word.is_ready != beat.is_ready or word.owes_deep != beat.owes_deep:
            return True
        return {f.key: f.severity for f in word.findings} != {f.key: f.severity for f in beat.findings}

    def _is_closed(self, node: str) -> bool:
        """Say whether Slurm sends no job to a node, by the last look at it."""
        snapshot = self._world.last_snapshot
        seen = snapshot.by_name.get(node) if snapshot is not None else None
        return seen is not None and (seen.is_drained or seen.availability is Availability.DOWN)

    async def _in_pool(self, call: Callable[..., Any], *args: Any, pool: ThreadPoolExecutor | None = None) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool or self._pool, call, *args)


class Strangers:
    """Connections on which nobody trusted has spoken yet, by address, oldest first."""

    def __init__(self, most: int = MAX_STRANGERS, most_of_address: int = MAX_STRANGERS_PER_ADDRESS) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._addresses: dict[str, OrderedDict[asyncio.StreamWriter, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, writer: asyncio.StreamWriter) -> None:
        """Take a new connection in; when there are too many, the oldest of the address with most of them ends."""
        address = _address(writer)
        own = self._addresses.setdefault(address, OrderedDict())
        own[writer] = None
        self._count += 1
        if len(own) > self._most_of_address:
            self._end_oldest(own)
        elif self._count > self._most:
            self._end_oldest(max(self._addresses.values(), key=len))

    def _end_oldest(self, writers: OrderedDict[asyncio.StreamWriter, None]) -> None:
        oldest = next(iter(writers))
        self.drop(oldest)
        oldest.transport.abort()

    def drop(self, writer: asyncio.StreamWriter) -> None:
        """Forget a connection; one that is not known is done already."""
        address = _address(writer)
        own = self._addresses.get(address)
        if own is None or writer not in own:
            return
        del own[writer]
        self._count -= 1
        if not own:
            del self._addresses[address]


def _sealed(frame: Frame) -> Sealed | None:
    """Take the key out of an agent's hello, so that it goes no further."""
    key = frame.message.pop(words.SEAL, None)
    if frame.message.get("type") != words.HELLO or not isinstance(key, str):
        return None
    try:
        return Sealed(Seal(bytes.fromhex(key), is_agent=False), frame.uid, frame.gid)
    except ValueError:
        return None


def _address(writer: asyncio.StreamWriter) -> str:
    # asyncio remembers it, so that it is the same after the connection has ended.
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def _args(message: Mapping[str, Any]) -> Mapping[str, Any]:
    args = message.get("args") or {}
    if not isinstance(args, Mapping):
        raise UsageError("the args of a message must be a JSON object")
    return args


def raise_file_limit(most: int = 65_536) -> int:
    """Let this process have as many descriptors as it may, and return how many: the usual 1024 are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return most if soft == resource.RLIM_INFINITY else soft
