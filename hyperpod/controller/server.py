"""The controller's TCP port: agents' messages and people's questions.

Owns connections and who may say what. Agents must be root or SlurmUser by their munge credential; anybody with a
valid credential may ask, and sees the own jobs only. Runs in its own thread; hands messages to the tick's inbox.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from hyperpod.adapters.wire import Frame, Signer, read_frame, write_frame
from hyperpod.controller.environment import Environments
from hyperpod.controller.memory import Report
from hyperpod.controller.world import World
from hyperpod.core import messages as words
from hyperpod.core.messages import Heartbeat
from hyperpod.errors import HyperpodError, MungeError

log = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 60.0
"""Agents speak every second; a connection that says nothing for this long is a dead one."""

TICK_DEADLINE_S = 4.0
"""A report that no tick has taken in by then is not confirmed; its agent sends it again after 5 s."""

MAX_CONNECTIONS = 12_000

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
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True).start()

    def start(self, address: str, port: int) -> None:
        """Listen in a thread of its own; returns when the port is open.

        Raises:
            OSError: if the port is taken.
        """
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

    async def _write(self, writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
        try:
            await write_frame(writer, message, self._munge)
        except HyperpodError as error:
            log.debug("cannot send error=%s", error)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._count >= MAX_CONNECTIONS:
            writer.close()
            return
        self._count += 1
        node = ""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    frame = await read_frame(reader, self._munge, idle_timeout_s=IDLE_TIMEOUT_S)
                except MungeError as error:
                    log.warning("message refused error=%s", error)
                    continue
                if frame is None:
                    break
                node = self._register(frame, writer) or node
                # Answers may take a second; the next message must not wait for them.
                task = asyncio.create_task(self._handle(frame, writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except HyperpodError as error:
            log.debug("connection ended node=%s error=%s", node, error)
        finally:
            self._count -= 1
            if node and self._writers.get(node) is writer:
                del self._writers[node]
                # A lost connection is no verdict, but a reason to look sooner.
                self._world.inbox.ring()
            writer.close()

    def _register(self, frame: Frame, writer: asyncio.StreamWriter) -> str:
        if frame.uid not in self._trusted or frame.message.get("type") not in (words.HELLO, words.HEARTBEAT):
            return ""
        node = str(frame.message.get("node", ""))
        self._writers[node] = writer
        return node

    async def _handle(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        message = frame.message
        kind = str(message.get("type", ""))
        try:
            reply = await self._reply(kind, message, frame.uid)
        except HyperpodError as error:
            reply = {"ok": False, "error": type(error).__name__, "message": error.message, "hint": error.hint}
        except (KeyError, ValueError, TypeError) as error:
            reply = {"ok": False, "error": "UsageError", "message": f"message not understood: {error}", "hint": ""}
        if reply is not None:
            reply = {"type": words.REPLY, "id": message.get("id"), **reply}
            await self._write(writer, reply)

    async def _reply(self, kind: str, message: Mapping[str, Any], uid: int) -> dict[str, Any] | None:
        now = self._world.clock.now()
        if kind == words.QUERY:
            result = await self._in_pool(self._answer, str(message["what"]), message.get("args") or {}, uid)
            return {"ok": True, "result": result}
        if kind == words.COMMAND:
            if uid not in self._trusted:
                return {
                    "ok": False,
                    "error": "AccessDenied",
                    "message": f"{message.get('what')} is for root only",
                    "hint": "use sudo, or ask an administrator",
                }
            result = await self._in_pool(self._command, str(message["what"]), message.get("args") or {}, uid)
            return {"ok": True, "result": result}
        if uid not in self._trusted:
            return {"ok": False, "error": "AccessDenied", "message": "only agents may say this", "hint": ""}
        if kind == words.HEARTBEAT:
            beat = Heartbeat.from_dict(message)
            self._world.inbox.put(Report(kind, now, message), wake=self._is_news(beat))
            return {"type": words.ACK, "sequence": beat.sequence, "time": now.timestamp()}
        if kind == words.ENV:
            variables = await self._in_pool(self._environments.answer, message)
            return {"ok": True, "env": variables}
        if kind == words.TASK_EXIT:
            return {"ok": await self._hand_over(Report(kind, now, message)), "time": now.timestamp()}
        if kind in (words.TASK_START, words.STEP_END, words.GOODBYE, words.HELLO):
            is_kept = self._world.inbox.put(Report(kind, now, message), wake=kind != words.STEP_END)
            return {"ok": is_kept, "time": now.timestamp()}
        if kind == words.REPLY:
            # An agent's answer to an order: what it did shows in its next heartbeat.
            return None
        return {"ok": False, "error": "UsageError", "message": f"unknown message {kind!r}", "hint": ""}

    async def _hand_over(self, report: Report) -> bool:
        """Give a report to the tick and wait until it is in the journal: what is confirmed survives a kill."""
        loop, taken = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(taken.set)

        if not self._world.inbox.put(replace(report, on_taken=tell)):
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
        if word.is_ready != beat.is_ready:
            return True
        return {f.key: f.severity for f in word.findings} != {f.key: f.severity for f in beat.findings}

    async def _in_pool(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *args)
