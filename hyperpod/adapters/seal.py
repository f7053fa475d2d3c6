"""A key for one connection, so that what is said every second need not go through munged.

Owns the check that a frame came from whoever holds the key, in order, once. The key itself is exchanged in a munge
credential that only root can read; see docs/decisions/0009-heartbeats-under-a-session-key.md.
"""

from __future__ import annotations

import os
from typing import Final

from hyperpod.errors import AccessDenied

# The modules below hashlib and hmac: those two load OpenSSL, which is a quarter of the agent's memory.
try:
    from _blake2 import blake2b
    from _operator import _compare_digest as compare_digest
except ImportError:
    from hashlib import blake2b
    from hmac import compare_digest  # type: ignore[no-redef]

MARK: Final = b"\x01"
"""First byte of a sealed body; a munge credential begins with a letter."""

KEY_BYTES: Final = 32
_TAG_BYTES: Final = 16
_TO_CONTROLLER, _TO_AGENT = b"c", b"a"


def new_key() -> bytes:
    """Return a fresh key."""
    return os.urandom(KEY_BYTES)


class Seal:
    """Seals and opens the frames of one connection.

    Each direction counts its frames, and the count goes into the tag: a frame that is repeated, left out, reordered or
    sent back is refused.

    Args:
        key: Of this connection alone, ``KEY_BYTES`` long.
        is_agent: Which end of the connection this is.
    """

    def __init__(self, key: bytes, *, is_agent: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key
        self._out, self._in = (_TO_CONTROLLER, _TO_AGENT) if is_agent else (_TO_AGENT, _TO_CONTROLLER)
        self._sent = 0
        self._received = 0

    def wrap(self, payload: bytes) -> bytes:
        """Return the body of the next frame."""
        tag = self._tag(self._out, self._sent, payload)
        self._sent += 1
        return MARK + tag + payload

    def unwrap(self, body: bytes) -> bytes:
        """Return what a frame's body holds.

        Raises:
            AccessDenied: if it is not the next frame of the one who holds the key; nothing after it can be trusted.
        """
        tag, payload = body[1 : 1 + _TAG_BYTES], body[1 + _TAG_BYTES :]
        if body[:1] != MARK or not compare_digest(tag, self._tag(self._in, self._received, payload)):
            raise AccessDenied("a message has a wrong seal")
        self._received += 1
        return payload

    def _tag(self, direction: bytes, count: int, payload: bytes) -> bytes:
        # A keyed BLAKE2b is a message authentication code by itself (RFC 7693, section 2.9).
        data = direction + count.to_bytes(8, "big") + payload
        return blake2b(data, key=self._key, digest_size=_TAG_BYTES).digest()
