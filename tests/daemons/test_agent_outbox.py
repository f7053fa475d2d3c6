"""Messages that must not be lost: confirmed or kept, over restarts and floods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyperpod.agent import outbox as module
from hyperpod.agent.outbox import IN_FLIGHT, RESEND_S, WINDOW, Outbox


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "outbox.jsonl")


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [m["n"] for m in messages]


def test_a_message_is_due_once_until_it_is_confirmed(path: str) -> None:
    box = Outbox(path, "a")
    key = box.add({"n": 1})
    assert box.due(0.0) == [{"n": 1, "id": key}]
    assert box.due(1.0) == []
    assert box.confirm(key)
    assert (len(box), box.due(100.0)) == (0, [])


def test_a_message_without_a_confirmation_is_sent_again(path: str) -> None:
    box = Outbox(path, "a")
    box.add({"n": 1})
    box.due(0.0)
    assert box.next_resend() == RESEND_S
    assert numbers(box.due(RESEND_S)) == [1]


def test_after_a_lost_connection_everything_is_due_again_in_order(path: str) -> None:
    box = Outbox(path, "a")
    for n in range(5):
        box.add({"n": n})
    box.due(0.0)
    box.disconnected()
    assert numbers(box.due(0.1)) == [0, 1, 2, 3, 4]


def test_only_so_many_are_under_way_at_once(path: str) -> None:
    box = Outbox(path, "a")
    keys = [box.add({"n": n}) for n in range(IN_FLIGHT + 50)]
    assert len(box.due(0.0)) == IN_FLIGHT
    assert box.next_resend() == RESEND_S
    for key in keys[:10]:
        box.confirm(key)
    assert numbers(box.due(0.1)) == list(range(IN_FLIGHT, IN_FLIGHT + 10))


def test_what_was_not_confirmed_outlives_a_kill(path: str) -> None:
    box = Outbox(path, "a")
    keys = [box.add({"n": n}) for n in range(3)]
    box.confirm(keys[1])
    again = Outbox(path, "b")
    assert numbers(again.due(0.0)) == [0, 2]
    assert again.confirm(keys[0])
    assert again.add({"n": 9}).startswith("b-")


def test_the_journal_is_empty_when_everything_is_confirmed(path: str) -> None:
    box = Outbox(path, "a")
    box.confirm(box.add({"n": 1}))
    assert Path(path).stat().st_size == 0


def test_memory_is_bounded_and_nothing_is_lost(path: str) -> None:
    box = Outbox(path, "a")
    keys = [box.add({"n": n}) for n in range(WINDOW * 2 + 5)]
    assert len(box) == WINDOW * 2 + 5
    assert len(box._entries) == WINDOW
    seen: list[int] = []
    now = 0.0
    while len(box):
        for message in box.due(now):
            seen.append(message["n"])
            box.confirm(message["id"])
        now += 0.1
    assert seen == list(range(len(keys)))


def test_a_damaged_journal_gives_what_it_holds(path: str) -> None:
    box = Outbox(path, "a")
    box.add({"n": 1})
    with open(path, "ab") as file:
        file.write(b'nonsense\n[]\n{"add":{}}\n{"add":{"n":2,"id":"a-9"}}\n{"add":{"n":3')
    assert numbers(Outbox(path, "b").due(0.0)) == [1, 2]


def test_a_large_journal_is_made_smaller(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_BYTES", 1000)
    box = Outbox(path, "a")
    for n in range(100):
        key = box.add({"n": n})
        if n < 98:
            box.confirm(key)
            box.add({"n": -n})
            box.confirm(f"a-{box._count}")
    again = Outbox(path, "b")
    assert Path(path).stat().st_size < 1000
    again.add({"n": 7})
    assert numbers(Outbox(path, "c").due(0.0)) == [98, 99, 7]


def test_without_a_disk_messages_are_kept_in_memory(tmp_path: Path) -> None:
    box = Outbox(str(tmp_path / "missing" / "outbox.jsonl"), "a")
    keys = [box.add({"n": n}) for n in range(WINDOW + 5)]
    assert len(box) == WINDOW + 5
    assert all(box.confirm(key) for key in keys)


def test_a_confirmation_of_something_else_is_ignored(path: str) -> None:
    box = Outbox(path, "a")
    box.add({"n": 1})
    assert not box.confirm("other")
    assert not box.confirm(None)
    box.retry_later("other", 1.0)
    assert len(box) == 1


def test_a_controller_that_has_no_room_gets_it_later(path: str) -> None:
    box = Outbox(path, "a")
    key = box.add({"n": 1})
    box.due(0.0)
    box.retry_later(key, 3.0)
    assert box.due(RESEND_S) == []
    assert numbers(box.due(3.0 + RESEND_S)) == [1]
