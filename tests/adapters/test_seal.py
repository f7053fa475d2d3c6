from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.adapters.seal import KEY_BYTES, Seal, new_key
from hyperpod.errors import AccessDenied

KEY = bytes(range(KEY_BYTES))


def _ends() -> tuple[Seal, Seal]:
    return Seal(KEY, is_agent=True), Seal(KEY, is_agent=False)


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_what_is_sealed_is_opened_in_order(payloads: list[bytes]) -> None:
    agent, controller = _ends()
    assert [controller.unwrap(agent.wrap(payload)) for payload in payloads] == payloads
    assert [agent.unwrap(controller.wrap(payload)) for payload in payloads] == payloads


@given(st.binary(min_size=1, max_size=50), st.integers(min_value=0), st.integers(1, 255))
def test_any_changed_byte_is_refused(payload: bytes, place: int, change: int) -> None:
    agent, controller = _ends()
    body = bytearray(agent.wrap(payload))
    body[place % len(body)] ^= change
    with pytest.raises(AccessDenied):
        controller.unwrap(bytes(body))


def test_a_frame_that_comes_twice_is_refused() -> None:
    agent, controller = _ends()
    body = agent.wrap(b"one")
    controller.unwrap(body)
    with pytest.raises(AccessDenied):
        controller.unwrap(body)


def test_a_frame_that_was_left_out_is_noticed() -> None:
    agent, controller = _ends()
    agent.wrap(b"lost")
    with pytest.raises(AccessDenied):
        controller.unwrap(agent.wrap(b"two"))


def test_a_frame_that_is_sent_back_is_refused() -> None:
    agent, _ = _ends()
    with pytest.raises(AccessDenied):
        agent.unwrap(agent.wrap(b"one"))


def test_another_key_does_not_open_it() -> None:
    agent, _ = _ends()
    with pytest.raises(AccessDenied):
        Seal(new_key(), is_agent=False).unwrap(agent.wrap(b"one"))


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x01short", b"MUNGE:abc:"])
def test_what_is_no_sealed_frame_is_refused(body: bytes) -> None:
    with pytest.raises(AccessDenied):
        _ends()[1].unwrap(body)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Seal(b"short", is_agent=True)
