"""Munge credentials against a real munged with a key of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperpod.adapters.munge import MAX_PAYLOAD_BYTES, Munge
from hyperpod.errors import MungeError
from tests.fakes.munged import MUNGED, running_munged

pytestmark = pytest.mark.skipif(MUNGED is None, reason="munged is not installed")


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_munged(tmp_path_factory.mktemp("munge")) as path:
        yield path


def test_decodes_what_it_encoded_and_names_the_writer(socket: str) -> None:
    munge = Munge(socket)
    found = munge.decode(munge.encode(b"hello \0 world"))
    assert found.payload == b"hello \0 world"
    assert (found.uid, found.gid) == (os.geteuid(), os.getegid())
    assert 0 <= found.decoded_at - found.encoded_at <= 5


def test_carries_an_empty_and_a_large_payload(socket: str) -> None:
    munge = Munge(socket)
    assert munge.decode(munge.encode(b"")).payload == b""
    large = os.urandom(MAX_PAYLOAD_BYTES)
    assert munge.decode(munge.encode(large)).payload == large


def test_refuses_a_payload_over_the_limit(socket: str) -> None:
    with pytest.raises(MungeError, match="over the limit of 700000 bytes"):
        Munge(socket).encode(b"x" * (MAX_PAYLOAD_BYTES + 1))


def test_refuses_a_credential_used_before(socket: str) -> None:
    munge = Munge(socket)
    credential = munge.encode(b"once")
    munge.decode(credential)
    with pytest.raises(MungeError, match="used before"):
        munge.decode(credential)


@pytest.mark.parametrize("credential", [b"", b"nonsense", b"MUNGE:AAAA:", b"MUN\0GE"])
def test_refuses_what_is_no_credential(socket: str, credential: bytes) -> None:
    with pytest.raises(MungeError):
        Munge(socket).decode(credential)


def test_refuses_a_credential_with_one_changed_letter(socket: str) -> None:
    munge = Munge(socket)
    credential = bytearray(munge.encode(b"pay 1"))
    credential[60] = ord("A") if credential[60] != ord("A") else ord("B")
    with pytest.raises(MungeError, match="cannot accept a credential"):
        munge.decode(bytes(credential))


def test_refuses_a_credential_of_another_key(socket: str, tmp_path: Path) -> None:
    with running_munged(tmp_path) as other, pytest.raises(MungeError, match="Invalid"):
        Munge(socket).decode(Munge(other).encode(b"stranger"))


def test_refuses_a_credential_meant_for_another_user(socket: str) -> None:
    munge = Munge(socket)
    with pytest.raises(MungeError, match="meant for another user"):
        munge.decode(munge.encode(b"secret", only_uid=os.geteuid() + 1))


@pytest.mark.e2e
def test_says_how_old_an_expired_credential_is(socket: str) -> None:
    munge = Munge(socket, ttl_s=1)
    credential = munge.encode(b"late")
    # munged reads the machine's clock, so this one has to wait for it.
    time.sleep(2.1)
    with pytest.raises(MungeError, match=r"expired \([23] s old\)"):
        munge.decode(credential)


def test_says_that_munged_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(MungeError, match="cannot make a credential") as caught:
        Munge(str(tmp_path / "nobody")).encode(b"x")
    assert "systemctl status munge" in caught.value.hint


def test_serves_many_threads_at_once(socket: str) -> None:
    munge = Munge(socket)

    def round_trip(number: int) -> bytes:
        return munge.decode(munge.encode(b"%d" % number)).payload

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, range(200))) == [b"%d" % n for n in range(200)]
