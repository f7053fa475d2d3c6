"""The controller's port under hostile and clumsy clients: what one of them does costs nobody else anything."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hyperpod.adapters.seal import MARK, Seal
from hyperpod.adapters.wire import pack_sealed
from hyperpod.controller import server as module
from hyperpod.controller.queries import Queries
from hyperpod.controller.server import Server, Strangers
from tests.adapters.test_wire import PlainSigner
from tests.daemons.cluster import Cluster

ROOT, USER = 0, 1000


class Transport:
    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Writer:
    """A client's end that takes everything; with ``is_deaf`` its buffer is full for ever."""

    def __init__(self, address: str = "10.0.0.1", *, is_deaf: bool = False) -> None:
        self.transport = Transport()
        self.sent = bytearray()
        self._address = address
        self._is_deaf = is_deaf

    def get_extra_info(self, name: str) -> Any:
        return (self._address, 4000) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.transport.is_aborted

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        if self._is_deaf:
            raise TimeoutError

    def close(self) -> None:
        return


def frame(message: Mapping[str, Any], uid: int) -> bytes:
    body = PlainSigner(uid).encode(json.dumps(message).encode())
    return struct.pack(">I", len(body)) + body


def replies(writer: Writer) -> list[dict[str, Any]]:
    found, data = [], bytes(writer.sent)
    while data:
        (length,) = struct.unpack(">I", data[:4])
        found.append(json.loads(data[4 : 4 + length].partition(b":")[2]))
        data = data[4 + length :]
    return found


def talk(
    data: bytes, writer: Writer, answer: Callable[..., Any] | None = None, cluster: Cluster | None = None
) -> Server:
    """Let one client say all this and hang up."""
    world = (cluster or Cluster()).world
    server = Server(
        world, PlainSigner(), answer or Queries(world, {ROOT}).answer, lambda *_: "done", {ROOT}
    )  # fmt: skip

    async def serve() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        await server._connection(reader, writer)  # type: ignore[arg-type]
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            await task

    asyncio.run(serve())
    return server


@pytest.mark.parametrize(
    "message",
    [
        {"type": "query"},
        {"type": "query", "what": "jobs", "args": [1]},
        {"type": "query", "what": "jobs", "args": "text"},
        {"type": "query", "what": "job", "args": {"job_id": 10**30}},
        {"type": "query", "what": "events", "args": {"after": 10**40}},
        {"type": "query", "what": "events", "args": {"limit": float("inf")}},
        {"type": "query", "what": "why", "args": {"name": "9" * 40}},
        {"type": "query", "what": "why", "args": {"name": "\u00b2"}},
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_an_error(message: dict[str, Any]) -> None:
    writer = Writer()

    talk(frame({**message, "id": "1"}, USER), writer)

    (reply,) = replies(writer)
    assert (reply["id"], reply["ok"]) == ("1", False)


@pytest.mark.parametrize("kind", ["heartbeat", "hello", "task_exit", "task_start", "env", "goodbye", "reply"])
def test_what_only_agents_say_is_refused_from_a_user(kind: str) -> None:
    writer = Writer()

    server = talk(frame({"type": kind, "node": "worker-1", "id": "1", "job_id": 1}, USER), writer)

    assert [reply["error"] for reply in replies(writer)] == ["AccessDenied"]
    assert server._writers == {}


def test_a_user_who_never_reads_loses_the_connection() -> None:
    writer = Writer(is_deaf=True)

    talk(frame({"type": "query", "what": "nodes", "id": "1"}, USER), writer)

    assert writer.transport.is_aborted


def test_a_large_frame_is_accepted_only_from_who_is_trusted_already() -> None:
    large = frame({"type": "query", "what": "nodes", "id": "2", "args": {"x": "y" * 200_000}}, ROOT)
    stranger, agent = Writer(), Writer()

    talk(large, stranger)
    talk(frame({"type": "query", "what": "nodes", "id": "1"}, ROOT) + large, agent)

    assert replies(stranger) == []
    assert {reply["id"] for reply in replies(agent)} == {"1", "2"}


def test_a_stranger_who_sends_nothing_acceptable_is_cut_off() -> None:
    writer = Writer()
    garbage = struct.pack(">I", 4) + b"oops"

    talk(garbage * module.STRANGER_REFUSALS + frame({"type": "query", "what": "nodes", "id": "1"}, USER), writer)

    assert replies(writer) == []


def test_the_oldest_stranger_of_an_address_makes_room_and_others_stay() -> None:
    strangers = Strangers(most=100, most_of_address=3)
    other = Writer("10.0.0.2")
    crowd = [Writer("10.0.0.1") for _ in range(5)]

    for writer in (other, *crowd):
        strangers.add(writer)  # type: ignore[arg-type]

    assert [w.transport.is_aborted for w in crowd] == [True, True, False, False, False]
    assert not other.transport.is_aborted
    assert len(strangers) == 4


def test_a_crowd_in_all_costs_the_address_with_most_of_it() -> None:
    strangers = Strangers(most=3, most_of_address=100)
    crowd = [Writer("10.0.0.1"), Writer("10.0.0.1"), Writer("10.0.0.2"), Writer("10.0.0.3")]

    for writer in crowd:
        strangers.add(writer)  # type: ignore[arg-type]

    assert [w.transport.is_aborted for w in crowd] == [True, False, False, False]


def test_a_connection_on_which_an_agent_has_spoken_is_no_strangers() -> None:
    server = talk(frame({"type": "hello", "node": "worker-1", "id": "1"}, ROOT), Writer())

    assert len(server._strangers) == 0


def test_the_process_may_have_as_many_descriptors_as_the_system_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(module.resource, "getrlimit", lambda _which: (1024, 20_000))
    monkeypatch.setattr(module.resource, "setrlimit", lambda _which, limits: given.append(limits))

    assert module.raise_file_limit() == 20_000
    assert given == [(20_000, 20_000)]


@pytest.mark.parametrize(("uid", "reader"), [(USER, USER), (ROOT, None)])
def test_an_answer_to_a_user_can_be_read_by_that_user_alone(
    monkeypatch: pytest.MonkeyPatch, uid: int, reader: int | None
) -> None:
    readers: list[int | None] = []

    def encode(_self: PlainSigner, payload: bytes, *, only_uid: int | None = None) -> bytes:
        readers.append(only_uid)
        return b"0:" + payload

    asked = frame({"type": "query", "what": "nodes", "id": "1"}, uid)
    monkeypatch.setattr(PlainSigner, "encode", encode)

    talk(asked, Writer())

    assert readers == [reader]


KEY = bytes(range(32))


def sealed_frames(count: int, *, skip: int = 0) -> bytes:
    """Return an agent's hello with a key, and sealed heartbeats after it, the first ones left out."""
    hello = {"type": "hello", "id": "1", "node": "worker-1", "seal": KEY.hex()}
    beat = {"type": "heartbeat", "node": "worker-1", "instance_id": "i-1", "boot_id": "b", "sent_at": 1.0}
    seal = Seal(KEY, is_agent=True)
    beats = [pack_sealed({**beat, "sequence": n, "is_ready": True}, seal) for n in range(1, count + 1)]
    return frame(hello, ROOT) + b"".join(beats[skip:])


def bodies(writer: Writer) -> list[bytes]:
    found, data = [], bytes(writer.sent)
    while data:
        (length,) = struct.unpack(">I", data[:4])
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


@pytest.mark.parametrize(
    ("node", "owes_deep", "told"),
    [
        ("worker-1", True, {"is_closed": True}),
        ("worker-2", True, {"is_closed": True}),
        ("worker-3", True, {"is_closed": False}),
        ("worker-9", True, {"is_closed": False}),
        ("worker-1", False, {}),
    ],
    ids=["drained", "down", "open", "a node that is not known", "nothing is due"],
)
def test_a_node_that_owes_its_deep_check_learns_whether_jobs_can_come(
    node: str, owes_deep: bool, told: dict[str, Any]
) -> None:
    cluster = Cluster()
    cluster.slurm.drain("worker-1", "my tests")
    cluster.slurm.set_down("worker-2", "not heard")
    cluster.run(1)
    writer = Writer()
    beat = {"type": "heartbeat", "node": node, "instance_id": "i-1", "boot_id": "b", "sent_at": 1.0, "sequence": 1}
    talk(frame({**beat, "is_ready": False, "owes_deep": owes_deep}, ROOT), writer, cluster=cluster)
    (ack,) = replies(writer)
    assert {key: value for key, value in ack.items() if key == "is_closed"} == told


def test_heartbeats_under_the_key_of_a_hello_are_answered_under_it() -> None:
    writer = Writer()

    server = talk(sealed_frames(3), writer)

    seal = Seal(KEY, is_agent=True)
    answers = bodies(writer)
    opened = [json.loads(seal.unwrap(body)) for body in answers if body[:1] == MARK]
    assert [answer["sequence"] for answer in opened] == [1, 2, 3]
    (plain,) = [json.loads(body.partition(b":")[2]) for body in answers if body[:1] != MARK]
    assert (plain["ok"], plain["seal"]) == (True, True)
    kept = server._world.inbox.take()
    assert [report.kind for report in kept].count("heartbeat") == 3
    assert KEY.hex() not in str(kept)


def test_a_left_out_sealed_frame_ends_the_connection() -> None:
    writer = Writer()

    server = talk(sealed_frames(3, skip=1), writer)

    assert [report.kind for report in server._world.inbox.take()].count("heartbeat") == 0


def test_a_sealed_frame_without_a_key_is_refused() -> None:
    writer = Writer()
    hello = frame({"type": "hello", "id": "1", "node": "worker-1"}, ROOT)

    server = talk(hello + pack_sealed({"type": "heartbeat", "node": "worker-1"}, Seal(KEY, is_agent=True)), writer)

    assert [report.kind for report in server._world.inbox.take()] == ["hello"]


@pytest.mark.parametrize("key", ["", "abc", "zz" * 32, 5, None, ["a"]])
def test_a_key_that_is_none_leaves_munge_in_place(key: object) -> None:
    writer = Writer()

    talk(frame({"type": "hello", "id": "1", "node": "worker-1", "seal": key}, ROOT), writer)

    (reply,) = replies(writer)
    assert "seal" not in reply
